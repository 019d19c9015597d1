"""The gates of a declared kernel's case: the spec's functions joined to the shared engine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pytest_cutile.check.run import CheckReport, run_check
from pytest_cutile.compile import CompileError
from pytest_cutile.core.inputs import NORMAL
from pytest_cutile.core.settings import Settings
from pytest_cutile.core.spec import Case, KernelSpec
from pytest_cutile.core.verdicts import Reason
from pytest_cutile.gates.compiling import Compilations, CompileCase, gate_compile
from pytest_cutile.gates.correct import gate_correct, only_launch
from pytest_cutile.gates.duet import Duet
from pytest_cutile.gates.engine import Blocked, Engine
from pytest_cutile.gates.interpreting import Interpreting, RunLaunch
from pytest_cutile.gates.measuring import Call
from pytest_cutile.gates.outcome import GateOutcome
from pytest_cutile.gates.speed import SpeedCase, SpeedOutcome, gate_speed
from pytest_cutile.gates.static import StaticGate, StaticOutcome
from pytest_cutile.gates.tensors import MakeTensor, timed_seed
from pytest_cutile.gpu.tensors import seed_from


def compile_case(
    spec: KernelSpec, case: Case, arch: str, *, duet: Duet | None = None, module: str = ""
) -> CompileCase:
    """Return what the gate `compile` runs for `case` on `arch`: its inputs without data, and the launcher.

    Args:
        spec: the kernel.
        case: its case.
        arch: architecture to compile for.
        duet: the kernels of the revision to compare with, if there is one.
        module: name of the module that declares the kernel; only needed with `duet`.
    """

    def run() -> object:
        __tracebackhide__ = True
        inputs = spec.make_inputs(functools.partial(MakeTensor, device="cuda", seed=0), case)
        return _call_of(spec.launch, inputs)()

    def base() -> CompileCase | None:
        then = duet.spec(module, spec.name) if duet is not None else None
        if duet is None or then is None:
            return None
        as_then = replace(spec, name=f"{spec.name} as of {duet}", launch=duet.ready(then.launch))
        return compile_case(as_then, case, arch)

    return CompileCase(
        kernel=spec.name, case=case.name, arch=arch, run=run, base=base if duet is not None else None
    )


class DeclaredGates:
    """The gates of one declared case, as the tests that are collected for it call them."""

    def __init__(
        self,
        engine: Engine,
        compilations: Compilations,
        static_gate: StaticGate,
        *,
        spec: KernelSpec,
        case: Case,
        arch: str,
        nodeid: str,
        repeat: str,
        module: str,
        inputs: str = "normal",
    ) -> None:
        self._engine = engine
        self._inputs_name = inputs
        self._module = module
        self._compilations = compilations
        self._static_gate = static_gate
        self._spec = spec
        self._case = case
        self._arch = arch
        self._nodeid = nodeid
        self._repeat = repeat
        self._case_name = case.name if inputs == "normal" else f"{case.name}-{inputs}"
        self._where = f"{spec.name}[{self._case_name}]"

    def compile(self) -> None:
        """Compile the case; fail with the compiler's own message."""
        __tracebackhide__ = True
        with GateOutcome(self._engine, self._where):
            gate_compile(self._engine, self._compilations, self._compile_case())

    def static(self) -> StaticOutcome:
        """Compare what was compiled with the static baseline."""
        __tracebackhide__ = True
        with GateOutcome(self._engine, self._where):
            return self._static_gate.check(self._compile_case(), nodeid=self._nodeid)

    def correct(self) -> None:
        """Compare the case with its reference."""
        __tracebackhide__ = True
        with GateOutcome(self._engine, self._where):
            self._check()

    def speed(self) -> SpeedOutcome:
        """Time the case and compare it with its baseline; check it first if that has not been done."""
        __tracebackhide__ = True
        spec, case = self._spec, self._case
        with GateOutcome(self._engine, self._where):
            return gate_speed(
                self._engine,
                SpeedCase(
                    key=self._where,
                    identity=self._where,
                    kernel=spec.name,
                    case=case.name,
                    nodeid=self._nodeid,
                    arch=self._arch,
                    work=spec.work_of(case),
                    call=self._call,
                    base=self._base if self._engine.duet is not None else None,
                    compiled=self._compile_case(),
                    check=self._check,
                ),
            )

    def _compile_case(self) -> CompileCase:
        return compile_case(self._spec, self._case, self._arch, duet=self._engine.duet, module=self._module)

    def _check(self) -> CheckReport:
        __tracebackhide__ = True
        spec, case = self._spec, self._case

        def check(run: RunLaunch | None = None) -> CheckReport:
            __tracebackhide__ = True
            # With `run` it is interpreted, where "cuda" is the memory of the CPU.
            inputs = self._inputs("cuda" if run is not None else None)
            return check_inputs(
                spec, case, inputs, run=run, name=self._inputs_name, settings=self._engine.settings
            )

        def interpret() -> CheckReport:
            __tracebackhide__ = True
            interpreting = Interpreting(self._engine, self._arch)
            try:
                with interpreting.active():
                    return interpreting.check(check, spec.work_of(case))
            except CompileError as error:
                self._leave_to_gate_compile(error)
                raise

        interpreted = self._engine.interprets(self._arch)
        return gate_correct(
            self._engine,
            key=self._where,
            kernel=spec.name,
            case=self._case_name,
            arch=self._arch,
            check=interpret if interpreted else check,
            interpreted=interpreted,
            repeat=self._repeat,
            seed=self._seed,
        )

    def _leave_to_gate_compile(self, error: CompileError) -> None:
        """Raise Blocked if the gate `compile` of this run fails, too: one failure tells it."""
        case = self._compile_case()
        if case.key not in self._compilations.gated:
            return
        try:
            self._compilations.result(case)
        except Exception:  # noqa: BLE001 - whatever it is, that gate reports it
            said = f"{error}".partition("\n")[0]
            raise Blocked(Reason.NOT_COMPILED, f"it does not compile, see the gate compile: {said}") from None

    def _inputs(self, torch_device: str | None = None, seed: int | None = None) -> Any:
        device = torch_device or self._engine.usable_device(self._arch).torch_device
        make = functools.partial(MakeTensor, device=device, seed=self._seed if seed is None else seed)
        return self._spec.make_inputs(make, self._case, self._inputs_name)

    @property
    def _seed(self) -> int:
        return seed_from(self._nodeid) if self._case.seed is None else self._case.seed

    def _call(self) -> Call:
        """Return the timed call."""
        return _call_of(self._spec.launch, self._inputs(seed=timed_seed(self._spec, self._case)))

    def _base(self) -> Callable[..., object] | None:
        """Return the launcher of the revision to compare with, or None if it has none."""
        duet = self._engine.duet
        base = duet.spec(self._module, self._spec.name) if duet is not None else None
        return None if duet is None or base is None else duet.ready(base.launch)


def check_inputs(
    spec: KernelSpec, case: Case, inputs: Any, *, run: RunLaunch | None, name: str, settings: Settings
) -> CheckReport:
    """Launch a kernel on `inputs` and compare it with its reference.

    Args:
        spec: the kernel.
        case: which of its cases.
        inputs: what `spec.make_inputs` made.
        run: calls the launcher; None: over poisoned memory.
        name: of the inputs: "normal", or one of those that reveal more.
        settings: of this run.

    Raises:
        KernelMismatch: the result is wrong. See `run_check` for more.
    """
    __tracebackhide__ = True
    call = _call_of(spec.launch, inputs)
    if settings.sanitized:
        return only_launch(call.function, call.args, call.kwargs)
    # Other layouts of the same values are compared once for each case.
    vary_layout = (settings.check_layouts or None) if name == NORMAL else False
    options = {"strength": settings.check_strength, "vary_layout": vary_layout, **spec.check_of(case)}
    return run_check(
        call.function,
        call.args,
        call.kwargs,
        reference=spec.reference,
        reduction=spec.reduction_of(case),
        independent=spec.independent_of(case),
        run=run,
        **options,
    )


def _call_of(launch: Callable[..., Any], inputs: Any) -> Call:
    """Return the call of a launcher with what a spec's `inputs` made."""
    if isinstance(inputs, Mapping):
        return Call(launch, (), dict(inputs))
    return Call(launch, tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,))
