"""The gate `speed`: is the kernel as fast as its baseline?"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_cutile.core.baseline_files import BaselineError
from pytest_cutile.core.baselines import BaselineFile, Entry
from pytest_cutile.core.platforms import find_platform
from pytest_cutile.core.report import above_limit_message, regression_message
from pytest_cutile.core.results import Gate, GateResult
from pytest_cutile.core.spec import Work
from pytest_cutile.core.statistics import usable
from pytest_cutile.core.timing import Measurement, TimingError
from pytest_cutile.core.verdicts import ERRORS, SUSPECT, UNDECIDED, Judgement, Reason, Verdict, judge_times
from pytest_cutile.gates.engine import Blocked, Engine
from pytest_cutile.gates.recording import Refused, record

Launch = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class SpeedOutcome:
    """What the gate found for one case."""

    judgement: Judgement
    """Verdict and reason."""
    measurement: Measurement | None
    """The measurement that the judgement is about: of several, the one in the middle."""
    failure: str | None
    """Message to fail the test with; None when it passes."""
    note: str | None = None
    """What was recorded, or why nothing was."""


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
    prepare: Callable[[], Launch]
    """Returns the launch to time."""
    fresh_inputs: bool
    """Whether `prepare` makes the inputs anew each time."""
    check: Callable[[], object] | None = None
    """Compares the result with the reference; run first unless that has been done in this run."""


_NO_SPEED = {
    Reason.WRONG_RESULT: "the result is wrong, so its speed means nothing",
    Reason.UNCHECKED: "its check raised, so nobody knows whether the result is right",
}


class _Failed(Exception):  # noqa: N818 - control flow inside this module
    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def gate_speed(engine: Engine, case: SpeedCase) -> SpeedOutcome:
    """Measure `case`, compare it with its baseline, and record it if that was asked for.

    Raises:
        Blocked: it cannot be measured here.
        Exception: what `case.check` raises when the result is wrong.
    """
    try:
        device = engine.usable_device(case.arch)
        if engine.settings.xdist_worker and device.torch_device == "cuda":
            raise Blocked(
                Reason.PARALLEL_RUN, "tests run in parallel (pytest -n); speed is timed in a serial run"
            )
        found = engine.checked.get(case.identity)
        if found is not None:
            raise Blocked(found, _NO_SPEED[found])
    except Blocked as blocked:
        _append(engine, case, verdict=Verdict.NOT_MEASURED, reason=blocked.reason, detail=blocked.detail)
        raise
    if case.check is not None and case.identity not in engine.checked:
        case.check()
    try:
        outcome = _measure_and_judge(engine, case)
    except _Failed as failed:
        judgement = Judgement(reason=failed.reason, detail=str(failed).partition("\n")[0])
        outcome = SpeedOutcome(judgement=judgement, measurement=None, failure=str(failed))
    except Exception as error:
        detail = f"{type(error).__name__}: {error}".partition("\n")[0]
        _append(engine, case, verdict="fail", reason="raised", detail=detail)
        raise
    judgement, measurement = outcome.judgement, outcome.measurement
    figures: dict[str, Any] = {}
    if measurement is not None:
        figures = {
            "median_us": measurement.median_us,
            "rate": measurement.rate,
            "unit": measurement.bound,
            "share_of_limit": measurement.share_of_limit,
            "change": judgement.change,
        }
    _append(
        engine,
        case,
        verdict="fail" if judgement.reason in ERRORS else judgement.verdict,
        reason=judgement.reason,
        detail=judgement.detail,
        recorded=outcome.note or "",
        **figures,
    )
    return outcome


def _append(engine: Engine, case: SpeedCase, **found: Any) -> None:
    engine.results.append(
        GateResult(gate=Gate.SPEED, key=case.key, kernel=case.kernel, case=case.case, arch=case.arch, **found)
    )


def _measure_and_judge(engine: Engine, case: SpeedCase) -> SpeedOutcome:
    # Read the baselines first: a file that cannot be used is said before any GPU time is spent.
    try:
        file = engine.baselines
    except BaselineError as error:
        raise _Failed(Reason.BAD_BASELINE, str(error)) from None
    measurements = [_measure(engine, case)]
    entry, judgement = _find_entry(engine, case, file, measurements[0])
    if entry is not None:
        rule = engine.settings.rule
        while True:
            medians = [measurement.median_us for measurement in measurements]
            spread = max(measurement.relative_spread for measurement in measurements)
            judgement = judge_times(medians, spread, entry.median_us, rule)
            if judgement.reason not in SUSPECT or len(measurements) >= rule.attempts:
                break
            measurements.append(_measure(engine, case))
    # The one that the judgement's change is about.
    measurement = sorted(measurements, key=lambda each: each.median_us)[(len(measurements) - 1) // 2]
    environment = dict(engine.timer.environment())
    note, recorded = "", False
    if engine.settings.update_baselines:
        try:
            note = f"{case.key}: {record(engine, case.key, measurement, judgement, environment)}"
            recorded = True
        except Refused as refused:
            note = f"{case.key}: not recorded: {refused}"
        except BaselineError as error:
            raise _Failed(Reason.BAD_BASELINE, str(error)) from None
    failure = None
    if judgement.verdict is Verdict.REGRESSION and entry is not None and not recorded:
        failure = regression_message(
            key=case.key,
            nodeid=case.nodeid,
            measurement=measurement,
            medians_us=[each.median_us for each in measurements],
            judgement=judgement,
            entry=entry,
            environment=environment,
            baseline_file=engine.shown_baseline_file,
            rule=engine.settings.rule,
            fresh_inputs=case.fresh_inputs,
            problems=engine.timer.problems(),
            baseline_option=engine.settings.baseline_option,
        )
    elif engine.settings.strict and judgement.verdict in UNDECIDED and not recorded:
        failure = f"{case.key}: {judgement.verdict} ({judgement.reason}): {judgement.detail} [--perf-strict]"
    if failure is not None and note:
        failure += f"\n\n{note}"
    return SpeedOutcome(judgement=judgement, measurement=measurement, failure=failure, note=note)


def _measure(engine: Engine, case: SpeedCase) -> Measurement:
    engine.progress(f"timing {case.key}")
    launch = case.prepare()
    try:
        samples = tuple(float(value) for value in engine.timer.time_launch(launch))
    except TimingError as error:
        raise _Failed(Reason.NOT_TIMED, f"{case.key}: {error}") from error
    if not usable(samples):
        shown = ", ".join(f"{value}" for value in samples[:4]) or "nothing"
        raise _Failed(
            Reason.BAD_SAMPLES,
            f"{case.key}: the timer returned {shown} as times per launch (of {len(samples)} samples): "
            "not finite and positive. Nothing is compared or recorded; check the timer.",
        )
    device = engine.timer.device
    measurement = Measurement(
        device=device, samples_us=samples, work=case.work, platform=find_platform(device.name)
    )
    if measurement.exceeded is not None:
        raise _Failed(Reason.ABOVE_LIMIT, above_limit_message(case.key, measurement))
    return measurement


def _find_entry(
    engine: Engine, case: SpeedCase, file: BaselineFile | None, measurement: Measurement
) -> tuple[Entry | None, Judgement]:
    """Return the entry to compare with, or None and the judgement that says why there is none."""
    device = measurement.device
    shown = engine.shown_baseline_file
    advice = f"record it: pytest {shlex.quote(case.nodeid)} --update-baselines"
    if engine.settings.baseline_path is None:
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
    return entry, Judgement(reason=Reason.WITHIN_MARGIN)


def _work(work: Work) -> str:
    dtype = f", {work.dtype}" if work.dtype else ""
    return f"{work.flops:.6g} flops, {work.bytes:.6g} bytes{dtype}"
