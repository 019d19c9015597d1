"""What the page shows of a case: figures, plots of samples and history, and what it was compiled to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_cutile.gates.speed.rule import NOISE, Sample, estimate
from pytest_cutile.reports.compiled import named_launches, notes_of, or_unknown, size
from pytest_cutile.reports.history import HistoryPoint, headline_regimes, point_of_run, step_text
from pytest_cutile.reports.html.heat_map import heat_map
from pytest_cutile.reports.html.plots import change_histogram, histogram, history_plot, is_finite
from pytest_cutile.reports.report import GpuHistory, Report, ReportedCase
from pytest_cutile.tile.static.facts import CaseFacts, LaunchFacts
from pytest_cutile.tile.static.rules import occupancy_of
from pytest_cutile.words.quantities import format_share, format_time
from pytest_cutile.words.results import CorrectResult, Measured, Result, SpeedResult, StaticResult
from pytest_cutile.words.statistics import usable
from pytest_cutile.words.timing import Block, Regime, log_ratio_error, mean_log_ratio
from pytest_cutile.words.verdicts import Verdict

if TYPE_CHECKING:
    from markupsafe import Markup

_CAUSES = 3
"""Differences of compiled code that are said to make a case slower; all of them stand below."""


def details(cases: Sequence[ReportedCase], report: Report) -> dict[str, Any]:
    """Return what the details of a case show: plots and tables, over its architectures and GPUs."""
    facts = _facts(cases)
    timed = [(case.gpu, one) for case in cases for one in case.results if isinstance(one, SpeedResult)]
    plots = [plot for gpu, result in timed for plot in _sample_plots(gpu, result)]
    histories = [
        (series, _point_of_run(series, timed, report)) for series in report.history.get(cases[0].key, ())
    ]
    plots += [
        (f"History, {regime}, {series.gpu}", history_plot(series.points, regime, run))
        for series, run in histories
        for regime in headline_regimes(series.points)
    ]
    return {
        "measured": [text for case in cases if (text := _measured(case))],
        "slower": [text for case in cases if (text := _why_slower(case))],
        "tuned": dict.fromkeys(text for case in cases for text in _tuned(case)),
        "changes": dict.fromkeys(change for case in cases for change in _changes(case)),
        "plots": [(title, plot) for title, plot in plots if plot],
        "steps": [
            f"{series.gpu}: {step_text(point)}"
            for series, run in histories
            for point in (*series.points, run)
            if point is not None and point.is_step
        ],
        "published": [series for series, _ in histories if series.published_us is not None],
        "compiled": [*_compiled(facts)],
        "sites": _sites(facts),
        "errors": [shown for case in cases for one in case.results for shown in error_maps([one])],
    }


def _point_of_run(
    series: GpuHistory, timed: Iterable[tuple[str, SpeedResult]], report: Report
) -> HistoryPoint | None:
    """Return the run as the last point of a history, unless it was recorded and is the last one already."""
    own = next((result for gpu, result in timed if gpu == series.gpu and result.measured), None)
    if own is None or own.is_recorded:
        return None
    return point_of_run(own, series.points, at=report.at, commit=report.environment.get("commit", ""))


def _sample_plots(gpu: str, result: SpeedResult) -> Iterator[tuple[str, Markup]]:
    """Yield the samples of each regime and, where they were measured in pairs, the ratios of the pairs."""
    by_regime: dict[str, list[Block]] = defaultdict(list)
    for one in result.measured.blocks if result.measured is not None else ():
        by_regime[one.regime].append(Block(current_us=one.current_us, baseline_us=one.baseline_us))
    for regime, blocks in by_regime.items():
        current = [us for block in blocks for us in block.current_us]
        baseline = [us for block in blocks for us in block.baseline_us]
        paired = ", beside the baseline kernel" if baseline else ""
        yield f"Samples, {regime}{paired}, {gpu}", histogram(current, baseline)
        if usable(baseline) and usable(current):
            sample = Sample(log_ratio=mean_log_ratio(blocks) or 0.0, error=log_ratio_error(blocks) or 0.0)
            pairs = [
                now / before - 1
                for block in blocks
                for now, before in zip(block.current_us, block.baseline_us, strict=False)
            ]
            plot = change_histogram(pairs, estimate([sample], NOISE[Regime(regime)]))
            yield f"Change of each pair, {regime}, first process, {gpu}", plot


def _changes(case: ReportedCase) -> list[str]:
    """Return what differs from the static baseline."""
    static = (one for one in case.results if isinstance(one, StaticResult))
    compared = (one for one in static if one.verdict is not Verdict.NOT_MEASURED)
    return [f"{case.arch}: {change}" for one in compared for change in one.changes]


def _tuned(case: ReportedCase) -> Iterator[str]:
    """Yield what a launcher that tunes chose, and what speaks against other configurations."""
    for one in case.results:
        if one.tuning and one.gate in {"correct", "speed"}:
            yield f"tuning, {one.gate}, {case.arch}: {one.tuning}"
    for line in dict.fromkeys(line for one in case.results for line in one.configurations):
        yield f"tuning, {case.arch}: {line}"


def _why_slower(case: ReportedCase) -> str:
    """Return what a slower case was compiled to otherwise than its baseline kernel; "" if nobody knows."""
    speed = (one for one in case.results if isinstance(one, SpeedResult))
    changes = next((one.code_changes for one in speed if one.verdict is Verdict.REGRESSION), ())
    more = len(changes) - _CAUSES
    return "; ".join([*changes[:_CAUSES], *([f"and {more} more, see the message"] if more > 0 else [])])


def error_maps(results: Iterable[Result]) -> Iterator[tuple[str, Markup, str]]:
    """Yield where the errors of wrong results are: a caption with the inputs, the plot, the worst element."""
    for one in results:
        if isinstance(one, CorrectResult) and one.errors is not None:
            inputs = f"{one.inputs or 'normal'} inputs" if not one.launcher else one.launcher
            yield f"{one.arch}, {inputs}: {one.errors.caption}", heat_map(one.errors), one.errors.worst


def _measured(case: ReportedCase) -> str:
    """Return the figures of a case, and what is known of the GPU meanwhile."""
    figures = case.figures
    if figures is None or not is_finite(figures.us_per_launch):
        return ""
    speed = (one.measured for one in case.results if isinstance(one, SpeedResult))
    measured = next(filter(None, speed), Measured())
    parts = [f"{case.gpu or case.arch}, {figures.origin}: {format_time(figures.us_per_launch)}"]
    if is_finite(figures.sustained_us_per_launch):
        parts.append(f"sustained {format_time(figures.sustained_us_per_launch)}")
    if is_finite(figures.rate):
        parts.append(f"{figures.rate:.4g} {figures.unit}")
    if is_finite(figures.share_of_limit):
        parts.append(f"{format_share(figures.share_of_limit)} of the limit")
    quantities = (
        (measured.clock_mhz, "MHz"),
        (measured.sustained_clock_mhz, "MHz sustained"),
        (measured.sustained_watts, "W sustained"),
    )
    parts += [f"{value:.0f} {unit}" for value, unit in quantities if is_finite(value)]
    if measured.sustained_skipped:
        parts.append(f"not sustained: {measured.sustained_skipped}")
    return "; ".join([*parts, *measured.problems])


def _facts(cases: Iterable[ReportedCase]) -> dict[str, tuple[CaseFacts | None, CaseFacts | None]]:
    """Return what was compiled and what is stored, by architecture."""
    facts: dict[str, tuple[CaseFacts | None, CaseFacts | None]] = {}
    for case in cases:
        static = (one.facts for one in case.results if isinstance(one, StaticResult))
        compiled = next(filter(None, static), None)
        baseline = None if case.baseline is None else case.baseline.facts
        if compiled is not None:
            facts[case.arch] = msgspec.convert(compiled, CaseFacts), baseline
        else:
            facts.setdefault(case.arch, (None, baseline))
    return facts


def _compiled(facts: Mapping[str, tuple[CaseFacts | None, CaseFacts | None]]) -> Iterator[list[str]]:
    """Yield a row for each launch: current facts, and the baseline's where they differ ("128 (was 96)")."""
    for arch, (current, baseline) in facts.items():
        before = named_launches(baseline)
        for name, launch in named_launches(current or baseline).items():
            cells = _cells(launch, arch)
            known = _cells(before[name], arch) if name in before else cells
            yield [
                arch if current is not None else f"{arch}, stored",
                launch.kernel,
                *(
                    cell if cell == old else f"{cell} (was {old})"
                    for cell, old in zip(cells, known, strict=True)
                ),
            ]


def _cells(launch: LaunchFacts, arch: str) -> list[str]:
    fits = occupancy_of(launch, arch)
    counts = (launch.count(one) for one in ("tensor_core", "tma_load", "tma_store"))
    return [
        or_unknown(launch.registers),
        "?" if launch.stack_bytes is None else f"{launch.stack_bytes} B",
        size(launch.shared_bytes),
        or_unknown(None if fits is None else fits.blocks),
        *map(or_unknown, counts),
    ]


def _sites(facts: Mapping[str, tuple[CaseFacts | None, CaseFacts | None]]) -> list[tuple[str, str, str]]:
    """Return lines of source with what became of them: place, source, and outcome by architecture."""
    lines: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for arch, (current, baseline) in facts.items():
        for launch in named_launches(current or baseline).values():
            for site in launch.sites or ():
                outcome = f"{site.operation}: {'; '.join([site.outcome, *site.missed])}"
                lines[site.place, site.text][outcome].append(arch)
            for place, text in notes_of(launch):
                lines[place, ""][text].append(arch)
    return [
        (place, text, f"{outcome} ({', '.join(own)})" if len(own) < len(facts) else outcome)
        for (place, text), outcomes in sorted(lines.items())
        for outcome, own in outcomes.items()
    ]
