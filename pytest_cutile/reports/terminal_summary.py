"""The summary of a run for the terminal: a row for each case, and what a reader should know besides."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytest_cutile.quantities import abridged, counted, format_change
from pytest_cutile.reports.cases import (
    CaseRow,
    RunOutcome,
    cases_of,
    figure_titles,
    interpreted_line,
    not_measured,
)
from pytest_cutile.reports.document import (
    Block,
    Column,
    Document,
    Overflow,
    Paragraph,
    Row,
    Table,
    Tone,
)
from pytest_cutile.results import (
    CompileResult,
    CorrectResult,
    Result,
    SpeedResult,
    StaticResult,
)
from pytest_cutile.static.changes import Effect
from pytest_cutile.statistics import median
from pytest_cutile.verdicts import UNDECIDED, Reason, Verdict

_SHOWN_UNDECIDED = 5
_SHOWN_CHANGES = 8
NAMES = (Column("kernel", shrinks=True), Column("case", shrinks=True))


def terminal_summary(run: RunOutcome, *, verbose: bool = False) -> Document:
    """Return the table of cases and notes on what the table cannot show.

    Where nothing was timed, each kernel has one row, and each case that failed; with `verbose` each case.
    """
    results = run.results
    if not results:
        return Document("cuTile kernels", [])
    cases = cases_of(results)
    if verbose or any(filter(None, (text for case in cases for text in case.figures.values()))):
        blocks: list[Block] = [_table(cases, verbose=verbose)]
    else:
        failed = {result.case_id for result in run.failed}
        shown = [
            case
            for case in cases
            if case.tone is Tone.BAD or any(result.case_id in failed for result in case.results)
        ]
        blocks = [_overview(cases, run.seconds), *([_table(shown, verbose=True)] if shown else [])]

    def add(texts: Iterable[str], tone: Tone = Tone.PLAIN, *, clipped: bool = False) -> None:
        overflow = Overflow.CLIP if clipped and not verbose else Overflow.KEEP
        blocks.extend(Paragraph(text, tone=tone, overflow=overflow) for text in texts)

    add(filter(None, [interpreted_line(results)]))
    add(_correctness_notes(results, verbose=verbose), clipped=True)
    add(f"not measured: {counts}: {why}" for counts, why in not_measured(results))
    add(_gpu_today(results))
    add(_undecided(results))
    passed = [
        one for one in results if one.verdict is Verdict.IMPROVEMENT or one.reason is Reason.WITHIN_MARGIN
    ]
    add(result.detail for result in passed if result.detail and not result.recorded)
    static = [result for result in results if isinstance(result, StaticResult)]
    tones = {Effect.WORSE: Tone.BAD, Effect.BETTER: Tone.GOOD, Effect.DIFFERENT: Tone.PLAIN}
    for effect, tone in tones.items():
        add(_changes(static, effect, verbose=verbose), tone, clipped=True)
    add(_toolchains(static))
    for note, count in Counter(result.recorded for result in results if result.recorded).items():
        first, *more = note.splitlines()
        add([first + (f" ({count} cases)" if count > 1 else ""), *more])
    add(run.remarks, Tone.WARNING)
    return Document("cuTile kernels", blocks)


def _table(cases: Sequence[CaseRow], *, verbose: bool) -> Table:
    titles = figure_titles(case.figures for case in cases)
    rows: list[Row] = []
    quiet: Counter[tuple[str, str, str, Tone]] = Counter()
    for case in cases:
        figures = [case.figures.get(title, "") for title in titles]
        if verbose or case.tone is Tone.BAD or any(figures):
            rows.append(Row((case.kernel, case.name, *figures, case.platform, case.verdict), case.tone))
        else:
            quiet[case.kernel, case.verdict, case.platform, case.tone] += 1
    archs: dict[tuple[str, str, int, Tone], list[str]] = defaultdict(list)
    for (kernel, verdict, arch, tone), count in quiet.items():
        archs[kernel, verdict, count, tone].append(arch)
    for (kernel, verdict, count, tone), alike in archs.items():
        arch = alike[0] if len(alike) == 1 else f"{len(alike)} archs"
        rows.append(Row((kernel, counted(count, "case"), *("",) * len(titles), arch, verdict), tone))
    figures_of = [Column(title, right=True) for title in titles]
    return Table([*NAMES, *figures_of, Column("arch"), Column("verdict")], rows)


def _overview(cases: Sequence[CaseRow], seconds: Mapping[str, float]) -> Table:
    """Return a row for each kernel: how many of its cases are right and compile, and what has changed."""
    by_kernel: dict[str, list[CaseRow]] = defaultdict(list)
    for case in cases:
        by_kernel[case.kernel].append(case)
    rows = []
    for kernel, own in by_kernel.items():
        results = [(case.name, result) for case in own for result in case.results]
        changes: dict[str, set[str]] = defaultdict(set)
        for name, result in results:
            if isinstance(result, StaticResult) and (word := _change(result)):
                changes[word].add(name)
        if len(changes) == 1 and not {"no", "no baseline", "recorded"}.isdisjoint(changes):
            words = [*changes]
        else:
            words = [f"{len(names)} {word}" for word, names in changes.items() if word != "no"]
        took = f"{seconds[kernel]:.1f} s" if kernel in seconds else ""
        cells = (_passed(results, CorrectResult), _passed(results, CompileResult), ", ".join(words), took)
        tone = Tone.BAD if any(case.tone is Tone.BAD for case in own) else Tone.GOOD
        rows.append(Row((kernel, f"{len({case.name for case in own})}", *cells), tone))
    titles = ("cases", "right", "compiles", "changed", "time")
    return Table([NAMES[0], *(Column(title, right=True) for title in titles)], rows)


def _change(result: StaticResult) -> str:
    """Return how the compiled code differs from the baseline's, in a word; "" if nobody knows."""
    if result.is_recorded:
        return "recorded"
    if result.verdict is Verdict.PASS:
        return "no" if result.reason is Reason.UNCHANGED else "other code"
    words = {
        Verdict.REGRESSION: "worse",
        Verdict.IMPROVEMENT: "better",
        Verdict.NO_BASELINE: "no baseline",
        Verdict.INCONCLUSIVE: "unknown",
    }
    return words.get(result.verdict, "")


def _passed(results: Sequence[tuple[str, Result]], kind: type[Result]) -> str:
    """Return how many cases pass a gate, on all architectures: "3", or "2 of 3"."""
    verdicts: dict[str, set[Verdict]] = defaultdict(set)
    for name, result in results:
        if isinstance(result, kind):
            verdicts[name].add(result.verdict)
    count = sum(found == {Verdict.PASS} for found in verdicts.values())
    if count == len(verdicts):
        return f"{count}" if count else ""
    return f"{count} of {len(verdicts)}"


def _gpu_today(results: Sequence[Result]) -> Iterator[str]:
    """Yield how unchanged cases compare with their stored times, if any was measured."""
    changes = sorted(
        result.change
        for result in results
        if isinstance(result, SpeedResult)
        and result.reason in (Reason.UNCHANGED, Reason.DISTURBED)
        and result.us_per_launch is not None
        and result.change is not None
    )
    if changes:
        shown = format_change(median(changes))
        if len(changes) > 1:
            shown += f" in the median, {format_change(changes[0])} to {format_change(changes[-1])}"
        yield f"this GPU today, against stored times of {counted(len(changes), 'unchanged case')}: {shown}"


def _correctness_notes(results: Sequence[Result], *, verbose: bool) -> Iterator[str]:
    """Yield where a case passed that was held to less than the derived bound, or was not compared at all.

    With `verbose` also the dtypes of results, and the layouts that launchers refused.
    """
    passed = [r for r in results if isinstance(r, CorrectResult) and r.verdict is Verdict.PASS]
    unsteady = _by_kernel((r.kernel, "", r.case) for r in passed if r.reason is Reason.NONDETERMINISTIC)
    if unsteady:
        kernels = "; ".join(f"{kernel}, {abridged(cases, 1)}" for (kernel, _), cases in unsteady)
        yield f"other bits when run again: {kernels}"
    given = [result for result in passed if result.tolerance]
    for (kernel, tolerance), cases in _by_kernel((r.kernel, r.tolerance, r.case) for r in given):
        own = [result for result in given if (result.kernel, result.tolerance) == (kernel, tolerance)]
        most = max((result.looser for result in own if result.looser is not None), default=None)
        derived = f"up to {most:.3g} times the derived bound" if most is not None else ""
        known = next((result.allowed for result in own if result.allowed), "")
        allowed = ", or ".join(filter(None, [derived, known]))
        yield f"held to {tolerance}: {kernel}, {abridged(cases, 1)}" + (f": {allowed}" if allowed else "")
    uncompared = ((r.kernel, ", ".join(r.uncompared), r.case) for r in passed if r.uncompared)
    for (kernel, names), cases in _by_kernel(uncompared):
        yield f"may change, and was compared with nothing: {kernel}, {abridged(cases, 1)}: {names}"
    if verbose:
        for (kernel, dtypes), cases in _by_kernel((r.kernel, r.outputs, r.case) for r in passed if r.outputs):
            yield f"returned by {kernel}, {abridged(cases, 1)}: {dtypes}"
        refused = ((r.kernel, layout, r.case) for r in passed for layout in r.refused)
        for (kernel, layout), cases in _by_kernel(refused):
            yield f"refused by {kernel}, {abridged(cases, 1)}: {layout}"
    for result in results:
        if isinstance(result, CorrectResult):
            yield from result.searched.splitlines()


def _by_kernel(cases: Iterable[tuple[str, str, str]]) -> list[tuple[tuple[str, str], list[str]]]:
    by_fact: dict[tuple[str, str], list[str]] = defaultdict(list)
    for kernel, fact, case in cases:
        by_fact[kernel, fact].append(case)
    return sorted(by_fact.items())


def _undecided(results: Iterable[Result]) -> list[str]:
    texts = dict.fromkeys(
        f"{result.verdict}: {result.detail}"
        for result in results
        if result.verdict in UNDECIDED - {Verdict.NOT_MEASURED} and result.detail and not result.recorded
    )
    more = len(texts) - _SHOWN_UNDECIDED
    note = [f"... and {more} more; --perf-strict fails with each"] if more > 0 else []
    return [*list(texts)[:_SHOWN_UNDECIDED], *note]


def _changes(static: Sequence[StaticResult], effect: Effect, *, verbose: bool) -> list[str]:
    """Return what compiled to something worse, better or different, cases with the same changes together."""
    regressions = sum(result.verdict is Verdict.REGRESSION for result in static)
    # A single regression is explained by its failure; a mere difference is for those who ask.
    if (effect is Effect.WORSE and regressions <= 1) or (effect is Effect.DIFFERENT and not verbose):
        return []
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for result in static:
        changes = [text for text in result.changes if text.startswith(effect)]
        if changes:
            alike[result.kernel, "; ".join(changes)].append(f"{result.case} {result.arch}")
    texts = [f"{kernel}, {abridged(where, 1)}: {changes}" for (kernel, changes), where in alike.items()]
    more = len(texts) - _SHOWN_CHANGES
    if more > 0 and not verbose:
        texts[_SHOWN_CHANGES:] = [f"... and {more} more kinds of {effect} code: -v"]
    return texts


def _toolchains(static: Iterable[StaticResult]) -> Iterator[str]:
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for result in static:
        if result.toolchain:
            reasons[result.toolchain][f"{result.reason}"] += 1
    for change, counts in sorted(reasons.items()):
        listed = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
        yield f"toolchain, since the static baselines: {change}: {listed}"
