"""Deferred reports: a test with a pending case is reported when fresh processes have decided it."""

from __future__ import annotations

import functools
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

# What pytest's own protocol calls, and what plugins that run tests again have called for years.
from _pytest.runner import CallInfo, runtestprotocol

from pytest_cutile.pytest_parts.failure import CALLS
from pytest_cutile.pytest_parts.reporting import PROPERTY, following
from pytest_cutile.pytest_parts.run import PytestRun
from pytest_cutile.pytest_parts.workers import WorkerEnding

if TYPE_CHECKING:
    from pytest_cutile.gates.speed.pending import PendingCase
    from pytest_cutile.gates.speed.suite import SpeedSuite
    from pytest_cutile.pytest_parts.fresh_process import Server
    from pytest_cutile.pytest_parts.meeting import Worker


@dataclass
class _DeferredTest:
    """A test that ran, and whose reports wait."""

    item: pytest.Item
    reports: list[pytest.TestReport]
    pending: list[PendingCase]
    """Its cases that were not decided when it ran."""

    @property
    def failed(self) -> bool:
        return any(map(_failed_itself, self.reports))

    @property
    def call(self) -> pytest.TestReport | None:
        return next((report for report in self.reports if report.when == "call"), None)

    @property
    def report_to_fail(self) -> pytest.TestReport | None:
        """The report that a decision can turn into a failure: of the call, else of the last phase.

        None if the test has failed anyway, by itself or as its xfail marker expects.
        """
        report = self.call or (None if self.failed else self.reports[-1])
        if report is None or _failed_itself(report) or (report.skipped and hasattr(report, "wasxfail")):
            return None
        return report


class DeferredReports:
    """Runs the tests that measure speed, and holds back all reports of those with a pending case."""

    def __init__(self, run: PytestRun) -> None:
        self._run = run
        self._deferred: list[_DeferredTest] = []
        self._measuring: Server | Worker | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a test that measures speed; report it unless a case is pending."""
        if not measures(item):
            return None
        from pytest_cutile.gates.speed.gate import suite_of

        suite = suite_of(self._run.gates)
        known = len(suite.pending)
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        deferred = _DeferredTest(item, reports, suite.pending[known:])
        if deferred.pending:
            self._deferred.append(deferred)
            if isinstance(self._run.ending, WorkerEnding):
                self._run.ending.defer([test.item.nodeid for test in self._deferred])
            self._say_deferred(item.config)
            self._get_ready(item.session)
        else:
            self._release(deferred)
        return True

    def _say_deferred(self, config: pytest.Config) -> None:
        """With -v, say at the test's name why its outcome comes later."""
        reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and reporter.verbosity > 0:
            self._run.progress.clear()
            reporter.write("PENDING (to be measured again) ", yellow=True)

    def _get_ready(self, session: pytest.Session) -> None:
        """Let the fresh processes' server start while the other tests run."""
        if self._measuring is None:
            from pytest_cutile.pytest_parts.meeting import measuring_for

            nodeids = [item.nodeid for item in session.items if measures(item)]
            self._measuring = measuring_for(session.config, self._run.progress, nodeids)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Decide what is pending when all tests have run, or were stopped, and report it."""
        stopped = True
        try:
            result = yield
            stopped = bool(session.shouldfail or session.shouldstop)
            return result
        finally:
            if self._run.has_gates:
                self._decide(stopped=stopped)

    def _decide(self, *, stopped: bool) -> None:
        """Decide all pending cases, or give them up if the run was `stopped`; report their tests."""
        from pytest_cutile.gates.speed.gate import suite_of
        from pytest_cutile.pytest_parts.fresh_process import measure_again

        suite, measuring = suite_of(self._run.gates), self._measuring
        for deferred in self._deferred:
            for case in deferred.pending:
                case.test_failed = deferred.failed
        try:
            if measuring is not None and not stopped:
                suite.settle(
                    functools.partial(measure_again, measuring.ask),
                    comparisons_of_run=measuring.comparisons_of_run,
                    after_look=lambda: self._report_decided(suite),
                )
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing pending may pass
            suite.fail(error)
        finally:
            if measuring is not None:
                measuring.close()
            suite.give_up()
            self._report_decided(suite)

    def _report_decided(self, suite: SpeedSuite) -> None:
        """Report the tests that have no pending case any more."""
        deferred, self._deferred = self._deferred, []
        for test in deferred:
            if any(case in suite.pending for case in test.pending):
                self._deferred.append(test)
            else:
                self._conclude(test)
                self._release(test)

    def _conclude(self, deferred: _DeferredTest) -> None:
        """Put the results of a test's cases into its reports, and fail the test if a case fails it."""
        item, cases = deferred.item, deferred.pending
        known = len(item.user_properties)
        item.user_properties += [(PROPERTY, case.result.to_builtins()) for case in cases]
        failures = {case.case.key: case.so_far.failure for case in cases if case.so_far.failure is not None}
        report = deferred.report_to_fail
        if report is not None and failures:
            deferred.reports[deferred.reports.index(report)] = self._as_failed(item, report, failures)
        outcome = deferred.reports[-1] if deferred.call is None else deferred.call
        item.user_properties[known:] = following(outcome, item.user_properties[known:])
        for report in deferred.reports:
            report.user_properties = list(item.user_properties)

    @staticmethod
    def _as_failed(
        item: pytest.Item, passed: pytest.TestReport, failures: Mapping[str, str]
    ) -> pytest.TestReport:
        """Return the report that pytest would have made if the phase of `passed` had raised the failures.

        pytest's hook makes the report, so that xfail markers and other plugins have their effect. `failures`
        are messages by the keys of cases. The key of a test function's case is its id, with "#name" for a
        named call of `perf`.
        """
        from pytest_cutile.gates.outcome import GateFailed

        def fail() -> None:
            failure = GateFailed("\n\n".join(failures.values()), pytrace=False)
            call = next(iter(failures)).removeprefix(item.nodeid).removeprefix("#")
            failure.place = item.stash.get(CALLS, {}).get(call)
            raise failure

        if getattr(item, "funcargs", {}) is None:  # dropped at teardown, but plugins look for theirs
            item.funcargs = {}  # type: ignore[attr-defined]
        call = CallInfo.from_call(fail, when=passed.when)
        report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
        report.duration, report.sections = passed.duration, passed.sections
        return report

    def _release(self, deferred: _DeferredTest) -> None:
        item = deferred.item
        worker = _xdist_worker(item.config)
        if worker is not None:  # it checks that what is reported is what it runs
            worker.item_index = item.session.items.index(item)
        for report in deferred.reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _failed_itself(report: pytest.TestReport) -> bool:
    """Say whether a test failed, and not by passing where it was expected to fail, strictly so."""
    return report.failed and not str(report.longrepr).startswith("[XPASS(strict)]")


def measures(item: pytest.Item) -> bool:
    """Say whether a test may add a case to the `SpeedSuite`: a gate that measures does, and `perf`."""
    gate = getattr(item, "gate", None)
    return (gate is not None and gate.measures) or "perf" in getattr(item, "fixturenames", ())


def _xdist_worker(config: pytest.Config) -> Any:
    """Return the object that runs tests for pytest-xdist in a worker process; None elsewhere."""
    if not hasattr(config, "workerinput"):
        return None
    plugins = config.pluginmanager.get_plugins()
    return next((plugin for plugin in plugins if hasattr(plugin, "item_index")), None)
