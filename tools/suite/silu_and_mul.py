"""SiLU-and-mul: TileGym's bench_silu_and_mul.py (hidden size 2048, 1024 to 16384 rows) and its peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kernels import silu_and_mul as MODULE  # noqa: N812
from kernels.silu_and_mul import _case
from tools.suite._peers import COPIES, has_tilegym, torch_peers
from tools.suite.swiglu import configs

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_cutile import Case

__all__ = ["CASES", "MODULE", "PEERS", "configs", "peers"]

TILEGYM = [
    _case(dtype, m, 2 * 2048, speed=True)
    for dtype in ("float16", "float32")
    for m in (1024, 2048, 4096, 8192, 16384)
]
_TIMED = [case for case in MODULE.SPEC.cases if case.speed]
CASES: tuple[Case, ...] = tuple({case.name: case for case in (*_TIMED, *TILEGYM)}.values())
PEERS = ("torch", "compile", *COPIES, "tilegym")


def eager(x: torch.Tensor) -> torch.Tensor:
    """Do it as a PyTorch user would."""
    a, b = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(a) * b


def peers(args: tuple[Any, ...], params: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Return what does the same, and a copy of the same bytes."""
    (x,) = args
    peer_launches = torch_peers(eager, args, MODULE.work(**params))
    if has_tilegym():
        import tilegym

        peer_launches["tilegym"] = lambda: tilegym.ops.silu_and_mul(x, backend="cutile")
    return peer_launches
