"""The launcher behind the operator: `kernels.fmha` with run-time controls, for every head dimension."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels import fmha
from kernels._attention import AttentionConfig
from kernels._configs import check_fields
from kernels._launch import check_bool, check_tensors
from kernels._online_softmax import check_scale
from studies.attention_study.half_kernel import half_attention
from studies.running.attention import case, declare

if TYPE_CHECKING:
    import torch

DTYPES = ("float16", "bfloat16")
ACCUMULATORS = ("float32", "float16")
MAX_OPT_LEVEL = 3
SYNCHRONIZE = ("never", "after", "around")
"""When the host waits for the GPU."""


@dataclass(frozen=True, kw_only=True)
class StudyConfig(AttentionConfig):
    """How attention is cut into tiles, and all of the compiler's hints."""

    num_ctas: int | None = None
    """Blocks of a cluster; None lets the compiler choose."""
    opt_level: int = 3
    """Of tileiras, 0 to 3."""

    def __post_init__(self) -> None:
        check_fields(self, powers=("tile_m", "tile_n"), limits=("opt_level",))
        if self.opt_level > MAX_OPT_LEVEL:
            raise ValueError(f"sdpa: opt_level must be 0 to {MAX_OPT_LEVEL}, got {self.opt_level}")


def vary_config(chosen: AttentionConfig, **controls: int | None) -> StudyConfig:
    """Return what `kernels/fmha.py` would take, changed by the `controls` that are not None.

    With tiles of one's own, the other fields are the compiler's to choose: those of a table suit its tiles.
    """
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
        TypeError: As `check_arguments`.
        ValueError: Likewise.
    """
    import torch

    padded, scale = check_arguments(
        q, k, v, causal=causal, scale=scale, accumulator=accumulator, synchronize=synchronize, **controls
    )
    head_dim = q.shape[-1]
    # Zeros add nothing to scores, and the columns that they make of the result are cut off.
    q, k, v = (
        torch.nn.functional.pad(x, (0, padded - head_dim)) if padded > head_dim else x for x in (q, k, v)
    )
    config = vary_config(fmha.config_for(q, k, causal=causal), **controls)
    if synchronize == "around":
        torch.cuda.synchronize(q.device)
    if accumulator == "float16":
        scale_log2 = check_scale("sdpa", scale)
        o = half_attention(q, k, v, causal=causal, scale_log2=scale_log2, config=config)
    else:
        o = fmha.fmha(q, k, v, causal=causal, scale=scale, config=config)
    if synchronize != "never":
        torch.cuda.synchronize(q.device)
    return o[..., :head_dim].contiguous()


def check_arguments(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    scale: float | None,
    accumulator: str,
    synchronize: str,
    **controls: int | None,
) -> tuple[int, float]:
    """Return the head dimension of the kernel and the scale; needs neither data nor a GPU.

    Raises:
        TypeError: Dtypes that differ, or that are not supported.
        ValueError: Shapes that do not fit together, a head dimension above 256, a scale or a control out of
            range, or `float16` sums of other inputs than float16 of one shape.
    """
    import torch

    for name, value, known in (
        ("accumulator", accumulator, ACCUMULATORS),
        ("synchronize", synchronize, SYNCHRONIZE),
    ):
        if value not in known:
            raise ValueError(f"sdpa: {name} must be one of {', '.join(known)}, got {value!r}")
    check_bool("sdpa", "causal", causal)
    check_tensors("sdpa", {"q": q, "k": k, "v": v}, dtypes=DTYPES)
    shapes = [[*x.shape] for x in (q, k, v)]
    if not q.ndim == k.ndim == v.ndim == 4:
        raise ValueError(f"sdpa: q, k and v must be [batch, heads, length, head_dim], got {shapes}")
    if k.shape != v.shape:
        raise ValueError(f"sdpa: v must have k's shape {shapes[1]}, got {shapes[2]}")
    if q.shape[::3] != k.shape[::3]:
        raise ValueError(f"sdpa: q and k must have as many batches, and one head dimension, got {shapes[:2]}")
    heads, kv_heads, head_dim = q.shape[1], k.shape[1], q.shape[3]
    if heads and (kv_heads == 0 or heads % kv_heads):
        raise ValueError(
            f"sdpa: q has {heads} heads, which is no multiple of the {kv_heads} heads of k and v"
        )
    padded = next((supported for supported in fmha.HEAD_DIMS if head_dim <= supported), None)
    if padded is None:
        raise ValueError(f"sdpa: the head dimension is at most {fmha.HEAD_DIMS[-1]}, got {head_dim}")
    if accumulator == "float16":
        if q.dtype != torch.float16:
            raise ValueError(f"sdpa: sums in float16 are for float16, got {q.dtype}")
        if q.shape != k.shape:
            raise ValueError(f"sdpa: sums in float16 need one shape, got {shapes}")
    scale = 1.0 / math.sqrt(head_dim) if scale is None else scale
    check_scale("sdpa", scale)
    # Checks the controls, which are the same on every architecture.
    vary_config(fmha.DEFAULT_CONFIG, **controls)
    return padded, scale


# -- what it is gated with --------------------------------------------------------------------------


SPEC = declare("sdpa", attend, [case(130, h=2, d=96), case(100, h=2, d=160, dtype="bfloat16", causal=True)])
