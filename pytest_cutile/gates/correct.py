"""The gate `correct`: does the kernel compute what its reference computes?"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pytest_cutile.compiler import CompileError
from pytest_cutile.correctness.errors import KernelMismatch
from pytest_cutile.correctness.guards.launching import ON_GPU, Launching
from pytest_cutile.correctness.report import CheckReport
from pytest_cutile.errors import GateSkipped
from pytest_cutile.gates.base import Gate, RunningTest, Task
from pytest_cutile.gates.declared import check_inputs, compiled_case, is_compiled
from pytest_cutile.gates.interpreted import Interpreting
from pytest_cutile.gates.user_code import user_code
from pytest_cutile.input_names import NORMAL
from pytest_cutile.interpreter.faults import KernelFault
from pytest_cutile.results import INTERPRETER, CorrectResult
from pytest_cutile.session import Session
from pytest_cutile.spec import Case, KernelSpec
from pytest_cutile.tensors.seeded import MakeTensor, seed_from
from pytest_cutile.verdicts import Reason, Verdict


class CorrectGate(Gate):
    """Checks every case with normal inputs, and small ones with some that reveal more."""

    def tasks(self, spec: KernelSpec, case: Case, module: str) -> Iterable[Task]:
        """Return a task for each of the case's inputs, about the GPU's architecture or the first one."""
        arch, every = self.session.target.gpu_arch, self.session.settings.every_input
        for inputs in (NORMAL, *spec.named_inputs(case, every=every)):
            suffix = "" if inputs == NORMAL else inputs
            yield Task(
                gate=self.name, spec=spec, case=case, arch=arch, module=module, inputs=inputs, suffix=suffix
            )

    def run(self, task: Task, test: RunningTest) -> None:
        """Compare a case with its reference."""
        check_task(self.session, task, test)


def check_task(session: Session, task: Task, test: RunningTest, *, sampled: bool = False) -> CheckReport:
    """Compare a case with its reference, on the GPU or interpreted, and remember whether it is right.

    With `sampled`, only a few parts of a large case are compared.

    Raises:
        Exception: what `gate_correct` raises.
    """
    spec, case, seed = task.spec, task.case, seed_of(task.case, test.nodeid)

    interpreted = session.target.interprets(task.arch)

    def check_with(launching: Launching) -> CheckReport:
        device = "cuda" if launching.is_interpreted else None
        inputs = make_inputs(session, task, seed=seed, torch_device=device)
        return check_inputs(
            spec,
            case,
            inputs,
            launching=launching,
            name=task.inputs,
            settings=session.settings,
            sampled=sampled,
        )

    def check() -> CheckReport:
        if not interpreted:
            return check_with(ON_GPU)
        try:
            return Interpreting(session, task.arch).interpret(check_with, spec.work_of(case))
        except CompileError as error:
            _leave_to_gate_compile(session, task, error)
            raise

    return gate_correct(
        session,
        key=task.key,
        kernel=spec.name,
        case=task.case_name,
        arch=task.arch,
        check=check,
        interpreted=interpreted,
        inputs=task.suffix,
    )


def seed_of(case: Case, nodeid: str) -> int:
    return seed_from(nodeid) if case.seed is None else case.seed


def make_inputs(
    session: Session, task: Task, *, seed: int, torch_device: str | None = None, signed_rows: bool = True
) -> Any:
    """Return the arguments of a task's launch, by default in the GPU's memory.

    Raises:
        GateSkipped: there is no such GPU.
    """
    device = torch_device or session.gpu.usable_device(task.arch).torch_device
    make = functools.partial(MakeTensor, device=device, seed=seed, signed_rows=signed_rows)
    return task.spec.make_inputs(make, task.case, task.inputs)


def _leave_to_gate_compile(session: Session, task: Task, error: CompileError) -> None:
    """Raise GateSkipped if the gate `compile` of this run fails, too: one failure reports it."""
    if not is_compiled(task):
        return
    case = compiled_case(session, task)
    if ("compile", *case.key) not in session.selected:
        return
    try:
        session.compilations.result(case)
    except Exception:  # noqa: BLE001 - whatever it is, that gate reports it
        line = f"{error}".partition("\n")[0]
        raise GateSkipped(Reason.NOT_COMPILED, f"it does not compile, see the gate compile: {line}") from None


def gate_correct(
    session: Session,
    *,
    key: str,
    kernel: str,
    case: str,
    arch: str,
    check: Callable[[], CheckReport],
    interpreted: bool = False,
    inputs: str = "",
    launcher: str = "",
    searched: Callable[[], str] | None = None,
) -> CheckReport:
    """Run `check`, which compares a kernel's outputs, and remember whether the case is right.

    `interpreted` says whether `check` interprets the kernel; else it needs the GPU. `inputs` names special
    inputs; `launcher` is what a test function checks. `searched` returns what a search has tried.

    Raises:
        GateSkipped: it cannot run here.
        KernelMismatch: the result is wrong. Whatever the kernel or its reference raises goes on, too.
        KernelFault: interpreted, the kernel did something wrong on its way.
        CompileError: interpreted, the real compiler rejects it.
    """

    def record(reason: Reason | None, *, detail: str, **seen: Any) -> None:
        verdict = Verdict.PASS if reason is None else reason.verdict
        session.results.append(
            CorrectResult(
                key=key,
                kernel=kernel,
                case=case,
                arch=arch,
                verdict=verdict,
                reason=reason,
                detail=detail,
                inputs=inputs,
                launcher=launcher,
                on=INTERPRETER if interpreted and verdict != Verdict.NOT_MEASURED else "",
                gpu=session.gpu.device.name if session.gpu.device is not None and not interpreted else "",
                **seen,
            )
        )

    try:
        if interpreted:
            session.progress(f"interpreting {kernel}[{case}]")
            with user_code():
                report = check()
        else:
            session.gpu.usable_device(arch)
            session.progress(f"checking {kernel}[{case}]")
            with session.gpu.lock.shared(), user_code():
                report = check()
    except GateSkipped as skipped:
        record(skipped.reason, detail=skipped.detail)
        raise
    except KernelMismatch as mismatch:
        session.checked[key] = Reason.WRONG_RESULT
        record(
            mismatch.kind,
            detail=str(mismatch).partition("\n")[0],
            clarity=mismatch.clarity,
            advice=mismatch.advice,
            errors=mismatch.errors,
        )
        raise
    except Exception as error:
        session.checked[key] = Reason.UNCHECKED
        message = f"{error}".partition("\n")[0]
        if isinstance(error, KernelFault):
            session.checked[key] = Reason.WRONG_RESULT
            # mypy takes the call for the declaration of a member.
            record(Reason(error.kind), detail=message)  # type: ignore[call-arg]
        elif isinstance(error, CompileError):
            record(Reason.COMPILE_ERROR, detail=message)
        else:
            record(Reason.RAISED, detail=f"{type(error).__name__}: {message}")
        raise
    session.checked[key] = None
    record(
        Reason.NONDETERMINISTIC if report.deterministic is False else None,
        detail="; ".join(_remarks(report)),
        tolerance=_tolerance(report),
        looser=report.looser,
        allowed=report.allowed,
        outputs=re.sub(r" \[[^]]*\]", "", report.outputs),
        uncompared=report.uncompared,
        refused=report.refused,
        searched="" if searched is None else searched(),
        mutation=None if report.mutation is None else report.mutation.to_dict(),
    )
    return report


def _remarks(report: CheckReport) -> Iterator[str]:
    """Yield what is worth saying of a check that passed."""
    if report.tolerance is not None or not report.reference_runs:
        yield report.bound
    yield from report.overflowed
    for name in report.uncompared:
        yield f"{name} may change, and was compared with nothing"
    for name in report.unguarded:
        yield f"no redzones around {name}"


def _tolerance(report: CheckReport) -> str:
    return "" if report.tolerance is None else "rtol={:g}, atol={:g}".format(*report.tolerance)
