"""A declared case as calls: what is compiled for a task, and what is launched and checked."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_cutile.compiler.compilations import CompileCase
from pytest_cutile.correctness.report import CheckReport
from pytest_cutile.gates.base import Task
from pytest_cutile.gates.explained import RunLaunch
from pytest_cutile.gates.user_code import user_code
from pytest_cutile.input_names import NORMAL
from pytest_cutile.session import Session
from pytest_cutile.settings import Settings
from pytest_cutile.spec import Case, KernelSpec
from pytest_cutile.speed.measure.call import Call
from pytest_cutile.tensors.seeded import MakeTensor


def compiled_case(session: Session, task: Task) -> CompileCase:
    """Return what is compiled for a task: its launcher, with inputs that have no data."""
    revision, spec, case, arch = session.revision_kernels, task.spec, task.case, task.arch

    def baseline() -> CompileCase | None:
        declared = revision.spec(task.module, spec.name) if revision is not None else None
        if revision is None or declared is None:
            return None
        launch = revision.with_own_imports(declared.launch)
        return compile_case(replace(spec, name=f"{spec.name} as of {revision}", launch=launch), case, arch)

    compiled = compile_case(spec, case, arch)
    return compiled if revision is None else replace(compiled, base=baseline)


def compile_case(spec: KernelSpec, case: Case, arch: str) -> CompileCase:
    """Return what is compiled for a case on `arch`, compared with no other revision."""

    def run() -> object:
        __tracebackhide__ = True
        with user_code():
            inputs = spec.make_inputs(functools.partial(MakeTensor, device="cuda", seed=0), case)
            return call_of(spec.launch, inputs)()

    return CompileCase(kernel=spec.name, case=case.name, arch=arch, run=run)


def check_inputs(
    spec: KernelSpec,
    case: Case,
    inputs: Any,
    *,
    run: RunLaunch | None,
    name: str,
    settings: Settings,
    sampled: bool = False,
) -> CheckReport:
    """Launch a kernel on what `spec.make_inputs` made under `name`, and compare it with its reference.

    `run` calls the launcher; without it, the launcher runs over poisoned memory.

    Raises:
        KernelMismatch: the result is wrong. See `run_check` for more.
    """
    from pytest_cutile.correctness.check import run_check

    __tracebackhide__ = True
    call = call_of(spec.launch, inputs)
    if settings.sanitized:
        return only_launch(call.function, call.args, call.kwargs)
    # Other layouts of the same values are compared once for each case.
    vary_layout = (settings.check_layouts or None) if name == NORMAL else False
    options = spec.check_options(
        case, mutation_test=settings.mutation_test, vary_layout=vary_layout, sampled=sampled
    )
    return run_check(
        call.function, call.args, call.kwargs, reference=spec.reference, options=options, run=run
    )


def only_launch(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> CheckReport:
    """Launch without guards and compare nothing, for compute-sanitizer to watch; return an empty report.

    Guards would hide from it what they look for themselves: poisoned memory is written, and redzones around
    inputs are inside of their allocations.
    """
    import torch

    fn(*args, **kwargs)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return CheckReport(
        elements=0,
        worst_error=0.0,
        worst_ulps=0.0,
        energy=0.0,
        slope=0.0,
        looser=None,
        bound="nothing was compared",
        seconds=0.0,
        reference_runs=0,
    )


def call_of(launch: Callable[..., Any], inputs: Any) -> Call:
    """Return the call of a launcher with what a spec's `inputs` made."""
    if isinstance(inputs, Mapping):
        return Call(launch, (), dict(inputs))
    return Call(launch, tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,))
