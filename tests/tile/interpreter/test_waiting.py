"""Blocks that wait for each other run in any order, one at a time."""

from __future__ import annotations

import threading
from typing import Any

import cuda.tile as ct
import pytest
import torch

from pytest_cutile.interpreter import KernelFault, Options, interpret
from tests.tile.interpreter import kernels_waiting as kernels

N, BLOCKS = 16, 7
ORDERS = pytest.mark.parametrize("reverse", [False, True])


def flags(count: int = BLOCKS) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32)


def launch(reverse: bool, kernel: Any, *arguments: Any, blocks: int = BLOCKS) -> None:
    before = threading.active_count()
    try:
        with interpret("sm_90", Options(reverse=reverse)):
            ct.launch(0, (blocks,), kernel, arguments)
    finally:
        assert threading.active_count() == before


@ORDERS
def test_a_chained_scan(reverse: bool) -> None:
    x, y = torch.arange(float(N * BLOCKS)), torch.zeros(N * BLOCKS)
    launch(reverse, kernels.chained_scan, x, flags(), torch.zeros(BLOCKS), y, N)
    assert torch.equal(y, x.cumsum(0))


@ORDERS
def test_a_barrier_of_the_grid(reverse: bool) -> None:
    x, y = torch.arange(float(N * BLOCKS)), torch.zeros(N * BLOCKS)
    launch(reverse, kernels.grid_barrier, x, flags(1), torch.empty(N * BLOCKS), y, BLOCKS, N)
    assert torch.equal(y.reshape(BLOCKS, N), x.reshape(BLOCKS, N).flip(0))


@pytest.mark.slow
@ORDERS
def test_a_loop_that_counts_while_it_waits(reverse: bool) -> None:
    x, y, polls = torch.arange(float(N * BLOCKS)), torch.zeros(N * BLOCKS), flags()
    launch(reverse, kernels.counted_polls, x, flags(), y, polls, N)
    assert torch.equal(y, x)
    assert bool((polls > 0).any()) is not reverse


@ORDERS
def test_what_nobody_does_is_waited_for_in_vain(reverse: bool) -> None:
    with pytest.raises(KernelFault, match="no block does what it waits for") as caught:
        launch(reverse, kernels.wait_for_nobody, flags(1), False)
    assert caught.value.kind == "endless-loop"


def test_a_block_that_fails_ends_those_that_wait() -> None:
    with pytest.raises(KernelFault, match="as it was to") as caught:
        launch(False, kernels.wait_for_nobody, flags(1), True)
    assert caught.value.block == (BLOCKS - 1, 0, 0)


@pytest.mark.slow
def test_a_barrier_of_more_blocks_than_are_reversed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_cutile.tile.interpreter.launch.MOST_BLOCKS", BLOCKS - 1)
    x, y, polls = torch.arange(float(N * BLOCKS)), torch.zeros(N * BLOCKS), flags()
    launch(True, kernels.counted_polls, x, flags(), y, polls, N)
    assert bool((polls > 0).any())  # as with the first block first
