"""The gate `compile`: does the real compiler accept what a launcher launches, for each architecture?"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pytest_cutile.compile import (
    Compiled,
    CompileError,
    Launch,
    digest_code,
    digest_launches,
    export,
    record_launches,
    source_digest,
)
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
    base: Callable[[], CompileCase | None] | None = None
    """Returns the same case of the revision to compare with, or None if it has none; only for a duet."""

    @property
    def baseline_key(self) -> str:
        """What tells it apart within an architecture, as baselines name it: "softmax[bf16-4096x8192]"."""
        return f"{self.kernel}[{self.case}]"

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it apart within a run."""
        return self.kernel, self.case, self.arch


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """One launch of a case, under way."""

    launch: Launch
    """What was recorded."""
    compiling: Future[Compiled]
    """What it becomes."""


NO_COMPILER = "no-compiler"
"""Reason of a failure that is not the kernel's."""


class NothingLaunched(RuntimeError):  # noqa: N818 - reads as what happened
    """The launcher returned without launching a cuTile kernel."""


class Compilations:
    """The compilations of one run: started for all cases at once, so that every core has work."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._started: dict[tuple[str, str, str], list[Compilation] | Exception] = {}
        self._said: dict[tuple[str, str, str | None, int | None], tuple[str, str, str]] = {}
        self.gated: frozenset[tuple[str, str, str]] = frozenset()
        """Cases that the gate `compile` is asked about in this run: it reports what does not compile."""

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

    def _submit(self, case: CompileCase) -> list[Compilation]:
        launches = record_launches(case.run, case.arch)
        if not launches:
            raise NothingLaunched(
                f"{case.kernel}[{case.case}]: the launcher launched no cuTile kernel, so there is nothing to "
                "compile. It must call cuda.tile.launch for this case on every architecture."
            )
        return [
            Compilation(launch=launch, compiling=self._engine.compiler.submit(export(launch, case.arch)))
            for launch in launches
        ]

    def of(self, case: CompileCase) -> list[Compilation]:
        """Return the launches of a case, compiled or not; start what has not been started.

        Raises:
            CompileError: the kernel's source, or an argument, is rejected.
            CompilerMissing: there is no compiler.
            NothingLaunched: there is nothing to compile.
            Exception: whatever the launcher raised.
        """
        self.start([case])
        outcome = self._started[case.key]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def result(self, case: CompileCase) -> list[Compiled]:
        """Wait for a case and return what was compiled, one per launch.

        Raises:
            CompileError: the compiler rejects a kernel.
            CompilerMissing: there is no compiler.
            Exception: whatever the launcher raised.
        """
        futures = [compilation.compiling for compilation in self.of(case)]
        wait_for(futures, lambda: self._engine.progress(self._progress_text()))
        return [future.result() for future in futures]

    def first_to_say(self, error: CompileError, case: CompileCase) -> tuple[str, str, str]:
        """Return the key of the first case that failed with this error: `case`'s own if it is the first."""
        said = (error.kernel, error.message.replace(error.arch, ""), error.file, error.line)
        return self._said.setdefault(said, case.key)

    def identity(self, case: CompileCase) -> str:
        """Wait for a case; return the digest of its machine code and launch configurations.

        Raises:
            Exception: what `result` raises.
        """
        compiled = self.result(case)
        codes = [digest_code(each.cubin, each.symbol) for each in compiled]
        launches = [compilation.launch for compilation in self.of(case)]
        return digest_launches(zip(codes, launches, strict=True))

    def source(self, case: CompileCase) -> str:
        """Return the digest of the source of a case's kernels, with what they are specialized for.

        Raises:
            Exception: what `of` raises.
        """
        digests = [source_digest(compilation.launch, case.arch) for compilation in self.of(case)]
        different = list(dict.fromkeys(digests))
        if len(different) == 1:
            return different[0]
        return hashlib.sha256("+".join(different).encode()).hexdigest()[: len(different[0])]

    def _progress_text(self) -> str:
        futures = [c.compiling for o in self._started.values() if not isinstance(o, Exception) for c in o]
        return f"compiling {sum(future.done() for future in futures)}/{len(futures)} kernels"


def wait_for(futures: Iterable[Future[Any]], while_waiting: Callable[[], None]) -> None:
    """Wait until all `futures` are done; call `while_waiting` now and then."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
        if not done:
            while_waiting()


def gate_compile(engine: Engine, compilations: Compilations, case: CompileCase) -> list[Compiled]:
    """Compile a case and record the outcome.

    Raises:
        CompileError, CompilerMissing, NothingLaunched: it does not compile; the message says why.
        Exception: whatever the launcher raised.
    """
    __tracebackhide__ = True
    with _recorded(engine, case):
        try:
            return compilations.result(case)
        except CompileError as error:
            first = compilations.first_to_say(error, case)
            if first == case.key:
                raise
            line, where = error.message.partition("\n")[0], f"{first[0]}[{first[1]}] for {first[2]}"
            raise CompileError(
                f"{line} (in full with {where})", kernel=error.kernel, arch=error.arch
            ) from None


@contextmanager
def _recorded(engine: Engine, case: CompileCase) -> Iterator[None]:
    __tracebackhide__ = True
    verdict, reason, detail = "pass", "", ""
    try:
        yield
    except Exception as error:
        own = isinstance(error, CompileError | CompilerMissing | NothingLaunched)
        verdict, reason, detail = "fail", "" if own else "raised", f"{error}".partition("\n")[0]
        if isinstance(error, CompilerMissing):
            reason = NO_COMPILER
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
