"""The summary of a run for the terminal: a row for each case, and what a reader should know besides."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from pytest_cutile.reports.cases import (
    CaseRow,
    RunOutcome,
    cases_of,
    figure_cells,
    interpreted_line,
    not_measured,
)
from pytest_cutile.tile.static.changes import Effect
from pytest_cutile.words.document import (
    Column,
    Document,
    DocumentBlock,
    Overflow,
    Paragraph,
    Row,
    Table,
    Tone,
)
from pytest_cutile.words.quantities import abridged, counted, format_change
from pytest_cutile.words.results import CompileResult, CorrectResult, Result, SpeedResult, StaticResult
from pytest_cutile.words.statistics import median
from pytest_cutile.words.verdicts import UNDECIDED, Reason, Verdict

AnyResult = TypeVar("AnyResult", bound=Result)
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
    platforms = {case.platform for case in cases}
    alone = platforms.pop() if len(platforms) == 1 else ""
    static = [result for result in results if isinstance(result, StaticResult)]
    clipped = Overflow.KEEP if verbose else Overflow.CLIP
    blocks: list[DocumentBlock] = []
    if verbose or any(text for case in cases for text in case.figures.values()):
        blocks.append(_table(cases, alone, verbose=verbose))
    else:
        blocks.append(_overview(cases, run))
        failed = [case for case in cases if _is_bad(case, run)]
        blocks += [_table(failed, alone, verbose=True)] if failed else []
    blocks += _notes([interpreted_line(results)])
    blocks += _notes(_correctness_notes(results, verbose=verbose), overflow=clipped)
    blocks += _notes(_tuning_notes(results, verbose=verbose), overflow=clipped)
    blocks += _notes(f"not measured: {counts}: {why}" for counts, why in not_measured(results))
    blocks += _notes(_gpu_today(results))
    blocks += _notes(_without_sustained(results))
    blocks += _notes(_undecided(results))
    blocks += _notes(
        result.detail
        for result in results
        if isinstance(result, SpeedResult) and not result.recorded
        if result.verdict is Verdict.IMPROVEMENT or result.reason is Reason.WITHIN_MARGIN
    )
    tones = {Effect.WORSE: Tone.BAD, Effect.BETTER: Tone.GOOD, Effect.DIFFERENT: Tone.PLAIN}
    for effect, tone in tones.items():
        blocks += _notes(_changes(static, effect, verbose=verbose), tone, overflow=clipped)
    blocks += _notes(_toolchains(static))
    for note, count in Counter(result.recorded for result in results if result.recorded).items():
        first, *more = note.splitlines()
        blocks += _notes([first + (f" ({count} cases)" if count > 1 else ""), *more])
    blocks += _notes(run.remarks, Tone.WARNING)
    return Document(f"cuTile kernels for {alone}" if alone else "cuTile kernels", blocks)


def _notes(
    texts: Iterable[str], tone: Tone = Tone.PLAIN, *, overflow: Overflow = Overflow.KEEP
) -> list[Paragraph]:
    return [Paragraph(text, tone=tone, overflow=overflow) for text in texts if text]


def _table(cases: Sequence[CaseRow], alone: str, *, verbose: bool) -> Table:
    """Return a row for each case; without `verbose` one row for what passed of a kernel without figures.

    The only platform, `alone`, is in the title.
    """
    columns, figures = figure_cells(cases)
    rows: list[Row] = []
    quiet: Counter[tuple[str, str, str, Tone]] = Counter()
    for case, own in zip(cases, figures, strict=True):
        platform = "" if case.platform == alone else case.platform
        if verbose or case.tone is Tone.BAD or any(own):
            rows.append(Row((case.kernel, case.name, *own, platform, case.verdict), case.tone))
        else:
            quiet[case.kernel, case.verdict, platform, case.tone] += 1
    archs: dict[tuple[str, str, int, Tone], list[str]] = defaultdict(list)
    for (kernel, verdict, arch, tone), count in quiet.items():
        archs[kernel, verdict, count, tone].append(arch)
    for (kernel, verdict, count, tone), alike in archs.items():
        arch = alike[0] if len(alike) == 1 else f"{len(alike)} archs"
        rows.append(Row((kernel, counted(count, "case"), *("",) * len(columns), arch, verdict), tone))
    return Table([*NAMES, *columns, Column("arch"), Column("verdict")], rows)


def _is_bad(case: CaseRow, run: RunOutcome) -> bool:
    """Say whether a case is to be seen: not one whose regression was accepted."""
    return any(
        run.has_failed(result) or result.verdict is Verdict.FAIL or result.reason is Reason.LOST
        for result in case.results
    )


def _overview(cases: Sequence[CaseRow], run: RunOutcome) -> Table:
    """Return a row for each kernel: how many of its cases are right and compile, and what has changed."""
    by_kernel: dict[str, list[CaseRow]] = defaultdict(list)
    for case in cases:
        by_kernel[case.kernel].append(case)
    rows = []
    for kernel, own in by_kernel.items():
        cells = (
            f"{len({case.name for case in own})}",
            _passed(own, CorrectResult),
            _passed(own, CompileResult),
            _changed(own, run),
            f"{run.seconds[kernel]:.1f} s" if kernel in run.seconds else "",
        )
        tone = Tone.BAD if any(_is_bad(case, run) for case in own) else Tone.GOOD
        rows.append(Row((kernel, *cells), tone))
    titles = ("cases", "right", "compiles", "changed", "time")
    return Table([NAMES[0], *(Column(title, right=True) for title in titles)], rows)


def _changed(cases: Iterable[CaseRow], run: RunOutcome) -> str:
    """Return how the compiled code of cases differs from the baselines': "2 worse, 1 better", or "no"."""
    changes: dict[str, set[str]] = defaultdict(set)
    for case in cases:
        for result in case.results:
            if isinstance(result, StaticResult) and (word := _change(result, run)):
                changes[word].add(case.name)
    if len(changes) == 1 and not {"no", "no baseline", "recorded"}.isdisjoint(changes):
        return next(iter(changes))
    return ", ".join(f"{len(names)} {word}" for word, names in changes.items() if word != "no")


def _change(result: StaticResult, run: RunOutcome) -> str:
    """Return how the compiled code differs from the baseline's, in a word; "" if nobody knows."""
    words = {
        Verdict.PASS: "no" if result.reason is Reason.UNCHANGED else "other code",
        Verdict.REGRESSION: "worse" if run.has_failed(result) else "worse, accepted",
        Verdict.IMPROVEMENT: "better",
        Verdict.NO_BASELINE: "recorded" if result.is_recorded else "no baseline",
        Verdict.INCONCLUSIVE: "unknown",
    }
    return words.get(result.verdict, "")


def _passed(cases: Iterable[CaseRow], result_type: type[Result]) -> str:
    """Return how many cases pass a gate, on all architectures: "3", "2 of 3", or "3, 1 not measured"."""
    verdicts: dict[str, set[Verdict]] = defaultdict(set)
    for case in cases:
        verdicts[case.name] |= {result.verdict for result in case.results if isinstance(result, result_type)}
    known = [*filter(None, verdicts.values())]
    count = known.count({Verdict.PASS})
    unknown = sum(
        Verdict.NOT_MEASURED in own and own <= {Verdict.PASS, Verdict.NOT_MEASURED} for own in known
    )
    measured = len(known) - unknown
    shown = f"{count}" if count == measured else f"{count} of {measured}"
    return ", ".join([shown] * bool(measured) + [f"{unknown} not measured"] * bool(unknown))


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


def _without_sustained(results: Sequence[Result]) -> Iterator[str]:
    """Yield in how many cases a slowdown under load would not be seen, and why."""
    measured = [one.measured for one in results if isinstance(one, SpeedResult) and one.measured is not None]
    reasons = Counter(one.sustained_skipped for one in measured if one.sustained_unknown)
    for reason, count in reasons.items():
        yield f"not measured under sustained load: {counted(count, 'case')}: {reason}"


def _correctness_notes(results: Iterable[Result], *, verbose: bool) -> Iterator[str]:
    """Yield where a case passed by less than the derived bound, or was not compared at all.

    With `verbose` also the dtypes of results, and the layouts that launchers refused.
    """
    checks = [result for result in results if isinstance(result, CorrectResult)]
    passed = [result for result in checks if result.verdict is Verdict.PASS]
    unsteady = [*_alike(("other bits", one) for one in passed if one.reason is Reason.NONDETERMINISTIC)]
    if unsteady:
        yield f"other bits when run again: {'; '.join(where for where, _, _ in unsteady)}"
    for where, tolerance, own in _alike((one.tolerance, one) for one in passed):
        most = max((result.looser for result in own if result.looser is not None), default=None)
        derived = f"up to {most:.3g} times the derived bound" if most is not None else ""
        known = next((result.allowed for result in own if result.allowed), "")
        allowed = ", or ".join(filter(None, [derived, known]))
        yield f"allowed {tolerance}: {where}" + (f": {allowed}" if allowed else "")
    for where, dtypes, _ in _alike((", ".join(one.narrowed), one) for one in passed):
        yield f"coarser than its inputs: {where}: {dtypes}"
    for where, names, _ in _alike((", ".join(one.uncompared), one) for one in passed):
        yield f"may change, and was compared with nothing: {where}: {names}"
    if verbose:
        for where, dtypes, _ in _alike((one.outputs, one) for one in passed):
            yield f"returned by {where}: {dtypes}"
        for where, layout, _ in _alike((layout, one) for one in passed for layout in one.refused):
            yield f"refused by {where}: {layout}"
    for result in checks:
        yield from result.searched.splitlines()


def _tuning_notes(results: Iterable[Result], *, verbose: bool) -> Iterator[str]:
    """Yield what launchers that tune chose, and what speaks against their other configurations."""
    by_case = {(line, one.case_id[1:]): one for one in results for line in one.configurations}
    if by_case and not verbose:
        cases = len({result.case_id for result in by_case.values()})
        yield f"launchers that tune: remarks on configurations of {counted(cases, 'result')} (-v shows them)"
    if verbose:
        for where, choice, _ in _alike(
            (one.tuning, one) for one in results if one.gate in {"correct", "speed"}
        ):
            yield f"tuning of {where}: {choice}"
        for where, line, _ in _alike((line, one) for (line, _), one in by_case.items()):
            yield f"tuning of {where}: {line}"


def _alike(facts: Iterable[tuple[str, AnyResult]]) -> Iterator[tuple[str, str, list[AnyResult]]]:
    """Yield each fact of each kernel with its results, and before them the kernel and its cases in words."""
    by_fact: dict[tuple[str, str], list[AnyResult]] = defaultdict(list)
    for fact, result in facts:
        if fact:
            by_fact[result.kernel, fact].append(result)
    for (kernel, fact), results in sorted(by_fact.items(), key=lambda item: item[0]):
        yield f"{kernel}, {abridged([result.case for result in results], 1)}", fact, results


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
    if effect is Effect.WORSE and regressions <= 1:
        return []
    if effect is Effect.DIFFERENT and not verbose:
        others = sum(result.reason is Reason.NOT_WORSE for result in static)
        return [f"other code, not worse: {counted(others, 'case')} (-v shows what differs)"] if others else []
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
