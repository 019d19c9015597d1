"""The compilations of one run: the launches of every case, traced, exported and under way on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

from pytest_cutile.compiler import (
    Compiled,
    Compiler,
    Launch,
    digest_code,
    digest_launches,
    export,
)
from pytest_cutile.compiler.cutile import kernel_function
from pytest_cutile.compiler.job import CompileJob
from pytest_cutile.compiler.reach import describe
from pytest_cutile.compiler.source import FINGERPRINT_RULES, digest_text, source_digest, versioned_digest
from pytest_cutile.compiler.trace.launches import record

if TYPE_CHECKING:
    from pytest_cutile.compiler.trace.operations import TorchOperations


@dataclass(frozen=True, kw_only=True)
class CompileCase:
    """One declared case for one architecture."""

    kernel: str
    case: str
    arch: str
    run: Callable[[], object]
    """Makes the inputs and calls the launcher, as on a GPU."""
    inputs: Callable[..., object]
    """The declaration's function that makes the inputs."""
    params: Mapping[str, object]
    """What the case says to it."""
    base: Callable[[], CompileCase | None] | None = None
    """Returns the same case of the revision to compare with, or None if it has none; only for paired runs."""

    @property
    def baseline_key(self) -> str:
        """What tells it apart within an architecture, as baselines name it: "softmax[bf16-4096x8192]"."""
        return f"{self.kernel}[{self.case}]"

    @property
    def labels(self) -> dict[str, Any]:
        return {"key": self.baseline_key, "kernel": self.kernel, "case": self.case, "arch": self.arch}

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it apart within a run."""
        return self.kernel, self.case, self.arch


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """One launch of a case, under way."""

    launch: Launch
    job: CompileJob
    compiling: Future[Compiled]


@dataclass(frozen=True)
class _TracedCase:
    """What a case's launcher did when it was traced."""

    compilations: list[Compilation]
    operations: TorchOperations


class NothingLaunched(RuntimeError):  # noqa: N818 - reads as what happened
    """The launcher returned without launching a cuTile kernel."""


class Compilations:
    """The compilations of one run: started for all cases at once, so that every core has work."""

    def __init__(self, compiler: Compiler, progress: Callable[[str], None]) -> None:
        self._compiler = compiler
        self._progress = progress
        self._traced: dict[tuple[str, str, str], _TracedCase | Exception] = {}

    def start(self, cases: Iterable[CompileCase]) -> None:
        """Trace and submit every case that is not under way yet. Errors wait until the case asks."""
        cases = [case for case in cases if case.key not in self._traced]
        for number, case in enumerate(cases, start=1):
            if len(cases) > 1:
                self._progress(f"tracing {number}/{len(cases)}: {case.baseline_key} {case.arch}")
            try:
                self._traced[case.key] = self._submit(case)
            except Exception as error:  # noqa: BLE001 - user code may raise anything; its test reports it
                self._traced[case.key] = error

    def _submit(self, case: CompileCase) -> _TracedCase:
        recorder = record(case.run, case.arch)
        if not recorder.launches:
            raise NothingLaunched(
                f"{case.kernel}[{case.case}]: the launcher launched no cuTile kernel, so there is nothing to "
                "compile. It must call cuda.tile.launch for this case on every architecture."
            )
        compilations = []
        for launch in recorder.launches:
            job = export(launch, case.arch)
            compiling = self._compiler.submit(job)
            compilations.append(Compilation(launch=launch, job=job, compiling=compiling))
        return _TracedCase(compilations, recorder.operations)

    def is_traced(self, case: CompileCase) -> bool:
        """Say whether a case was traced; its test reports the error of one that was not."""
        return isinstance(self._traced.get(case.key), _TracedCase)

    def of(self, case: CompileCase) -> list[Compilation]:
        """Return the launches of a case, compiled or not; start what has not been started.

        Raises:
            CompileError: the kernel's source, or an argument, is rejected.
            CompilerMissing: there is no compiler.
            NothingLaunched: there is nothing to compile.
            Exception: whatever the launcher raised.
        """
        return self._trace(case).compilations

    def _trace(self, case: CompileCase) -> _TracedCase:
        self.start([case])
        traced = self._traced[case.key]
        if isinstance(traced, Exception):
            raise traced
        return traced

    def result(self, case: CompileCase) -> list[Compiled]:
        """Wait for a case and return what was compiled, one per launch."""
        futures = [compilation.compiling for compilation in self.of(case)]
        wait_for(futures, lambda: self._progress(self._progress_text()))
        return [future.result() for future in futures]

    def fingerprint(self, case: CompileCase) -> str:
        """Wait for a case; return the digest of its machine code and launch configurations."""
        compiled = self.result(case)
        codes = [digest_code(kernel.cubin, kernel.symbol) for kernel in compiled]
        launches = [compilation.launch for compilation in self.of(case)]
        return digest_launches(zip(codes, launches, strict=True))

    def speed_fingerprint(self, case: CompileCase) -> str:
        """Wait for a case; return the digest of all that can change its time on a GPU.

        Beside what `fingerprint` digests: the torch operations of its launcher, the source of the function
        that makes its inputs, and the case's parameters.
        """
        declared = describe([case.inputs, dict(case.params)])
        lines = [self.fingerprint(case), *self._trace(case).operations.texts, *declared]
        return versioned_digest(lines, FINGERPRINT_RULES)

    def torch_bytes(self, case: CompileCase) -> int:
        return self._trace(case).operations.moved_bytes

    def kernel_functions(self, case: CompileCase) -> set[FunctionType]:
        return {kernel_function(compilation.launch.kernel) for compilation in self.of(case)}

    def source(self, case: CompileCase) -> str:
        """Return the digest of the source of a case's kernels, with what they are specialized for."""
        digests = [source_digest(compilation.launch, case.arch) for compilation in self.of(case)]
        different = list(dict.fromkeys(digests))
        return different[0] if len(different) == 1 else digest_text("+".join(different))

    def _progress_text(self) -> str:
        futures = [
            compilation.compiling
            for traced in self._traced.values()
            if isinstance(traced, _TracedCase)
            for compilation in traced.compilations
        ]
        return f"compiling {sum(future.done() for future in futures)}/{len(futures)} kernels"


def wait_for(futures: Iterable[Future[Any]], while_waiting: Callable[[], None]) -> None:
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
        if not done:
            while_waiting()
