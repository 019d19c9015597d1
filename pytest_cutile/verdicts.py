"""Verdicts and their reason codes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What a gate says of a case."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    FAIL = "fail"
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    INCONCLUSIVE = "inconclusive"
    NO_BASELINE = "no-baseline"
    NOT_COMPARABLE = "not-comparable"
    NOT_MEASURED = "not-measured"


class Reason(StrEnum):
    """Why a gate says so. Every reason belongs to one verdict (`VERDICT_OF`)."""

    WITHIN_MARGIN = "within-margin"
    """It is not slower by the margin."""
    SLOWER = "slower"
    """Slower than the baseline, confirmed in fresh processes."""
    BELOW_PUBLISHED = "below-published"
    """Slower than a published figure by more than one figure's margin, confirmed in fresh processes."""
    FASTER = "faster"
    """Faster by more than the margin."""
    NOISY = "noisy"
    """As many processes as the rule allows could not tell whether it is slower, its samples spread, or its
    sustained times are not known."""
    DISTURBED = "disturbed"
    """It looks slower, and the GPU was busy, hot or slow, or everything on it is."""
    ENVIRONMENT = "environment"
    """Its code is not slower, and both it and the baseline kernel are slower than recorded: by driver,
    compiler or libraries, which have changed."""
    UNANCHORED = "unanchored"
    """It may be slower, and there is no baseline kernel to tell: stored times show only large slowdowns."""
    UNCONFIRMED = "unconfirmed"
    """It may be slower, and the run ended before fresh processes could tell."""
    NO_FILE = "no-file"
    """There is no baseline file for this platform."""
    NO_ENTRY = "no-entry"
    """The platform's baseline file has no entry for this case."""
    MAYBE_RENAMED = "maybe-renamed"
    """The file has no entry for this case, and one for a case of its kernel that is gone."""
    NOT_IN_REVISION = "not-in-revision"
    """The revision to compare with has no such case."""
    BASELINES_OFF = "baselines-off"
    """The user asked for no comparison (`--perf-baseline none`)."""
    UNCHANGED = "unchanged"
    """Code and launch are those of the baseline, for speed the environment, too: nothing can have changed."""
    NOT_WORSE = "not-worse"
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
    TOO_LARGE = "too-large"
    """There is no GPU for it, and it is more work than the interpreter takes up unasked."""
    ONE_BLOCK = "one-block"
    """The user asked to interpret one block alone: there is no result to compare."""
    NOT_INTERPRETED = "not-interpreted"
    """There is no GPU for it, and the interpreter lacks an operation that the kernel uses."""
    NOT_LAUNCHED = "not-launched"
    """There is no GPU, and nothing was launched that could be interpreted."""
    SKIPPED = "skipped"
    """The kernel's own code called `pytest.skip`."""
    NOTHING_TRIED = "nothing-tried"
    """A search found no example that the kernel takes."""
    WRONG_RESULT = "wrong-result"
    """The kernel computes something else than its reference: its speed means nothing."""
    UNCHECKED = "unchecked"
    """Checking the result raised: nobody knows whether it is right."""
    NOT_TIMED = "not-timed"
    """The timer could not time the launch."""
    SAME_KERNEL = "same-kernel"
    """Today's kernel and the baseline's are known to differ, and this process gets one kernel for both."""
    BAD_SAMPLES = "bad-samples"
    """The timer returned no samples, NaN, or times that are not positive."""
    ABOVE_LIMIT = "above-limit"
    """The figure is above what the chip can do: the measurement or the work count is wrong."""


VERDICT_OF: dict[Reason, Verdict] = {
    Reason.WITHIN_MARGIN: Verdict.PASS,
    Reason.SLOWER: Verdict.REGRESSION,
    Reason.BELOW_PUBLISHED: Verdict.REGRESSION,
    Reason.FASTER: Verdict.IMPROVEMENT,
    Reason.NOISY: Verdict.INCONCLUSIVE,
    Reason.DISTURBED: Verdict.INCONCLUSIVE,
    Reason.ENVIRONMENT: Verdict.REGRESSION,
    Reason.UNANCHORED: Verdict.INCONCLUSIVE,
    Reason.UNCONFIRMED: Verdict.INCONCLUSIVE,
    Reason.NO_FILE: Verdict.NO_BASELINE,
    Reason.NO_ENTRY: Verdict.NO_BASELINE,
    Reason.MAYBE_RENAMED: Verdict.NO_BASELINE,
    Reason.NOT_IN_REVISION: Verdict.NO_BASELINE,
    Reason.BASELINES_OFF: Verdict.NO_BASELINE,
    Reason.UNCHANGED: Verdict.PASS,
    Reason.NOT_WORSE: Verdict.PASS,
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
    Reason.TOO_LARGE: Verdict.NOT_MEASURED,
    Reason.ONE_BLOCK: Verdict.NOT_MEASURED,
    Reason.NOT_INTERPRETED: Verdict.NOT_MEASURED,
    Reason.NOT_LAUNCHED: Verdict.NOT_MEASURED,
    Reason.SKIPPED: Verdict.NOT_MEASURED,
    Reason.NOTHING_TRIED: Verdict.NOT_MEASURED,
    Reason.WRONG_RESULT: Verdict.NOT_MEASURED,
    Reason.UNCHECKED: Verdict.NOT_MEASURED,
    Reason.NOT_TIMED: Verdict.NOT_MEASURED,
    Reason.SAME_KERNEL: Verdict.NOT_MEASURED,
    Reason.BAD_SAMPLES: Verdict.NOT_MEASURED,
    Reason.ABOVE_LIMIT: Verdict.NOT_MEASURED,
}

ERRORS = frozenset(
    {Reason.BAD_BASELINE, Reason.NOT_TIMED, Reason.SAME_KERNEL, Reason.BAD_SAMPLES, Reason.ABOVE_LIMIT}
)
"""Reasons that fail the test although nothing regressed: something is broken and must be seen."""

UNDECIDED = frozenset(
    {Verdict.INCONCLUSIVE, Verdict.NO_BASELINE, Verdict.NOT_COMPARABLE, Verdict.NOT_MEASURED}
)
"""Verdicts that say nothing about the kernel's speed: `--perf-strict` fails them."""


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

    @property
    def result_verdict(self) -> Verdict:
        """The verdict of the case's result: an error fails, whatever it leaves undecided."""
        return Verdict.FAIL if self.reason in ERRORS else self.verdict
