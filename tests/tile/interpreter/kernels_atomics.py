"""Kernels with atomics, and what launches them."""

from __future__ import annotations

import cuda.tile as ct
import torch

TILE = 64


def stream() -> torch.cuda.Stream:
    return torch.cuda.current_stream()


@ct.kernel
def add_kernel(x, where, values, seen, TILE: ct.Constant[int]):
    block = ct.bid(0)
    at = ct.load(where, (block,), (TILE,))
    value = ct.load(values, (block,), (TILE,))
    ct.store(seen, (block,), ct.atomic_add(x, at, value, memory_order=ct.MemoryOrder.RELAXED))


@ct.kernel
def max_kernel(x, where, values, seen, TILE: ct.Constant[int]):
    block = ct.bid(0)
    at = ct.load(where, (block,), (TILE,))
    value = ct.load(values, (block,), (TILE,))
    ct.store(seen, (block,), ct.atomic_max(x, at, value, memory_order=ct.MemoryOrder.RELAXED))


@ct.kernel
def min_kernel(x, where, values, seen, TILE: ct.Constant[int]):
    block = ct.bid(0)
    at = ct.load(where, (block,), (TILE,))
    value = ct.load(values, (block,), (TILE,))
    ct.store(seen, (block,), ct.atomic_min(x, at, value, memory_order=ct.MemoryOrder.RELAXED))


@ct.kernel
def xor_kernel(x, where, values, seen, TILE: ct.Constant[int]):
    block = ct.bid(0)
    at = ct.load(where, (block,), (TILE,))
    value = ct.load(values, (block,), (TILE,))
    ct.store(seen, (block,), ct.atomic_xor(x, at, value, memory_order=ct.MemoryOrder.RELAXED))


@ct.kernel
def xchg_kernel(x, where, values, seen, TILE: ct.Constant[int]):
    block = ct.bid(0)
    at = ct.load(where, (block,), (TILE,))
    value = ct.load(values, (block,), (TILE,))
    ct.store(seen, (block,), ct.atomic_xchg(x, at, value, memory_order=ct.MemoryOrder.RELAXED))


@ct.kernel
def cas_kernel(x, where, expected, values, seen, TILE: ct.Constant[int]):
    block = ct.bid(0)
    at = ct.load(where, (block,), (TILE,))
    value = ct.load(values, (block,), (TILE,))
    compare = ct.load(expected, (block,), (TILE,))
    ct.store(seen, (block,), ct.atomic_cas(x, at, compare, value, memory_order=ct.MemoryOrder.RELAXED))


@ct.kernel
def add_to_view_kernel(x, values, TILE: ct.Constant[int]):
    value = ct.load(values, (ct.bid(0),), (TILE,))
    x.tiled_view((TILE,)).atomic_store_add((0,), value)


@ct.kernel
def locked_kernel(lock, total):
    """Add one to `total` without atomics, under a spin lock."""
    while ct.atomic_cas(lock, 0, 0, 1) != 0:
        pass
    ct.store(total, (0,), ct.load(total, (0,), (1,)) + 1)
    ct.atomic_xchg(lock, 0, 0)


@ct.kernel
def deadlocked_kernel(lock):
    """Take a lock that nobody gives back."""
    while ct.atomic_cas(lock, 0, 0, 1) != 0:
        pass


@ct.kernel
def ticket_kernel(counter, tickets):
    """Give each block a number of its own."""
    ct.store(tickets, (ct.bid(0),), ct.atomic_add(counter, 0, 1))
