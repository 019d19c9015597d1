"""Dropout: TileGym's bench_dropout.py (p = 0.5; 1M to 64M elements) and its peers.

They draw other numbers: PyTorch's are Philox's too, but of a counter that goes on from call to call;
TileGym's are a hash of seed and index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kernels import dropout as MODULE  # noqa: N812
from kernels.dropout import DropoutConfig, _case
from tools.suite._peers import COPIES, has_tilegym, torch_peers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_cutile import Case

TILEGYM = [
    _case(dtype, 2**exponent, speed=True) for dtype in ("float16", "float32") for exponent in (20, 22, 24, 26)
]
_TIMED = [case for case in MODULE.SPEC.cases if case.speed]
CASES: tuple[Case, ...] = tuple({case.name: case for case in (*_TIMED, *TILEGYM)}.values())
PEERS = ("torch", "compile", *COPIES, "tilegym")


def configs(arch: str, **params: Any) -> Iterator[DropoutConfig]:
    """Yield tiles of 4 to 32 elements a thread, with as many blocks as registers hold."""
    del arch, params
    for warps in (4, 8):
        for per_thread in (4, 8, 16, 32):
            tile = per_thread * warps * 32
            # About 3 registers an element are live, of 65536 an SM.
            most = min(2048 // (warps * 32), max(1, 65536 // (warps * 32 * max(32, 3 * per_thread))))
            for occupancy in (None, most, max(1, most // 2)):
                yield DropoutConfig(tile_elements=tile, occupancy=occupancy, num_worker_warps=warps)


def eager(x: torch.Tensor, p: float) -> torch.Tensor:
    """Do it as a PyTorch user would."""
    return torch.nn.functional.dropout(x, p)


def peers(args: dict[str, Any], params: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Return what does the same, with random numbers of its own, and a copy of the same bytes."""
    x, p, seed = args["x"], args["p"], args["seed"]
    peer_launches = torch_peers(eager, (x, p), MODULE.work(**params))
    if has_tilegym() and x.is_contiguous():
        import tilegym

        peer_launches["tilegym"] = lambda: tilegym.ops.dropout(x, seed, p, True, False, backend="cutile")
    return peer_launches
