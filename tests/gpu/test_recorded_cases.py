"""Recording on a board that the entries have no runs of: the board is told from the code."""

from dataclasses import replace

import pytest

from pytest_cutile.core.comparisons import StoredRuns
from pytest_cutile.core.verdicts import Reason
from tests.core.test_comparisons import H200, HERE, MM, measured, stored_entry
from tests.gpu.test_suite import RULE, UNCONFIRMED, make_case, make_suite


def record_abroad(changes, then=None, *, commit="abc", identity="", checkout=""):
    """Record cases that are slower by `changes` than another board's runs; return their open cases.

    Args:
        changes: By how much each of them is slower than recorded.
        then: Likewise their kernels of then; None where git has none.
        commit: That the baseline was recorded at.
        identity: Of the compiled code that was recorded.
        checkout: The commit that is under test.
    """
    found = {f"k[{n}]": measured((40.0 * (1 + by), 100.0)) for n, by in enumerate(changes)}
    beside = {
        f"k[{n}]": measured((40.0 * (1 + now), 40.0 * (1 + by)), control="")
        for n, (now, by) in enumerate(zip(changes, then or changes, strict=True))
    }
    runs = tuple(replace(run, gpu_uuid="GPU-7") for run in stored_entry().runs)
    entry = replace(
        stored_entry(), runs=runs, identity=identity, provenance={"commit": commit if then else "gone"}
    )
    stored = StoredRuns(dict.fromkeys(found, entry), rule=RULE, platform=H200)
    suite = make_suite(stored, {**entry.environment}, checkout)
    suite._engine.settings.update_baselines = True
    for key, first in found.items():
        comparison = stored.compare(entry, HERE, MM)
        suite.add(make_case(key, first), comparison, UNCONFIRMED, first, is_open=True, records=True)
    opened = list(suite.open)
    suite.settle(
        lambda cases, revision: {c.case.key: (beside if revision else found)[c.case.key] for c in cases}
    )
    return opened


@pytest.fixture
def recordings(monkeypatch):
    """What is about to be recorded, by key."""
    found = {}

    def take(_, taken):
        found.update({each.key: each for each in taken})
        return {}

    monkeypatch.setattr("pytest_cutile.gates.recorded_cases.record", take)
    return found


def reasons_of(opened):
    return {each.decided.judgement.reason for each in opened}


def test_code_that_made_a_whole_class_slower_is_not_recorded_as_a_board():
    """Beside their kernels of then, as the gate asks."""
    opened = record_abroad([0.03] * 12, [0.0] * 12)
    assert reasons_of(opened) == {Reason.SUITE_SLOWER}
    assert all(each.decided.failure for each in opened)
    assert "abc, which took turns with it" in opened[0].decided.failure


def test_a_board_that_makes_a_whole_class_slower_is_recorded():
    opened = record_abroad([0.025] * 12, [0.025] * 12)
    assert not {Reason.SLOWER, Reason.SUITE_SLOWER, Reason.ENVIRONMENT} & reasons_of(opened)


@pytest.mark.parametrize("by", [0.012, 0.03])
@pytest.mark.parametrize(
    ("identity", "refused"), [("", True), ("same", False)], ids=["may be the code", "the same code"]
)
def test_a_class_that_nothing_tells_of_is_recorded_only_if_its_code_is_the_same(by, identity, refused):
    opened = record_abroad([by] * 12, identity=identity)
    assert (reasons_of(opened) == {Reason.ENVIRONMENT}) is refused
    assert not any(each.decided.failure for each in opened)
    if refused:
        assert "nothing tells the board from the code: git lacks gone" in opened[0].judgement.detail


@pytest.mark.parametrize("identity", ["", "same"])
def test_a_kernel_of_then_that_is_as_slow_on_a_new_board_clears_the_code(identity):
    (*others, slow) = record_abroad([0.0] * 11 + [0.05], [0.0] * 11 + [0.05], identity=identity)
    assert slow.as_then
    assert slow.decided.judgement.reason in (Reason.ENVIRONMENT, Reason.WITHIN_MARGIN)
    assert slow.decided.failure is None
    assert not any(each.decided.failure for each in others)


def test_one_that_is_slower_than_its_kernel_of_then_is_a_regression_on_a_new_board():
    slow = record_abroad([0.0] * 11 + [0.05], [0.0] * 12)[-1]
    assert not slow.as_then
    assert slow.decided.judgement.reason is Reason.SLOWER
    assert slow.decided.failure is not None


@pytest.mark.parametrize(
    ("identity", "reason"), [("", Reason.ENVIRONMENT), ("other", Reason.SLOWER)], ids=["unknown", "other"]
)
def test_without_a_kernel_of_then_a_new_board_may_be_what_is_slower(identity, reason):
    slow = record_abroad([0.0] * 11 + [0.06], identity=identity)[-1]
    assert slow.decided.judgement.reason is reason
    assert (slow.decided.failure is None) is (reason is Reason.ENVIRONMENT)


def test_other_code_that_is_as_fast_is_told_from_a_new_board_by_its_kernel_of_then(recordings):
    """Boards differ by more than what small steps may add up to."""
    opened = record_abroad([0.006] * 12, [0.006] * 12, identity="other")
    assert all(each.as_then for each in opened)
    assert reasons_of(opened) == {Reason.WITHIN_MARGIN}
    assert {each.change for each in recordings.values()} == {0.0}


def test_what_other_code_costs_beside_its_kernel_of_then_is_what_is_recorded_as_a_step(recordings):
    opened = record_abroad([0.002] * 11 + [0.008], [0.002] * 12, identity="other")
    assert all(each.as_then for each in opened)
    assert recordings["k[11]"].change == pytest.approx(0.006, abs=2e-4)
    assert recordings["k[0]"].change == 0.0


def test_the_same_code_on_a_new_board_needs_no_kernel_of_then():
    opened = record_abroad([0.006] * 12, [0.006] * 12, identity="same")
    assert not any(each.as_then for each in opened)
    assert not any(each.decided.failure for each in opened)


def test_other_code_without_its_kernel_of_then_stays_undecided_on_a_new_board():
    opened = record_abroad([0.006] * 12, identity="other")
    assert not any(each.as_then for each in opened)
    assert reasons_of(opened) == {Reason.NOISY}
    assert "git lacks gone" in opened[0].judgement.detail
