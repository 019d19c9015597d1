"""A run that uses a GPU happens in a fork of the process that the user started, which can replace it.

A fault of a kernel is the end of the CUDA context, and so of the process: it cannot be mended there. The
process that stays behind, the supervisor, has not used the GPU. It keeps the reports of all tests, and when
the run's process ends in the middle of a test it forks again. The new process collects as the first one did,
passes on the reports that there are, and goes on behind the test that ended the process before.

Under pytest-xdist the controller is the supervisor: `workers.py`.
"""

from __future__ import annotations

import math
import os
import pickle
import select
import signal
import struct
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from pytest_cutile.pytest_parts.crashed import Crash, reports_of_crash
from pytest_cutile.pytest_parts.run import PytestRun, run_of
from pytest_cutile.tile.forking import can_fork, describe_exit, fork, read
from pytest_cutile.words.verdicts import Reason

SILENT_SECONDS = 60.0
"""How long a process may take beyond `cutile_launch_seconds` without a sign of life."""
PATIENCE_SECONDS = 10.0
"""How long the driver may take to end a process that has told how it ends, before another one begins."""
_LENGTH = struct.Struct("Q")


class Message(NamedTuple):
    """What a run's process tells the supervisor."""

    kind: str
    """"begin" and "end" of a test, "seen" or "unseen" report, "crash", "beat"."""
    nodeid: str
    content: Any = None
    """A report as pytest serializes it, or a `Crash`."""


@dataclass
class Journal:
    """What the supervisor knows of the tests that have run."""

    reports: dict[str, list[Message]] = field(default_factory=lambda: defaultdict(list))
    """The reports of each test, by its id; "unseen" ones were not shown before their process ended."""
    crashes: dict[str, Crash] = field(default_factory=dict)
    """How the process of a test ended that has no reports, by the test's id."""
    running: str = ""
    """The test that runs."""
    said: Crash | None = None
    """What the process says of its own end."""

    def take(self, message: Message) -> None:
        match message.kind:
            case "begin":
                self.running = message.nodeid
            case "end":
                self.running = ""
            case "seen" | "unseen":
                self.reports[message.nodeid].append(message)
            case "crash":
                self.said = message.content

    def close(self, status: int) -> bool:
        """Note how the run's process ended; return whether another one has to go on behind a test."""
        crash = self.said
        if crash is None and self.running:
            what = f"its process {describe_exit(status)}"
            crash = Crash(nodeid=self.running, reason=Reason.CRASH, what=what)
        self.running, self.said = "", None
        if crash is None or crash.nodeid in self.crashes:  # even its report ends the process
            return False
        # Reports that were held back until others had been measured are none: such a test runs again.
        whole = {
            nodeid: reports
            for nodeid, reports in self.reports.items()
            if any(report.content["when"] == "teardown" for report in reports)
        }
        self.reports = defaultdict(list, whole)
        if crash.nodeid not in whole:
            self.crashes[crash.nodeid] = crash
        return True

    def knows(self, nodeid: str) -> bool:
        return nodeid in self.reports or nodeid in self.crashes


def supervise(config: pytest.Config) -> None:
    """Return in the process that is to run the tests; the supervisor ends with that process's status."""
    run = run_of(config)
    if not _needs_supervisor(config, run):
        return
    # torch then asks NVML, not CUDA, whether there is a GPU, also in a conftest that this process has loaded.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    journal = Journal()
    while True:
        reader, writer = os.pipe()
        pid = fork()
        if pid == 0:
            os.close(reader)
            run.ending, run.has_run = Supervised(run, journal, writer), journal.knows
            config.pluginmanager.register(run.ending, "cutile-supervised")
            config.pluginmanager.register(Replay(run, journal), "cutile-replay")
            return
        os.close(writer)
        with _signals_passed_on(pid):
            limit_s = run.settings.launch_seconds + SILENT_SECONDS
            for message in _messages(reader, pid, limit_s, journal):
                journal.take(message)
            status = _exit_status(pid, patience_s=math.inf if journal.said is None else PATIENCE_SECONDS)
        os.close(reader)
        if not journal.close(status):
            _end(status)


def _needs_supervisor(config: pytest.Config, run: PytestRun) -> bool:
    """Say whether this run may use a GPU, and whether this process can be its supervisor."""
    settings, options = run.settings, config.option
    if not (can_fork() and (settings.kernels or settings.asked)):
        return False
    is_shared = getattr(options, "numprocesses", None) or getattr(options, "tx", None)
    if is_shared or options.collectonly or settings.xdist_worker or settings.server_folder is not None:
        return False
    torch = sys.modules.get("torch")
    has_used_gpu = torch is not None and torch.cuda.is_initialized()
    is_debugged = sys.gettrace() is not None or {"pydevd", "debugpy"} & sys.modules.keys()
    return not has_used_gpu and not is_debugged  # a debugger's threads would be lost


@contextmanager
def _signals_passed_on(pid: int) -> Iterator[None]:
    """Leave Ctrl-C to the run, which gets it, too; pass on what is to end this process."""

    def pass_on(number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, pass_on),
        signal.SIGHUP: signal.signal(signal.SIGHUP, pass_on),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _messages(descriptor: int, pid: int, limit_s: float, journal: Journal) -> Iterator[Message]:
    """Yield messages until the process has ended; end one that gives no sign of life in a test."""
    data, last = b"", time.monotonic()
    while True:
        readable, _, _ = select.select([descriptor], [], [], 5.0)
        if readable:
            last = time.monotonic()
            part = os.read(descriptor, 1 << 20)
            if not part:
                return
            data += part
        while len(data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack(data[: _LENGTH.size])
            end = _LENGTH.size + length
            if len(data) < end:
                break
            yield read(data[_LENGTH.size : end])
            data = data[end:]
        if journal.running and time.monotonic() - last > limit_s:
            what = f"its process gave no sign of life for {limit_s:g} s, and was ended"
            journal.said = Crash(nodeid=journal.running, reason=Reason.HANG, what=what)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _exit_status(pid: int, *, patience_s: float) -> int:
    """Wait for a process to end; return its exit status, or 0 if the driver does not let it go so soon."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        ended, waited = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(waited)
        time.sleep(0.01)
    return 0


def _end(status: int) -> NoReturn:
    """End as the run's process did."""
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status if status >= 0 else 128 - status)


class Supervised:
    """In the process that runs the tests: tells the supervisor of them, and passes on earlier reports."""

    def __init__(self, run: PytestRun, journal: Journal, writer: int) -> None:
        self._run = run
        self._journal = journal
        self._writer = writer
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._replays = False
        """Whether the reports of a test that ran earlier are passed on now."""
        self._hidden: Any = None
        """The terminal's writer and its file while nothing is shown a second time."""
        if journal.reports or journal.crashes:
            self._hide()

    # -- to the supervisor ----------------------------------------------------------------------------

    def beat(self) -> None:
        """Give a sign of life."""
        self._send(Message("beat", ""))

    def end(self, crash: Crash, reports: Sequence[pytest.TestReport]) -> NoReturn:
        """End this process in a test, of which these reports were not passed on yet."""
        for report in reports:
            self._send(self._message("unseen", report))
        self._send(Message("crash", crash.nodeid, crash))
        os._exit(1)

    def _message(self, kind: str, report: pytest.TestReport) -> Message:
        serialize = self._run.config.hook.pytest_report_to_serializable
        return Message(kind, report.nodeid, serialize(config=self._run.config, report=report))

    def _send(self, message: Message) -> None:
        if os.getpid() != self._process:  # a fork that runs a single test
            return
        data = pickle.dumps(message)
        with self._lock, suppress(OSError):
            rest = memoryview(_LENGTH.pack(len(data)) + data)
            while rest:
                rest = rest[os.write(self._writer, rest) :]

    # -- tests ----------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        del nextitem
        messages = self._journal.reports.get(item.nodeid)
        if messages is not None:
            if any(message.kind == "unseen" for message in messages):
                self._show()
            self._replays = True
            try:
                return (yield)
            finally:
                self._replays = False
        self._show()
        self._send(Message("begin", item.nodeid))
        try:
            return (yield)
        finally:
            self._send(Message("end", item.nodeid))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the report with the supervisor, before the results are taken out of it."""
        if not self._replays:
            self._send(self._message("seen", report))

    def pytest_sessionfinish(self) -> None:
        self._show()

    # -- the terminal ---------------------------------------------------------------------------------

    def _hide(self) -> None:
        """Show nothing a second time: neither the header, nor the progress of tests that ran earlier."""
        plugins = self._run.config.pluginmanager
        reporter: Any = plugins.get_plugin("terminalreporter")
        if reporter is not None:
            writer = reporter._tw  # noqa: SLF001 - pytest has no other way to it
            self._hidden = writer, writer._file  # noqa: SLF001
            writer._file = Path(os.devnull).open("w")  # noqa: SIM115, SLF001
        capture: Any = plugins.get_plugin("capturemanager")
        if capture is not None:
            capture.read_global_capture()  # of the process that has ended

    def _show(self) -> None:
        if self._hidden is not None:
            writer, file = self._hidden
            writer._file, self._hidden = file, None  # noqa: SLF001


class Replay:
    """In a process that goes on: stands in for the tests that earlier processes have run."""

    def __init__(self, run: PytestRun, journal: Journal) -> None:
        self._run = run
        self._journal = journal

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Pass on what an earlier process has reported of a test, or report how that process ended."""
        if not self._journal.knows(item.nodeid):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(item):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _reports(self, item: pytest.Item) -> list[pytest.TestReport]:
        messages = self._journal.reports.get(item.nodeid)
        if messages is None:
            return reports_of_crash(item, self._run.session, self._journal.crashes[item.nodeid])
        deserialize = item.config.hook.pytest_report_from_serializable
        reports = [deserialize(config=item.config, data=message.content) for message in messages]
        for report in reports:
            self._run.remember(report)
        return reports
