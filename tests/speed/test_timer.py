"""The timer's arithmetic; what it does on a GPU is tested there."""

import functools
import itertools
from collections import Counter
from types import SimpleNamespace

import pytest

from pytest_cutile.gpu import condition, nvml
from pytest_cutile.speed.measure import timer as module
from pytest_cutile.speed.measure.timer import (
    BLOCK_SECONDS,
    LEAST_REPLAYS,
    MOST_ROUNDS,
    SETTLE_LIMIT_SECONDS,
    SETTLE_SECONDS,
    WINDOW_SECONDS,
    CudaGraphTimer,
    _kept,
    _order,
)
from pytest_cutile.speed.measure.timing import Device


@pytest.mark.parametrize("rounds", range(1, MOST_ROUNDS + 1))
@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_each_launch_takes_as_many_turns(lanes, rounds):
    order = _order(lanes, rounds)
    kept = [lane for lane, _ in _kept(order, [0.0] * len(order), rounds)]
    assert Counter(kept) == dict.fromkeys(range(lanes), rounds)
    assert order[0] in range(lanes)
    for turn in range(rounds):  # nobody is timed twice before all others were
        assert sorted(kept[turn * lanes : (turn + 1) * lanes]) == [*range(lanes)]


@pytest.mark.parametrize("rounds", range(2, MOST_ROUNDS + 1))
def test_what_is_kept_neither_follows_a_pause_nor_ends_a_graph(rounds):
    order = _order(2, rounds)
    positions = [at for _, at in _kept(order, [*range(len(order))], rounds)]
    assert positions == [*range(1, len(order) - 1)]


@pytest.mark.parametrize("rounds", range(2, MOST_ROUNDS + 1, 2))
def test_two_launches_are_at_odd_and_even_positions_alike(rounds):
    order = _order(2, rounds)
    kept = Counter((lane, at % 2) for lane, at in _kept(order, [*range(len(order))], rounds))
    assert set(kept.values()) == {rounds / 2}


@pytest.mark.parametrize("rounds", range(2, MOST_ROUNDS + 1))
def test_two_launches_follow_themselves_as_often_as_each_other(rounds):
    follows = Counter(itertools.pairwise(_order(2, rounds)[:-1]))
    assert abs(follows[0, 0] - follows[1, 1]) <= 1
    assert abs(follows[1, 0] - follows[0, 1]) <= 1


def test_drift_acts_on_both_alike():
    order = _order(2, 4)[1:-1]
    positions = [[at for at, lane in enumerate(order) if lane == which] for which in (0, 1)]
    assert sum(positions[0]) == sum(positions[1])


class PretendTimer(CudaGraphTimer):
    """Captures and replays nothing: every launch of `lanes` takes `us`, its flush `flush_us`."""

    _flush_us = 20.0

    def __init__(self, *us, rounds=4):
        super().__init__(Device(arch="sm_90", name="NVIDIA H200"))
        self.us = us
        self.rounds = rounds
        self.order: list[int] = []
        self.replays = 0
        self.settled = 0

    def _rounds(self, launches):
        assert len(launches) == len(self.us)
        return self.rounds

    def _capture(self, launches):
        self.order = [launch() for launch in launches]
        return None, []

    def _replay(self, graph, events):
        del graph, events
        self.replays += 1
        slow = 1.0 if self.replays > 1 else 3.0  # the first one follows a pause
        return [self.us[lane] * slow for lane in self.order]

    def _settle(self, graph, events):
        del graph, events
        self.settled += 1
        self._warm = True

    def time(self):
        self.replays = 0
        return self.time_block([functools.partial(int, lane) for lane in range(len(self.us))])


@pytest.mark.parametrize("us", [(40.0,), (40.0, 50.0), (5000.0, 100.0)])
def test_samples_are_each_launchs_own_and_the_first_replay_is_left_out(us):
    timer = PretendTimer(*us)
    samples = timer.time()
    assert [set(lane) for lane in samples] == [{value} for value in us]
    assert {len(lane) for lane in samples} == {(timer.replays - 1) * timer.rounds}


@pytest.mark.parametrize(("us", "flush_us"), [(1.0, 0.1), (10.0, 20.0), (100.0, 20.0), (300.0, 100.0)])
def test_a_block_takes_its_time_flushes_included(monkeypatch, us, flush_us):
    monkeypatch.setattr(PretendTimer, "_flush_us", flush_us)
    timer = PretendTimer(us)
    timer.time()
    replay = (2 + timer.rounds) * (us + flush_us) * 1e-6
    first = replay + (2 + timer.rounds) * 2 * us * 1e-6  # the slow one, which the number is taken from
    assert BLOCK_SECONDS / first - 0.51 <= timer.replays <= BLOCK_SECONDS / replay + 0.51


def test_a_launch_longer_than_a_block_is_still_measured():
    timer = PretendTimer(50_000.0, rounds=1)
    assert timer.time() == [[50_000.0] * (LEAST_REPLAYS - 1)]


def test_the_clock_settles_once_in_a_process():
    timer = PretendTimer(40.0)
    timer.time()
    timer.time()
    assert timer.settled == 1


def test_reference_workloads_are_made_once_even_where_there_is_none(monkeypatch):
    made = []
    monkeypatch.setattr(
        module, "REFERENCE_WORKLOADS", {bound: lambda b=bound: made.append(b) for bound in ("TFLOPS", "GB/s")}
    )
    timer = PretendTimer(40.0)
    assert [timer.reference_workload(bound) for bound in ("TFLOPS", "TFLOPS", "GB/s")] == [None] * 3
    assert made == ["TFLOPS", "GB/s"]


@pytest.mark.parametrize(
    ("time_us", "least", "most"),
    [
        (lambda _: 40.0, SETTLE_SECONDS, SETTLE_SECONDS + 2 * WINDOW_SECONDS),
        (lambda now: 40.0 * (2.0 if now < 1.0 else 1.0), SETTLE_SECONDS, 1.0),  # slow, but steadily so
        (lambda now: 80.0 - 40.0 * min(now, 1.2), 1.2, 1.2 + 3 * WINDOW_SECONDS),  # rising clock
        (lambda now: 40.0 * 1.01 ** (100 * now), SETTLE_LIMIT_SECONDS, SETTLE_LIMIT_SECONDS + WINDOW_SECONDS),
    ],
    ids=["steady", "low", "rising", "never"],
)
def test_the_clock_counts_as_settled_when_windows_agree(monkeypatch, time_us, least, most):
    now = 0.0

    def replay(*_):
        nonlocal now
        now += 0.002
        return [time_us(now)] * 3

    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now))
    timer = CudaGraphTimer(Device(arch="sm_90", name="NVIDIA H200"))
    monkeypatch.setattr(timer, "_replay", replay)
    timer._settle(None, [])
    assert least <= now <= most + 0.01


def test_what_a_clock_is_compared_with_is_kept_from_look_to_look(monkeypatch):
    monkeypatch.setattr(nvml, "keep_loaded", lambda: None)
    monkeypatch.setattr(nvml, "read_state", lambda: None)
    looks: list[condition.HighestClocks] = []
    monkeypatch.setattr(condition, "problems", lambda _, highest: looks.append(highest))
    timer = CudaGraphTimer(Device(arch="sm_121", name="NVIDIA GB10"))
    timer.problems()
    timer.problems()
    assert looks[0] is looks[1]
