"""What a test does to the GPU's context is told of that test, and ends the process if it cannot go on."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

from pytest_cutile.pytest_parts.crashed import PHASES, Crash, reports_of_crash
from pytest_cutile.pytest_parts.run import PytestRun
from pytest_cutile.pytest_parts.watchdog import Watchdog
from pytest_cutile.timing.gpu.context import context_error
from pytest_cutile.words.verdicts import Reason


class GpuGuard:
    """Watches over the tests of one process that may use a GPU."""

    def __init__(self, run: PytestRun) -> None:
        self._run = run
        self._item: pytest.Item | None = None
        """The test that runs."""
        self._left: tuple[str, ...] = ()
        """Its phases that have not been reported."""
        self._process = os.getpid()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Watch over launches as long as tests run."""
        ending = self._run.ending
        if ending is None:
            return (yield)
        self._process = os.getpid()
        limit_s = self._run.settings.launch_seconds
        watchdog = Watchdog(limit_s, beat=ending.beat, bark=self._end_hanging)
        watchdog.start()
        try:
            return (yield)
        finally:
            watchdog.stop()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._item, self._left = item, PHASES

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Wait for what a test has launched: a fault that shows later would be told of another test."""
        del item
        result = yield
        if not self._is_fork and (error := context_error()):
            raise RuntimeError(error)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if self._is_fork:
            return report
        if report.failed and not self._run.lost:
            self._run.lost = context_error()
        ending = self._run.ending
        if self._run.lost and ending is not None and call.when == "teardown":
            crash = Crash(nodeid=item.nodeid, reason=Reason.CRASH, what=self._run.lost)
            ending.end(crash, [report])
        self._left = self._left[1:]
        if not self._left:
            self._item = None
        return report

    @property
    def _is_fork(self) -> bool:
        """Whether this process is a fork that runs a single test, without the GPU."""
        return os.getpid() != self._process

    def _end_hanging(self, place: str) -> None:
        """End this process, whose thread that runs the tests waits for the GPU at `place`."""
        item, ending = self._item, self._run.ending
        if ending is None:
            return
        limit = f"{self._run.settings.launch_seconds:g} s"
        what = f"a launch did not end within {limit} (ini option cutile_launch_seconds): it waits at {place}"
        nodeid = "" if item is None else item.nodeid
        crash = Crash(nodeid=nodeid, reason=Reason.HANG, what=what)
        reports: list[Any] = []
        if item is not None:
            reports = reports_of_crash(item, self._run.session, crash, phases=self._left or PHASES[-1:])
        ending.end(crash, reports)
