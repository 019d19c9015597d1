from dataclasses import replace

import pytest

from pytest_cutile.baselines.entries import Published
from pytest_cutile.speed.comparison import Comparison
from pytest_cutile.speed.judging import judge_screening, strict_failure
from pytest_cutile.speed.measure.timing import Regime
from pytest_cutile.verdicts import Judgement, Reason
from tests.speed.simulated import RULE, WORK, measured, paired, stored, unpaired

DRIVER = ("driver: 580 -> 590",)


def judged(comparison, measurement):
    return judge_screening("k[c]", comparison, measurement)


@pytest.mark.parametrize(
    ("comparison", "measurement", "reason"),
    [
        (paired(), measured(0.0, 0.0), Reason.WITHIN_MARGIN),
        (paired(), measured(0.05), Reason.UNCONFIRMED),
        (paired(), measured(0.0, 0.05), Reason.UNCONFIRMED),
        (paired(), measured(-0.1), Reason.FASTER),
        (paired(), measured(-0.2, scatter=0.1), Reason.UNCONFIRMED),
        (paired(stored=stored()), measured(baseline=0.2), Reason.UNCONFIRMED),
        (unpaired(), measured(0.01), Reason.WITHIN_MARGIN),
        (unpaired(), measured(0.03), Reason.UNCONFIRMED),
        (unpaired(), measured(-0.1), Reason.FASTER),
        (unpaired().of_same_code("abc1234"), measured(0.03), Reason.UNCHANGED),
        (unpaired().of_same_code("abc1234"), measured(0.2), Reason.UNCONFIRMED),
    ],
)
def test_one_measurement_clears_a_case_or_leaves_it_to_fresh_processes(comparison, measurement, reason):
    assert judged(comparison, measurement).reason is reason


def test_no_regime_in_common_with_the_baseline_decides_nothing():
    sustained = replace(unpaired(), stored={Regime.SUSTAINED: unpaired().stored[Regime.SUSTAINED]})
    judgement = judged(sustained, measured(0.0))
    assert judgement.reason is Reason.UNANCHORED
    assert "measured burst, and its baseline was not" in judgement.detail


def test_a_suspect_is_shown_with_its_change():
    judgement = judged(paired(), measured(0.05))
    assert judgement.change == pytest.approx(0.05, abs=1e-3)
    assert judgement.detail == "k[c] may be slower; the run ended before fresh processes could tell"


def test_samples_that_spread_pass_no_stored_comparison():
    judgement = judged(unpaired(), measured(0.0, scatter=0.3))
    assert judgement.reason is Reason.NOISY
    assert "the samples spread by " in judgement.detail


def test_a_published_figure_is_compared_by_its_own_margin():
    figure = Published(work=WORK, median_us=100.0, margin=0.15, source="a table")
    assert judged(Comparison(rule=RULE, published=figure), measured(0.1)).reason is Reason.WITHIN_MARGIN
    assert judged(Comparison(rule=RULE, published=figure), measured(0.2)).reason is Reason.UNCONFIRMED


@pytest.mark.parametrize("strict", [False, True])
def test_strict_fails_what_decides_nothing(strict):
    noisy = Judgement(reason=Reason.NOISY, detail="it scatters")
    failure = strict_failure("k[c]", noisy, strict=strict)
    assert failure == ("k[c]: inconclusive (noisy): it scatters [--perf-strict]" if strict else None)
    assert strict_failure("k[c]", Judgement(reason=Reason.WITHIN_MARGIN), strict=strict) is None
