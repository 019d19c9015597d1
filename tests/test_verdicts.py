import pytest

from pytest_cutile.verdicts import ERRORS, UNDECIDED, VERDICT_OF, Judgement, Reason, Verdict


def test_every_reason_belongs_to_one_verdict():
    assert set(VERDICT_OF) == set(Reason)
    assert set(VERDICT_OF.values()) == set(Verdict) - {Verdict.FAIL}  # which needs none


def test_errors_and_undecided_never_are_a_pass():
    assert all(VERDICT_OF[reason] in UNDECIDED for reason in ERRORS)
    assert UNDECIDED.isdisjoint({Verdict.PASS, Verdict.REGRESSION, Verdict.IMPROVEMENT})


@pytest.mark.parametrize("reason", [Reason.NOISY, Reason.DISTURBED, Reason.UNANCHORED, Reason.UNCONFIRMED])
def test_what_may_be_slower_and_is_not_shown_to_be_is_undecided(reason):
    assert Judgement(reason=reason, change=0.05).verdict is Verdict.INCONCLUSIVE
    assert reason not in ERRORS


@pytest.mark.parametrize("reason", Reason)
def test_an_error_fails_and_other_reasons_keep_their_verdict(reason):
    expected = Verdict.FAIL if reason in ERRORS else VERDICT_OF[reason]
    assert Judgement(reason=reason).result_verdict is expected


def test_a_judgement_without_a_measurement_has_no_change():
    assert Judgement(reason=Reason.NO_GPU).change is None
