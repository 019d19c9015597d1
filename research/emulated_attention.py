"""Attention emulated on a CPU as flash attention computes it: softmax(q k^T / sqrt(D)) v for [B, H, S, D]."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from pytest_cutile.tile.tensors.make_tensor import make_tensor
from research.emulated_kernels import LOG2E, Workload, cast, jitter, truncating_cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


FIRST_ROWS = 8


def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    tile: int = 64,
    offset: int = 0,
    scale: float = 1.0,
    skipped: int = -1,
    rescale: bool = True,
    probabilities: torch.dtype | None = None,
) -> Tensor:
    """Return attention in float32 with an online softmax and probabilities rounded to the inputs' dtype.

    `offset` shifts the causal mask, `scale` the scores, `skipped` leaves out one tile of keys and
    `rescale=False` forgets to correct the accumulator: the bugs.
    """
    rounded = probabilities or q.dtype
    factor = scale * LOG2E / math.sqrt(q.shape[-1])
    rows = torch.arange(q.shape[2])[:, None]
    peak = torch.full((*q.shape[:3], 1), -torch.inf)
    total = torch.zeros(*q.shape[:3], 1)
    acc = torch.zeros(*q.shape[:3], v.shape[-1])
    for start in range(0, k.shape[2], tile):
        if start // tile == skipped:
            continue
        keys, values = k[:, :, start : start + tile].float(), v[:, :, start : start + tile].float()
        scores = (q.float() @ keys.transpose(-1, -2)) * factor
        if causal:
            scores = scores.masked_fill(start + torch.arange(keys.shape[2]) > rows + offset, -torch.inf)
        new = torch.maximum(peak, scores.amax(-1, keepdim=True)).clamp(min=-1e30)
        powers = jitter(torch.exp2(scores - new), 2)
        correction = torch.exp2(peak - new) if rescale else torch.ones_like(peak)
        total = total * torch.exp2(peak - new) + powers.sum(-1, keepdim=True)
        acc = acc * correction + cast(powers, rounded).float() @ values
        peak = new
    return acc / total


def attention(
    kind: str, s: int, *, out: str | None = None, causal: bool = True, d: int = 64, spread: float = 1.0
) -> Workload:
    """Return the workload attention, for inputs of dtype `kind` and sequences of length `s`."""
    target = getattr(torch, out or kind)

    def inputs(seed: int) -> tuple[Any, ...]:
        sizes = (spread, spread, 1.0)  # of q, k, v
        made = (make_tensor((1, 2, s, d), "float32", device="cpu", seed=seed + offset) for offset in range(3))
        return tuple(cast(x * size, getattr(torch, kind)) for x, size in zip(made, sizes, strict=True))

    def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) / math.sqrt(d)
        if causal:
            scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), -torch.inf)
        return torch.softmax(scores, -1) @ v

    def normalized_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q.float() @ k.float().transpose(-1, -2) / math.sqrt(d)
        if causal:
            scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), -torch.inf)
        return cast(torch.softmax(scores, -1), q.dtype).float() @ v.float()

    def made(**options: Any) -> Callable[..., Tensor]:
        return lambda q, k, v: cast(flash(q, k, v, causal=causal, **options), target)

    def changed(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        return lambda q, k, v: cast(change(flash(q, k, v, causal=causal)), target)

    def tail(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result = torch.empty(q.shape, dtype=target)
        result[:, :, : s - 5] = made()(q, k, v)[:, :, : s - 5]
        return result

    honest = {
        "tiles of 64": made(),
        "tiles of 128": made(tile=128),
        "tiles of 32": made(tile=32),
        "probabilities in float32": made(probabilities=torch.float32),
    }
    if getattr(torch, kind).itemsize > 1:  # e4m3 has no room for probabilities of 1/N
        honest["normalized first"] = lambda q, k, v: cast(normalized_first(q, k, v), target)
    bugs = {
        "all zero": changed(torch.zeros_like),
        "rows from the 8th on zero": changed(lambda o: o * (torch.arange(s) < FIRST_ROWS)[:, None]),
        "one tile of keys skipped": made(skipped=1),
        "no rescaling": made(rescale=False),
        "score scale 1% off": made(scale=1.01),
        "output 1% off": changed(lambda o: o * 1.01),
        "heads swapped": changed(lambda o: o.flip(1)),
        "tail unwritten": tail,
    }
    if causal:
        bugs["mask off by one"] = made(offset=1)
        bugs["mask off by one, other way"] = made(offset=-1)
        bugs["not masked"] = lambda q, k, v: cast(flash(q, k, v, causal=False), target)
    else:
        bugs["last key missing"] = lambda q, k, v: cast(
            flash(q, k[:, :, :-1], v[:, :, :-1], causal=False), target
        )
    if target != torch.float32:
        bugs["truncating cast"] = lambda q, k, v: truncating_cast(flash(q, k, v, causal=causal), target)
        bugs["fp8 probabilities"] = made(probabilities=torch.float8_e5m2)
    return Workload(
        name=f"attention {kind}->{out or kind} S={s}{' causal' if causal else ''} std={spread:g}",
        inputs=inputs,
        reference=reference,
        reduction=s,
        honest=honest,
        bugs=bugs,
    )
