"""What the speed gate makes of fresh processes, without any."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cutile.core.comparisons import DuetComparison, StoredRuns
from pytest_cutile.core.speed_rule import Rule
from pytest_cutile.core.verdicts import Judgement, Reason
from pytest_cutile.gates.measuring import Unmeasured
from pytest_cutile.gates.speed import SpeedCase
from pytest_cutile.gates.suite import SpeedSuite
from tests.core.test_comparisons import DENSE, H200, HERE, MM, THERE, measured, stored_entry

RULE = Rule()
FIRST = measured((44.0, 100.0), work=DENSE)
UNCONFIRMED = Judgement(reason=Reason.UNCONFIRMED, change=0.1)


def settle(*again: Any, first=FIRST, device=HERE, revision="", commit="", identity="", environment=None):
    """Settle one case screened as `first`; return its outcome and how often it was measured again."""
    entry = replace(stored_entry(first.work), provenance={"commit": commit}, identity=identity)
    stored = StoredRuns({"k": entry}, rule=RULE, platform=H200)
    settings = SimpleNamespace(
        rule=RULE, update_baselines=False, strict=False, baseline_revision=None, baseline_option=""
    )
    engine: Any = SimpleNamespace(
        stored_runs=stored,
        settings=settings,
        duet=None,
        has_commit=lambda name: name == "abc",
        progress=lambda _: None,
        gpu_lock=SimpleNamespace(alone=nullcontext),
        timer=SimpleNamespace(environment=lambda: environment or {**entry.environment}),
        shown_baseline_file="baselines/x.json",
    )
    case = SpeedCase(
        key="k",
        identity="k",
        kernel="k",
        case="c",
        nodeid="x.py::k",
        arch="sm_90",
        work=first.work,
        call=lambda: pytest.fail("nothing is run here"),
        compiled=SimpleNamespace(),  # type: ignore[arg-type]
    )
    compilations: Any = SimpleNamespace(identity=lambda _: "same")
    suite = SpeedSuite(engine, compilations)
    suite.add(case, stored.compare(entry, device, MM), UNCONFIRMED, first, is_open=True, records=False)
    (opened,) = suite.open
    left = list(again)
    beside = []

    def measure_again(_: Any, revision: str) -> Any:
        beside.append(revision)
        return {"k": left.pop(0)} if left else {}

    suite.settle(measure_again)
    assert revision is None or set(beside) <= {revision}
    assert opened.outcome is not None
    return opened.outcome, len(again) - len(left)


def test_a_suspect_that_fresh_processes_do_not_confirm_passes():
    outcome, processes = settle(*[measured((40.0, 100.0), work=DENSE)] * 12)
    assert (outcome.judgement.reason, outcome.failure) == (Reason.WITHIN_MARGIN, None)
    assert processes <= RULE.looks[0]


def test_a_suspect_that_they_confirm_fails():
    outcome, processes = settle(*[FIRST] * 12)
    assert outcome.judgement.reason is Reason.SLOWER
    assert outcome.judgement.change == pytest.approx(0.1)
    assert outcome.failure is not None
    assert processes == RULE.looks[0]


@pytest.mark.parametrize("control", ["", MM.replace("2.11", "2.12")])
def test_a_fresh_process_without_the_control_that_is_followed_is_no_slowdown(control):
    other = replace(measured((40.0, 0.5), work=DENSE), control=control)
    outcome, _ = settle(other, other, other)
    assert outcome.judgement.reason is Reason.NOT_TIMED
    assert outcome.failure is not None
    assert f"not beside {MM}" in outcome.failure


@pytest.mark.parametrize("again", [[], [Unmeasured(Reason.NOT_TIMED, "k: it crashed")], [FIRST]])
def test_a_case_that_was_lost_is_an_error_and_no_pass(again):
    outcome, _ = settle(*again)
    assert outcome.judgement.reason is Reason.NOT_TIMED
    assert outcome.failure is not None


# -- beside the kernel that the baseline was recorded from --------------------------------------------


def duet(own, base):
    return measured((own, base), control="", work=DENSE)


@pytest.mark.parametrize(
    ("base", "reason"), [(40.7, Reason.WITHIN_MARGIN), (40.5, Reason.WITHIN_MARGIN), (39.5, Reason.SLOWER)]
)
@pytest.mark.parametrize("device", [HERE, THERE], ids=["here", "there"])
def test_what_the_baseline_was_recorded_from_decides(base, reason, device):
    first = measured((40.7, 100.0), work=DENSE)
    outcome, _ = settle(*[duet(40.7, base)] * 12, first=first, device=device, revision="abc", commit="abc")
    assert outcome.judgement.reason is reason
    if reason is Reason.SLOWER:
        assert outcome.judgement.change == pytest.approx(40.7 / 39.5 - 1)
        assert "abc, which took turns with it" in outcome.failure
        assert "and which baselines/x.json was recorded from" in outcome.failure
        assert "--update-baselines --reason" in outcome.failure


@pytest.mark.parametrize("commit", ["", "abc+", "gone"])
def test_without_that_commit_the_stored_times_decide(commit):
    outcome, _ = settle(*[FIRST] * 12, device=THERE, commit=commit)
    assert outcome.judgement.reason is Reason.SLOWER


def test_with_another_compiler_they_do():
    outcome, _ = settle(*[FIRST] * 12, commit="abc", environment={"tileiras": "14.0"})
    assert outcome.judgement.reason is Reason.SLOWER


def test_a_launcher_of_then_that_does_not_know_the_case_leaves_it_to_them():
    lacks = Unmeasured(Reason.NOT_IN_REVISION, "the launcher as of abc raised TypeError")
    outcome, processes = settle(lacks, *[FIRST] * 3, commit="abc", revision=None)
    assert outcome.judgement.reason is Reason.SLOWER
    assert processes == 4


def test_the_same_code_that_is_slower_beside_the_kernel_of_then_is_a_regression():
    """What a launcher does beside its kernels is not in their code."""
    outcome, _ = settle(*[duet(44.0, 42.7)] * 12, commit="abc", revision="abc", identity="same")
    assert outcome.judgement.reason is Reason.SLOWER


@pytest.mark.parametrize("device", [HERE, THERE], ids=["here", "there"])
def test_both_kernels_being_slower_than_what_was_recorded_is_no_pass(device):
    outcome, _ = settle(*[duet(46.0, 46.0)] * 12, device=device, commit="abc", revision="abc")
    assert outcome.judgement.reason is Reason.ENVIRONMENT
    assert outcome.judgement.change == pytest.approx(0.15)
    assert "so is the kernel of abc" in outcome.judgement.detail


@pytest.mark.parametrize(
    ("now", "then"),
    [(40.0, 40.0), (40.1, 40.0), (40.0, 46.0), (40.3, 40.3)],
    ids=["neither", "hardly", "only the kernel of then", "both within the margin"],
)
def test_a_slow_screening_alone_says_nothing(now, then):
    outcome, _ = settle(*[duet(now, then)] * 12, commit="abc", revision="abc")
    assert outcome.judgement.reason is Reason.WITHIN_MARGIN
    assert outcome.failure is None


def test_a_board_that_is_slower_as_its_control_is_makes_no_doubt():
    """In a duet no control is measured: that of the screening tells of the board."""
    first = measured((44.0, 112.0), work=DENSE)
    outcome, _ = settle(*[duet(44.0, 44.0)] * 12, first=first, device=THERE, commit="abc", revision="abc")
    assert outcome.judgement.reason is Reason.WITHIN_MARGIN


def test_the_same_code_is_the_environments_fault_on_a_board_that_is_known():
    outcome, _ = settle(*[FIRST] * 12, identity="same")
    assert outcome.judgement.reason is Reason.ENVIRONMENT
    assert outcome.failure is None


@pytest.mark.parametrize(("collected", "chances"), [(1, 1), (200, 200)])
def test_only_suspects_count_where_two_kernels_take_turns(collected, chances):
    """A worker that compared a few of many cases has as small a share of the chances."""
    stored = StoredRuns({"k": stored_entry(DENSE)}, rule=RULE, platform=H200)
    comparison = stored.compare(stored_entry(DENSE), HERE, MM)
    suite = SpeedSuite(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    for key in ("suspect", "fine"):
        case: Any = SimpleNamespace(key=key)
        suite.add(case, comparison, UNCONFIRMED, FIRST, is_open=key == "suspect", records=False)
    suite.collected = 2 * collected
    suite._suspects = len(suite.open)
    assert suite._family_of(DuetComparison(rule=RULE, revision="abc")) == chances
    assert suite._family_of(comparison) == 2 * collected
