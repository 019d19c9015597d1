"""The gate `speed`: is the kernel as fast as its baseline? This is its first half, the screening.

Every case is measured once. A case that could be slower, or is to be recorded, stays pending:
`pytest_cutile.speed.suite` decides it in fresh processes when all other cases have been measured.
"""

from __future__ import annotations

import datetime as dt
import functools
import shlex
from collections.abc import Callable, Iterable, Mapping

from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.errors import GateSkipped
from pytest_cutile.gates.base import Gate, RunningTest, Task
from pytest_cutile.gates.correct import check_task, make_inputs
from pytest_cutile.gates.declared import call_of, compiled_case
from pytest_cutile.gates.outcome import GateFailed
from pytest_cutile.platforms.lookup import find_platform
from pytest_cutile.revisions.modules import RevisionError
from pytest_cutile.revisions.paired import BaselineLaunchFailed
from pytest_cutile.session import MeasuredAgain, Session
from pytest_cutile.spec import Case, KernelSpec, Work
from pytest_cutile.speed.case import SpeedCase, SpeedOutcome, speed_result
from pytest_cutile.speed.comparisons import Comparison, PairedComparison, StoredComparison
from pytest_cutile.speed.judging import strict_failure, unless_noisy
from pytest_cutile.speed.measure.blocks import Call, MeasurementFailed, measure, to_plain
from pytest_cutile.speed.measure.timing import Measurement, bound_of
from pytest_cutile.speed.suite import SpeedSuite
from pytest_cutile.tensors.seeded import timed_seed
from pytest_cutile.verdicts import Judgement, Reason, Verdict

STALE_AFTER = dt.timedelta(days=60)
"""Age from which a baseline that is beaten is reported."""
_NO_SPEED = {
    Reason.WRONG_RESULT: "the result is wrong, so its speed means nothing",
    Reason.UNCHECKED: "its check raised, so nobody knows whether the result is right",
}


def gate_speed(session: Session, suite: SpeedSuite, case: SpeedCase) -> SpeedOutcome:
    """Measure `case` and compare it with its baseline; it stays pending if it may be slower or is recorded.

    Raises:
        GateSkipped: it cannot be measured here.
        Exception: what `case.check` raises when the result is wrong.
    """
    measured_again = session.measured_again
    try:
        _skip_unless_measurable(session, case)
    except GateSkipped as skipped:
        if measured_again is None:
            note = "no speed was recorded: nothing was measured" if session.settings.update_baselines else ""
            session.results.append(
                speed_result(
                    case,
                    verdict=Verdict.NOT_MEASURED,
                    reason=skipped.reason,
                    detail=skipped.detail,
                    recorded=note,
                )
            )
        raise
    if measured_again is not None:
        return _measure_for_another(session, case, measured_again)
    if case.check is not None and case.check_key not in session.checked:
        case.check()
    try:
        outcome = _screen(session, suite, case)
    except MeasurementFailed as error:
        judgement = Judgement(reason=error.reason, detail=str(error).partition("\n")[0])
        outcome = SpeedOutcome(judgement=judgement, failure=str(error))
    except Exception as error:
        detail = f"{type(error).__name__}: {error}".partition("\n")[0]
        session.results.append(speed_result(case, verdict=Verdict.FAIL, reason="raised", detail=detail))
        raise
    if not outcome.is_pending:
        session.results.append(outcome.result(case))
    return outcome


def _skip_unless_measurable(session: Session, case: SpeedCase) -> None:
    """Raise GateSkipped if `case` cannot be timed here, or is wrong."""
    if case.interpreted and session.gpu.device is not None and session.gpu.device.arch == case.arch:
        raise GateSkipped(Reason.NO_GPU, "the test is interpreted on the CPU, so nothing can be timed in it")
    session.gpu.usable_device(case.arch)
    wrong = session.checked.get(case.check_key)
    if wrong is not None:
        raise GateSkipped(wrong, _NO_SPEED[wrong])


def _measure_for_another(session: Session, case: SpeedCase, report: MeasuredAgain) -> SpeedOutcome:
    """Measure a case for another process, which judges it."""
    try:
        measurement = measure_case(session, case)
    except Exception as error:
        reason, text = Reason.NOT_TIMED, f"{case.key}: {type(error).__name__}: {error}"
        if isinstance(error, MeasurementFailed):
            reason, text = error.reason, str(error)
        elif isinstance(error, BaselineLaunchFailed | RevisionError):
            reason = Reason.NOT_IN_REVISION
        report(case.key, {"reason": reason, "error": text})
        raise
    report(case.key, to_plain(measurement))
    return SpeedOutcome(judgement=Judgement(reason=Reason.UNCONFIRMED), measurement=measurement)


def measure_case(session: Session, case: SpeedCase) -> Measurement:
    """Measure a case, interleaved with the reference workload or with the baseline launcher that it names.

    Raises:
        BaselineLaunchFailed: the baseline launcher raised.
        MeasurementFailed: it cannot be timed, or the times make no sense.
    """
    return _measure(session, case, case.baseline() if case.baseline is not None else None)


def _measure(session: Session, case: SpeedCase, baseline: Callable[..., object] | None) -> Measurement:
    call = case.call()
    session.progress(f"timing {case.key}")
    with session.gpu.lock.alone():
        measurement = measure(session.gpu.timer, case.key, case.work, call, baseline=baseline)
    session.gpu.unseen.update(dict.fromkeys(session.gpu.timer.unseen()))
    return measurement


def _screen(session: Session, suite: SpeedSuite, case: SpeedCase) -> SpeedOutcome:
    # Look for the baseline first: a file that cannot be used is reported before any GPU time is spent.
    try:
        comparison, judgement = find_comparison(session, case)
    except BaselineError as error:
        raise MeasurementFailed(Reason.BAD_BASELINE, str(error)) from None
    try:
        measurement = measure_case(session, case)
    except BaselineLaunchFailed as error:
        comparison, judgement = None, Judgement(reason=Reason.NOT_IN_REVISION, detail=str(error))
        measurement = _measure(session, case, None)
    if comparison is not None:
        measurement = comparison.with_clock(measurement, session.gpu.timer.environment)
        judgement = unless_noisy(_compare(case.key, comparison, measurement), case.key, [measurement])
    records = session.settings.update_baselines and judgement.reason is not Reason.OTHER_GPU
    is_pending = records or (comparison is not None and _is_suspect(comparison, measurement))
    suite.add(case, comparison, judgement, measurement, is_pending=is_pending, records=records)
    note = failure = None
    if session.settings.update_baselines and not records:
        note = failure = f"{case.key}: not recorded: {judgement.detail}"
    elif not is_pending:
        failure = strict_failure(case.key, judgement, strict=session.settings.strict)
    return SpeedOutcome(
        judgement=judgement, measurement=measurement, failure=failure, note=note, is_pending=is_pending
    )


def _is_faster(comparison: Comparison, measurement: Measurement) -> bool:
    unadjusted = comparison.unadjusted() if measurement.doubts else comparison
    return comparison.is_faster(measurement) and unadjusted.is_faster(measurement)


def _is_suspect(comparison: Comparison, measurement: Measurement) -> bool:
    return not _is_faster(comparison, measurement) and comparison.is_suspect(measurement)


def _compare(key: str, comparison: Comparison, measurement: Measurement) -> Judgement:
    """Judge a screened case, as far as one measurement can."""
    change = comparison.change([measurement])
    if _is_faster(comparison, measurement):
        detail = _stale(key, comparison)
        if not detail and measurement.doubts:
            detail = f"{key} is faster although the GPU was disturbed: {'; '.join(measurement.doubts)}"
        return Judgement(reason=Reason.FASTER, change=change, detail=detail)
    if _is_suspect(comparison, measurement):
        detail = f"{key} may be slower; the run ended before fresh processes could tell"
        return Judgement(reason=Reason.UNCONFIRMED, change=change, detail=detail)
    return Judgement(reason=Reason.WITHIN_MARGIN, change=change)


def _stale(key: str, comparison: Comparison) -> str:
    """Return the advice to record a beaten baseline that is months old; empty if it is not."""
    if not isinstance(comparison, StoredComparison):
        return ""
    last = max(run.at for run in comparison.selected.runs)
    try:
        age = dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(last)
    except (ValueError, TypeError):  # written by hand, perhaps without a time zone
        return ""
    if age < STALE_AFTER:
        return ""
    return f"stale: {key} has beaten its baseline of {last[:10]}; record it: pytest --update-baselines"


def find_comparison(  # noqa: PLR0911 - one return for each reason
    session: Session, case: SpeedCase
) -> tuple[Comparison | None, Judgement]:
    """Return what a case is compared with, or None and the judgement that says why nothing is.

    Raises:
        BaselineError: the baselines cannot be used.
    """
    settings = session.settings
    if case.baseline is not None:
        revision = settings.baseline_revision or ""
        if case.baseline() is None:
            detail = f"{revision} has no {case.key}"
            if case.fingerprint is None:
                detail = f"{revision}: {case.key} times no function of a module that {revision} has, too"
            return None, Judgement(reason=Reason.NOT_IN_REVISION, detail=detail)
        return PairedComparison(rule=settings.rule, revision=revision), Judgement(reason=Reason.WITHIN_MARGIN)
    device = session.gpu.timer.device
    baselines = session.speed_baselines
    shown = session.speed_baselines_name
    advice = f"record it: pytest {shlex.quote(case.nodeid)} --update-baselines"
    if settings.baseline_path is None:
        return None, Judgement(reason=Reason.BASELINES_OFF, detail="--perf-baseline none")
    if baselines is None:
        detail = f"{shown} does not exist; record it: pytest --update-baselines"
        return None, Judgement(reason=Reason.NO_FILE, detail=detail)
    if (baselines.arch, baselines.gpu) != (device.arch, device.name):
        detail = f"{shown} was recorded on {baselines.gpu} ({baselines.arch})"
        return None, Judgement(reason=Reason.OTHER_GPU, detail=detail)
    entry = baselines.entries.get(case.key)
    if entry is None:
        detail = f"{shown} has no entry for {case.key}; {advice}"
        return None, Judgement(reason=Reason.NO_ENTRY, detail=detail)
    if entry.work != case.work:
        detail = (
            f"{case.key} does {_work(case.work)} now, {_work(entry.work)} in {shown}; {advice} --reason TEXT"
        )
        return None, Judgement(reason=Reason.WORK_CHANGED, detail=detail)
    workload = session.gpu.timer.reference_workload(bound_of(case.work, find_platform(device.name)))
    comparison = session.stored_runs.compare(entry, device, workload.name if workload is not None else "")
    return comparison, Judgement(reason=Reason.WITHIN_MARGIN)


def _work(work: Work) -> str:
    dtype = f", {work.dtype}" if work.dtype else ""
    return f"{work.flops:.6g} flops, {work.bytes:.6g} bytes{dtype}"


class SpeedGate(Gate):
    """Times the cases that say so, and compares them with their baselines."""

    measures = True

    def __init__(self, session: Session, name: str) -> None:
        super().__init__(session, name)
        self.suite = SpeedSuite(session)
        """The cases that were compared with a baseline."""

    def tasks(self, spec: KernelSpec, case: Case, module: str) -> Iterable[Task]:
        """Return a task if the case is to be timed."""
        return super().tasks(spec, case, module) if case.speed else ()

    def run(self, task: Task, test: RunningTest) -> None:
        """Time a case and compare it with its baseline; check it first if that has not been done.

        Raises:
            GateSkipped: it cannot be measured here.
            GateFailed: it failed, or its baseline cannot be read.
            Exception: what the check raises when the result is wrong.
        """
        __tracebackhide__ = True
        session, spec, revision = self.session, task.spec, self.session.revision_kernels

        def call() -> Call:
            return call_of(spec.launch, make_inputs(session, task, seed=timed_seed(spec, task.case)))

        def baseline() -> Callable[..., object] | None:
            declared = revision.spec(task.module, spec.name) if revision is not None else None
            return (
                None if revision is None or declared is None else revision.with_own_imports(declared.launch)
            )

        case = SpeedCase(
            key=task.key,
            check_key=task.key,
            kernel=spec.name,
            case=task.case.name,
            nodeid=test.nodeid,
            arch=task.arch,
            work=spec.work_of(task.case),
            call=call,
            baseline=None if revision is None else baseline,
            fingerprint=functools.partial(session.compilations.fingerprint, compiled_case(session, task)),
            check=functools.partial(check_task, session, task, test),
        )
        outcome = gate_speed(session, self.suite, case)
        if outcome.measurement is not None:
            test.publish(outcome.measurement)
        if outcome.failure is not None:
            raise GateFailed(outcome.failure, pytrace=False)

    def finish(self) -> list[str]:
        """Return what was taken off the times of all cases."""
        return self.suite.remarks


def suite_of(gates: Mapping[str, Gate]) -> SpeedSuite:
    """Return the cases that the gates of a run have timed."""
    gate = gates["speed"]
    if not isinstance(gate, SpeedGate):
        raise TypeError(f"the gate speed is a {type(gate).__name__}")
    return gate.suite
