"""Kernels as users write them, about control flow and arguments; a kernel's source must be in a file."""

# mypy: allow-untyped-decorators
# ruff: noqa: PT009, SIM108, T201 - branches, printing and asserting are what is tested

from __future__ import annotations

import cuda.tile as ct

SCALE = 3


def _collatz_step(n):
    if n % 2 == 0:
        return n // 2
    return 3 * n + 1


@ct.kernel
def branch_kernel(x, out, n: ct.Constant[int]):
    i = ct.bid(0)
    tile = ct.load(x, (i,), (n,))
    if i % 3 == 0:
        tile = tile + 1
    elif i % 3 == 1:
        if i % 2 == 0:
            tile = tile * 2
        else:
            tile = tile - 5
    ct.store(out, (i,), tile)


@ct.kernel
def nested_loops_kernel(x, out, n: ct.Constant[int]):
    i = ct.bid(0)
    acc = ct.zeros((n,), dtype=ct.int32)
    count = 0
    for a in range(i % 5):
        for b in range(a, i % 7, 2):
            acc += ct.load(x, (a,), (n,)) * b
            count += 1
        acc = acc + count
    ct.store(out, (i,), acc)


@ct.kernel
def leaving_kernel(x, out, n: ct.Constant[int]):
    i = ct.bid(0)
    acc = ct.load(x, (i,), (n,))
    if i == 4:
        return
    for a in range(i + 3):
        if a % 4 == 2:
            continue
        if a == 6:
            break
        for b in range(10):
            if b > a:
                break
            acc += b
            if ct.sum(acc) > 2000:
                ct.store(out, (i,), acc * 0 - 1)
                return
        acc += a
    ct.store(out, (i,), acc)


@ct.kernel
def while_kernel(out):
    i = ct.bid(0)
    n = i + 1
    steps = 0
    while n != 1:
        n = _collatz_step(n)
        steps += 1
    ct.store(out, (i,), ct.full((1,), steps, dtype=ct.int32))


@ct.kernel
def forever_kernel(out):
    i = ct.bid(0)
    total = 0
    step = 0
    while True:
        step += 1
        if step % 2 == 0:
            continue
        total += step
        if total > i * 3:
            break
    ct.store(out, (i,), ct.full((1,), total * 100 + step, dtype=ct.int32))


@ct.kernel
def carried_kernel(x, y, out, n: ct.Constant[int]):
    i = ct.bid(0)
    first = ct.load(x, (0,), (n,))
    second = ct.load(y, (0,), (n,))
    scalar = 1
    for step in range(i):
        first, second = second, first + second
        if step % 2 == 1:
            scalar = scalar * 2 + i
    ct.store(out, (i,), first + scalar)


@ct.kernel
def chosen_array_kernel(arrays, out, n: ct.Constant[int]):
    i = ct.bid(0)
    total = ct.zeros((n,), dtype=out.dtype)
    for k in range(len(arrays)):
        if k <= i % 4:
            total += ct.load(arrays[k], (0,), (n,), padding_mode=ct.PaddingMode.ZERO)
    one = arrays[i % len(arrays)]
    total += one.shape[0]
    ct.store(out, (i,), total)


@ct.kernel
def tuple_kernel(pair, out, scale: ct.Constant[int], n: ct.Constant[int]):
    i = ct.bid(0)
    total = ct.load(pair[0], (i,), (n,)) * scale + ct.load(pair[1], (i,), (n,)) * SCALE
    ct.store(out, (i,), total)


@ct.kernel
def sliced_kernel(x, out, n: ct.Constant[int]):
    i = ct.bid(0)
    rows = x.slice(axis=0, start=i, stop=i + 2)
    if i % 2 == 0:
        rows = x.slice(axis=0, start=i + 1, stop=i + 2)
    total = ct.zeros((1, n), dtype=ct.int32)
    for row in range(rows.shape[0]):
        total += ct.load(rows, (row, 0), (1, n), padding_mode=ct.PaddingMode.ZERO)
    ct.store(out, (i, 0), total)


@ct.kernel
def static_kernel(x, out, many: ct.Constant[int], n: ct.Constant[int]):
    ct.static_assert(many > 0)
    i = ct.bid(0)
    tile = ct.load(x, (i,), (n,))
    for k in ct.static_iter(range(many)):
        if ct.static_eval(k % 2 == 0):
            tile = tile + k
        else:
            tile = tile * 2
    ct.store(out, (i,), tile)


@ct.kernel
def grid_kernel(out):
    x, y, z = ct.bid(0), ct.bid(1), ct.bid(2)
    total = 0
    for step in range(x + 2 * y + 3 * z):
        total += step * (z + 1)
    code = total * 1000 + ct.num_blocks(0) * 100 + ct.num_blocks(1) * 10 + ct.num_blocks(2)
    ct.store(out, (z, y, x), ct.full((1, 1, 1), code, dtype=ct.int32))


@ct.kernel
def some_enter_kernel(x, out, limit: int, n: ct.Constant[int]):
    i = ct.bid(0)
    acc = ct.full((n,), -1, dtype=ct.int32)
    for k in range(limit - i):
        acc = ct.maximum(acc, ct.load(x, (k,), (n,)))
    ct.store(out, (i,), acc)


@ct.kernel
def printing_kernel(x, n: int):
    tile = ct.load(x, (0,), (4,))
    ct.printf("%d of %d\n", ct.sum(tile), n)
    print(tile, "and", n)
    ct.assert_(ct.sum(tile) < 1000, "too much")


@ct.kernel
def programmatic_kernel(x, n: ct.Constant[int]):
    ct.grid_dependency_control_wait()
    tile = ct.load(x, (0,), (n,))
    ct.grid_dependency_control_launch_dependents()
    ct.store(x, (0,), tile)


@ct.kernel
def same_tile_kernel(x, out, n: ct.Constant[int]):
    ct.store(out, (0,), ct.load(x, (0,), (n,), padding_mode=ct.PaddingMode.ZERO) + ct.bid(0))


@ct.kernel
def stepping_kernel(out, step: int):
    i = ct.bid(0)
    total = 0
    for k in range(0, 10 + i, step):
        total += k
    ct.store(out, (i,), ct.full((1,), total, dtype=ct.int32))


@ct.kernel
def counting_kernel(out, lower: ct.ScalarInt64, upper: ct.ScalarInt64, step: ct.ScalarInt64):
    """Counts in 64 bits."""
    count = 0
    for _ in range(lower, upper, step):
        count += 1
    ct.store(out, (ct.bid(0),), count)


@ct.kernel
def short_counting_kernel(out, lower: int, upper: int, step: int):
    """Counts in 32 bits; each block from elsewhere."""
    count = 0
    for _ in range(lower + ct.bid(0), upper, step):
        count += 1
    ct.store(out, (ct.bid(0),), count)


@ct.kernel
def unrolled_kernel(x, out, many: ct.Constant[int], n: ct.Constant[int]):
    """Makes many tiles, of which two at a time are needed, and blocks part in between."""
    i = ct.bid(0)
    first = ct.load(x, (i,), (n,))
    tile = first
    for k in ct.static_iter(range(many)):
        tile = tile * 3 + k
    if i % 2 == 0:
        for step in range(i):
            tile = tile - first * step
        if i % 4 == 2:
            return
    for k in ct.static_iter(range(many)):
        tile = tile * 3 + k
    ct.store(out, (i,), tile)


@ct.kernel
def circling_kernel(out):
    """Never ends, though something changes all the time."""
    i = 0
    while i < 10:
        i = i - 1
        if i < -5:
            i = 0
    ct.store(out, (0,), i)
