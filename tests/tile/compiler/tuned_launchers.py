"""Launchers that search for their fastest configuration, in the ways that projects do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import cuda.tile as ct
import torch
from cuda.tile.tune import exhaustive_search

SPACE = [SimpleNamespace(tile=64, occupancy=1), SimpleNamespace(tile=48, occupancy=1), {"tile": 32}]
"""The second cannot be compiled: 48 is no power of two."""


@ct.kernel
def tuned_kernel(x, y, out, tile: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(out, (i,), ct.load(x, (i,), (tile,)) + ct.load(y, (i,), (tile,)))


def value(configuration: Any, name: str) -> Any:
    return configuration.get(name) if isinstance(configuration, dict) else getattr(configuration, name)


def add_tuned(x: torch.Tensor, space: Any = SPACE, **of_search: Any) -> torch.Tensor:
    """Add `x` to itself with the configuration that a search returns."""
    out = torch.empty_like(x)

    def hints(configuration: Any) -> dict[str, Any]:
        return {"occupancy": value(configuration, "occupancy")}

    best = exhaustive_search(
        space,
        torch.cuda.current_stream(),
        lambda configuration: (ct.cdiv(x.numel(), value(configuration, "tile")),),
        of_search.pop("kernel", tuned_kernel),
        # A tuner writes to memory of its own, which is no operation of the launcher.
        of_search.pop("args", lambda configuration: (x, x, x.clone(), value(configuration, "tile"))),
        hints,
        quiet=True,
    ).best.config
    grid = (ct.cdiv(x.numel(), value(best, "tile")),)
    kernel = tuned_kernel.replace_hints(**hints(best))
    ct.launch(torch.cuda.current_stream(), grid, kernel, (x, x, out, value(best, "tile")))
    return out


def add_timed(x: torch.Tensor, tiles: Any = (64, 128, 32)) -> torch.Tensor:
    """Add `x` to itself with the tile that a loop with events finds the fastest."""
    out = torch.empty_like(x)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def launch(tile: int) -> None:
        ct.launch(torch.cuda.current_stream(), (ct.cdiv(x.numel(), tile),), tuned_kernel, (x, x, out, tile))

    def milliseconds(tile: int) -> float:
        launch(tile)  # a warm-up
        begin.record()
        for _ in range(3):
            launch(tile)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    launch(min(tiles, key=milliseconds))
    return out


def add_and_time(x: torch.Tensor) -> torch.Tensor:
    """Add `x` to itself, and say how long it took."""
    out = torch.empty_like(x)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    ct.launch(torch.cuda.current_stream(), (ct.cdiv(x.numel(), 64),), tuned_kernel, (x, x, out, 64))
    torch.cuda.current_stream().record_event(end)
    assert begin.elapsed_time(end) == 1.0
    return out
