"""RMSNorm: TileGym's bench_rmsnorm.py (4096 rows of 1024 to 16384, eps 1e-5) and its peers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from kernels import rms_norm as MODULE  # noqa: N812
from kernels.rms_norm import RmsNormConfig, _case
from tools.suite._peers import COPIES, has_tilegym, torch_peers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_cutile import Case

TILEGYM = [
    _case(dtype, 4096, n, eps=1e-5, speed=True)
    for dtype in ("float16", "bfloat16")
    for n in (1024, 2048, 4096, 8192, 16384)
]
# Widths that are no power of two: Llama 3.2 3B, Qwen 2.5 32B, DeepSeek-V3; groups of rows that do not fit.
_PIECES = [
    _case("bfloat16", 16384, 3072, speed=True),
    _case("bfloat16", 16384, 5120, speed=True),
    _case("bfloat16", 8192, 7168, speed=True),
    _case("bfloat16", 8192, 7168, add=True, speed=True),
    _case("bfloat16", 8193, 1024, speed=True),
]
_TIMED = [case for case in MODULE.SPEC.cases if case.speed]
CASES: tuple[Case, ...] = tuple({case.name: case for case in (*_TIMED, *_PIECES, *TILEGYM)}.values())

TILEGYM_MODES = ("static_persistent", "multi_wave_reload", "multi_wave_cached")
PEERS = ("torch", "compile", *COPIES, "tilegym", *(f"tilegym_{mode}" for mode in TILEGYM_MODES))


def configs(arch: str, **params: Any) -> Iterator[RmsNormConfig]:
    """Yield tiles of one row or several, any number of blocks per SM."""
    del arch
    row = 1 << (params["shape"][-1] - 1).bit_length()
    # Rows longer than the aim are tiles by themselves, whatever the aim.
    for tile in sorted({max(row, tile) for tile in (2048, 4096, 8192)}):
        # More than 64 elements a thread do not fit in registers; fewer than 8 are less than one load.
        for warps in (4, 8):
            if not 8 <= tile / (32 * warps) <= 64:
                continue
            for occupancy in (None, 2, 4, 8, 16) if warps == 4 else (None, 1, 2, 4, 8):
                yield RmsNormConfig(tile_elements=tile, occupancy=occupancy, num_worker_warps=warps)


def eager(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Do it as a PyTorch user would."""
    h = x if residual is None else x + residual
    y = torch.nn.functional.rms_norm(h, weight.shape, weight, eps)
    return y if residual is None else (y, h)


def peers(args: tuple[Any, ...], params: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Return what does the same, and a copy of the same bytes."""
    x, weight, eps, residual = (*args, None)[:4]
    peer_launches = torch_peers(eager, (x, weight, eps, residual), MODULE.work(**params))
    if has_tilegym() and residual is None:
        import tilegym

        theirs = partial(tilegym.ops.rms_norm, x, tuple(weight.shape), weight, eps, backend="cutile")
        peer_launches["tilegym"] = theirs
        for mode in TILEGYM_MODES:
            peer_launches[f"tilegym_{mode}"] = partial(theirs, mode=mode)
    return peer_launches
