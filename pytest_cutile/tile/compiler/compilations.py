"""The compilations of one run: the launches of every case, traced, exported and under way on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeAlias

from pytest_cutile.tile.compiler import Compiled, CompileError, Compiler, digest_code
from pytest_cutile.tile.compiler.configurations import Configuration, first_that_compiles
from pytest_cutile.tile.compiler.fingerprint import digest_described
from pytest_cutile.tile.compiler.source import FINGERPRINT_RULES, digest_text, versioned_digest
from pytest_cutile.tile.compiler.traced import (
    CompileCase,
    KernelFunction,
    TracedCase,
    TracedLaunch,
    trace_in_fork,
)
from pytest_cutile.tile.forking import ForkDied
from pytest_cutile.words.errors import ShownWithoutTraceback


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """One launch of a case, under way."""

    launch: TracedLaunch
    compiling: Future[Compiled]


class NothingLaunched(ShownWithoutTraceback, RuntimeError):  # noqa: N818 - reads as what happened
    """The launcher returned without launching a cuTile kernel."""


class LauncherDied(ShownWithoutTraceback, RuntimeError):  # noqa: N818 - reads as what happened
    """The process in which the launcher was traced ended: nothing is known of what it launches."""


Tracer: TypeAlias = Callable[[CompileCase], TracedCase]
"""Runs a case's launcher where nothing that it keeps is seen by others, and returns the record of it."""


class Compilations:
    """The compilations of one run: started for all cases at once, so that every core has work."""

    def __init__(
        self,
        compiler: Compiler,
        progress: Callable[[str], None],
        *,
        trace: Tracer = trace_in_fork,
        jobs: int = 1,
    ) -> None:
        """Prepare; nothing starts before the first case.

        Args:
            compiler: Compiles what was traced.
            progress: Shows how far it is.
            trace: Traces a case; called by several threads.
            jobs: How many cases are traced at the same time.
        """
        self._compiler = compiler
        self._progress = progress
        self._trace = trace
        self._pool = ThreadPoolExecutor(max_workers=max(1, jobs), thread_name_prefix="trace")
        self._tracing: dict[tuple[str, str, str], Future[TracedCase]] = {}
        self._shared_files: dict[tuple[str, str, str], str] = {}
        self._compiling: dict[tuple[str, str, str], list[Compilation]] = {}
        self._configurations: dict[tuple[str, str, str], list[Configuration]] = {}
        self._settled: set[tuple[str, str, str]] = set()
        """Cases of which it is known that the configuration that stands for them compiles, if one does."""

    def start(self, cases: Iterable[CompileCase]) -> None:
        """Trace and submit every case that is not under way yet. Errors wait until the case asks."""
        for case in cases:
            if case.key not in self._tracing:
                self._tracing[case.key] = self._pool.submit(self._trace_and_submit, case)

    def close(self) -> None:
        """Drop what has not started; what runs is waited for."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _trace_and_submit(self, case: CompileCase) -> TracedCase:
        try:
            traced = self._trace(case)
        except ForkDied as died:
            what = f"{case.baseline_key}: its process {died} while its launcher was traced for {case.arch}"
            raise LauncherDied(what) from None
        self._shared_files[case.key] = traced.shared_file
        self._configurations[case.key] = [
            Configuration(
                name=configuration.name,
                described=configuration.described,
                compilations=tuple(map(self._submit, configuration.launches)),
                rejected=configuration.rejected,
            )
            for configuration in traced.configurations
        ]
        other = first_that_compiles(self._configurations[case.key])
        if not traced.launches and other:
            traced = self._trace(case.choosing(other))
        if not traced.launches:
            raise NothingLaunched(
                f"{case.kernel}[{case.case}]: the launcher launched no cuTile kernel, so there is nothing to "
                "compile. It must call cuda.tile.launch for this case on every architecture."
            )
        self._compiling[case.key] = [*map(self._submit, traced.launches)]
        return traced

    def _submit(self, launch: TracedLaunch) -> Compilation:
        return Compilation(launch=launch, compiling=self._compiler.submit(launch.job))

    def _settle(self, case: CompileCase) -> None:
        """Wait until it is known which configuration of a launcher that tunes compiles.

        A search leaves out what does not compile: the case is traced with the first one that does.
        """
        self._traced(case)
        if case.key in self._settled or not self._configurations[case.key]:
            return
        tried = [
            compilation
            for configuration in self._configurations[case.key]
            for compilation in configuration.compilations
        ]
        self._wait(compilation.compiling for compilation in (*self._compiling[case.key], *tried))
        configurations = [configuration.awaited() for configuration in self._configurations[case.key]]
        other = first_that_compiles(configurations)
        errors = (compilation.compiling.exception() for compilation in self._compiling[case.key])
        if other and any(isinstance(error, CompileError) for error in errors):
            traced: Future[TracedCase] = Future()
            traced.set_result(self._trace(case.choosing(other)))
            self._tracing[case.key] = traced
            self._compiling[case.key] = [*map(self._submit, traced.result().launches)]
        self._configurations[case.key] = configurations
        self._settled.add(case.key)

    def _wait(self, futures: Iterable[Future[Any]]) -> None:
        wait_for(futures, lambda: self._progress(self._compiling_text()))

    def is_traced(self, case: CompileCase) -> bool:
        """Wait until a case was traced; say whether that went well. Its test reports the error."""
        self.start([case])
        self._wait_for_trace(case)
        return self._tracing[case.key].exception() is None

    def of(self, case: CompileCase) -> list[Compilation]:
        """Return the launches of a case, compiled or not; start what has not been started.

        Raises:
            CompileError: the kernel's source, or an argument, is rejected.
            CompilerMissing: there is no compiler.
            LauncherDied: the launcher ended its process.
            NothingLaunched: there is nothing to compile.
            Exception: whatever the launcher raised.
        """
        self._traced(case)
        return self._compiling[case.key]

    def _traced(self, case: CompileCase) -> TracedCase:
        self.start([case])
        self._wait_for_trace(case)
        return self._tracing[case.key].result()

    def _wait_for_trace(self, case: CompileCase) -> None:
        wait_for([self._tracing[case.key]], lambda: self._progress(self._tracing_text(case)))

    def result(self, case: CompileCase) -> list[Compiled]:
        """Wait for a case and return what was compiled, one per launch."""
        self._settle(case)
        futures = [compilation.compiling for compilation in self.of(case)]
        self._wait(futures)
        return [future.result() for future in futures]

    def configurations(self, case: CompileCase) -> Sequence[Configuration]:
        """Wait for all that a case's launcher may choose, if it tunes, and return it, compiled or not."""
        self._settle(case)
        return self._configurations[case.key]

    def fingerprint(self, case: CompileCase) -> str:
        """Wait for a case; return the digest of its machine code and launch configurations."""
        codes = [digest_code(kernel.cubin, kernel.symbol) for kernel in self.result(case)]
        described = [launch.described for launch in self._traced(case).launches]
        candidates = [one for configuration in self.configurations(case) for one in configuration.codes()]
        return digest_described(zip(codes, described, strict=True), candidates)

    def speed_fingerprint(self, case: CompileCase) -> str:
        """Wait for a case; return the digest of all that can change its time on a GPU.

        Beside what `fingerprint` digests: the torch operations of its launcher, the source of the function
        that makes its inputs, and the case's parameters.
        """
        traced = self._traced(case)
        lines = [self.fingerprint(case), *traced.torch_operations, *traced.declared]
        return versioned_digest(lines, FINGERPRINT_RULES)

    def shared_file(self, case: CompileCase) -> str:
        """Return a file that a revision's launcher imported and git does not track; "" if none was seen."""
        return self._shared_files.get(case.key, "")

    def torch_bytes(self, case: CompileCase) -> int:
        return self._traced(case).torch_bytes

    def kernel_functions(self, case: CompileCase) -> set[KernelFunction]:
        return {launch.function for launch in self._traced(case).launches}

    def source(self, case: CompileCase) -> str:
        """Return the digest of the source of a case's kernels, with what they are specialized for."""
        different = list(dict.fromkeys(launch.source for launch in self._traced(case).launches))
        return different[0] if len(different) == 1 else digest_text("+".join(different))

    def _tracing_text(self, case: CompileCase) -> str:
        done = sum(future.done() for future in self._tracing.values())
        return f"tracing {done + 1}/{len(self._tracing)}: {case.baseline_key} {case.arch}"

    def _compiling_text(self) -> str:
        under_way = [*self._compiling.values()]
        under_way += [[*one.compilations] for several in [*self._configurations.values()] for one in several]
        futures = [one.compiling for compiling in under_way for one in compiling]
        return f"compiling {sum(future.done() for future in futures)}/{len(futures)} kernels"


def wait_for(futures: Iterable[Future[Any]], while_waiting: Callable[[], None]) -> None:
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
        if not done:
            while_waiting()
