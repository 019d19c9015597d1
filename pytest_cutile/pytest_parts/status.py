"""The status line: what runs while pytest itself says nothing, and for how long."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

import pytest

from pytest_cutile.gates import gate_of

QUIET_SECONDS = 2.0
"""Silence of pytest after which the status line appears on a terminal."""
LOG_SECONDS = 30.0
"""Time between two lines in a log."""
TICK_SECONDS = 0.25
ENOUGH_TESTS = 3
"""Tests of a kind that must have ended before others of that kind are estimated."""
_SAVE, _RESTORE = "\x1b7", "\x1b8"
_LINE_BELOW = "\x1bD\x1b[A"
"""Makes sure that there is a line below: the screen scrolls, and the cursor stays in its column."""
_BELOW = "\x1b[B\r\x1b[2K"
"""Moves to the line below, and empties it."""


class TimeLeft:
    """Estimates how long the selected tests still take, from the tests of the same kind that have ended."""

    def __init__(self) -> None:
        self._left: dict[str, str] = {}
        """The kinds of the tests that have not begun: their gate, or "" for the user's own."""
        self._seconds: dict[str, list[float]] = defaultdict(list)
        """What tests took, by kind."""
        self._workers: set[str] = set()

    @property
    def processes(self) -> int:
        return len(self._workers)

    def expect(self, nodeids: Iterable[str], worker: str = "") -> None:
        """Add the selected tests; each worker of pytest-xdist names all of them before the first runs."""
        if not self._workers:
            self._left = {nodeid: gate_of(nodeid) for nodeid in nodeids}
        self._workers.add(worker)

    def began(self, nodeid: str) -> None:
        self._left.pop(nodeid, None)

    def took(self, nodeid: str, seconds: float) -> None:
        self._seconds[gate_of(nodeid)].append(seconds)

    def __str__(self) -> str:
        """Return ", about 3 min for the other 40 tests"; "" while that is unknown, or if nothing is left."""
        from pytest_cutile.words.quantities import counted

        tests_left = Counter(list(self._left.values()))
        if not tests_left or any(len(self._seconds[gate]) < ENOUGH_TESTS for gate in tests_left):
            return ""
        seconds = 0.0
        for gate, count in tests_left.items():
            # Without the longest: the first one waits for what all of them need.
            _, *usual = sorted(self._seconds[gate], reverse=True)
            seconds += count * sum(usual) / len(usual)
        seconds /= self.processes
        shown = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(seconds, 1):.0f} s"  # noqa: PLR2004
        return f", about {shown} for the other {counted(tests_left.total(), 'test')}"


class StatusLine:
    """On a terminal one line below what pytest writes; in a log a line now and then.

    A thread writes it while a test runs, past pytest's capture, to a copy of the stream that pytest started
    with. pytest writes in its hooks: each of them makes room first.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager
        self._shows_output = config.option.capture == "no"
        self._is_worker = hasattr(config, "workerinput")
        self._lock = threading.Lock()
        self._text = ""
        self._since = self._quiet_since = self._logged = time.monotonic()
        self._running: dict[str, float] = {}
        """When tests of pytest-xdist's workers began."""
        self._time_left = TimeLeft()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._stream: TextIO | None = None
        self._is_shown = False
        """Whether the last thing on the terminal, or in the log, is ours."""

    def __call__(self, text: str) -> None:
        """Say what runs now in this process."""
        if text != self._text:
            self._text, self._since = text, time.monotonic()
        self._start()

    def begin_fork(self) -> None:
        """In a fork: the thread, and whoever held the lock, are in the process that was forked."""
        self._lock, self._thread = threading.Lock(), None

    def clear(self) -> None:
        """Make room: pytest writes next, or what was said is over."""
        with self._lock:
            self._quiet_since = time.monotonic()
            if self._is_shown:
                self._make_room()
            self._is_shown = False

    def over(self) -> None:
        """Forget what this process said: a test has ended."""
        self._text = ""
        self.clear()

    # -- what pytest does -----------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Keep the stream that pytest writes to; not of a terminal that tests write to as well (-s)."""
        if self._reporter is not None and not (self._reporter.isatty and self._shows_output):
            self._stream = _copy_of(sys.stdout)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.clear()
        self._time_left.began(nodeid)
        if self._has_workers and gate_of(nodeid):
            self._running[nodeid] = time.monotonic()
            self._start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.clear()
        if report.when == "call":
            self._time_left.took(report.nodeid, report.duration)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)
        self.clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self) -> None:
        self.clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.over()
        if not self._has_workers:
            self._time_left.expect(item.nodeid for item in session.items)

    def pytest_enter_pdb(self) -> None:
        self.clear()
        self._quiet_since = math.inf

    def pytest_leave_pdb(self) -> None:
        self.clear()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        self._time_left.expect(ids, node.gateway.id)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.over()
        if self._stream is not None and self._stream is not sys.stdout:
            self._stream.close()

    # -- writing --------------------------------------------------------------------------------------

    @property
    def _reporter(self) -> Any:
        """Pytest's reporter, where it shows progress; it is not there yet when this object is made."""
        reporter: Any = self._plugins.get_plugin("terminalreporter")
        return None if self._is_worker or reporter is None or reporter.verbosity < 0 else reporter

    @property
    def _has_workers(self) -> bool:
        return bool(self._plugins.has_plugin("dsession"))

    def _start(self) -> None:
        if self._thread is None and self._stream is not None:
            self._thread = threading.Thread(target=self._watch, name="cutile-status", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(TICK_SECONDS):
            self.tick()

    def tick(self) -> None:
        """Write the line if pytest has been silent for long enough."""
        with self._lock:
            if self._stream is not None and time.monotonic() - self._quiet_since >= QUIET_SECONDS:
                write = self._draw if self._reporter.isatty else self._log
                write(self._stream)

    def _status(self) -> str:
        """Return what runs, for how long, and what is left; "" if nothing runs."""
        from pytest_cutile.words.document import printable

        now, tests = time.monotonic(), dict(self._running)
        if tests and not self._text:
            # A worker that has begun another test has deferred the one before.
            running = sorted(tests, key=tests.__getitem__)[-(self._time_left.processes or len(tests)) :]
            deferred = len(tests) - len(running)
            parts = [f"{len(running)} tests running"] if len(running) > 1 else []
            parts += [f"{deferred} to be measured again"] if deferred else []
            which, oldest = "the longest for" if len(running) > 1 else "for", running[0]
            parts += [f"{which} {now - tests[oldest]:.0f} s: {printable(oldest)}{self._time_left}"]
            return f"cutile: {', '.join(parts)}"
        if not self._text:
            return ""
        return f"cutile: for {now - self._since:.0f} s: {printable(self._text)}{self._time_left}"

    def _draw(self, terminal: TextIO) -> None:
        if not (text := self._status()):
            return
        columns = os.get_terminal_size(terminal.fileno()).columns
        room = "" if self._is_shown else _LINE_BELOW
        terminal.write(f"{room}{_SAVE}{_BELOW}{text[: columns - 1]}{_RESTORE}")
        terminal.flush()
        self._is_shown = True

    def _log(self, log: TextIO) -> None:
        if time.monotonic() - self._logged < LOG_SECONDS or not (text := self._status()):
            return
        self._logged = time.monotonic()
        log.write(f"\n{text}")
        log.flush()
        self._is_shown = True

    def _make_room(self) -> None:
        """Clear the line on a terminal; in a log end it, and let pytest name its file again."""
        if self._stream is None:
            return
        if self._reporter.isatty:
            self._stream.write(f"{_SAVE}{_BELOW}{_RESTORE}")
        else:
            self._stream.write("\n")
            self._reporter.currentfspath = None
        self._stream.flush()


def _copy_of(stream: TextIO) -> TextIO:
    """Return a stream to where `stream` leads now; `stream` if it has no file that capture could redirect."""
    try:
        return open(os.dup(stream.fileno()), "w", encoding="utf-8", errors="replace")  # noqa: PTH123
    except (OSError, ValueError):
        return stream
