"""The softmax of attention in one pass: tile code that every attention kernel here shares.

For one row of scores s[j] (a query's, against each key) attention is sum of P[j] V[j] with P the softmax of
`scale * s`. The scores come a tile of keys at a time, so its maximum is not known before the last tile.
What is known after each is a state that can be carried on, here for every row of the tile:

    row_max = max over the j so far of scale_log2 * s[j] - HEADROOM        scale_log2 = scale * log2(e)
    row_sum =               sum of 2^(scale_log2 * s[j] - row_max)
    acc     =               sum of 2^(scale_log2 * s[j] - row_max) * V[j]

Whenever the maximum grows, what was summed before shrinks by 2^(old maximum - new maximum). At the end the
output is acc / row_sum, whatever was subtracted, and the base-2 logarithm of the sum of the exponentials
is row_max + log2(row_sum).

Keys that are hidden have the score -inf. A row may see none in a tile, or none at all: the maximum starts
from the lowest finite number, so nothing here ever computes -inf - -inf.

A loop over keys is therefore

    row_max, row_sum, acc = start_softmax(TILE_M, D)
    for j in range(...):
        s = ct.mma(q, k, zeros)                                                    # [TILE_M, TILE_N]
        p, row_max, row_sum, acc = add_scores(s, row_max, row_sum, acc, scale_log2)
        acc = ct.mma(p.astype(V.dtype), v, acc)                                    # [TILE_M, D]
    o, lse = finish_softmax(row_max, row_sum, acc)

Split keys: when several blocks take a part of the keys each, a part's result is its `o`, which is normalised,
and its `lse`, both float32. Those of all parts give the whole: with `top` the largest lse,

    O = sum over parts of 2^(lse - top) * o / sum over parts of 2^(lse - top)

A part without a visible key has o = 0 and lse = -inf, and so drops out as long as any other has one.

Range: float32 holds a score x = scale_log2 * s to |x| 2^-24 at best, and rounds row_max and lse as much. So a
weight is off by about |x| 2^-23 of itself: at |x| = 2^12 by as much as float16 rounds, 2^-11, and at 2^20,
beyond which results mean nothing, by an eighth. From about 2^24 on, the rounded maximum is off by whole
powers of two, and so are p, which then exceeds 2^HEADROOM, and row_sum; still further up both become 0 or
infinite. (Scores of 8-bit floats are less precise before they come here: see `_attention.attend`.)

Sources: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018
(https://arxiv.org/abs/1805.02867); Dao, "FlashAttention-2", 2023 (https://arxiv.org/abs/2307.08691); for the
headroom of 8-bit floats Shah et al., "FlashAttention-3", 2024 (https://arxiv.org/abs/2407.08608).
"""

from __future__ import annotations

import math
from numbers import Real

import cuda.tile as ct

from kernels._dtypes import LARGEST_FLOAT32, SMALLEST_FLOAT32
from kernels._tiles import LOG2_E, reciprocal

LOWEST = -LARGEST_FLOAT32
"""Where a maximum starts from."""


def check_scale(kernel: str, scale: float) -> float:
    """Return `scale_log2`, for float32 to hold.

    Args:
        kernel: The kernel's name, for the message.
        scale: Factor of the scores, as the kernel's user gave it.

    Raises:
        TypeError: It is not a number, but a tensor, for instance, which would have to be read from the GPU.
        ValueError: It is not positive, or would be 0, denormal or infinite as a float32.
    """
    if isinstance(scale, bool) or not isinstance(scale, Real):
        raise TypeError(f"{kernel}: scale must be a number, got {type(scale).__name__}")
    if not 0 < scale < math.inf:
        raise ValueError(f"{kernel}: scale must be a positive number, got {scale}")
    smallest, largest = SMALLEST_FLOAT32 / LOG2_E, LARGEST_FLOAT32 / LOG2_E
    if not smallest <= scale <= largest:
        raise ValueError(
            f"{kernel}: scale must be {smallest:.3g} to {largest:.3g}, got {scale}: "
            "scale * log2(e) has to be a normal float32"
        )
    return float(scale) * LOG2_E


def start_softmax(ROWS: int, D: int, KEY_AXIS: int = 1, SUMS: int = 1) -> tuple[ct.Tile, ct.Tile, ct.Tile]:
    """Return `row_max`, `row_sum` and `acc` of `ROWS` rows that have seen no key.

    With `KEY_AXIS` 1, scores are `[ROWS, keys]`, `row_max` and `row_sum` are `[ROWS, 1]`, and `acc` is
    `[ROWS, D]`. With 0 it is all transposed: `[keys, ROWS]`, `[1, ROWS]` and `[D, ROWS]`. That is for fewer
    rows than a tensor core wants, which then can be its narrow side.

    `SUMS` is 1, or the number of keys of a tile: then `row_sum` has that many for each row, which are added
    up at the end. Where warps share the keys of a row, that is one exchange between them less in every tile.
    """
    row_shape = (ROWS, 1) if KEY_AXIS == 1 else (1, ROWS)
    sum_shape = (ROWS, SUMS) if KEY_AXIS == 1 else (SUMS, ROWS)
    acc_shape = (ROWS, D) if KEY_AXIS == 1 else (D, ROWS)
    return (
        ct.full(row_shape, LOWEST, dtype=ct.float32),
        ct.zeros(sum_shape, dtype=ct.float32),
        ct.zeros(acc_shape, dtype=ct.float32),
    )


def exponentiate(
    s: ct.Tile,
    row_max: ct.Tile,
    row_sum: ct.Tile,
    scale_log2: float | ct.Tile,
    KEY_AXIS: int = 1,
    HEADROOM: float = 0.0,
) -> tuple[ct.Tile, ct.Tile, ct.Tile, ct.Tile]:
    """Take in a tile of raw scores: float32, not scaled, hidden ones -inf.

    `scale_log2` is `check_scale`'s, or positive ones for each row, in the shape of `row_max`.

    `p` is float32, at most 2^HEADROOM for scores within the range above. HEADROOM is a constant, the same for
    a whole loop, that says how far up p is pushed in a format of few exponents, so that its small elements
    are not flushed to zero.

    Returns `p`, the new `row_max` and `row_sum`, and the factor by which `acc` has to shrink before the
    values that `p` weighs are added to it. Those who do that at once call `add_scores` instead.
    """
    # The scale is positive, so it can wait for the maximum; below it is part of a multiply-add.
    new_max = ct.maximum(row_max, ct.max(s, KEY_AXIS, keepdims=True) * scale_log2 - HEADROOM)
    p = ct.exp2(s * scale_log2 - new_max, flush_to_zero=True)
    # 0 with the first visible key, 1 while there is none.
    shrink = ct.exp2(row_max - new_max, flush_to_zero=True)
    if ct.static_eval(row_sum.shape == row_max.shape):
        row_sum = row_sum * shrink + ct.sum(p, KEY_AXIS, keepdims=True)
    else:
        row_sum = row_sum * shrink + p
    return p, new_max, row_sum, shrink


def add_scores(
    s: ct.Tile,
    row_max: ct.Tile,
    row_sum: ct.Tile,
    acc: ct.Tile,
    scale_log2: float | ct.Tile,
    KEY_AXIS: int = 1,
    HEADROOM: float = 0.0,
) -> tuple[ct.Tile, ct.Tile, ct.Tile, ct.Tile]:
    """Take in a tile of scores, as `exponentiate` does, and make `acc` ready for its values.

    Returns `p` and the new `row_max`, `row_sum` and `acc`: what is left to do is to add `p` times the values.
    """
    p, row_max, row_sum, shrink = exponentiate(s, row_max, row_sum, scale_log2, KEY_AXIS, HEADROOM)
    return p, row_max, row_sum, acc * shrink


def finish_softmax(
    row_max: ct.Tile, row_sum: ct.Tile, acc: ct.Tile, KEY_AXIS: int = 1
) -> tuple[ct.Tile, ct.Tile]:
    """Return the output, and the base-2 logarithm of the sum of the exponentials: see "Split keys" above.

    Both are float32, in the shapes of `acc` and `row_max`; 0 and -inf for a row that saw no key.
    """
    if ct.static_eval(row_sum.shape != row_max.shape):
        row_sum = ct.sum(row_sum, KEY_AXIS, keepdims=True)
    # One division per row instead of one per element.
    inverse = ct.where(row_sum > 0.0, reciprocal(row_sum), 0.0)
    return acc * inverse, row_max + ct.log2(row_sum)
