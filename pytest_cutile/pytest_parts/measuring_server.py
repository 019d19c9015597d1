"""The other side of `fresh_process.py`: a pytest that waits for requests, and forks a process for each."""

from __future__ import annotations

import itertools
import os
import sys
import time
import warnings
from pathlib import Path

import pytest

from pytest_cutile.pytest_parts.fresh_process import DIE_WITH_PARENT, POLL_SECONDS, ProcessFiles
from pytest_cutile.pytest_parts.run import PytestRun
from pytest_cutile.session import MeasuredAgain


class MeasuringServer:
    """Runs no test by itself: forked processes run those that they are asked to measure."""

    def __init__(self, run: PytestRun, folder: Path) -> None:
        self._run = run
        self._folder = folder

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Serve requests until whoever started this process stops it."""
        number = next(
            number for number in itertools.count(1) if ProcessFiles(self._folder, number).exit_code() is None
        )
        while True:
            files = ProcessFiles(self._folder, number)
            while not files.asked_path.exists():
                time.sleep(POLL_SECONDS)
            if not _can_fork():
                self._measure(session, files)
                files.end(0)
                return True  # the next process is a new server
            files.end(self._fork(session, files))
            number += 1

    def _fork(self, session: pytest.Session, files: ProcessFiles) -> int:
        """Measure in a forked process; return its exit code."""
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about threads: none of this process holds a lock now
            pid = os.fork()
        if pid == 0:
            try:
                exec(DIE_WITH_PARENT)  # noqa: S102 - our own text
                self._measure(session, files)
                os._exit(0)
            finally:
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _measure(self, session: pytest.Session, files: ProcessFiles) -> None:
        asked = MeasuredAgain(files.asked_path.read_bytes(), files.measured_path)
        self._run.session.measured_again = asked
        nodeids = {request.nodeid for request in asked.requests.values()}
        items = [item for item in session.items if item.nodeid in nodeids]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def _can_fork() -> bool:
    """Say whether a fork of this process can use the GPU: not if this process has used it."""
    torch = sys.modules.get("torch")
    return hasattr(os, "fork") and not (torch is not None and torch.cuda.is_initialized())
