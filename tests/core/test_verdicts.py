import random

import pytest

from pytest_cutile.core.verdicts import (
    ERRORS,
    SUSPECT,
    UNDECIDED,
    VERDICT_OF,
    Judgement,
    Reason,
    Rule,
    Verdict,
    judge_times,
)

RULE = Rule(margin=0.03, noise_limit=0.10, attempts=3)


@pytest.mark.parametrize(
    ("medians", "spread", "reason"),
    [
        ([100.0], 0.005, Reason.WITHIN_MARGIN),
        ([102.9], 0.005, Reason.WITHIN_MARGIN),
        ([103.1], 0.005, Reason.SLOWER),
        ([105.0, 104.0, 106.0], 0.005, Reason.SLOWER),
        ([105.0, 101.0, 102.0], 0.005, Reason.WITHIN_MARGIN),  # further looks clear it
        ([108.0, 104.0, 101.0], 0.005, Reason.UNSTEADY),
        ([96.9], 0.005, Reason.FASTER),
        ([96.0, 100.0, 99.0], 0.005, Reason.WITHIN_MARGIN),
        ([92.0, 96.0, 99.0], 0.005, Reason.UNSTEADY),
        ([100.0], 0.12, Reason.NOISY),
        ([70.0], 0.58, Reason.NOISY),  # no improvement can be seen in that
        ([105.0] * 3, 5.0, Reason.NOISY),
        ([150.0] * 3, 0.2, Reason.SLOWER),  # but a change beyond the spread can
    ],
)
def test_judge_times(medians, spread, reason):
    judgement = judge_times(medians, spread, 100.0, RULE)
    assert judgement.reason is reason
    assert judgement.verdict is VERDICT_OF[reason]


def test_every_reason_belongs_to_one_verdict():
    assert set(VERDICT_OF) == set(Reason)
    assert set(VERDICT_OF.values()) == set(Verdict)


def test_errors_and_undecided_never_are_a_pass():
    assert all(VERDICT_OF[reason] is not Verdict.PASS for reason in ERRORS)
    assert Verdict.PASS not in UNDECIDED
    assert Verdict.REGRESSION not in UNDECIDED


@pytest.mark.parametrize("margin", [0.0, -0.1, 1.0, 5.0])
def test_a_margin_that_is_no_fraction_is_rejected(margin):
    with pytest.raises(ValueError, match="fraction between 0 and 1"):
        Rule(margin=margin)


def test_no_attempts_are_rejected():
    with pytest.raises(ValueError, match="at least once"):
        Rule(attempts=0)


def simulate(slowdown: float, trials: int = 4000) -> float:
    """Share of trials called a regression, with a process offset of 0.7 % and 0.4 % between measurements."""
    generator = random.Random(7)
    caught = 0
    for _ in range(trials):
        process = generator.gauss(0, 0.007)
        medians: list[float] = []
        while len(medians) < RULE.attempts:
            medians.append(100 * (1 + slowdown + process + generator.gauss(0, 0.004)))
            judgement = judge_times(medians, 0.005, 100.0, RULE)
            if judgement.reason not in SUSPECT:
                break
        caught += judgement.verdict is Verdict.REGRESSION
    return caught / trials


def test_a_clean_kernel_passes_and_a_slow_one_is_caught():
    # The noise of an H200 (2026-11-21): medians move by 0.3 to 0.7 % between processes.
    assert simulate(0.0) == 0.0
    assert simulate(0.05) > 0.97
    assert simulate(0.08) == 1.0


def test_change_is_relative_time():
    assert judge_times([106.0] * 3, 0.0, 100.0, RULE).change == pytest.approx(0.06)
    assert Judgement(reason=Reason.NO_GPU).change is None
