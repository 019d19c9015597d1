"""The gate `compile`: does the real compiler accept what a launcher launches, for each architecture?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from pytest_cutile.gates.base import Gate, RunningTest, Task
from pytest_cutile.gates.compiled_facts import rejections
from pytest_cutile.gates.declared import compile_case_of
from pytest_cutile.gates.user_code import FAILURES, failure_of
from pytest_cutile.tile.compiler import CompileError
from pytest_cutile.tile.compiler.compilations import LauncherDied, NothingLaunched
from pytest_cutile.tile.compiler.toolchain import CompilerMissing
from pytest_cutile.words.errors import GateSkipped
from pytest_cutile.words.results import CompileResult, Result
from pytest_cutile.words.spec import Case, KernelSpec, ModelSpec
from pytest_cutile.words.verdicts import Reason, Verdict

if TYPE_CHECKING:
    from pytest_cutile.gates.session import Session
    from pytest_cutile.tile.compiler.traced import CompileCase


class CompilingGate(Gate):
    """A gate about compiled kernels: asked of every case for each architecture under test, without a GPU."""

    has_inputs = False
    result_type: ClassVar[type[Result]]

    def __init__(self, session: Session, name: str) -> None:
        super().__init__(session, name)
        self._first_without: dict[str, CompileCase] = {}
        """The first case that failed because something is not installed, by the error's message."""

    def tasks(self, spec: KernelSpec, case: Case, module: str) -> Iterable[Task]:
        """Return a task for each architecture; none for a model, whose kernels have specs of their own."""
        if isinstance(spec, ModelSpec):
            return
        for arch in self.session.target.architectures:
            yield Task(gate=self.name, spec=spec, case=case, arch=arch, module=module, suffix=arch)

    def append(
        self, case: CompileCase, reason: Reason | None = None, detail: str = "", **further: object
    ) -> None:
        result = self.result_type(
            **case.labels,
            verdict=Verdict.PASS if reason is None else reason.verdict,
            reason=reason,
            detail=detail,
            **further,  # type: ignore[arg-type]
        )
        self.session.results.append(result)

    def append_failure(self, case: CompileCase, error: BaseException) -> None:
        """Add the result of a case that does not compile.

        Raises GateSkipped if another case has failed because the same is not installed.
        """
        detail = f"{error}".partition("\n")[0]
        if isinstance(error, GateSkipped):
            self.append(case, error.reason, detail)
            return
        if isinstance(error, CompilerMissing | ModuleNotFoundError):
            first = self._first_without.setdefault(f"{error}", case)
            if first.key != case.key:
                detail = f"{detail} ({first.baseline_key} for {first.arch} failed for that)"
                self.append(case, Reason.NOT_COMPILED, detail)
                raise GateSkipped(Reason.NOT_COMPILED, detail) from None
        if isinstance(error, CompilerMissing):
            reason = Reason.NO_COMPILER
        elif isinstance(error, CompileError):
            reason = error.reason
        elif isinstance(error, NothingLaunched):
            reason = Reason.NOTHING_LAUNCHED
        elif isinstance(error, LauncherDied):
            reason = Reason.CRASH
        else:
            reason, detail = failure_of(error)
        self.append(case, reason, detail)


class CompileGate(CompilingGate):
    """Compiles every case."""

    result_type = CompileResult

    def prepare(self, tasks: Sequence[Task]) -> None:
        self.session.compilations.start(compile_case_of(self.session, task) for task in tasks)

    def run(self, task: Task, test: RunningTest) -> None:
        del test
        case = compile_case_of(self.session, task)
        try:
            self.session.compilations.result(case)
        except FAILURES as error:
            self.append_failure(case, error)
            raise
        configurations = self.session.compilations.configurations(case)
        rejected = rejections(configurations)
        tuning = f"{len(rejected)} of {len(configurations)} configurations do not compile" if rejected else ""
        self.append(case, tuning=tuning, configurations=tuple(rejected))
