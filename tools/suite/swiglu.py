"""SwiGLU: TileGym's bench_swiglu.py (batches 1, 4, 8; 128 and 4096 rows; three dtypes) and its peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kernels import swiglu as MODULE  # noqa: N812
from kernels.swiglu import SwigluConfig, _case
from tools.suite._peers import COPIES, has_tilegym, torch_peers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_cutile import Case

TILEGYM = [
    _case(dtype, batch, m, n, speed=True)
    for dtype in ("float16", "bfloat16", "float32")
    for batch in (1, 4, 8)
    for m in (128, 4096)
    for n in (1024, 2048, 4096, 8192, 16384)
]
_TIMED = [case for case in MODULE.SPEC.cases if case.speed]
CASES: tuple[Case, ...] = tuple({case.name: case for case in (*_TIMED, *TILEGYM)}.values())
PEERS = ("torch", "compile", *COPIES, "tilegym")


def configs(arch: str, **params: Any) -> Iterator[SwigluConfig]:
    """Yield tiles of one to eight 16-byte loads a thread, with as many blocks as registers hold."""
    del arch, params
    for warps in (4, 8):
        for loads in (1, 2, 4, 8):
            # About 8 registers a load are live, of 65536 an SM.
            most = min(2048 // (warps * 32), max(1, 65536 // (warps * 32 * max(32, 16 * loads))))
            for occupancy in (None, most, max(1, most // 2), max(1, most // 4)):
                yield SwigluConfig(
                    tile_bytes=16 * loads * warps * 32, occupancy=occupancy, num_worker_warps=warps
                )


def eager(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Do it as a PyTorch user would."""
    return torch.nn.functional.silu(a) * b


def peers(args: tuple[Any, ...], params: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Return what does the same, and a copy of the same bytes."""
    a, b = args
    peer_launches = torch_peers(eager, args, MODULE.work(**params))
    if has_tilegym() and a.is_contiguous() and b.is_contiguous():
        import tilegym

        theirs = tilegym.ops.get_swiglu(backend="cutile")
        peer_launches["tilegym"] = lambda: theirs(a, b)
    return peer_launches
