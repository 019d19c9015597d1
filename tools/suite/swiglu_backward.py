"""SwiGLU's gradients: the gates of models, and what torch's own operators do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kernels import swiglu_backward as MODULE  # noqa: N812
from kernels.swiglu_backward import _case
from tools.suite import swiglu
from tools.suite._peers import COPIES, compiled, copies_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_cutile import Case

_TIMED = [case for case in MODULE.SPEC.cases if case.speed]
_MODELS = [
    _case("bfloat16", 4096, 14336, speed=True),
    *(_case("bfloat16", m, 18944, speed=True) for m in (4096, 8192)),
]
CASES: tuple[Case, ...] = (*_TIMED, *_MODELS)
PEERS = ("torch", "compile", *COPIES)
configs = swiglu.configs


def eager(dy: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Call the operators that torch's autograd calls for `silu(a) * b`, of which silu(a) would be stored."""
    return torch.ops.aten.silu_backward(dy * b, a), dy * torch.nn.functional.silu(a)


def formula(dy: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Do it by the formula, for torch.compile to fuse."""
    da, db = MODULE.reference(dy.float(), a.float(), b.float())
    return da.to(a.dtype), db.to(b.dtype)


def peers(args: tuple[Any, ...], params: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Return what does the same, and a copy of the same bytes."""
    fused = compiled(formula)
    return {
        "torch": lambda: eager(*args),
        "compile": lambda: fused(*args),
        **copies_of(MODULE.work(**params)),
    }
