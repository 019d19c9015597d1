"""Attention that sums its products in float16: half the registers for scores and results, and less precise.

The softmax stays in float32. Scores beyond 65504 become infinite, and sums over many keys lose what is small:
what this costs and gains is a question of the study, not something that `kernels/fmha.py` offers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import cuda.tile as ct

from kernels._attention import AttentionConfig
from kernels._launch import on_its_gpu, with_hints
from kernels._online_softmax import add_scores, finish_softmax, start_softmax
from studies.running.attention import case, declare

if TYPE_CHECKING:
    import torch

ConstInt: TypeAlias = ct.Constant[int]
ConstBool: TypeAlias = ct.Constant[bool]


@ct.kernel
def half_kernel(
    Q: ct.Array,
    K: ct.Array,
    V: ct.Array,
    O: ct.Array,  # noqa: E741 - the name of the formula
    scale_log2: float,
    H: ConstInt,
    D: ConstInt,
    TILE_M: ConstInt,
    TILE_N: ConstInt,
    CAUSAL: ConstBool,
) -> None:
    """Compute `TILE_M` rows of one head of O."""
    tile, batch, head = ct.bid(0), ct.bid(1) // H, ct.bid(1) % H
    keys, first_row = K.shape[2], tile * TILE_M
    q = ct.load(Q, (batch, head, tile, 0), (1, 1, TILE_M, D), padding_mode=ct.PaddingMode.ZERO)
    q = q.reshape((TILE_M, D))
    row_max, row_sum, _ = start_softmax(TILE_M, D)
    acc = ct.zeros((TILE_M, D), dtype=ct.float16)
    for j in range(ct.cdiv(min(keys, first_row + TILE_M) if CAUSAL else keys, TILE_N)):
        k = ct.load(
            K, (batch, head, 0, j), (1, 1, D, TILE_N), order=(0, 1, 3, 2), padding_mode=ct.PaddingMode.ZERO
        )
        s = ct.mma(q, k.reshape((D, TILE_N)), ct.zeros((TILE_M, TILE_N), dtype=ct.float16))
        row = first_row + ct.arange(TILE_M, dtype=ct.int32)[:, None]  # [TILE_M, 1]
        column = j * TILE_N + ct.arange(TILE_N, dtype=ct.int32)[None, :]  # [1, TILE_N]
        visible = (column < keys) & (column <= row) if CAUSAL else column < keys
        s = ct.where(visible, s.astype(ct.float32), -math.inf)
        p, row_max, row_sum, wide = add_scores(s, row_max, row_sum, acc.astype(ct.float32), scale_log2)
        v = ct.load(V, (batch, head, j, 0), (1, 1, TILE_N, D), padding_mode=ct.PaddingMode.ZERO)
        acc = ct.mma(p.astype(ct.float16), v.reshape((TILE_N, D)), wide.astype(ct.float16))
    o, _ = finish_softmax(row_max, row_sum, acc.astype(ct.float32))
    ct.store(O, (batch, head, tile, 0), o.astype(O.dtype).reshape((1, 1, TILE_M, D)))


CONFIG = AttentionConfig(tile_m=64, tile_n=64)
"""Of every architecture: not measured."""


@on_its_gpu
def half_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale_log2: float | None = None,
    config: AttentionConfig = CONFIG,
) -> torch.Tensor:
    """Attend from `[B, H, N, D]` to keys of the same shape, all in float16, by sums in float16.

    Of the configuration, tiles and hints count.
    """
    import torch

    b, h, n, d = q.shape
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    scale_log2 = math.log2(math.e) / math.sqrt(d) if scale_log2 is None else scale_log2
    ct.launch(
        torch.cuda.current_stream(),
        (ct.cdiv(n, config.tile_m), b * h),
        with_hints(half_kernel, config),
        (q, k, v, o, scale_log2, h, d, config.tile_m, config.tile_n, causal),
    )
    return o


# -- what it is gated with --------------------------------------------------------------------------


SUMMED = 16
"""Products that one instruction of the tensor cores sums before float16 rounds (PTX ISA: k16 of f16)."""


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False) -> torch.Tensor:
    """Follow the formula, and add up products as the tensor cores do: every sum so far is rounded."""
    import torch

    scores = _add_up(q / math.sqrt(q.shape[-1]), k.transpose(-1, -2))
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    return _add_up(torch.softmax(scores, -1), v)


def _add_up(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return `a @ b`, summed over `SUMMED` products at a time."""
    total = a[..., :SUMMED] @ b[..., :SUMMED, :]
    for first in range(SUMMED, a.shape[-1], SUMMED):
        part = slice(first, first + SUMMED)
        total = total + a[..., part] @ b[..., part, :]
    return total


SPEC = declare(
    "half_attention",
    half_attention,
    [case(130, h=2), case(150, h=2, d=64, causal=True)],
    reference=reference,
    mid="float16",
)
