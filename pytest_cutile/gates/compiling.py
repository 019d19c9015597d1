"""The gate `compile`: does the real compiler accept what a launcher launches, for each architecture?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass

from pytest_cutile.compile import Compiled, CompileError, export, record_launches
from pytest_cutile.core.results import Gate, GateResult
from pytest_cutile.core.toolchain import CompilerMissing
from pytest_cutile.gates.engine import Engine


@dataclass(frozen=True, kw_only=True)
class CompileCase:
    """One declared case for one architecture."""

    kernel: str
    """The kernel's name."""
    case: str
    """The case's name."""
    arch: str
    """Architecture to compile for."""
    run: Callable[[], object]
    """Makes the inputs and calls the launcher, as on a GPU."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it apart within a run."""
        return self.kernel, self.case, self.arch


class NothingLaunched(RuntimeError):  # noqa: N818 - reads as what happened
    """The launcher returned without launching a cuTile kernel."""


class Compilations:
    """The compilations of one run: started for all cases at once, so that every core has work."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._started: dict[tuple[str, str, str], list[Future[Compiled]] | Exception] = {}

    def start(self, cases: Iterable[CompileCase]) -> None:
        """Trace and submit every case that is not under way yet. Errors wait until the case asks."""
        cases = [case for case in cases if case.key not in self._started]
        for number, case in enumerate(cases, start=1):
            if len(cases) > 1:
                self._engine.progress(
                    f"tracing {number}/{len(cases)}: {case.kernel}[{case.case}] {case.arch}"
                )
            try:
                self._started[case.key] = self._submit(case)
            except Exception as error:  # noqa: BLE001 - user code may raise anything; its test reports it
                self._started[case.key] = error

    def _submit(self, case: CompileCase) -> list[Future[Compiled]]:
        launches = record_launches(case.run, case.arch)
        if not launches:
            raise NothingLaunched(
                f"{case.kernel}[{case.case}]: the launcher launched no cuTile kernel, so there is nothing to "
                "compile. It must call cuda.tile.launch for this case on every architecture."
            )
        return [self._engine.compiler.submit(export(launch, case.arch)) for launch in launches]

    def result(self, case: CompileCase) -> list[Compiled]:
        """Wait for a case and return what was compiled, one per launch.

        Raises:
            CompileError: the compiler rejects a kernel.
            CompilerMissing: there is no compiler.
            Exception: whatever the launcher raised.
        """
        self.start([case])
        outcome = self._started[case.key]
        if isinstance(outcome, Exception):
            raise outcome
        pending = set(outcome)
        while pending:
            done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
            if not done:
                self._engine.progress(self._progress_text())
        return [future.result() for future in outcome]

    def _progress_text(self) -> str:
        futures = [f for o in self._started.values() if not isinstance(o, Exception) for f in o]
        return f"compiling {sum(future.done() for future in futures)}/{len(futures)} kernels"


def gate_compile(engine: Engine, compilations: Compilations, case: CompileCase) -> list[Compiled]:
    """Compile a case and record the outcome.

    Raises:
        CompileError, CompilerMissing, NothingLaunched: it does not compile; the message says why.
        Exception: whatever the launcher raised.
    """
    __tracebackhide__ = True
    with _recorded(engine, case):
        return compilations.result(case)


@contextmanager
def _recorded(engine: Engine, case: CompileCase) -> Iterator[None]:
    __tracebackhide__ = True
    verdict, reason, detail = "pass", "", ""
    try:
        yield
    except Exception as error:
        own = isinstance(error, CompileError | CompilerMissing | NothingLaunched)
        verdict, reason, detail = "fail", "" if own else "raised", f"{error}".partition("\n")[0]
        raise
    finally:
        engine.results.append(
            GateResult(
                gate=Gate.COMPILE,
                key=f"{case.kernel}[{case.case}]",
                kernel=case.kernel,
                case=case.case,
                arch=case.arch,
                verdict=verdict,
                reason=reason,
                detail=detail,
            )
        )
