"""Tests whose speed is open: their reports wait until fresh processes have told, when all tests have run."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# What pytest's own protocol calls, and what plugins that run tests again have called for years.
from _pytest.runner import CallInfo, runtestprotocol

from pytest_cutile.core.results import Gate, GateResult, names_of_test
from pytest_cutile.core.verdicts import Reason, Verdict
from pytest_cutile.reports import PROPERTY, Results, results_of

if TYPE_CHECKING:
    from pytest_cutile.gates.open_cases import OpenCase
    from pytest_cutile.gates.screenings import Screenings
    from pytest_cutile.gates.suite import MeasureAgain, SpeedSuite


@dataclass
class _Held:
    """A test that ran."""

    item: pytest.Item
    reports: list[pytest.TestReport]
    opened: list[OpenCase]
    passed_on: list[pytest.TestReport] = field(default_factory=list)
    """Failures of its own that were reported at once."""

    @property
    def failed(self) -> bool:
        """Whether it failed for reasons of its own."""
        return any(map(_failed_itself, [*self.reports, *self.passed_on]))

    @property
    def telling(self) -> pytest.TestReport | None:
        """The report that is to tell what was decided; None if it has failed before anything could."""
        calls = (report for report in self.reports if report.when == "call")
        return next(calls, None if self.failed else self.reports[-1])


class HeldReports:
    """Runs the tests that measure speed, and holds back the reports of those that stay open.

    The reports of one test belong together (setup, call, teardown), and whoever reads them, from JUnit to
    pytest-xdist, may rely on that: so they wait together.
    """

    def __init__(
        self,
        suite: Callable[[], SpeedSuite],
        existing: Callable[[], SpeedSuite | None],
        measure_again: MeasureAgain,
        screenings: Screenings | None = None,
    ) -> None:
        """Hold back reports.

        Args:
            suite: returns the cases of the run; called when a test measures speed, not before.
            existing: returns them if they are there already.
            measure_again: measures open cases in a fresh process.
            screenings: what the workers of the run tell each other.
        """
        self._suite = suite
        self._existing = existing
        self._measure_again = measure_again
        self._screenings = screenings
        self._held: list[_Held] = []
        self._item: pytest.Item | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a test that measures speed; report it unless that is open."""
        if not measures_speed(item):
            return None
        suite = self._suite()
        known = len(suite.open)
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        held = _Held(item, reports, suite.open[known:])
        if held.opened:
            self._held.append(held)
        else:
            self._release(held)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> None:
        """Remember of which test the next report is."""
        self._item = item

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Hold back a test that is open all the same: it got `perf` on the way (`request.getfixturevalue`).

        Nobody can tell before it runs, so others run it. What they report from then on is kept, and reads
        like one more passed setup, which means nothing to anybody.
        """
        suite, item = self._existing(), self._item
        if suite is None or item is None or item.nodeid != report.nodeid:
            return
        others = {id(each) for held in self._held if held.item is not item for each in held.opened}
        opened = [each for each in suite.open if each.case.nodeid == item.nodeid and id(each) not in others]
        if not opened or report.when == "setup":
            return
        held = next((each for each in self._held if each.item is item), None)
        if held is None:
            held = _Held(item, [], [])
            self._held.append(held)
        held.opened = opened
        if report.failed:  # pytest has counted it
            held.passed_on.append(report)
            return
        held.reports.append(copy.copy(report))
        report.when, report.outcome, report.longrepr, report.duration = "setup", "passed", None, 0.0
        vars(report).pop("wasxfail", None)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Decide what is open when all tests have run, or were stopped, and report it."""
        stopped = True
        try:
            result = yield
            stopped = bool(session.shouldfail or session.shouldstop)
            return result
        finally:
            suite = self._existing()
            if self._screenings is not None:
                self._screenings.publish([*suite.weather.screened.values()] if suite is not None else [])
            if suite is not None:
                if self._screenings is not None:
                    suite.weather.of_others = partial(self._screenings.others, suite.remarks.append)
                for held in self._held:
                    for each in held.opened:
                        each.test_failed = held.failed
                try:
                    if suite.open and not stopped:
                        suite.settle(self._measure_again)
                except Exception as error:  # noqa: BLE001 - whatever it is, nothing that is open may pass
                    suite.fail(error)
                finally:
                    suite.give_up()
                    for held in self._held:
                        self._conclude(held)
                        self._release(held)
                    self._held.clear()

    def _conclude(self, held: _Held) -> None:
        """Put what was decided into the reports of a test."""
        item = held.item
        results = [each.result for each in held.opened]
        item.user_properties += [(PROPERTY, result.to_dict()) for result in results]
        failures = [each.decided.failure for each in held.opened if each.decided.failure is not None]
        telling = held.telling
        if telling is not None and failures:
            passed = telling.passed or (telling.failed and not _failed_itself(telling))
            passed |= telling.skipped and not hasattr(telling, "wasxfail")  # it skipped the rest of itself
            if passed:
                index = held.reports.index(telling)
                held.reports[index] = self._failed(item, telling, "\n\n".join(failures))
        for report in held.reports:
            report.user_properties = list(item.user_properties)

    @staticmethod
    def _failed(item: pytest.Item, passed: pytest.TestReport, message: str) -> pytest.TestReport:
        """Return the report of the same phase as if it had failed: xfail markers and other plugins see it."""

        def fail() -> None:
            pytest.fail(message, pytrace=False)

        if getattr(item, "funcargs", {}) is None:  # gone with the teardown, and plugins look for theirs
            item.funcargs = {}  # type: ignore[attr-defined]
        call = CallInfo.from_call(fail, when=passed.when)
        report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
        report.duration, report.sections = passed.duration, passed.sections
        return report

    def _release(self, held: _Held) -> None:
        item = held.item
        worker = _xdist_worker(item.config)
        if worker is not None:  # it checks that what is reported is what it runs
            worker.item_index = item.session.items.index(item)
        for report in held.reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _failed_itself(report: pytest.TestReport) -> bool:
    """Say whether a test failed, and not by passing where it was expected to fail, strictly so."""
    return report.failed and not str(report.longrepr).startswith("[XPASS(strict)]")


def measures_speed(item: pytest.Item) -> bool:
    """Say whether a test may measure speed."""
    fixtures = getattr(item, "fixturenames", ())
    return item.get_closest_marker("cutile_speed") is not None or "perf" in fixtures


def _xdist_worker(config: pytest.Config) -> Any:
    """Return the object that runs tests for pytest-xdist in a worker process; None elsewhere."""
    if not hasattr(config, "workerinput"):
        return None
    plugins = config.pluginmanager.get_plugins()
    return next((each for each in plugins if hasattr(each, "item_index")), None)


class LostTests:
    """On pytest-xdist's controller: fails tests that a worker began and never reported.

    A worker that dies while it runs a test is noticed by pytest-xdist. One that dies while it holds reports
    back has run all its tests, as far as pytest-xdist knows. Of both, cases say that they were not measured.
    """

    def __init__(self, results: Results) -> None:
        self._results = results
        self._running: Counter[str] = Counter()
        self._crashed: list[pytest.TestReport] = []
        self._checked: dict[str, GateResult] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Remember that a test began."""
        self._running[nodeid] += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Forget a test that is reported: by its teardown, or as what a worker crashed in."""
        if report.when not in ("setup", "call"):
            self._running[report.nodeid] -= 1
        if report.when not in ("setup", "call", "teardown"):
            self._crashed.append(report)
        for result in results_of(report):
            if result.gate == Gate.CORRECT:
                self._checked[report.nodeid] = result

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Report what is missing as failed, and as not measured."""
        hook = session.config.hook
        for crashed in self._crashed:
            self._tell(hook, crashed)
        if session.shouldstop or session.exitstatus == pytest.ExitCode.INTERRUPTED:
            return
        lost = [nodeid for nodeid, count in self._running.items() for _ in range(count)]
        for nodeid in lost:
            message = (
                f"{nodeid}: its worker process ended before it could report the test, which was to be "
                "measured again in fresh processes: not measured, not passed, not recorded"
            )
            report = lost_test(nodeid, message)
            hook.pytest_runtest_logreport(report=report)
            self._tell(hook, report, measures=True)
        if lost:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _tell(self, hook: Any, lost: pytest.TestReport, *, measures: bool = False) -> None:
        """Report the case of a test that was lost as not measured, by a teardown as tests have it.

        What is known of the case here is its test's name, and the result of its check, if that was reported.

        Args:
            hook: of pytest.
            lost: the report of the test.
            measures: whether it is known to measure: reports of others are not held back.
        """
        file, declared, label = lost.nodeid.partition(f"::{Gate.SPEED}[")
        if not (declared or measures):  # another gate, or a test function, of which nobody knows here
            return
        kernel, case = Path(file).stem, label.removesuffix("]")
        key = f"{kernel}[{case}]"
        if not declared:
            key, (kernel, case) = lost.nodeid, names_of_test(lost.nodeid)
        known = self._checked.get(f"{file}::{Gate.CORRECT}[{label}")
        result = GateResult(
            gate=Gate.SPEED,
            key=known.key if known else key,
            kernel=known.kernel if known else kernel,
            case=known.case if known else case,
            arch=known.arch if known else "",
            gpu=known.gpu if known else "",
            verdict=Verdict.NOT_MEASURED,
            reason=Reason.NOT_TIMED,
            detail=str(lost.longrepr),
        )
        teardown = lost_test(lost.nodeid, "")
        teardown.when, teardown.outcome, teardown.longrepr = "teardown", "passed", None
        teardown.user_properties = [(PROPERTY, result.to_dict())]
        if hasattr(lost, "node"):  # the worker, by which JUnit files know whose report it is
            teardown.node = lost.node  # type: ignore[attr-defined]
        hook.pytest_runtest_logreport(report=teardown)
        self._results.blame(result)


def lost_test(nodeid: str, message: str) -> pytest.TestReport:
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
