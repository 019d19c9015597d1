"""What the terminal shows: a word per test, and the summary."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cutile.pytest_parts.reporting import Results, results_of, shorten
from pytest_cutile.settings import Settings
from pytest_cutile.verdicts import Verdict

if TYPE_CHECKING:
    from pytest_cutile.reports.document import Document

SHOWN_WHOLE = 3
"""Wrong cases of a kernel that are printed whole: one bug fails dozens, and they say the same."""


class TerminalSummary:
    """Says a test's verdict as it ends, and prints the results of all of them at the end."""

    def __init__(self, settings: Settings, results: Results) -> None:
        self._settings = settings
        self._results = results

    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        if not isinstance(report, pytest.TestReport) or report.when != "call" or hasattr(report, "wasxfail"):
            return None
        results = results_of(report)
        if not results:
            return None
        from pytest_cutile.reports.document import printable

        for result in results:
            if report.skipped and result.verdict == Verdict.NOT_MEASURED:
                return "skipped", "s", (f"NOT MEASURED ({result.reason})", {"yellow": True})
            if report.passed and result.shown_pass:
                return "passed", ".", (f"PASSED {printable(result.shown_pass)}", {"green": True})
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
            failed = [result for result in results if result.verdict == Verdict.FAIL]
            for kernel in {result.kernel for result in failed if result.repetitive}:
                wrong[kernel] += 1
                if wrong[kernel] > SHOWN_WHOLE:
                    shorten(
                        report, f"(shortened: case {wrong[kernel]} of {kernel} that is wrong; -v shows all)"
                    )

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        results, verbose = self._results.all, terminalreporter.verbosity > 0
        if self._settings.kernel_report:
            from pytest_cutile.reports.compiled import compiled_report

            _print(terminalreporter, compiled_report(results))
        if not results:
            return
        from pytest_cutile.reports.mutation import mutation_report
        from pytest_cutile.reports.summary import summary

        _print(terminalreporter, mutation_report(results, verbose=verbose))
        _print(terminalreporter, summary(self._results.run(), verbose=verbose))


def _print(terminalreporter: Any, document: Document) -> None:
    """Print a document as a section of the terminal summary; nothing if it is empty."""
    from pytest_cutile.reports.document import Tone
    from pytest_cutile.reports.text import render_lines

    colours = {Tone.GOOD: "green", Tone.BAD: "red", Tone.WARNING: "yellow"}
    lines = render_lines(document.blocks)
    if lines:
        terminalreporter.section(document.title)
    for line in lines:
        terminalreporter.write_line(line.text, **{colours[line.tone]: True} if line.tone in colours else {})
