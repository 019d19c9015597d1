"""What the terminal shows: a word per test, and the summary."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_cutile.pytest_parts.failure import shorten
from pytest_cutile.pytest_parts.reporting import Results, blamed, results_of
from pytest_cutile.words.settings import Settings
from pytest_cutile.words.verdicts import FAILED, Verdict

if TYPE_CHECKING:
    from pytest_cutile.words.document import Document
    from pytest_cutile.words.results import Result

SHOWN_LINES = 30
"""Lines of a failure, without its headline."""
SHOWN_CASES = 4
"""Names of cases that share a root cause."""
SHOWN_SYMPTOMS = 3
"""Other first lines of failures that share a root cause, or seem to."""
_ANNOTATES = "pytest_github_actions_annotate_failures"
"""A plugin that annotates, too, with options of its own."""


class Failure(NamedTuple):
    """The report of a failed test, and its first result that failed."""

    report: pytest.TestReport
    result: Result | None


class TerminalSummary:
    """Says a test's verdict as it ends, and prints the results of all of them at the end."""

    def __init__(self, settings: Settings, results: Results) -> None:
        self._settings = settings
        self._results = results
        self._is_over = False

    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        if not isinstance(report, pytest.TestReport) or report.when != "call" or hasattr(report, "wasxfail"):
            return None
        if not (report.passed or report.failed or report.skipped):  # to be run again
            return None
        results = results_of(report)
        if not results:
            return None
        from pytest_cutile.words.document import printable

        is_right = any(result.gate == "correct" and result.verdict is Verdict.PASS for result in results)
        for result in results:
            if report.skipped and result.verdict == Verdict.NOT_MEASURED:
                word = f"{'RIGHT, ' if is_right else ''}NOT MEASURED ({result.reason})"
                return "skipped", "s", (word, {"yellow": True})
        telling = [result for result in results if report.passed or result.verdict in FAILED]
        texts = (", ".join(filter(None, (result.outcome, result.tuning))) for result in telling)
        shown = next(filter(None, map(printable, texts)), "")
        # The short summary has the words that tools look for.
        if self._is_over or report.skipped or not shown:
            return None
        letter, colour = (".", "green") if report.passed else ("F", "red")
        return report.outcome, letter, (f"{report.outcome.upper()} ({shown})", {colour: True})

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Report each root cause once and in few lines, before pytest prints the failures; -vv prints all."""
        self._is_over = True
        reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or reporter.verbosity > 1:
            return
        failures: dict[tuple[str, ...], list[Failure]] = defaultdict(list)
        for report in _failed(reporter, pytest.TestReport):
            results = blamed(results_of(report), strict=self._settings.strict)
            cause = results[0].cause if results else (report.nodeid,)
            failures[cause].append(Failure(report, results[0] if results else None))
        for alike in failures.values():
            self._report_once(alike, show_all=reporter.verbosity > 0)

    def _report_once(self, alike: Sequence[Failure], *, show_all: bool) -> None:
        """Shorten failures of one root cause; hide all but the one that tells most, unless `show_all`."""
        advice = {getattr(result, "advice", "") for _, result in alike}
        refuted = advice - {""} if len(advice) > 1 else set()
        most = max(alike, key=lambda failure: failure.result.rank if failure.result else ())
        for failure in alike:
            more = [] if show_all or failure is not most else [*_cases(most, alike, self._results.all)]
            shorten(failure.report, SHOWN_LINES, more, without=refuted)
            if failure is not most and not show_all:
                # The mark of a failure that --pdb has shown: pytest leaves it to the short summary.
                failure.report._pdbshown = True  # type: ignore[attr-defined]  # noqa: SLF001

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        plugins = terminalreporter.config.pluginmanager
        if os.environ.get("GITHUB_ACTIONS") == "true" and not plugins.hasplugin(_ANNOTATES):
            kinds = pytest.TestReport | pytest.CollectReport
            for report in _failed(terminalreporter, kinds):
                terminalreporter.write_line(_annotation(report, terminalreporter.config))
        results, verbose = self._results.all, terminalreporter.verbosity > 0
        if self._settings.kernel_report:
            from pytest_cutile.reports.compiled import compiled_document

            _print(terminalreporter, compiled_document(results))
        if not results:
            return
        from pytest_cutile.reports.mutation import mutation_document
        from pytest_cutile.reports.terminal_summary import terminal_summary

        _print(terminalreporter, mutation_document(results, verbose=verbose))
        _print(terminalreporter, terminal_summary(self._results.run(), verbose=verbose))


def _failed(terminalreporter: Any, kinds: Any) -> list[Any]:
    reports = [report for word in ("failed", "error") for report in terminalreporter.stats.get(word, ())]
    return [report for report in reports if isinstance(report, kinds)]


def _annotation(report: Any, config: pytest.Config) -> str:
    """Return the workflow command by which GitHub shows a failure at its line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    file, line, what = report.location
    path, line = config.rootpath / file, (line or 0) + 1
    if crash is not None:
        path, line = config.invocation_params.dir / crash.path, crash.lineno
        what = f"{what}\n{crash.message}"
    shown = os.path.relpath(path, os.environ.get("GITHUB_WORKSPACE") or config.invocation_params.dir)
    shown = shown.replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
    message = what.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::error file={shown},line={line}::{message}"


def _print(terminalreporter: Any, document: Document) -> None:
    """Print a document as a section of the terminal summary; nothing if it is empty."""
    from pytest_cutile.words.document import Tone
    from pytest_cutile.words.text import WIDTH, render_lines

    colours = {Tone.GOOD: "green", Tone.BAD: "red", Tone.WARNING: "yellow"}
    width = shutil.get_terminal_size().columns if terminalreporter.isatty else WIDTH
    lines = render_lines(document.blocks, width=width)
    if lines:
        terminalreporter.section(document.title)
    for line in lines:
        terminalreporter.write_line(line.text, **{colours[line.tone]: True} if line.tone in colours else {})


def _cases(shown: Failure, alike: Sequence[Failure], results: Sequence[Result]) -> Iterator[str]:
    """Yield which cases fail as `shown` does, which fail otherwise, and which are right."""
    from pytest_cutile.words.quantities import abridged, counted

    first = shown.result
    if first is None:
        return
    archs = len({result.arch for _, result in alike if result is not None}) > 1
    others: dict[str, list[Result]] = defaultdict(list)
    for _, result in alike:
        if result is not None and result is not first:
            others[result.symptom].append(result)

    def names(of: Sequence[Result]) -> str:
        cases = [f"{result.case} {result.arch}" if archs else result.case for result in of]
        return abridged(cases, SHOWN_CASES)

    if same := others.pop(first.symptom, []):
        yield f"  the same in {names(same)} (-v shows each)"
    by_symptom = [*others.values()]
    for failed in by_symptom[:SHOWN_SYMPTOMS]:
        yield f"  in {names(failed)}: {failed[0].detail}"
    if more := sum(map(len, by_symptom[SHOWN_SYMPTOMS:])):
        yield f"  and {counted(more, 'other failure')} (-v shows each)"
    of_kernel = [result for result in results if result.subject == first.subject]
    right = {result.case for result in of_kernel if result.verdict is Verdict.PASS}
    right -= {result.case for result in of_kernel if result.verdict in FAILED}
    if right:
        yield f"  passes in {abridged(sorted(right), SHOWN_CASES)}"
