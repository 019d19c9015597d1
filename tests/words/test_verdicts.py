from typing import get_args

import pytest

from pytest_cutile.tile.interpreter.faults import FaultKind
from pytest_cutile.words.verdicts import FAILED, UNDECIDED, Judgement, Reason, Verdict


def test_every_verdict_has_a_reason():
    assert {reason.verdict for reason in Reason} == set(Verdict)
    assert all(reason.gates for reason in Reason)


def test_a_verdict_fails_or_is_undecided_or_good():
    assert FAILED.isdisjoint(UNDECIDED)
    assert set(Verdict) - FAILED - UNDECIDED == {Verdict.PASS, Verdict.IMPROVEMENT}


@pytest.mark.parametrize("reason", [Reason.NOISY, Reason.DISTURBED, Reason.UNANCHORED, Reason.UNCONFIRMED])
def test_what_may_be_slower_and_is_not_shown_to_be_is_undecided(reason):
    assert Judgement(reason=reason, change=0.05).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    "reason",
    [
        Reason.BAD_BASELINE,
        Reason.NOT_TIMED,
        Reason.SAME_KERNEL,
        Reason.BAD_SAMPLES,
        Reason.ABOVE_LIMIT,
    ],
)
def test_what_is_broken_fails_although_nothing_is_slower(reason):
    assert Judgement(reason=reason).verdict is Verdict.FAIL


@pytest.mark.parametrize("kind", get_args(FaultKind))
def test_every_fault_of_the_interpreter_is_a_reason_of_the_gate_correct(kind):
    (reason,) = (reason for reason in Reason if reason == kind)
    assert "correct" in reason.gates
    assert reason.verdict is (Verdict.NOT_MEASURED if kind == "not-interpreted" else Verdict.FAIL)


def test_a_judgement_without_a_measurement_has_no_change():
    assert Judgement(reason=Reason.NO_GPU).change is None
