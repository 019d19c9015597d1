"""The summary of a run for a CI job: first failures, then what is undecided, better or not measured."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence

from pytest_cutile.reports.cases import (
    CaseRow,
    RunOutcome,
    cases_of,
    figure_cells,
    gate_position,
    interpreted_line,
    not_measured,
    verdict_of,
)
from pytest_cutile.reports.history import histograms
from pytest_cutile.words.document import (
    Code,
    Column,
    Document,
    DocumentBlock,
    Facts,
    Paragraph,
    Row,
    Section,
    Table,
    printable,
    shorten,
)
from pytest_cutile.words.quantities import counted, format_change, format_time
from pytest_cutile.words.results import CorrectResult, Result, SpeedResult
from pytest_cutile.words.statistics import median
from pytest_cutile.words.verdicts import UNDECIDED, Verdict

UNFOLDED_ROWS = 20
"""Rows up to which a table of what did not fail is not folded."""
_PLOTTED = 5
"""Slower cases whose samples are shown, and kernels whose errors are."""
_MAP_LINES = 16
"""Lines of a map of errors."""
_NAME_WIDTH = 60
"""Characters of a kernel's or case's name that are shown."""
_NAMES = tuple(Column(title, verbatim=True) for title in ("kernel", "case", "arch"))
_SECTIONS = (
    ("Slower or worse, but accepted or expected", "accepted", {Verdict.REGRESSION}),
    ("Inconclusive, or not compared", "undecided", UNDECIDED - {Verdict.NOT_MEASURED}),
    ("Improved", "improved", {Verdict.IMPROVEMENT}),
)
"""What did not fail and is worth a section: title, word in the heading, verdicts."""


def job_summary(run: RunOutcome) -> Document:
    cases = cases_of(run.results)
    if not cases:
        return Document("cuTile kernels: no case was run", _preamble(run))
    failed: list[CaseRow] = []
    others: list[CaseRow] = []
    for case in cases:
        (failed if any(map(run.has_failed, case.results)) else others).append(case)
    heading = [f"{len(failed) or 'none'} of {len(cases)} cases failed"]
    sections: list[Section] = []
    rest = others
    for title, word, verdicts in _SECTIONS:
        if count := sum(_has(verdicts, case) for case in others):
            heading.append(f"{count} {word}")
            results = [result for case in others for result in case.results if result.verdict in verdicts]
            sections.append(_foldable(title, _result_table(results), folded=len(results) > UNFOLDED_ROWS))
            rest = [case for case in rest if not _has(verdicts, case)]
    if count := sum(_has({Verdict.NOT_MEASURED}, case) for case in others):
        heading.append(f"{count} not fully measured")
    blocks = [*_preamble(run), *_failures(failed, run), *sections]
    shown = [result for case in cases for result in case.results]
    if interpreted := interpreted_line(shown):
        blocks.append(Paragraph(f"{interpreted}."))
    if missing := not_measured(shown):
        blocks.append(Section("Not measured", [Facts([(gates, [why]) for gates, why in missing])]))
    if rest:
        blocks.append(_foldable("All other cases", _case_table(rest), folded=True))
    return Document(f"cuTile kernels: {', '.join(heading)}", blocks)


def _has(verdicts: Collection[Verdict], case: CaseRow) -> bool:
    return any(result.verdict in verdicts for result in case.results)


def _preamble(run: RunOutcome) -> list[DocumentBlock]:
    blocks: list[DocumentBlock] = []
    if run.unfinished:
        lead = "The run was stopped before its end."
        blocks.append(Paragraph("What is not listed here was not run.", lead=lead))
    if run.other_failures:
        lead = f"Failures that are no verdict on a kernel: {run.other_failures}."
        blocks.append(Paragraph("The log shows them.", lead=lead))
    if run.left_out:
        tests = counted(len(run.left_out), "test")
        blocks.append(Paragraph(f"Left out: {tests} of cases that compile to the baseline's code."))
    return blocks


def _failures(cases: Iterable[CaseRow], run: RunOutcome) -> Iterator[Section]:
    failures: list[Result] = []
    for case in cases:
        wrong = [result for result in case.results if run.has_failed(result)]
        # That a case which does not compile was not measured either is no news.
        failures += [result for result in wrong if result.verdict not in UNDECIDED] or wrong
    if failures:
        yield Section("Failed", [_result_table(failures)])
    if samples := "\n\n".join(_samples(failures)):
        yield Section("Samples of the slowest cases", [Code(samples)])
    if maps := "\n\n".join(_error_maps(failures)):
        yield Section("Where errors are", [Code(maps)])


def _foldable(title: str, table: Table, *, folded: bool) -> Section:
    return Section(f"{title}: {len(table.rows)}" if folded else title, [table], folded=folded)


def _case_table(cases: Sequence[CaseRow]) -> Table:
    columns, figures = figure_cells(cases)
    rows = [
        Row((_short(case.kernel), _short(case.name), case.arch, *own, case.verdict))
        for case, own in zip(cases, figures, strict=True)
    ]
    return Table([*_NAMES, *columns, Column("verdict")], rows)


def _result_table(results: Iterable[Result]) -> Table:
    """Return a row for each result, by gate, the largest change first."""

    def rank(result: Result) -> tuple[int, float, tuple[str, ...]]:
        return gate_position(result), -(result.change or 0), result.case_id

    results = sorted(results, key=rank)
    columns, figures = figure_cells(results)
    rows = []
    for result, own in zip(results, figures, strict=True):
        verdict, reason = verdict_of(result), result.reason or ""
        why = result.detail.partition("\n")[0] or ("" if reason in verdict else f"{reason}")
        names = (_short(result.kernel), _short(result.case), result.arch)
        rows.append(Row((*names, result.gpu, verdict, *own, why)))
    gpu, why_column = (Column(title, verbatim=True) for title in ("GPU", "why"))
    return Table([*_NAMES, gpu, Column("verdict"), *columns, why_column], rows)


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
            rows = zip(times, histograms(list(times.values())), strict=True)
            lines = (f"{name:8}  {bars}  {format_time(median(times[name]))}" for name, bars in rows)
            yield "\n".join([f"{_title(result)}: {format_change(result.change or 0.0)}", *lines])


def _error_maps(failures: Iterable[Result]) -> Iterator[str]:
    """Yield where the errors of wrong results are, each kernel once."""
    wrong = {
        one.kernel: (one, one.errors) for one in failures if isinstance(one, CorrectResult) and one.errors
    }
    for result, whole in [*wrong.values()][:_PLOTTED]:
        errors = whole.in_lines(_MAP_LINES)
        scale = ", ".join(f"{place} from {text}" for place, text in enumerate(errors.scale))
        lines = [f"{_title(result)}: {errors.caption}", *errors.rows, scale]
        yield "\n".join(map(printable, lines))


def _title(result: Result) -> str:
    """Return the names of a case on one line: a name may hold one that would end a block of code."""
    return printable(f"{_short(result.kernel)} {_short(result.case)}, {result.arch}")


def _short(name: str) -> str:
    return shorten(name, _NAME_WIDTH)
