"""The report of mutation testing (`--mutation-test`): weak cases, mutants that survive all cases, counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from pytest_cutile.correctness.mutation.report import Mutant, MutationReport, Outcome, never_killed
from pytest_cutile.words.document import (
    Column,
    Document,
    DocumentBlock,
    Paragraph,
    Row,
    Section,
    Table,
    Tone,
)
from pytest_cutile.words.quantities import counted
from pytest_cutile.words.results import CorrectResult, Result


def mutation_document(results: Iterable[Result], *, verbose: bool = False) -> Document:
    """Return which mutants the checks of the cases that passed would have let survive."""
    by_key = {
        (result.kernel, result.case, result.key): msgspec.convert(result.mutation, MutationReport)
        for result in results
        if isinstance(result, CorrectResult) and result.mutation is not None
    }
    by_kernel: dict[str, list[tuple[str, MutationReport]]] = defaultdict(list)
    for kernel, case, key in sorted(by_key):
        by_kernel[kernel].append((case, by_key[kernel, case, key]))
    blocks: list[DocumentBlock] = []
    if by_key:
        weak = sum(bool(report.weaknesses) for report in by_key.values())
        headline = f"{weak} of {len(by_key)} cases are weak: these mutants would have survived"
        if not weak:
            headline = f"{counted(len(by_key), 'case')}, none weak"
        blocks = [
            Paragraph(headline, tone=Tone.PLAIN if weak else Tone.GOOD),
            *_weak_cases(by_kernel, verbose=verbose),
            *_strong_cases(by_kernel, verbose=verbose),
            *_survivors(by_kernel),
            *_counts([*by_key.values()]),
        ]
    return Document("how strong the checks are", blocks)


def _weak_cases(
    by_kernel: Mapping[str, Sequence[tuple[str, MutationReport]]], *, verbose: bool
) -> Iterator[DocumentBlock]:
    """Yield for each kernel the mutants that its weak cases let survive: all of them, or one of a sort."""
    for kernel, cases in by_kernel.items():
        alike: dict[tuple[str, str], list[tuple[str, Mutant]]] = defaultdict(list)
        for case, report in cases:
            for mutant in report.weaknesses:
                alike[mutant.mutation, mutant.outcome].append((case, mutant))
        texts = []
        for mutants in alike.values():
            case, first = mutants[0]
            number = len({case for case, _ in mutants})
            where = f"{number} cases, such as {case}" if number > 1 else case
            texts += [f"{mutant} ({case})" for case, mutant in mutants] if verbose else [f"{first} ({where})"]
        if texts:
            weak = sum(bool(report.weaknesses) for _, report in cases)
            paragraphs = [Paragraph(text) for text in texts]
            yield Section(f"{kernel}: {counted(weak, 'weak case')}", paragraphs)


def _strong_cases(
    by_kernel: Mapping[str, Sequence[tuple[str, MutationReport]]], *, verbose: bool
) -> Iterator[DocumentBlock]:
    rows = []
    for kernel, cases in by_kernel.items():
        strong = [(case, report) for case, report in cases if not report.weaknesses]
        if verbose:
            rows += [Row((kernel, case, _share([report])), Tone.GOOD) for case, report in strong]
        elif strong:
            share = _share([report for _, report in strong])
            rows.append(Row((kernel, counted(len(strong), "case"), share), Tone.GOOD))
    if rows:
        names = [Column("kernel", shrinks=True), Column("not weak", shrinks=True)]
        yield Table([*names, Column(Outcome.KILLED, right=True)], rows)


def _share(reports: Sequence[MutationReport]) -> str:
    killed = sum(report.killed for report in reports)
    return f"{killed} of {sum(len(report.mutants) for report in reports)}"


def _survivors(by_kernel: Mapping[str, Sequence[tuple[str, MutationReport]]]) -> Iterator[DocumentBlock]:
    """Yield the mutants that survive all cases of a kernel, with the inputs that they change."""
    for kernel, cases in by_kernel.items():
        places: dict[str, list[str]] = defaultdict(list)
        for mutant in never_killed([report for _, report in cases]):
            places[mutant.mutation] += [mutant.where] if mutant.of_input else []
        texts = [mutant + (f" ({'; '.join(where)})" if where else "") for mutant, where in places.items()]
        if texts:
            yield Paragraph(f"{kernel}: no case kills {', '.join(texts)}")


def _counts(reports: Sequence[MutationReport]) -> Iterator[DocumentBlock]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for report in reports:
        for mutant in report.mutants:
            counts[mutant.mutation][mutant.outcome] += 1
    rows = [
        Row((mutant, *(str(outcomes[outcome] or "") for outcome in Outcome)))
        for mutant, outcomes in counts.items()
    ]
    yield Table([Column("mutant"), *(Column(outcome, right=True) for outcome in Outcome)], rows)
    if skipped := sum(report.skipped for report in reports):
        yield Paragraph(f"{skipped} mutants of inputs were skipped: each costs a run of the reference")
