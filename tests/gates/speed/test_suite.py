"""What the speed gate makes of fresh processes, without any."""

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest

from pytest_cutile.baselines.entries import Published
from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.gates.speed.comparison import PublishedFigure
from pytest_cutile.gates.speed.judge import judge_screening
from pytest_cutile.gates.speed.suite import SpeedSuite
from pytest_cutile.timing.measure.call import MeasurementFailed
from pytest_cutile.words.timing import Skipped
from pytest_cutile.words.verdicts import Judgement, Reason, Verdict
from tests.gates.speed.simulated import (
    RULE,
    WORK,
    FakeStore,
    Fresh,
    make_case,
    make_context,
    measured,
    paired,
    settle,
    stored,
    unpaired,
)

DRIVER = ("driver: 580 -> 590",)
FIRST, LAST = RULE.looks[0], RULE.looks[-1]


def scattered(*changes):
    """Return a process that measures one of these changes after the other."""
    left = itertools.cycle(changes)
    return lambda: measured(next(left))


# -- paired -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("again", "reason", "processes"),
    [
        (lambda: measured(0.05), Reason.SLOWER, FIRST),
        (lambda: measured(0.0), Reason.WITHIN_MARGIN, FIRST),
        (lambda: measured(-0.1), Reason.FASTER, FIRST),
        (scattered(0.05, -0.05), Reason.NOISY, LAST),
        (scattered(0.0, 0.1), Reason.NOISY, LAST),  # bimodal
        (scattered(0.0, 0.0, 0.3, 0.0, 0.0, 0.0, 0.0), Reason.WITHIN_MARGIN, RULE.looks[1]),  # a hiccup
    ],
)
def test_fresh_processes_decide_a_suspect(again, reason, processes):
    case, fresh = settle(screening=measured(0.05), again=again)
    assert case.so_far.judgement.reason is reason
    assert fresh.processes == processes


@pytest.mark.parametrize("sustained", [0.05, 0.0])
def test_a_suspect_in_one_regime_alone_is_decided_in_that_one(sustained):
    case, fresh = settle(screening=measured(0.0, 0.05), again=lambda: measured(0.0, sustained))
    assert case.so_far.judgement.reason is (Reason.SLOWER if sustained else Reason.WITHIN_MARGIN)
    assert fresh.requests[0].sustained
    assert fresh.requests[0].revision == "abc1234"


def test_a_suspect_in_bursts_is_not_measured_sustained():
    _, fresh = settle(screening=measured(0.05, 0.0), again=lambda: measured(0.05))
    assert not fresh.requests[0].sustained


@pytest.mark.parametrize(
    ("burst", "sustained", "reason", "asked"),
    [
        (0.05, 0.05, Reason.SLOWER, [False]),  # slower in one regime is slower
        (0.0, 0.05, Reason.SLOWER, [False, True]),
        (0.0, 0.0, Reason.WITHIN_MARGIN, [False, True]),
    ],
)
def test_a_suspect_in_both_regimes_is_measured_sustained_when_bursts_have_cleared_it(
    burst, sustained, reason, asked
):
    case, fresh = settle(screening=measured(0.05, 0.05), again=lambda: measured(burst, sustained))
    assert case.so_far.judgement.reason is reason
    assert [request.sustained for request in fresh.requests] == asked


def test_a_kernel_that_power_does_not_limit_in_fresh_processes_is_not_slower_by_it():
    case, _ = settle(screening=measured(0.0, 0.05), again=lambda: measured(0.0))
    assert case.so_far.judgement.reason is Reason.WITHIN_MARGIN


def test_one_process_of_three_does_not_decide_a_regime():
    measurements = itertools.chain([measured(0.0, 0.06)], itertools.repeat(measured(0.0)))
    case, _ = settle(screening=measured(0.0, 0.06), again=lambda: next(measurements))
    assert case.so_far.judgement.reason is Reason.NOISY


@pytest.mark.parametrize(
    ("skipped", "reason"),
    [
        (Skipped(reason="the SM clock stays at 1980 MHz", not_limited=True), Reason.WITHIN_MARGIN),
        (Skipped(reason="the GPU is short of memory"), Reason.NOISY),
    ],
)
def test_a_suspect_in_both_regimes_that_cannot_be_measured_sustained_says_why(skipped, reason):
    reasons = itertools.chain([None] * FIRST, itertools.repeat(skipped))  # at first bursts alone
    case, _ = settle(
        screening=measured(0.05, 0.05),
        again=lambda: replace(measured(0.0), sustained_skipped=next(reasons)),
    )
    assert case.so_far.judgement.reason is reason
    assert (skipped.reason in case.so_far.judgement.detail) == (reason is Reason.NOISY)


def test_a_slow_placement_in_eight_is_no_pass():
    def again():
        one = measured(0.0)
        slow = replace(one.burst[0], current_us=(300.0, 300.0))
        return replace(one, burst=(slow, *one.burst[1:]))

    case, _ = settle(screening=again(), again=again)
    assert judge_screening("k[c]", paired(), again()).reason is Reason.UNCONFIRMED
    assert case.so_far.judgement.reason is Reason.NOISY


def test_what_the_timer_cannot_resolve_is_told():
    tiny = replace(measured(0.0), tick_us=25.0)
    judgement = judge_screening("k[c]", paired(), tiny)
    assert judgement.reason is Reason.WITHIN_MARGIN
    assert judgement.detail == "k[c]: the timer's tick of 25 us hides changes below 27.0% in bursts"
    assert not judge_screening("k[c]", paired(), measured(0.0)).detail


def test_the_message_tells_both_regimes():
    case, _ = settle(
        screening=measured(0.0, 0.08), again=lambda: measured(0.0, 0.08), comparison=paired(stored=stored())
    )
    message = case.so_far.failure
    title = "k[c] on sm_90 (NVIDIA H200) is 8.0% slower than its baseline under sustained load."
    assert message.startswith(title)
    for text in (
        "burst",
        "sustained",
        "95 % interval",
        "placements of the buffers within ",
        "3 fresh processes",
    ):
        assert text in message


def test_a_suspect_that_scatters_says_what_could_have_been_seen():
    case, _ = settle(screening=measured(0.05), again=scattered(0.05, -0.05))
    assert "12 fresh processes measured" in case.so_far.judgement.detail
    assert "could have been seen for certain" in case.so_far.judgement.detail


def test_slow_cases_among_many_are_told_apart():
    rng = random.Random(0)
    suite = SpeedSuite(make_context())
    slow = {"k[3]", "k[7]"}
    for number in range(12):
        case, screening = make_case(f"k[{number}]"), measured(0.03, rng=rng)
        suite.add(case, paired(), judge_screening(case.key, paired(), screening), screening)
    pending = suite.pending
    suite.settle(
        Fresh(
            **{case.case.key: lambda key: measured(0.03 if key in slow else 0.0, rng=rng) for case in pending}
        )
    )
    judged = {case.case.key: case.so_far for case in pending}
    assert {key for key, one in judged.items() if one.judgement.verdict is Verdict.REGRESSION} == slow
    assert {key for key, one in judged.items() if one.failure} == slow
    assert not suite.pending


# -- environment --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changes", "reason"), [(DRIVER, Reason.ENVIRONMENT), ((), Reason.DISTURBED)])
def test_both_kernels_slower_than_stored_is_the_environment_or_the_gpu(changes, reason):
    comparison = paired(stored=stored(), environment_changes=changes)
    case, _ = settle(
        screening=measured(baseline=0.1), again=lambda: measured(baseline=0.1), comparison=comparison
    )
    judgement = case.so_far.judgement
    assert judgement.reason is reason
    assert judgement.change == pytest.approx(0.1, abs=1e-3)
    assert bool(case.so_far.failure) is (reason is Reason.ENVIRONMENT)
    assert ("driver: 580 -> 590" in judgement.detail) is (reason is Reason.ENVIRONMENT)


def test_the_environment_may_act_sustained_alone():
    slow = measured(0.0, 0.0, baseline=0.1)
    quick = {regime: one for regime, one in stored(120.0).items() if str(regime) == "burst"}
    comparison = paired(stored={**stored(), **quick}, environment_changes=DRIVER)
    case, fresh = settle(screening=slow, again=lambda: slow, comparison=comparison)
    assert fresh.requests[0].sustained
    assert case.so_far.judgement.reason is Reason.ENVIRONMENT


def test_slow_times_that_fresh_processes_do_not_see_pass():
    comparison = paired(stored=stored(), environment_changes=DRIVER)
    case, _ = settle(screening=measured(baseline=0.1), again=measured, comparison=comparison)
    assert case.so_far.judgement.reason is Reason.WITHIN_MARGIN


# -- stored times alone -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("again", "reason"),
    [
        (lambda: measured(0.1), Reason.SLOWER),
        (lambda: measured(0.04), Reason.UNANCHORED),
        (lambda: measured(0.0), Reason.WITHIN_MARGIN),
        (lambda: measured(0.1, problems=("the GPU is busy",)), Reason.DISTURBED),
        (lambda: measured(0.0, scatter=0.3), Reason.NOISY),
    ],
)
def test_without_a_baseline_kernel_stored_times_decide_after_one_look(again, reason):
    case, fresh = settle(screening=measured(0.1), again=again, comparison=unpaired())
    judgement = case.so_far.judgement
    assert judgement.reason is reason
    assert fresh.processes == FIRST
    assert fresh.requests[0].revision == ""
    if reason is Reason.UNANCHORED:
        assert "abc1234 is not in this clone" in judgement.detail


@pytest.mark.parametrize(("burst", "sustained"), [(0.03, 0.08), (0.08, 0.03), (0.025, 0.5)])
def test_without_a_baseline_kernel_both_regimes_are_measured_in_the_only_look(burst, sustained):
    case, fresh = settle(
        screening=measured(burst, sustained), again=lambda: measured(burst, sustained), comparison=unpaired()
    )
    assert case.so_far.judgement.reason is Reason.SLOWER
    assert case.so_far.judgement.change == pytest.approx(max(burst, sustained), abs=0.002)
    assert [request.sustained for request in fresh.requests] == [True]


def test_a_disturbed_gpu_does_not_excuse_a_pair():
    case, _ = settle(screening=measured(0.1), again=lambda: measured(0.1, problems=("the GPU is busy",)))
    assert case.so_far.judgement.reason is Reason.SLOWER
    assert "the GPU is busy" in case.so_far.failure


def test_a_published_figure_may_be_missed():
    figure = Published(work=WORK, median_us=100.0, margin=0.15, source="a table")
    case, _ = settle(
        screening=measured(0.2),
        again=lambda: measured(0.2),
        comparison=PublishedFigure(rule=RULE, published=figure),
    )
    assert case.so_far.judgement.reason is Reason.BELOW_PUBLISHED
    assert "a table" in case.so_far.failure


# -- what goes wrong ----------------------------------------------------------------------------------


def test_a_lost_process_fails_its_case():
    case, _ = settle(screening=measured(0.05), again=lambda: None)
    assert case.so_far.judgement.reason is Reason.NOT_TIMED
    assert "the fresh process that was to measure it again ended before it did" in case.so_far.failure


def test_a_fresh_process_that_could_not_measure_says_why():
    error = MeasurementFailed(Reason.ABOVE_LIMIT, "k[c]: 9000 GB/s\nCheck that work is counted.")
    case, _ = settle(screening=measured(0.05), again=lambda: error)
    assert case.so_far.judgement == Judgement(reason=Reason.ABOVE_LIMIT, detail="k[c]: 9000 GB/s")
    assert case.so_far.failure == str(error)


def pending_suite(**settings):
    suite = SpeedSuite(make_context(**settings))
    screening = measured(0.05)
    suite.add(make_case(), paired(), judge_screening("k[c]", paired(), screening), screening)
    return suite


def test_after_an_unexpected_error_nothing_pending_passes():
    suite = pending_suite()
    [case] = suite.pending
    suite.fail(RuntimeError("no more memory"))
    assert "RuntimeError: no more memory" in case.so_far.failure
    assert not suite.pending


@pytest.mark.parametrize("strict", [False, True])
def test_a_stopped_run_leaves_suspects_unconfirmed(strict):
    suite = pending_suite(strict=strict)
    [case] = suite.pending
    suite.give_up()
    outcome = case.so_far
    assert outcome.judgement.reason is Reason.UNCONFIRMED
    assert bool(outcome.failure) is strict


def test_a_stopped_run_says_that_nothing_was_recorded():
    suite = pending_suite(update_baselines=True)
    suite.give_up()
    assert suite.remarks == ["1 case not recorded: the run was stopped"]


def test_each_recorded_case_has_three_runs_whether_or_not_its_screening_counts():
    store = FakeStore()
    context = make_context(store, update_baselines=True)
    suite = SpeedSuite(context)
    for key, change in (("unchanged", 0.0), ("suspect", 0.05)):
        case, screening = make_case(key), measured(change)
        suite.add(case, paired(), judge_screening(key, paired(), screening), screening)
    fresh = Fresh(unchanged=lambda _: measured(), suspect=lambda _: measured())
    suite.settle(fresh)
    records = {key: entry.records[-1] for key, entry in store.baselines.entries.items()}
    assert {key: len(record.runs) for key, record in records.items()} == {"unchanged": 3, "suspect": 3}
    assert len(fresh.requests) == 2


def test_a_file_that_cannot_be_written_fails_every_case():
    class FullStore(FakeStore):
        def record_speed(self, *_: Any) -> None:
            raise BaselineError("no space left")

    context = make_context(FullStore(), update_baselines=True)
    case, _ = settle(screening=measured(), again=measured, context=context)
    assert (case.so_far.judgement.reason, case.so_far.failure) == (
        Reason.BAD_BASELINE,
        "no space left",
    )
