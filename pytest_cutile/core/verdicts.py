"""Verdicts, their reason codes, and the one place where a speed is judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pytest_cutile.core.statistics import median


class Verdict(StrEnum):
    """What a gate says of a case."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    INCONCLUSIVE = "inconclusive"
    NO_BASELINE = "no-baseline"
    NOT_COMPARABLE = "not-comparable"
    NOT_MEASURED = "not-measured"


class Reason(StrEnum):
    """Why a gate says so. Every reason belongs to one verdict (`VERDICT_OF`)."""

    WITHIN_MARGIN = "within-margin"
    """The change is smaller than the margin."""
    SLOWER = "slower"
    """Slower than the margin allows, in every measurement."""
    FASTER = "faster"
    """Faster by more than the margin."""
    UNSTEADY = "unsteady"
    """Repeated measurements disagree about which side of the margin the case is on."""
    NOISY = "noisy"
    """The samples scatter too much for the margin to mean anything."""
    NO_FILE = "no-file"
    """There is no baseline file for this platform."""
    NO_ENTRY = "no-entry"
    """The platform's baseline file has no entry for this case."""
    BASELINES_OFF = "baselines-off"
    """The user asked for no comparison (`--perf-baseline none`)."""
    UNTOUCHED = "untouched"
    """Code and launch are those of the static baseline: nothing can have changed."""
    NO_WORSE = "no-worse"
    """The code is another than the static baseline's, and nothing of it is worse."""
    WORSE_CODE = "worse-code"
    """The compiled kernel is worse than its static baseline, and its source has changed."""
    WORSE_COMPILER = "worse-compiler"
    """The compiled kernel is worse than its static baseline: same source, other toolchain."""
    BETTER_CODE = "better-code"
    """The compiled kernel is better than its static baseline, and nothing of it is worse."""
    INCOMPLETE = "incomplete"
    """A tool is missing: not all that the static baseline knows could be compared."""
    NOT_COMPILED = "not-compiled"
    """The case does not compile, which the gate `compile` reports."""
    WORK_CHANGED = "work-changed"
    """The case does other work (flops, bytes, dtype) than the recorded one."""
    OTHER_GPU = "other-gpu"
    """The baseline was recorded on another kind of GPU."""
    BAD_BASELINE = "bad-baseline"
    """The baseline file cannot be read or written."""
    NO_GPU = "no-gpu"
    """There is no GPU, or no driver, or torch cannot use it."""
    OTHER_ARCH = "other-arch"
    """The GPU at hand is not of an architecture that was asked for."""
    PARALLEL_RUN = "parallel-run"
    """Several xdist workers would time on one GPU at once."""
    WRONG_RESULT = "wrong-result"
    """The kernel computes something else than its reference: its speed means nothing."""
    UNCHECKED = "unchecked"
    """Checking the result raised: nobody knows whether it is right."""
    NOT_TIMED = "not-timed"
    """The timer could not time the launch."""
    BAD_SAMPLES = "bad-samples"
    """The timer returned no samples, NaN, or times that are not positive."""
    ABOVE_LIMIT = "above-limit"
    """The figure is above what the chip can do: the measurement or the work count is wrong."""


VERDICT_OF: dict[Reason, Verdict] = {
    Reason.WITHIN_MARGIN: Verdict.PASS,
    Reason.SLOWER: Verdict.REGRESSION,
    Reason.FASTER: Verdict.IMPROVEMENT,
    Reason.UNSTEADY: Verdict.INCONCLUSIVE,
    Reason.NOISY: Verdict.INCONCLUSIVE,
    Reason.NO_FILE: Verdict.NO_BASELINE,
    Reason.NO_ENTRY: Verdict.NO_BASELINE,
    Reason.BASELINES_OFF: Verdict.NO_BASELINE,
    Reason.UNTOUCHED: Verdict.PASS,
    Reason.NO_WORSE: Verdict.PASS,
    Reason.WORSE_CODE: Verdict.REGRESSION,
    Reason.WORSE_COMPILER: Verdict.REGRESSION,
    Reason.BETTER_CODE: Verdict.IMPROVEMENT,
    Reason.INCOMPLETE: Verdict.INCONCLUSIVE,
    Reason.NOT_COMPILED: Verdict.NOT_MEASURED,
    Reason.WORK_CHANGED: Verdict.NOT_COMPARABLE,
    Reason.OTHER_GPU: Verdict.NOT_COMPARABLE,
    Reason.BAD_BASELINE: Verdict.NOT_COMPARABLE,
    Reason.NO_GPU: Verdict.NOT_MEASURED,
    Reason.OTHER_ARCH: Verdict.NOT_MEASURED,
    Reason.PARALLEL_RUN: Verdict.NOT_MEASURED,
    Reason.WRONG_RESULT: Verdict.NOT_MEASURED,
    Reason.UNCHECKED: Verdict.NOT_MEASURED,
    Reason.NOT_TIMED: Verdict.NOT_MEASURED,
    Reason.BAD_SAMPLES: Verdict.NOT_MEASURED,
    Reason.ABOVE_LIMIT: Verdict.NOT_MEASURED,
}

ERRORS = frozenset({Reason.BAD_BASELINE, Reason.NOT_TIMED, Reason.BAD_SAMPLES, Reason.ABOVE_LIMIT})
"""Reasons that fail the test although nothing regressed: something is broken and must be seen."""

SUSPECT = frozenset({Reason.SLOWER, Reason.FASTER, Reason.UNSTEADY})
"""Reasons to measure again, up to `Rule.attempts` times: a change has to last, in either direction."""

UNDECIDED = frozenset(
    {Verdict.INCONCLUSIVE, Verdict.NO_BASELINE, Verdict.NOT_COMPARABLE, Verdict.NOT_MEASURED}
)
"""Verdicts that say nothing about the kernel's speed: `--perf-strict` fails them."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The thresholds of the speed gate, as fractions."""

    margin: float = 0.03
    """A case is slower when its time exceeds the baseline's by more than this."""
    noise_limit: float = 0.10
    """With a relative spread of the samples above this, no change near the margin can be seen."""
    attempts: int = 3
    """How often a case that looks slow is measured, with new buffers each time, before it is called slow."""

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1:
            raise ValueError(f"the margin must be a fraction between 0 and 1, got {self.margin}")
        if self.attempts < 1:
            raise ValueError(f"a case must be measured at least once, got attempts={self.attempts}")


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A verdict with its reason and the change it rests on."""

    reason: Reason
    """Why."""
    change: float | None = None
    """Relative change of the time per launch against the baseline: +0.05 is 5 % slower."""
    detail: str = ""
    """One sentence for people."""

    @property
    def verdict(self) -> Verdict:
        """The verdict that the reason belongs to."""
        return VERDICT_OF[self.reason]


def judge_times(medians_us: Sequence[float], spread: float, baseline_us: float, rule: Rule) -> Judgement:
    """Judge the medians of one or more measurements of a case against its baseline.

    One median is a screening: a reason in `SUSPECT` then means "measure again". With `rule.attempts`
    medians the case is slower only if every one of them is: a passing disturbance fails no run.

    Args:
        medians_us: Median time per launch of each measurement, in microseconds, oldest first.
        spread: Largest relative spread of the samples of these measurements.
        baseline_us: The recorded time per launch, in microseconds.
        rule: The thresholds.
    """
    changes = [value / baseline_us - 1 for value in medians_us]
    change = median(changes)
    noisy = spread > max(rule.noise_limit, abs(change))
    for reason, beyond in (
        (Reason.SLOWER, [value > rule.margin for value in changes]),
        (Reason.FASTER, [value < -rule.margin for value in changes]),
    ):
        if all(beyond) and not noisy:
            return Judgement(reason=reason, change=change)
        if any(beyond) and abs(change) > rule.margin and not noisy:
            times = ", ".join(f"{value:.2f}" for value in medians_us)
            return Judgement(
                reason=Reason.UNSTEADY,
                change=change,
                detail=f"{len(medians_us)} measurements disagree ({times} us per launch); run it again",
            )
    if spread > rule.noise_limit:
        return Judgement(
            reason=Reason.NOISY,
            change=change,
            detail=f"the samples spread by {spread:.1%}: a change below that could not have been seen",
        )
    return Judgement(reason=Reason.WITHIN_MARGIN, change=change)
