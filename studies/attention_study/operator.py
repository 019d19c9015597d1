"""Attention for PyTorch: `sdpa`, an operator of the namespace `cutile` that torch.compile keeps whole."""

from __future__ import annotations

from typing import Any

import torch

from studies.attention_study.launching import attend, check_arguments

OPTIONS = (
    *("causal", "scale", "tile_m", "tile_n", "occupancy", "num_ctas", "num_worker_warps", "opt_level"),
    *("accumulator", "synchronize"),
)
"""What the operator takes after q, k and v, in this order."""


def sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
    *,
    tile_m: int | None = None,
    tile_n: int | None = None,
    occupancy: int | None = None,
    num_ctas: int | None = None,
    num_worker_warps: int | None = None,
    opt_level: int | None = None,
    accumulator: str = "float32",
    synchronize: str = "never",
) -> torch.Tensor:
    """Attend from every query to all keys of its head, or with `causal` to those up to its own position.

    Forward only: where an argument requires a gradient, the backward pass raises. A control that is None is
    chosen as `kernels/fmha.py` chooses it for this GPU, or by the compiler where a tile is given.

    Args:
        q: `[B, H, M, D]`, float16 or bfloat16, D up to 256: one without a kernel is padded to the next of 64,
            128 and 256.
        k: `[B, H_kv, N, D]`; H is a multiple of H_kv.
        v: `[B, H_kv, N, D]`.
        causal: Query i sees the keys j <= i.
        scale: Factor of the scores; by default 1 / sqrt(D).
        tile_m: Queries of a tile, a power of two.
        tile_n: Keys of a step, a power of two.
        occupancy: Blocks on a multiprocessor.
        num_ctas: Blocks of a cluster.
        num_worker_warps: Warps that hold scores and sums.
        opt_level: Of tileiras, 0 to 3.
        accumulator: What products are summed in: "float32", or "float16" for float16 inputs of one shape.
        synchronize: When the host waits for the GPU: "never", "after" the launch, or "around" it.

    Returns:
        `[B, H, M, D]`, the dtype of q, contiguous.

    Raises:
        TypeError: Dtypes that differ, or that are not supported.
        ValueError: Shapes that do not fit together, or controls out of range.
    """
    result: torch.Tensor = _operator(
        *(q, k, v, causal, scale),
        *(tile_m, tile_n, occupancy, num_ctas, num_worker_warps, opt_level),
        *(accumulator, synchronize),
    )
    return result


@torch.library.custom_op("cutile::sdpa", mutates_args=())
def _operator(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    scale: float | None,
    tile_m: int | None,
    tile_n: int | None,
    occupancy: int | None,
    num_ctas: int | None,
    num_worker_warps: int | None,
    opt_level: int | None,
    accumulator: str,
    synchronize: str,
) -> torch.Tensor:
    return attend(
        q,
        k,
        v,
        causal=causal,
        scale=scale,
        accumulator=accumulator,
        synchronize=synchronize,
        tile_m=tile_m,
        tile_n=tile_n,
        occupancy=occupancy,
        num_ctas=num_ctas,
        num_worker_warps=num_worker_warps,
        opt_level=opt_level,
    )


@_operator.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any) -> torch.Tensor:
    """Return the result without data, for torch.compile: it needs no GPU, and refuses what a launch would."""
    check_arguments(q, k, v, **dict(zip(OPTIONS, options, strict=True)))
    return q.new_empty(q.shape)
