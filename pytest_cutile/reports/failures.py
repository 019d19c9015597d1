"""Messages of the speed gate's and the static gate's failures: what, where, by how much, why, the command."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_cutile.baselines.entries import Entry, StaticEntry, environment_changes
from pytest_cutile.quantities import counted, format_change, format_share, format_time
from pytest_cutile.reports.document import (
    Block,
    Code,
    Column,
    Document,
    Facts,
    Paragraph,
    Row,
    Table,
)
from pytest_cutile.reports.text import WIDTH, render_text
from pytest_cutile.speed.comparisons import (
    Comparison,
    PairedComparison,
    PublishedComparison,
    StoredComparison,
)
from pytest_cutile.speed.decide import SessionEffect
from pytest_cutile.speed.measure.timing import Measurement
from pytest_cutile.static.changes import Change, Effect, StaticComparison
from pytest_cutile.static.facts import CaseFacts
from pytest_cutile.statistics import median
from pytest_cutile.verdicts import Judgement, Reason

_SHOWN_DIFFERENCES = 8


def _accept(what: str, nodeid: str, arch: str, baseline_option: str) -> list[Block]:
    """Return the command that accepts a regression of `nodeid`."""
    command = f"pytest {shlex.quote(nodeid)} --arch {arch}{baseline_option} \\\n"
    return [
        Paragraph("To accept it, in the rootdir (the reason is stored with the baseline):"),
        Code(f"{command}  --update-baselines --reason 'why it is {what}'"),
    ]


# -- speed ------------------------------------------------------------------------------------------


def regression_message(
    *,
    key: str,
    nodeid: str,
    shown: Measurement,
    measurements: Sequence[Measurement],
    judgement: Judgement,
    comparison: Comparison,
    environment: Mapping[str, str],
    baseline_file: str,
    effect: SessionEffect,
    seen: Sequence[str] = (),
    baseline_option: str = "",
    names_gpu: bool = False,
) -> str:
    """Return the message of a slower case.

    Args:
        key: Key of the case.
        nodeid: Node id of its test.
        shown: The median measurement.
        measurements: All of them, the screening first.
        judgement: The verdict.
        comparison: The comparison that decided.
        environment: Of this run.
        baseline_file: Where the baseline is; empty where a paired measurement needs none.
        effect: What this session did to the cases of the stratum.
        seen: Problems that were seen on the GPU meanwhile.
        baseline_option: How baselines were chosen on the command line.
        names_gpu: Whether the run uses several GPUs, so that the message has to name this one.
    """
    device = shown.device
    change = judgement.change or 0.0
    where = f"{device.name}, {device.gpu_id}" if names_gpu else device.name
    against = "its baseline"
    baseline_title = "baseline"
    baseline_us = comparison.baseline_us
    slowest = format_change(shown.placement_spread)
    placements = f"fastest of {len(shown.blocks)} buffer placements; the slowest is {slowest}"
    measured = [_measured(measurements), placements]
    facts: list[tuple[str, Sequence[str]]] = [("measured", measured)]
    current_us = shown.median_us
    # Stored times are shown as they were measured, without what the reference workload explains of them.
    tabled = change if baseline_us is None else current_us / baseline_us - 1
    match comparison:
        case PairedComparison(revision=revision):
            against, baseline_title = (against if baseline_file else revision), revision
            # Where one is fastest the other need not be: both times are of the placement that agrees best.
            block = min(shown.blocks, key=lambda block: abs(block.log_ratio - math.log1p(change)))
            current_us, baseline_us = block.median_us, block.interleaved_median_us
            measured.append("table: the placement whose ratio is nearest to the change over all processes")
            source = [f"commit that {baseline_file} was recorded from"] if baseline_file else []
            paired = f"{revision}, interleaved with the working tree on the same buffers"
            facts.append(("baseline", [paired, *source]))
        case PublishedComparison(published=published):
            against = f"the published figure (margin {published.margin:.0%})"
            facts.append(("baseline", [baseline_file, published.source]))
        case StoredComparison():
            facts += _stored_facts(comparison, shown, environment, baseline_file)
    if judgement.reason == Reason.SUITE_SLOWER:
        shift = f"{math.expm1(effect.shift):.1%} slower in the median: a shared cause"
        facts.append(("suite", [f"the {effect.cases} cases limited by {shown.bound} are {shift}"]))
    if seen:
        facts.append(("GPU", [f"{'; '.join(seen)} (disturbed both alike)"]))
    blocks: list[Block] = [
        _speed_table(shown, current_us, baseline_us or math.nan, tabled, baseline_title),
        Facts(facts),
    ]
    if baseline_file:
        blocks += _accept("slower", nodeid, device.arch, baseline_option)
    title = f"{key} on {device.arch} ({where}) is {abs(change):.1%} slower than {against}."
    return render_text(Document(title, blocks))


def _measured(measurements: Sequence[Measurement]) -> str:
    screened, *again = [f"{measurement.median_us:.4g}" for measurement in measurements]
    return f"{screened} us, then in fresh processes {', '.join(again) or 'none'} us"


def _speed_table(
    shown: Measurement, current_us: float, baseline_us: float, change: float, baseline_title: str
) -> Table:
    times = (current_us, baseline_us)
    rows = [Row(("time per launch", *map(format_time, times), format_change(change)))]
    if shown.rate is not None:
        rates = [f"{shown.rate * shown.median_us / us:.4g}" for us in times]
        rows.append(Row((shown.bound, *rates, format_change(1 / (1 + change) - 1))))
    if shown.rate is not None and shown.share_of_limit is not None:
        shares = [format_share(shown.share_of_limit * shown.median_us / us) for us in times]
        rows.append(Row(("share of limit", *shares, "")))
    figures = [Column(title, right=True) for title in ("current", baseline_title, "change")]
    return Table([Column(""), *figures], rows)


def _stored_facts(
    comparison: StoredComparison, shown: Measurement, environment: Mapping[str, str], baseline_file: str
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield what the baseline is and what else differs between its runs and the measurement."""
    entry, selected = comparison.entry, comparison.selected
    runs = selected.runs
    recorded = [f"{baseline_file} ({_recorded(entry)})"]
    if runs != entry.runs:
        recorded.append(f"compared with this GPU's {_recorded(selected)}")
    yield "baseline", recorded
    reference_us = shown.best.interleaved_median_us
    stored_us = [run.workload_us for run in runs if run.workload_us]
    if shown.reference_workload and reference_us and stored_us:
        before_us = median(stored_us)
        times = f"{reference_us:.4g} us, baseline {before_us:.4g} us"
        change = format_change(reference_us / before_us - 1)
        yield "reference", [f"{times} ({change}): {shown.reference_workload}"]
    clocks = [run.clock_mhz for run in runs if run.clock_mhz]
    if shown.clock_mhz and clocks:
        yield "SM clock", [f"{shown.clock_mhz:.0f} MHz, baseline {median(clocks):.0f} MHz"]
    changes = list(environment_changes(entry.environment, environment))
    if comparison.other_gpu:
        changes.append("another GPU of the same model")
    yield "environment", changes or ["unchanged"]


def _recorded(entry: Entry) -> str:
    return (
        f"{counted(len(entry.runs), 'run')} in {counted(entry.sessions, 'session')}, "
        f"last {entry.runs[-1].at[:10]}"
    )


# -- static -----------------------------------------------------------------------------------------


def static_message(
    *,
    key: str,
    arch: str,
    nodeid: str,
    entry: StaticEntry,
    current: CaseFacts,
    comparison: StaticComparison,
    toolchain: Mapping[str, str],
    baseline_file: str,
    baseline_option: str = "",
) -> str:
    """Return the message of a case that compiles to something worse than its baseline."""
    worse, better, different = (comparison.of(effect) for effect in Effect)
    # What has a line in the source says most.
    different.sort(key=lambda change: not (change.place or change.detail))
    more = len(different) - _SHOWN_DIFFERENCES
    changes = [*worse, *better, *different[:_SHOWN_DIFFERENCES]]
    differences: list[tuple[str, Sequence[str]]] = [(change.effect, _changed(change)) for change in changes]
    if more > 0:
        differences.append(("", [f"... and {counted(more, 'more difference')}"]))
    recorded = f"{entry.provenance.get('at', '')[:10]}, commit {entry.provenance.get('commit') or 'unknown'}"
    facts = [
        ("cause", [_cause(entry, toolchain, same_source=entry.facts.source == current.source)]),
        ("baseline", [f"{baseline_file} ({recorded.removeprefix(', ')})"]),
        *(("unknown", [text]) for text in current.missing),
    ]
    blocks = [
        Facts(differences),
        Facts(facts),
        Paragraph("Nothing was run: the compiled code was compared."),
        *_accept("worse", nodeid, arch, baseline_option),
    ]
    first = replace(worse[0], detail="").text if worse else "?"
    more_worse = f" (and {len(worse) - 1} more)" if len(worse) > 1 else ""
    title = f"{key} for {arch} compiles to something worse: {first}{more_worse}"
    return render_text(Document(title, blocks))


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
