"""Inputs that test kernels: other memory layouts, and hard inputs for attention.

The functions in `SPECIAL` reveal errors of attention that independent random tensors hide. They are
`special_inputs` of a `KernelSpec`: each takes what the kernel's `inputs` made and changes queries in place,
which keeps their layout.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_cutile import Case


def laid_out(case: Case, layout: str) -> Case:
    """Return `case` with tensors that lie in memory as `layout` says: "padded", "transposed" or "shifted"."""
    return replace(case, name=f"{case.name}-{layout}", layout=layout)


# -- attention --------------------------------------------------------------------------------------

_SHARPNESS = 8.0
"""Factor from a key to the query that points at it: all other keys then weigh less than a rounding."""


def zero_queries(made: dict[str, Any]) -> dict[str, Any]:
    """Make all scores 0: each output is the mean of the values that its query sees."""
    for name in ("q", "q_pe", "qpe"):
        if name in made:
            made[name].zero_()
    return made


def wide_scores(made: dict[str, Any]) -> dict[str, Any]:
    """Make scores three times as wide: few keys have most of the weight, and maxima grow on the way."""
    for name in ("q", "q_pe", "qpe"):
        if name in made:
            _write(made[name], made[name].float() * 3.0)
    return made


def one_hot_scores(made: dict[str, Any]) -> dict[str, Any]:
    """Make each query point at one key, so that its output is the value of that key.

    An output then shows which head and position it came from. The last key that the mask lets through is
    among the keys pointed at.
    """
    keys = made["kv"][:, None] if "kv" in made else made["k"]
    zero_queries(made)
    _point(made["q"], keys, causal=made.get("causal", False))
    return made


def rope_scores(made: dict[str, Any]) -> dict[str, Any]:
    """Do the same as `one_hot_scores`, with the dimensions that carry the position alone."""
    queries, keys = (made["q_pe"], made["k_pe"]) if "q_pe" in made else (made["qpe"], made["kpe"][:, None])
    zero_queries(made)
    _point(queries, keys, causal=made.get("causal", False))
    return made


def _point(q: Any, k: Any, *, causal: bool) -> None:
    """Make each query a multiple of a key that it sees, if it sees any.

    Args:
        q: `[B, H, D]` or `[B, H, M, D]`, changed in place.
        k: `[B, H_kv, N, D]`.
        causal: whether query i sees the first i + 1 keys only.
    """
    import torch

    if not (q.numel() and k.numel()):
        return
    rows = q if q.ndim == 4 else q[:, :, None]  # noqa: PLR2004
    b, h, m, d = rows.shape
    h_kv, n = k.shape[1:3]
    seen = torch.full((m,), n, device=q.device)
    if causal:
        seen = torch.arange(1, m + 1, device=q.device).clamp(max=n)
    # The last key that it sees, or one further back, by head and sequence.
    steps = torch.arange(b * h, device=q.device).view(b, h, 1) * 7
    target = (seen - 1 - steps) % seen  # [B, H, M]
    of_head = k.float().repeat_interleave(h // h_kv, 1)  # [B, H, N, D]
    keys = of_head.gather(2, target[..., None].expand(b, h, m, d))
    _write(rows, keys * _SHARPNESS)


def _write(target: Any, values: Any) -> None:
    target.copy_(values.to(target.dtype))


SPECIAL = {"zero_queries": zero_queries, "wide_scores": wide_scores, "one_hot_scores": one_hot_scores}
"""Of attention kernels."""
SPECIAL_WITH_ROPE = {**SPECIAL, "rope_scores": rope_scores}
"""Of those whose scores have a part of their own for the position."""
_FINITE = "inputs are finite: online softmax starts from the lowest finite maximum"
UNDEFINED = {"nan": _FINITE, "inf": _FINITE}
"""What attention kernels define no result for."""
