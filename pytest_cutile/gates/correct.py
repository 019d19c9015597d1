"""The gate `correct`: does the kernel compute what its reference computes?"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pytest_cutile.check.run import CheckReport, KernelMismatch
from pytest_cutile.compile import CompileError
from pytest_cutile.core.results import INTERPRETER, NONDETERMINISTIC, Gate, GateResult
from pytest_cutile.core.verdicts import Reason, Verdict
from pytest_cutile.gates.engine import Blocked, Engine
from pytest_cutile.gates.interpreting import as_fault


def gate_correct(
    engine: Engine,
    *,
    key: str,
    kernel: str,
    case: str,
    arch: str,
    check: Callable[[], CheckReport],
    interpreted: bool = False,
    repeat: str = "",
    seed: int | None = None,
    searched: Callable[[], str] | None = None,
) -> CheckReport:
    """Run `check`, and remember whether the case is right.

    Args:
        engine: of this run.
        key: what tells the case apart.
        kernel: the kernel's name.
        case: the case's name.
        arch: architecture under test.
        check: runs the kernel and compares its outputs.
        interpreted: whether `check` interprets the kernel on the CPU; else it needs the GPU.
        repeat: the command that repeats the test, for the message of a failure.
        seed: what `make_tensor` draws its inputs with, likewise.
        searched: of a search, says what `check` has tried.

    Raises:
        Blocked: it cannot run here.
        KernelMismatch: the result is wrong. Whatever the kernel or its reference raises goes on, too.
        KernelFault: interpreted, the kernel did something wrong on its way.
        CompileError: interpreted, the real compiler rejects it.
    """

    def record(verdict: str, *, reason: str = "", detail: str = "", **seen: Any) -> None:
        engine.results.append(
            GateResult(
                gate=Gate.CORRECT,
                key=key,
                kernel=kernel,
                case=case,
                arch=arch,
                verdict=verdict,
                reason=reason,
                detail=detail,
                on=INTERPRETER if interpreted and verdict != Verdict.NOT_MEASURED else "",
                gpu=engine.device.name if engine.device is not None and not interpreted else "",
                **seen,
            )
        )

    __tracebackhide__ = True
    try:
        if interpreted:
            engine.progress(f"interpreting {kernel}[{case}]")
            report = check()
        else:
            engine.usable_device(arch)
            engine.progress(f"checking {kernel}[{case}]")
            with engine.gpu_lock.shared():
                report = check()
    except Blocked as blocked:
        record(Verdict.NOT_MEASURED, reason=blocked.reason, detail=blocked.detail)
        raise
    except KernelMismatch as mismatch:
        engine.checked[key] = Reason.WRONG_RESULT
        record("fail", detail=str(mismatch).partition("\n")[0])
        if mismatch.picture:
            engine.pictures.append(mismatch.picture)
        if repeat:
            same = f"the same inputs, which make_tensor, unless it is given another, draws with seed {seed}"
            said = f"to repeat it with {same}:"
            mismatch.args = (f"{mismatch}\n{said}\n  {repeat}",)
        raise
    except Exception as error:
        engine.checked[key] = Reason.UNCHECKED
        said = f"{error}".partition("\n")[0]
        if (fault := as_fault(error)) is not None:
            engine.checked[key] = Reason.WRONG_RESULT
            record("fail", reason=fault.kind, detail=said)
        elif isinstance(error, CompileError):
            record("fail", reason=Reason.NOT_COMPILED, detail=said)
        else:
            record("fail", reason="raised", detail=f"{type(error).__name__}: {said}")
        raise
    engine.checked[key] = None
    record(
        "pass",
        reason=NONDETERMINISTIC if report.deterministic is False else "",
        detail="; ".join(_remarks(report)),
        tolerance=_tolerance(report),
        looser=report.looser,
        allowed=report.allowed,
        outputs=re.sub(r" \[[^]]*\]", "", report.outputs),
        uncompared=report.uncompared,
        refused=report.refused,
        searched="" if searched is None else searched(),
        strength=None if report.strength is None else report.strength.to_dict(),
    )
    return report


def _remarks(report: CheckReport) -> Iterator[str]:
    """Yield what is worth saying of a check that passed."""
    if report.tolerance is not None:
        yield report.bound
    for each in report.uncompared:
        yield f"{each} may change, and was compared with nothing"
    for each in report.unguarded:
        yield f"no bands around {each}"


def _tolerance(report: CheckReport) -> str:
    return "" if report.tolerance is None else "rtol={:g}, atol={:g}".format(*report.tolerance)


def only_launch(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> CheckReport:
    """Launch without guards and compare nothing, for compute-sanitizer to watch; return an empty report.

    Guards would hide from it what they look for themselves: poisoned memory is written, and bands around
    inputs are inside of their allocations.
    """
    import torch

    fn(*args, **kwargs)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    bound = "nothing was compared"
    return CheckReport(
        elements=0,
        worst_error=0.0,
        worst_ulps=0.0,
        energy=0.0,
        slope=0.0,
        looser=None,
        bound=bound,
        seconds=0.0,
        reference_runs=0,
    )
