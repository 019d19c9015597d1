"""The compilations of one run: the launches of every case, traced, exported and under way on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeAlias

from pytest_cutile.compiler import Compiled, Compiler, digest_code
from pytest_cutile.compiler.fingerprint import digest_described
from pytest_cutile.compiler.source import FINGERPRINT_RULES, digest_text, versioned_digest
from pytest_cutile.compiler.traced import (
    CompileCase,
    KernelFunction,
    TracedCase,
    TracedLaunch,
    trace_in_fork,
)
from pytest_cutile.forking import ForkDied


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """One launch of a case, under way."""

    launch: TracedLaunch
    compiling: Future[Compiled]


class NothingLaunched(RuntimeError):  # noqa: N818 - reads as what happened
    """The launcher returned without launching a cuTile kernel."""


class LauncherDied(RuntimeError):  # noqa: N818 - reads as what happened
    """The process in which the launcher was traced ended: nothing is known of what it launches."""


Trace: TypeAlias = Callable[[CompileCase], TracedCase]
"""Runs a case's launcher where nothing that it keeps is seen by others, and returns the record of it."""


class Compilations:
    """The compilations of one run: started for all cases at once, so that every core has work."""

    def __init__(
        self,
        compiler: Compiler,
        progress: Callable[[str], None],
        *,
        trace: Trace = trace_in_fork,
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
        self._compiling: dict[tuple[str, str, str], list[Compilation]] = {}

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
        if not traced.launches:
            raise NothingLaunched(
                f"{case.kernel}[{case.case}]: the launcher launched no cuTile kernel, so there is nothing to "
                "compile. It must call cuda.tile.launch for this case on every architecture."
            )
        self._compiling[case.key] = [
            Compilation(launch=launch, compiling=self._compiler.submit(launch.job))
            for launch in traced.launches
        ]
        return traced

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
        futures = [compilation.compiling for compilation in self.of(case)]
        wait_for(futures, lambda: self._progress(self._compiling_text()))
        return [future.result() for future in futures]

    def fingerprint(self, case: CompileCase) -> str:
        """Wait for a case; return the digest of its machine code and launch configurations."""
        codes = [digest_code(kernel.cubin, kernel.symbol) for kernel in self.result(case)]
        described = [launch.described for launch in self._traced(case).launches]
        return digest_described(zip(codes, described, strict=True))

    def speed_fingerprint(self, case: CompileCase) -> str:
        """Wait for a case; return the digest of all that can change its time on a GPU.

        Beside what `fingerprint` digests: the torch operations of its launcher, the source of the function
        that makes its inputs, and the case's parameters.
        """
        traced = self._traced(case)
        lines = [self.fingerprint(case), *traced.torch_operations, *traced.declared]
        return versioned_digest(lines, FINGERPRINT_RULES)

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
        futures = [one.compiling for compiling in [*self._compiling.values()] for one in compiling]
        return f"compiling {sum(future.done() for future in futures)}/{len(futures)} kernels"


def wait_for(futures: Iterable[Future[Any]], while_waiting: Callable[[], None]) -> None:
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
        if not done:
            while_waiting()
