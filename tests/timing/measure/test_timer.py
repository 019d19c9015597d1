"""The timer's arithmetic; what it does on a GPU is tested there."""

import functools
import itertools
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pytest_cutile.timing.gpu import nvml
from pytest_cutile.timing.measure import graphs, sustained
from pytest_cutile.timing.measure import timer as module
from pytest_cutile.timing.measure.timer import (
    BURST_SECONDS,
    CLOCK_SECONDS,
    LEAST_REPLAYS,
    MOST_FUTILE_WAITS,
    MOST_ROUNDS,
    REST_SECONDS,
    SETTLE_LIMIT_SECONDS,
    SETTLE_SECONDS,
    TICK_US,
    WINDOW_SECONDS,
    CudaGraphTimer,
    _kept,
    _order,
)
from pytest_cutile.words.timing import LONGEST_BURST_US, Device, Skipped, TooLong

H200 = Device(arch="sm_90", name="NVIDIA H200")

# -- order --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("rounds", range(1, MOST_ROUNDS + 1))
@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_each_launch_takes_as_many_turns(lanes, rounds, backward):
    order = _order(lanes, rounds, backward=backward)
    kept = [lane for lane, _ in _kept(order, [0.0] * len(order))]
    assert Counter(kept) == dict.fromkeys(range(lanes), rounds)
    assert order[0] in range(lanes)
    for turn in range(rounds):  # nobody is timed twice before all others were
        assert sorted(kept[turn * lanes : (turn + 1) * lanes]) == [*range(lanes)]


@pytest.mark.parametrize("rounds", range(1, MOST_ROUNDS + 1))
def test_what_is_kept_neither_follows_a_pause_nor_ends_a_graph(rounds):
    order = _order(2, rounds)
    positions = [at for _, at in _kept(order, [*range(len(order))])]
    assert positions == [*range(1, len(order) - 1)]


@pytest.mark.parametrize("rounds", range(2, MOST_ROUNDS + 1, 2))
def test_two_launches_are_at_odd_and_even_positions_alike(rounds):
    order = _order(2, rounds)
    kept = Counter((lane, at % 2) for lane, at in _kept(order, [*range(len(order))]))
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


def test_one_round_is_balanced_by_the_next_block():
    assert _order(2, 1) == [0, 0, 1, 0]
    assert _order(2, 1, backward=True) == [1, 1, 0, 0]  # the current kernel ends it


# -- bursts -------------------------------------------------------------------------------------------


class PretendTimer(CudaGraphTimer):
    """Captures and replays nothing: every launch of `lanes` takes `us`, its flush `flush_us`."""

    _flush_us = 20.0

    def __init__(self, *us, rounds=4):
        super().__init__(H200)
        self.us = us
        self.rounds = rounds
        self.orders: list[list[int]] = []
        self.log: list[str] = []
        self.settled = 0

    def _rounds(self, launches):
        assert len(launches) == len(self.us)
        return self.rounds

    def _capture(self, launches):
        self.orders.append([launch() for launch in launches])
        return None, []

    def _replay(self, graph, events):
        del graph, events
        slow = 3.0 if self.log[-1] == "rest" and self.rounds > 1 else 1.0
        self.log.append("replay")
        return [self.us[lane] * slow for lane in self.orders[-1]]

    def _rest(self):
        self.log.append("rest")

    def _settle(self, graph, events):
        del graph, events
        self.settled += 1
        self._warm = True

    def time(self):
        self.log.clear()
        return self.time_block([functools.partial(int, lane) for lane in range(len(self.us))])

    @property
    def bursts(self):
        """Numbers of replays between two rests."""
        return [len(part.split()) for part in " ".join(self.log).split("rest")[1:]]


@pytest.mark.parametrize("us", [(40.0,), (40.0, 50.0), (1000.0, 100.0)])
def test_samples_are_each_launchs_own_and_replays_after_a_pause_are_left_out(us):
    timer = PretendTimer(*us)
    samples = timer.time()
    assert [set(lane) for lane in samples] == [{value} for value in us]
    kept = sum(burst - 1 for burst in timer.bursts)
    assert {len(lane) for lane in samples} == {kept * timer.rounds}
    assert kept >= LEAST_REPLAYS


@pytest.mark.parametrize(("us", "flush_us"), [(1.0, 0.1), (10.0, 20.0), (100.0, 20.0), (250.0, 50.0)])
def test_a_block_is_one_burst_flushes_included(monkeypatch, us, flush_us):
    monkeypatch.setattr(PretendTimer, "_flush_us", flush_us)
    timer = PretendTimer(us)
    timer.time()
    replay = (2 + timer.rounds) * (us + flush_us) * 1e-6
    first = replay + (2 + timer.rounds) * 2 * us * 1e-6  # the slow one, which the number is taken from
    assert BURST_SECONDS / first - 0.51 <= timer.bursts[0] <= BURST_SECONDS / replay + 0.51


@pytest.mark.parametrize(
    ("us", "bursts"),
    [
        (600.0, [6]),  # replays of 1.8 ms
        (1200.0, [3, 3]),  # of 3.6 ms
        (1800.0, [2, 2, 2, 2]),
        (4000.0, [1, 1, 1, 1]),  # their leads follow the pauses
    ],
)
def test_long_launches_are_spread_over_bursts(us, bursts):
    timer = PretendTimer(us, rounds=1)
    samples = timer.time()
    assert timer.bursts == bursts
    assert len(samples[0]) == sum(max(1, burst - 1) for burst in bursts)


def test_blocks_start_forward_and_backward_in_turn():
    timer = PretendTimer(2000.0, 2000.0, rounds=1)
    for _ in range(4):
        timer.time()
    assert timer.orders == [[1, 1, 0, 0], [0, 0, 1, 0]] * 2


def test_the_clock_settles_once_in_a_process():
    timer = PretendTimer(40.0)
    timer.time()
    timer.time()
    assert timer.settled == 1


def test_the_tick_is_the_smallest_difference_seen():
    timer = PretendTimer(40.0, 40.0)
    timer.time()
    assert timer.tick_us == TICK_US  # equal times say nothing
    timer.us = (40.0, 40.032)
    timer.time()
    assert timer.tick_us == pytest.approx(0.032)
    timer.us = (40.0, 40.0005)  # rounding
    timer.time()
    assert timer.tick_us == pytest.approx(0.032)


@pytest.mark.parametrize(
    ("us", "rounds"), [((10.0,), 8), ((100.0, 100.0), 8), ((300.0, 200.0), 2), ((900.0, 900.0), 1)]
)
def test_as_many_rounds_as_fit_into_a_replay(monkeypatch, us, rounds):
    launched: list[int] = []
    monkeypatch.setattr(graphs, "time_once", lambda launch: (launch(), us[launched[-1]])[1])
    timer = CudaGraphTimer(H200)
    monkeypatch.setattr(CudaGraphTimer, "_flush_us", 20.0)
    launches = [functools.partial(launched.append, lane) for lane in range(len(us))]
    assert timer._rounds(launches) == rounds
    assert Counter(launched) == dict.fromkeys(range(len(us)), 3)


@pytest.mark.parametrize(("times", "is_long"), [([9000.0, 4000.0], False), ([6000.0, 5500.0], True)])
def test_a_launch_counts_as_long_only_where_the_host_was_not_late(monkeypatch, times, is_long):
    left = iter(times)
    monkeypatch.setattr(graphs, "time_once", lambda _: next(left))
    monkeypatch.setattr(CudaGraphTimer, "_flush_us", 20.0)
    timer = CudaGraphTimer(H200)
    if is_long:
        with pytest.raises(TooLong, match=r"a launch takes 5\.5 ms; in bursts it may take 5 ms"):
            timer._rounds([int])
    else:
        assert timer._rounds([int]) == 1
    assert LONGEST_BURST_US == 5000.0


# -- clocks -------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """The time, which only sleeping moves, and the clock of the SMs as a function of it."""
    state = SimpleNamespace(now=0.0, mhz=lambda _: 1980.0)

    def sleep(seconds):
        state.now += seconds

    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: state.now, sleep=sleep))
    monkeypatch.setattr(nvml, "sm_clock_mhz", lambda: state.mhz(state.now))
    return state


def rested(timer, clock) -> float:
    """Return how long the timer rests right after a burst."""
    before = timer._last_burst = clock.now
    timer._rest()
    return float(clock.now - before)


def test_a_full_clock_needs_a_short_rest(clock):
    assert rested(CudaGraphTimer(H200), clock) == pytest.approx(REST_SECONDS)


def test_what_the_host_does_after_a_burst_is_rest(clock):
    timer = CudaGraphTimer(H200)
    timer._last_burst = clock.now
    clock.now += 0.8 * REST_SECONDS
    before = clock.now
    timer._rest()
    assert clock.now - before == pytest.approx(0.2 * REST_SECONDS)


def test_a_burst_waits_for_the_full_clock(clock):
    timer = CudaGraphTimer(H200)
    timer.sm_clock_mhz()
    clock.mhz = lambda now: 1500.0 if now < 0.1 else 1935.0
    assert rested(timer, clock) == pytest.approx(0.1, abs=0.011)


def test_a_burst_does_not_wait_for_ever(clock):
    timer = CudaGraphTimer(H200)
    timer.sm_clock_mhz()
    clock.mhz = lambda now: 1500.0 + 10 * now
    for _ in range(MOST_FUTILE_WAITS + 1):
        assert rested(timer, clock) == pytest.approx(REST_SECONDS + CLOCK_SECONDS, abs=0.011)


def test_a_gpu_that_lowers_its_clock_at_rest_is_not_waited_for_again(clock):
    timer = CudaGraphTimer(H200)
    timer.sm_clock_mhz()
    clock.mhz = lambda _: 345.0
    waits = [rested(timer, clock) for _ in range(MOST_FUTILE_WAITS + 2)]
    assert [wait > CLOCK_SECONDS for wait in waits] == [True] * MOST_FUTILE_WAITS + [False] * 2


def test_an_unknown_clock_is_not_waited_for(clock):
    clock.mhz = lambda _: None
    assert rested(CudaGraphTimer(H200), clock) == pytest.approx(REST_SECONDS)


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
def test_the_clock_counts_as_settled_when_windows_agree(clock, monkeypatch, time_us, least, most):
    def replay(*_):
        clock.now += 0.002
        return [time_us(clock.now)] * 3

    clock.mhz = lambda _: 345.0
    timer = CudaGraphTimer(H200)
    monkeypatch.setattr(timer, "_replay", replay)
    timer._settle(None, [])
    assert least <= clock.now <= most + 0.01


def test_a_gpu_at_its_full_clock_is_settled_when_two_windows_agree(clock, monkeypatch):
    def replay(*_):
        clock.now += 0.002
        return [40.0]

    timer = CudaGraphTimer(replace(H200, max_sm_clock_mhz=1980))
    monkeypatch.setattr(timer, "_replay", replay)
    timer._settle(None, [])
    assert clock.now == pytest.approx(2 * WINDOW_SECONDS, abs=0.005)


# -- workloads, sustained -----------------------------------------------------------------------------


def test_a_gpu_short_of_memory_measures_nothing_sustained(monkeypatch):
    def short(_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(sustained, "make_lanes", short)
    skipped = CudaGraphTimer(H200).time_sustained([[int]])
    assert isinstance(skipped, Skipped)
    assert "memory is too small" in skipped.reason


def test_clocks_read_while_sustained_count_as_seen(monkeypatch):
    load = nvml.Load(sm_clock_mhz=1965.0, energy_mj=None, power_limited_ns=None)
    monkeypatch.setattr(nvml, "read_load", lambda: load)
    timer = CudaGraphTimer(H200)
    assert timer._read_load() is load
    assert timer._highest_mhz == 1965.0
