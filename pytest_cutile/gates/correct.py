"""The gate `correct`: does the kernel compute what its reference computes?"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pytest_cutile.correctness.errors import KernelMismatch, UncheckableOutput
from pytest_cutile.correctness.guards.launching import ON_GPU, Launching
from pytest_cutile.gates.base import Gate, RunningTest, Task
from pytest_cutile.gates.declared import check_inputs, compile_case_of, is_compiled
from pytest_cutile.gates.interpreted import Interpreting
from pytest_cutile.gates.tuned_on_gpu import check_on_gpu
from pytest_cutile.gates.user_code import FAILURES, failure_of, user_code
from pytest_cutile.tile.compiler import CompileError, CompilerFault
from pytest_cutile.tile.forking import ForkDied, call_in_fork, can_fork
from pytest_cutile.tile.interpreter.faults import KernelFault
from pytest_cutile.tile.tensors.seeded import MakeTensor, seed_from
from pytest_cutile.timing.gpu.context import breaks_the_context
from pytest_cutile.words.errors import GateSkipped
from pytest_cutile.words.input_names import NORMAL
from pytest_cutile.words.results import INTERPRETER, CorrectResult
from pytest_cutile.words.verdicts import UNCHECKED_AFTER, Reason, Verdict

if TYPE_CHECKING:
    from pytest_cutile.correctness.report import CheckReport
    from pytest_cutile.gates.session import Session
    from pytest_cutile.words.spec import Case, KernelSpec

MOSTLY = 0.5
"""Share of the outputs' elements below which those that come from launches are worth a remark."""


class CorrectGate(Gate):
    """Checks every case with normal inputs, and small ones with some that reveal more."""

    def tasks(self, spec: KernelSpec, case: Case, module: str) -> Iterable[Task]:
        arch, every = self.session.target.gpu_arch, self.session.settings.every_input
        for inputs in (NORMAL, *spec.named_inputs(case, every=every)):
            suffix = "" if inputs == NORMAL else inputs
            yield Task(
                gate=self.name, spec=spec, case=case, arch=arch, module=module, inputs=inputs, suffix=suffix
            )

    def is_forked(self, task: Task) -> bool:
        return self.session.target.interprets(task.arch)

    def run(self, task: Task, test: RunningTest) -> None:
        check_task(self.session, task, test.nodeid)


def check_task(session: Session, task: Task, nodeid: str, *, sampled: bool = False) -> CheckReport:
    """Compare a case with its reference, on the GPU or interpreted, and remember whether it is right.

    With `sampled`, only a few parts of a large case are compared. Raises what `gate_correct` raises.
    """
    spec, seed = task.spec, seed_of(task.case, nodeid)
    interpreted = session.target.interprets(task.arch)

    def check_with(launching: Launching) -> CheckReport:
        device = "cuda" if launching.is_interpreted else None
        inputs = make_inputs(session, task, seed=seed, torch_device=device)
        return check_inputs(
            spec,
            task.case,
            inputs,
            launching=launching,
            name=task.inputs,
            settings=session.settings,
            sampled=sampled,
        )

    def check() -> CheckReport:
        if not interpreted:
            every = session.settings.every_input and task.inputs == NORMAL
            return check_on_gpu(lambda: check_with(ON_GPU), task.arch, every=every)
        try:
            report = Interpreting(session, task.arch).interpret(
                check_with, spec.work_of(task.case), each_configuration=task.inputs == NORMAL
            )
        except CompileError as error:
            _leave_to_gate_compile(session, task, error)
            if isinstance(error, CompilerFault):
                raise error.with_fact("interpreted, its results are right") from None
            raise
        # Special inputs may be such that a kernel has nothing to do.
        return refuse_other_work(report) if task.inputs == NORMAL else report

    subject = CorrectResult(
        key=task.key,
        kernel=spec.name,
        case=task.case_name,
        arch=task.arch,
        verdict=Verdict.PASS,
        on=INTERPRETER if interpreted else "",
        inputs=task.suffix,
    )
    return gate_correct(session, subject, check)


def check_as_selected(session: Session, task: Task, nodeid: str) -> bool:
    """Check the case of another gate's task if the gate `correct` of this run does, and this process did not.

    Another worker of pytest-xdist may run the test of the gate `correct`, and reports what is found. Here
    `Session.checked` has the outcome. Return whether that gate is selected.
    """
    arch = session.target.gpu_arch
    if ("correct", task.spec.name, task.case.name, arch) not in session.selected:
        return False
    if task.key not in session.checked:
        same_test = nodeid.replace(f"::{task.gate}[", "::correct[")
        if task.suffix:
            same_test = same_test.removesuffix(f"-{task.suffix}]") + "]"
        same_task = dataclasses.replace(task, gate="correct", arch=arch, suffix="")
        session.checked[task.key] = _outcome_of(session, same_task, same_test)
    return True


def _outcome_of(session: Session, task: Task, nodeid: str) -> Reason | None:
    """Check a case, in a fork if it is interpreted; return what `Session.checked` says of it."""

    def outcome() -> Reason | None:
        known = len(session.results)
        try:
            check_task(session, task, nodeid)
        except Exception as error:
            if breaks_the_context(error):
                raise
        del session.results[known:]
        return session.checked.get(task.key, Reason.UNCHECKED)

    def in_fork() -> Reason | None:
        session.begin_fork()
        try:
            return outcome()
        finally:
            session.close()

    if not (session.target.interprets(task.arch) and can_fork()):
        return outcome()
    try:
        return call_in_fork(in_fork)
    except ForkDied:  # the test of the gate `correct` reports it
        return Reason.UNCHECKED


def seed_of(case: Case, nodeid: str) -> int:
    return seed_from(nodeid) if case.seed is None else case.seed


def make_inputs(
    session: Session, task: Task, *, seed: int, torch_device: str | None = None, signed_rows: bool = True
) -> Any:
    """Return the arguments of a task's launch, by default in the memory of the GPU, which there must be."""
    device = torch_device or session.gpu.usable_device(task.arch).torch_device
    make = functools.partial(MakeTensor, device=device, seed=seed, signed_rows=signed_rows)
    with user_code():
        return task.spec.make_inputs(make, task.case, task.inputs)


def refuse_other_work(report: CheckReport) -> CheckReport:
    """Return the report of a check that passed.

    Raises:
        KernelMismatch: PyTorch computed the outputs, and the launches contribute nothing to them.
    """
    if report.other_work:
        raise KernelMismatch(report.other_work, reason=Reason.OTHER_WORK)
    return report


def _leave_to_gate_compile(session: Session, task: Task, error: CompileError) -> None:
    """Raise GateSkipped if the gate `compile` of this run fails, too: one failure reports it."""
    if not is_compiled(task):
        return
    case = compile_case_of(session, task)
    if ("compile", *case.key) not in session.selected:
        return
    try:
        session.compilations.result(case)
    except Exception:  # noqa: BLE001 - whatever it is, that gate reports it
        what = "it does not compile" if error.reason is Reason.COMPILE_ERROR else "tileiras is at fault"
        raise GateSkipped(Reason.NOT_COMPILED, f"{what}, see the gate compile") from None


def gate_correct(session: Session, subject: CorrectResult, check: Callable[[], CheckReport]) -> CheckReport:
    """Run `check`, which compares a kernel's outputs, and remember whether the case is right.

    `subject` is the result to complete: its verdict and details follow from the check. Unless `subject.on`
    names the interpreter, `check` needs the GPU.

    Raises:
        GateSkipped: it cannot run here: no GPU or interpreter, too much work, an unknown operation.
        KernelMismatch: the result is wrong. Whatever the kernel or its reference raises goes on, too.
        KernelFault: the interpreter saw the kernel do something wrong, such as an access out of bounds.
        CompileError: the kernel was interpreted, but the real compiler rejects it.
    """
    if not subject.on and session.gpu.device is not None:
        subject = replace(subject, gpu=session.gpu.device.name)

    def add(reason: Reason | None, **seen: Any) -> None:
        verdict = Verdict.PASS if reason is None else reason.verdict
        session.results.append(replace(subject, verdict=verdict, reason=reason, **seen))

    try:
        report = _run(session, subject, check)
    except GateSkipped as skipped:
        session.checked[subject.key] = skipped.reason
        add(skipped.reason, detail=skipped.detail, on="")
        raise
    except FAILURES as error:
        failure = _failure(error)
        unchecked = failure["reason"] in UNCHECKED_AFTER
        session.checked[subject.key] = Reason.UNCHECKED if unchecked else Reason.WRONG_RESULT
        add(**failure)
        raise
    session.checked[subject.key] = None
    session.tunings[subject.key] = report.tuning
    checked = f"{report.checked_configurations} checked" if report.checked_configurations else ""
    add(
        Reason.NONDETERMINISTIC if report.deterministic is False else None,
        detail="; ".join(_remarks(report)),
        tolerance="" if report.tolerance is None else "rtol={:g}, atol={:g}".format(*report.tolerance),
        looser=report.looser,
        allowed=report.allowed,
        from_launches=report.from_launches,
        outputs=re.sub(r" \[[^]]*\]", "", report.outputs),
        narrowed=report.narrowed,
        uncompared=report.uncompared,
        refused=report.refused,
        tuning="; ".join(filter(None, (report.tuning, checked))),
        configurations=report.configurations,
        mutation=None if report.mutation is None else report.mutation.to_dict(),
    )
    return report


def _run(session: Session, subject: CorrectResult, check: Callable[[], CheckReport]) -> CheckReport:
    if subject.on:
        session.progress(f"interpreting {subject.kernel}[{subject.case}]")
        with user_code():
            return check()
    session.gpu.usable_device(subject.arch)
    session.progress(f"checking {subject.kernel}[{subject.case}]")
    with session.gpu.lock.shared(), user_code():
        return check()


def _failure(error: BaseException) -> dict[str, Any]:
    """Return the fields of a result that say how a check failed."""
    message = f"{error}".partition("\n")[0]
    match error:
        case KernelMismatch():
            return {
                "reason": error.reason,
                "detail": message,
                "clarity": error.clarity,
                "wrong_share": error.wrong_share,
                "advice": error.advice,
                "errors": error.errors,
            }
        case KernelFault():
            # mypy takes the call for the declaration of a member.
            return {"reason": Reason(error.kind), "detail": message}  # type: ignore[call-arg]
        case CompileError():
            return {"reason": error.reason, "detail": message}
        case UncheckableOutput():
            return {"reason": Reason.UNCHECKABLE, "detail": message}
    reason, detail = failure_of(error)
    return {"reason": reason, "detail": detail}


def _remarks(report: CheckReport) -> Iterator[str]:
    """Yield what is worth saying of a check that passed."""
    if report.tolerance is not None or not report.reference_runs:
        yield report.bound
    yield from report.overflowed
    if report.from_launches is not None and report.from_launches < MOSTLY:
        yield f"PyTorch computed {1 - report.from_launches:.1%} of the outputs' elements"
    for name in report.uncompared:
        yield f"{name} may change, and was compared with nothing"
    for name in report.unguarded:
        yield f"no redzones around {name}"
