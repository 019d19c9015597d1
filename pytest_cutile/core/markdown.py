"""The summary of a run as Markdown, for a CI job's page: failures first, the rest folded away."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from pytest_cutile.core.report import (
    figures,
    interpreted_line,
    not_measured,
    rows_of,
    shorten,
    verdict_of_row,
    verdict_word,
)
from pytest_cutile.core.results import INTERPRETER, Gate, GateResult
from pytest_cutile.core.verdicts import UNDECIDED, Verdict

LIMIT_BYTES = 256 * 1024
"""Size of the largest summary. GitHub takes 1 MiB per step, and one step may run pytest several times.

Source: https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
"""
NAME_WIDTH = 60
"""Characters of a kernel's or case's name that are shown."""
DETAIL_WIDTH = 240
"""Characters of an explanation that are shown."""
UNFOLDED_ROWS = 20
"""Rows up to which a table of what did not fail is not folded."""

_GATES = (Gate.CORRECT, Gate.COMPILE, Gate.STATIC, Gate.SPEED)
_FIGURES = ("time/launch", "rate", "limit", "change")
_NAMES = ("kernel", "case", "arch")
_RESULT_HEADER = (*_NAMES, "GPU", "verdict", *_FIGURES, "why")
_CASE_HEADER = (*_NAMES, *_FIGURES, "verdict")
_SECTIONS: dict[str, tuple[str, Collection[str]]] = {
    "Slower or worse, but accepted or expected": ("accepted", {Verdict.REGRESSION}),
    "Inconclusive, or not compared": ("undecided", UNDECIDED - {Verdict.NOT_MEASURED}),
    "Improved": ("improved", {Verdict.IMPROVEMENT}),
}
"""What did not fail and is worth a section: title, word in the heading, verdicts."""


def markdown_summary(
    results: Iterable[GateResult],
    failed: Iterable[GateResult],
    *,
    other_failures: int = 0,
    left_out: int = 0,
    unfinished: bool = False,
) -> str:
    """Return the summary of a run: what failed, what is undecided, better or not measured, and the rest.

    Args:
        results: Of all gates that ran.
        failed: Those that failed their tests. Verdicts alone do not say: a regression may be accepted,
            and under `--perf-strict` what is undecided fails.
        other_failures: Number of failures that no result explains: a fixture, a module, a lost process.
        left_out: Number of tests that `--changed-only` left out.
        unfinished: Whether the run was stopped before its end.
    """
    cases = [*rows_of(results).values()]
    failing = {_identity(result) for result in failed}
    counts = dict.fromkeys(["failed", *(word for word, _ in _SECTIONS.values()), "not fully measured"], 0)
    failures: list[GateResult] = []
    sections: dict[str, list[GateResult]] = {title: [] for title in _SECTIONS}
    others: list[tuple[str, ...]] = []
    for gates in cases:
        wrong = [result for result in gates.values() if _identity(result) in failing]
        if wrong:
            counts["failed"] += 1
            # That a case which does not compile was not measured either is no news.
            failures += [result for result in wrong if result.verdict not in UNDECIDED] or wrong
            continue
        said = False
        for title, (word, verdicts) in _SECTIONS.items():
            found = [result for result in gates.values() if result.verdict in verdicts]
            sections[title] += found
            counts[word] += bool(found)
            said = said or bool(found)
        counts["not fully measured"] += any(r.verdict == Verdict.NOT_MEASURED for r in gates.values())
        if not said:
            others.append(_case_cells(gates))

    page = _Page(LIMIT_BYTES)
    page.add(f"## cuTile kernels: {_heading(len(cases), counts)}")
    if unfinished:
        page.add("**The run was stopped before its end.** What is not listed here was not run.")
    if other_failures:
        page.add(f"**Failures that are no verdict on a kernel: {other_failures}.** The log shows them.")
    if left_out:
        page.add(f"Left out by `--changed-only`: {left_out} tests of cases that compile to what they did.")
    page.add_table("Failed", _RESULT_HEADER, [_result_cells(result) for result in _ranked(failures)])
    for title, listed in sections.items():
        rows = [_result_cells(result) for result in _ranked(listed)]
        page.add_table(title, _RESULT_HEADER, rows, folded=len(rows) > UNFOLDED_ROWS)
    if interpreted := sum(result.on == INTERPRETER for gates in cases for result in gates.values()):
        page.add(f"{interpreted_line(interpreted)}.")
    missing = not_measured(result for gates in cases for result in gates.values())
    page.add_rows("### Not measured\n", [f"- {count}: {_code(why)}" for why, count in missing.items()])
    page.add_table("All other cases", _CASE_HEADER, others, folded=True)
    return page.text


def _heading(cases: int, counts: Mapping[str, int]) -> str:
    if not cases:
        return "no case was run"
    parts = [f"{counts['failed'] or 'none'} of {cases} cases failed"]
    parts += [f"{count} {word}" for word, count in counts.items() if count and word != "failed"]
    return ", ".join(parts)


def _identity(result: GateResult) -> tuple[str, ...]:
    return result.kernel, result.case, result.arch, result.gpu, result.key, result.gate


def _ranked(results: Iterable[GateResult]) -> list[GateResult]:
    """Sort by gate, then the largest change first."""
    return sorted(results, key=lambda r: (_GATES.index(Gate(r.gate)), -(r.change or 0), *_identity(r)))


# -- cells ------------------------------------------------------------------------------------------


def _result_cells(result: GateResult) -> tuple[str, ...]:
    verdict = verdict_word(result)
    why = result.detail.partition("\n")[0] or ("" if result.reason in verdict else result.reason)
    return (*_names(result), _code(result.gpu), verdict, *figures(result), _code(why))


def _case_cells(gates: Mapping[str, GateResult]) -> tuple[str, ...]:
    first = next(iter(gates.values()))
    return (*_names(first), *figures(gates.get(Gate.SPEED)), verdict_of_row(gates)[0])


def _names(result: GateResult) -> tuple[str, str, str]:
    return (
        _code(shorten(result.kernel, NAME_WIDTH)),
        _code(shorten(result.case, NAME_WIDTH)),
        _code(result.arch),
    )


def _code(text: str) -> str:
    """Return `text` as a code span, in which Markdown, HTML, @names and :emoji: are nothing but text."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if not text:
        return ""
    if len(text) > DETAIL_WIDTH:
        text = f"{text[: DETAIL_WIDTH - 4]} ..."
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    # Tables are cut into cells before code spans are looked for.
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\|")


# -- the page ---------------------------------------------------------------------------------------


class _Page:
    """Text that grows up to a limit; what no longer fits is counted, and the count is said."""

    _NOTE = "{} are left out here: the summary would be too long. The log and the JUnit file have them."
    _RESERVED_BYTES = 2048
    """For the notes, at most one for each section."""

    def __init__(self, limit_bytes: int) -> None:
        self._left = limit_bytes - self._RESERVED_BYTES
        self._blocks: list[str] = []

    @property
    def text(self) -> str:
        """All that was added."""
        return "\n\n".join(self._blocks) + "\n"

    def add(self, block: str) -> None:
        """Add a paragraph or heading, which are short."""
        self._left -= len(block.encode()) + 2
        self._blocks.append(block)

    def add_table(
        self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, folded: bool = False
    ) -> None:
        """Add a table without its empty columns; nothing when it has no rows."""
        kept = [column for column in range(len(header)) if any(row[column] for row in rows)]
        rule = ["---:" if header[column] in _FIGURES else "---" for column in kept]
        head = f"{_table_row([header[column] for column in kept])}\n{_table_row(rule)}"
        lines = [_table_row([row[column] for column in kept]) for row in rows]
        if folded:
            summary = f"<details><summary>{title}: {len(rows)}</summary>"
            self.add_rows(f"{summary}\n\n{head}", lines, "</details>")
        else:
            self.add_rows(f"### {title}\n\n{head}", lines)

    def add_rows(self, head: str, rows: Sequence[str], tail: str = "") -> None:
        """Add as many rows as fit, and say how many did not; nothing when there are none."""
        if not rows:
            return
        left = self._left - len(head.encode()) - len(tail.encode()) - 4
        lines = []
        for row in rows:
            left -= len(row.encode()) + 1
            if left < 0:
                break
            lines.append(row)
        if lines:
            self.add("\n".join([head, *lines]))
        if len(lines) < len(rows):
            self._blocks.append(self._NOTE.format(f"{len(rows) - len(lines)} of {len(rows)}"))
        if lines and tail:
            self.add(tail)


def _table_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
