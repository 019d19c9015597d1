"""How results travel: along with the reports of tests, from xdist's workers too, and into JUnit files."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_cutile.verdicts import FAILED, UNDECIDED

if TYPE_CHECKING:
    from pytest_cutile.reports.cases import FailedTest, RunOutcome
    from pytest_cutile.results import Result


PROPERTY = "cutile"
"""Name of the report property that carries a `Result`."""


def results_of(report: pytest.TestReport) -> list[Result]:
    carried = [value for name, value in report.user_properties if name == PROPERTY]
    if not carried:
        return []
    from pytest_cutile.results import Result

    return [Result.from_builtins(value) for value in carried]  # type: ignore[arg-type]


def _failed_test(report: pytest.TestReport, blamed: Sequence[Result]) -> FailedTest:
    """Return a failure as it stands now: the terminal shortens it when the run ends."""
    from pytest_cutile.reports.cases import FailedTest

    crash = getattr(report.longrepr, "reprcrash", None)
    text = report.longreprtext
    commands = re.findall(r"^ +(pytest (?:.*\\\n)*.*)$", text, re.MULTILINE)
    return FailedTest(
        nodeid=report.nodeid,
        headline=(crash.message if crash is not None else text).partition("\n")[0],
        place="" if crash is None else f"{crash.path}:{crash.lineno}",
        text=text,
        # The first line: of a regression the others accept it.
        command=commands[-1].partition(" \\\n")[0] if commands else shlex.join(["pytest", report.nodeid]),
        results=tuple(blamed),
    )


def blamed(results: Sequence[Result], *, strict: bool) -> list[Result]:
    """Return the results that failed their test: what is undecided if nothing else did, in a strict run."""
    wrong = [result for result in results if result.verdict in FAILED]
    return wrong or [result for result in results if strict and result.verdict in UNDECIDED]


class Results:
    """The results of all tests of the run, and which of them failed their tests."""

    def __init__(self, *, xdist_worker: bool, strict: bool) -> None:
        self.all: list[Result] = []
        self.failed: list[Result] = []
        self.other_failures = 0
        self.failed_tests: list[FailedTest] = []
        self.seconds: dict[str, float] = defaultdict(float)
        """What the tests of each kernel took."""
        self.left_out: list[str] = []
        """The case of each test that was left out because its code is the baseline's."""
        self.remarks: list[str] = []
        """Lines about baselines without a case, and about what the session did to all cases."""
        self._xdist_worker = xdist_worker
        self._strict = strict

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the results along, and leave their figures to those that write the report to a file."""
        results = results_of(report)
        for kernel in {result.kernel for result in results}:
            self.seconds[kernel] += report.duration
        if report.failed:
            causes = blamed(results, strict=self._strict)
            self.failed += causes
            self.other_failures += not causes
            if results:
                self.failed_tests.append(_failed_test(report, causes))
        if report.when != "teardown":  # reports of later phases repeat the results of earlier ones
            return
        self.all += results
        if results and not self._xdist_worker:  # a worker's reports go on to the controller
            report.user_properties = [
                *(pair for pair in report.user_properties if pair[0] != PROPERTY),
                *(pair for result in results for pair in result.to_properties()),
            ]

    def run(self, *, unfinished: bool = False) -> RunOutcome:
        from pytest_cutile.reports.cases import RunOutcome

        return RunOutcome(
            results=tuple(self.all),
            failed=tuple(self.failed),
            other_failures=self.other_failures,
            left_out=tuple(self.left_out),
            unfinished=unfinished,
            seconds=dict(self.seconds),
            remarks=tuple(self.remarks),
            failed_tests=tuple(self.failed_tests),
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.other_failures += report.failed

    def blame(self, result: Result) -> None:
        """Name the result behind a failure that was counted as none of a kernel."""
        self.failed.append(result)
        self.other_failures -= 1
