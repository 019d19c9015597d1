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
def store_after_count(count, y, at: ct.Constant[int], apart: ct.Constant[int], n: ct.Constant[int]):
    ct.atomic_add(count, at * ct.bid(0), 1)
    ct.store(y, (ct.bid(0) * apart,), ct.ones((n,), dtype=y.dtype))  # fault


@ct.kernel
def divide_by_total(x, total, y, n: ct.Constant[int]):
    tile = ct.load(x, (ct.bid(0),), (n,))
    ct.atomic_add(total, 0, ct.sum(tile))
    ct.store(y, (ct.bid(0),), tile / ct.load(total, (0,), (1,)))


@ct.kernel
def divide_by_total_relaxed(x, total, y, n: ct.Constant[int]):
    tile = ct.load(x, (ct.bid(0),), (n,))
    ct.atomic_add(total, 0, ct.sum(tile), memory_order=ct.MemoryOrder.RELAXED)
    if ct.bid(0) == 1:
        tile = tile / ct.load(total, (0,), (1,))  # fault
    ct.store(y, (ct.bid(0),), tile)


@ct.kernel
def read_then_add(total, y):
    ct.store(y, (ct.bid(0),), ct.load(total, (0,), (1,)))
    ct.atomic_add(total, 0, 1.0)


@ct.kernel
def store_into_sum(total):
    if ct.bid(0) == 0:
        ct.atomic_add(total, 0, 1.0)
    else:
        ct.store(total, (0,), ct.zeros((1,), dtype=total.dtype))  # fault


@ct.kernel
def last_block_takes_sums(x, sums, count, y, blocks, n: ct.Constant[int]):
    """Sums tiles atomically; the last block takes what has come together, and leaves zeros."""
    index = ct.arange(n, dtype=ct.int32)
    tile = ct.load(x, (ct.bid(0),), (n,))
    ct.atomic_add(sums, index, tile, memory_order=ct.MemoryOrder.RELAXED)
    if ct.atomic_add(count, 0, 1) == blocks - 1:
        ct.store(y, (0,), ct.load(sums, (0,), (n,)))
        ct.store(sums, (0,), ct.zeros((n,), dtype=sums.dtype))
        ct.store(count, (0,), ct.zeros((1,), dtype=count.dtype))


@ct.kernel
def sum_under_lock(x, lock, y, n: ct.Constant[int]):
    tile = ct.load(x, (ct.bid(0),), (n,))
    while ct.atomic_cas(lock, 0, 0, 1, memory_order=ct.MemoryOrder.ACQUIRE) != 0:
        pass
    ct.store(y, (0,), ct.load(y, (0,), (n,)) + tile)
    ct.atomic_xchg(lock, 0, 0, memory_order=ct.MemoryOrder.RELEASE)


@ct.kernel
def take_tickets(ticket, y, tiles, n: ct.Constant[int]):
    """Persistent blocks that take tiles as long as there are any."""
    tile = ct.atomic_add(ticket, 0, 1)
    while tile < tiles:
        ct.store(y, (tile,), ct.load(y, (tile,), (n,)) + 1)
        tile = ct.atomic_add(ticket, 0, 1)


def passing(release, acquire):
    """Return a kernel in which each block adds to what the one before it has left."""

    @ct.kernel
    def pass_along(y, flags, n: ct.Constant[int]):
        i = ct.bid(0)
        if i > 0:
            ct.atomic_add(flags, i - 1, 0, memory_order=acquire)
        ct.store(y, (0,), ct.load(y, (0,), (n,)) + 1)  # fault
        ct.atomic_xchg(flags, i, 1, memory_order=release)

    return pass_along


@ct.kernel
def pass_by_load_and_store(y, flag, z, order: ct.Constant[bool], n: ct.Constant[int]):
    if ct.bid(0) == 0:
        ct.store(y, (0,), ct.ones((n,), dtype=y.dtype))
        if order:
            ct.store(
                flag,
                (0,),
                ct.ones((1,), dtype=flag.dtype),
                memory_order=ct.MemoryOrder.RELEASE,
                memory_scope=ct.MemoryScope.DEVICE,
            )
        else:
            ct.store(
                flag,
                (0,),
                ct.ones((1,), dtype=flag.dtype),
                memory_order=ct.MemoryOrder.RELAXED,
                memory_scope=ct.MemoryScope.DEVICE,
            )
    else:
        ready = ct.load(
            flag, (0,), (1,), memory_order=ct.MemoryOrder.ACQUIRE, memory_scope=ct.MemoryScope.DEVICE
        )
        if ready.item() == 1:
            ct.store(z, (0,), ct.load(y, (0,), (n,)))  # fault


@ct.kernel
def read_before_count(x, count, y, blocks, n: ct.Constant[int]):
    """All blocks read what the last of them then overwrites."""
    tile = ct.load(x, (0,), (n,))
    ct.store(y, (ct.bid(0),), tile)
    if ct.atomic_add(count, 0, 1) == blocks - 1:
        ct.store(x, (0,), tile + 1)


@ct.kernel
def store_after_histogram(bins, y, n: ct.Constant[int]):
    ct.atomic_add(bins, ct.arange(n, dtype=ct.int32), 1)
    ct.store(y, (0,), ct.ones((n,), dtype=y.dtype))  # fault


@ct.kernel
def count_in_two_steps(x, counts, count, y, steps: ct.Constant[int], n: ct.Constant[int]):
    """16 blocks are counted by fours, and the fours once more; the last one takes what all have stored."""
    i = ct.bid(0)
    ct.store(x, (i,), ct.ones((n,), dtype=x.dtype))
    last = ct.atomic_add(counts, i // 4, 1) == 3
    if last and steps == 2:
        last = ct.atomic_add(count, 0, 1) == 3
    if last:
        total = ct.zeros((n,), dtype=x.dtype)
        for k in range(16):
            total = total + ct.load(x, (k,), (n,))
        ct.store(y, (i // 4,), total)


@ct.kernel
def store_after_unlock(lock, y, at: ct.Constant[int], n: ct.Constant[int]):
    while ct.atomic_cas(lock, 0, 0, 1) != 0:
        pass
    tile = ct.load(y, (at * ct.bid(0),), (n,)) + 1  # fault
    ct.atomic_xchg(lock, 0, 0)
    ct.store(y, (at * ct.bid(0),), tile)


@ct.kernel
def copy_row(x, y, n: ct.Constant[int]):
    ct.store(y, (ct.bid(0), 0), ct.load(x, (ct.bid(0), 0), (1, n), padding_mode=ct.PaddingMode.ZERO))


@ct.kernel
def centre(x, y, n: ct.Constant[int]):
    tile = ct.load(x, (ct.bid(0), 0), (1, n), padding_mode=ct.PaddingMode.NEG_INF)  # padded
    moved = tile - ct.sum(tile, 1, keepdims=True) / n
    ct.store(y, (ct.bid(0), 0), moved / ct.sum(moved * moved, 1, keepdims=True))


@ct.kernel
def share(x, y, n: ct.Constant[int]):
    tile = ct.load(x, (ct.bid(0), 0), (1, n), padding_mode=ct.PaddingMode.NEG_INF)
    powers = ct.exp(tile)  # too large
    ct.store(y, (ct.bid(0), 0), powers / ct.sum(powers, 1, keepdims=True))


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


def _choose(x: ct.Array, y: ct.Array, block: int, n: int) -> ct.Tile:
    if block > 1:
        return ct.load(y, (block,), (n,)) * 2
    return ct.load(x, (block,), (n,))


@ct.kernel
def branching(x: ct.Array, y: ct.Array, out: ct.Array, n: ct.Constant[int]) -> None:
    block = ct.bid(0)
    tile = _choose(x, y, block, n)
    if block % 2 == 0:
        tile = tile * 3
    ct.store(out, (block,), tile)


@ct.kernel
def repeating(x: ct.Array, out: ct.Array, n: ct.Constant[int]) -> None:
    tile = ct.load(x, (ct.bid(0),), (n,))
    turns = 0
    while turns < 3:
        tile = tile + 1.5
        turns = turns + 1
    ct.store(out, (ct.bid(0),), tile)


@ct.kernel
def read_back(x, y, z, n: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(x, (i,), ct.full((n,), 1, dtype=x.dtype))
    ct.store(z, (i,), ct.load(y, (i,), (n,)))  # fault


@ct.kernel
def gather_back(x, y, z, n: ct.Constant[int]):
    index = ct.bid(0) * n + ct.arange(n, dtype=ct.int32)
    ct.atomic_add(x, index, 1)
    ct.scatter(z, index, ct.gather(y, index))  # fault


@ct.kernel
def store_both(x, y, n: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(x, (i,), ct.full((n,), 1, dtype=x.dtype))
    ct.store(y, (i,), ct.full((n,), 1, dtype=y.dtype))  # fault


@ct.kernel
def scatter_both(x, y, n: ct.Constant[int]):
    index = ct.bid(0) * n + ct.arange(n, dtype=ct.int32)
    ct.scatter(x, index, 1)
    ct.scatter(y, index, 1, mask=index % 2 == 1)  # fault


@ct.kernel
def add_then_store(x, y, n: ct.Constant[int]):
    index = ct.bid(0) * n + ct.arange(n, dtype=ct.int32)
    ct.atomic_add(x, index, 1)
    ct.scatter(y, index, 1)  # fault


@ct.kernel
def store_then_add(x, y, n: ct.Constant[int]):
    index = ct.bid(0) * n + ct.arange(n, dtype=ct.int32)
    ct.scatter(x, index, 1)
    ct.atomic_add(y, index, 1)  # fault


@ct.kernel
def add_both(x, y, n: ct.Constant[int]):
    index = ct.bid(0) * n + ct.arange(n, dtype=ct.int32)
    ct.atomic_add(x, index, 1)
    ct.atomic_add(y, index, 1)


@ct.kernel
def read_before_store(x, y, z, n: ct.Constant[int]):
    i = ct.bid(0)
    tile = ct.load(y, (i,), (n,))
    ct.store(x, (i,), tile + 1)
    ct.store(z, (i,), tile)


@ct.kernel
def read_back_in_list(arrays, z, n: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(arrays[0], (i,), ct.full((n,), 1, dtype=z.dtype))
    ct.store(z, (i,), ct.load(arrays[1], (i,), (n,)))


@ct.kernel
def scatter_divided(x, y, divisor, n: ct.Constant[int]):
    index = ct.bid(0) * n + ct.arange(n, dtype=ct.int32)
    ct.scatter(y, index // divisor, ct.gather(x, index))  # fault


@ct.kernel
def scatter_rows(x, y, divisor, n: ct.Constant[int]):
    rows = ct.arange(n, dtype=ct.int32) // divisor
    columns = ct.arange(4, dtype=ct.int32)
    tile = ct.load(x, (0, 0), (n, 4))
    ct.scatter(y, (rows[:, None], columns[None, :]), tile)  # fault


@ct.kernel
def load_from(x, y, n: ct.Constant[int]):
    tile = ct.load(x, (0,), (n,))  # fault
    ct.store(y, (0,), tile)


@ct.kernel
def store_into(x, y, n: ct.Constant[int]):
    tile = ct.load(x, (0,), (n,))
    ct.store(y, (0,), tile)  # fault


@ct.kernel
def store_what_all_read(x, y, writer: ct.Constant[int], atomic: ct.Constant[bool], n: ct.Constant[int]):
    i = ct.bid(0)
    if i != writer:
        if atomic:
            ct.atomic_add(x, 0, 1.0)  # other
        else:
            ct.store(y, (i,), ct.load(x, (0,), (n,)))  # other
    if i == writer:
        ct.store(x, (0,), ct.full((n,), 1.0, dtype=x.dtype))  # fault


@ct.kernel
def copy_empty_slice(x, y, n: ct.Constant[int]):
    ct.store(y.slice(0, 3, 3), (0,), ct.load(x.slice(0, 3, 3), (0,), (n,)))
