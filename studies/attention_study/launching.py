"""The launcher behind the operator: `kernels.fmha` with run-time controls, for every head dimension."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels import fmha
from kernels._attention import AttentionConfig
from kernels._launch import find_arch
from kernels._online_softmax import check_scale
from studies.attention_study.half_kernel import half_attention
from studies.running.attention import case, declare

if TYPE_CHECKING:
    import torch

ACCUMULATORS = ("float32", "float16")
SYNCHRONIZE = ("never", "after", "around")
"""When the host waits for the GPU."""


@dataclass(frozen=True, kw_only=True)
class StudyConfig(AttentionConfig):
    """How attention is cut into tiles, and all of the compiler's hints."""

    num_ctas: int | None = None
    """Blocks of a cluster; None lets the compiler choose."""
    opt_level: int = 3
    """Of tileiras, 0 to 3."""


def choose_config(
    arch: str, *, head_dim: int, causal: bool, keys: int, **controls: int | None
) -> StudyConfig:
    """Return what `kernels/fmha.py` would take for 16 bits, changed by the `controls` that are not None.

    With tiles of one's own, the other fields are the compiler's to choose: those of a table suit its tiles.
    """
    chosen = fmha.choose_config(arch, head_dim=head_dim, causal=causal, itemsize=2, keys=keys)
    given = {name: value for name, value in controls.items() if value is not None}
    if {"tile_m", "tile_n"} & given.keys():
        chosen = AttentionConfig(tile_m=chosen.tile_m, tile_n=chosen.tile_n)
    return StudyConfig(**{**vars(chosen), **given})


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    accumulator: str = "float32",
    synchronize: str = "never",
    **controls: int | None,
) -> torch.Tensor:
    """Attend as `sdpa` does.

    Raises:
        ValueError: `accumulator` or `synchronize` is not known, `float16` sums other inputs than float16 or
            keys of other shapes, or the head dimension is above 256.
    """
    import torch

    for name, value, known in (
        ("accumulator", accumulator, ACCUMULATORS),
        ("synchronize", synchronize, SYNCHRONIZE),
    ):
        if value not in known:
            raise ValueError(f"sdpa: {name} must be one of {', '.join(known)}, got {value!r}")
    head_dim = q.shape[-1]
    padded = next((supported for supported in fmha.HEAD_DIMS if supported >= head_dim), None)
    if padded is None:
        raise ValueError(f"sdpa: the head dimension is at most {fmha.HEAD_DIMS[-1]}, got {head_dim}")
    scale = 1.0 / math.sqrt(head_dim) if scale is None else scale
    # Zeros add nothing to scores, and the columns that they make of the result are cut off.
    q, k, v = (
        torch.nn.functional.pad(x, (0, padded - head_dim)) if padded > head_dim else x for x in (q, k, v)
    )
    arch = find_arch("sdpa", q, fmha.CONFIGS, fmha.MASK_CONFIGS)
    config = choose_config(arch, head_dim=padded, causal=causal, keys=k.shape[2], **controls)
    if synchronize == "around":
        torch.cuda.synchronize(q.device)
    if accumulator == "float16":
        o = _sum_in_half(q, k, v, causal=causal, scale=scale, config=config)
    else:
        o = fmha.fmha(q, k, v, causal=causal, scale=scale, config=config)
    if synchronize != "never":
        torch.cuda.synchronize(q.device)
    return o[..., :head_dim].contiguous()


def _sum_in_half(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float, config: StudyConfig
) -> torch.Tensor:
    import torch

    if q.dtype != torch.float16:
        raise ValueError(f"sdpa: sums in float16 are for float16, got {q.dtype}")
    if not q.shape == k.shape == v.shape:
        raise ValueError(f"sdpa: sums in float16 need one shape, got {[[*x.shape] for x in (q, k, v)]}")
    return half_attention(q, k, v, causal=causal, scale_log2=check_scale("sdpa", scale), config=config)


# -- what it is gated with --------------------------------------------------------------------------


SPEC = declare("sdpa", attend, [case(130, h=2, d=96), case(100, h=2, d=160, dtype="bfloat16", causal=True)])
