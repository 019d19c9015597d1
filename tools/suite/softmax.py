"""Softmax: TileGym's bench_softmax.py (4096 rows of 1024 to 16384, four variants) and its peers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from kernels import softmax as MODULE  # noqa: N812
from kernels.softmax import SoftmaxConfig, _case
from tools.suite._peers import COPIES, has_tilegym, torch_peers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_cutile import Case

TILEGYM = [
    _case(dtype, 4096, n, speed=True)
    for dtype in ("float32", "bfloat16")
    for n in (1024, 2048, 4096, 8192, 16384)
]
# Rows that no power of two holds: models' widths, and the vocabulary of Qwen 2.5.
_PIECES = [
    _case("bfloat16", 16384, 3072, speed=True),
    _case("bfloat16", 16384, 5120, speed=True),
    _case("bfloat16", 8192, 7168, speed=True),
    _case("bfloat16", 8193, 1000, speed=True),
    _case("bfloat16", 512, 151936, speed=True),
]
_TIMED = [case for case in MODULE.SPEC.cases if case.speed]
CASES: tuple[Case, ...] = tuple({case.name: case for case in (*_TIMED, *_PIECES, *TILEGYM)}.values())

TILEGYM_VARIANTS = ("use_tma", "use_chunked", "use_multi_wave")
PEERS = ("torch", "compile", *COPIES, "tilegym", *(f"tilegym_{variant}" for variant in TILEGYM_VARIANTS))


def configs(arch: str, **params: Any) -> Iterator[SoftmaxConfig]:
    """Yield rows in registers (one row a tile or several) and in chunks, any number of blocks per SM."""
    del arch
    row = 1 << (params["n"] - 1).bit_length()
    spaces: list[tuple[int, dict[str, int]]] = [
        (chunk, {"max_row": 1, "chunk": chunk}) for chunk in (4096, 8192, 16384) if chunk < row
    ]
    if row <= 32768:
        # Rows longer than the aim are tiles by themselves, whatever the aim.
        tiles = sorted({max(row, tile) for tile in (2048, 4096, 8192)})
        spaces += [(tile, {"max_row": row, "tile_elements": tile}) for tile in tiles]
    for elements, space in spaces:
        # More than 128 elements a thread do not fit in registers; fewer than 8 are less than one load.
        for warps in (4, 8):
            if not 8 <= elements / (32 * warps) <= 128:
                continue
            for occupancy in (None, 2, 4, 8, 16) if warps == 4 else (None, 1, 2, 4, 8):
                yield SoftmaxConfig(**space, occupancy=occupancy, num_worker_warps=warps)


def peers(args: tuple[Any, ...], params: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Return what does the same, and a copy of the same bytes."""
    (x,) = args
    eager = partial(torch.softmax, dim=1)
    peer_launches = torch_peers(eager, args, MODULE.work(**params))
    if has_tilegym():
        import tilegym

        peer_launches["tilegym"] = partial(tilegym.ops.softmax, x, backend="cutile")
        for variant in TILEGYM_VARIANTS:
            peer_launches[f"tilegym_{variant}"] = partial(
                tilegym.ops.softmax, x, backend="cutile", **{variant: True}
            )
    return peer_launches
