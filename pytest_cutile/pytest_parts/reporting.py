"""How results travel: along with the reports of tests, from xdist's workers too, and into JUnit files."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import pytest

from pytest_cutile.words.verdicts import FAILED, UNDECIDED, Reason, Verdict

if TYPE_CHECKING:
    from pytest_cutile.reports.cases import FailedTest, RunOutcome
    from pytest_cutile.words.results import Result


PROPERTY = "cutile"
"""Name of the report property that carries a `Result`."""
_SUBJECT = frozenset({"gate", "key", "kernel", "case", "arch", "gpu", "gpu_id", "inputs", "launcher"})
"""The fields of a `Result` that say what it is about."""
_RERUN = "rerun"
"""The outcome that pytest-rerunfailures gives to a failed phase of a try that another one follows."""


Properties: TypeAlias = "list[tuple[str, object]]"
"""What a test's reports carry under `user_properties`."""


def without_results(properties: Properties) -> Properties:
    return [pair for pair in properties if pair[0] != PROPERTY]


def following(report: pytest.TestReport, properties: Properties) -> Properties:
    """Return the results of one phase of a test, in agreement with pytest's outcome of the phase.

    A wrong result that did not fail its test was expected, by `pytest.raises`, and is none of the run. One
    that fails as an xfail marker expects says nothing about the kernel.
    """
    if report.failed:
        return properties
    is_xfailed = report.skipped and hasattr(report, "wasxfail")
    kept: Properties = []
    for name, value in properties:
        result: Mapping[str, object] = value if name == PROPERTY else {}  # type: ignore[assignment]
        if is_xfailed and result.get("verdict") in FAILED:
            kept.append((name, _expected(result)))
        elif result.get("verdict") != Verdict.FAIL:
            kept.append((name, value))
    return kept


def _expected(failed: Mapping[str, object]) -> dict[str, object]:
    """Return a failed result as that of a test that was expected to fail."""
    detail = "its test is expected to fail (xfail)"
    reason = {"verdict": f"{Reason.EXPECTED.verdict}", "reason": f"{Reason.EXPECTED}", "detail": detail}
    return {name: failed[name] for name in _SUBJECT & failed.keys()} | reason


def results_of(report: pytest.TestReport) -> list[Result]:
    carried = [value for name, value in report.user_properties if name == PROPERTY]
    if not carried:
        return []
    from pytest_cutile.words.results import Result

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
        self._by_test: dict[tuple[str, object], list[Result]] = {}
        """The results of the last try of each test, by its id and its worker."""
        self._rerun: set[tuple[str, object]] = set()
        """Tests of which a try was reported, but for its teardown, and another one follows."""
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
        test = report.nodeid, getattr(report, "node", None)
        results = results_of(report)
        for kernel in {result.kernel for result in results}:
            self.seconds[kernel] += report.duration
        if report.failed:
            causes = blamed(results, strict=self._strict)
            self.failed += causes
            self.other_failures += not causes
            if results:
                self.failed_tests.append(_failed_test(report, causes))
        if report.outcome == _RERUN:
            self._rerun.add(test)
        if report.when != "teardown":  # reports of later phases repeat the results of earlier ones
            return
        if test in self._rerun:
            self._rerun.remove(test)
            report.user_properties = without_results(report.user_properties)
            return
        self._by_test[test] = results
        if results and not self._xdist_worker:  # a worker's reports go on to the controller
            report.user_properties = [
                *without_results(report.user_properties),
                *(pair for result in results for pair in result.to_properties()),
            ]

    @property
    def all(self) -> list[Result]:
        return [result for results in self._by_test.values() for result in results]

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
