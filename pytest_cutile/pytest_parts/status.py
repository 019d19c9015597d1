"""The status line: what runs while pytest itself says nothing, and for how long."""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TextIO

import pytest

QUIET_SECONDS = 2.0
"""Silence of pytest after which the status line appears on a terminal."""
LOG_SECONDS = 30.0
"""Time between two lines in a log."""
TICK_SECONDS = 0.25
_OURS = re.compile(r"::(correct|compile|static|speed|search)\[")
"""Tests of declared kernels, by their ids: what pytest-xdist's controller knows of its workers' tests."""
_SAVE, _RESTORE = "\x1b7", "\x1b8"
_LINE_BELOW = "\x1bD\x1b[A"
"""Makes sure that there is a line below: the screen scrolls, and the cursor stays in its column."""
_BELOW = "\x1b[B\r\x1b[2K"
"""Moves to the line below, and empties it."""


class StatusLine:
    """On a terminal one line below what pytest writes, which stays as it is; in a log a line now and then.

    The line goes to the terminal itself, since what a running test prints is captured. pytest writes in its
    hooks: each of them clears the line first.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager
        self._is_worker = hasattr(config, "workerinput")
        self._lock = threading.Lock()
        self._text = ""
        self._since = self._quiet_since = self._logged = time.monotonic()
        self._running: dict[str, float] = {}
        """When tests of pytest-xdist's workers began."""
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._terminal: TextIO | None = None
        self._is_shown = False

    def __call__(self, text: str) -> None:
        """Say what runs now in this process."""
        if text != self._text:
            self._text, self._since = text, time.monotonic()
        reporter = self._reporter
        if reporter is not None and not (reporter.isatty or self._has_workers):
            with self._uncaptured():
                self._log(reporter)
        else:
            self._start()

    def clear(self) -> None:
        """Remove the line: pytest writes next, or what was said is over."""
        with self._lock:
            self._quiet_since = time.monotonic()
            self._erase()

    def over(self) -> None:
        """Forget what this process said: a test has ended."""
        self._text = ""
        self.clear()

    # -- what pytest does -----------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Remember a test of a worker; this process's own say what they do."""
        self.clear()
        if self._has_workers and _OURS.search(nodeid):
            self._running[nodeid] = time.monotonic()
            self._start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self) -> None:
        self.clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)
        self.clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self) -> None:
        self.clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self) -> None:
        self.over()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """End with a clean terminal."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.over()
        if self._terminal is not None:
            self._terminal.close()

    # -- writing --------------------------------------------------------------------------------------

    @property
    def _reporter(self) -> Any:
        """Pytest's reporter, where it shows progress; it is not there yet when this object is made."""
        reporter: Any = self._plugins.get_plugin("terminalreporter")
        return None if self._is_worker or reporter is None or reporter.verbosity < 0 else reporter

    @property
    def _has_workers(self) -> bool:
        """Whether this is pytest-xdist's controller."""
        return bool(self._plugins.has_plugin("dsession"))

    def _start(self) -> None:
        if self._thread is None and self._reporter is not None:
            self._thread = threading.Thread(target=self._watch, name="cutile-status", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        reporter = self._reporter
        if reporter.isatty:
            try:
                self._terminal = open("/dev/tty", "w", encoding="utf-8")  # noqa: PTH123, SIM115 - of the thread
            except OSError:  # no terminal of its own, or not of this kind
                return
        while not self._stop.wait(TICK_SECONDS):
            if self._terminal is not None:
                with self._lock:
                    self._draw(self._terminal)
            elif self._has_workers:  # pytest-xdist's controller captures nothing
                self._log(reporter)

    def _status(self) -> str:
        """Return what runs, and for how long; "" if nothing does."""
        from pytest_cutile.reports.document import printable

        now, tests = time.monotonic(), dict(self._running)
        if tests and not self._text:
            oldest = min(tests, key=tests.__getitem__)
            count = f"{len(tests)} tests run, the longest " if len(tests) > 1 else ""
            return f"cutile: {count}for {now - tests[oldest]:.0f} s: {printable(oldest)}"
        return f"cutile: for {now - self._since:.0f} s: {printable(self._text)}" if self._text else ""

    def _draw(self, terminal: TextIO) -> None:
        if time.monotonic() - self._quiet_since < QUIET_SECONDS or not (text := self._status()):
            return
        columns = os.get_terminal_size(terminal.fileno()).columns
        room = "" if self._is_shown else _LINE_BELOW
        terminal.write(f"{room}{_SAVE}{_BELOW}{text[: columns - 1]}{_RESTORE}")
        terminal.flush()
        self._is_shown = True

    def _erase(self) -> None:
        if self._is_shown and self._terminal is not None:
            self._terminal.write(f"{_SAVE}{_BELOW}{_RESTORE}")
            self._terminal.flush()
        self._is_shown = False

    def _log(self, reporter: Any) -> None:
        if time.monotonic() - self._logged >= LOG_SECONDS and (text := self._status()):
            self._logged = time.monotonic()
            reporter.write_line(text)

    def _uncaptured(self) -> AbstractContextManager[None]:
        """Suspend pytest's capture: a test is running, and what it prints is captured."""
        capture: Any = self._plugins.get_plugin("capturemanager")
        return capture.global_and_fixture_disabled() if capture is not None else nullcontext()
