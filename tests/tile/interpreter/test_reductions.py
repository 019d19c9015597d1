"""Reductions and scans, with ties and NaN, against plain loops."""

from __future__ import annotations

import itertools
import math
from typing import Any

import cuda.tile as ct
import pytest
import torch

from pytest_cutile.interpreter import interpret
from tests.tile.interpreter.kernels_reductions import (
    COLUMNS,
    ROWS,
    combine_with_block,
    combine_with_constant,
    reduction,
    run_reduction,
    run_scan,
    scan,
)

BLOCKS = 3


def integers(dtype: torch.dtype = torch.int32, *, most: int = 5) -> torch.Tensor:
    """Return small numbers, so that there are ties."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, most, (BLOCKS * ROWS, COLUMNS), generator=generator).to(dtype)


def with_nan() -> torch.Tensor:
    x = integers(torch.float32, most=1000)
    x[1, 5] = x[1, 9] = x[3, 0] = x[ROWS + 2, COLUMNS - 1] = math.nan
    x[4] = math.nan
    return x


def lines(x: torch.Tensor, axis: int) -> list[list[list[Any]]]:
    """Return, by block, the lines along an axis."""
    tiles = x.reshape(BLOCKS, ROWS, COLUMNS)
    return (tiles.transpose(1, 2) if axis == 0 else tiles).tolist()


@pytest.mark.parametrize("axis", [0, 1])
def test_sums_and_products_of_integers_wrap(axis: int) -> None:
    x = integers() * 0x1234567 + 1
    with interpret("sm_90"):
        sums = run_reduction(reduction(ct.sum, axis), x, axis)
        products = run_reduction(reduction(ct.prod, axis), x, axis)

    def wrapped(number: int) -> int:
        return (number + 2**31) % 2**32 - 2**31

    assert sums.tolist() == [[wrapped(sum(line)) for line in block] for block in lines(x, axis)]
    assert products.tolist() == [[wrapped(math.prod(line)) for line in block] for block in lines(x, axis)]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("function", "choose"), [(ct.argmax, max), (ct.argmin, min)], ids=["argmax", "argmin"]
)
def test_the_first_of_equals_is_chosen(function: Any, choose: Any, axis: int) -> None:
    x = integers()
    with interpret("sm_90"):
        results = run_reduction(reduction(function, axis), x, axis)
    assert results.tolist() == [[line.index(choose(line)) for line in block] for block in lines(x, axis)]


@pytest.mark.parametrize(("function", "choose"), [(ct.max, max), (ct.min, min)], ids=["max", "min"])
def test_extremes_pass_over_nan(function: Any, choose: Any) -> None:
    x = with_nan()
    with interpret("sm_90"):
        results = run_reduction(reduction(function, 1), x, 1)
    for got, line in zip(results.reshape(-1).tolist(), x.tolist(), strict=True):
        numbers = [value for value in line if not math.isnan(value)]
        assert (math.isnan(got) and not numbers) or got == choose(numbers)


@pytest.mark.parametrize("function", [ct.max, ct.min], ids=["max", "min"])
def test_extremes_propagate_nan_where_asked_to(function: Any) -> None:
    x = with_nan()

    def extreme(tile, axis):
        return function(tile, axis, propagate_nan=True)

    with interpret("sm_90"):
        results = run_reduction(reduction(extreme, 1), x, 1)
    assert results.reshape(-1).isnan().tolist() == [any(map(math.isnan, line)) for line in x.tolist()]


@pytest.mark.parametrize("function", [ct.argmax, ct.argmin], ids=["argmax", "argmin"])
def test_the_place_of_an_extreme_is_that_of_the_first_nan_where_asked_to(function: Any) -> None:
    x = with_nan()

    def place(tile, axis):
        return function(tile, axis, propagate_nan=True)

    with interpret("sm_90"):
        results = run_reduction(reduction(place, 1), x, 1, torch.int32).reshape(-1)
    for got, line in zip(results.tolist(), x.tolist(), strict=True):
        first = next((at for at, value in enumerate(line) if math.isnan(value)), None)
        if first is not None:
            assert got == first


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_sums_of_floats_are_near_the_true_sum(dtype: torch.dtype) -> None:
    x = (integers(torch.float32, most=100) / 7).to(dtype)
    with interpret("sm_90"):
        results = run_reduction(reduction(ct.sum, 1), x, 1)
    true = x.double().sum(dim=1).reshape(BLOCKS, ROWS)
    # Summed in pairs, a sum of 64 is rounded six times.
    assert ((results.double() - true).abs() <= 6 * torch.finfo(dtype).eps * true).all()


def test_a_reduction_that_does_not_commute_keeps_the_order() -> None:
    """Composition of x -> a x + b, as one number each: 100 a + b modulo 7."""
    x = integers(most=7) * 100 + integers(most=3)

    def compose(left, right):
        factor, summand = left // 100, left % 100
        return (factor * (right // 100)) % 7 * 100 + (summand * (right // 100) + right % 100) % 7

    def composed(tile, axis):
        return ct.reduce(tile, axis, compose, 100)

    def reference(line: list[int]) -> int:
        total = line[0]
        for value in line[1:]:
            total = compose(total, value)
        return total

    with interpret("sm_90"):
        results = run_reduction(reduction(composed, 1), x, 1)
    assert results.reshape(-1).tolist() == [reference(line) for line in x.tolist()]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("function", [ct.cumsum, ct.cumprod], ids=["cumsum", "cumprod"])
def test_scans_run_both_ways(function: Any, axis: int, reverse: bool) -> None:
    x = integers()

    def scanned(tile, axis):
        return function(tile, axis, reverse=reverse)

    with interpret("sm_90"):
        results = run_scan(scan(scanned, axis), x)
    tiles = x.reshape(BLOCKS, ROWS, COLUMNS)
    turned = tiles.flip(axis + 1) if reverse else tiles
    whole = (turned.cumsum if function is ct.cumsum else turned.cumprod)(dim=axis + 1).to(torch.int32)
    expected = whole.flip(axis + 1) if reverse else whole
    assert results.tolist() == expected.reshape(x.shape).tolist()


@pytest.mark.parametrize("reverse", [False, True])
def test_nan_stays_in_a_sum_once_it_is_there(reverse: bool) -> None:
    x = with_nan()

    def scanned(tile, axis):
        return ct.cumsum(tile, axis, reverse=reverse)

    with interpret("sm_90"):
        results = run_scan(scan(scanned, 1), x)
    for got, line in zip(results.isnan().tolist(), x.isnan().tolist(), strict=True):
        part = [any(line[at:]) if reverse else any(line[: at + 1]) for at in range(COLUMNS)]
        assert got == part


def test_a_reduction_to_bool() -> None:
    x = integers(most=2)

    def any_four(tile, axis):
        return ct.max(ct.astype(tile * 4 >= 4, ct.int32), axis)

    with interpret("sm_90"):
        results = run_reduction(reduction(any_four, 0), x, 0)
    assert results.tolist() == [[max(line) for line in block] for block in lines(x, 0)]


@pytest.mark.parametrize("blocks", [1, 2, 3, 8, 12])
def test_what_is_combined_may_differ_by_block_where_the_tile_does_not(blocks: int) -> None:
    total = torch.zeros(blocks, 2, dtype=torch.int32)
    with interpret("sm_90"):
        ct.launch(0, (blocks,), combine_with_block, (total, False, False))
    assert total.tolist() == [[6 + 300 * block] * 2 for block in range(blocks)]
    for reverse in (False, True):
        sums = torch.zeros(4 * blocks, 2, dtype=torch.int32)
        with interpret("sm_90"):
            ct.launch(0, (blocks,), combine_with_block, (sums, reverse, True))
        expected = []
        for block in range(blocks):
            numbers = list(itertools.accumulate([3, 2, 1, 0] if reverse else [0, 1, 2, 3]))
            steps = [number + 100 * block * at for at, number in enumerate(numbers)]
            expected += [[step] * 2 for step in (reversed(steps) if reverse else steps)]
        assert sums.tolist() == expected


@pytest.mark.parametrize("blocks", [1, 3, 4])
def test_what_is_combined_may_be_the_same_in_all_blocks(blocks: int) -> None:
    total = torch.zeros(blocks, dtype=torch.int32)
    with interpret("sm_90"):
        ct.launch(0, (blocks,), combine_with_constant, (total,))
    assert total.tolist() == [9] * blocks
