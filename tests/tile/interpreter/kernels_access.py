"""Kernels that load and store through views, indices and raw memory, and that print and assert."""

from __future__ import annotations

from typing import Any

import cuda.tile as ct


def load_padded(mode: ct.PaddingMode) -> Any:
    """Return a kernel that copies tiles with this padding; `out` has room for whole tiles."""

    @ct.kernel
    def kernel(x, out, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int]):
        i, j = ct.bid(0), ct.bid(1)
        ct.store(out, (i, j), ct.load(x, (i, j), (ROWS, COLUMNS), padding_mode=mode))

    return kernel


@ct.kernel
def store_kernel(x, out, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int]):
    """Copy whole tiles into an array that may end in the middle of one."""
    i, j = ct.bid(0), ct.bid(1)
    ct.store(out, (i, j), ct.load(x, (i, j), (ROWS, COLUMNS)))


@ct.kernel
def transposed_load_kernel(x, out, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int]):
    """Load tiles whose axes run along the array's axes in the other order."""
    i, j = ct.bid(0), ct.bid(1)
    ct.store(out, (i, j), ct.load(x, (i, j), (ROWS, COLUMNS), order=(1, 0), padding_mode=ct.PaddingMode.ZERO))


@ct.kernel
def gather_kernel(x, rows, columns, mask, out, TILE: ct.Constant[int]):
    """Gather elements, 7 where the mask or the bounds leave one out."""
    block = ct.bid(0)
    at = (ct.load(rows, (block,), (TILE,)), ct.load(columns, (block,), (TILE,)))
    found = ct.gather(x, at, mask=ct.load(mask, (block,), (TILE,)), padding_value=7)
    ct.store(out, (block,), found)


@ct.kernel
def scatter_kernel(x, rows, columns, mask, values, TILE: ct.Constant[int]):
    block = ct.bid(0)
    at = (ct.load(rows, (block,), (TILE,)), ct.load(columns, (block,), (TILE,)))
    ct.scatter(x, at, ct.load(values, (block,), (TILE,)), mask=ct.load(mask, (block,), (TILE,)))


@ct.kernel
def windows_kernel(x, out, TILE: ct.Constant[int], STEP: ct.Constant[int]):
    """Store tiles that begin STEP elements apart."""
    block = ct.bid(0)
    view = x.tiled_view((TILE,), traversal_steps=(STEP,), padding_mode=ct.PaddingMode.NEG_INF)
    ct.store(out, (block, 0), ct.reshape(view.load((block,)), (1, TILE)))


@ct.kernel
def bool_kernel(x, y, out, TILE: ct.Constant[int]):
    block = ct.bid(0)
    a, b = ct.load(x, (block,), (TILE,)), ct.load(y, (block,), (TILE,))
    ct.store(out, (block,), ct.where(a, b, ct.full((TILE,), True, ct.bool_)) ^ (a & b))


@ct.kernel
def print_kernel(x, TILE: ct.Constant[int]):
    block = ct.bid(0)
    tile = ct.load(x, (block,), (TILE,))
    ct.printf("block %d: %5.2f|\n", block, tile)
    ct.print("again:", tile[0] if TILE == 1 else ct.sum(tile), end=";\n")


@ct.kernel
def hexadecimal_kernel():
    ct.printf("%x %#o %+d %05d %-5d| %u %lld %%\n", 255, 8, 3, -42, 7, 3000000000, 2**40)
    ct.printf("%e %G %a %.1a\n", 1234.5, 0.00001, 0.75, 1.25)


@ct.kernel
def assert_kernel(x, TILE: ct.Constant[int]):
    tile = ct.load(x, (ct.bid(0),), (TILE,))
    ct.assert_(tile > 0, "all must be positive")
