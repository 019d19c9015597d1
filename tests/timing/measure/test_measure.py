"""How a measurement is put together, with timers that pretend."""

import math
from dataclasses import replace

import pytest

from pytest_cutile import Block, Device, ReferenceWorkload, Regime, Skipped, Sustained, Timer, TooLong, Work
from pytest_cutile.gates.speed.protocol import Answers, ProcessFiles, Timed
from pytest_cutile.timing.measure.blocks import (
    LEAST_PLACEMENTS,
    PLACEMENTS,
    measure,
)
from pytest_cutile.timing.measure.call import Call, MeasurementFailed
from pytest_cutile.words.platforms.lookup import find_platform
from pytest_cutile.words.timing import TimingError
from pytest_cutile.words.verdicts import Reason

STEADY = Sustained(
    blocks=(Block(current_us=(51.0, 53.0), baseline_us=(50.0,)),),
    current_clock_mhz=1500.0,
    baseline_clock_mhz=1530.0,
    current_watts=690.0,
    baseline_watts=688.5,
)


class Pretend(Timer):
    """Says that a launch takes as long as it returns."""

    device = Device(arch="sm_90", name="NVIDIA H200")

    def __init__(self, *, steady=None, workload_us=None, limit_us=math.inf):
        self.steady = steady
        self.workload_us = workload_us
        self.limit_us = limit_us
        self.asked: list[tuple[int, bool]] = []
        self.blocks = 0
        self.doubts = iter([["busy"], [], ["busy"], ["hot"]])

    def time_block(self, launches):
        self.blocks += 1
        times = [launch() for launch in launches]
        if max(times) > self.limit_us:
            raise TooLong("too long")
        return [[us] * 3 for us in times]

    def time_sustained(self, launches, *, always=False):
        self.asked.append((len(launches), always))
        return self.steady or super().time_sustained(launches, always=always)

    def reference_workload(self, bound):
        if self.workload_us is None:
            return None
        return ReferenceWorkload(name=f"copy for {bound}", launch=lambda: self.workload_us)

    def problems(self):
        return next(self.doubts, [])

    def sm_clock_mhz(self):
        return 1980.0


def times(us):
    return us


def twice(us):
    return 2 * us


def timed(timer, us=40.0, **options):
    return measure(timer, "k[c]", Work(bytes=1e6), Call(times, (us,)), **options)


def test_two_kernels_are_compared_in_both_regimes():
    timer = Pretend(steady=STEADY, workload_us=70.0)
    measurement = timed(timer, baseline=twice)
    assert measurement.log_ratio(Regime.BURST) == pytest.approx(math.log(0.5))
    assert measurement.log_ratio(Regime.SUSTAINED) == pytest.approx(math.log(52 / 50))
    assert (measurement.burst_us, measurement.baseline_us(Regime.BURST)) == (40.0, 80.0)
    assert len(measurement.burst) == PLACEMENTS
    assert (measurement.reference_workload, measurement.workload_us) == ("copy for GB/s", 70.0)
    assert (measurement.sustained, measurement.sustained_skipped) == (STEADY, None)
    assert timer.asked == [(2, False)]
    assert measurement.problems == ("busy", "hot")
    assert measurement.clock_mhz == 1980.0


def test_long_kernels_have_fewer_placements():
    assert len(timed(Pretend(), 20_000.0).burst) == LEAST_PLACEMENTS


def test_the_reference_workload_is_timed_once_in_a_process():
    timer = Pretend(workload_us=70.0)
    first = timed(timer)
    blocks = timer.blocks
    assert timed(timer).workload_us == first.workload_us == 70.0
    assert (blocks, timer.blocks) == (PLACEMENTS + 1, 2 * PLACEMENTS + 1)


@pytest.mark.parametrize("workload_us", [None, math.nan, 9000.0])
def test_a_reference_workload_that_cannot_be_timed_is_left_out(workload_us):
    measurement = timed(Pretend(workload_us=workload_us, limit_us=5000.0))
    assert (measurement.reference_workload, measurement.workload_us) == ("", None)


def test_a_reference_workload_that_cannot_be_made_is_asked_for_once(monkeypatch):
    timer = Pretend()
    asked: list[str] = []
    monkeypatch.setattr(timer, "reference_workload", asked.append)
    timed(timer)
    timed(timer)
    assert asked == ["GB/s"]


def test_where_the_regimes_cannot_differ_the_reason_is_kept():
    skipped = Skipped(reason="the SM clock stays at 1980 MHz", not_limited=True)
    measurement = timed(Pretend(steady=skipped))
    assert (measurement.sustained, measurement.sustained_skipped) == (None, skipped)
    assert timed(Pretend()).sustained_skipped == Skipped(reason="the timer measures bursts only")


def test_sustained_is_not_measured_unasked():
    timer = Pretend(steady=STEADY)
    measurement = timed(timer, sustained=False)
    assert timer.asked == []
    assert (measurement.sustained, measurement.sustained_skipped) == (None, None)


@pytest.mark.parametrize("sustained", [True, False])
def test_a_kernel_too_long_for_a_burst_is_always_measured_sustained(sustained):
    timer = Pretend(steady=STEADY, limit_us=5000.0)
    measurement = timed(timer, 6000.0, baseline=twice, sustained=sustained)
    assert timer.asked == [(2, True)]
    assert (measurement.burst, measurement.regimes) == ((), (Regime.SUSTAINED,))


def test_a_baseline_too_long_for_a_burst_is_enough():
    assert timed(Pretend(steady=STEADY, limit_us=5000.0), 3000.0, baseline=twice).burst == ()


def test_a_kernel_that_fits_no_regime_is_not_measured():
    with pytest.raises(MeasurementFailed, match=r"k\[c\]: .*the timer measures bursts only") as caught:
        timed(Pretend(limit_us=5000.0), 6000.0)
    assert caught.value.reason is Reason.NOT_TIMED


@pytest.mark.parametrize("samples", [[], [math.nan], [0.0], [-1.0], [math.inf, 1.0]])
@pytest.mark.parametrize("side", [0, 1])
def test_impossible_times_are_refused(samples, side):
    class Broken(Pretend):
        def time_block(self, launches):
            good = super().time_block(launches)
            return [samples if lane == side else values for lane, values in enumerate(good)]

    with pytest.raises(MeasurementFailed, match=r"not between 0\.1 ns and 1000 s") as caught:
        timed(Broken(), baseline=twice)
    assert caught.value.reason is Reason.BAD_SAMPLES


def test_the_impossible_times_among_good_ones_are_shown():
    class Broken(Pretend):
        def time_block(self, launches):
            return [[*super().time_block(launches)[0], math.nan, -2.0]]

    with pytest.raises(MeasurementFailed, match=r"returned nan, -2\.0 as times"):
        timed(Broken())


@pytest.mark.parametrize(
    "block",
    [Block(current_us=(1.0,)), Block(current_us=(), baseline_us=(1.0,)), Block(current_us=(math.nan,))],
)
def test_impossible_sustained_times_are_refused(block):
    with pytest.raises(MeasurementFailed, match=r"not between 0\.1 ns and 1000 s"):
        timed(Pretend(steady=Sustained(blocks=(block,))), baseline=twice)


def test_times_of_too_few_launches_are_refused():
    class Broken(Pretend):
        def time_block(self, launches):
            return super().time_block(launches)[:1]

    with pytest.raises(MeasurementFailed, match="times of 1 launches, not of 2"):
        timed(Broken(), baseline=twice)


def test_a_rate_above_the_limit_is_refused():
    with pytest.raises(MeasurementFailed, match=r"is above what NVIDIA H200 can do") as caught:
        measure(Pretend(), "k[c]", Work(bytes=1.34e8), Call(times, (27.0,)))
    assert caught.value.reason is Reason.ABOVE_LIMIT


def test_a_launch_that_cannot_be_timed_says_why():
    def broken(us):
        raise TimingError(f"no capture at {us}")

    with pytest.raises(MeasurementFailed, match=r"k\[c\]: no capture at 40") as caught:
        timed(Pretend(), baseline=broken)
    assert caught.value.reason is Reason.NOT_TIMED


@pytest.mark.parametrize("steady", [None, STEADY])
def test_a_measurement_travels_to_another_process(steady, tmp_path):
    measurement = timed(Pretend(steady=steady, workload_us=70.0), baseline=twice)
    like = timed(Pretend())
    assert like.platform == find_platform("NVIDIA H200")
    files = ProcessFiles(tmp_path, 1)
    files.answer(Timed(key="k[c]", measurement=replace(measurement, platform=None)))
    answers = Answers(answers=files.answers())
    assert answers.read({"k[c]": like}) == {"k[c]": measurement}
    assert isinstance(answers.read({"k[d]": like})["k[d]"], MeasurementFailed)
