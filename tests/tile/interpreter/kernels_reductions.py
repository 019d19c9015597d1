"""Makes kernels that reduce or scan a matrix along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cuda.tile as ct
import torch

ROWS, COLUMNS = 8, 64


def reduction(function: Callable[..., Any], axis: int) -> Any:
    """Return a kernel that stores `function(tile, axis)`; a block has a tile of `[ROWS, COLUMNS]`."""

    @ct.kernel
    def kernel(x, out, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int]):
        block = ct.bid(0)
        tile = ct.load(x, (block, 0), (ROWS, COLUMNS))
        result = function(tile, axis)
        ct.store(out, (block, 0), ct.reshape(result, (1, ROWS * COLUMNS // tile.shape[axis])))

    return kernel


def scan(function: Callable[..., Any], axis: int) -> Any:
    """Return a kernel that stores `function(tile, axis)`, of the tile's shape."""

    @ct.kernel
    def kernel(x, out, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int]):
        block = ct.bid(0)
        ct.store(out, (block, 0), function(ct.load(x, (block, 0), (ROWS, COLUMNS)), axis))

    return kernel


def run_reduction(kernel: Any, x: torch.Tensor, axis: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return `[blocks, kept]`."""
    blocks, kept = len(x) // ROWS, (COLUMNS, ROWS)[axis]
    out = torch.empty((blocks, kept), dtype=dtype or x.dtype, device="cuda")
    ct.launch(torch.cuda.current_stream(), (blocks,), kernel, (x.cuda(), out, ROWS, COLUMNS))
    return out.cpu()


def run_scan(kernel: Any, x: torch.Tensor) -> torch.Tensor:
    """Return a matrix of the shape of `x`."""
    out = torch.empty_like(x, device="cuda")
    ct.launch(torch.cuda.current_stream(), (len(x) // ROWS,), kernel, (x.cuda(), out, ROWS, COLUMNS))
    return out.cpu()


@ct.kernel
def combine_with_block(out, reverse: ct.Constant[bool], scanned: ct.Constant[bool]):
    """Combine a tile that all blocks have with what each block adds on its own."""
    block = ct.bid(0)
    rows = ct.broadcast_to(ct.reshape(ct.arange(4, dtype=ct.int32), (4, 1)), (4, 2))

    def add(x, y):
        return x + y + block * 100

    if scanned:
        ct.store(out, (block, 0), ct.scan(rows, 0, add, 0, reverse=reverse))
    else:
        ct.store(out, (block, 0), ct.reshape(ct.reduce(rows, 0, add, 0), (1, 2)))


@ct.kernel
def combine_with_constant(out):
    """Combine a tile that all blocks have with a region that is the same in all blocks."""
    total = ct.reduce(ct.arange(4, dtype=ct.int32), 0, lambda x, y: x + y + 1, 0)
    ct.store(out, (ct.bid(0),), ct.reshape(total, (1,)))
