"""The gate `correct`: does the kernel compute what its reference computes?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_cutile.core.results import Gate, GateResult
from pytest_cutile.core.verdicts import Reason, Verdict
from pytest_cutile.gates.engine import Blocked, Engine
from pytest_cutile.gpu.check import KernelMismatch

if TYPE_CHECKING:
    from pytest_cutile.gpu.check import CheckReport


def gate_correct(
    engine: Engine, *, key: str, kernel: str, case: str, arch: str, check: Callable[[], CheckReport]
) -> CheckReport:
    """Run `check`, and remember whether the case is right.

    Raises:
        Blocked: it cannot run here.
        KernelMismatch: the result is wrong. Whatever the kernel or its reference raises goes on, too.
    """

    def record(verdict: str, *, reason: str = "", detail: str = "") -> None:
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
                gpu=engine.device.name if engine.device is not None else "",
            )
        )

    __tracebackhide__ = True
    try:
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
        raise
    except Exception as error:
        engine.checked[key] = Reason.UNCHECKED
        record("fail", reason="raised", detail=f"{type(error).__name__}: {error}".partition("\n")[0])
        raise
    engine.checked[key] = None
    record("pass")
    return report
