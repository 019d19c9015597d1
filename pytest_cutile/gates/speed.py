"""The gate `speed`: is the kernel as fast as its baseline?"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_cutile.core.baselines import (
    BaselineError,
    BaselineFile,
    Entry,
    Run,
    environment_changes,
    record_entries,
)
from pytest_cutile.core.platforms import find_platform
from pytest_cutile.core.report import above_limit_message, format_change, format_time, regression_message
from pytest_cutile.core.results import Gate, GateResult
from pytest_cutile.core.spec import Work
from pytest_cutile.core.statistics import usable
from pytest_cutile.core.timing import Measurement, TimingError
from pytest_cutile.core.verdicts import ERRORS, SUSPECT, UNDECIDED, Judgement, Reason, Verdict, judge_times
from pytest_cutile.gates.engine import Blocked, Engine

Launch = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class SpeedOutcome:
    """What the gate found for one case."""

    judgement: Judgement
    """Verdict and reason."""
    measurement: Measurement | None
    """The last measurement, if there is one."""
    failure: str | None
    """Message to fail the test with; None when it passes."""
    note: str | None = None
    """What was recorded, or why nothing was."""


@dataclass(frozen=True, kw_only=True)
class SpeedCase:
    """What is measured: a declared kernel's case, or one call of the fixture `perf`."""

    key: str
    """Key in the baseline file."""
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


class _Failed(Exception):  # noqa: N818 - control flow inside this module
    def __init__(self, reason: Reason, message: str, measurement: Measurement | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.measurement = measurement


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
        if (case.kernel, case.case) in engine.wrong:
            raise Blocked(Reason.WRONG_RESULT, "the result is wrong, so its speed means nothing")
    except Blocked as blocked:
        _append(engine, case, Judgement(reason=blocked.reason, detail=blocked.detail), None)
        raise
    if case.check is not None and (case.kernel, case.case) not in engine.right:
        case.check()
    try:
        outcome = _measure_and_judge(engine, case)
    except _Failed as failed:
        judgement = Judgement(reason=failed.reason, detail=str(failed).partition("\n")[0])
        outcome = SpeedOutcome(judgement=judgement, measurement=failed.measurement, failure=str(failed))
    _append(engine, case, outcome.judgement, outcome.measurement, recorded=outcome.note or "")
    return outcome


def _append(
    engine: Engine,
    case: SpeedCase,
    judgement: Judgement,
    measurement: Measurement | None,
    *,
    recorded: str = "",
) -> None:
    figures: dict[str, Any] = {}
    if measurement is not None and judgement.reason not in ERRORS:
        figures = {
            "median_us": measurement.median_us,
            "rate": measurement.rate,
            "unit": measurement.bound,
            "share_of_limit": measurement.share_of_limit,
            "change": judgement.change,
        }
    engine.results.append(
        GateResult(
            gate=Gate.SPEED,
            kernel=case.kernel,
            case=case.case,
            arch=case.arch,
            verdict="fail" if judgement.reason in ERRORS else judgement.verdict,
            reason=judgement.reason,
            detail=judgement.detail,
            recorded=recorded,
            **figures,
        )
    )


def _measure_and_judge(engine: Engine, case: SpeedCase) -> SpeedOutcome:
    # Read the baselines first: a file that cannot be used is said before any GPU time is spent.
    try:
        file = engine.baselines
    except BaselineError as error:
        raise _Failed(Reason.BAD_BASELINE, str(error)) from None
    measurement = _measure(engine, case)
    entry, judgement = _find_entry(engine, case, file, measurement)
    medians = [measurement.median_us]
    if entry is not None:
        rule = engine.settings.rule
        spread = measurement.relative_spread
        judgement = judge_times(medians, spread, entry.median_us, rule)
        while judgement.reason in SUSPECT and len(medians) < rule.attempts:
            again = _measure(engine, case)
            medians.append(again.median_us)
            spread = max(spread, again.relative_spread)
            judgement = judge_times(medians, spread, entry.median_us, rule)
    failure = note = None
    environment = dict(engine.timer.environment())
    accepted = False
    if engine.settings.update_baselines:
        note, accepted = _record(engine, case, measurement, medians, judgement, entry, environment)
        note = f"{case.key}: {note}"
    if judgement.verdict is Verdict.REGRESSION and entry is not None and not accepted:
        failure = regression_message(
            key=case.key,
            nodeid=case.nodeid,
            measurement=measurement,
            medians_us=medians,
            judgement=judgement,
            entry=entry,
            environment=environment,
            baseline_file=_shown(engine),
            rule=engine.settings.rule,
            fresh_inputs=case.fresh_inputs,
        )
        if note:
            failure += f"\n\n{note}"
    elif engine.settings.strict and judgement.verdict in UNDECIDED and not accepted:
        failure = f"{case.key}: {judgement.verdict} ({judgement.reason}): {judgement.detail} [--perf-strict]"
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
        raise _Failed(Reason.ABOVE_LIMIT, above_limit_message(case.key, measurement), measurement)
    return measurement


def _find_entry(
    engine: Engine, case: SpeedCase, file: BaselineFile | None, measurement: Measurement
) -> tuple[Entry | None, Judgement]:
    """Return the entry to compare with, or None and the judgement that says why there is none."""
    device = measurement.device
    record = f"record it: pytest {case.nodeid} --update-baselines"
    if engine.settings.baseline_path is None:
        return None, Judgement(reason=Reason.BASELINES_OFF, detail="--perf-baseline none")
    if file is None:
        return None, Judgement(reason=Reason.NO_FILE, detail=f"{_shown(engine)} does not exist; {record}")
    if (file.arch, file.gpu) != (device.arch, device.name):
        return None, Judgement(
            reason=Reason.OTHER_GPU, detail=f"{_shown(engine)} was recorded on {file.gpu} ({file.arch})"
        )
    entry = file.entries.get(case.key)
    if entry is None:
        return None, Judgement(reason=Reason.NO_ENTRY, detail=f"{_shown(engine)} has no entry; {record}")
    if entry.work != case.work:
        return None, Judgement(
            reason=Reason.WORK_CHANGED,
            detail=f"the work is {_work(case.work)} now, {_work(entry.work)} in {_shown(engine)}; {record}",
        )
    return entry, Judgement(reason=Reason.WITHIN_MARGIN)


def _record(
    engine: Engine,
    case: SpeedCase,
    measurement: Measurement,
    medians: list[float],
    judgement: Judgement,
    entry: Entry | None,
    environment: Mapping[str, str],
) -> tuple[str, bool]:
    """Record the measurement where the rules allow it; return what was done, and whether it was recorded."""
    path = engine.baseline_file
    if path is None or judgement.reason is Reason.OTHER_GPU:
        return f"not recorded: {judgement.detail}", False
    problems = engine.timer.problems()
    if problems:
        return f"not recorded: {'; '.join(problems)}", False
    reason = engine.settings.reason
    if judgement.verdict is Verdict.REGRESSION and reason is None:
        return "not recorded: it is slower; give --reason TEXT to accept that", False
    if judgement.verdict is Verdict.INCONCLUSIVE:
        return f"not recorded: {judgement.detail}", False
    run = Run(
        at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        median_us=round(sorted(medians)[len(medians) // 2], 3),
        spread=round(measurement.relative_spread, 5),
        samples=len(measurement.samples_us),
        gpu_uuid=measurement.device.uuid,
    )
    provenance = {"by": f"pytest-cutile {_version()}", "commit": engine.commit}
    if judgement.verdict is Verdict.PASS and entry is not None:
        renewed = entry.with_run(run, environment=environment, provenance=provenance)
        what = f"run {len(renewed.runs)} added"
        if changes := environment_changes(entry.environment, environment):
            what = f"recorded anew, the environment changed ({'; '.join(changes)})"
    else:
        if judgement.verdict is Verdict.REGRESSION and reason is not None:
            provenance["reason"] = reason
        renewed = Entry(work=case.work, runs=(run,), environment=environment, provenance=provenance)
        what = "recorded"
        if entry is not None and judgement.change is not None:
            what = f"{format_time(entry.median_us)} -> {format_time(run.median_us)} "
            what += f"({format_change(judgement.change)})"
    try:
        record_entries(
            path, arch=measurement.device.arch, gpu=measurement.device.name, entries={case.key: renewed}
        )
    except BaselineError as error:
        raise _Failed(Reason.BAD_BASELINE, str(error)) from None
    return f"{what} in {_shown(engine)}", True


def _shown(engine: Engine) -> str:
    path = engine.baseline_file
    if path is None:
        return "no baseline file"
    try:
        return str(path.relative_to(engine.settings.rootpath))
    except ValueError:
        return str(path)


def _work(work: Work) -> str:
    dtype = f", {work.dtype}" if work.dtype else ""
    return f"{work.flops:.6g} flops, {work.bytes:.6g} bytes{dtype}"


def _version() -> str:
    from pytest_cutile import __version__

    return __version__
