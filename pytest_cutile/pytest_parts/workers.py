"""Workers of pytest-xdist that end in a test: pytest-xdist replaces them, and what they knew is passed on.

A worker that ends by itself writes the reports of its last test to a file. One that is ended by a signal
leaves none: then only the test's id is known. Tests whose reports the worker had held back run again.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_cutile.gates import gate_of
from pytest_cutile.pytest_parts.crashed import Crash, result_of_lost
from pytest_cutile.pytest_parts.reporting import PROPERTY, Results, results_of
from pytest_cutile.words.verdicts import Reason

if TYPE_CHECKING:
    from pytest_cutile.words.results import Result


class WorkerEnding:
    """In a worker: how it ends in a test."""

    def __init__(self, config: pytest.Config, folder: Path, name: str) -> None:
        self._config = config
        self._folder = folder
        self._name = name

    def beat(self) -> None:
        """Do nothing: nobody waits for a sign of life."""

    def defer(self, nodeids: Sequence[str]) -> None:
        """Note the tests whose reports are held back: if this process ends, they run again."""
        _write(self._folder / f"{self._name}.deferred", [*nodeids])

    def end(self, crash: Crash, reports: Sequence[pytest.TestReport]) -> NoReturn:
        """End this process in a test, of which these reports were not passed on yet."""
        del crash
        serialize = self._config.hook.pytest_report_to_serializable
        serialized = [serialize(config=self._config, report=report) for report in reports]
        _write(self._folder / f"{self._name}.last", serialized)
        os._exit(1)


class LostTests:
    """On the controller: reports the tests that a worker began and did not report.

    pytest-xdist itself reports the test that a worker was running when it ended, without its results.
    """

    def __init__(self, results: Results, folder: Path | None) -> None:
        self._results = results
        self._folder = folder
        self._running: Counter[str] = Counter()
        self._crashed: list[pytest.TestReport] = []
        self._cases: dict[str, Result] = {}
        """A result of the case of a declared kernel, by the ids of its tests without their gates."""

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] += 1

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any, sched: Any) -> None:
        """Make pytest-xdist's report of a worker's last test the one that the worker has left, if it has."""
        del crashitem
        name = report.node.gateway.id
        for nodeid in self._read(f"{name}.deferred"):
            with contextlib.suppress(NotImplementedError):  # --dist each, loadscope: it is lost
                sched.mark_test_pending(nodeid)
                self._running[nodeid] -= 1
        config = report.node.config
        deserialize = config.hook.pytest_report_from_serializable
        reports = [deserialize(config=config, data=data) for data in self._read(f"{name}.last")]
        if not reports:
            report.longrepr = (
                f"{report.nodeid}: its worker process {name} ended while the test ran; all other tests go on."
                " Does its launcher end the process, or crash it? -n 0 shows its last output"
            )
            return
        for earlier in reports[:-1]:
            earlier.node = report.node
            config.hook.pytest_runtest_logreport(report=earlier)
        node = report.node
        vars(report).clear()
        vars(report).update(vars(reports[-1]), node=node)

    def _read(self, name: str) -> list[Any]:
        if self._folder is None or not (self._folder / name).exists():
            return []
        from pytest_cutile.tile.forking import read

        content: list[Any] = read((self._folder / name).read_bytes())
        return content

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when not in ("setup", "call"):
            self._running[report.nodeid] -= 1
        is_crash = report.when not in ("setup", "call", "teardown")
        if is_crash and report.failed:  # and is not run again: what pytest-xdist reports of a crashed worker
            self._crashed.append(report)
        for result in results_of(report):
            self._cases[_without_gate(report.nodeid)] = result

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Report what is missing as failed, and as not measured."""
        for crashed in self._crashed:
            if gate_of(crashed.nodeid):  # nobody knows here what test functions check and measure
                self._report_result(session, crashed, Reason.CRASH)
        if session.shouldstop or session.exitstatus == pytest.ExitCode.INTERRUPTED:
            return
        for nodeid in [*self._running.elements()]:
            report = _lost(
                nodeid,
                f"{nodeid}: its worker process ended before it could report the test, which was to be "
                "measured again in fresh processes: not measured, not passed, not recorded",
            )
            session.config.hook.pytest_runtest_logreport(report=report)
            self._report_result(session, report, Reason.LOST)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _report_result(self, session: pytest.Session, lost: pytest.TestReport, reason: Reason) -> None:
        """Report the result of a lost test in a teardown report, which carries results.

        Kernel, case and GPU come from another gate's result for the case, or else from the test's name.
        """
        known = self._cases.get(_without_gate(lost.nodeid))
        result = result_of_lost(lost.nodeid, reason, str(lost.longrepr).partition("\n")[0], known)
        teardown = _lost(lost.nodeid, "")
        teardown.when, teardown.outcome, teardown.longrepr = "teardown", "passed", None
        teardown.user_properties = [(PROPERTY, result.to_builtins())]
        if hasattr(lost, "node"):  # the worker: pytest's JUnit writer matches reports by it
            teardown.node = lost.node  # type: ignore[attr-defined]
        session.config.hook.pytest_runtest_logreport(report=teardown)
        self._results.blame(result)


def _write(path: Path, content: object) -> None:
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_bytes(pickle.dumps(content))
    unfinished.rename(path)


def _without_gate(nodeid: str) -> str:
    return nodeid.replace(f"::{gate_of(nodeid)}[", "::[", 1)


def _lost(nodeid: str, message: str) -> pytest.TestReport:
    """Return the report of a failure that no running test can report any more."""
    now = time.time()
    return pytest.TestReport(
        nodeid=nodeid,
        location=(nodeid.partition("::")[0], None, nodeid.rpartition("::")[2]),
        keywords={},
        outcome="failed",
        longrepr=message,
        when="call",
        start=now,
        stop=now,
    )
