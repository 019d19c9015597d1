"""What the terminal shows: a progress line while something takes long, a word per test, the summary."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cutile.core.results import Gate, GateResult
from pytest_cutile.core.verdicts import Verdict

if TYPE_CHECKING:
    from pytest_cutile.core.report import SummaryLine

PROPERTY = "cutile"
"""Name of the report property that carries a `GateResult`."""


def results_of(report: pytest.TestReport) -> list[GateResult]:
    """Return the gate results that a test's report carries."""
    return [
        GateResult.from_dict(dict(value))  # type: ignore[call-overload]
        for name, value in report.user_properties
        if name == PROPERTY
    ]


class Progress:
    """One line that is rewritten in place on a terminal; in a log, one line at first and then rarely."""

    LOG_SECONDS = 20.0

    def __init__(self, config: pytest.Config) -> None:
        self._reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
        self._tty = sys.__stdout__ is not None and sys.__stdout__.isatty()
        self._last = 0.0
        self._start = time.monotonic()

    def __call__(self, text: str) -> None:
        """Show `text`."""
        now = time.monotonic()
        if self._reporter is None or now - self._start < 1 or self._reporter.verbosity < 0:
            return
        if self._tty:
            if now - self._last > 0.1:  # noqa: PLR2004
                self._last = now
                self._reporter.rewrite(f"cutile: {text}"[:99], erase=True)
        elif now - self._last > self.LOG_SECONDS:
            self._last = now
            self._reporter.write_line(f"cutile: {text}")

    def clear(self) -> None:
        """Remove the line, so that pytest's own output starts on a clean one."""
        if self._tty and self._last and self._reporter is not None:
            self._reporter.rewrite("", erase=True)
            self._last = 0.0


class TerminalSummary:
    """Collects the results of all tests, also of xdist workers, and prints them at the end."""

    def __init__(self) -> None:
        self._results: list[GateResult] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the results along."""
        if report.when == "call":
            self._results += results_of(report)

    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        """Show figures and verdict with -v."""
        if not isinstance(report, pytest.TestReport) or report.when != "call":
            return None
        for result in results_of(report):
            if result.verdict == Verdict.NOT_MEASURED and report.skipped:
                return "skipped", "s", (f"NOT MEASURED ({result.reason})", {"yellow": True})
            if result.gate == Gate.SPEED and report.passed and result.median_us is not None:
                from pytest_cutile.core.report import speed_word

                return "passed", ".", (f"PASSED {speed_word(result)}", {"green": True})
        return None

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the summary table."""
        if not self._results:
            return
        from pytest_cutile.core.report import summary

        lines = summary(self._results, verbose=terminalreporter.verbosity > 0)
        terminalreporter.section("cuTile kernels")
        for line in lines:
            terminalreporter.write_line(line.text, **_markup(line))


def _markup(line: SummaryLine) -> dict[str, bool]:
    if line.good is None:
        return {}
    return {"green": True} if line.good else {"red": True}
