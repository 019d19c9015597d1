"""Step 1, basic: the algorithm, and no word to the compiler on how to do it.

A block owns `TILE_M` queries of one head. The scores of all keys would be `[N, N]`; instead the block loops
over the keys, `TILE_N` at a time, and keeps what softmax needs of those seen so far: their maximum, the sum
of their exponentials, and the sum of values weighed by them. Whenever the maximum grows, both sums shrink.

Tiles of 64x64 are what the published ladder uses on DGX Spark.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import cuda.tile as ct

from kernels._online_softmax import LOWEST
from studies.fmha_ladder._declare import declare

if TYPE_CHECKING:
    import torch

ConstInt: TypeAlias = ct.Constant[int]

TILE_M, TILE_N = 64, 64


@ct.kernel
def attention_kernel(
    Q: ct.Array,
    K: ct.Array,
    V: ct.Array,
    O: ct.Array,  # noqa: E741 - the name of the formula
    scale: float,
    H: ConstInt,
    D: ConstInt,
    TILE_M: ConstInt,
    TILE_N: ConstInt,
) -> None:
    tile, batch, head = ct.bid(0), ct.bid(1) // H, ct.bid(1) % H
    first_row = tile * TILE_M
    row = first_row + ct.arange(TILE_M, dtype=ct.int32)[:, None]  # [TILE_M, 1]
    q = ct.load(Q, (batch, head, tile, 0), (1, 1, TILE_M, D), padding_mode=ct.PaddingMode.ZERO)
    q = q.reshape((TILE_M, D))
    row_max = ct.full((TILE_M, 1), LOWEST, dtype=ct.float32)
    row_sum = ct.zeros((TILE_M, 1), dtype=ct.float32)
    acc = ct.zeros((TILE_M, D), dtype=ct.float32)

    for j in range(ct.cdiv(min(first_row + TILE_M, K.shape[2]), TILE_N)):
        k = ct.load(K, (batch, head, j, 0), (1, 1, TILE_N, D), padding_mode=ct.PaddingMode.ZERO)
        k = ct.permute(k.reshape((TILE_N, D)), (1, 0))  # [D, TILE_N]
        s = ct.mma(q, k, ct.zeros((TILE_M, TILE_N), dtype=ct.float32)) * scale
        if j >= first_row // TILE_N:
            column = j * TILE_N + ct.arange(TILE_N, dtype=ct.int32)[None, :]  # [1, TILE_N]
            s = ct.where(column <= row, s, -math.inf)
        new_max = ct.maximum(row_max, ct.max(s, 1, keepdims=True))
        p = ct.exp(s - new_max)
        shrink = ct.exp(row_max - new_max)
        row_sum = row_sum * shrink + ct.sum(p, 1, keepdims=True)
        v = ct.load(V, (batch, head, j, 0), (1, 1, TILE_N, D), padding_mode=ct.PaddingMode.ZERO)
        acc = ct.mma(p.astype(V.dtype), v.reshape((TILE_N, D)), acc * shrink)
        row_max = new_max

    acc = acc / row_sum
    ct.store(O, (batch, head, tile, 0), acc.astype(O.dtype).reshape((1, 1, TILE_M, D)))


def launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return the causal attention of `[B, H, N, D]`."""
    import torch

    b, h, n, d = q.shape
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    grid = (ct.cdiv(n, TILE_M), b * h)
    scale = 1.0 / math.sqrt(d)
    ct.launch(torch.cuda.current_stream(), grid, attention_kernel, (q, k, v, o, scale, h, d, TILE_M, TILE_N))
    return o


SPEC = declare("fmha_01_basic", launch)
