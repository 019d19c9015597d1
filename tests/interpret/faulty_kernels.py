"""Kernels with a fault that a GPU hides, on the line marked "# fault"; other arguments make them clean."""

# mypy: allow-untyped-decorators

from __future__ import annotations

import cuda.tile as ct


@ct.kernel
def gather_unchecked(x, y, shift, n: ct.Constant[int]):
    index = ct.bid(0) * n + ct.arange(n, dtype=ct.int32)
    values = ct.gather(x, index + shift, check_bounds=False)  # fault
    ct.scatter(y, index, values)


@ct.kernel
def scatter_unchecked(x, y, shift, n: ct.Constant[int]):
    index = ct.bid(0) * n + ct.arange(n, dtype=ct.int32)
    values = ct.gather(x, index)
    ct.scatter(y, index + shift, values, check_bounds=False)  # fault


@ct.kernel
def gather_column(x, y, column, n: ct.Constant[int]):
    rows = ct.arange(n, dtype=ct.int32)
    ct.scatter(y, rows, ct.gather(x, (rows, column), check_bounds=False))  # fault


@ct.kernel
def load_tile(x, y, shift, n: ct.Constant[int]):
    i = ct.bid(0)
    tile = ct.load(x, (i + shift,), (n,))  # fault
    ct.store(y, (i,), tile)


@ct.kernel
def load_padded(x, y, shift, n: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(y, (i,), ct.load(x, (i + shift,), (n,), padding_mode=ct.PaddingMode.ZERO))


@ct.kernel
def load_tile_unchecked(x, y, n: ct.Constant[int]):
    i = ct.bid(0)
    tile = ct.load(x, (i,), (n,), check_bounds=False)  # fault
    ct.store(y, (i,), tile)


@ct.kernel
def store_tile(x, y, shift, n: ct.Constant[int]):
    i = ct.bid(0)
    tile = ct.load(x, (i,), (n,))
    ct.store(y, (i + shift,), tile)  # fault


@ct.kernel
def load_slice(x, y, axis: ct.Constant[int], start, stop, m: ct.Constant[int], n: ct.Constant[int]):
    part = x.slice(axis, start, stop)
    tile = ct.load(part, (0, 0), (m, n), padding_mode=ct.PaddingMode.ZERO)  # fault
    ct.store(y, (0, 0), tile)


def _take(x, index):
    return ct.gather(x, index, check_bounds=False)  # fault of gather_in_helper


@ct.kernel
def gather_in_helper(x, y, shift, n: ct.Constant[int]):
    index = ct.arange(n, dtype=ct.int32)
    values = _take(x, index + shift)  # caller
    ct.scatter(y, index, values)


@ct.kernel
def store_together(x, y, blocks_per_tile: ct.Constant[int], n: ct.Constant[int]):
    i = ct.bid(0)
    tile = ct.load(x, (i // blocks_per_tile,), (n,))
    ct.store(y, (i // blocks_per_tile,), tile)  # fault


@ct.kernel
def store_overlapping(x, y, step, n: ct.Constant[int]):
    index = ct.bid(0) * step + ct.arange(n, dtype=ct.int32)
    ct.scatter(y, index, ct.gather(x, index))  # fault


@ct.kernel
def add_neighbour(y, shift, tiles, n: ct.Constant[int]):
    i = ct.bid(0)
    other = ct.load(y, ((i + shift + tiles) % tiles,), (n,))
    ct.store(y, (i,), ct.load(y, (i,), (n,)) + other)


@ct.kernel
def add_in_place(y, n: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(y, (i,), ct.load(y, (i,), (n,)) + 1)


@ct.kernel
def add_into(x, y, n: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(y, (i,), ct.load(x, (i,), (n,)) + ct.load(y, (i,), (n,)))  # fault


@ct.kernel
def copy(x, y, n: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(y, (i,), ct.load(x, (i,), (n,)).astype(y.dtype))


@ct.kernel
def copy_2d(x, y, m: ct.Constant[int], n: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    ct.store(y, (i, j), ct.load(x, (i, j), (m, n)).astype(y.dtype))


@ct.kernel
def average_neighbours(x, y, n: ct.Constant[int]):
    index = ct.bid(0) * n + ct.arange(n, dtype=ct.int32)
    ct.scatter(y, index, (ct.gather(x, index - 1) + ct.gather(x, index + 1)) * 0.5)


@ct.kernel
def swap_halves(both, flat, n: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(both, (i,), ct.load(flat, (i + 1,), (n,)))  # fault


@ct.kernel
def assume_even(x, y, start, n: ct.Constant[int]):
    start = ct.assume_divisible_by(start, 2)  # fault
    index = start + ct.arange(n, dtype=ct.int32)
    ct.scatter(y, index, ct.gather(x, index))


@ct.kernel
def write_last(y, n: ct.Constant[int]):
    ct.store(y, (0,), ct.full((n,), ct.bid(0), dtype=y.dtype))


@ct.kernel
def split_sum(x, total, n: ct.Constant[int]):
    tile = ct.load(x, (ct.bid(0),), (n,), padding_mode=ct.PaddingMode.ZERO)
    ct.atomic_add(total, 0, ct.sum(tile))


@ct.kernel
def split_sum_last_block(x, partial, count, total, blocks, n: ct.Constant[int], tiles: ct.Constant[int]):
    i = ct.bid(0)
    tile = ct.load(x, (i,), (n,), padding_mode=ct.PaddingMode.ZERO)
    ct.store(partial, (i,), ct.sum(tile, keepdims=True))
    before = ct.atomic_add(count, 0, 1)
    if before == blocks - 1:
        parts = ct.load(partial, (0,), (tiles,), padding_mode=ct.PaddingMode.ZERO)
        ct.store(total, (0,), ct.sum(parts, keepdims=True))


@ct.kernel
def sum_into_stored(x, total, n: ct.Constant[int]):
    if ct.bid(0) == 0:
        ct.store(total, (0,), ct.zeros((1,), dtype=total.dtype))
    tile = ct.load(x, (ct.bid(0),), (n,))
    ct.atomic_add(total, 0, ct.sum(tile))  # fault


@ct.kernel
def take_exp2(x, y, n: ct.Constant[int]):
    tile = ct.load(x, (ct.bid(0),), (n,), padding_mode=ct.PaddingMode.NEG_INF)
    largest = ct.max(tile, keepdims=True)
    shifted = tile - largest  # nan
    ct.store(y, (ct.bid(0),), ct.exp2(shifted))


@ct.kernel
def sum_tiles(x, y, n: ct.Constant[int]):
    tile = ct.load(x, (ct.bid(0),), (n,))
    ct.store(y, (ct.bid(0),), ct.sum(tile, keepdims=True))


@ct.kernel
def scale(x, y, factor: float, n: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (n,)) * factor)


@ct.kernel
def divide(x, y, z, n: ct.Constant[int]):
    i = ct.bid(0)
    quotient = ct.load(x, (i,), (n,)) / ct.load(y, (i,), (n,))  # inf
    ct.store(z, (i,), quotient)


@ct.kernel
def sum_products(x, y, z, n: ct.Constant[int]):
    acc = ct.zeros((n, n), dtype=ct.float32)
    for k in range(ct.cdiv(x.shape[1], n)):
        a = ct.load(x, (ct.bid(0), k), (n, n), padding_mode=ct.PaddingMode.ZERO)
        b = ct.load(y, (k, ct.bid(1)), (n, n), padding_mode=ct.PaddingMode.ZERO)
        acc = ct.mma(a, b, acc)  # watched
    scaled = acc * 0.5
    ct.store(z, (ct.bid(0), ct.bid(1)), scaled.astype(z.dtype))  # stored


@ct.kernel
def add_unchecked(x, total, index):
    value = ct.sum(ct.load(x, (ct.bid(0),), (16,)))
    ct.atomic_add(total, index, value, check_bounds=False)  # fault


@ct.kernel
def add_loaded(x, partial, total, ready, n: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(partial, (i,), ct.sum(ct.load(x, (i,), (n,)), keepdims=True))
    ct.atomic_add(ready, 0, 1, memory_order=ct.MemoryOrder.RELAXED)
    if i == 1:
        first = ct.load(partial, (0,), (1,))  # fault
        ct.store(total, (0,), first)


@ct.kernel
def copy_row(x, y, n: ct.Constant[int]):
    ct.store(y, (ct.bid(0), 0), ct.load(x, (ct.bid(0), 0), (1, n), padding_mode=ct.PaddingMode.ZERO))


@ct.kernel
def centre(x, y, n: ct.Constant[int]):
    tile = ct.load(x, (ct.bid(0), 0), (1, n), padding_mode=ct.PaddingMode.NEG_INF)  # padded
    moved = tile - ct.sum(tile, 1, keepdims=True) / n
    ct.store(y, (ct.bid(0), 0), moved / ct.sum(moved * moved, 1, keepdims=True))


@ct.kernel
def add_seven(x, y, n: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (n,)) + 7.0)  # seven


@ct.kernel
def sum_tiles_before(x, y, n: ct.Constant[int]):
    i = ct.bid(0)
    acc = ct.zeros((n,), dtype=ct.float32)
    for k in range(i):
        acc = acc + ct.load(x, (k,), (n,))
    ct.store(y, (i,), acc)
