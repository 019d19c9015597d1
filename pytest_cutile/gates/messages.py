"""Messages of the speed gate's and the static gate's failures: what, where, by how much, why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_cutile.baselines.entries import StaticEntry, environment_changes
from pytest_cutile.gates.speed.comparison import Comparison, Paired, PublishedFigure, StoredTimes
from pytest_cutile.gates.speed.rule import Decision
from pytest_cutile.tile.static.changes import Change, Effect, StaticComparison
from pytest_cutile.words.document import Column, Document, Facts, Row, Table
from pytest_cutile.words.quantities import counted, format_change, format_share, format_time
from pytest_cutile.words.text import WIDTH, render_text
from pytest_cutile.words.timing import Measurement, Regime
from pytest_cutile.words.verdicts import Reason

if TYPE_CHECKING:
    from pytest_cutile.gates.speed.pending import PendingCase
    from pytest_cutile.tile.static.facts import CaseFacts

_SHOWN_DIFFERENCES = 6
_IN_REGIME = {Regime.BURST: "in bursts", Regime.SUSTAINED: "under sustained load"}


def _not_shown(differences: Sequence[object]) -> list[str]:
    """Return a line that says how many differences of the compiled code are not shown, if any."""
    more = len(differences) - _SHOWN_DIFFERENCES
    return [f"... and {counted(more, 'more difference')}"] if more > 0 else []


# -- speed ------------------------------------------------------------------------------------------


def regression_message(
    *,
    case: PendingCase,
    comparison: Comparison,
    baseline_file: str,
    names_gpu: bool = False,
    compiled_otherwise: Sequence[str] = (),
) -> str:
    """Return the message of a slower case.

    Args:
        case: The case, decided.
        comparison: What it was compared with.
        baseline_file: Where the baseline is; empty where `git:REV` needs none.
        names_gpu: Whether the run uses several GPUs, so that the message has to name this one.
        compiled_otherwise: What the compiler made otherwise than in the baseline's commit, worst first.
    """
    device, change = case.shown.device, case.judgement.change or 0.0
    causes: list[tuple[str, Sequence[str]]] = [
        ("cause", [_cause_of_slowdown(case, comparison)]),
        ("environment", comparison.environment_changes),
        ("compiler", [*compiled_otherwise[:_SHOWN_DIFFERENCES], *_not_shown(compiled_otherwise)]),
    ]
    decisive: Comparison = comparison
    if case.judgement.reason == Reason.ENVIRONMENT and isinstance(comparison, Paired):
        decisive = comparison.without_baseline_kernel("the baseline kernel is as slow")
    evidence = [("measured", _measured(case)), *_limit_and_baseline(case, decisive, baseline_file)]
    where = f"{device.name}, {device.gpu_id}" if names_gpu else device.name
    revision = comparison.revision if isinstance(comparison, Paired) else ""
    than = _slower_than(case, comparison, "its baseline" if baseline_file else revision)
    title = f"{case.case.key} on {device.arch} ({where}) is {abs(change):.1%} slower than {than}."
    return render_text(Document(title, [Facts(causes), _speed_table(case, decisive), Facts(evidence)]))


def _slower_than(case: PendingCase, comparison: Comparison, baseline: str) -> str:
    """Return what a case is slower than, and in which regime."""
    if isinstance(comparison, PublishedFigure):
        return f"the published figure (margin {comparison.published.margin:.0%})"
    if case.judgement.reason == Reason.ENVIRONMENT:
        return "recorded"
    slower = [regime for regime, decision in case.decisions.items() if decision is Decision.SLOWER]
    return f"{baseline} {' and '.join(_IN_REGIME[regime] for regime in slower)}".rstrip()


def _cause_of_slowdown(case: PendingCase, comparison: Comparison) -> str:
    """Return whether the code or something else has made a case slower, as far as that is known."""
    if case.judgement.reason == Reason.ENVIRONMENT:
        is_paired = isinstance(comparison, Paired)
        proof = "its baseline kernel is as slow now" if is_paired else "the code is as recorded"
        return f"the environment, not the code: {proof}"
    match comparison:
        case Paired():
            return "the code: the baseline kernel, interleaved with it in this run, is faster"
        case StoredTimes():
            other = "the environment" if comparison.environment_changes else "this GPU's condition"
            why = comparison.unavailable
            return f"the code or {other}: no baseline kernel was measured with it ({why})"
        case _:
            return "unknown: a published figure has no kernel to measure this one with"


def _speed_table(case: PendingCase, comparison: Comparison) -> Table:
    """Return each regime's figures: both kernels', means over the fresh processes, and the recorded ones."""
    rows = []
    for regime in Regime:
        measured = _measured_in(case, regime)
        current = _mean(one.us(regime) for one in measured)
        change = comparison.change(measured, regime)
        if current is None and change is None:
            continue
        kernel_us = _mean(one.baseline_us(regime) for one in measured)
        other_us = None if isinstance(comparison, Paired) else comparison.baseline_us(measured, regime)
        times = (current, kernel_us, other_us)
        cells = ["" if us is None else format_time(us) for us in times]
        estimated = comparison.estimate(measured, regime)
        interval = ""
        if estimated is not None and _is_evidence(case, measured):
            interval = " to ".join(map(format_change, estimated.interval()))
        shown_change = "" if change is None else format_change(change)
        rows.append(Row((f"{regime}: time per launch", *cells, shown_change, interval)))
        rows.append(Row(("rate, of the limit", *(_rate(case.shown, us) for us in times), "", "")))
        if regime is Regime.SUSTAINED:
            rows += _power_rows(measured)
    other = "recorded" if case.judgement.reason == Reason.ENVIRONMENT else "baseline"
    titles = ("current", "baseline kernel", other, "change", "95 % interval")
    rows = [row for row in rows if any(row.cells[1:])]
    return Table([Column(""), *(Column(title, right=True) for title in titles)], rows)


def _rate(measurement: Measurement, us: float | None) -> str:
    """Return the rate at a time per launch, and its share of the GPU's limit: "2358 GB/s, 49 %"."""
    rate = None if us is None else measurement.rate_at(us)
    if us is None or rate is None:
        return ""
    share = measurement.share_of_limit
    of_limit = "" if share is None else f", {format_share(share * measurement.headline_us / us)}"
    return f"{rate:.4g} {measurement.unit}{of_limit}"


def _measured_in(case: PendingCase, regime: Regime) -> Sequence[Measurement]:
    """Return what the fresh processes measured in a regime; the first process's, where none of them did."""
    return [one for one in case.measurements if regime in one.regimes] or [case.screening]


def _is_evidence(case: PendingCase, measured: Sequence[Measurement]) -> bool:
    """Say whether measurements are the fresh processes': the first process only selected the suspect."""
    return measured[0] in case.measurements


def _power_rows(measured: Iterable[Measurement]) -> Iterator[Row]:
    """Yield clocks and watts of both kernels under sustained load, where they differ most."""
    sustained = [one.sustained for one in measured if one.sustained is not None]
    for title, unit, current, baseline in (
        ("SM clock", "MHz", "current_clock_mhz", "baseline_clock_mhz"),
        ("power", "W", "current_watts", "baseline_watts"),
    ):
        values = [_mean(getattr(one, name) for one in sustained) for name in (current, baseline)]
        yield Row((title, *(f"{value:.0f} {unit}" if value else "" for value in values), "", "", ""))


def _measured(case: PendingCase) -> list[str]:
    """Return in how many processes a case was measured, and how certain that is."""
    count = len(case.repeats)
    processes = f"{count} {'' if case.records else 'fresh '}process{'es' if count != 1 else ''}"
    measured = [processes if case.records else f"in {processes}, after a first one that is not counted"]
    measured += [text for regime in Regime if (text := _noise(case, regime))]
    if case.screening.sustained_skipped is not None:
        measured.append(f"sustained: skipped, {case.screening.sustained_skipped.reason}")
    return measured


def _limit_and_baseline(
    case: PendingCase, comparison: Comparison, baseline_file: str
) -> list[tuple[str, Sequence[str]]]:
    """Return from when on a case is slower, what disturbed the GPU, and what the baseline is."""
    rule, problems, limits = comparison.rule, "; ".join(case.problems), []
    match comparison:
        case Paired():
            least, margin = f"{rule.margin / 2:.1%}", f"{rule.margin:.1%}"
            limit = f"a slowdown of {least}, if noise cannot explain it; one of {margin} is not to be missed"
            limits = [limit]
            problems = problems and f"{problems} (disturbed both kernels alike)"
            of = f", which {baseline_file} was recorded from" if baseline_file else ""
            baseline = [f"the kernel of {comparison.revision[:12]}{of}, interleaved on the same buffers"]
            if comparison.anchor is not None and comparison.anchor.reason:
                baseline.append(f"accepted because: {comparison.anchor.reason}")
        case PublishedFigure():
            baseline = [baseline_file, comparison.published.source]
        case _:
            limits = [f"{comparison.stored_margin:.1%}, since other sessions have measured the stored times"]
            stored = next(iter(comparison.stored.values()), None)
            runs = stored and f" ({counted(stored.n_runs, 'run')} on {counted(stored.gpus, 'GPU')})"
            baseline = [f"stored times of {baseline_file}{runs or ''}"]
    return [("limit", limits), ("GPU", [problems] if problems else []), ("baseline", baseline)]


def _noise(case: PendingCase, regime: Regime) -> str:
    """Return by how much processes and placements differ in a regime, and the clock; "" if not measured."""
    measured = [one for one in _measured_in(case, regime) if one.us(regime) is not None]
    if not measured:
        return ""
    if not _is_evidence(case, measured):
        return f"{regime}: in the first process alone, no evidence"
    parts = [f"{regime}: processes within {case.scatter(regime):.1%}"]
    if regime is Regime.BURST:
        parts.append(f"placements of the buffers within {max(one.placement_spread for one in measured):.1%}")
        clock = _mean(one.clock_mhz for one in measured)
        parts += [] if clock is None else [f"SM clock {clock:.0f} MHz"]
    return ", ".join(parts)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


# -- static -----------------------------------------------------------------------------------------


def static_message(
    *,
    key: str,
    arch: str,
    entry: StaticEntry,
    current: CaseFacts,
    comparison: StaticComparison,
    toolchain: Mapping[str, str],
    baseline: str,
) -> str:
    """Return the message of a case that compiles to something worse than its baseline.

    `baseline` names the file or the revision of the baseline.
    """
    worse, different = comparison.of(Effect.WORSE), comparison.of(Effect.DIFFERENT)
    # What has a line in the source says most.
    different.sort(key=lambda change: not (change.place or change.detail))
    changes = [*worse, *different[:_SHOWN_DIFFERENCES]]
    differences: list[tuple[str, Sequence[str]]] = [(change.effect, _changed(change)) for change in changes]
    differences.append(("", _not_shown(different)))
    at, commit = entry.provenance.get("at", "")[:10], entry.provenance.get("commit", "")
    recorded = ", ".join(filter(None, [at, commit and f"commit {commit}"]))
    facts = [
        ("cause", [_cause(entry, toolchain, same_source=entry.facts.source == current.source)]),
        ("baseline", [f"{baseline} ({recorded})" if recorded else baseline]),
        *(("unknown", [text]) for text in current.missing),
        ("note", ["nothing was run: the compiled code was compared"]),
    ]
    first = replace(worse[0], detail="").text if worse else "?"
    more_worse = f" (and {len(worse) - 1} more)" if len(worse) > 1 else ""
    title = f"{key} for {arch} compiles to something worse: {first}{more_worse}"
    return render_text(Document(title, [Facts(differences), Facts(facts)]))


def _changed(change: Change) -> list[str]:
    """Return a change in one line, and a long reason on a line of its own."""
    if len(change.text) > WIDTH - 14 and change.detail:
        return [replace(change, detail="").text, change.detail]
    return [change.text]


def _cause(entry: StaticEntry, toolchain: Mapping[str, str], *, same_source: bool) -> str:
    if changes := environment_changes(entry.toolchain, toolchain):
        source = "the kernel's source is the same" if same_source else "the kernel's source changed, too"
        return f"another toolchain ({'; '.join(changes)}); {source}"
    versions = ", ".join(f"{name} {version}" for name, version in sorted(toolchain.items()))
    if same_source:
        what = "its source is the same, so its launch or the compiler's choice differs"
    else:
        what = "its source, or what it is specialized for, changed"
    return f"{what}; same toolchain ({versions})"
