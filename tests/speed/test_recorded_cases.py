"""Recording on a GPU that the entries have no runs of: the GPU is told from the code."""

import pytest
from msgspec import structs
from pytest_cutile.speed.comparisons import StoredRuns

from pytest_cutile.verdicts import Reason
from tests.speed.test_comparisons import H200, HERE, MM, measured, stored_entry
from tests.speed.test_suite import RULE, UNCONFIRMED, make_case, make_suite


def record_abroad(changes, baseline=None, *, commit="abc", fingerprint="", checkout=""):
    """Record cases that are slower by `changes` than another GPU's runs; return the settled cases.

    Args:
        changes: By how much each of them is slower than recorded.
        baseline: Likewise their baseline kernels; None where git has none.
        commit: That the baseline was recorded at.
        fingerprint: Of the compiled code that was recorded.
        checkout: The commit that is under test.
    """
    screened = {f"k[{n}]": measured((40.0 * (1 + by), 100.0)) for n, by in enumerate(changes)}
    paired = {
        f"k[{n}]": measured((40.0 * (1 + current), 40.0 * (1 + by)), reference_workload="")
        for n, (current, by) in enumerate(zip(changes, baseline or changes, strict=True))
    }
    runs = tuple(structs.replace(run, gpu_uuid="GPU-7") for run in stored_entry().runs)
    entry = structs.replace(
        stored_entry(),
        runs=runs,
        fingerprint=fingerprint,
        provenance={"commit": commit if baseline else "gone"},
    )
    stored = StoredRuns(dict.fromkeys(screened, entry), rule=RULE, platform=H200)
    suite = make_suite(stored, {**entry.environment}, checkout)
    suite._context.settings.update_baselines = True
    for key, first in screened.items():
        comparison = stored.compare(entry, HERE, MM)
        suite.add(make_case(key, first), comparison, UNCONFIRMED, first, is_pending=True, records=True)
    numbers = [case.number for case in suite.pending]
    suite.settle(
        lambda cases, revision: {c.case.key: (paired if revision else screened)[c.case.key] for c in cases}
    )
    return [suite.current(number) for number in numbers]


@pytest.fixture
def recordings(monkeypatch):
    """What is about to be recorded, by key."""
    found = {}

    def take(_, taken):
        found.update({each.key: each for each in taken})
        return {}

    monkeypatch.setattr("pytest_cutile.speed.recorded_cases.record", take)
    return found


def reasons_of(settled):
    return {each.decided.judgement.reason for each in settled}


def test_code_that_made_a_whole_stratum_slower_is_not_recorded_as_a_gpu():
    """Beside their baseline kernels, as the gate asks."""
    settled = record_abroad([0.03] * 12, [0.0] * 12)
    assert reasons_of(settled) == {Reason.SUITE_SLOWER}
    assert all(each.decided.failure for each in settled)
    assert "abc, interleaved with the working tree" in settled[0].decided.failure


def test_a_gpu_that_makes_a_whole_stratum_slower_is_recorded():
    settled = record_abroad([0.025] * 12, [0.025] * 12)
    assert not {Reason.SLOWER, Reason.SUITE_SLOWER, Reason.ENVIRONMENT} & reasons_of(settled)


@pytest.mark.parametrize("by", [0.012, 0.03])
@pytest.mark.parametrize(
    ("fingerprint", "refused"), [("", True), ("same", False)], ids=["may be the code", "the same code"]
)
def test_an_unexplained_stratum_is_recorded_only_if_its_code_is_the_same(by, fingerprint, refused):
    settled = record_abroad([by] * 12, fingerprint=fingerprint)
    assert (reasons_of(settled) == {Reason.ENVIRONMENT}) is refused
    assert not any(each.decided.failure for each in settled)
    if refused:
        assert "nothing tells the GPU from the code: git lacks gone" in settled[0].judgement.detail


@pytest.mark.parametrize("fingerprint", ["", "same"])
def test_a_baseline_kernel_that_is_as_slow_on_a_new_gpu_clears_the_code(fingerprint):
    (*others, slow) = record_abroad([0.0] * 11 + [0.05], [0.0] * 11 + [0.05], fingerprint=fingerprint)
    assert slow.code_is_no_slower
    assert slow.decided.judgement.reason in (Reason.ENVIRONMENT, Reason.WITHIN_MARGIN)
    assert slow.decided.failure is None
    assert not any(each.decided.failure for each in others)


def test_one_that_is_slower_than_its_baseline_kernel_is_a_regression_on_a_new_gpu():
    slow = record_abroad([0.0] * 11 + [0.05], [0.0] * 12)[-1]
    assert not slow.code_is_no_slower
    assert slow.decided.judgement.reason is Reason.SLOWER
    assert slow.decided.failure is not None


@pytest.mark.parametrize(
    ("fingerprint", "reason"), [("", Reason.ENVIRONMENT), ("other", Reason.SLOWER)], ids=["unknown", "other"]
)
def test_without_a_baseline_kernel_a_new_gpu_may_be_what_is_slower(fingerprint, reason):
    slow = record_abroad([0.0] * 11 + [0.06], fingerprint=fingerprint)[-1]
    assert slow.decided.judgement.reason is reason
    assert (slow.decided.failure is None) is (reason is Reason.ENVIRONMENT)


def test_other_code_that_is_as_fast_is_told_from_a_new_gpu_by_its_baseline_kernel(recordings):
    """GPUs differ by more than what small steps may add up to."""
    settled = record_abroad([0.006] * 12, [0.006] * 12, fingerprint="other")
    assert all(each.code_is_no_slower for each in settled)
    assert reasons_of(settled) == {Reason.WITHIN_MARGIN}
    assert {each.evidence.change for each in recordings.values()} == {0.0}


def test_what_other_code_costs_compared_with_its_baseline_kernel_is_what_is_recorded_as_a_step(recordings):
    settled = record_abroad([0.002] * 11 + [0.008], [0.002] * 12, fingerprint="other")
    assert all(each.code_is_no_slower for each in settled)
    assert recordings["k[11]"].evidence.change == pytest.approx(0.006, abs=2e-4)
    assert recordings["k[0]"].evidence.change == 0.0


def test_the_same_code_on_a_new_gpu_needs_no_baseline_kernel():
    settled = record_abroad([0.006] * 12, [0.006] * 12, fingerprint="same")
    assert not any(each.code_is_no_slower for each in settled)
    assert not any(each.decided.failure for each in settled)


def test_other_code_without_its_baseline_kernel_stays_undecided_on_a_new_gpu():
    settled = record_abroad([0.006] * 12, fingerprint="other")
    assert not any(each.code_is_no_slower for each in settled)
    assert reasons_of(settled) == {Reason.NOISY}
    assert "git lacks gone" in settled[0].judgement.detail
