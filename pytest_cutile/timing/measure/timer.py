"""The default timer. A burst is a CUDA graph of [flush L2, event, launch, event], replayed for some 10 ms.

`sustained.py` measures the other regime.
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from pytest_cutile.tile.compiler.toolchain import CompilerMissing, toolchain_versions
from pytest_cutile.timing.gpu import condition, nvml
from pytest_cutile.timing.measure import graphs, sustained
from pytest_cutile.timing.measure.reference_workload import REFERENCE_WORKLOADS
from pytest_cutile.timing.measure.timed_outputs import TimedLaunch
from pytest_cutile.words.quantities import format_time
from pytest_cutile.words.timing import (
    LONGEST_BURST_US,
    Device,
    LaunchFunction,
    ReferenceWorkload,
    Skipped,
    Sustained,
    Timer,
    TooLong,
)

FLUSH_FACTOR = 4
"""The flush writes this many times the L2 cache, so that nothing of the inputs is left in it."""
BURST_SECONDS = 0.011
"""GPU time of one burst. Under longer load an H200 lowers its clock."""
REPLAY_SECONDS = 0.002
"""GPU time of one replay to aim at, so that several fit into a burst."""
MOST_ROUNDS = 8
"""Most rounds of all launches in one replay."""
LEAST_REPLAYS = 4
"""Replays of a block that are kept; those of long launches are spread over several bursts. The first replay
of a burst is not kept: clock and memory react to the pause before it."""
TICK_US = 0.5
"""Resolution of event times by NVIDIA's documentation, "around 0.5 microseconds" (CUDA Runtime API, Event
Management, cudaEventElapsedTime). An H200's is 0.032 us, as its times show."""
LEAST_TICK_US = 0.001
"""Smaller differences are rounding: times are float32 milliseconds."""
REST_SECONDS = 0.03
"""Least pause between two bursts: what the host does meanwhile counts."""
CLOCK_SECONDS = 0.2
"""Longest wait for the clock to return to its maximum, after that pause."""
FULL_CLOCK = 0.97
"""Share of the highest clock seen that counts as full."""
MOST_FUTILE_WAITS = 3
"""Waits in a row without a rising clock, after which there are no more: the GPU lowers its clock at rest."""
SETTLE_SECONDS = 0.5
"""Least time under load before the first block of a process, unless the clock is full already: an idle H200
starts at 345 MHz."""
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

    def __init__(self, device: Device, *, longest_us: float = LONGEST_BURST_US) -> None:
        """Make a timer; `longest_us` limits launches of `time_block`, for tools without another regime."""
        self._device = device
        self._longest_us = longest_us
        self._highest_under_load = 0
        self._highest_mhz = 0.0
        self._futile_waits = 0
        self._tick_us = TICK_US
        self._backward = False
        self._warm = False
        self._last_burst = -math.inf

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
        state = nvml.read_state()
        self._highest_under_load = max(self._highest_under_load, condition.clock_under_load(state))
        return condition.problems(state, self._highest_under_load)

    def unseen(self) -> Sequence[str]:
        return condition.unseen(nvml.read_state())

    def sm_clock_mhz(self) -> float | None:
        return self._seen(nvml.sm_clock_mhz())

    def _seen(self, clock_mhz: float | None) -> float | None:
        self._highest_mhz = max(self._highest_mhz, clock_mhz or 0.0)
        return clock_mhz

    @property
    def tick_us(self) -> float:
        """The smallest difference between two times so far, at most the documented resolution."""
        return self._tick_us

    def reference_workload(self, bound: str) -> ReferenceWorkload | None:
        """Make the reference workload for kernels limited by `bound`; return None if GPU memory is short."""
        return REFERENCE_WORKLOADS[bound]()

    def time_block(self, launches: Sequence[LaunchFunction]) -> Sequence[Sequence[float]]:
        nvml.keep_loaded()  # it is asked after every placement
        rounds = self._rounds(launches)
        self._backward = not self._backward
        order = _order(len(launches), rounds, backward=self._backward)
        graph, events = self._capture([launches[lane] for lane in order])
        if not self._warm:
            self._settle(graph, events)
        samples: list[list[float]] = [[] for _ in launches]
        for times in self._kept_replays(graph, events, is_long=rounds == 1):
            for lane, value in _kept(order, times):
                samples[lane].append(value)
        for launch in launches:
            if isinstance(launch, TimedLaunch):
                launch.repeat = functools.partial(self._replay, graph, events)
        self._tick_us = min([self._tick_us, *_ticks(itertools.chain(*samples))])
        return samples

    def _kept_replays(
        self, graph: Any, events: list[tuple[Any, Any]], *, is_long: bool
    ) -> Iterator[list[float]]:
        """Yield the times of replays, in one burst, or in several where few replays make one.

        A long replay that takes a whole burst is kept although it follows a pause: its lead is not.
        """
        kept = 0
        while kept < LEAST_REPLAYS:
            self._rest()
            first = self._replay(graph, events)
            more = round(BURST_SECONDS / self._seconds(first)) - 1
            if more < 1 and is_long:
                yield first
                kept += 1
            for _ in range(max(more, 0 if is_long else 1)):
                yield self._replay(graph, events)
                kept += 1
            self._last_burst = time.perf_counter()

    def _rest(self) -> None:
        """Let the GPU rest until its clock is full again: it is low after a load that power has limited."""
        time.sleep(max(0.0, self._last_burst + REST_SECONDS - time.perf_counter()))
        if self._futile_waits >= MOST_FUTILE_WAITS:
            return
        first = clock_mhz = self.sm_clock_mhz() or 0.0
        end = time.perf_counter() + CLOCK_SECONDS
        while clock_mhz < FULL_CLOCK * self._highest_mhz:
            if time.perf_counter() >= end:
                self._futile_waits = self._futile_waits + 1 if clock_mhz <= first else 0
                return
            time.sleep(0.01)
            clock_mhz = self.sm_clock_mhz() or 0.0
        self._futile_waits = 0

    def time_sustained(
        self, launches: Sequence[Sequence[LaunchFunction]], *, always: bool = False
    ) -> Sustained | Skipped:
        import torch

        try:
            lanes = sustained.make_lanes(launches)
            return sustained.measure(lanes, self._read_load, highest_mhz=self._highest_mhz, always=always)
        except torch.OutOfMemoryError as error:
            return Skipped(reason=f"the GPU's memory is too small: {error}")
        finally:
            self._last_burst = time.perf_counter()

    def _read_load(self) -> nvml.Load:
        load = nvml.read_load()
        self._seen(load.sm_clock_mhz)
        return load

    def _seconds(self, times_us: Sequence[float]) -> float:
        """Return how long a replay with these launches keeps the GPU busy, the flushes included."""
        return (sum(times_us) + len(times_us) * self._flush_us) * 1e-6

    def _rounds(self, launches: Sequence[LaunchFunction]) -> int:
        """Return the number of rounds in one replay, and warm the launches up.

        Raises:
            TooLong: a launch takes longer than `longest_us`.
        """
        times = []
        for launch in launches:
            launch()  # the first one compiles
            us = graphs.time_once(launch)
            # The host may have been late.
            times.append(min(us, graphs.time_once(launch)) if us < 10 * LONGEST_BURST_US else us)
        if max(times) > self._longest_us:
            limit = format_time(self._longest_us)
            raise TooLong(f"a launch takes {format_time(max(times))}; in bursts it may take {limit}")
        one = (sum(times) + len(launches) * self._flush_us) * 1e-6
        rounds = max(1, min(MOST_ROUNDS, int(REPLAY_SECONDS / one)))
        # Even, so that an effect of odd and even positions meets all launches alike.
        return rounds if rounds == 1 else rounds - rounds % 2

    @cached_property
    def _flush_us(self) -> float:
        return min(graphs.time_once(self._flush_buffer.zero_) for _ in range(5))

    @cached_property
    def _flush_buffer(self) -> Any:
        import torch

        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        return torch.empty(max(FLUSH_FACTOR * l2_bytes, 1 << 26), dtype=torch.int8, device="cuda")

    def _capture(self, launches: Sequence[LaunchFunction]) -> tuple[Any, list[tuple[Any, Any]]]:
        import torch

        flush = self._flush_buffer
        new_event: Callable[[], Any] = functools.partial(torch.cuda.Event, enable_timing=True, external=True)
        events = [(new_event(), new_event()) for _ in launches]

        def record() -> None:
            for launch, (start, end) in zip(launches, events, strict=True):
                flush.zero_()
                start.record()
                launch()
                end.record()

        return graphs.capture(record), events

    def _replay(self, graph: Any, events: list[tuple[Any, Any]]) -> list[float]:
        import torch

        graph.replay()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1000 for start, end in events]

    def _settle(self, graph: Any, events: list[tuple[Any, Any]]) -> None:
        """Replay until the medians of two successive windows agree: the clock rises over many replays."""
        clock_mhz, most_mhz = self.sm_clock_mhz(), self.device.max_sm_clock_mhz
        is_awake = clock_mhz is not None and most_mhz is not None and clock_mhz >= FULL_CLOCK * most_mhz
        least = 0.0 if is_awake else SETTLE_SECONDS
        start = time.perf_counter()
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


def _order(lanes: int, rounds: int, *, backward: bool = False) -> list[int]:
    """Return the order of the launches: a lead, rounds forward and backward in turn (ABBA), then an end.

    In ABBA order a launch follows itself as often as it follows the other one. One round alone is as good, if
    every other block starts backward. Lead and end are not kept: the lead follows a pause, and the last
    launch of a graph reads longer than one that another follows. The end is the current kernel, whose outputs
    are compared when the samples are taken.
    """
    turns = [list(range(lanes)), list(range(lanes))[::-1]]
    if backward:
        turns.reverse()
    order = [lane for turn in range(rounds) for lane in turns[turn % 2]]
    return [order[0], *order, 0]


def _kept(order: Sequence[int], times: Sequence[float]) -> Iterator[tuple[int, float]]:
    return zip(order[1:-1], times[1:-1], strict=True)


def _ticks(times: Iterable[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise(sorted(times)) if b - a > LEAST_TICK_US]
