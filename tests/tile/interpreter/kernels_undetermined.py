"""What kernels do with elements that nothing determines: `USES` depend on them, `MASKED` do not."""

# mypy: allow-untyped-decorators

from __future__ import annotations

import cuda.tile as ct

TILE = 128


def take_max(x, _n):
    return ct.max(x)


def take_min(x, _n):
    return ct.min(x)


def take_argmax(x, _n):
    return ct.argmax(x)


def count_positive(x, _n):
    return ct.sum(ct.where(x >= 0, 1, 0))


def count_small(x, _n):
    return ct.sum(ct.where(ct.abs(x) < 0.5, 1, 0))


def sum_of_integers(x, _n):
    return ct.sum(x.astype(ct.int32))


def max_of_integers(x, _n):
    return ct.max(x.astype(ct.int32))


def scanned(x, _n):
    return ct.max(ct.cumsum(x.astype(ct.int32)))


def sign_bit(x, _n):
    return ct.sum(ct.bitcast(x, ct.int32) >> 31)


def multiplied_by_zero(x, _n):
    return ct.max(x * 0.0)


def greater_of_both(x, _n):
    return ct.sum(ct.maximum(x, -1000.0))


def half_masked(x, n):
    return ct.sum(ct.where(ct.arange(TILE, dtype=ct.int32) < n + 1, x, 0.0))


def one_side_of_a_product(x, _n):
    ones = ct.full((TILE, 16), 1.0, ct.float32)
    return ct.max(
        ct.mma(ct.broadcast_to(x.reshape((1, TILE)), (16, TILE)), ones, ct.zeros((16, 16), ct.float32))
    )


def transposed(x, _n):
    return ct.max(ct.transpose(x.reshape((16, 8))))


def joined(x, _n):
    return ct.max(ct.cat((x, x), 0))


def decided(x, _n):
    if ct.max(x) > 2.0:
        result = ct.max(x)
        result += 1.0
    else:
        result = 0.0
    return result


def looped(x, _n):
    total = 0.0
    for _ in range(ct.sum(ct.where(x > 5.0, 1, 0))):
        total += 1.0
    return total


def chosen_by(x, _n):
    return ct.sum(ct.where(x > 2.0, 1.0, 0.0))


def subtracted_from_itself(x, _n):
    return ct.max(ct.abs(x - x))


def compared_with_itself(x, _n):
    return ct.sum(ct.where(x == x, 1, 0))  # noqa: PLR0124 - NaN is not


def exclusive_or_with_another(x, _n):
    whole = x.astype(ct.int32)
    return ct.sum(whole ^ (whole + 1))


def signed_minimum(x, _n):
    return ct.max(ct.minimum(x.astype(ct.int32), 0))


def zero_divided(x, _n):
    return ct.sum(ct.where(x < -1000.0, 1, 0) // x.astype(ct.int32))


def shifted_one(x, _n):
    return ct.sum(ct.where(x < 0, 1, 1) << (x.astype(ct.int32) & 3))


def reciprocal_of_a_mask(x, n):
    return ct.max(1.0 / (x < 0).astype(ct.float32) * inside(n).astype(ct.float32))


def chosen_with_itself(x, n):
    return ct.max(ct.where(x < 0, x, 1.0) * inside(n).astype(ct.float32))


USES = (
    *(take_max, take_min, take_argmax, count_positive, count_small, sum_of_integers, max_of_integers),
    *(scanned, sign_bit, multiplied_by_zero, greater_of_both, half_masked, one_side_of_a_product, transposed),
    *(joined, decided, looped, chosen_by, subtracted_from_itself, compared_with_itself),
    *(exclusive_or_with_another, signed_minimum, zero_divided, shifted_one),
    *(reciprocal_of_a_mask, chosen_with_itself),
)


def inside(n):
    return ct.arange(TILE, dtype=ct.int32) < n


def where_then_max(x, n):
    return ct.max(ct.where(inside(n), x, -1000.0))


def compared_then_where(x, n):
    return ct.sum(ct.where(inside(n) & (x >= 0), 1, 0))


def compared_under_a_mask(x, n):
    return ct.sum(ct.where((x < 0) | ~inside(n), 0, 1))


def integer_product(x, n):
    return ct.sum(x.astype(ct.int32) * ct.where(inside(n), 1, 0))


def product_of_masks(x, n):
    return ct.sum((x < -3).astype(ct.float32) * inside(n).astype(ct.float32))


def product_of_chosen(x, n):
    return ct.sum(-ct.where(x < -3, 2.0, 1.0) * ct.where(inside(n), 1.0, 0.0))


def integer_and(x, n):
    return ct.sum(x.astype(ct.int32) & ct.where(inside(n), -1, 0))


def same_on_both_sides(x, n):
    return ct.sum(ct.where(ct.where(inside(n), True, x > 0), 1.0, ct.where(inside(n), 5.0, 1.0)))


def limited(x, n):
    return ct.max(ct.minimum(x, ct.where(inside(n), float("inf"), float("-inf"))))


def valid_pairs(x, valid, y, also_valid):
    return ct.where(valid, x, 0.0) + ct.where(also_valid, y, 0.0), valid | also_valid


def reduced_with_its_mask(x, n):
    total, _ = ct.reduce((x, inside(n)), 0, valid_pairs, (0.0, False))
    return total


def unsigned_minimum(x, n):
    return ct.max(ct.minimum(x.astype(ct.uint32), ct.where(inside(n), -1, 0).astype(ct.uint32)))


def unsigned_maximum(x, n):
    return ct.min(ct.maximum(x.astype(ct.uint32), ct.where(inside(n), 0, -1).astype(ct.uint32)))


def shifted_zero(x, n):
    whole = x.astype(ct.int32)
    return ct.sum(
        (ct.where(inside(n), whole, 0) << (whole & 3)) + (ct.where(inside(n), whole, 0) >> (whole & 3))
    )


def exclusive_or_with_itself(x, _n):
    whole = x.astype(ct.int32)
    return ct.sum((whole ^ whole) + (whole - whole) + ct.where(whole == whole, 1, 0))  # noqa: PLR0124


def never_below_zero(x, _n):
    whole = x.astype(ct.uint32)
    return ct.sum(ct.where((whole >= 0) & ~(whole < 0), 1, 0))


def never_above_all(x, n):
    limit = ct.where(inside(n), 5, 2**31 - 1)
    return ct.sum(ct.where(x.astype(ct.int32) > limit, 1, 0) + ct.where(limit >= x.astype(ct.int32), 1, 0))


def remainder_of_one(x, n):
    return ct.sum(x.astype(ct.int32) % ct.where(inside(n), 3, 1))


def extracted(x, _n):
    return ct.max(ct.extract(x, (0,), (64,)))


def unused(x, _n):
    ct.max(x)
    return 1.0


MASKED = (
    *(where_then_max, compared_then_where, compared_under_a_mask, integer_product, integer_and),
    *(product_of_masks, product_of_chosen),
    *(same_on_both_sides, limited, reduced_with_its_mask, extracted, unused, unsigned_minimum),
    *(unsigned_maximum, shifted_zero, exclusive_or_with_itself, never_below_zero),
    *(never_above_all, remainder_of_one),
)


def kernel_of(function, padding=ct.PaddingMode.UNDETERMINED):
    """Return a kernel that stores what a function makes of a row of n elements in a tile of `TILE`."""

    @ct.kernel
    def kernel(x, y, n):
        i = ct.bid(0)
        row = ct.load(x, (i, 0), (1, TILE), padding_mode=padding).reshape((TILE,))
        ct.store(y, (i,), ct.full((1,), function(row, n), ct.float32))

    return kernel


@ct.kernel
def gather_at(x, at, y):
    index = ct.load(at, (0,), (TILE,))
    ct.scatter(y, ct.arange(TILE, dtype=ct.int32), ct.gather(x, index))


@ct.kernel
def scatter_at(_x, at, y):
    index = ct.load(at, (0,), (TILE,))
    ct.scatter(y, index + ct.arange(TILE, dtype=ct.int32), ct.full((TILE,), 1.0, ct.float32))


@ct.kernel
def load_tile_at(x, at, y):
    first = ct.max(ct.load(at, (0,), (TILE,)))
    ct.store(y, (0,), ct.load(x, (first,), (TILE,), padding_mode=ct.PaddingMode.ZERO))


@ct.kernel
def add_atomically(_x, at, y):
    index = ct.arange(TILE, dtype=ct.int32)
    ct.atomic_add(y, index * 0, ct.load(at, (0,), (TILE,)).astype(ct.float32))


@ct.kernel
def add_atomically_under_a_mask(_x, at, y):
    index = ct.where(ct.load(at, (0,), (TILE,)) >= 0, 0, 1000)
    ct.atomic_add(y, index, ct.full((TILE,), 1.0, ct.float32))


@ct.kernel
def assert_something(_x, at, _y):
    ct.assert_(ct.load(at, (0,), (TILE,)) >= 0)


INDEXED = (gather_at, scatter_at, load_tile_at, add_atomically, add_atomically_under_a_mask, assert_something)


@ct.kernel
def copy_row(x, y, _n):
    row = ct.load(x, (0,), (TILE,))
    ct.store(y, (0,), row * 2)
