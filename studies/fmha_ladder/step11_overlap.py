"""Step 11, overlap: the tensor cores add the values of the tile before while exponentials are computed.

A warp group computes scores, then exponentials, then P @ V, each waiting for the one before. Here it starts
P @ V of the tile before and computes the exponentials of this tile meanwhile. That holds one more P in
registers. Where two blocks share a multiprocessor, the other one uses the tensor cores anyway: a gain is
not certain.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import cuda.tile as ct

from kernels._attention import order_tiles
from kernels._division import Divisor, divisor
from kernels._launch import with_hints
from kernels._online_softmax import LOWEST
from kernels._tiles import LOG2_E
from studies.fmha_ladder._declare import choose_config, declare, tiles_of

if TYPE_CHECKING:
    import torch

ConstInt: TypeAlias = ct.Constant[int]


@ct.kernel
def attention_kernel(
    Q: ct.Array,
    K: ct.Array,
    V: ct.Array,
    O: ct.Array,  # noqa: E741 - the name of the formula
    scale_log2: float,
    H: ConstInt,
    D: ConstInt,
    TILE_M: ConstInt,
    TILE_N: ConstInt,
    LATENCY_K: ConstInt,
    LATENCY_V: ConstInt,
    HEADS_TOGETHER: ConstInt,
    band_size: Divisor,
) -> None:
    any_head, tile = order_tiles(
        ct.bid(0), ct.cdiv(Q.shape[2], TILE_M), Q.shape[0] * H, HEADS_TOGETHER, band_size
    )
    batch, head = any_head // H, any_head % H
    first_row = tile * TILE_M
    q = ct.load(Q, (batch, head, tile, 0), (1, 1, TILE_M, D), padding_mode=ct.PaddingMode.ZERO)
    q = q.reshape((TILE_M, D))

    def weigh(j: int, MASK: bool, row_max: ct.Tile, row_sum: ct.Tile) -> tuple[ct.Tile, ...]:
        k = ct.load(
            K,
            (batch, head, 0, j),
            (1, 1, D, TILE_N),
            order=(0, 1, 3, 2),
            padding_mode=ct.PaddingMode.ZERO,
            latency=ct.static_eval(LATENCY_K or None),
        )
        s = ct.mma(q, k.reshape((D, TILE_N)), ct.zeros((TILE_M, TILE_N), dtype=ct.float32))
        if MASK:
            row = first_row + ct.arange(TILE_M, dtype=ct.int32)[:, None]  # [TILE_M, 1]
            column = j * TILE_N + ct.arange(TILE_N, dtype=ct.int32)[None, :]  # [1, TILE_N]
            s = ct.where(column <= row, s, -math.inf)
        new_max = ct.maximum(row_max, ct.max(s, 1, keepdims=True) * scale_log2)
        p = ct.exp2(s * scale_log2 - new_max, flush_to_zero=True)
        shrink = ct.exp2(row_max - new_max, flush_to_zero=True)
        row_sum = row_sum * shrink + ct.sum(p, 1, keepdims=True)
        return p.astype(V.dtype), shrink, new_max, row_sum

    def add_values(p: ct.Tile, j: int, acc: ct.Tile) -> ct.Tile:
        v = ct.load(
            V,
            (batch, head, j, 0),
            (1, 1, TILE_N, D),
            padding_mode=ct.PaddingMode.ZERO,
            latency=ct.static_eval(LATENCY_V or None),
        )
        return ct.mma(p, v.reshape((TILE_N, D)), acc)

    row_max = ct.full((TILE_M, 1), LOWEST, dtype=ct.float32)
    row_sum = ct.zeros((TILE_M, 1), dtype=ct.float32)
    acc = ct.zeros((TILE_M, D), dtype=ct.float32)
    tiles = ct.cdiv(min(first_row + TILE_M, K.shape[2]), TILE_N)
    # Of tiles as high as wide, or wider, the diagonal crosses one.
    masked = tiles - first_row // TILE_N if TILE_M > TILE_N else 1
    p, shrink, row_max, row_sum = weigh(tiles - 1, True, row_max, row_sum)
    for back in range(1, masked):
        acc = add_values(p, tiles - back, acc * shrink)
        p, shrink, row_max, row_sum = weigh(tiles - 1 - back, True, row_max, row_sum)
    for back in range(masked, tiles):
        acc = add_values(p, tiles - back, acc * shrink)
        p, shrink, row_max, row_sum = weigh(tiles - 1 - back, False, row_max, row_sum)
    acc = add_values(p, 0, acc * shrink)
    acc = acc * ct.truediv(1.0, row_sum, rounding_mode=ct.RoundingMode.APPROX, flush_to_zero=True)
    ct.store(O, (batch, head, tile, 0), acc.astype(O.dtype).reshape((1, 1, TILE_M, D)))


def launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return the causal attention of `[B, H, N, D]`."""
    import torch

    b, h, n, d = q.shape
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    config = choose_config(q)
    tiles = ct.cdiv(n, config.tile_m)
    band_size = divisor(config.heads_together * tiles)
    scale_log2 = LOG2_E / math.sqrt(d)
    ct.launch(
        torch.cuda.current_stream(),
        (tiles * b * h,),
        with_hints(attention_kernel, config),
        (q, k, v, o, scale_log2, h, d, *tiles_of(config), config.heads_together, band_size),
    )
    return o


SPEC = declare("fmha_11_overlap", launch)
