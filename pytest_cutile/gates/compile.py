"""The gate `compile`: does the real compiler accept what a launcher launches, for each architecture?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_cutile.compiler import CompileError
from pytest_cutile.compiler.compilations import CompileCase, NothingLaunched
from pytest_cutile.compiler.toolchain import CompilerMissing
from pytest_cutile.errors import GateSkipped
from pytest_cutile.gates.base import Gate, RunningTest, Task
from pytest_cutile.gates.declared import compiled_case
from pytest_cutile.results import CompileResult
from pytest_cutile.session import Session
from pytest_cutile.spec import Case, KernelSpec
from pytest_cutile.verdicts import Reason, Verdict

NO_COMPILER = "no-compiler"
"""Reason of a failure that is not the kernel's."""


class CompileGate(Gate):
    """Compiles every case for every architecture under test."""

    uses_gpu = False

    def __init__(self, session: Session, name: str) -> None:
        super().__init__(session, name)
        self._first_with: dict[tuple[object, ...], CompileCase] = {}
        """The case that was the first to fail with an error."""

    def tasks(self, spec: KernelSpec, case: Case, module: str) -> Iterable[Task]:
        """Return a task for each architecture."""
        return tasks_by_arch(self, spec, case, module)

    def prepare(self, tasks: Sequence[Task]) -> None:
        """Start all compilations."""
        self.session.compilations.start(compiled_case(self.session, task) for task in tasks)

    def run(self, task: Task, test: RunningTest) -> None:
        """Compile a case.

        Raises:
            CompileError, CompilerMissing, NothingLaunched: it does not compile; the message says why.
            GateSkipped: there is no compiler, and another case has failed for that.
            Exception: whatever the launcher raised.
        """
        __tracebackhide__ = True
        del test
        case = compiled_case(self.session, task)
        try:
            self.session.compilations.result(case)
        except Exception as error:
            detail = f"{error}".partition("\n")[0]
            first = first_without(self.session, error, case)
            if first is not case:
                detail = f"{detail} ({first.baseline_key} for {first.arch} failed for that)"
                self._append(case, Verdict.NOT_MEASURED, Reason.NOT_COMPILED, detail)
                raise GateSkipped(Reason.NOT_COMPILED, detail) from None
            self._append(case, Verdict.FAIL, failure_reason(error), detail)
            if isinstance(error, CompileError):
                raise self._abridged(error, case) from None
            raise
        self._append(case, Verdict.PASS, "", "")

    def _append(self, case: CompileCase, verdict: Verdict, reason: str, detail: str) -> None:
        self.session.results.append(
            CompileResult(**case.labels, verdict=verdict, reason=reason, detail=detail)
        )

    def _abridged(self, error: CompileError, case: CompileCase) -> CompileError:
        """Return the first line alone of an error that another case has failed with."""
        same = error.kernel, error.message.replace(error.arch, ""), error.file, error.line
        first = self._first_with.setdefault(same, case)
        if first.key == case.key:
            return error
        line = error.message.partition("\n")[0]
        return CompileError(
            f"{line} (in full with {first.baseline_key} for {first.arch})",
            kernel=error.kernel,
            arch=error.arch,
        )


def tasks_by_arch(gate: Gate, spec: KernelSpec, case: Case, module: str) -> Iterable[Task]:
    """Return a task for each architecture under test."""
    for arch in gate.session.architectures:
        yield Task(gate=gate.name, spec=spec, case=case, arch=arch, module=module, suffix=arch)


def failure_reason(error: Exception) -> str:
    """Return the reason code of a case that does not compile: "" where the compiler rejects it."""
    if isinstance(error, CompilerMissing):
        return NO_COMPILER
    return "" if isinstance(error, CompileError | NothingLaunched) else "raised"


def first_without(session: Session, error: Exception, case: CompileCase) -> CompileCase:
    """Return the first case that failed because the same is not installed: one failure reports it.

    Of any other error that is `case` itself.
    """
    if not isinstance(error, CompilerMissing | ModuleNotFoundError):
        return case
    first = session.first_without.setdefault(f"{error}", case)
    return case if first.key == case.key else first
