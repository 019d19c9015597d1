"""Atomics against plain Python that lets one lane act after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cuda.tile as ct
import pytest
import torch

from pytest_cutile.interpreter import KernelFault, Options, interpret
from pytest_cutile.tile.interpreter.ops.atomics import read_modify_write
from tests.tile.interpreter import kernels_atomics as kernels
from tests.tile.interpreter.kernels_atomics import TILE, stream

BLOCKS = 5
LANES = BLOCKS * TILE


def wrapped(number: int, dtype: torch.dtype) -> int:
    bits = torch.iinfo(dtype).bits
    low = number & ((1 << bits) - 1)
    return low - (1 << bits) if dtype.is_signed and low >> (bits - 1) else low


def in_turn(
    start: list[int], where: list[int], values: list[int], combine: Callable[[int, int], int]
) -> tuple[list[int], list[int]]:
    """Return what is left, and what each lane saw."""
    left, seen = list(start), []
    for at, value in zip(where, values, strict=True):
        seen.append(left[at])
        left[at] = combine(left[at], value)
    return left, seen


def draw(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    """Return numbers of all sizes."""
    info = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(-(2**31), 2**31, (count, 2), generator=generator)
    numbers = [wrapped((int(high) << 32) ^ int(low), dtype) for high, low in words]
    assert all(info.min <= number <= info.max for number in numbers)
    return torch.tensor(numbers, dtype=dtype)


@pytest.mark.parametrize("elements", [1, 7, 300], ids=lambda n: f"{n}-elements")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint32, torch.uint64], ids=str)
@pytest.mark.parametrize(
    ("kernel", "combine"),
    [
        (kernels.add_kernel, lambda old, new: old + new),
        (kernels.max_kernel, max),
        (kernels.min_kernel, min),
        (kernels.xor_kernel, lambda old, new: old ^ new),
        (kernels.xchg_kernel, lambda _, new: new),
    ],
    ids=["add", "max", "min", "xor", "xchg"],
)
def test_lanes_act_one_after_another(
    kernel: Any, combine: Callable[[int, int], int], dtype: torch.dtype, elements: int
) -> None:
    start, values = draw(dtype, elements, 1), draw(dtype, LANES, 2)
    where = torch.randint(0, elements, (LANES,), generator=torch.Generator().manual_seed(3))
    left, seen = in_turn(
        start.tolist(),
        where.tolist(),
        values.tolist(),
        lambda old, new: wrapped(combine(old, new), dtype),
    )
    with interpret("sm_90"):
        x, saw = start.cuda(), torch.empty_like(values, device="cuda")
        ct.launch(stream(), (BLOCKS,), kernel, (x, where.cuda(), values.cuda(), saw, TILE))
    assert x.tolist() == left
    assert saw.tolist() == seen


@pytest.mark.parametrize("mode", ["add", "max", "umin", "xchg"])
@pytest.mark.parametrize("elements", [1, 3, 1000])
def test_many_lanes_on_an_element_are_as_exact_as_few(mode: str, elements: int) -> None:
    combine: dict[str, Callable[[int, int], int]] = {
        "add": lambda old, new: wrapped(old + new, torch.int32),
        "max": max,
        "umin": lambda old, new: old if old % 2**32 <= new % 2**32 else new,
        "xchg": lambda _, new: new,
    }
    start, values = draw(torch.int32, elements, 4), draw(torch.int32, 700, 5)
    where = torch.randint(0, elements, (700,), generator=torch.Generator().manual_seed(6))
    left, seen = in_turn(start.tolist(), where.tolist(), values.tolist(), combine[mode])
    row = start.clone()
    assert read_modify_write(mode, row, where, values).tolist() == seen
    assert row.tolist() == left


@pytest.mark.parametrize("elements", [1, 200], ids=lambda n: f"{n}-elements")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_floats_are_rounded_at_every_addition(dtype: torch.dtype, elements: int) -> None:
    generator = torch.Generator().manual_seed(7)
    values = torch.randn(LANES, generator=generator).to(dtype)
    where = torch.randint(0, elements, (LANES,), generator=generator)
    left = torch.zeros(elements, dtype=dtype)
    seen = []
    for at, value in zip(where.tolist(), values, strict=True):
        seen.append(left[at].item())
        left[at] += value
    with interpret("sm_90"):
        x, saw = torch.zeros(elements, dtype=dtype, device="cuda"), torch.empty_like(values, device="cuda")
        ct.launch(stream(), (BLOCKS,), kernels.add_kernel, (x, where.cuda(), values.cuda(), saw, TILE))
    assert x.tolist() == left.tolist()
    assert saw.tolist() == seen


def test_a_swap_needs_the_bits_that_are_expected() -> None:
    start = torch.zeros(4)
    where = torch.zeros(TILE, dtype=torch.int64)
    where[:3] = torch.tensor([0, 0, 1])
    where[3:] = 2
    expected = torch.full((TILE,), 5.0)
    expected[:3] = torch.tensor([0.0, 0.0, -0.0])  # -0 has other bits than 0
    values = torch.arange(1.0, TILE + 1)
    with interpret("sm_90"):
        x, saw = start.cuda(), torch.empty(TILE, device="cuda")
        ct.launch(
            stream(), (1,), kernels.cas_kernel, (x, where.cuda(), expected.cuda(), values.cuda(), saw, TILE)
        )
    assert x.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert saw.tolist()[:4] == [0.0, 1.0, 0.0, 0.0]


def test_lanes_out_of_bounds_do_nothing() -> None:
    where = torch.arange(TILE) - 3
    with interpret("sm_90"):
        x = torch.zeros(8, dtype=torch.int32, device="cuda")
        saw, ones = (torch.ones(TILE, dtype=torch.int32, device="cuda") for _ in range(2))
        ct.launch(stream(), (1,), kernels.add_kernel, (x, where.cuda(), ones, saw, TILE))
        expected = torch.full((TILE,), 9, dtype=torch.int32, device="cuda")
        ct.launch(stream(), (1,), kernels.cas_kernel, (x, where.cuda(), expected, ones, saw, TILE))
    assert x.tolist() == [1] * 8
    # cuda-tile promises what is expected for those.
    assert saw.tolist() == [9] * 3 + [1] * 8 + [9] * (TILE - 11)


def test_a_view_is_updated_by_all_blocks_but_not_beyond_its_end() -> None:
    with interpret("sm_90"):
        x = torch.zeros(TILE + 3, device="cuda")[: TILE - 3]
        values = torch.ones(3 * TILE, device="cuda")
        ct.launch(stream(), (3,), kernels.add_to_view_kernel, (x, values, TILE))
        whole = x.as_strided((TILE + 3,), (1,))
    assert whole.tolist() == [3.0] * (TILE - 3) + [0.0] * 6


def test_denormal_sums_are_flushed_as_ptx_says() -> None:
    least = 2.0**-149
    with interpret("sm_90"):
        x = torch.zeros(1, device="cuda")
        where, saw = torch.zeros(TILE, dtype=torch.int64, device="cuda"), torch.empty(TILE, device="cuda")
        values = torch.full((TILE,), least, device="cuda")
        ct.launch(stream(), (1,), kernels.add_kernel, (x, where, values, saw, TILE))
    assert x.tolist() == [0.0]


@pytest.mark.parametrize("reverse", [False, True])
def test_blocks_with_a_spin_lock_all_get_their_turn(reverse: bool) -> None:
    with interpret("sm_90", Options(reverse=reverse)):
        lock, total = (torch.zeros(1, dtype=torch.int32, device="cuda") for _ in range(2))
        ct.launch(stream(), (40,), kernels.locked_kernel, (lock, total))
    assert (lock.item(), total.item()) == (0, 40)


def test_a_loop_that_can_never_end_is_a_fault_with_its_line() -> None:
    with interpret("sm_90"):
        lock = torch.zeros(1, dtype=torch.int32, device="cuda")
        with pytest.raises(KernelFault, match="a loop does not end") as caught:
            ct.launch(stream(), (2,), kernels.deadlocked_kernel, (lock,))
    assert caught.value.kind == "endless-loop"
    assert caught.value.block == (1, 0, 0)
    assert caught.value.location is not None
    assert caught.value.location.file == kernels.__file__
    assert "while ct.atomic_cas(lock, 0, 0, 1) != 0:" in str(caught.value)


def test_tickets_are_given_out_once() -> None:
    with interpret("sm_90"):
        counter = torch.zeros(1, dtype=torch.int32, device="cuda")
        tickets = torch.empty(100, dtype=torch.int32, device="cuda")
        ct.launch(stream(), (100,), kernels.ticket_kernel, (counter, tickets))
    assert sorted(tickets.tolist()) == list(range(100))
