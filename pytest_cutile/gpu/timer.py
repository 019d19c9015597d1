"""The default timer: a CUDA graph of [flush L2, event, launch, event], replayed with the clock settled."""

from __future__ import annotations

import functools
import importlib.metadata
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from pytest_cutile.core.timing import Device, TimingError
from pytest_cutile.core.toolchain import CompilerMissing, toolchain_versions
from pytest_cutile.gpu import nvml

FLUSH_FACTOR = 4
"""The flush writes this many times the L2 cache, so that nothing of the inputs is left in it."""
LAUNCHES_PER_REPLAY = 10
"""Launches in one graph: enough to keep the GPU busy between the host's synchronisations."""
BLOCKS = 6
"""Replays that are kept, spread over time: the clock wanders in steps of tens of milliseconds."""
SECONDS_BETWEEN_BLOCKS = 0.01
WARM_UP_LAUNCHES = 3
"""Plain launches first: the first one compiles."""
SETTLE_SECONDS_FIRST = 0.5
"""Least time under load before the first case: an idle H200 starts at 345 MHz."""
SETTLE_SECONDS = 0.05
"""Least time under load before every further case."""
SETTLE_LIMIT_SECONDS = 2.0
WINDOW_SECONDS = 0.04
"""The clock reacts to a change of load over tens of milliseconds: medians are compared over so much."""
SETTLED = 0.005
"""The clock counts as settled when the medians of successive windows agree within this fraction."""


class CudaGraphTimer:
    """Times launches on the first visible GPU with CUDA events inside a CUDA graph.

    Events inside the graph leave out launch overhead and host hiccups; the flush makes every launch
    read from memory, as it does between the other kernels of a model.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._warm = False

    @property
    def device(self) -> Device:
        """The GPU that is measured."""
        return self._device

    def environment(self) -> Mapping[str, str]:
        """Return driver, CUDA, power limit, compiler and library versions."""
        environment = nvml.driver_environment()
        environment["torch"] = importlib.metadata.version("torch")
        try:
            environment.update(toolchain_versions())
        except CompilerMissing:
            environment["tileiras"] = "missing"
        return environment

    def problems(self) -> Sequence[str]:
        """Return why a figure taken now must not become a baseline."""
        return nvml.recording_problems()

    def time_launch(self, launch: Callable[[], object]) -> Sequence[float]:
        """Return the GPU time of one call of `launch` in microseconds, BLOCKS x LAUNCHES_PER_REPLAY samples.

        Raises:
            TimingError: `launch` cannot be captured into a CUDA graph.
        """
        import torch

        for _ in range(WARM_UP_LAUNCHES):
            launch()
        torch.cuda.synchronize()
        graph, events = self._capture(launch)
        self._settle(graph, events)
        samples: list[float] = []
        for _ in range(BLOCKS):
            time.sleep(SECONDS_BETWEEN_BLOCKS)
            self._replay(graph, events)  # the clock reacts to the pause: this replay is not kept
            samples += self._replay(graph, events)
        return samples

    @cached_property
    def _flush_buffer(self) -> Any:
        import torch

        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        return torch.empty(max(FLUSH_FACTOR * l2_bytes, 1 << 26), dtype=torch.int8, device="cuda")

    def _capture(self, launch: Callable[[], object]) -> tuple[Any, list[tuple[Any, Any]]]:
        import torch

        flush = self._flush_buffer
        new_event: Any = functools.partial(torch.cuda.Event, enable_timing=True, external=True)
        events = [(new_event(), new_event()) for _ in range(LAUNCHES_PER_REPLAY)]
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph):
                for start, end in events:
                    flush.zero_()
                    start.record()
                    launch()
                    end.record()
        except RuntimeError as error:
            if "captur" not in str(error):
                raise
            raise TimingError(
                f"the launch cannot be captured into a CUDA graph, so it cannot be timed: {error}\n"
                "Launch code must not read values back from the GPU (.item(), .tolist(), synchronize) and "
                "must launch on torch.cuda.current_stream()."
            ) from error
        finally:
            torch.cuda.set_stream(stream)  # a capture that failed leaves torch on its own stream
        return graph, events

    def _replay(self, graph: Any, events: list[tuple[Any, Any]]) -> list[float]:
        import torch

        graph.replay()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1000 for start, end in events]

    def _settle(self, graph: Any, events: list[tuple[Any, Any]]) -> None:
        """Replay until the medians of two successive windows agree: the clock drifts over many replays."""
        start = time.perf_counter()
        least = SETTLE_SECONDS if self._warm else SETTLE_SECONDS_FIRST
        before = 0.0
        while (began := time.perf_counter()) - start < SETTLE_LIMIT_SECONDS:
            window: list[float] = []
            while time.perf_counter() - began < WINDOW_SECONDS:
                window += self._replay(graph, events)
            now = statistics.median(window)
            if before and abs(now / before - 1) < SETTLED and time.perf_counter() - start > least:
                break
            before = now
        self._warm = True
