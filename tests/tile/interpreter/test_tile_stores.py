"""Which stores of a launch reach the end of an array and stick out, as far as the launch decides that."""

import linecache
from typing import TypeAlias

import cuda.tile as ct
import pytest
import torch

from pytest_cutile.tile.compiler import export, record_launches
from pytest_cutile.tile.compiler.parameters import parameters_of
from pytest_cutile.tile.interpreter.tile_stores import TileStore, tile_stores

ConstInt: TypeAlias = ct.Constant[int]


@ct.kernel
def store_kernel(x, y, size: ConstInt):
    ct.store(y, (ct.bid(0),), ct.load(x, (0,), (size,), padding_mode=ct.PaddingMode.ZERO))


@ct.kernel
def add_kernel(x, y, size: ConstInt, step: ConstInt):
    tile = ct.load(x, (0,), (size,), padding_mode=ct.PaddingMode.ZERO)
    y.tiled_view((size,), traversal_steps=(step,)).atomic_store_add((ct.bid(0),), tile)


@ct.kernel
def matrix_kernel(x, y, size: ConstInt):
    for row in range(ct.cdiv(y.shape[0], size)):
        ct.store(y, (row, ct.bid(0)), ct.load(x, (0, 0), (size, size), padding_mode=ct.PaddingMode.ZERO))


@ct.kernel
def branching_kernel(x, y, size: ConstInt, last: ConstInt):
    tile = ct.load(x, (0,), (size,), padding_mode=ct.PaddingMode.ZERO)
    if ct.bid(0) != last:
        ct.store(y, (ct.bid(0),), tile)


@ct.kernel
def asking_kernel(x, y, size: ConstInt):
    tile = ct.load(x, (0,), (size,), padding_mode=ct.PaddingMode.ZERO)
    if ct.sum(tile) > 0:
        ct.store(y, (ct.bid(0),), tile)


@ct.kernel
def leaving_kernel(x, y, size: ConstInt):
    tile = ct.load(x, (0,), (size,), padding_mode=ct.PaddingMode.ZERO)
    if ct.sum(tile) > 0:
        return
    ct.store(y, (ct.bid(0),), tile)


@ct.kernel
def indexed_kernel(x, y, size: ConstInt):
    at = ct.sum(ct.load(x, (0,), (size,), padding_mode=ct.PaddingMode.ZERO)).astype(ct.int32)
    ct.store(y, (at,), ct.ones((size,), dtype=y.dtype))


def bf16(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda")


def stores_of(kernel, make, *constants: int, grid: int) -> list[TileStore]:
    def launch() -> None:
        y = make()
        ct.launch(torch.cuda.current_stream(), (grid,), kernel, (torch.empty_like(y), y, *constants))

    [recorded] = record_launches(launch, "sm_90")
    return tile_stores(export(recorded, "sm_90"), parameters_of(recorded))


def past(kernel, make, *constants: int, grid: int) -> int:
    [store] = stores_of(kernel, make, *constants, grid=grid)
    assert store.parameter in ("y", "")
    return store.bytes_past(16)


@pytest.mark.parametrize(("length", "expected"), [(300, 8), (304, 0), (303, 2), (297, 14), (60, 8)])
def test_a_tile_that_sticks_out_writes_the_rest_of_its_piece(length, expected) -> None:
    assert past(store_kernel, lambda: bf16(length), 64, grid=5) == expected


def test_an_array_in_whole_tiles_is_right_wherever_it_ends() -> None:
    assert past(store_kernel, lambda: bf16(4), 4, grid=1) == 0


def test_blocks_that_do_not_reach_the_end_write_nothing_behind_it() -> None:
    assert past(store_kernel, lambda: bf16(300), 64, grid=4) == 0
    assert past(branching_kernel, lambda: bf16(300), 64, 4, grid=5) == 0
    assert past(branching_kernel, lambda: bf16(300), 64, 3, grid=5) == 8


@pytest.mark.parametrize(("step", "grid", "expected"), [(16, 4, 8), (16, 3, 0), (38, 2, 0), (19, 3, 0)])
def test_windows_that_overlap(step, grid, expected) -> None:
    """Of 70 float32, a window of 32 from element 38 on ends with the array, and one from 48 on sticks out."""
    make = lambda: torch.zeros(70, device="cuda")  # noqa: E731
    assert past(add_kernel, make, 32, step, grid=grid) == expected


def test_memory_behind_the_array_may_be_written() -> None:
    assert past(store_kernel, lambda: bf16(304)[:300], 64, grid=5) == 0
    assert past(store_kernel, lambda: bf16(302)[:300], 64, grid=5) == 4
    assert past(matrix_kernel, lambda: bf16(8, 64)[:, :60], 32, grid=2) == 0


def test_the_last_row_of_a_matrix_is_its_end() -> None:
    padded = lambda: torch.empty_strided((8, 60), (64, 1), dtype=torch.bfloat16, device="cuda")  # noqa: E731
    assert past(matrix_kernel, padded, 32, grid=2) == 8
    assert past(matrix_kernel, padded, 32, grid=1) == 0
    assert past(matrix_kernel, lambda: bf16(1, 60), 64, grid=1) == 8
    assert past(matrix_kernel, lambda: bf16(60, 1), 64, grid=1) == 8


@pytest.mark.parametrize("kernel", [asking_kernel, leaving_kernel, indexed_kernel])
def test_what_only_data_decides_is_not_known(kernel) -> None:
    assert past(kernel, lambda: bf16(300), 64, grid=5) == 0


def test_no_blocks_and_no_elements() -> None:
    assert stores_of(store_kernel, lambda: bf16(300), 64, grid=0) == []
    assert past(store_kernel, lambda: bf16(0), 64, grid=1) == 0


def test_a_store_says_where_it_is() -> None:
    [store] = stores_of(store_kernel, lambda: bf16(300), 64, grid=5)
    file, line = store.places[0]
    assert file == __file__
    assert (store.operation, store.parameter, store.end_bytes, store.item_bytes) == ("store", "y", 600, 2)
    assert "ct.store(y" in linecache.getline(file, line)
    [store] = stores_of(add_kernel, lambda: torch.zeros(70, device="cuda"), 32, 16, grid=4)
    assert store.operation == "atomic"
