"""A declared case as calls: what is compiled for a task, and what is launched and checked.

What is asked of a git revision raises RevisionError if the revision, or the module, cannot be had.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_cutile.correctness.errors import KernelMismatch
from pytest_cutile.correctness.report import CheckReport
from pytest_cutile.gates.revisions.modules import RevisionError
from pytest_cutile.gates.revisions.paired import with_own_imports
from pytest_cutile.gates.user_code import traced_code
from pytest_cutile.tile.compiler.trace.launches import launcher_begins
from pytest_cutile.tile.compiler.traced import CompileCase, TracedCase, trace_case
from pytest_cutile.tile.tensors.seeded import MakeTensor
from pytest_cutile.timing.measure.call import Call
from pytest_cutile.words.errors import GateSkipped
from pytest_cutile.words.input_names import NORMAL
from pytest_cutile.words.spec import Case, CheckOptions, KernelSpec, ModelSpec
from pytest_cutile.words.verdicts import Reason

if TYPE_CHECKING:
    from pytest_cutile.correctness.guards.launching import Launching
    from pytest_cutile.gates.base import Task
    from pytest_cutile.gates.session import Session
    from pytest_cutile.words.settings import Settings

_WRONG = {
    Reason.WRONG_RESULT: "the gate correct fails, so the case's {} is not compared",
    Reason.UNCHECKED: "its result could not be checked: nobody knows whether it is right",
}


def skip_if_wrong(session: Session, check_key: str, judged: str) -> None:
    """Raise GateSkipped if this process has found a case wrong: what is to be `judged` means nothing."""
    wrong = session.checked.get(check_key)
    if wrong in _WRONG:
        raise GateSkipped(wrong, _WRONG[wrong].format(judged))


def is_compiled(task: Task) -> bool:
    """Say whether what a task launches can be compiled before it runs: not of a model."""
    return not isinstance(task.spec, ModelSpec)


@dataclass(frozen=True, kw_only=True)
class CaseName:
    """A case to compile, by names: what another process of the run finds it by."""

    kernel: str
    case: str
    arch: str
    commit: str = ""
    """The revision of the launcher; empty for the working tree's."""
    recorded: bool = False
    """Whether case and inputs are the revision's, too."""


def trace_origin(
    session: Session, tasks: Mapping[tuple[str, str], Task], request: tuple[CaseName, str]
) -> TracedCase:
    """Trace a case in this process, a fork that ends with what launchers keep.

    `tasks` has one task of each case, by the names of kernel and case. `request` is the case, and the
    configuration that a launcher which tunes is to choose.
    """
    origin, choice = request
    task = replace(tasks[origin.kernel, origin.case], arch=origin.arch)
    compiled: CompileCase | None
    if not origin.commit:
        compiled = compile_case(task.spec, task.case, task.arch)
    elif origin.recorded:
        compiled = recorded_at(session, task, origin.commit)
    else:
        compiled = compiled_at(session, task, origin.commit)
    if compiled is None:
        raise RevisionError(f"{origin.commit} has no {task.key}")
    traced = trace_case(compiled.choosing(choice))
    if not origin.commit:
        return traced
    return replace(traced, shared_file=session.revision(origin.commit).shared_file(task.module))


def compile_case_of(session: Session, task: Task) -> CompileCase:
    """Return what is compiled for a task: its launcher, with inputs that have no data."""
    compiled, revision = compile_case(task.spec, task.case, task.arch), session.settings.baseline_revision
    if revision is None:
        return compiled
    return replace(compiled, base=functools.partial(compiled_at, session, task, revision))


def launcher_at(session: Session, task: Task, commit: str) -> Callable[..., Any] | None:
    """Return a task's launcher as of a git revision; None if that declares no such kernel."""
    revision = session.revision(commit)
    spec = revision.spec(task.module, task.spec.name)
    return None if spec is None else with_own_imports(revision, spec.launch)


def compiled_at(session: Session, task: Task, revision: str) -> CompileCase | None:
    """Return what is compiled for a task with the launcher of a git revision, on today's inputs; or None."""
    launch = launcher_at(session, task, revision)
    if launch is None:
        return None
    named = replace(task.spec, name=f"{task.spec.name} as of {revision}", launch=launch)
    origin = CaseName(kernel=task.spec.name, case=task.case.name, arch=task.arch, commit=revision)
    return replace(compile_case(named, task.case, task.arch), origin=origin)


def declared_at(session: Session, task: Task, commit: str) -> tuple[KernelSpec, Case] | None:
    """Return a task's kernel and case as a git revision declares them; None if it does not."""
    spec = session.revision(commit).spec(task.module, task.spec.name)
    cases = [] if spec is None else [case for case in spec.cases if case.name == task.case.name]
    return (spec, cases[0]) if spec is not None and cases else None


def recorded_at(session: Session, task: Task, commit: str) -> CompileCase | None:
    """Return what was compiled when a case was recorded at a commit, with that commit's inputs; or None."""
    declared = declared_at(session, task, commit)
    if declared is None:
        return None
    spec, case = declared
    revision = session.revision(commit)
    launch, inputs = (with_own_imports(revision, function) for function in (spec.launch, spec.inputs))
    named = replace(spec, name=f"{spec.name} recorded at {commit}", launch=launch, inputs=inputs)
    origin = CaseName(
        kernel=task.spec.name, case=task.case.name, arch=task.arch, commit=commit, recorded=True
    )
    return replace(compile_case(named, case, task.arch), inputs=spec.inputs, origin=origin)


def compile_case(spec: KernelSpec, case: Case, arch: str) -> CompileCase:
    """Return what is compiled for a case on `arch`, compared with no other revision."""

    def run() -> object:
        with traced_code():
            inputs = spec.make_inputs(functools.partial(MakeTensor, device="cuda", seed=0), case)
            launcher_begins()
            return call_of(passes_of(spec, case), inputs)()

    return CompileCase(
        kernel=spec.name,
        case=case.name,
        arch=arch,
        run=run,
        inputs=spec.inputs,
        params=case.params,
        origin=CaseName(kernel=spec.name, case=case.name, arch=arch),
    )


def check_inputs(
    spec: KernelSpec,
    case: Case,
    inputs: Any,
    *,
    launching: Launching,
    name: str,
    settings: Settings,
    sampled: bool = False,
) -> CheckReport:
    """Launch a kernel on what `spec.make_inputs` made under `name`, and compare it with its reference."""
    if isinstance(spec, ModelSpec):
        return _verified(spec, inputs)
    # Other layouts of the same values, and a second backward pass, are compared once for each case.
    vary_layout = (settings.check_layouts or None) if name == NORMAL else False
    options = spec.check_options(
        case,
        mutation_test=settings.mutation_test,
        vary_layout=vary_layout,
        backward_once=name != NORMAL,
        sampled=sampled,
    )
    return check_call(settings, call_of(spec.launch, inputs), spec.reference, options, launching)


def check_call(
    settings: Settings,
    call: Call,
    reference: Callable[..., Any],
    options: CheckOptions,
    launching: Launching,
) -> CheckReport:
    """Compare a launch with its reference; under compute-sanitizer launch alone.

    Guards would hide errors from it: poisoned memory is written, and redzones are inside of allocations.
    """
    from pytest_cutile.correctness.check import run_check

    if not settings.sanitized:
        return run_check(
            call.function, call.args, call.kwargs, reference=reference, options=options, launching=launching
        )
    import torch

    replace(call, function=all_passes(call.function, options))()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return CheckReport()


def _verified(spec: ModelSpec, inputs: Any) -> CheckReport:
    """Let a model's own comparison judge it: AssertionError becomes KernelMismatch."""
    begun = time.monotonic()
    try:
        bound = call_of(spec.verify, inputs)()
    except KernelMismatch:
        raise
    except AssertionError as error:
        raise KernelMismatch(f"{error}") from error
    return CheckReport(elements=1, bound=f"{bound}", seconds=time.monotonic() - begun)


def all_passes(launch: Callable[..., Any], options: CheckOptions) -> Callable[..., Any]:
    """Return a launcher for what looks at launches alone: with `grad`, one that also runs backward."""
    if not options.grad:
        return launch
    from pytest_cutile.correctness.gradients import with_backward

    return with_backward(launch, options.no_grad)


def passes_of(spec: KernelSpec, case: Case) -> Callable[..., Any]:
    """Return the launcher of a case for what looks at launches alone, as `all_passes` does."""
    return all_passes(spec.launch, spec.check_options(case)) if spec.grad else spec.launch


def call_of(launch: Callable[..., Any], inputs: Any) -> Call:
    """Return the call of a launcher with what a spec's `inputs` made."""
    if isinstance(inputs, Mapping):
        return Call(launch, (), dict(inputs))
    return Call(launch, tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,))
