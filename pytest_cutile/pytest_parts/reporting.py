"""How results travel: along with the reports of tests, from xdist's workers too, and into JUnit files."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest._code.code import ReprEntryNative, ReprExceptionInfo, ReprFileLocation, ReprTraceback

from pytest_cutile.verdicts import UNDECIDED, Verdict

if TYPE_CHECKING:
    from pytest_cutile.reports.cases import RunOutcome
    from pytest_cutile.results import Result

KEPT_FIRST, KEPT_LAST = slice(0, 3), slice(-2, None)
"""Lines of a message that `shorten` leaves: what is wrong with how many elements, and how to repeat it."""
PROPERTY = "cutile"
"""Name of the report property that carries a `Result`."""


def results_of(report: pytest.TestReport) -> list[Result]:
    """Return the gate results that a test's report carries."""
    carried = [value for name, value in report.user_properties if name == PROPERTY]
    if not carried:
        return []
    from pytest_cutile.results import Result

    return [Result.from_builtins(value) for value in carried]  # type: ignore[arg-type]


def gate_message(text: str, path: Path) -> ReprExceptionInfo:
    """Return a gate's own message: whole where failures are shown, its first line in pytest's short summary.

    There, pytest prints a plain text whole in CI and with -vv: a second time. In this form it is also sent
    between the processes of pytest-xdist.
    """
    from pytest_cutile.reports.document import printable

    shown = [printable(line) for line in text.splitlines()]
    lines = ReprEntryNative([f"{line}\n" for line in shown])
    return ReprExceptionInfo(
        reprcrash=ReprFileLocation(path=str(path), lineno=0, message=shown[0] if shown else ""),
        reprtraceback=ReprTraceback([lines], extraline=None, style="value"),
    )


def shorten(report: pytest.TestReport, why: str) -> None:
    """Leave of a gate's message its first lines and the command to repeat it; other messages stay whole."""
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", [])
    if len(entries) != 1 or not isinstance(entries[0], ReprEntryNative):
        return
    lines = entries[0].lines
    kept = [*lines[KEPT_FIRST], f"  {why}\n", *lines[KEPT_LAST]]
    if len(kept) < len(lines):
        entries[0].lines = kept


def attach_picture(config: pytest.Config, report: pytest.TestReport, svg: str) -> None:
    """Show an SVG document with a test's report in the page of pytest-html, if that is installed."""
    if not config.pluginmanager.hasplugin("html"):
        return
    try:
        from pytest_html import extras
    except ImportError:  # another plugin of that name
        return
    image = extras.svg(base64.b64encode(svg.encode()).decode(), name="where the errors are")
    report.extras = [*getattr(report, "extras", []), image]  # type: ignore[attr-defined]


class Results:
    """The results of all tests of the run, and which of them failed their tests."""

    def __init__(self, *, xdist_worker: bool) -> None:
        self.all: list[Result] = []
        self.failed: list[Result] = []
        self.other_failures = 0
        self.left_out = 0
        """Tests that `--changed-only` left out."""
        self.remarks: list[str] = []
        """Lines about baselines without a case, and about what the session did to all cases."""
        self._xdist_worker = xdist_worker

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the results along, and leave their figures to those that write the report to a file."""
        results = results_of(report)
        if report.failed:
            self._add_failure(results)
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
            left_out=self.left_out,
            unfinished=unfinished,
            remarks=tuple(self.remarks),
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.other_failures += report.failed

    def blame(self, result: Result) -> None:
        """Name the result behind a failure that was counted as none of a kernel."""
        self.failed.append(result)
        self.other_failures -= 1

    def _add_failure(self, results: list[Result]) -> None:
        wrong = [result for result in results if result.verdict in (Verdict.FAIL, Verdict.REGRESSION)]
        blamed = wrong or [result for result in results if result.verdict in UNDECIDED]
        self.failed += blamed
        self.other_failures += not blamed
