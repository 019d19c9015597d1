"""The gate `speed`: is the kernel as fast as its baseline? This is its first half, the screening.

A declared case whose code, launch and environment are those of a stored record passes as `unchanged`,
without a measurement. Every other case is measured once, interleaved with the baseline kernel. A case that
may be slower, or is to be recorded, stays pending: `pytest_cutile.gates.speed.suite` decides it in fresh
processes when all other cases have been measured.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.baselines.select import MAX_RUNS, n_runs
from pytest_cutile.gates.base import Gate, RunningTest, Task
from pytest_cutile.gates.declared import compile_case, is_compiled, skip_if_wrong
from pytest_cutile.gates.outcome import GateFailed
from pytest_cutile.gates.revisions.modules import RevisionError
from pytest_cutile.gates.revisions.paired import BaselineLaunchFailed, LaunchedKernels
from pytest_cutile.gates.speed.case import Launcher, Request, SpeedCase, SpeedOutcome, speed_result
from pytest_cutile.gates.speed.comparison import Comparison, Paired, SameCode
from pytest_cutile.gates.speed.find import find_comparison
from pytest_cutile.gates.speed.judge import judge_screening
from pytest_cutile.gates.speed.protocol import Failed, RequestedCases, Timed
from pytest_cutile.gates.speed.suite import SpeedSuite
from pytest_cutile.gates.speed.timed_case import declared_speed_case
from pytest_cutile.gates.user_code import FAILURES, failure_of, user_code
from pytest_cutile.tile.compiler.trace.observing import watch_first_call
from pytest_cutile.timing.gpu.context import breaks_the_context
from pytest_cutile.timing.measure.blocks import measure
from pytest_cutile.timing.measure.call import MeasurementFailed
from pytest_cutile.timing.measure.results import computes_otherwise
from pytest_cutile.words.errors import GateSkipped
from pytest_cutile.words.verdicts import Judgement, Reason, strict_failure

if TYPE_CHECKING:
    from pytest_cutile.gates.session import Session
    from pytest_cutile.words.spec import Case, KernelSpec, Work
    from pytest_cutile.words.timing import Measurement

SENTINELS = 3
"""Unchanged cases of a run that are timed all the same, to say how this GPU does today."""
_OTHER_RESULT = (
    "more than 10 % of the baseline kernel's outputs differ by more than 10 % from today's, on the inputs "
    "that are timed"
)
_UNCHANGED = Judgement(
    reason=Reason.UNCHANGED,
    detail="not measured: its code, launch and environment are those of its baseline",
)


def gate_speed(
    session: Session,
    suite: SpeedSuite,
    case: SpeedCase,
    publish: Callable[[Measurement], None],
    *,
    work: Callable[[], Work] | None = None,
    is_sentinel: bool = False,
) -> Measurement | None:
    """Measure `case` and compare it with its baseline; it stays pending if it may be slower or is recorded.

    Args:
        session: of the run.
        suite: takes a pending case.
        case: what is measured.
        publish: takes the measurement, for pytest-benchmark.
        work: returns what one launch does, where the user's code says that.
        is_sentinel: whether it is measured even if it is known to be unchanged.

    Returns:
        The measurement; None of an unchanged case that is not measured.

    Raises:
        GateFailed: the case fails, and is not pending.
        GateSkipped: it cannot be measured here.
        Exception: what `case.check` raises when the result is wrong.
    """
    __tracebackhide__ = True
    try:
        with user_code():
            if work is not None:
                with _recording_what_raises(session, case):
                    case = replace(case, work=work())
            _skip_unless_measurable(session, case)
            if session.requested is not None:
                outcome = _measure_for_another(session, case, session.requested)
            else:
                outcome = _judge(session, suite, case, is_sentinel=is_sentinel)
    except GateSkipped as skipped:
        if session.requested is None:
            note = "no speed was recorded: nothing was measured" if session.settings.update_baselines else ""
            session.results.append(
                speed_result(case, reason=skipped.reason, detail=skipped.detail, recorded=note)
            )
        raise
    if outcome.measurement is not None:
        publish(outcome.measurement)
    if outcome.failure is not None:
        raise GateFailed(outcome.failure, pytrace=False)
    return outcome.measurement


def _judge(session: Session, suite: SpeedSuite, case: SpeedCase, *, is_sentinel: bool) -> SpeedOutcome:
    settings = session.settings
    try:  # first: a file that cannot be used is reported before any GPU time is spent
        comparison, judgement = find_comparison(session, case)
    except (BaselineError, MeasurementFailed) as error:
        return _report(session, case, _failed(error))
    known: SameCode | None = None
    if isinstance(comparison, SameCode) and comparison.is_recorded:
        known = None if settings.perf_all or _has_room(session, case) else comparison
    if known is not None and (settings.update_baselines or not is_sentinel):
        return _report(session, case, SpeedOutcome(judgement=_UNCHANGED))
    if session.checked.get(case.check_key, Reason.UNCHECKED) is not None:
        case.check()
    try:
        with user_code(), _recording_what_raises(session, case):
            if known is not None:
                outcome = _time_sentinel(session, case, known)
            else:
                outcome = _screen(session, suite, case, comparison, judgement)
    except MeasurementFailed as error:
        outcome = _failed(error)
    return _report(session, case, outcome)


@contextlib.contextmanager
def _recording_what_raises(session: Session, case: SpeedCase) -> Iterator[None]:
    """Record that the user's own code raised, or was stopped by pytest-timeout."""
    try:
        yield
    except (GateSkipped, MeasurementFailed):
        raise
    except FAILURES as error:
        reason, detail = failure_of(error)
        session.results.append(speed_result(case, reason=reason, detail=detail))
        raise


def _report(session: Session, case: SpeedCase, outcome: SpeedOutcome) -> SpeedOutcome:
    if not outcome.is_pending:
        session.results.append(outcome.result(case))
    return outcome


def _failed(error: BaselineError | MeasurementFailed) -> SpeedOutcome:
    reason = error.reason if isinstance(error, MeasurementFailed) else Reason.BAD_BASELINE
    judgement = Judgement(reason=reason, detail=str(error).partition("\n")[0])
    return SpeedOutcome(judgement=judgement, failure=str(error))


def _has_room(session: Session, case: SpeedCase) -> bool:
    """Say whether more runs of an unchanged case on this GPU are to be recorded."""
    baselines = session.speed_baselines
    if not session.settings.update_baselines or baselines is None:
        return False
    return n_runs(baselines, baselines.entries[case.key], session.gpu.timer.device.uuid) < MAX_RUNS


def _skip_unless_measurable(session: Session, case: SpeedCase) -> None:
    """Raise GateSkipped if `case` cannot be timed here, or is wrong."""
    if case.interpreted and session.gpu.device is not None and session.gpu.device.arch == case.arch:
        raise GateSkipped(Reason.NO_GPU, "the test is interpreted on the CPU, so nothing can be timed in it")
    session.gpu.usable_device(case.arch)
    skip_if_wrong(session, case.check_key, "speed")


def _measure_for_another(session: Session, case: SpeedCase, requested: RequestedCases) -> SpeedOutcome:
    """Measure a case for another process, which judges it."""
    request = requested.requests.get(case.key)
    if request is None:  # the test makes several measurements, and only others are requested
        measurement = measure_case(session, case, sustained=False)
        return SpeedOutcome(judgement=Judgement(reason=Reason.UNCONFIRMED), measurement=measurement)
    requested.begin(case.key)
    try:
        with user_code():
            measurement = measure_requested(session, case, request)
    except Exception as error:
        reason, text = Reason.NOT_TIMED, f"{case.key}: {type(error).__name__}: {error}"
        if breaks_the_context(error):
            reason = Reason.CRASH
        if isinstance(error, MeasurementFailed):
            reason, text = error.reason, str(error)
        elif isinstance(error, BaselineLaunchFailed | RevisionError):
            reason = Reason.NOT_IN_REVISION
        requested.answer(Failed(key=case.key, reason=reason, error=text))
        raise
    requested.answer(Timed(key=case.key, measurement=replace(measurement, platform=None)))
    return SpeedOutcome(judgement=Judgement(reason=Reason.UNCONFIRMED), measurement=measurement)


def measure_requested(session: Session, case: SpeedCase, request: Request) -> Measurement:
    """Measure a case as a fresh process is asked to."""
    launcher: Launcher | None = None
    if request.revision:
        launcher = case.launcher_at(request.revision)
        if launcher is None:
            raise RevisionError(f"{request.revision} has no {case.key}")
    return measure_case(session, case, launcher, sustained=request.sustained)


def measure_case(
    session: Session, case: SpeedCase, baseline: Launcher | None = None, *, sustained: bool = True
) -> Measurement:
    """Measure a case, interleaved with a baseline launcher if there is one.

    Raises:
        BaselineLaunchFailed: the baseline launcher raised, or computes something else.
        MeasurementFailed: it cannot be timed, or the times make no sense.
    """
    session.progress(f"timing {case.key}")
    launched = LaunchedKernels()
    tunings: list[str] = []
    with session.gpu.lock.alone():
        call = case.call()  # a process that waits for the GPU holds none of its memory
        call = replace(call, function=watch_first_call(call.function, case.arch, tunings.append))
        if baseline is not None:
            call, baseline = replace(call, function=launched.watch(call.function)), launched.watch(baseline)
            if computes_otherwise(call, baseline):
                raise BaselineLaunchFailed(_OTHER_RESULT)
        measurement = measure(
            session.gpu.timer,
            case.key,
            case.work,
            call,
            baseline=baseline,
            sustained=sustained,
            # A process that measures for another one has traced nothing.
            deterministic=session.requested is None and case.is_deterministic(),
        )
        _release_memory()
    if baseline is not None and launched.shared:
        raise MeasurementFailed(
            Reason.SAME_KERNEL,
            f"{case.key}: this process launches one kernel for both the working tree and the baseline: "
            f"{launched.shared}. Is it registered once in a process (torch.library)? Such a kernel cannot be "
            "measured interleaved with its baseline; give --perf-baseline none",
        )
    session.gpu.unseen.update(dict.fromkeys(session.gpu.timer.unseen()))
    # A launcher that keeps its choice has searched when it was checked.
    return replace(measurement, tuning="".join(tunings) or session.tunings.get(case.check_key, ""))


def _release_memory() -> None:
    """Give the GPU's memory back that torch keeps: others measure next."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _time_sentinel(session: Session, case: SpeedCase, comparison: SameCode) -> SpeedOutcome:
    """Measure an unchanged case: the change is this GPU's, and decides nothing."""
    measurement = measure_case(session, case)
    judgement = Judgement(reason=Reason.UNCHANGED, change=comparison.change([measurement]))
    return SpeedOutcome(judgement=judgement, measurement=measurement)


def _screen(
    session: Session, suite: SpeedSuite, case: SpeedCase, comparison: Comparison | None, judgement: Judgement
) -> SpeedOutcome:
    """Measure a case once and judge it as far as that can; it becomes pending if that is not enough."""
    settings = session.settings
    try:
        launcher = comparison.launcher if isinstance(comparison, Paired) else None
        measurement = measure_case(session, case, launcher)
    except BaselineLaunchFailed as error:
        if not isinstance(comparison, Paired) or settings.baseline_revision is not None:
            comparison, judgement = None, Judgement(reason=Reason.NOT_IN_REVISION, detail=str(error))
        else:
            comparison = comparison.without_baseline_kernel(str(error))
        measurement = measure_case(session, case)
    if comparison is not None:
        judgement = judge_screening(case.key, comparison, measurement)
    records = settings.update_baselines and judgement.reason is not Reason.OTHER_GPU
    if isinstance(comparison, SameCode) and comparison.is_unchanged:
        records = records and _has_room(session, case)
    is_pending = records or judgement.reason is Reason.UNCONFIRMED
    if is_pending:
        suite.add(case, comparison, judgement, measurement)
    note = failure = None
    if settings.update_baselines and judgement.reason is Reason.OTHER_GPU:
        note = failure = f"{case.key}: not recorded: {judgement.detail}"
    elif not is_pending:
        failure = strict_failure(case.key, judgement, strict=settings.strict)
    return SpeedOutcome(
        judgement=judgement, measurement=measurement, failure=failure, note=note, is_pending=is_pending
    )


class SpeedGate(Gate):
    """Times the cases that say so, and compares them with their baselines."""

    measures = True

    def __init__(self, session: Session, name: str) -> None:
        super().__init__(session, name)
        self.suite = SpeedSuite(session)
        """The cases that were compared with a baseline."""

    def tasks(self, spec: KernelSpec, case: Case, module: str) -> Iterable[Task]:
        return super().tasks(spec, case, module) if case.speed else ()

    def prepare(self, tasks: Sequence[Task]) -> None:
        device = self.session.gpu.device
        if device is not None and self.session.requested is None:
            here = [task for task in tasks if task.arch == device.arch and is_compiled(task)]
            self.session.compilations.start(compile_case(task.spec, task.case, task.arch) for task in here)

    def run(self, task: Task, test: RunningTest) -> None:
        # Where the gate `correct` does not run, a few parts of a large case say whether it is right.
        is_checked = ("correct", task.spec.name, task.case.name, task.arch) in self.session.selected
        gate_speed(
            self.session,
            self.suite,
            declared_speed_case(self.session, task, test.nodeid, sampled=not is_checked),
            test.publish,
            work=functools.partial(task.spec.work_of, task.case),
            is_sentinel=task.key in self._sentinels,
        )

    @functools.cached_property
    def _sentinels(self) -> frozenset[str]:
        """The keys of a few of the run's cases, spread over the kernels: the same ones in each worker."""
        keys = sorted(
            f"{kernel}[{case}]" for gate, kernel, case, _ in self.session.selected if gate == self.name
        )
        step = len(keys) / SENTINELS
        return frozenset(keys[int((number + 0.5) * step)] for number in range(SENTINELS) if keys)

    def finish(self) -> list[str]:
        return self.suite.remarks


def suite_of(gates: Mapping[str, Gate]) -> SpeedSuite:
    """Return the cases that the gates of a run have timed."""
    gate = gates["speed"]
    if not isinstance(gate, SpeedGate):
        raise TypeError(f"the gate speed is a {type(gate).__name__}")
    return gate.suite
