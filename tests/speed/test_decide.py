import math
import random
from dataclasses import replace

import pytest

from pytest_cutile.speed.decide import (
    CASE_DOF,
    LEAST_CENTRED,
    NO_SESSION_EFFECT,
    STORED_NOISE,
    BaselineLogTime,
    Decision,
    Estimate,
    LogTime,
    Noise,
    Rule,
    SessionEffect,
    baseline_log_time,
    paired_estimate,
    pooled_noise,
    session_effect_of,
)

RULE = Rule()
NOISE = Noise(process=0.0025, session=0.002, gpu=0.004, shared=0.0025, shared_gpu=0.006)
REFERENCE = BaselineLogTime(
    value=3.0, of_sessions=2e-6, per_process=0.0, between=4e-6, squares=8 * 0.0025**2, dof=8.0
)


def history(*sessions, gpu="GPU-1"):
    return [
        LogTime(value=value, session=f"s{number}", gpu=gpu)
        for number, values in enumerate(sessions)
        for value in values
    ]


def noisy_history(rng, *, process=0.0025, session=0.002, sessions=4, processes=3, log_time=3.0):
    means = [rng.gauss(log_time, session) for _ in range(sessions)]
    return history(*([rng.gauss(mean, process) for _ in range(processes)] for mean in means))


def estimate(difference, *, error=0.002, dof=20.0, processes=3):
    return Estimate(difference=difference, error=error, dof=dof, processes=processes)


@pytest.mark.parametrize("margin", [0.0, -0.1, 1.0, 5.0, math.nan])
def test_a_margin_that_is_no_fraction_is_rejected(margin):
    with pytest.raises(ValueError, match="fraction between 0 and 1"):
        Rule(margin=margin)


# -- noise --------------------------------------------------------------------------------------------


def test_without_stored_runs_the_noise_is_what_is_assumed():
    assert pooled_noise([]) == STORED_NOISE
    assert pooled_noise([history([3.0]), []]) == STORED_NOISE


@pytest.mark.parametrize(("process", "session"), [(0.0005, 0.0005), (0.0025, 0.002), (0.01, 0.008)])
def test_noise_is_learnt_from_many_cases(process, session):
    rng = random.Random(1)
    noise = pooled_noise([noisy_history(rng, process=process, session=session) for _ in range(400)], NOISE)
    assert noise.process == pytest.approx(process, rel=0.15)
    assert noise.session == pytest.approx(session, rel=0.2, abs=0.0003)
    assert (noise.gpu, noise.shared) == (NOISE.gpu, NOISE.shared)


def test_few_cases_hardly_move_what_is_assumed():
    quiet = pooled_noise([history([3.0, 3.0, 3.0], [3.0, 3.0, 3.0])], NOISE)
    assert 0.85 * NOISE.process < quiet.process < NOISE.process
    assert 0.9 * NOISE.session < quiet.session < NOISE.session


def test_one_wild_case_does_not_make_the_others_look_noisy():
    rng = random.Random(2)
    steady = [noisy_history(rng) for _ in range(30)]
    wild = noisy_history(rng, process=0.2, session=0.2)
    without, including = pooled_noise(steady, NOISE), pooled_noise([*steady, wild], NOISE)
    assert including.process == pytest.approx(without.process, rel=0.1)
    assert including.session == pytest.approx(without.session, rel=0.15)


def test_gpus_do_not_count_as_sessions():
    rng = random.Random(3)
    moved = [history([rng.gauss(3, 0.001)] * 2) + history([3.5] * 2, gpu="GPU-2") for _ in range(50)]
    assert pooled_noise(moved, NOISE).session == NOISE.session


# -- reference ----------------------------------------------------------------------------------------


def variance_of(reference):
    """Return the variance of its value."""
    return reference.of_sessions + reference.per_process * reference.squares / reference.dof


def test_a_reference_is_the_mean_over_sessions():
    reference = baseline_log_time(history([3.0, 3.0, 3.0, 3.0], [3.1]), NOISE, other_gpu=False)
    assert reference.value == pytest.approx(3.05)  # not over processes
    assert reference.dof == CASE_DOF + 3


def test_more_sessions_make_a_better_reference():
    one, two, four = (
        variance_of(baseline_log_time(history(*[[3.0, 3.0, 3.0]] * count), NOISE, other_gpu=False))
        for count in (1, 2, 4)
    )
    assert one > two > four > 0
    many_processes = variance_of(baseline_log_time(history([3.0] * 12), NOISE, other_gpu=False))
    assert many_processes > four  # a slow day stays one however often it is measured


def test_what_few_processes_tell_needs_more_evidence():
    log_times = [3.01, 3.014, 3.012]
    noise = replace(NOISE, session=1e-6)
    few, many = (
        Estimate.of(
            log_times, baseline_log_time(history(*[[3.0, 3.003, 2.997]] * count), noise, other_gpu=False)
        )
        for count in (1, 8)
    )
    assert few.error > many.error
    assert few.dof < many.dof / 2
    assert few.smallest_visible(RULE, 200) > 1.3 * many.smallest_visible(RULE, 200)


def test_the_processes_of_today_tell_how_well_those_of_then_are_known():
    reference = baseline_log_time(history([3.0, 3.001, 2.999]), NOISE, other_gpu=False)
    steady = Estimate.of([3.0] * 12, reference)
    unsteady = Estimate.of([3.0, 3.02] * 6, reference)
    assert unsteady.error**2 > 3 * steady.error**2 + 0.01**2 / 12


def test_a_case_that_scatters_is_held_to_that():
    steady = baseline_log_time(history([3.0, 3.0], [3.0, 3.0]), NOISE, other_gpu=False)
    between = baseline_log_time(history([3.0, 3.0], [3.1, 3.1]), NOISE, other_gpu=False)
    within = baseline_log_time(history([3.0, 3.1], [3.0, 3.1]), NOISE, other_gpu=False)
    assert between.between > 10 * steady.between
    assert within.squares > 10 * steady.squares


def test_a_reference_of_several_gpus_is_their_mean():
    gpus = history([3.0, 3.0], [3.01, 3.01]) + history(*[[3.1] * 3] * 3, gpu="GPU-2")
    assert baseline_log_time(gpus, NOISE, other_gpu=True).value == pytest.approx((3.005 + 3.1) / 2)


def test_more_gpus_tell_more_of_another_one():
    gpus = [history([3.0] * 3, gpu=f"GPU-{number}") for number in range(4)]
    of_four = [log_time for log_times in gpus for log_time in log_times]
    one, four = (
        variance_of(baseline_log_time(log_times, NOISE, other_gpu=True)) for log_times in (gpus[0], of_four)
    )
    assert four == pytest.approx(one / 4, rel=0.1)


def test_another_gpu_is_known_less_well():
    stored = history([3.0, 3.0], [3.0, 3.0])
    same, other = (baseline_log_time(stored, NOISE, other_gpu=other) for other in (False, True))
    assert variance_of(other) == pytest.approx(variance_of(same) + NOISE.gpu**2)
    assert other.between == pytest.approx(same.between + NOISE.gpu**2)


# -- effect ------------------------------------------------------------------------------------------


def screened(rng, count=40, *, shift=0.0, sigma=0.004, slower=0, by=0.05):
    """Levels of `count` cases, the first `slower` of which are slower by `by`, and their references."""
    return [
        (REFERENCE.value + shift + rng.gauss(0, sigma) + (by if n < slower else 0.0), REFERENCE)
        for n in range(count)
    ]


def test_fewer_than_ten_cases_say_nothing_of_the_session_effect():
    cases = screened(random.Random(1), LEAST_CENTRED, shift=0.05)
    few = session_effect_of(cases[1:], NOISE, RULE, other_gpu=False)
    assert (few.cases, few.removed) == (0, 0.0)
    assert few.unseen == pytest.approx(2 * NOISE.shared**2)  # it stays in each of them
    assert session_effect_of(cases, NOISE, RULE, other_gpu=False).cases == LEAST_CENTRED
    assert NO_SESSION_EFFECT.removed == 0.0


@pytest.mark.parametrize("shift", [-0.007, -0.005, 0.0, 0.005])
def test_what_all_cases_share_is_taken_off_each(shift):
    effect = session_effect_of(screened(random.Random(2), shift=shift), NOISE, RULE, other_gpu=False)
    assert effect.removed == effect.shift == pytest.approx(shift, abs=0.002)
    assert not effect.slower


def test_a_slowdown_of_all_cases_is_no_session_effect():
    effect = session_effect_of(screened(random.Random(3), shift=0.03), NOISE, RULE, other_gpu=False)
    assert effect.slower
    assert effect.removed == 0.0
    assert Estimate.of([3.03] * 6, REFERENCE, effect).decide(RULE, 40) is Decision.SLOWER


@pytest.mark.parametrize(("sessions", "slower"), [(1, False), (2, True), (4, True), (12, True)])
def test_the_session_effect_of_a_single_session_may_be_in_the_baselines(sessions, slower):
    reference = replace(REFERENCE, of_sessions=REFERENCE.between / sessions)
    cases = [(log_time, reference) for log_time, _ in screened(random.Random(2), shift=0.0122)]
    noise = replace(NOISE, shared=0.001)
    assert session_effect_of(cases, noise, RULE, other_gpu=False).slower is slower


@pytest.mark.parametrize("log_time", [3.0, 3.0075])
@pytest.mark.parametrize("other_gpu", [False, True])
def test_most_cases_getting_faster_makes_no_other_slower(log_time, other_gpu):
    """An improvement of two thirds of the cases is no effect, to be taken off the others."""
    cases = screened(random.Random(3), slower=27, by=-0.06)
    effect = session_effect_of(cases, NOISE, RULE, other_gpu=other_gpu)
    assert effect.shift == pytest.approx(-0.06, abs=0.01)
    assert (effect.faster, effect.slower, effect.removed) == (True, False, 0.0)
    for processes in RULE.looks:
        estimate = Estimate.of([log_time] * processes, REFERENCE, effect)
        assert estimate.decide(RULE, 40) is not Decision.SLOWER


def test_gpus_differ_by_more_than_sessions():
    for shift, name in ((0.015, "slower"), (-0.015, "faster")):
        cases = screened(random.Random(4), shift=shift)
        here, there = (session_effect_of(cases, NOISE, RULE, other_gpu=other) for other in (False, True))
        assert (getattr(here, name), here.removed) == (True, 0.0)
        assert (getattr(there, name), there.removed) == (False, there.shift)


@pytest.mark.parametrize(("shift", "other_gpu"), [(-0.006, False), (-0.018, True)])
def test_a_fast_session_hides_no_slowdown(shift, other_gpu):
    """What a GPU or a day that is faster as a whole would hide."""
    cases = screened(random.Random(7), shift=shift)
    effect = session_effect_of(cases, NOISE, RULE, other_gpu=other_gpu)
    log_time = REFERENCE.value + shift + 0.02
    assert Estimate.of([log_time], REFERENCE, effect).is_suspect(RULE)
    assert Estimate.of([log_time] * 6, REFERENCE, effect).decide(RULE, 40) is Decision.SLOWER


@pytest.mark.parametrize("by", [0.03, 0.3])
def test_a_quarter_of_slower_cases_does_not_hide_itself(by):
    cases = screened(random.Random(5), 40, slower=10, by=by)
    effect = session_effect_of(cases, NOISE, RULE, other_gpu=False)
    assert abs(effect.shift) < 0.004
    assert effect.between < 2.5
    found = [
        Estimate.of([log_time] * 3, reference, effect).decide(RULE, 40) is Decision.SLOWER
        for log_time, reference in cases
    ]
    assert found == [True] * 10 + [False] * 30


@pytest.mark.parametrize("times", [0.0, 1.0, 5.0, 50.0])
def test_a_rough_session_makes_every_case_less_certain(times):
    known = REFERENCE.of_sessions + REFERENCE.squares / REFERENCE.dof
    cases = screened(random.Random(6), 1000, sigma=math.sqrt(known + times * REFERENCE.between))
    effect = session_effect_of(cases, NOISE, RULE, other_gpu=False)
    assert effect.between == pytest.approx(times, rel=0.25, abs=0.25)


# -- estimate -----------------------------------------------------------------------------------------


def test_an_estimate_is_the_mean_less_reference_and_session_effect():
    found = Estimate.of([3.05, 3.01], REFERENCE, SessionEffect(shift=0.01))
    assert found.difference == pytest.approx(0.02)
    assert found.processes == 2


def test_more_processes_know_better_up_to_what_the_session_adds():
    errors = [Estimate.of([3.0] * count, REFERENCE).error for count in (1, 3, 12, 10_000)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == pytest.approx(math.sqrt(REFERENCE.of_sessions + REFERENCE.between), rel=1e-3)


def test_processes_that_disagree_make_it_less_certain():
    assert Estimate.of([2.9, 3.0, 3.1], REFERENCE).error > 4 * Estimate.of([3.0] * 3, REFERENCE).error


@pytest.mark.parametrize("error", [0.001, 0.0035, 0.0076, 0.0114, 0.015, 0.05])
@pytest.mark.parametrize("other_gpu", [False, True])
def test_the_screening_misses_a_slowdown_by_the_margin_rarely(error, other_gpu):
    rng = random.Random(7)
    limit = RULE.limit_on_other_gpu if other_gpu else RULE.limit
    screenings = [estimate(rng.gauss(limit, error), error=error, processes=1) for _ in range(5000)]
    missed = sum(not each.is_suspect(RULE, other_gpu=other_gpu) for each in screenings)
    assert missed / 5000 < 0.008


@pytest.mark.parametrize(
    ("difference", "suspect"), [(-0.001, False), (0.0, False), (0.014, False), (0.015, True)]
)
def test_a_suspect_could_be_slower_by_the_margin(difference, suspect):
    assert estimate(difference, processes=1).is_suspect(RULE) is suspect


def test_what_looks_faster_is_a_suspect_if_it_is_that_uncertain():
    assert not estimate(-0.0001, error=0.007).is_suspect(RULE)
    assert estimate(-0.0001, error=0.008).is_suspect(RULE)
    assert estimate(-0.02, error=0.016).is_suspect(RULE)


def test_another_gpu_has_a_wider_margin():
    known = estimate(0.0249, processes=1)
    assert known.is_suspect(RULE, other_gpu=True)
    assert not estimate(0.0243, processes=1).is_suspect(RULE, other_gpu=True)
    assert estimate(0.0243, processes=1).is_suspect(RULE)


@pytest.mark.parametrize(
    ("difference", "error", "faster"),
    [
        (-0.019, 0.001, False),
        (-0.021, 0.001, True),
        (-0.05, 0.02, False),
        (-0.06, 0.02, True),
        (0.1, 0.01, False),
    ],
)
def test_faster_is_beyond_margin_and_noise(difference, error, faster):
    assert estimate(difference, error=error).is_faster(RULE) is faster


@pytest.mark.parametrize(
    ("difference", "processes", "decision"),
    [
        (0.0, 1, Decision.CLEAR),
        (0.013, 2, Decision.CLEAR),
        (0.015, 2, Decision.PENDING),  # could be 2 %, could be nothing
        (0.03, 1, Decision.PENDING),  # no look yet
        (0.03, 2, Decision.PENDING),
        (0.03, 3, Decision.SLOWER),
        (0.03, 4, Decision.PENDING),  # looks are few, or chance gets as many chances
        (0.03, 6, Decision.SLOWER),
        (0.03, 12, Decision.SLOWER),
        (0.03, 13, Decision.SLOWER),
        (0.0093, 12, Decision.CLEAR),
        (0.015, 3, Decision.SLOWER),
        (-0.5, 12, Decision.CLEAR),
    ],
)
def test_decisions_at_each_look(difference, processes, decision):
    assert estimate(difference, processes=processes).decide(RULE, 1) is decision


@pytest.mark.parametrize(
    ("difference", "processes", "decision"),
    [
        (0.0, 3, Decision.PENDING),
        (0.05, 6, Decision.PENDING),
        (0.05, 12, Decision.UNDECIDED),
        (0.2, 3, Decision.SLOWER),
        (-0.1, 1, Decision.CLEAR),
    ],
)
def test_a_noisy_case_stays_open_and_is_never_passed_for_it(difference, processes, decision):
    assert estimate(difference, error=0.02, processes=processes).decide(RULE, 1) is decision


def test_less_than_half_the_margin_never_fails():
    assert estimate(0.0099, error=1e-6, processes=12).decide(RULE, 1) is Decision.CLEAR
    tight = replace(RULE, missed=1e-9)  # so that it cannot be cleared
    assert estimate(0.0099, error=0.0012, processes=12).decide(tight, 1) is Decision.UNDECIDED
    assert estimate(0.0101, error=0.0012, processes=12).decide(tight, 1) is Decision.SLOWER


def test_the_more_cases_the_more_evidence_each_one_needs():
    borderline = estimate(0.0155, error=0.003)
    assert borderline.decide(RULE, 1) is Decision.SLOWER
    assert borderline.decide(RULE, 1000) is Decision.PENDING
    visible = [borderline.smallest_visible(RULE, n_comparisons) for n_comparisons in (1, 10, 100, 1000)]
    assert visible == sorted(visible)
    assert visible[0] < visible[-1]


def test_little_known_noise_needs_more_evidence():
    assert estimate(0.014, dof=1000.0, error=0.0025, processes=12).smallest_visible(RULE, 100) < estimate(
        0.014, dof=5.0, error=0.0025, processes=12
    ).smallest_visible(RULE, 100)


@pytest.mark.parametrize("n_comparisons", [1, 200])
@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_the_smallest_visible_slowdown_is_caught_19_times_in_20(scale, n_comparisons):
    rng = random.Random(8)
    n, last = 1500, RULE.looks[-1]
    process = 0.0025 * scale
    reference = BaselineLogTime(
        value=3.0,
        of_sessions=2e-6 * scale**2,
        per_process=0.0,
        between=4e-6 * scale**2,
        squares=1e6 * process**2,
        dof=1e6,
    )
    known = SessionEffect(dof=1e6)
    visible = Estimate.of([3.0] * last, reference, known).smallest_visible(RULE, n_comparisons)
    caught = 0
    for _ in range(n):
        mean = rng.gauss(3.0 + math.log1p(visible), math.sqrt(reference.of_sessions + reference.between))
        log_times = [rng.gauss(mean, process) for _ in range(last)]
        caught += Estimate.of(log_times, reference, known).decide(RULE, n_comparisons) is Decision.SLOWER
    assert caught / n == pytest.approx(0.95, abs=0.02)


# -- interleaved kernels ----------------------------------------------------------------------


def turns(rng, *, mean=0.0, process=0.0, place=0.005):
    """Ratios at the eight places of one process."""
    own = rng.gauss(mean, process)
    return [rng.gauss(own, place) for _ in range(8)]


def test_two_equal_revisions_are_told_apart_from_a_slower_one():
    rng = random.Random(12)
    equal, slower = ([turns(rng, mean=mean) for _ in range(3)] for mean in (0.0, 0.02))
    assert paired_estimate(equal).decide(RULE, 5) is Decision.CLEAR
    assert paired_estimate(slower).decide(RULE, 5) is Decision.SLOWER


def test_places_that_scatter_make_a_single_process_less_certain():
    errors = [
        paired_estimate([turns(random.Random(13), place=place)]).error for place in (0.001, 0.005, 0.02)
    ]
    assert errors == sorted(errors)
    assert errors[0] < 0.002
    assert errors[2] > 0.007


def test_one_place_is_taken_for_what_it_is():
    assert paired_estimate([[0.01]]).difference == pytest.approx(0.01)
    assert paired_estimate([[0.01, 0.03]]).difference == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("process", "place"),
    [(0.001, 0.004), (0.006, 0.007), (0.01, 0.019)],
    ids=["softmax", "rms_norm", "matmul"],
)
def test_a_slower_kernel_is_rarely_cleared_and_an_equal_one_never_failed(process, place):
    rng = random.Random(14)

    def decided(mean):
        found, decision = [], Decision.PENDING
        while decision is Decision.PENDING:
            found.append(
                turns(rng, mean=mean, process=math.sqrt(max(process**2 - place**2 / 8, 0)), place=place)
            )
            decision = paired_estimate(found).decide(RULE, 5)
        return decision

    slower = [decided(RULE.limit) for _ in range(150)]
    assert slower.count(Decision.CLEAR) <= 6
    assert slower.count(Decision.SLOWER) >= 135
    assert [decided(0.0) for _ in range(150)].count(Decision.SLOWER) <= 1


# -- the whole rule -----------------------------------------------------------------------------------

TRUE_NOISE = Noise(process=0.002, session=0.0015, gpu=0.004, shared=0.0025, shared_gpu=0.006)


def fails(rng, cases, slowed=None, by=0.0):
    """Cases that the gate fails on a new day, of a suite that was stored in four sessions."""
    stored = [
        noisy_history(rng, process=TRUE_NOISE.process, session=TRUE_NOISE.session) for _ in range(cases)
    ]
    noise = pooled_noise(stored)
    references = [baseline_log_time(each, noise, other_gpu=False) for each in stored]
    today = rng.gauss(0, TRUE_NOISE.shared)
    means = [3.0 + today + rng.gauss(0, TRUE_NOISE.session) for _ in range(cases)]
    if slowed is not None:
        means[slowed] += math.log1p(by)

    def measure(case):
        accident = rng.uniform(0.01, 0.05) if rng.random() < 0.01 else 0.0
        return rng.gauss(means[case], TRUE_NOISE.process) + accident

    first = [(measure(case), references[case]) for case in range(cases)]
    effect = session_effect_of(first, noise, RULE, other_gpu=False)
    failed = set()
    for case, (log_time, reference) in enumerate(first):
        decision = Decision.PENDING if Estimate.of([log_time], reference, effect).is_suspect(RULE) else None
        log_times = []
        while decision is Decision.PENDING:
            log_times.append(measure(case))
            decision = Estimate.of(log_times, reference, effect).decide(RULE, cases)
        if decision is Decision.SLOWER:
            failed.add(case)
    return failed


def test_a_clean_suite_of_200_cases_fails_rarely():
    rng = random.Random(9)
    assert sum(bool(fails(rng, 200)) for _ in range(60)) <= 3


def test_a_slowdown_by_the_margin_is_caught():
    rng = random.Random(10)
    caught = [fails(rng, 60, slowed=7, by=0.02) for _ in range(80)]
    assert sum(7 in found for found in caught) >= 68
    assert sum(bool(found - {7}) for found in caught) <= 3


def test_a_slowdown_beyond_the_margin_is_never_missed():
    rng = random.Random(11)
    assert all(3 in fails(rng, 30, slowed=3, by=0.04) for _ in range(60))


@pytest.mark.parametrize("name", ["difference", "error"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_no_estimate(name, value):
    """It would be no suspect: NaN is above no limit."""
    with pytest.raises(ValueError, match="log times must be finite"):
        Estimate(**{"difference": 0.0, "error": 0.01, "dof": 5.0, "processes": 1, name: value})
