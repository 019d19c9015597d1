"""The state of one run that the gates share: the target, the GPU and its timer, compiler, baselines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_cutile.baselines.store import BaselineStore
from pytest_cutile.gates.revisions.checkout import Checkout
from pytest_cutile.gates.revisions.modules import Revision, RevisionError
from pytest_cutile.gates.target import Target
from pytest_cutile.tile.compiler import Compiler
from pytest_cutile.tile.compiler.compilations import Compilations
from pytest_cutile.tile.compiler.export import share_exports
from pytest_cutile.tile.compiler.reach import read_ahead
from pytest_cutile.tile.compiler.trace.questions import questions_answered
from pytest_cutile.tile.compiler.traced import CompileCase, TracedCase, trace_in_fork
from pytest_cutile.tile.fork_server import ForkServer
from pytest_cutile.tile.forking import can_fork, import_libraries
from pytest_cutile.tile.static.inspection import Inspector
from pytest_cutile.timing.gpu.at_hand import GpuAtHand
from pytest_cutile.timing.measure.timer import CudaGraphTimer

if TYPE_CHECKING:
    from pytest_cutile.baselines.entries import SpeedBaselines
    from pytest_cutile.gates.speed.protocol import RequestedCases
    from pytest_cutile.tile.interpreter.executed_cache import ExecutedCache
    from pytest_cutile.words.results import Result
    from pytest_cutile.words.settings import Settings
    from pytest_cutile.words.timing import Timer
    from pytest_cutile.words.verdicts import Reason


TRACING = (
    "cuda.tile.compilation",
    "cuda.tile._compile",
    "pytest_cutile.tile.compiler.trace.cuda_api",
    "pytest_cutile.tile.interpreter.executed",
)
"""Modules that tracing a case imports: loaded once, before processes are forked."""


class Session:
    """Lazily built state of one pytest run. Building it imports neither torch nor cuda.tile."""

    def __init__(
        self,
        settings: Settings,
        *,
        make_timer: Callable[[], Timer | None],
        cache_dir: Path | None,
        run_folder: Path | None = None,
        progress: Callable[[str], None],
        run_id: str,
    ) -> None:
        self.settings = settings
        self._cache_dir = cache_dir
        share_exports(run_folder)
        self._fork_server: ForkServer | None = None
        self.progress = progress
        """Shows what takes time."""
        self.checked: dict[str, Reason | None] = {}
        """Outcome of a case's last check, by its key: None if it is right, else why it has no speed, or why
        it cannot be checked here."""
        self.tunings: dict[str, str] = {}
        """What a case's launcher chose when it was checked, by the case's key; "" if it does not tune."""
        self.uncounted: dict[str, str] = {}
        """Why it is unknown what a kernel executes, by the kernel's name."""
        self.results: list[Result] = []
        """Results of the running test, which its report takes along."""
        self.selected: frozenset[tuple[str, str, str, str]] = frozenset()
        """Gate, kernel, case and architecture of each selected test of a declared kernel."""
        self.kernels: frozenset[str] = frozenset()
        """The declared kernels, as far as they are known."""
        self.stale: frozenset[str] = frozenset()
        """Keys in the baselines of which no case is left, as far as is known."""
        self.run_id = run_id
        """Name of this run of pytest, and of its worker."""
        self.requested: RequestedCases | None = None
        """Set in a fresh process that measures for another one and judges nothing."""
        self._revisions: dict[str, Revision] = {}
        self.gpu = GpuAtHand(make_users_timer=make_timer, make_timer=CudaGraphTimer, progress=progress)
        self.target = Target(settings, self.gpu)
        self.checkout = Checkout(settings.rootpath, baselines=settings.baseline_path)

    @cached_property
    def compiler(self) -> Compiler:
        device = self.gpu.device
        return Compiler(
            cache_dir=self._cache_dir,
            jobs=self._jobs,
            timeout_s=self.settings.compile_timeout_s,
            gpu_arch="" if device is None else device.arch,
        )

    @cached_property
    def compilations(self) -> Compilations:
        return Compilations(self.compiler, self.progress, trace=self._trace, jobs=self._jobs)

    def start_fork_server(self, trace: Callable[[object], TracedCase], launchers: Iterable[object]) -> None:
        """Put a process aside in which cases are traced: as it is now, no launcher has run in it.

        Args:
            trace: Traces the case of an `origin`, in a fork of that process.
            launchers: What it may trace: the source is read here once, before processes are forked.
        """
        if not can_fork() or self._fork_server is not None:
            return
        import_libraries(TRACING)
        read_ahead(launchers)
        self._fork_server = ForkServer(trace)

    def _trace(self, case: CompileCase) -> TracedCase:
        if self._fork_server is None or case.origin is None:
            return trace_in_fork(case)
        traced: TracedCase = self._fork_server.call((case.origin, case.choice))
        return traced

    @cached_property
    def inspector(self) -> Inspector:
        return Inspector(cache_dir=self._cache_dir, jobs=self._jobs)

    @cached_property
    def executed(self) -> ExecutedCache:
        from pytest_cutile.tile.interpreter.executed_cache import ExecutedCache  # it imports torch

        return ExecutedCache(self._cache_dir)

    @property
    def _jobs(self) -> int:
        if self.settings.xdist_worker:
            return 1
        # Windows cannot say which cores a process may use.
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def begin_fork(self) -> None:
        """In a fork: drop the services whose threads are in the process that was forked."""
        for service in ("compiler", "compilations", "inspector"):
            vars(self).pop(service, None)

    def close(self) -> None:
        if "compilations" in self.__dict__:
            self.compilations.close()
        if "compiler" in self.__dict__:
            self.compiler.close()
        if self._fork_server is not None:
            self._fork_server.close()
        if "inspector" in self.__dict__:
            self.inspector.close()
        for revision in self._revisions.values():
            revision.close()

    @cached_property
    def baselines(self) -> BaselineStore | None:
        """The stored baselines; None when nothing stored is compared."""
        location = self.settings.baseline_path
        return None if location is None else BaselineStore(location, self.settings.rootpath)

    @property
    def speed_baselines(self) -> SpeedBaselines | None:
        device = self.gpu.timer.device
        return None if self.baselines is None else self.baselines.speed(device.arch, device.name)

    @property
    def speed_baselines_name(self) -> str:
        """Where the speed baselines of the GPU at hand are, as messages name it."""
        device = self.gpu.timer.device
        if self.baselines is None:
            return "no baseline file"
        return self.baselines.speed_name(device.arch, device.name)

    @cached_property
    def revision_kernels(self) -> Revision | None:
        """The revision to compare with (`--perf-baseline git:REV`); None without one."""
        name = self.settings.baseline_revision
        if name is None:
            return None
        try:
            return self.revision(name)
        except RevisionError as error:
            raise pytest.UsageError(f"--perf-baseline git:{name}: {error}") from error

    def revision(self, name: str) -> Revision:
        """Return the project's modules of a git revision, extracted when they are first asked for."""
        if name not in self._revisions:
            self._revisions[name] = Revision(
                name,
                rootpath=self.settings.rootpath,
                cache_dir=self._cache_dir,
                importing=lambda: questions_answered(lambda: self.target.architectures[0]),
            )
        return self._revisions[name]
