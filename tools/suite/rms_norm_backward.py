"""RMSNorm's gradients: hidden sizes of models, and what torch's own autograd does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kernels import rms_norm_backward as MODULE  # noqa: N812
from kernels.rms_norm_backward import RmsNormBackwardConfig, _case
from tools.suite._peers import COPIES, compiled, copies_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_cutile import Case

_TIMED = [case for case in MODULE.SPEC.cases if case.speed]
_WIDTHS = [_case("bfloat16", 16384, n, speed=True) for n in (1024, 3072, 5120, 7168)]
_MODELS = [_case("bfloat16", m, n, speed=True) for m in (4096, 8192) for n in (3584, 4096, 8192)]
CASES: tuple[Case, ...] = (*_TIMED, *_WIDTHS, *_MODELS)
PEERS = ("torch", "compile", *COPIES)


def configs(arch: str, **params: Any) -> Iterator[RmsNormBackwardConfig]:
    """Yield tiles of one row or several, in pieces, and any number of blocks per SM that registers allow."""
    del arch
    row = 1 << (params["shape"][-1] - 1).bit_length()
    for tile in sorted({max(row, tile) for tile in (1024, 2048, 4096)}):
        for warps in (4, 8):
            # A thread keeps its part of the sum, x and dy: more than 64 elements of each do not fit.
            if not 8 <= tile / (32 * warps) <= 64:
                continue
            for piece in (1024, 2048, 4096):
                for occupancy in (1, 2, 3, 4, 6, 8):
                    yield RmsNormBackwardConfig(
                        tile_elements=tile,
                        occupancy=occupancy,
                        tile_columns=piece,
                        num_worker_warps=warps,
                    )


def backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both gradients from what the forward pass has stored."""
    dx, dweight = torch.ops.aten._fused_rms_norm_backward(  # noqa: SLF001 - autograd calls nothing else
        dy, x, [*weight.shape], rstd, weight, [True, True]
    )
    return dx, dweight


def formula(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do it by the formula, for torch.compile to fuse."""
    dx, dweight = MODULE.reference(dy.float(), x.float(), weight.float(), eps)
    return dx.to(x.dtype), dweight.to(weight.dtype)


def peers(args: tuple[Any, ...], params: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Return what does the same, and a copy of the same bytes."""
    dy, x, weight, eps = args
    rstd = (x.float().square().mean(-1, keepdim=True) + eps).rsqrt()
    fused = compiled(formula)
    return {
        "torch": lambda: backward(dy, x, weight, rstd),
        "compile": lambda: fused(dy, x, weight, eps),
        **copies_of(MODULE.work(**params)),
    }
