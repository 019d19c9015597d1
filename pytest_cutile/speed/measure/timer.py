"""The default timer: a CUDA graph of [flush L2, event, launch, event], replayed."""

from __future__ import annotations

import functools
import importlib.metadata
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from pytest_cutile.compiler.toolchain import CompilerMissing, toolchain_versions
from pytest_cutile.gpu import condition, nvml
from pytest_cutile.speed.measure.reference_workload import REFERENCE_WORKLOADS
from pytest_cutile.speed.measure.timing import Device, Launch, ReferenceWorkload, Timer, TimingError

FLUSH_FACTOR = 4
"""The flush writes this many times the L2 cache, so that nothing of the inputs is left in it."""
BLOCK_SECONDS = 0.011
"""GPU time of one block: eight of them are less than 0.1 s."""
REPLAY_SECONDS = 0.002
"""GPU time of one replay to aim at, so that several fit into a block."""
MOST_ROUNDS = 8
"""Most rounds of all launches in one replay."""
LEAST_REPLAYS = 5
"""Replays of the longest kernels. The first is not kept: clock and memory react to the pause before it."""
WARM_UP_LAUNCHES = 2
"""Plain launches first: the first one compiles."""
SETTLE_SECONDS = 0.5
"""Least time under load before the first block of a process: an idle H200 starts at 345 MHz."""
SETTLE_LIMIT_SECONDS = 2.0
WINDOW_SECONDS = 0.04
"""The clock reacts to a change of load over tens of milliseconds: medians are compared over so much."""
SETTLED = 0.005
"""The clock counts as settled when the medians of successive windows agree within this fraction."""


class CudaGraphTimer(Timer):
    """Times launches on the first visible GPU with CUDA events inside a CUDA graph.

    Events inside the graph leave out launch overhead and host hiccups; the flush makes every launch
    read from memory, as it does between the other kernels of a model.
    """

    def __init__(self, device: Device) -> None:
        nvml.keep_loaded()  # it is asked after every placement
        self._device = device
        self._workloads: dict[str, ReferenceWorkload | None] = {}
        self._highest_clocks = condition.HighestClocks()
        self._warm = False

    @property
    def device(self) -> Device:
        return self._device

    def environment(self) -> Mapping[str, str]:
        return {**nvml.driver_environment(), **self._versions}

    @cached_property
    def _versions(self) -> dict[str, str]:
        versions = {"torch": importlib.metadata.version("torch")}
        try:
            versions.update(toolchain_versions())
        except CompilerMissing:
            versions["tileiras"] = "missing"
        return versions

    def problems(self) -> Sequence[str]:
        return condition.problems(nvml.read_state(), self._highest_clocks)

    def unseen(self) -> Sequence[str]:
        return condition.unseen(nvml.read_state())

    def sm_clock_mhz(self) -> float | None:
        return nvml.sm_clock_mhz()

    def reference_workload(self, bound: str) -> ReferenceWorkload | None:
        """Return the reference workload for kernels limited by `bound`; None if GPU memory is short."""
        if bound not in self._workloads:
            self._workloads[bound] = REFERENCE_WORKLOADS[bound]()
        return self._workloads[bound]

    def time_block(self, launches: Sequence[Launch]) -> Sequence[Sequence[float]]:
        rounds = self._rounds(launches)
        order = _order(len(launches), rounds)
        graph, events = self._capture([launches[lane] for lane in order])
        if not self._warm:
            self._settle(graph, events)
        samples: list[list[float]] = [[] for _ in launches]
        replays = LEAST_REPLAYS
        done = 0
        while done < replays:
            times = self._replay(graph, events)
            if done == 0:
                replays = max(LEAST_REPLAYS, round(BLOCK_SECONDS / self._seconds(times)))
            else:
                for lane, value in _kept(order, times, rounds):
                    samples[lane].append(value)
            done += 1
        return samples

    def _seconds(self, times_us: Sequence[float]) -> float:
        """Return how long a replay with these launches keeps the GPU busy, the flushes included."""
        return (sum(times_us) + len(times_us) * self._flush_us) * 1e-6

    def _rounds(self, launches: Sequence[Launch]) -> int:
        """Return the number of rounds in one replay, and warm the launches up."""
        import torch

        for _ in range(WARM_UP_LAUNCHES):
            for launch in launches:
                launch()
        start, end = _events(2)
        torch.cuda.synchronize()
        start.record()
        for launch in launches:
            launch()
        end.record()
        torch.cuda.synchronize()
        one = start.elapsed_time(end) * 1e-3 + len(launches) * self._flush_us * 1e-6
        rounds = max(1, min(MOST_ROUNDS, int(REPLAY_SECONDS / one)))
        # Even, so that an effect of odd and even positions meets all launches alike.
        return rounds if rounds == 1 else rounds - rounds % 2

    @cached_property
    def _flush_us(self) -> float:
        import torch

        times: list[float] = []
        for _ in range(5):
            start, end = _events(2)
            start.record()
            self._flush_buffer.zero_()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1000)
        return min(times)

    @cached_property
    def _flush_buffer(self) -> Any:
        import torch

        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        return torch.empty(max(FLUSH_FACTOR * l2_bytes, 1 << 26), dtype=torch.int8, device="cuda")

    def _capture(self, launches: Sequence[Launch]) -> tuple[Any, list[tuple[Any, Any]]]:
        import torch

        flush = self._flush_buffer
        new_event: Callable[[], Any] = functools.partial(torch.cuda.Event, enable_timing=True, external=True)
        events = [(new_event(), new_event()) for _ in launches]
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph):
                for launch, (start, end) in zip(launches, events, strict=True):
                    flush.zero_()
                    start.record()
                    launch()
                    end.record()
        except RuntimeError as error:
            if "captur" not in str(error) and "CUDAGraph" not in str(error):
                raise
            raise TimingError(
                f"the launch cannot be captured into a CUDA graph, so it cannot be timed: {error}\n"
                "Launch code must not read values back from the GPU (.item(), .tolist(), synchronize) and "
                "must launch on torch.cuda.current_stream(). Lists of arrays cannot be captured, tuples can."
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
        """Replay until the medians of two successive windows agree: the clock rises over many replays."""
        start = time.perf_counter()
        before = 0.0
        while (began := time.perf_counter()) - start < SETTLE_LIMIT_SECONDS:
            window: list[float] = []
            while time.perf_counter() - began < WINDOW_SECONDS:
                window += self._replay(graph, events)
            now = statistics.median(window)
            if before and abs(now / before - 1) < SETTLED and time.perf_counter() - start > SETTLE_SECONDS:
                break
            before = now
        self._warm = True


def _events(count: int) -> list[Any]:
    import torch

    new_event: Callable[[], Any] = functools.partial(torch.cuda.Event, enable_timing=True)
    return [new_event() for _ in range(count)]


def _order(lanes: int, rounds: int) -> list[int]:
    """Return the order of the launches: a lead, rounds forward and backward in turn (ABBA), then an end.

    In ABBA order a launch follows itself as often as it follows the other one. Lead and end are not kept.
    The lead follows a pause. The last launch of a graph reads 0.3 us longer than one that another follows (a
    memory-bound kernel of 76 us on an H200: 0.3 % slower); kernels of milliseconds need no end.
    """
    forward = list(range(lanes))
    order = [0]
    for turn in range(rounds):
        order += forward if turn % 2 == 0 else forward[::-1]
    return order if rounds == 1 else [*order, 0]


def _kept(order: Sequence[int], times: Sequence[float], rounds: int) -> Iterator[tuple[int, float]]:
    """Yield the launches and times of a replay, without lead and end."""
    stop = len(order) if rounds == 1 else -1
    return zip(order[1:stop], times[1:stop], strict=True)
