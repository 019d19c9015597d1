"""Times of kernels that run launch after launch, until power and clock have settled.

How it is measured:

1. Each kernel's launches, on buffers at several places in turn, are a CUDA graph of some 20 ms.
2. A probe replays each graph for 0.2 s. Where power does not limit the clock, times cannot differ from those
   in bursts, and nothing more is measured.
3. The kernels run in turn (A, B, A) without a pause: after a pause, the power controller overshoots. Each
   segment settles for 0.2 s, and then counts for one second.
4. Meanwhile the host reads clock and energy from NVML. The events that are done say of which segment.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pytest_cutile.timing.gpu.nvml import Load
from pytest_cutile.timing.measure import graphs
from pytest_cutile.timing.measure.timed_outputs import TimedLaunch
from pytest_cutile.words.statistics import median
from pytest_cutile.words.timing import Block, LaunchFunction, Skipped, Sustained

REPLAY_US = 20_000.0
"""Time of one replay to aim at."""
MOST_LAUNCHES = 256
"""Most launches of one graph."""
REST_SECONDS = 0.05
"""Rest before the probe: NVML's counters still move for what ran before."""
PROBE_SECONDS = 0.2
SETTLE_SECONDS = 0.2
"""Beginning of a segment that does not count: after another kernel, clock and power need up to 0.15 s."""
KEPT_SECONDS = 1.0
"""Time of a segment that counts: a whole swing of an H200's power controller, of 0.97 s, cancels in the mean
(research/reports/speed-regimes.md, which compares other orders and lengths, too)."""
ORDER = "ABA"
"""Segments of the two kernels, or the same with A and B exchanged, at random; drift acts on both alike."""
PENDING = 400
"""Most replays that wait for the GPU: at about a thousand, a launch blocks the host, which must read NVML."""
POLL_SECONDS = 0.01
LIMITED_SHARE = 0.1
"""Share of the time at the power limit from which power limits a kernel: it is 0.75 to 1 where it does."""
LOW_CLOCK = 0.98
"""Share of the highest clock below which power limits a kernel."""
LEAST_WATTS_SECONDS = 0.3
"""Least time between two steps of the energy counter that a mean power may follow from."""


class Event(Protocol):
    """A CUDA event."""

    def record(self) -> None: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end: Any, /) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One kernel's launches as a graph."""

    replay: Callable[[], None]
    launches: int
    """Launches of one replay."""
    replay_us: float
    """Time of one replay, roughly."""
    graph: Any = None

    def replays(self, seconds: float) -> int:
        return max(1, round(seconds * 1e6 / self.replay_us))


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Successive replays of one lane, by the indices of the events that enclose what counts of them."""

    lane: int
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What NVML said when the events up to `done` had happened."""

    done: int
    seconds: float
    load: Load


@dataclass(frozen=True, kw_only=True)
class Series:
    """Replays that followed each other without a pause."""

    events: Sequence[Event]
    """One before all replays, and one behind each of them."""
    readings: Sequence[Reading]

    def us(self, segment: Segment, launches: int) -> float:
        """Return the mean time per launch in a segment whose replays have so many launches."""
        elapsed = self.events[segment.begin].elapsed_time(self.events[segment.end])
        return elapsed * 1000 / ((segment.end - segment.begin) * launches)

    def within(self, segment: Segment) -> list[Reading]:
        return [reading for reading in self.readings if segment.begin <= reading.done < segment.end]


# -- graphs -------------------------------------------------------------------------------------------


def make_lanes(launches: Sequence[Sequence[LaunchFunction]]) -> list[Lane]:
    """Capture a graph for each kernel. They share memory for outputs, since they run one after the other."""
    lanes: list[Lane] = []
    for copies in launches:
        for launch in copies[:2]:  # the first one compiles
            launch()
        pool = lanes[0].graph.pool() if lanes else None
        lanes.append(_make_lane(copies, graphs.time_once(copies[0]), pool))
    return lanes


def _make_lane(copies: Sequence[LaunchFunction], us: float, pool: Any) -> Lane:
    """Capture a graph of launches that take `us` each; the host's part of a short launch may be in it."""
    count = launches_of(us)
    lane = _captured(copies, count, pool)
    longer = launches_of(lane.replay_us / count)
    return _captured(copies, longer, pool) if longer > 2 * count else lane


def launches_of(us: float) -> int:
    return max(1, min(MOST_LAUNCHES, round(REPLAY_US / us)))


def _captured(copies: Sequence[LaunchFunction], count: int, pool: Any) -> Lane:
    def record() -> None:
        for index in range(count):
            copies[index % len(copies)]()

    graph = graphs.capture(record, pool=pool)
    for launch in copies:
        if isinstance(launch, TimedLaunch):
            launch.repeat = graph.replay
    graph.replay()
    return Lane(replay=graph.replay, launches=count, replay_us=graphs.time_once(graph.replay), graph=graph)


# -- replays ------------------------------------------------------------------------------------------


def run(lanes: Sequence[Lane], order: Sequence[int], read: Callable[[], Load]) -> Series:
    """Replay lanes in this order without a pause, and read clock and counters meanwhile."""
    marks: Sequence[Event] = graphs.events(len(order) + 1)
    readings = [Reading(done=0, seconds=time.perf_counter(), load=read())]
    marks[0].record()
    enqueued = done = 0
    while not marks[len(order)].query() or enqueued < len(order):
        while enqueued < len(order) and enqueued - done < PENDING:
            lanes[order[enqueued]].replay()
            enqueued += 1
            marks[enqueued].record()
        while done < enqueued and marks[done + 1].query():
            done += 1
        readings.append(Reading(done=done, seconds=time.perf_counter(), load=read()))
        time.sleep(POLL_SECONDS)
    return Series(events=marks, readings=readings)


def probe_plan(lanes: Sequence[Lane]) -> tuple[list[int], list[Segment]]:
    """Return the order of the replays of a probe, and each lane's second half."""
    return _plan(lanes, list(range(len(lanes))), PROBE_SECONDS / 2, PROBE_SECONDS / 2)


def segment_plan(lanes: Sequence[Lane], *, exchanged: bool) -> tuple[list[int], list[Segment]]:
    """Return the order of the replays of a measurement, and what counts of each segment."""
    turns = [0] if len(lanes) == 1 else [int((name == "B") != exchanged) for name in ORDER]
    return _plan(lanes, turns, SETTLE_SECONDS, KEPT_SECONDS)


def _plan(
    lanes: Sequence[Lane], turns: Sequence[int], settle_seconds: float, kept_seconds: float
) -> tuple[list[int], list[Segment]]:
    order: list[int] = []
    segments: list[Segment] = []
    for lane in turns:
        begin = len(order) + lanes[lane].replays(settle_seconds)
        end = begin + lanes[lane].replays(kept_seconds)
        order += [lane] * (end - len(order))
        segments.append(Segment(lane=lane, begin=begin, end=end))
    return order, segments


# -- what power does ----------------------------------------------------------------------------------


def why_skipped(series: Series, segments: Sequence[Segment], highest_mhz: float | None) -> Skipped | None:
    """Return why these kernels need not, or cannot, be timed sustained; None if power limits one."""
    shares = [share for segment in segments if (share := _limited_share(series.within(segment))) is not None]
    clocks = [clock for segment in segments if (clock := _clock_mhz(series, [segment])) is not None]
    if not shares and not clocks:
        return Skipped(reason="NVML tells neither the clock nor how long power has limited it")
    if max(shares, default=0.0) > LIMITED_SHARE:
        return None
    if not clocks:
        return Skipped(reason="not limited by power, says NVML's counter", not_limited=True)
    seen = [reading.load.sm_clock_mhz or 0.0 for reading in series.readings]
    if min(clocks) < LOW_CLOCK * max(highest_mhz or 0.0, *seen):
        return None
    return Skipped(
        reason=f"not limited by power: the SM clock stays at {min(clocks):.0f} MHz", not_limited=True
    )


def _limited_share(readings: Sequence[Reading]) -> float | None:
    """Return the share of the time at the power limit; None where NVML does not say."""
    if len(readings) < 2:  # noqa: PLR2004 - a difference needs two
        return None
    first, last = readings[0], readings[-1]
    if first.load.power_limited_ns is None or last.load.power_limited_ns is None:
        return None
    return (last.load.power_limited_ns - first.load.power_limited_ns) * 1e-9 / (last.seconds - first.seconds)


def _clock_mhz(series: Series, segments: Sequence[Segment]) -> float | None:
    """Return the median clock within segments; None where it is not known."""
    clocks = [
        clock
        for segment in segments
        for reading in series.within(segment)
        if (clock := reading.load.sm_clock_mhz) is not None
    ]
    return median(clocks) if clocks else None


def _watts(series: Series, segments: Sequence[Segment]) -> float | None:
    """Return the mean power within segments; None where it is not known.

    The energy counter moves in steps, so each segment counts from its first step to its last one.
    """
    joules = seconds = 0.0
    for segment in segments:
        steps: list[tuple[float, int]] = []
        previous: int | None = None
        for reading in series.within(segment):
            energy = reading.load.energy_mj
            if energy is not None and previous is not None and energy != previous:
                steps.append((reading.seconds, energy))
            previous = energy
        if len(steps) > 1 and steps[-1][0] - steps[0][0] >= LEAST_WATTS_SECONDS:
            joules += (steps[-1][1] - steps[0][1]) * 1e-3
            seconds += steps[-1][0] - steps[0][0]
    return joules / seconds if seconds else None


# -- the measurement ----------------------------------------------------------------------------------


def measure(
    lanes: Sequence[Lane], read: Callable[[], Load], *, highest_mhz: float | None, always: bool
) -> Sustained | Skipped:
    """Time lanes sustained, if power limits one of them or `always`."""
    time.sleep(REST_SECONDS)
    order, segments = probe_plan(lanes)
    skipped = why_skipped(run(lanes, order, read), segments, highest_mhz)
    if skipped is not None and not always:
        return skipped
    order, segments = segment_plan(lanes, exchanged=random.random() < 0.5)  # noqa: S311, PLR2004
    return evaluate(run(lanes, order, read), segments, [lane.launches for lane in lanes])


def evaluate(series: Series, segments: Sequence[Segment], launches: Sequence[int]) -> Sustained:
    current = [segment for segment in segments if segment.lane == 0]
    baseline = [segment for segment in segments if segment.lane == 1]
    block = Block(
        current_us=tuple(series.us(segment, launches[0]) for segment in current),
        baseline_us=tuple(series.us(segment, launches[1]) for segment in baseline),
    )
    return Sustained(
        blocks=(block,),
        current_clock_mhz=_clock_mhz(series, current),
        baseline_clock_mhz=_clock_mhz(series, baseline),
        current_watts=_watts(series, current),
        baseline_watts=_watts(series, baseline),
    )
