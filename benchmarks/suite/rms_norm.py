"""RMSNorm: TileGym's bench_rmsnorm.py (4096 rows of 1024 to 16384, eps 1e-5) and its peers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.suite._peers import compiled, copy_of, has_tilegym
from kernels import rms_norm as MODULE  # noqa: N812
from kernels.rms_norm import RmsNormConfig, _case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_cutile import Case

_TILEGYM = [
    _case(dtype, 4096, n, eps=1e-5, speed=True)
    for dtype in ("float16", "bfloat16")
    for n in (1024, 2048, 4096, 8192, 16384)
]
_TIMED = [case for case in MODULE.SPEC.cases if case.speed]
CASES: tuple[Case, ...] = tuple({case.name: case for case in (*_TIMED, *_TILEGYM)}.values())

TILEGYM_MODES = ("static_persistent", "multi_wave_reload", "multi_wave_cached")


def configs(arch: str, **params: Any) -> Iterator[RmsNormConfig]:
    """Yield one block per tile of rows or looping ones, tiles of one row or several, with TMA and without."""
    del arch
    row = 1 << (params["shape"][-1] - 1).bit_length()
    # Rows longer than the aim are tiles by themselves, whatever the aim.
    for tile in sorted({max(row, tile) for tile in (2048, 4096, 8192)}):
        # More than 64 elements a thread do not fit in registers; fewer than 8 are less than one load.
        for warps in (4, 8):
            if not 8 <= tile / (32 * warps) <= 64:
                continue
            eight_warps_from = 1 if warps == 8 else tile + 1
            for occupancy in (None, 2, 4, 8, 16) if warps == 4 else (None, 1, 2, 4, 8):
                yield RmsNormConfig(
                    tile_elements=tile, occupancy=occupancy, eight_warps_from=eight_warps_from
                )
            yield RmsNormConfig(
                tile_elements=tile, occupancy=4, store_tma=True, eight_warps_from=eight_warps_from
            )
            for blocks, load_tma in ((1, True), (2, True), (3, True), (4, True), (4, False), (8, False)):
                yield RmsNormConfig(
                    tile_elements=tile,
                    blocks_per_sm=blocks,
                    occupancy=blocks,
                    load_tma=load_tma,
                    eight_warps_from=eight_warps_from,
                )


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
    fused = compiled(eager)
    found: dict[str, Callable[[], object]] = {
        "torch": lambda: eager(x, weight, eps, residual),
        "compile": lambda: fused(x, weight, eps, residual),
        "copy": copy_of(MODULE.work(**params)),
    }
    if has_tilegym() and residual is None:
        import tilegym

        theirs = partial(tilegym.ops.rms_norm, x, tuple(weight.shape), weight, eps, backend="cutile")
        found["tilegym"] = theirs
        for mode in TILEGYM_MODES:
            found[f"tilegym_{mode}"] = partial(theirs, mode=mode)
    return found
