"""The summary of a run for a CI job: first failures, then what is undecided, better or not measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pytest_cutile.quantities import format_change, format_time
from pytest_cutile.reports.cases import (
    CaseRow,
    RunOutcome,
    cases_of,
    figure_titles,
    gate_position,
    interpreted_line,
    not_measured,
    verdict_of,
)
from pytest_cutile.reports.document import (
    Block,
    Code,
    Column,
    Document,
    Facts,
    Paragraph,
    Row,
    Section,
    Table,
    printable,
    shorten,
)
from pytest_cutile.reports.history import histograms
from pytest_cutile.results import CorrectResult, Result, SpeedResult
from pytest_cutile.statistics import median
from pytest_cutile.verdicts import UNDECIDED, Verdict

UNFOLDED_ROWS = 20
"""Rows up to which a table of what did not fail is not folded."""
_PLOTTED = 5
"""Slower cases whose samples are shown, and kernels whose errors are."""
_MAP_LINES = 16
"""Lines of a map of errors."""
_NAME_WIDTH = 60
"""Characters of a kernel's or case's name that are shown."""
_NAMES = tuple(Column(title, verbatim=True) for title in ("kernel", "case", "arch"))
_SECTIONS = {
    "Slower or worse, but accepted or expected": ("accepted", {Verdict.REGRESSION}),
    "Inconclusive, or not compared": ("undecided", UNDECIDED - {Verdict.NOT_MEASURED}),
    "Improved": ("improved", {Verdict.IMPROVEMENT}),
}
"""What did not fail and is worth a section: title, word in the heading, verdicts."""


def job_summary(run: RunOutcome) -> Document:
    cases = cases_of(run.results)
    failing = {_identity(result) for result in run.failed}
    counts: Counter[str] = Counter()
    failures: list[Result] = []
    sections: dict[str, list[Result]] = {title: [] for title in _SECTIONS}
    others: list[CaseRow] = []
    for case in cases:
        results = case.results
        wrong = [result for result in results if _identity(result) in failing]
        if wrong:
            counts["failed"] += 1
            # That a case which does not compile was not measured either is no news.
            failures += [result for result in wrong if result.verdict not in UNDECIDED] or wrong
            continue
        is_listed = False
        for title, (word, verdicts) in _SECTIONS.items():
            listed = [result for result in results if result.verdict in verdicts]
            sections[title] += listed
            counts[word] += bool(listed)
            is_listed = is_listed or bool(listed)
        counts["not fully measured"] += any(result.verdict == Verdict.NOT_MEASURED for result in results)
        if not is_listed:
            others.append(case)
    shown = [result for case in cases for result in case.results]
    blocks = _preamble(run)
    if failures:
        blocks.append(Section("Failed", [_result_table(failures)]))
        if samples := "\n\n".join(_samples(failures)):
            blocks.append(Section("Samples of the slowest cases", [Code(samples)]))
        if maps := "\n\n".join(_error_maps(failures)):
            blocks.append(Section("Where errors are", [Code(maps)]))
    for title, listed in sections.items():
        if listed:
            blocks.append(_foldable(title, _result_table(listed), folded=len(listed) > UNFOLDED_ROWS))
    if interpreted := interpreted_line(shown):
        blocks.append(Paragraph(f"{interpreted}."))
    if missing := not_measured(shown):
        facts = Facts([(gates, [why]) for gates, why in missing])
        blocks.append(Section("Not measured", [facts]))
    if others:
        blocks.append(_foldable("All other cases", _case_table(others), folded=True))
    return Document(f"cuTile kernels: {_heading(len(cases), counts)}", blocks)


def _preamble(run: RunOutcome) -> list[Block]:
    blocks: list[Block] = []
    if run.unfinished:
        lead = "The run was stopped before its end."
        blocks.append(Paragraph("What is not listed here was not run.", lead=lead))
    if run.other_failures:
        lead = f"Failures that are no verdict on a kernel: {run.other_failures}."
        blocks.append(Paragraph("The log shows them.", lead=lead))
    if run.left_out:
        same = f"{len(run.left_out)} tests of cases that compile to what they did"
        blocks.append(Paragraph(f"Left out by `--changed-only`: {same}."))
    return blocks


def _heading(cases: int, counts: Counter[str]) -> str:
    if not cases:
        return "no case was run"
    words = [*(word for word, _ in _SECTIONS.values()), "not fully measured"]
    parts = [f"{counts['failed'] or 'none'} of {cases} cases failed"]
    return ", ".join([*parts, *(f"{counts[word]} {word}" for word in words if counts[word])])


def _foldable(title: str, table: Table, *, folded: bool) -> Section:
    return Section(f"{title}: {len(table.rows)}" if folded else title, [table], folded=folded)


def _identity(result: Result) -> tuple[str, ...]:
    return result.kernel, result.case, result.arch, result.gpu, result.key, result.gate


def _case_table(cases: Sequence[CaseRow]) -> Table:
    titles = figure_titles(case.figures for case in cases)
    rows = []
    for case in cases:
        figures = [case.figures.get(title, "") for title in titles]
        rows.append(Row((_short(case.kernel), _short(case.name), case.arch, *figures, case.verdict)))
    return Table([*_NAMES, *_figure_columns(titles), Column("verdict")], rows)


def _result_table(results: Sequence[Result]) -> Table:
    """Return a row for each result, by gate, the largest change first."""

    def rank(result: Result) -> tuple[int, float, tuple[str, ...]]:
        return gate_position(result), -(result.change or 0), _identity(result)

    titles = figure_titles(result.figures for result in results)
    rows = []
    for result in sorted(results, key=rank):
        verdict = verdict_of(result)
        why = result.detail.partition("\n")[0] or (
            "" if (result.reason or "") in verdict else f"{result.reason}"
        )
        names = (_short(result.kernel), _short(result.case), result.arch)
        figures = [result.figures.get(title, "") for title in titles]
        rows.append(Row((*names, result.gpu, verdict, *figures, why)))
    columns = [*_NAMES, Column("GPU", verbatim=True), Column("verdict"), *_figure_columns(titles)]
    return Table([*columns, Column("why", verbatim=True)], rows)


def _samples(failures: Iterable[Result]) -> Iterator[str]:
    """Yield how samples of the slowest cases are distributed, beside those of the baseline kernel."""
    slower = [one for one in failures if isinstance(one, SpeedResult) and one.change and one.measured]
    for result in sorted(slower, key=lambda one: -(one.change or 0.0))[:_PLOTTED]:
        blocks = result.measured.blocks if result.measured else ()
        shown = [block for block in blocks if block.regime == blocks[0].regime]
        times = {
            "baseline": [us for block in shown for us in block.baseline_us if math.isfinite(us)],
            "current": [us for block in shown for us in block.current_us if math.isfinite(us)],
        }
        if all(times.values()):
            # On one line: a name may hold one that would end the block.
            title = printable(f"{_short(result.kernel)} {_short(result.case)}, {result.arch}")
            rows = zip(times, histograms(list(times.values())), strict=True)
            lines = (f"{name:8}  {bars}  {format_time(median(times[name]))}" for name, bars in rows)
            yield "\n".join([f"{title}: {format_change(result.change or 0.0)}", *lines])


def _error_maps(failures: Iterable[Result]) -> Iterator[str]:
    """Yield where the errors of wrong results are, each kernel once."""
    wrong = {
        one.kernel: (one, one.errors) for one in failures if isinstance(one, CorrectResult) and one.errors
    }
    for result, whole in [*wrong.values()][:_PLOTTED]:
        errors = whole.in_lines(_MAP_LINES)
        title = printable(f"{_short(result.kernel)} {_short(result.case)}, {result.arch}: {errors.caption}")
        marks = [f"{place} from {text}" for place, text in enumerate(errors.scale)]
        yield "\n".join([title, *map(printable, errors.rows), printable(", ".join(marks))])


def _figure_columns(titles: Iterable[str]) -> list[Column]:
    return [Column(title, right=True) for title in titles]


def _short(name: str) -> str:
    return shorten(name, _NAME_WIDTH)
