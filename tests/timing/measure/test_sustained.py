"""What follows from replays that a pretended GPU does."""

import functools
import random
from types import SimpleNamespace

import pytest

from pytest_cutile import Skipped, Sustained
from pytest_cutile.timing.gpu.nvml import Load
from pytest_cutile.timing.measure import graphs, sustained
from pytest_cutile.timing.measure.sustained import (
    KEPT_SECONDS,
    MOST_LAUNCHES,
    PENDING,
    PROBE_SECONDS,
    SETTLE_SECONDS,
    Lane,
    launches_of,
    measure,
    segment_plan,
)


class Gpu:
    """A GPU whose replays end one after the other, and whose time passes as the host sleeps.

    `clock`, `watts` and `limited` say what it does while a lane runs; None: NVML does not say.
    """

    def __init__(self, *replay_us, launches=10):
        self.now = 0.0
        self.free_at = 0.0
        self.ran: list[int] = []
        self.begins: list[float] = []
        self.lanes = [
            Lane(replay=functools.partial(self.replay, lane), launches=launches, replay_us=us)
            for lane, us in enumerate(replay_us)
        ]
        self.clock = [1980.0, 1980.0]
        self.watts: list[float] | None = [500.0, 600.0]
        self.limited: list[float] | None = [0.0, 0.0]
        self.most_pending = 0
        self.idle = 0.0

    def replay(self, lane):
        begin = max(self.free_at, self.now)
        if self.ran:
            self.idle += begin - self.free_at
        self.free_at = begin + self.lanes[lane].replay_us * 1e-6
        self.ran.append(lane)
        self.begins.append(begin)
        self.most_pending = max(self.most_pending, sum(at > self.now for at in self.begins))

    def event(self):
        gpu = self
        mark = SimpleNamespace(at=0.0)
        mark.record = lambda: setattr(mark, "at", max(gpu.free_at, gpu.now))
        mark.query = lambda: mark.at <= gpu.now
        mark.elapsed_time = lambda end: (end.at - mark.at) * 1e3
        return mark

    def sleep(self, seconds):
        self.now += seconds

    def read(self):
        self.now += 0.001
        running = [lane for lane, at in zip(self.ran, self.begins, strict=True) if at <= self.now]
        clock = self.clock[running[-1]] if running else 1980.0
        seconds = [0.0, 0.0]
        for lane, at in zip(self.ran, self.begins, strict=True):
            seconds[lane] += max(0.0, min(self.now - at, self.lanes[lane].replay_us * 1e-6))

        def total(rates, scale):
            if rates is None:
                return None
            return int(scale * sum(rate * part for rate, part in zip(rates, seconds, strict=True)))

        return Load(
            sm_clock_mhz=clock,
            energy_mj=total(self.watts, 1e3),
            power_limited_ns=total(self.limited, 1e9),
        )


@pytest.fixture
def gpu(monkeypatch):
    gpu = Gpu(20_000.0, 22_000.0)
    monkeypatch.setattr(graphs, "events", lambda count: [gpu.event() for _ in range(count)])
    monkeypatch.setattr(sustained, "time", SimpleNamespace(perf_counter=lambda: gpu.now, sleep=gpu.sleep))
    monkeypatch.setattr(random, "random", lambda: 0.9)
    return gpu


def measured(gpu, *, always=False, lanes=2):
    return measure(gpu.lanes[:lanes], gpu.read, highest_mhz=1980.0, always=always)


def test_kernels_that_power_limits_are_timed_in_turn(gpu):
    gpu.limited = [1.0, 1.0]
    gpu.clock = [1500.0, 1450.0]
    result = measured(gpu)
    assert isinstance(result, Sustained)
    (block,) = result.blocks
    assert block.current_us == pytest.approx([2000.0, 2000.0])
    assert block.baseline_us == pytest.approx([2200.0])
    assert (result.current_clock_mhz, result.baseline_clock_mhz) == (1500.0, 1450.0)
    assert result.current_watts == pytest.approx(500, rel=0.02)
    assert result.baseline_watts == pytest.approx(600, rel=0.02)
    assert gpu.idle < 0.05  # between the probe and the segments


def test_the_order_is_exchanged_at_random(gpu, monkeypatch):
    monkeypatch.setattr(random, "random", lambda: 0.1)
    result = measured(gpu, always=True)
    assert isinstance(result, Sustained)
    assert result.blocks[0].current_us == pytest.approx([2000.0])
    assert result.blocks[0].baseline_us == pytest.approx([2200.0, 2200.0])


def test_a_kernel_without_a_baseline_is_timed_alone(gpu):
    result = measured(gpu, always=True, lanes=1)
    assert isinstance(result, Sustained)
    assert result.blocks[0].current_us == pytest.approx([2000.0])
    assert result.blocks[0].baseline_us == ()
    assert (result.baseline_clock_mhz, result.baseline_watts) == (None, None)


def test_what_power_does_not_limit_is_skipped_after_the_probe(gpu):
    assert measured(gpu) == Skipped(
        reason="not limited by power: the SM clock stays at 1980 MHz", not_limited=True
    )
    assert gpu.now < 2 * PROBE_SECONDS + 0.2


@pytest.mark.parametrize("lane", [0, 1])
def test_one_limited_kernel_is_enough(gpu, lane):
    gpu.limited[lane] = 0.5
    assert isinstance(measured(gpu), Sustained)


@pytest.mark.parametrize("lane", [0, 1])
def test_a_low_clock_is_enough(gpu, lane):
    gpu.limited = None
    gpu.clock[lane] = 1900.0
    assert isinstance(measured(gpu), Sustained)


def test_where_nvml_tells_nothing_nothing_is_measured(gpu):
    gpu.limited = gpu.watts = None
    gpu.clock = [None, None]
    gpu.read = lambda: Load(sm_clock_mhz=None, energy_mj=None, power_limited_ns=None)
    result = measured(gpu)
    assert isinstance(result, Skipped)
    assert result.reason.startswith("NVML tells neither the clock")
    forced = measured(gpu, always=True)
    assert isinstance(forced, Sustained)
    assert (forced.current_clock_mhz, forced.current_watts) == (None, None)


def test_short_replays_do_not_fill_the_queue(gpu):
    gpu.lanes[:] = [
        Lane(replay=lane.replay, launches=1000, replay_us=us)
        for lane, us in zip(gpu.lanes, (4000.0, 4400.0), strict=True)
    ]
    result = measured(gpu, always=True)
    assert isinstance(result, Sustained)
    assert gpu.most_pending <= PENDING
    assert gpu.idle < 0.05
    assert result.blocks[0].current_us == pytest.approx([4.0, 4.0])


def test_a_kernel_of_seconds_runs_twice_a_segment(gpu):
    gpu.lanes[:] = [Lane(replay=lane.replay, launches=1, replay_us=2e6) for lane in gpu.lanes]
    order, segments = segment_plan(gpu.lanes, exchanged=False)
    assert order == [0, 0, 1, 1, 0, 0]
    assert [(s.begin, s.end) for s in segments] == [(1, 2), (3, 4), (5, 6)]
    assert isinstance(measured(gpu, always=True), Sustained)


def test_a_segment_settles_before_it_counts(gpu):
    _, segments = segment_plan(gpu.lanes, exchanged=False)
    settle, kept = round(SETTLE_SECONDS / 0.02), round(KEPT_SECONDS / 0.02)
    assert (segments[0].begin, segments[0].end) == (settle, settle + kept)
    assert [s.lane for s in segments] == [0, 1, 0]


@pytest.mark.parametrize(("us", "count"), [(1.0, MOST_LAUNCHES), (200.0, 100), (15_000.0, 1), (2e6, 1)])
def test_a_replay_takes_some_20_ms(us, count):
    assert launches_of(us) == count


def test_a_graph_cycles_through_the_copies_and_is_made_again_where_the_host_was_late(monkeypatch):
    class Graph:
        def __init__(self, record):
            made.clear()
            record()
            self.launched = made[:]

        def pool(self):
            return "pool"

        def replay(self):
            pass

    made: list[int] = []
    captured = []

    def capture(record, pool=None):
        captured.append((Graph(record), pool))
        return captured[-1][0]

    def time_once(launch):
        if getattr(launch, "__name__", "") == "replay":
            return 100.0 * len(captured[-1][0].launched)
        return 2000.0  # of which 1900 are the host's

    monkeypatch.setattr(graphs, "capture", capture)
    monkeypatch.setattr(graphs, "time_once", time_once)
    copies = [lambda copy=copy: made.append(copy) for copy in range(3)]
    lanes = sustained.make_lanes([copies, copies])
    assert [lane.launches for lane in lanes] == [200, 200]
    assert lanes[0].graph.launched[:4] == [0, 1, 2, 0]
    assert [pool for _, pool in captured] == [None, None, "pool", "pool"]
