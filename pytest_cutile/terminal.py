"""What the terminal shows: a progress line while something takes long, a word per test, the summary."""

from __future__ import annotations

import linecache
import time
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cutile.core.results import INTERPRETER, Gate
from pytest_cutile.core.settings import Settings
from pytest_cutile.core.verdicts import Verdict
from pytest_cutile.reports import Results, results_of, shorten

if TYPE_CHECKING:
    from pytest_cutile.core.report import SummaryLine


SHOWN_WHOLE = 3
"""Wrong cases of a kernel that are printed whole: one bug fails dozens, and they say the same."""
WRONG = (Gate.CORRECT, "fail")


class Progress:
    """One line that is rewritten in place on a terminal; in a log, a line now and then."""

    LOG_SECONDS = 20.0
    """Time between lines in a log."""
    TERMINAL_SECONDS = 0.1
    """Least time between rewrites on a terminal."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager
        self._start = self._last = time.monotonic()
        self._shown = False

    def __call__(self, text: str) -> None:
        """Show `text`, unless the run has just begun or something was shown a moment ago."""
        reporter = self._reporter
        if reporter is None or reporter.verbosity < 0:
            return
        now = time.monotonic()
        pause = self.TERMINAL_SECONDS if reporter.isatty else self.LOG_SECONDS
        if now - self._start < 1 or now - self._last < pause:
            return
        self._last = now
        with self._uncaptured():
            if not reporter.isatty:
                reporter.write_line(f"cutile: {text}")
                return
            if not self._shown:
                reporter.ensure_newline()  # the line with the dots stays
            self._shown = True
            reporter.rewrite(f"cutile: {text}"[:99], erase=True)

    def _uncaptured(self) -> AbstractContextManager[None]:
        """Suspend pytest's capture: a test is running, and what it prints is captured."""
        capture: Any = self._plugins.get_plugin("capturemanager")
        return capture.global_and_fixture_disabled() if capture is not None else nullcontext()

    @property
    def _reporter(self) -> Any:
        return self._plugins.get_plugin("terminalreporter")  # not there yet when this object is made

    def clear(self) -> None:
        """Remove the line, so that pytest goes on with a clean one."""
        if self._shown:
            self._shown = False
            with self._uncaptured():
                self._reporter.rewrite("", erase=True)


class TerminalSummary:
    """Says a test's verdict as it ends, and prints the results of all of them at the end."""

    def __init__(self, settings: Settings, results: Results) -> None:
        self._settings = settings
        self._results = results

    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        """Show figures and verdict with -v."""
        if not isinstance(report, pytest.TestReport) or report.when != "call":
            return None
        for result in results_of(report):
            if hasattr(report, "wasxfail"):
                return None
            if result.verdict == Verdict.NOT_MEASURED and report.skipped:
                return "skipped", "s", (f"NOT MEASURED ({result.reason})", {"yellow": True})
            if result.on == INTERPRETER and report.passed:
                return "passed", ".", ("PASSED on the CPU, interpreted", {"green": True})
            if result.gate == Gate.SPEED and report.passed and result.median_us is not None:
                from pytest_cutile.core.report import speed_word

                return "passed", ".", (f"PASSED {speed_word(result)}", {"green": True})
        return None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Shorten what is printed of a kernel of which many cases are wrong, before pytest prints it.

        Files (JUnit, HTML) have got each report whole, when its test ended.
        """
        reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or reporter.verbosity > 0:
            return
        wrong: Counter[str] = Counter()
        for report in reporter.stats.get("failed", []):
            results = results_of(report) if isinstance(report, pytest.TestReport) else []
            for kernel in {each.kernel for each in results if (each.gate, each.verdict) == WRONG}:
                wrong[kernel] += 1
                if wrong[kernel] > SHOWN_WHOLE:
                    shorten(
                        report, f"(shortened: case {wrong[kernel]} of {kernel} that is wrong; -v shows all)"
                    )

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the summary table."""
        if self._settings.kernel_report:
            self._print_kernel_report(terminalreporter)
        if not self._results.all:
            return
        from pytest_cutile.core.report import summary

        self._print_strength(terminalreporter)
        lines = summary(self._results.all, verbose=terminalreporter.verbosity > 0)
        terminalreporter.section("cuTile kernels")
        for line in lines:
            terminalreporter.write_line(line.text, **_markup(line))
        for text in self._results.remarks:
            terminalreporter.write_line(text, yellow=True)

    def _print_strength(self, terminalreporter: Any) -> None:
        from pytest_cutile.core.strength_report import strength_report

        lines = strength_report(self._results.all, verbose=terminalreporter.verbosity > 0)
        if lines:
            terminalreporter.section("how strong the checks are")
        for line in lines:
            terminalreporter.write_line(line.text, **_markup(line))

    def _print_kernel_report(self, terminalreporter: Any) -> None:
        from pytest_cutile.core.static_report import kernel_report

        def source_line(file: str, line: int) -> str:
            return linecache.getline(str(self._settings.rootpath / file), line)

        terminalreporter.section("what the kernels were compiled to")
        for text in kernel_report(self._results.all, source_line=source_line) or [
            "nothing: no test of the gate static compiled a kernel (is it deselected?)"
        ]:
            terminalreporter.write_line(text)


def _markup(line: SummaryLine) -> dict[str, bool]:
    if line.good is None:
        return {}
    return {"green": True} if line.good else {"red": True}
