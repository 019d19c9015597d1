"""The other side of `fresh_process.py`: a pytest that waits for requests, and forks a process for each."""

from __future__ import annotations

import itertools
import os
import sys
import time
import traceback
import warnings
from pathlib import Path

import pytest

from pytest_cutile.gates.speed.protocol import Failed, ProcessFiles, RequestedCases
from pytest_cutile.pytest_parts.fresh_process import (
    ANOTHER_SERVER,
    DIE_WITH_PARENT,
    POLL_SECONDS,
)
from pytest_cutile.pytest_parts.run import PytestRun
from pytest_cutile.pytest_parts.watchdog import Watchdog
from pytest_cutile.timing.gpu.context import context_error
from pytest_cutile.words.verdicts import Reason


class MeasuringServer:
    """Runs no test by itself: forked processes run those that they are asked to measure."""

    def __init__(self, run: PytestRun, folder: Path) -> None:
        self._run = run
        self._folder = folder
        self._problems: dict[str, str] = {}
        """What failed or skipped a test, by its id."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Serve requests until whoever started this process stops it, or has ended."""
        parent = os.getppid()
        running: dict[int, ProcessFiles] = {}
        numbers = itertools.count(1)
        files = ProcessFiles(self._folder, next(numbers))
        while os.getppid() == parent:
            if files.exit_code() is not None:  # another server's
                files = ProcessFiles(self._folder, next(numbers))
            elif files.requests() is not None:
                if not _can_fork():
                    files.end(self._measure(session, files))
                    os._exit(ANOTHER_SERVER)
                running[self._fork(session, files)] = files
                files = ProcessFiles(self._folder, next(numbers))
            else:
                time.sleep(POLL_SECONDS)
            for pid in [*running]:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    running.pop(pid).end(os.waitstatus_to_exitcode(status))
        return True

    def _fork(self, session: pytest.Session, files: ProcessFiles) -> int:
        """Measure in a forked process; return its process id."""
        _flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about threads: none of this process holds a lock now
            pid = os.fork()
        if pid == 0:
            exec(DIE_WITH_PARENT)  # noqa: S102 - our own text
            os._exit(self._measure(session, files))
        return pid

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
            self._problems.setdefault(report.nodeid, f"{reason}")

    def _measure(self, session: pytest.Session, files: ProcessFiles) -> int:
        """Run the tests that were asked for, answer what they did not, and return an exit code."""
        try:
            requested = RequestedCases(files.requests() or {}, files)
            self._run.session.requested = requested
            nodeids = {request.nodeid for request in requested.requests.values()}
            items = [item for item in session.items if item.nodeid in nodeids]
            self._watch(requested)
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                requested.answer_rest(
                    item.nodeid, self._problems.get(item.nodeid, "its test measured nothing")
                )
                if context_error():  # another process measures what is left
                    return 1
        except BaseException:  # noqa: BLE001 - whatever it is, the run shows the end of the output
            traceback.print_exc()
            return 1
        finally:
            _flush()
        return 0

    def _watch(self, requested: RequestedCases) -> None:
        """End this process if a launch does not end; another one measures what is left."""
        limit_s = self._run.settings.launch_seconds

        def answer_and_end(place: str) -> None:
            text = f"{requested.running}: a launch did not end within {limit_s:g} s: it waits at {place}"
            requested.answer(Failed(key=requested.running, reason=Reason.HANG, error=text))
            os._exit(1)

        Watchdog(limit_s, beat=lambda: None, bark=answer_and_end).start()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _can_fork() -> bool:
    """Say whether a fork of this process can use the GPU: not if this process has used it."""
    torch = sys.modules.get("torch")
    return hasattr(os, "fork") and not (torch is not None and torch.cuda.is_initialized())
