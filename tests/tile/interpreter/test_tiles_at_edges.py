"""Tiles that reach beyond an array: seen as rectangles they are what they are element by element."""

import cuda.tile as ct
import pytest
import torch

from pytest_cutile.interpreter import KernelFault, interpret
from pytest_cutile.tile.interpreter.ops import access
from research.operations.memory import load_padded, strided_view_kernel, transposed_load_kernel
from tests.tile.interpreter import small_kernels as kernels

ARRAYS = {
    "contiguous": torch.arange(37 * 45, dtype=torch.float32).reshape(37, 45),
    "transposed": torch.arange(37 * 45, dtype=torch.float32).reshape(45, 37).t(),
    "part of a wider one": torch.arange(50 * 60, dtype=torch.float32).reshape(50, 60)[5:42, 7:52],
    "every other column": torch.arange(37 * 90, dtype=torch.float32).reshape(37, 90)[:, ::2],
    "repeated rows": torch.arange(45, dtype=torch.float32).expand(37, 45),
    "one element": torch.ones(1, 1),
}


@pytest.fixture(params=["rectangles", "element by element"], autouse=True)
def _path(request, monkeypatch):
    if request.param == "element by element":
        monkeypatch.setattr(access.IndexedTiles, "tiles", lambda *_: None)


def padded(x: torch.Tensor, rows: int, columns: int, fill: float) -> torch.Tensor:
    result = torch.full((rows, columns), fill)
    result[: x.shape[0], : x.shape[1]] = x
    return result


@pytest.mark.parametrize("name", ARRAYS)
def test_padding(name):
    x = ARRAYS[name]
    out = torch.empty(48, 64)
    with interpret("sm_90"):
        ct.launch(0, (3, 4), load_padded(ct.PaddingMode.NEG_INF), (x, out, 16, 16))
    assert torch.equal(out, padded(x, 48, 64, -torch.inf))


@pytest.mark.parametrize("name", [name for name in ARRAYS if name != "repeated rows"])
def test_only_what_is_in_the_array_is_written(name):
    around = torch.full((60, 60), -5.0)
    shape = ARRAYS[name].shape
    out = around[3 : 3 + shape[0], 4 : 4 + shape[1]]
    expected = around.clone()
    expected[3 : 3 + shape[0], 4 : 4 + shape[1]] = padded(ARRAYS[name], shape[0], shape[1], 0)
    grid = tuple(-(-length // 16) for length in shape)
    with interpret("sm_90"):
        ct.launch(0, grid, load_padded(ct.PaddingMode.ZERO), (ARRAYS[name], out, 16, 16))
    assert torch.equal(around, expected)


def test_tiles_whose_axes_are_swapped():
    x = ARRAYS["contiguous"]
    out = torch.empty(64, 48)
    with interpret("sm_90"):
        ct.launch(0, (3, 4), transposed_load_kernel, (x, out, 16, 16))
    # Tile (j, i) of the transposed array, [45, 37].
    assert torch.equal(out, padded(x.t(), 64, 48, 0))


def test_tiles_that_overlap():
    x = torch.arange(250, dtype=torch.float32)
    out = torch.empty(8 * 64)
    with interpret("sm_90"):
        ct.launch(0, (8,), strided_view_kernel, (x, out, 64))
    wide = torch.cat([x, torch.full((64,), -torch.inf)])
    assert torch.equal(out, torch.cat([wide[i * 32 : i * 32 + 64] + 8 for i in range(8)]))


def test_two_blocks_that_write_the_same_edge_are_a_race():
    x = torch.arange(10, dtype=torch.int32)
    with interpret("sm_90"), pytest.raises(KernelFault, match=r"writes out\[0\], which block \(1, 0, 0\)"):
        ct.launch(0, (2,), kernels.same_tile_kernel, (x, x.clone(), 16))


def test_reading_an_edge_that_nothing_has_written():
    with interpret("sm_90"):
        x = torch.empty(10, dtype=torch.int32, device="cuda")
        x[:9] = 1
        fresh = torch.empty(10, dtype=torch.int32, device="cuda")
        with pytest.raises(KernelFault, match=r"depends on x\[0\] of \[10\], which nothing has written"):
            ct.launch(0, (1,), kernels.same_tile_kernel, (fresh, x, 16))
