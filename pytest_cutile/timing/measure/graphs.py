"""CUDA graphs of launches, as a timer replays them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pytest_cutile.words.timing import LaunchFunction, Uncapturable


def capture(record: Callable[[], None], *, pool: Any = None) -> Any:
    """Return a CUDA graph of what `record` launches. Graphs of one `pool` must not run at the same time.

    Raises:
        Uncapturable: a launch cannot be captured.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, pool=pool):
            record()
    except RuntimeError as error:
        if "captur" not in str(error) and "CUDAGraph" not in str(error):
            raise
        raise Uncapturable(
            f"the launch cannot be captured into a CUDA graph: {error}\n"
            "Launch code must not read values back from the GPU (.item(), .tolist(), synchronize) and "
            "must launch on torch.cuda.current_stream(). Lists of arrays cannot be captured, tuples can."
        ) from error
    finally:
        torch.cuda.set_stream(stream)  # a capture that failed leaves torch on its own stream
    return graph


def events(count: int) -> list[Any]:
    import torch

    new_event: Callable[[], Any] = functools.partial(torch.cuda.Event, enable_timing=True)
    return [new_event() for _ in range(count)]


def time_once(launch: LaunchFunction) -> float:
    """Return the time of one launch that is not captured, in microseconds, the host's part included."""
    import torch

    start, end = events(2)
    torch.cuda.synchronize()
    start.record()
    launch()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1000
