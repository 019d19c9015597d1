"""Kernels whose blocks wait for each other."""

# mypy: allow-untyped-decorators

from __future__ import annotations

import cuda.tile as ct

ACQUIRE, RELEASE, ACQ_REL = ct.MemoryOrder.ACQUIRE, ct.MemoryOrder.RELEASE, ct.MemoryOrder.ACQ_REL


@ct.kernel
def chained_scan(x, flags, sums, y, n: ct.Constant[int]):
    """Sum up x, each block after the one before it."""
    i = ct.bid(0)
    own = ct.cumsum(ct.load(x, (i,), (n,)))
    before = 0.0
    if i > 0:
        while ct.atomic_cas(flags, i - 1, 1, 1, memory_order=ACQUIRE) == 0:
            pass
        before = ct.load(sums, (i - 1,), (1,)).item()
    ct.store(y, (i,), own + before)
    ct.store(sums, (i,), ct.full((1,), before + ct.sum(ct.load(x, (i,), (n,))), ct.float32))
    ct.atomic_xchg(flags, i, 1, memory_order=RELEASE)


@ct.kernel
def grid_barrier(x, count, between, y, blocks, n: ct.Constant[int]):
    """Reverse the tiles of x, through memory and a barrier of the whole grid."""
    i = ct.bid(0)
    ct.store(between, (i,), ct.load(x, (i,), (n,)))
    ct.atomic_add(count, 0, 1, memory_order=ACQ_REL)
    while ct.atomic_add(count, 0, 0, memory_order=ACQUIRE) < blocks:
        pass
    ct.store(y, (i,), ct.load(between, (blocks - 1 - i,), (n,)))


@ct.kernel
def counted_polls(x, flags, y, polls, n: ct.Constant[int]):
    """Wait for the next block, and count how often one looked."""
    i = ct.bid(0)
    looked = 0
    if i + 1 < ct.num_blocks(0):
        while ct.atomic_cas(flags, i + 1, 1, 1, memory_order=ACQUIRE) == 0:
            looked += 1
    ct.store(y, (i,), ct.load(x, (i,), (n,)))
    ct.scatter(polls, i, looked)
    ct.atomic_xchg(flags, i, 1, memory_order=RELEASE)


@ct.kernel
def wait_for_nobody(flags, fails: ct.Constant[bool]):
    """Wait for a flag that no block sets; the last block fails, if it is to."""
    if fails and ct.bid(0) == ct.num_blocks(0) - 1:
        ct.assert_(ct.bid(0) < 0, "as it was to")
    while ct.atomic_cas(flags, 0, 1, 1, memory_order=ACQUIRE) == 0:
        pass
