"""The gate `speed`: is the kernel as fast as its baseline? This is its first half, the screening.

Every case is measured once. One that could be slower stays open: `gates/suite.py` confirms it in fresh
processes when all others have been measured.
"""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_cutile.core.baseline_files import BaselineError
from pytest_cutile.core.baselines import environment_changes
from pytest_cutile.core.comparisons import Comparison, DuetComparison, StoredComparison
from pytest_cutile.core.platforms import find_platform
from pytest_cutile.core.results import Gate, GateResult
from pytest_cutile.core.spec import Work
from pytest_cutile.core.timing import NOISE_LIMIT, Measurement, bound_of
from pytest_cutile.core.verdicts import ERRORS, UNDECIDED, Judgement, Reason, Verdict
from pytest_cutile.gates.compiling import CompileCase
from pytest_cutile.gates.duet import BaseFailed
from pytest_cutile.gates.engine import Blocked, Engine, MeasuredAgain
from pytest_cutile.gates.measuring import Call, Unmeasured, measure, to_plain
from pytest_cutile.gates.revision import RevisionError

STALE_AFTER = dt.timedelta(days=60)
"""Age from which a baseline that is beaten is reported."""


@dataclass(frozen=True, kw_only=True)
class SpeedCase:
    """What is measured: a declared kernel's case, or one call of the fixture `perf`."""

    key: str
    """Key in the baseline file."""
    identity: str
    """Key that the result of its check is known by."""
    kernel: str
    """Kernel name in the summary."""
    case: str
    """Case name in the summary."""
    nodeid: str
    """The test, for the command that repeats it."""
    arch: str
    """Architecture under test."""
    work: Work
    """What one launch does."""
    call: Callable[[], Call]
    """Makes the inputs; returns the launch to time."""
    base: Callable[[], Callable[..., object] | None] | None = None
    """Returns the launcher of the revision to compare with, or None if it has none; only for a duet."""
    compiled: CompileCase | None = None
    """What is compiled for it; None where nobody knows before it runs."""
    check: Callable[[], object] | None = None
    """Compares the result with the reference; run first unless that has been done in this run."""
    interpreted: bool = False
    """Whether what is launched now is interpreted: torch does not reach the GPU."""


@dataclass(kw_only=True)
class SpeedOutcome:
    """What the gate found for one case."""

    judgement: Judgement
    """Verdict and reason."""
    measurement: Measurement | None = None
    """The measurement that is shown."""
    failure: str | None = None
    """Message to fail the test with; None when it passes."""
    note: str | None = None
    """What was recorded, or why nothing was."""
    is_open: bool = False
    """Whether fresh processes have to tell."""

    def result(self, case: SpeedCase) -> GateResult:
        """Return the result that the report of the test carries."""
        figures: dict[str, Any] = {}
        measurement, judgement = self.measurement, self.judgement
        if measurement is not None:
            figures = {
                "gpu": measurement.device.name,
                "board": measurement.device.board,
                "median_us": measurement.median_us,
                "rate": measurement.rate,
                "unit": measurement.bound,
                "share_of_limit": measurement.share_of_limit,
                "change": judgement.change,
            }
        return _result(
            case,
            verdict="fail" if judgement.reason in ERRORS else judgement.verdict,
            reason=judgement.reason,
            detail=judgement.detail,
            recorded=self.note or "",
            **figures,
        )


def _result(case: SpeedCase, **found: Any) -> GateResult:
    return GateResult(
        gate=Gate.SPEED, key=case.key, kernel=case.kernel, case=case.case, arch=case.arch, **found
    )


_NO_SPEED = {
    Reason.WRONG_RESULT: "the result is wrong, so its speed means nothing",
    Reason.UNCHECKED: "its check raised, so nobody knows whether the result is right",
}


def gate_speed(engine: Engine, case: SpeedCase) -> SpeedOutcome:
    """Measure `case` and compare it with its baseline; what may be slower, or is to be recorded, stays open.

    Raises:
        Blocked: it cannot be measured here.
        Exception: what `case.check` raises when the result is wrong.
    """
    again = engine.measured_again
    try:
        if case.interpreted and engine.device is not None and engine.device.arch == case.arch:
            raise Blocked(Reason.NO_GPU, "the test is interpreted on the CPU, so nothing can be timed in it")
        engine.usable_device(case.arch)
        found = engine.checked.get(case.identity)
        if found is not None:
            raise Blocked(found, _NO_SPEED[found])
    except Blocked as blocked:
        if again is None:
            note = "no speed was recorded: nothing was measured" if engine.settings.update_baselines else ""
            engine.results.append(
                _result(
                    case,
                    verdict=Verdict.NOT_MEASURED,
                    reason=blocked.reason,
                    detail=blocked.detail,
                    recorded=note,
                )
            )
        raise
    if again is not None:
        return _measure_for_another(engine, case, again)
    if case.check is not None and case.identity not in engine.checked:
        case.check()
    try:
        outcome = _screen(engine, case)
    except Unmeasured as failed:
        judgement = Judgement(reason=failed.reason, detail=str(failed).partition("\n")[0])
        outcome = SpeedOutcome(judgement=judgement, failure=str(failed))
    except Exception as error:
        detail = f"{type(error).__name__}: {error}".partition("\n")[0]
        engine.results.append(_result(case, verdict="fail", reason="raised", detail=detail))
        raise
    if not outcome.is_open:
        engine.results.append(outcome.result(case))
    return outcome


def _measure_for_another(engine: Engine, case: SpeedCase, again: MeasuredAgain) -> SpeedOutcome:
    """Measure a case that another process asks about; nothing is judged."""
    try:
        measurement = measure_case(engine, case)
    except Exception as error:
        reason = error.reason if isinstance(error, Unmeasured) else Reason.NOT_TIMED
        if isinstance(error, BaseFailed | RevisionError):
            reason = Reason.NOT_IN_REVISION
        text = str(error) if isinstance(error, Unmeasured) else f"{case.key}: {type(error).__name__}: {error}"
        again(case.key, {"reason": reason, "error": text})
        raise
    again(case.key, to_plain(measurement))
    return SpeedOutcome(judgement=Judgement(reason=Reason.UNCONFIRMED), measurement=measurement)


def measure_case(engine: Engine, case: SpeedCase) -> Measurement:
    """Measure a case in this process, beside its control or the revision that it is compared with.

    Raises:
        Unmeasured: it cannot be timed, or the times make no sense.
    """
    base = case.base() if case.base is not None else None
    return measure(engine, case.key, case.work, case.call(), base=base)


def _screen(engine: Engine, case: SpeedCase) -> SpeedOutcome:
    # Look for the baseline first: a file that cannot be used is said before any GPU time is spent.
    try:
        comparison, judgement = find_comparison(engine, case)
    except BaselineError as error:
        raise Unmeasured(Reason.BAD_BASELINE, str(error)) from None
    try:
        measurement = measure_case(engine, case)
    except BaseFailed as error:
        comparison, judgement = None, Judgement(reason=Reason.NOT_IN_REVISION, detail=str(error))
        measurement = measure(engine, case.key, case.work, case.call())
    measurement = with_clock(engine, comparison, measurement)
    records = engine.settings.update_baselines and judgement.reason is not Reason.OTHER_GPU
    is_open = records
    if comparison is not None:
        change = comparison.change([measurement])
        judgement = Judgement(reason=Reason.WITHIN_MARGIN, change=change)
        as_timed = comparison.as_timed() if measurement.doubts else comparison
        if comparison.is_faster(measurement) and as_timed.is_faster(measurement):
            detail = _beaten(case.key, comparison) or _seen(case.key, measurement)
            judgement = Judgement(reason=Reason.FASTER, change=change, detail=detail)
        elif comparison.is_suspect(measurement):
            judgement = Judgement(
                reason=Reason.UNCONFIRMED,
                change=change,
                detail=f"{case.key} may be slower; the run ended before fresh processes could tell",
            )
            is_open = True
        judgement = unless_noisy(judgement, case.key, [measurement])
    engine.suite.add(case, comparison, judgement, measurement, is_open=is_open, records=records)
    outcome = SpeedOutcome(judgement=judgement, measurement=measurement, is_open=is_open)
    if engine.settings.update_baselines and not records:
        outcome.note = outcome.failure = f"{case.key}: not recorded: {judgement.detail}"
    elif not is_open:
        outcome.failure = strict_failure(engine, case.key, judgement)
    return outcome


def with_clock(engine: Engine, comparison: Comparison | None, measurement: Measurement) -> Measurement:
    """Return a measurement with what its clock is beside those of the stored runs, all else being as then.

    NVML calls a clock that is held down usual while the power is capped, too.
    """
    if not isinstance(comparison, StoredComparison):
        return measurement
    held_against = comparison.held_against
    low = held_against.low_clock(measurement.clock_mhz)
    if low and environment_changes(held_against.environment, engine.timer.environment()):
        low = ""  # another driver, another power limit: that is what the verdict names
    return replace(measurement, low_clock=low)


def _seen(key: str, measurement: Measurement) -> str:
    """Say what made a measurement doubtful."""
    seen = "; ".join(measurement.doubts)
    return f"{key} is faster although on the GPU was seen: {seen}" if seen else ""


def _beaten(key: str, comparison: Comparison) -> str:
    """Say so when a baseline that is beaten has not been recorded for months."""
    if not isinstance(comparison, StoredComparison):
        return ""
    last = max(run.at for run in comparison.held_against.runs)
    try:
        age = dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(last)
    except (ValueError, TypeError):  # written by hand, perhaps without a time zone
        return ""
    if age < STALE_AFTER:
        return ""
    return f"stale: {key} has beaten its baseline of {last[:10]}; record it: pytest --update-baselines"


def unless_noisy(judgement: Judgement, key: str, measurements: Sequence[Measurement]) -> Judgement:
    """Return a judgement by medians of samples: not that a case passes if these spread too much."""
    spread = max(each.relative_spread for each in measurements)
    if judgement.verdict not in (Verdict.PASS, Verdict.IMPROVEMENT) or spread <= NOISE_LIMIT:
        return judgement
    seen = "; ".join(dict.fromkeys(text for each in measurements for text in each.doubts))
    seen = f"; on the GPU was seen: {seen}" if seen else ""
    detail = (
        f"{key}: the samples spread by {spread:.0%}, so that their median does not tell how fast it is{seen}"
    )
    return replace(judgement, reason=Reason.NOISY, detail=detail)


def strict_failure(engine: Engine, key: str, judgement: Judgement) -> str | None:
    """Return the failure of a verdict that says nothing, where the user wants that to fail."""
    if engine.settings.strict and judgement.verdict in UNDECIDED:
        return f"{key}: {judgement.verdict} ({judgement.reason}): {judgement.detail} [--perf-strict]"
    return None


def find_comparison(  # noqa: PLR0911 - one return for each reason
    engine: Engine, case: SpeedCase
) -> tuple[Comparison | None, Judgement]:
    """Return what a case is held against, or None and the judgement that says why there is nothing.

    Raises:
        BaselineError: the baselines cannot be used.
    """
    settings = engine.settings
    if case.base is not None:
        revision = settings.baseline_revision or ""
        if case.base() is None:
            detail = f"{revision} has no {case.key}"
            if case.compiled is None:
                detail = f"{revision}: {case.key} times no function of a module that {revision} has, too"
            return None, Judgement(reason=Reason.NOT_IN_REVISION, detail=detail)
        return DuetComparison(rule=settings.rule, revision=revision), Judgement(reason=Reason.WITHIN_MARGIN)
    device = engine.timer.device
    file = engine.baselines
    shown = engine.shown_baseline_file
    advice = f"record it: pytest {shlex.quote(case.nodeid)} --update-baselines"
    if settings.baseline_path is None:
        return None, Judgement(reason=Reason.BASELINES_OFF, detail="--perf-baseline none")
    if file is None:
        return None, Judgement(
            reason=Reason.NO_FILE,
            detail=f"{shown} does not exist; record it: pytest --update-baselines",
        )
    if (file.arch, file.gpu) != (device.arch, device.name):
        return None, Judgement(
            reason=Reason.OTHER_GPU,
            detail=f"{shown} was recorded on {file.gpu} ({file.arch})",
        )
    entry = file.entries.get(case.key)
    if entry is None:
        return None, Judgement(
            reason=Reason.NO_ENTRY,
            detail=f"{shown} has no entry for {case.key}; {advice}",
        )
    if entry.work != case.work:
        return None, Judgement(
            reason=Reason.WORK_CHANGED,
            detail=(
                f"{case.key} does {_work(case.work)} now, {_work(entry.work)} in {shown}; "
                f"{advice} --reason TEXT"
            ),
        )
    control = engine.timer.control(bound_of(case.work, find_platform(device.name)))
    stored = engine.stored_runs
    comparison = stored.compare(entry, device, control.name if control is not None else "")
    return comparison, Judgement(reason=Reason.WITHIN_MARGIN)


def _work(work: Work) -> str:
    dtype = f", {work.dtype}" if work.dtype else ""
    return f"{work.flops:.6g} flops, {work.bytes:.6g} bytes{dtype}"
