"""One run of pytest as this plugin sees it: its settings, and what is built when somebody needs it."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

import pytest

from pytest_cutile.pytest_parts.collected import Collected
from pytest_cutile.pytest_parts.options import read_settings
from pytest_cutile.pytest_parts.reporting import Results, results_of
from pytest_cutile.pytest_parts.status import StatusLine
from pytest_cutile.words.settings import RUN_VARIABLE
from pytest_cutile.words.verdicts import UNCHECKED_AFTER, Reason, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_cutile.gates import Gates
    from pytest_cutile.gates.session import Session
    from pytest_cutile.pytest_parts.collection import KernelLocation
    from pytest_cutile.pytest_parts.crashed import Crash


class Ending(Protocol):
    """Ends a process in the middle of a test, so that another one goes on behind the test."""

    def beat(self) -> None:
        """Give a sign of life."""

    def end(self, crash: Crash, reports: Sequence[pytest.TestReport]) -> NoReturn:
        """End this process in a test, of which these reports were not passed on yet."""


class PytestRun:
    """Owns what this plugin knows of a run; `session` and `gates` are built when they are first used."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.settings = read_settings(config)  # may raise: then nothing is left behind
        self._own_variable = RUN_VARIABLE not in os.environ
        os.environ.setdefault(RUN_VARIABLE, f"{os.getpid()}-{secrets.token_hex(8)}")
        self.progress = StatusLine(config)
        self.results = Results(xdist_worker=self.settings.xdist_worker, strict=self.settings.strict)
        self.collected = Collected()
        self.is_measuring = False
        """Whether a selected test, of whatever gate, measures launches."""
        self.prepared: set[pytest.Item] = set()
        """Tests of declared kernels for which the gates have started what they need."""
        self.in_fork = False
        """Whether this process is a fork that runs a single test (`isolated.py`)."""
        self.ending: Ending | None = None
        """How this process ends in a test that others go on behind; None: nobody would."""
        self.has_run: Callable[[str], bool] = lambda _: False
        """Says whether an earlier process of this run has run a test, by its id."""
        self.lost = ""
        """What ended the CUDA context of this process; "" while it is usable."""

    @property
    def worker(self) -> Mapping[str, object]:
        """What pytest-xdist gives to a worker process; empty elsewhere."""
        worker: Mapping[str, object] = getattr(self.config, "workerinput", {})
        return worker

    @property
    def worker_place(self) -> tuple[int, int] | None:
        """The number of this pytest-xdist worker, counted from 0, and of all of them; None elsewhere."""
        number = re.search(r"\d+$", str(self.worker.get("workerid", "")))
        return None if number is None else (int(number[0]), int(str(self.worker["workercount"])))

    @property
    def has_session(self) -> bool:
        return "session" in self.__dict__

    @property
    def has_gates(self) -> bool:
        return "gates" in self.__dict__

    @cached_property
    def session(self) -> Session:
        from pytest_cutile.gates.session import Session
        from pytest_cutile.gates.speed.record import new_run_id

        worker = f"-{self.worker['workerid']}" if self.worker else ""
        return Session(
            self.settings,
            make_timer=lambda: self.config.hook.pytest_cutile_make_timer(config=self.config),
            cache_dir=self._cache_dir or self._run_folder,
            run_folder=self._run_folder,
            progress=self.progress,
            run_id=new_run_id(self.worker.get("testrunuid")) + worker,  # type: ignore[arg-type]
        )

    @cached_property
    def gates(self) -> Gates:
        from pytest_cutile.gates import load_gates

        return {name: gate(self.session, name) for name, gate in load_gates().items()}

    @cached_property
    def locations(self) -> list[KernelLocation]:
        from pytest_cutile.pytest_parts.collection import locate

        return [locate(name, self.config.rootpath) for name in self.settings.kernels]

    def kernel_module(self, path: Path) -> tuple[str, bool] | None:
        """Return the name of a module that declares kernels, and whether it is itself listed; else None."""
        for location in self.locations if self.settings.kernels else ():
            name = location.module_of(path)
            if name is not None:
                return name, location.path == path.resolve()
        return None

    @property
    def _cache_dir(self) -> Path | None:
        cache = getattr(self.config, "cache", None)  # there is none with -p no:cacheprovider
        try:
            return None if cache is None else Path(cache.mkdir("cutile"))
        except OSError:  # cannot be written: compile without a cache
            return None

    @cached_property
    def _run_folder(self) -> Path | None:
        """A folder that the processes of this run share, and that goes with it; None if it cannot be had."""
        from pytest_cutile.words.temporary import run_folder

        folder = run_folder(os.environ[RUN_VARIABLE])
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            return None
        return folder

    def choose_gpu(self) -> None:
        """Give each worker of pytest-xdist its GPU."""
        if self.worker_place is not None:
            from pytest_cutile.timing.gpu.nvml import choose_gpu

            choose_gpu(*self.worker_place)

    def begin_fork(self) -> None:
        """In a fork that runs a single test: begin with services of its own."""
        self.in_fork, self.ending = True, None
        self.progress.begin_fork()
        self.session.begin_fork()

    def remember(self, report: pytest.TestReport) -> None:
        """Know what a test has found that another process of the run has reported."""
        from pytest_cutile.words.results import CorrectResult

        for result in results_of(report):
            if isinstance(result, CorrectResult) and result.verdict is not Verdict.NOT_MEASURED:
                unchecked = result.reason in UNCHECKED_AFTER
                wrong = Reason.UNCHECKED if unchecked else Reason.WRONG_RESULT
                self.session.checked[result.key] = None if result.verdict is Verdict.PASS else wrong

    def close(self) -> None:
        if self.has_session:
            self.session.close()
        if self._own_variable:
            from pytest_cutile.words.temporary import run_folder

            shutil.rmtree(run_folder(os.environ.pop(RUN_VARIABLE)), ignore_errors=True)


FORK_REPORTS: pytest.StashKey[dict[str, pytest.TestReport]] = pytest.StashKey()
"""In the stash of a test that a fork has run: its reports, by phase."""

RUN: pytest.StashKey[PytestRun] = pytest.StashKey()
"""The only key of this plugin in the stash of pytest's config."""


def run_of(config: pytest.Config) -> PytestRun:
    return config.stash[RUN]


def session_of(config: pytest.Config) -> Session:
    return run_of(config).session
