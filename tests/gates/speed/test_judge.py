from dataclasses import replace

import pytest

from pytest_cutile.baselines.entries import Published
from pytest_cutile.gates.speed.comparison import PublishedFigure
from pytest_cutile.gates.speed.judge import judge_screening
from pytest_cutile.words.timing import Block, Regime, Skipped
from pytest_cutile.words.verdicts import Judgement, Reason, strict_failure
from tests.gates.speed.simulated import RULE, WORK, measured, paired, settle, stored, unpaired

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
        (paired(), measured(-0.05, 0.0005), Reason.FASTER),  # level sustained
        (paired(), measured(-0.2, scatter=0.1), Reason.UNCONFIRMED),
        (paired(stored=stored()), measured(baseline=0.2), Reason.UNCONFIRMED),
        (unpaired(), measured(0.01), Reason.WITHIN_MARGIN),
        (unpaired(), measured(0.03), Reason.UNCONFIRMED),
        (unpaired(), measured(-0.1), Reason.FASTER),
        (unpaired().of_same_code(), measured(0.03), Reason.UNCHANGED),
        (unpaired().of_same_code(), measured(0.2), Reason.UNCONFIRMED),
    ],
)
def test_one_measurement_clears_a_case_or_leaves_it_to_fresh_processes(comparison, measurement, reason):
    assert judged(comparison, measurement).reason is reason


def test_no_regime_in_common_with_the_baseline_decides_nothing():
    sustained = replace(unpaired(), stored={Regime.SUSTAINED: unpaired().stored[Regime.SUSTAINED]})
    judgement = judged(sustained, measured(0.0))
    assert judgement.reason is Reason.UNANCHORED
    assert "have no regime in common (now: burst)" in judgement.detail


def test_a_suspect_is_shown_with_its_change():
    judgement = judged(paired(), measured(0.05))
    assert judgement.change == pytest.approx(0.05, abs=1e-3)
    assert judgement.detail == "k[c] may be slower; the run ended before fresh processes could tell"


def test_samples_that_spread_pass_no_stored_comparison():
    judgement = judged(unpaired(), measured(0.0, scatter=0.3))
    assert judgement.reason is Reason.NOISY
    assert "the samples spread by " in judgement.detail


def bimodal(current, baseline=(40.0,)):
    return replace(measured(0.0), burst=(Block(current_us=current * 10, baseline_us=baseline * 10),) * 8)


@pytest.mark.parametrize(
    ("measurement", "reason"),
    [
        (bimodal((20.0, 60.0)), Reason.UNCONFIRMED),
        (bimodal((20.0, 60.0), baseline=(20.0, 60.0)), Reason.WITHIN_MARGIN),
        (bimodal((38.0, 42.0)), Reason.WITHIN_MARGIN),
    ],
)
def test_a_kernel_that_has_become_bimodal_is_suspect_although_its_mean_is_the_same(measurement, reason):
    assert judged(paired(), measurement).reason is reason
    case, _ = settle(screening=measured(0.05), again=lambda: measurement)
    assert case.so_far.judgement.reason is (Reason.NOISY if reason is Reason.UNCONFIRMED else reason)


@pytest.mark.parametrize(
    ("not_limited", "recorded", "reason"),
    [
        (False, [Regime.BURST, Regime.SUSTAINED], Reason.NOISY),
        (True, [Regime.BURST, Regime.SUSTAINED], Reason.WITHIN_MARGIN),
        (False, [Regime.BURST], Reason.WITHIN_MARGIN),
    ],
)
@pytest.mark.parametrize("of", [paired, unpaired])
def test_recorded_sustained_times_pass_only_where_power_is_known_not_to_matter(
    of, not_limited, recorded, reason
):
    comparison = of(stored={regime: stored()[regime] for regime in recorded})
    skipped = Skipped(reason="NVML tells nothing", not_limited=not_limited)
    measurement = replace(measured(0.0), sustained_skipped=skipped)
    judgement = judged(comparison, measurement)
    assert judgement.reason is reason
    assert ("NVML tells nothing" in judgement.detail) == (reason is Reason.NOISY)
    suspect = replace(measured(0.06), sustained_skipped=skipped)
    bursts_alone = replace(measured(0.0), sustained_skipped=None)
    case, _ = settle(comparison=comparison, screening=suspect, again=lambda: bursts_alone)
    assert case.so_far.judgement.reason is reason


def test_a_published_figure_is_compared_by_its_own_margin():
    figure = Published(work=WORK, median_us=100.0, margin=0.15, source="a table")
    assert judged(PublishedFigure(rule=RULE, published=figure), measured(0.1)).reason is Reason.WITHIN_MARGIN
    assert judged(PublishedFigure(rule=RULE, published=figure), measured(0.2)).reason is Reason.UNCONFIRMED


@pytest.mark.parametrize("strict", [False, True])
def test_strict_fails_what_decides_nothing(strict):
    noisy = Judgement(reason=Reason.NOISY, detail="it scatters")
    failure = strict_failure("k[c]", noisy, strict=strict)
    assert failure == ("k[c]: inconclusive (noisy): it scatters [--perf-strict]" if strict else None)
    assert strict_failure("k[c]", Judgement(reason=Reason.WITHIN_MARGIN), strict=strict) is None
