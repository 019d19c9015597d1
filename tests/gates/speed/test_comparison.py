import math
from dataclasses import replace

import pytest

from pytest_cutile.baselines.entries import Published
from pytest_cutile.gates.speed.comparison import PublishedFigure, StoredTimes
from pytest_cutile.gates.speed.rule import Decision, Rule
from pytest_cutile.words.timing import Block, Regime, Skipped, Sustained
from tests.gates.speed.simulated import RULE, WORK, measured, paired, stored, unpaired

BURST, SUSTAINED = Regime.BURST, Regime.SUSTAINED
PUBLISHED = Published(work=WORK, median_us=100.0, margin=0.15, source="a table")


@pytest.mark.parametrize(
    ("measurement", "suspects"),
    [
        (measured(0.0, 0.0), ()),
        (measured(0.05, 0.0), (BURST,)),
        (measured(0.0, 0.05), (SUSTAINED,)),
        (measured(0.05, 0.05), (BURST, SUSTAINED)),
        (measured(0.05), (BURST,)),
        (measured(-0.05, -0.05), ()),
    ],
)
def test_each_regime_may_be_suspect(measurement, suspects):
    assert paired().suspects(measurement) == suspects


def test_the_same_code_is_never_suspect():
    same = unpaired().of_same_code()
    assert same.suspects(measured(0.5)) == ()
    assert not same.is_faster([measured(-0.5)])


def test_the_tick_of_bursts_hides_no_sustained_slowdown():
    coarse = replace(measured(0.05, 0.05), tick_us=20.0)
    assert paired().suspects(coarse) == (SUSTAINED,)


def test_a_regime_is_cleared_only_if_each_process_saw_that_power_does_not_limit_it():
    unknown = replace(measured(0.0), sustained_skipped=Skipped(reason="NVML tells nothing"))
    assert paired().decide([measured(0.0)] * 2, SUSTAINED) is Decision.CLEAR
    assert paired().decide([measured(0.0), unknown], SUSTAINED) is Decision.UNDECIDED


def test_stored_times_alone_show_an_improvement_beyond_a_plain_margin():
    assert not unpaired().is_faster([measured(-0.04)])
    assert unpaired().is_faster([measured(-0.08)])


def test_noisy_placements_are_suspect():
    assert paired().suspects(measured(-0.01, scatter=0.05)) == (BURST,)


def test_what_acts_on_both_kernels_is_no_change():
    comparison = paired(stored=stored())
    assert comparison.suspects(measured(0.0, 0.0, baseline=0.3)) == ()
    assert comparison.change([measured(0.0, 0.0, baseline=0.3)]) == pytest.approx(0, abs=1e-3)


def test_the_change_shown_is_that_of_the_worst_regime():
    assert paired().change([measured(0.01, 0.08)]) == pytest.approx(0.08, abs=1e-3)
    assert paired().change([measured(0.01, 0.08)], BURST) == pytest.approx(0.01, abs=1e-3)
    assert paired().change([measured(0.01)], SUSTAINED) is None


def test_a_regime_that_no_process_measured_has_no_estimate():
    assert paired().estimate([measured(0.01)], SUSTAINED) is None


@pytest.mark.parametrize(
    ("measurement", "faster"),
    [
        (measured(-0.1), True),
        (measured(-0.1, -0.1), True),
        (measured(-0.1, 0.01), False),
        (measured(-0.01), False),
        (measured(0.0), False),
    ],
)
def test_faster_in_one_regime_and_slower_in_none_is_an_improvement(measurement, faster):
    assert paired().is_faster([measurement] * 3) is faster


# -- stored times -------------------------------------------------------------------------------------


def test_stored_times_are_compared_by_regime():
    changes = unpaired().stored_log_ratios(measured(0.1, 0.2))
    assert changes[BURST] == pytest.approx(math.log(1.1), abs=1e-3)
    assert changes[SUSTAINED] == pytest.approx(math.log(1.2), abs=1e-3)


def test_what_the_reference_workload_lost_is_taken_off():
    slow_gpu = measured(0.1, workload=0.1)
    assert unpaired().stored_log_ratios(slow_gpu)[BURST] == pytest.approx(0.0, abs=1e-3)
    another = StoredTimes(rule=RULE, unavailable="gone", stored=stored(workload="a product"))
    assert another.stored_log_ratios(slow_gpu)[BURST] == pytest.approx(math.log(1.1), abs=1e-3)


@pytest.mark.parametrize(
    ("slower", "decision"),
    [(0.0, Decision.CLEAR), (0.04, Decision.UNDECIDED), (0.08, Decision.SLOWER)],
)
def test_stored_times_alone_decide_beyond_a_plain_margin(slower, decision):
    assert unpaired().decide([measured(slower)] * 3, BURST) is decision


def test_a_wider_margin_holds_for_stored_times_too():
    comparison = StoredTimes(rule=Rule(margin=0.1), unavailable="gone", stored=stored())
    slower = {change: comparison.decide([measured(change)] * 3, BURST) for change in (0.07, 0.12)}
    assert slower == {0.07: Decision.CLEAR, 0.12: Decision.SLOWER}
    # Nothing shows that something else than the code is slower.
    assert comparison.slower_than_stored([measured(0.12)]) is None


def test_stored_times_of_another_regime_decide_nothing():
    assert unpaired().decide([measured(0.2)], SUSTAINED) is Decision.UNDECIDED


def test_a_hiccup_of_one_process_does_not_decide():
    again = [measured(0.0), measured(0.3), measured(0.0)]
    assert unpaired().decide(again, BURST) is Decision.CLEAR
    assert unpaired().slower_than_stored(again) is None


@pytest.mark.parametrize(("slower", "decision"), [(0.1, Decision.CLEAR), (0.2, Decision.SLOWER)])
def test_a_published_figure_has_its_own_margin(slower, decision):
    comparison = PublishedFigure(rule=RULE, published=PUBLISHED)
    assert comparison.decide([measured(slower)] * 3, BURST) is decision
    assert bool(comparison.suspects(measured(slower))) is (decision is Decision.SLOWER)
    assert comparison.is_faster([measured(-0.2)])
    assert not comparison.is_faster([measured(-0.1)])


def test_what_is_too_long_for_a_burst_by_now_is_slower_than_stored_bursts():
    """Both kernels are, as after an update of the driver."""
    blocks = (Block(current_us=(9e3,), baseline_us=(9e3,)),)
    long = replace(measured(0.0), burst=(), sustained=Sustained(blocks=blocks))
    bursts = {BURST: stored(4e3)[BURST]}
    assert paired(stored=bursts).slower_than_stored([long]) == pytest.approx(1.25)
    assert unpaired("gone", stored=bursts).suspects(long) == (BURST,)
    # Recorded under sustained load, it is compared with that: power slows it, not the code.
    sustained = {**bursts, SUSTAINED: stored(9e3)[SUSTAINED]}
    assert paired(stored=sustained).slower_than_stored([long]) is None


@pytest.mark.parametrize(
    ("us", "decision"), [(20.3, Decision.CLEAR), (21.9, Decision.UNDECIDED), (22.1, Decision.SLOWER)]
)
def test_on_another_host_a_launch_may_take_two_microseconds_longer(us, decision):
    measurement = replace(measured(0.0), burst=(Block(current_us=(us,), baseline_us=(us,)),))
    bursts = {BURST: stored(20.0)[BURST]}
    assert unpaired("gone", stored=bursts).decide([measurement] * 3, BURST) is decision
    outside = paired(stored=bursts).slower_than_stored([measurement])
    assert (outside is not None) is (decision is Decision.SLOWER)


@pytest.mark.parametrize(
    ("measurement", "slower"),
    [
        (measured(0.0, baseline=0.1), 0.1),
        (measured(0.0, baseline=0.04), None),
        (measured(0.1), None),  # its code alone
        (measured(-0.1, baseline=0.1), None),  # today's kernel is as fast as recorded
    ],
)
def test_the_environment_makes_both_kernels_slower(measurement, slower):
    found = paired(stored=stored()).slower_than_stored([measurement])
    assert found == (None if slower is None else pytest.approx(slower, abs=1e-3))
