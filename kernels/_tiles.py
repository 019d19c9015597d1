"""Tile code that several kernels share: plain functions, compiled into each kernel that calls them."""

from __future__ import annotations

import math

import cuda.tile as ct

from kernels._division import Divisor, divide

LOG2_E = math.log2(math.e)
"""exp(x) = 2^(x log2 e), and 2^x is one instruction."""


def swizzle(
    block: int, tiles_m: int, tiles_n: int, GROUP_M: int, band_size: Divisor | None = None
) -> tuple[int, int]:
    """Map a linear block index to the output tile it computes, so that neighbours in time share operands.

    Blocks run roughly in order of their index. Row by row, the blocks in flight would share one row of A
    but need nearly all of B; B leaves the L2 before the next row asks for it again. Instead, bands of
    `GROUP_M` tile rows are walked column by column, so the blocks in flight form a rectangle that needs
    few rows of A and few columns of B:

        GROUP_M = 2, tiles_m = 3, tiles_n = 3      0 2 4
                                                   1 3 5
                                                   6 7 8    (the last band is lower)

    Args:
        block: Linear index in `[0, tiles_m * tiles_n)`.
        tiles_m: Rows of tiles in the output.
        tiles_n: Columns of tiles in the output.
        GROUP_M: Height of a band in tiles, a constant.
        band_size: `divisor(GROUP_M * tiles_n)`, if the launcher knows it; it saves a division.

    Returns:
        The tile's row and column.
    """
    band = block // (GROUP_M * tiles_n) if band_size is None else divide(block, band_size)
    first_row = band * GROUP_M
    inside = block - first_row * tiles_n
    # Full bands are divided by a constant, which is fast; the last one may be lower.
    row, column = inside % GROUP_M, inside // GROUP_M
    height = tiles_m - first_row
    if GROUP_M > 1 and height < GROUP_M:
        row, column = inside % height, inside // height
    return first_row + row, column


def reciprocal(x: ct.Tile) -> ct.Tile:
    """Return 1 / x of float32 numbers between 2^-126 and 2^126, good to one ulp; 0 and inf are each other's.

    It is one instruction of the special function unit. `/` is 10 to 20, and a branch to some that take
    numbers outside of that range (tileiras 13.4.92, sm_90).
    """
    return ct.truediv(1.0, x, rounding_mode=ct.RoundingMode.APPROX, flush_to_zero=True)


def is_full(index: int, size: int, TILE: int) -> bool:
    """Return whether the `index`-th tile of `TILE` elements does not stick out of an axis of `size`.

    Where the tile ends, `(index + 1) * TILE`, may be 2^31 when `size` still has 32 bits. Overflowed, it would
    be inside.
    """
    return index < size // TILE


def load_tile(
    X: ct.Array,
    index: tuple[int, ...],
    SHAPE: tuple[int, ...],
    *,
    INSIDE: bool,
    PADDING: ct.PaddingMode = ct.PaddingMode.ZERO,
    ALLOW_TMA: bool = False,
) -> ct.Tile:
    """Load a tile, without checks where no element of it can be outside.

    Checked, each 16-byte load of a thread sits in a branch of its own, and the conversion to float32 that
    follows it sits there too: the second load waits for the first. Unchecked, all of a tile's loads are under
    way at once (tileiras 13.4, sm_90: `nvdisasm` shows it). A kernel that lives on bandwidth needs that.

    Args:
        X: Where to load from.
        index: Index of the tile in the tile space of X.
        SHAPE: The tile's shape, a constant.
        INSIDE: Whether the whole tile is inside X, a constant. Where it is only known for a block, branch
            on it and call this in both branches.
        PADDING: What is loaded for elements outside.
        ALLOW_TMA: Whether the load may use TMA.

    Returns:
        The tile.
    """
    if INSIDE:
        # Without a padding mode: with one, tileiras 13.4 fails on a load that has no checks.
        return ct.load(X, index, SHAPE, check_bounds=False, allow_tma=ALLOW_TMA)
    return ct.load(X, index, SHAPE, padding_mode=PADDING, allow_tma=ALLOW_TMA)


def load_rows(
    X: ct.Array,
    index: tuple[int, int],
    SHAPE: tuple[int, int],
    *,
    WIDTH: int,
    INSIDE: bool,
    PADDING: float = 0.0,
) -> ct.Tile:
    """Load a tile of a matrix as `load_tile` does, but with cheap checks where it may stick out.

    Checked, a `ct.load` keeps its 16-byte loads only if the matrix' width is a multiple of 16 elements, which
    is all that the compiler is told of a width: rows of 1000 go element by element. Here the width is a
    constant, and a gather's mask predicates the loads instead of branching around them (tileiras 13.4, sm_90:
    `nvdisasm` shows it).

    Args:
        X: Where to load from.
        index: Index of the tile in the tile space of X.
        SHAPE: The tile's shape, a constant.
        WIDTH: Columns of X, a constant.
        INSIDE: Whether the whole tile is inside X, a constant, as for `load_tile`.
        PADDING: What is loaded for columns outside.

    Returns:
        The tile.
    """
    # Of pieces that fill the width, only rows can be outside, and what is loaded of those does not matter.
    if WIDTH % SHAPE[1] == 0:
        return load_tile(X, index, SHAPE, INSIDE=INSIDE)
    places, inside = _places(X, index, SHAPE, WIDTH)
    return ct.gather(X, places, mask=inside, check_bounds=False, padding_value=PADDING)


def store_rows(Y: ct.Array, index: tuple[int, int], tile: ct.Tile, *, WIDTH: int, INSIDE: bool) -> None:
    """Store what `load_rows` loads from a matrix of the same shape: what is outside is dropped."""
    if WIDTH % tile.shape[1] == 0:
        ct.store(Y, index, tile, check_bounds=not INSIDE, allow_tma=False)
    else:
        places, inside = _places(Y, index, tile.shape, WIDTH)
        ct.scatter(Y, places, tile, mask=inside, check_bounds=False)


def _places(
    X: ct.Array, index: tuple[int, int], SHAPE: tuple[int, int], WIDTH: int
) -> tuple[tuple[ct.Tile, ct.Tile], ct.Tile]:
    """Return rows and columns of the elements of a tile, and which of them are inside X."""
    first = index[0] * SHAPE[0]
    row = ct.arange(SHAPE[0], dtype=ct.int32).reshape((SHAPE[0], 1))
    column = (index[1] * SHAPE[1] + ct.arange(SHAPE[1], dtype=ct.int32)).reshape((1, SHAPE[1]))
    # Not `first + row < X.shape[0]`: where the tile ends may be 2^31.
    return (first + row, column), (row < X.shape[0] - first) & (column < WIDTH)
