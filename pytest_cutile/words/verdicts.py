"""Verdicts, and the table of their reason codes: `Reason`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self


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


FAILED = frozenset({Verdict.FAIL, Verdict.REGRESSION})
"""Verdicts that fail a test."""
UNDECIDED = frozenset(
    {Verdict.INCONCLUSIVE, Verdict.NO_BASELINE, Verdict.NOT_COMPARABLE, Verdict.NOT_MEASURED}
)
"""Verdicts that say nothing about the kernel: `--perf-strict` fails them."""


class Reason(StrEnum):
    """Why a gate says so: each code with its verdict and the gates that use it.

    Every verdict has a reason, but for the plain pass of the gates `correct` and `compile`.
    """

    verdict: Verdict
    """The one verdict that the reason leads to."""
    gates: tuple[str, ...]
    """The gates whose results have it."""

    def __new__(cls, code: str, verdict: Verdict, *gates: str) -> Self:
        reason = str.__new__(cls, code)
        reason._value_ = code
        reason.verdict, reason.gates = verdict, gates
        return reason

    # -- of the gate correct --------------------------------------------------------------------------

    WRONG_VALUES = "wrong-values", Verdict.FAIL, "correct"
    """Outputs are not what the reference computes, within the bound."""
    OTHER_STRUCTURE = "other-structure", Verdict.FAIL, "correct"
    """Outputs have other shapes, another number, or other dtypes than the reference's."""
    UNCHECKABLE = "uncheckable", Verdict.FAIL, "correct"
    """The launcher returned nothing that can be compared, or an input as it was."""
    CHANGED_INPUT = "changed-input", Verdict.FAIL, "correct"
    """An input was changed that `mutates` and `writes` do not name."""
    OTHER_WORK = "other-work", Verdict.FAIL, "correct"
    """Interpreted: PyTorch computed the outputs, and the cuTile launches contribute nothing to them."""
    UNWRITTEN = "unwritten", Verdict.FAIL, "correct"
    """Elements of an output hold what was in the memory before."""
    OUT_OF_BOUNDS = "out-of-bounds", Verdict.FAIL, "correct"
    """The kernel reads or writes beyond an array."""
    MISALIGNED = "misaligned", Verdict.FAIL, "correct"
    """Interpreted: the kernel accesses an address that is no multiple of its type's size."""
    ALIASING = "aliasing", Verdict.FAIL, "correct"
    """Interpreted: the kernel reads what was written through another parameter, which the compiler takes for
    other memory."""
    RACE = "race", Verdict.FAIL, "correct"
    """Interpreted: blocks access one element, one of them writes, and nothing orders them."""
    UNINITIALIZED = "uninitialized", Verdict.FAIL, "correct"
    """Interpreted: the kernel uses memory that nothing has written, or never writes elements of an output."""
    UNDETERMINED = "undetermined", Verdict.FAIL, "correct"
    """Interpreted: a result depends on the padding of a load that has no `padding_mode`."""
    ENDLESS_LOOP = "endless-loop", Verdict.FAIL, "correct"
    """Interpreted: a loop would not end."""
    ORDER = "order", Verdict.FAIL, "correct"
    """Interpreted: results depend on the order of the blocks."""
    ASSERTION = "assertion", Verdict.FAIL, "correct"
    """Interpreted: an assertion in the kernel does not hold."""
    ASSUMPTION = "assumption", Verdict.FAIL, "correct"
    """Interpreted: the compiler assumes a divisor or bound of an argument that does not hold."""
    SANITIZER = "sanitizer", Verdict.FAIL, "correct"
    """compute-sanitizer found something (`--sanitize`)."""
    NONDETERMINISTIC = "nondeterministic", Verdict.PASS, "correct"
    """Outputs are right, and have other bits each time."""
    TOO_LARGE = "too-large", Verdict.NOT_MEASURED, "correct"
    """There is no GPU for it, and it is more work than the interpreter takes up unasked."""
    NOT_INTERPRETED = "not-interpreted", Verdict.NOT_MEASURED, "correct"
    """There is no GPU for it, and the interpreter lacks an operation that the kernel uses."""
    NOT_LAUNCHED = "not-launched", Verdict.NOT_MEASURED, "correct"
    """There is no GPU, and nothing was launched that could be interpreted."""
    ONE_BLOCK = "one-block", Verdict.NOT_MEASURED, "correct"
    """The user asked to interpret one block alone: there is no result to compare."""
    NOTHING_TRIED = "nothing-tried", Verdict.NOT_MEASURED, "correct"
    """A search found no example that the kernel takes."""

    # -- of the gate compile, and of others that need a compiled kernel -------------------------------

    COMPILE_ERROR = "compile-error", Verdict.FAIL, "compile", "correct", "static"
    """cuda-tile or tileiras rejects the kernel."""
    COMPILER_FAULT = "compiler-fault", Verdict.FAIL, "compile", "correct", "static"
    """tileiras crashed, or failed without a reason: nothing says that the kernel is wrong."""
    NOTHING_LAUNCHED = "nothing-launched", Verdict.FAIL, "compile", "static"
    """The launcher launches no cuTile kernel: there is nothing to compile."""
    NO_COMPILER = "no-compiler", Verdict.FAIL, "compile", "static"
    """The compiler is not installed."""
    NOT_COMPILED = "not-compiled", Verdict.NOT_MEASURED, "compile", "correct", "static"
    """There is no compiled kernel, and another result says why."""

    # -- of the gate static ---------------------------------------------------------------------------

    MISCOMPILED = "miscompiled", Verdict.FAIL, "correct", "static"
    """The installed tileiras is known to compile this launch to something else than the kernel says."""
    NOT_WORSE = "not-worse", Verdict.PASS, "static"
    """The code is another than the static baseline's, and nothing of it is worse."""
    BETTER_CODE = "better-code", Verdict.IMPROVEMENT, "static"
    """The compiled kernel is better than its static baseline, and nothing of it is worse."""
    WORSE_CODE = "worse-code", Verdict.REGRESSION, "static"
    """The compiled kernel is worse than its static baseline, and its source has changed."""
    WORSE_COMPILER = "worse-compiler", Verdict.REGRESSION, "static"
    """The compiled kernel is worse than its static baseline: same source, other toolchain."""
    INCOMPLETE = "incomplete", Verdict.INCONCLUSIVE, "static"
    """A tool is missing: not all that the static baseline knows could be compared."""

    # -- of the gate speed ----------------------------------------------------------------------------

    WITHIN_MARGIN = "within-margin", Verdict.PASS, "speed"
    """It is not slower by the margin."""
    FASTER = "faster", Verdict.IMPROVEMENT, "speed"
    """Faster by more than the margin."""
    SLOWER = "slower", Verdict.REGRESSION, "speed"
    """Slower than the baseline, confirmed in fresh processes."""
    BELOW_PUBLISHED = "below-published", Verdict.REGRESSION, "speed"
    """Slower than a published figure by more than one figure's margin, confirmed in fresh processes."""
    ENVIRONMENT = "environment", Verdict.REGRESSION, "speed"
    """Its code is not slower, and both it and the baseline kernel are slower than recorded: by driver,
    compiler or libraries, which have changed."""
    NOISY = "noisy", Verdict.INCONCLUSIVE, "speed"
    """As many processes as the rule allows could not tell whether it is slower, its samples spread, or its
    sustained times are not known."""
    DISTURBED = "disturbed", Verdict.INCONCLUSIVE, "speed"
    """It looks slower, and the GPU was busy, hot or slow, or everything on it is."""
    UNANCHORED = "unanchored", Verdict.INCONCLUSIVE, "speed"
    """It may be slower, and there is no baseline kernel to tell: stored times show only large slowdowns."""
    UNCONFIRMED = "unconfirmed", Verdict.INCONCLUSIVE, "speed"
    """It may be slower, and the run ended before fresh processes could tell."""
    MAYBE_RENAMED = "maybe-renamed", Verdict.NO_BASELINE, "speed"
    """The file has no entry for this case, and one for a case of its kernel that is gone."""
    WORK_CHANGED = "work-changed", Verdict.NOT_COMPARABLE, "speed"
    """The case does other work (flops, bytes, dtype) than the recorded one."""
    OTHER_GPU = "other-gpu", Verdict.NOT_COMPARABLE, "speed"
    """The baseline was recorded on another kind of GPU."""
    WRONG_RESULT = "wrong-result", Verdict.NOT_MEASURED, "static", "speed"
    """The gate `correct` fails: the kernel's compiled code and speed mean nothing."""
    UNCHECKED = "unchecked", Verdict.NOT_MEASURED, "static", "speed"
    """Checking the result raised: nobody knows whether it is right."""
    LOST = "lost", Verdict.NOT_MEASURED, "speed"
    """The process that ran the test ended before it could report. pytest fails such a test."""
    NOT_TIMED = "not-timed", Verdict.FAIL, "speed"
    """The launch could not be timed."""
    OTHER_RESULT = "other-result", Verdict.FAIL, "speed"
    """The timed launches leave other outputs than a first launch on the same inputs."""
    SAME_KERNEL = "same-kernel", Verdict.FAIL, "speed"
    """Today's kernel and the baseline's are known to differ, and this process gets one kernel for both."""
    BAD_SAMPLES = "bad-samples", Verdict.FAIL, "speed"
    """The timer returned no samples, NaN, or times that are not positive."""
    ABOVE_LIMIT = "above-limit", Verdict.FAIL, "speed"
    """The figure is above what the chip can do: the measurement or the work count is wrong."""

    # -- of several gates -----------------------------------------------------------------------------

    UNCHANGED = "unchanged", Verdict.PASS, "static", "speed"
    """Code and launch are those of the baseline, for speed the environment, too: nothing can have changed."""
    NO_FILE = "no-file", Verdict.NO_BASELINE, "static", "speed"
    """There is no baseline file for this platform."""
    NO_ENTRY = "no-entry", Verdict.NO_BASELINE, "static", "speed"
    """The platform's baseline file has no entry for this case."""
    NOT_IN_REVISION = "not-in-revision", Verdict.NO_BASELINE, "static", "speed"
    """The revision to compare with has no such case."""
    BASELINES_OFF = "baselines-off", Verdict.NO_BASELINE, "static", "speed"
    """The user asked for no comparison (`--perf-baseline none`)."""
    BAD_BASELINE = "bad-baseline", Verdict.FAIL, "static", "speed"
    """The baseline file cannot be read or written."""
    RAISED = "raised", Verdict.FAIL, "correct", "compile", "static", "speed"
    """The launcher, the inputs or the reference raised."""
    CRASH = "crash", Verdict.FAIL, "correct", "compile", "static", "speed"
    """The process that ran the case ended, or its CUDA context was lost. All other cases go on."""
    OUT_OF_MEMORY = "out-of-memory", Verdict.FAIL, "correct", "speed"
    """The GPU's memory was too small. All other cases go on."""
    HANG = "hang", Verdict.FAIL, "correct", "compile", "static", "speed"
    """A launch did not end within `cutile_launch_seconds`. Its process was ended; all other cases go on."""
    TIMED_OUT = "timed-out", Verdict.FAIL, "correct", "compile", "static", "speed"
    """pytest-timeout stopped the test."""
    EXPECTED = "expected-failure", Verdict.NOT_MEASURED, "correct", "compile", "static", "speed"
    """The test failed as its xfail marker expects."""
    NO_GPU = "no-gpu", Verdict.NOT_MEASURED, "correct", "speed"
    """There is no GPU, or no driver, or torch cannot use it."""
    OTHER_ARCH = "other-arch", Verdict.NOT_MEASURED, "correct", "speed"
    """The GPU at hand is not of an architecture that was asked for."""
    SKIPPED = "skipped", Verdict.NOT_MEASURED, "correct", "compile", "static", "speed"
    """The kernel's own code called `pytest.skip`."""


UNCHECKED_AFTER = frozenset(
    {
        *(Reason.RAISED, Reason.TIMED_OUT, Reason.UNCHECKABLE, Reason.COMPILE_ERROR, Reason.COMPILER_FAULT),
        *(Reason.CRASH, Reason.HANG, Reason.OUT_OF_MEMORY),
    }
)
"""Reasons of the gate `correct` after which nobody knows whether a case is right."""
COMPILERS_FAULTS = frozenset({Reason.COMPILER_FAULT})
"""Reasons that blame the compiler, not the kernel."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A reason, and the change it rests on."""

    reason: Reason
    """Why, and with that the verdict."""
    change: float | None = None
    """Relative change of the time per launch against the baseline: +0.05 is 5 % slower."""
    detail: str = ""
    """One sentence for people."""

    @property
    def verdict(self) -> Verdict:
        return self.reason.verdict


def strict_failure(key: str, judgement: Judgement, *, strict: bool) -> str | None:
    """Return the failure of a verdict that decides nothing, if `--perf-strict` asks for one."""
    if strict and judgement.verdict in UNDECIDED:
        return f"{key}: {judgement.verdict} ({judgement.reason}): {judgement.detail} [--perf-strict]"
    return None
