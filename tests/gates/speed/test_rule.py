import math
import random
from dataclasses import replace

import pytest
from scipy import stats

from pytest_cutile.gates.speed.rule import (
    NOISE,
    Decision,
    Estimate,
    Noise,
    Rule,
    Sample,
    decide,
    decide_stored,
    estimate,
    is_faster,
    is_suspect,
)
from pytest_cutile.words.timing import Regime

RULE = Rule()
BURST, SUSTAINED = NOISE[Regime.BURST], NOISE[Regime.SUSTAINED]


def draw(rng, n, *, mean=0.0, deviation=0.003):
    return [Sample(log_ratio=rng.gauss(mean, deviation)) for _ in range(n)]


def estimated(value, p_slower):
    """An estimate of many processes with this one-sided probability."""
    from statistics import NormalDist

    return Estimate(value=value, error=value / NormalDist().inv_cdf(1 - p_slower), dof=1e9)


@pytest.mark.parametrize("margin", [0.0, -0.1, 1.0, 5.0, math.nan])
def test_a_margin_that_is_no_fraction_is_rejected(margin):
    with pytest.raises(ValueError, match="fraction between 0 and 1"):
        Rule(margin=margin)


# -- estimates ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 3, 6, 12])
@pytest.mark.parametrize("regime", [*Regime])
def test_the_interval_covers_the_true_ratio_as_often_as_it_says(processes, regime):
    noise, rng = NOISE[regime], random.Random(f"{regime} {processes}")
    trials = 1500
    covered = 0
    for _ in range(trials):
        low, high = estimate(draw(rng, processes, mean=0.01, deviation=noise.deviation), noise).interval()
        covered += low <= math.expm1(0.01) <= high
    assert covered / trials >= 0.94


@pytest.mark.parametrize(("processes", "least"), [(3, 0.85), (12, 0.9)])
def test_it_nearly_covers_the_ratio_of_cases_that_scatter_twice_as_much(processes, least):
    rng = random.Random(processes)
    trials, covered = 1500, 0
    for _ in range(trials):
        low, high = estimate(draw(rng, processes, deviation=2 * SUSTAINED.deviation), SUSTAINED).interval()
        covered += low <= 0 <= high
    assert covered / trials >= least


def test_processes_that_agree_by_chance_are_not_certain():
    samples = [Sample(log_ratio=0.01)] * 3
    assert estimate(samples, BURST).error > BURST.deviation / 3


def test_placements_that_differ_make_a_process_less_certain():
    steady, scattered = (estimate([Sample(log_ratio=0.0, error=error)], BURST) for error in (0.0, 0.01))
    assert steady.error == pytest.approx(BURST.deviation)
    assert scattered.error == pytest.approx(math.hypot(BURST.deviation, 0.01))


def test_more_processes_know_better():
    errors = [estimate(draw(random.Random(1), n), SUSTAINED).error for n in (1, 3, 12, 48)]
    assert errors == sorted(errors, reverse=True)


def test_one_process_that_met_a_hiccup_is_left_out_of_six():
    steady = [Sample(log_ratio=0.001 * n) for n in range(-2, 3)]
    with_hiccup = estimate([*steady, Sample(log_ratio=0.2)], BURST)
    assert with_hiccup.value < 0.002
    assert with_hiccup.upper(RULE.missed) < RULE.limit


def test_the_moderated_variance_is_that_of_limma():
    """Smyth 2004: (d0 s0^2 + d s^2) / (d0 + d), with d0 + d degrees of freedom."""
    noise = Noise(deviation=0.002, dof=5)
    found = estimate([Sample(log_ratio=value) for value in (0.0, 0.01, 0.02)], noise)
    assert found.value == pytest.approx(0.01)
    assert found.dof == 7
    assert found.error == pytest.approx(math.sqrt((5 * 0.002**2 + 2 * 0.01**2) / 7 / 3))


def test_the_probability_is_that_of_scipy():
    for value in (0.001, 0.01, 0.05):
        found = Estimate(value=value, error=0.004, dof=7.5)
        assert found.p_slower == pytest.approx(stats.t.sf(value / 0.004, 7.5), rel=1e-9)
        assert found.upper(0.01) == pytest.approx(value + stats.t.isf(0.01, 7.5) * 0.004, rel=1e-9)


def test_what_is_not_slower_has_no_probability_to_be():
    assert Estimate(value=-0.01, error=0.001, dof=5).p_slower == 1.0
    assert Estimate(value=0.01, error=0.001, dof=5, tick=0.02).p_slower == 1.0


def test_what_the_timer_cannot_resolve_is_no_improvement():
    fast = Estimate(value=-0.03, error=0.0001, dof=100)
    assert is_faster(fast, RULE)
    assert not is_faster(replace(fast, tick=0.05), RULE)


def test_the_coarsest_process_says_what_can_be_resolved():
    assert estimate([Sample(log_ratio=0.0, tick=tick) for tick in (0.02, 0.05, 0.01)], BURST).tick == 0.05


# -- screening ----------------------------------------------------------------------------------------


def test_screening_misses_as_few_slow_cases_as_it_says():
    rng = random.Random(3)
    trials = 3000
    missed = sum(
        not is_suspect(sample, SUSTAINED, RULE)
        for sample in draw(rng, trials, mean=RULE.limit, deviation=SUSTAINED.deviation)
    )
    assert missed / trials <= 0.015  # 1 in 100, and chance


def test_screening_spares_most_equal_cases_in_bursts():
    samples = draw(random.Random(4), 1000, deviation=BURST.deviation)
    assert sum(is_suspect(sample, BURST, RULE) for sample in samples) < 5


@pytest.mark.parametrize("log_ratio", [0.0, -0.1])
def test_a_case_whose_placements_scatter_is_a_suspect_however_fast(log_ratio):
    assert is_suspect(Sample(log_ratio=log_ratio, error=0.02), BURST, RULE)


def test_what_the_timer_cannot_resolve_is_no_suspicion():
    assert is_suspect(Sample(log_ratio=0.1), BURST, RULE)
    assert not is_suspect(Sample(log_ratio=0.1, tick=0.2), BURST, RULE)


def test_faster_means_by_the_margin_and_for_certain():
    assert is_faster(Estimate(value=-0.03, error=0.001, dof=8), RULE)
    assert not is_faster(Estimate(value=-0.03, error=0.02, dof=8), RULE)
    assert not is_faster(Estimate(value=-0.01, error=0.0001, dof=8), RULE)


# -- deciding -----------------------------------------------------------------------------------------


def holm(p_values, alpha):
    """Holm's procedure as his paper states it: reject while p(k) <= alpha / (m - k + 1)."""
    ordered = sorted(p_values)
    rejected = 0
    while rejected < len(ordered) and ordered[rejected] <= alpha / (len(ordered) - rejected):
        rejected += 1
    return set(ordered[:rejected])


def test_comparisons_are_rejected_as_by_holm():
    rng = random.Random(5)
    for _ in range(300):
        count = rng.randrange(1, 9)
        p_values = [10 ** rng.uniform(-5, -1) for _ in range(count)]
        found = decide({p: estimated(0.02, p) for p in p_values}, RULE, n_comparisons=count)
        slower = {p for p, decision in found.items() if decision is Decision.SLOWER}
        assert slower == holm(p_values, RULE.alpha_of_look)


def test_more_evidence_never_acquits():
    rng = random.Random(6)
    for _ in range(200):
        p_values = {n: 10 ** rng.uniform(-5, -1) for n in range(5)}
        before = decide({n: estimated(0.02, p) for n, p in p_values.items()}, RULE, n_comparisons=5)
        p_values[2] /= 10
        after = decide({n: estimated(0.02, p) for n, p in p_values.items()}, RULE, n_comparisons=5)
        assert all(after[n] is Decision.SLOWER for n in before if before[n] is Decision.SLOWER)


def test_comparisons_that_were_decided_before_still_count():
    alone = {0: estimated(0.02, RULE.alpha_of_look / 2)}
    assert decide(alone, RULE, n_comparisons=1)[0] is Decision.SLOWER
    assert decide(alone, RULE, n_comparisons=10)[0] is not Decision.SLOWER


def test_less_than_half_of_the_margin_never_fails():
    certain = Estimate(value=0.009, error=1e-5, dof=20)
    assert decide({0: certain}, RULE, n_comparisons=1)[0] is Decision.CLEAR


@pytest.mark.parametrize(
    ("value", "error", "decision"),
    [
        (0.0, 0.001, Decision.CLEAR),
        (0.015, 0.001, Decision.SLOWER),
        (0.015, 0.008, Decision.UNDECIDED),
        (-0.2, 0.02, Decision.UNDECIDED),  # it scatters by more than the margin
    ],
)
def test_a_suspect_is_decided_once_it_is_known(value, error, decision):
    found = decide({0: Estimate(value=value, error=error, dof=10)}, RULE, n_comparisons=1)
    assert found == {0: decision}


def test_equal_kernels_fail_a_run_less_often_than_alpha_says():
    """Without the floor of half a margin, and with an alpha that a few hundred runs can show."""
    rng = random.Random(7)
    rule = Rule(margin=1e-9, alpha=0.2)
    runs, failed = 400, 0
    for _ in range(runs):
        samples = {n: draw(rng, rule.looks[-1]) for n in range(10)}
        for look in rule.looks:
            found = {n: estimate(drawn[:look], SUSTAINED) for n, drawn in samples.items()}
            if Decision.SLOWER in decide(found, rule, n_comparisons=10).values():
                failed += 1
                break
    assert failed / runs <= 0.2 + 0.03


@pytest.mark.parametrize(
    ("log_ratios", "decision"),
    [
        ((0.0, 0.01, 0.01), Decision.CLEAR),
        ((0.03, 0.03, 0.04), Decision.UNDECIDED),
        ((0.07, 0.08, 0.07), Decision.SLOWER),
        ((0.01, 0.01, 0.25), Decision.CLEAR),  # one process met a hiccup
    ],
)
def test_stored_times_have_a_plain_margin(log_ratios, decision):
    assert decide_stored(log_ratios, RULE, margin=RULE.stored_margin) is decision
