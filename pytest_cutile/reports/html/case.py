"""What the page shows of a case: figures, plots of samples and history, and what it was compiled to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_cutile.platforms.occupancy import Occupancy
from pytest_cutile.quantities import format_share, format_time
from pytest_cutile.reports.history import headline_regimes, point_of_run, step_text
from pytest_cutile.reports.html.heat_map import heat_map
from pytest_cutile.reports.html.plots import change_histogram, finite, histogram, history_plot
from pytest_cutile.reports.report import Report, ReportedCase
from pytest_cutile.results import CorrectResult, Measured, Result, SpeedResult, StaticResult
from pytest_cutile.speed.decide import NOISE, Sample, estimate
from pytest_cutile.speed.measure.timing import Block, Regime, log_ratio_error, mean_log_ratio
from pytest_cutile.static.facts import CaseFacts, LaunchFacts
from pytest_cutile.static.rules import occupancy_of
from pytest_cutile.statistics import usable
from pytest_cutile.verdicts import Verdict

if TYPE_CHECKING:
    from markupsafe import Markup

_CAUSES = 3
"""Differences of compiled code that are said to make a case slower; all of them stand below."""


def details(cases: Sequence[ReportedCase], report: Report) -> dict[str, Any]:
    """Return what the details of a case show: plots and tables, over its architectures and GPUs."""
    plots: list[tuple[str, Markup]] = []
    steps: list[str] = []
    timed = [
        (case.gpu, one, one.measured)
        for case in cases
        for one in case.results
        if isinstance(one, SpeedResult) and one.measured is not None
    ]
    for gpu, _, measured in timed:
        plots += _sample_plots(gpu, measured)
    for series in report.history.get(cases[0].key, ()):
        own = next((result for gpu, result, _ in timed if gpu == series.gpu), None)
        run = (
            None
            if own is None or own.is_recorded  # it is in the history already
            else point_of_run(own, series.points, at=report.at, commit=report.environment.get("commit", ""))
        )
        for regime in headline_regimes(series.points):
            plots.append((f"History, {regime}, {series.gpu}", history_plot(series.points, regime, run)))
        steps += [f"{series.gpu}: {step_text(one)}" for one in (*series.points, run) if one and one.is_step]
    return {
        "measured": [text for case in cases if (text := _measured(case))],
        "slower": [text for case in cases if (text := _why_slower(case))],
        "changes": dict.fromkeys(
            f"{case.arch}: {change}" for case in cases for one in _static(case) for change in one.changes
        ),
        "plots": [(title, plot) for title, plot in plots if plot],
        "steps": steps,
        "published": [one for one in report.history.get(cases[0].key, ()) if one.published_us is not None],
        "compiled": [*_compiled(cases)],
        "sites": _sites(cases),
        "errors": [shown for case in cases for one in case.results for shown in error_maps([one])],
    }


def _sample_plots(gpu: str, measured: Measured) -> Iterator[tuple[str, Markup]]:
    """Yield the samples of each regime and, where they were measured in pairs, the ratios of the pairs."""
    by_regime: dict[str, list[Block]] = defaultdict(list)
    for one in measured.blocks:
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


def _static(case: ReportedCase) -> list[StaticResult]:
    return [
        one
        for one in case.results
        if isinstance(one, StaticResult) and one.verdict is not Verdict.NOT_MEASURED
    ]


def _why_slower(case: ReportedCase) -> str:
    """Return what a slower case was compiled to otherwise than its baseline kernel; "" if nobody knows."""
    slower = [
        one for one in case.results if isinstance(one, SpeedResult) and one.verdict is Verdict.REGRESSION
    ]
    for one in slower:
        more = len(one.code_changes) - _CAUSES
        causes = [*one.code_changes[:_CAUSES], *([f"and {more} more, see the message"] if more > 0 else [])]
        return "; ".join(causes)
    return ""


def error_maps(results: Iterable[Result]) -> Iterator[tuple[str, Markup, str]]:
    """Yield where the errors of wrong results are: a caption with the inputs, the plot, the worst element."""
    for one in results:
        if isinstance(one, CorrectResult) and one.errors is not None:
            inputs = f"{one.inputs or 'normal'} inputs" if not one.launcher else one.launcher
            yield f"{one.arch}, {inputs}: {one.errors.caption}", heat_map(one.errors), one.errors.worst


def _measured(case: ReportedCase) -> str:
    """Return the figures of a case, and what is known of the GPU meanwhile."""
    figures = case.figures
    if figures is None or not finite([figures.us_per_launch]):
        return ""
    result = next((one for one in case.results if isinstance(one, SpeedResult) and one.measured), None)
    measured = result.measured if result is not None else None
    parts = [f"{case.gpu or case.arch}, {figures.origin}: {format_time(figures.us_per_launch)}"]
    if finite([figures.sustained_us_per_launch]):
        parts.append(f"sustained {format_time(figures.sustained_us_per_launch or 0.0)}")
    if finite([figures.rate]):
        parts.append(f"{figures.rate:.4g} {figures.unit}")
    if finite([figures.share_of_limit]):
        parts.append(f"{format_share(figures.share_of_limit or 0.0)} of the limit")
    if measured is not None:
        quantities = (
            (measured.clock_mhz, "MHz"),
            (measured.sustained_clock_mhz, "MHz sustained"),
            (measured.sustained_watts, "W sustained"),
        )
        parts += [
            f"{value:.0f} {unit}" for value, unit in quantities if value is not None and finite([value])
        ]
        if measured.sustained_skipped:
            parts.append(f"not sustained: {measured.sustained_skipped}")
        parts += measured.problems
    return "; ".join(parts)


def _compiled(cases: Iterable[ReportedCase]) -> Iterator[list[str]]:
    """Yield a row for each launch: current facts, and the baseline's where they differ ("128 (was 96)")."""
    for arch, (current, baseline) in _facts(cases).items():
        before = {} if baseline is None else _numbered(baseline.launches)
        shown = current or baseline
        for number, launch in _numbered(shown.launches if shown is not None else ()).items():
            cells = _cells(launch, arch)
            known = _cells(before[number], arch) if number in before else cells
            yield [
                arch if current is not None else f"{arch}, stored",
                launch.kernel,
                *(
                    cell if cell == old else f"{cell} (was {old})"
                    for cell, old in zip(cells, known, strict=True)
                ),
            ]


def _numbered(launches: Iterable[LaunchFacts]) -> dict[tuple[str, int], LaunchFacts]:
    """Return launches by their kernel, and by how many launches of that kernel came before."""
    counts: Counter[str] = Counter()
    numbered = {}
    for launch in launches:
        numbered[launch.kernel, counts[launch.kernel]] = launch
        counts[launch.kernel] += 1
    return numbered


def _facts(cases: Iterable[ReportedCase]) -> dict[str, tuple[CaseFacts | None, CaseFacts | None]]:
    """Return what was compiled and what is stored, by architecture."""
    facts: dict[str, tuple[CaseFacts | None, CaseFacts | None]] = {}
    for case in cases:
        compiled = next(
            (one.facts for one in case.results if isinstance(one, StaticResult) and one.facts), None
        )
        current = None if compiled is None else msgspec.convert(compiled, CaseFacts)
        baseline = None if case.baseline is None else case.baseline.facts
        if current is not None or case.arch not in facts:
            facts[case.arch] = current, baseline
    return facts


def _cells(launch: LaunchFacts, arch: str) -> list[str]:
    fits: Occupancy | None = occupancy_of(launch, arch)
    spills, shared, registers = launch.stack_bytes, launch.shared_bytes, launch.registers
    counts = (launch.count(one) for one in ("tensor_core", "tma_load", "tma_store"))
    return [
        "?" if registers is None else f"{registers}",
        "?" if spills is None else f"{spills} B",
        "?" if shared is None else f"{shared / 1024:.1f} KiB",
        "?" if fits is None else f"{fits.blocks}",
        *("?" if count is None else f"{count}" for count in counts),
    ]


def _sites(cases: Iterable[ReportedCase]) -> list[tuple[str, str, str]]:
    """Return lines of source with what became of them: place, source, and outcome by architecture."""
    lines: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for arch, (current, baseline) in _facts(cases).items():
        facts = current or baseline
        for launch in facts.launches if facts is not None else ():
            for site in launch.sites or ():
                outcome = f"{site.operation}: {'; '.join([site.outcome, *site.missed])}"
                lines[site.place, site.text][outcome].append(arch)
            for note in launch.notes:
                lines[note.place, ""][note.text].append(arch)
            for spill in launch.spill_lines:
                lines[spill.place, ""][f"{spill.instructions} local loads and stores near here"].append(arch)
    archs = len(_facts(cases))
    return [
        (place, text, f"{outcome} ({', '.join(own)})" if len(own) < archs else outcome)
        for (place, text), outcomes in sorted(lines.items())
        for outcome, own in outcomes.items()
    ]
