"""The text that people read: failure messages and the summary table. At most 100 columns wide."""

from __future__ import annotations

import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_cutile.core.baselines import Entry, environment_changes
from pytest_cutile.core.comparisons import (
    Comparison,
    DuetComparison,
    PublishedComparison,
    StoredComparison,
)
from pytest_cutile.core.results import INTERPRETER, NONDETERMINISTIC, Gate, GateResult
from pytest_cutile.core.speed_rule import Weather
from pytest_cutile.core.static_rules import Effect
from pytest_cutile.core.statistics import median
from pytest_cutile.core.timing import Measurement
from pytest_cutile.core.verdicts import ERRORS, UNDECIDED, Judgement, Reason, Verdict

WIDTH = 100


def format_time(us: float) -> str:
    """Return a time with three to four digits and its unit: "38.81 us", "1.203 ms"."""
    return f"{us:.4g} us" if us < 1000 else f"{us / 1000:.4g} ms"  # noqa: PLR2004


def format_change(change: float) -> str:
    """Return a relative change with its sign: "+6.2 %"."""
    return f"{change:+.1%}".replace("%", " %")


def format_step(then_us: float, now_us: float) -> str:
    """Return two times and the change between them: "38.81 us -> 41.22 us (+6.2 %)"."""
    return f"{format_time(then_us)} -> {format_time(now_us)} ({format_change(now_us / then_us - 1)})"


def format_share(share: float) -> str:
    """Return a share as whole percents: "72 %"."""
    return f"{share:.0%}".replace("%", " %")


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
    weather: Weather,
    seen: Sequence[str] = (),
    baseline_option: str = "",
    names_board: bool = False,
) -> str:
    """Return the message of a regression: both figures, change, spread, environment, how to accept it.

    Args:
        key: of the case.
        nodeid: of its test.
        shown: the measurement in the middle.
        measurements: all, the screening first.
        judgement: what is said about it.
        comparison: what decided.
        environment: now.
        baseline_file: where the baseline is; empty where a duet needs none.
        weather: what the cases of this class share today.
        seen: what was seen on the GPU meanwhile.
        baseline_option: how baselines were chosen on the command line.
        names_board: whether other boards may say something else: the message then names this one.
    """
    device = shown.device
    change = judgement.change or 0.0
    where = f"{device.name}, {device.board}" if names_board else device.name
    revision = comparison.revision if isinstance(comparison, DuetComparison) else ""
    if comparison.baseline_us is not None:
        now, before = shown.median_us, comparison.baseline_us
    else:
        # Where the one is fastest the other need not be: both times are of one place, whose ratio agrees.
        place = min(shown.blocks, key=lambda block: abs(block.log_ratio - math.log1p(change)))
        now, before = place.median_us, place.partner_median_us or math.nan
    # Of stored runs the table says how the times compare, without what the control explains of them.
    tabled = change if revision else now / before - 1
    against = "its baseline" if baseline_file else revision
    if isinstance(comparison, PublishedComparison):
        against = f"the published figure (margin {comparison.published.margin:.0%})"
    lines = [
        f"{key} on {device.arch} ({where}) is {abs(change):.1%} slower than {against}.",
        "",
        *_comparison(shown, now, before, tabled, revision or "baseline"),
        "",
    ]
    screened, *again = measurements
    times = ", ".join(f"{each.median_us:.4g}" for each in again) or "none"
    lines.append(f"  measured    {screened.median_us:.4g} us, then in fresh processes {times} us")
    places = f"{len(shown.blocks)} places of its buffers, the slowest +{shown.placement_spread:.1%}"
    lines.append(f"              each the fastest of {places}")
    if revision:
        lines.append(
            "              the table: the place whose ratio is nearest to the change of all processes"
        )
    if isinstance(comparison, PublishedComparison):
        lines += [f"  baseline    {baseline_file}", f"              {comparison.published.source}"]
    if isinstance(comparison, StoredComparison):
        lines += _baseline_lines(comparison, shown, environment, baseline_file)
    if judgement.reason == Reason.SUITE_SLOWER:
        lines.append(
            f"  and not it alone: the {weather.cases} cases limited by {shown.bound} are "
            f"{math.expm1(weather.shift):.1%} slower in the median: something that they share"
        )
    lines.append("")
    if revision:
        lines[-1:] = [f"  baseline    {revision}, which took turns with it on the same buffers", ""]
    if revision and baseline_file:
        lines[-1:] = [f"              and which {baseline_file} was recorded from", ""]
    if seen:
        lines[-1:] = [f"  the GPU     {'; '.join(seen)}: it disturbed both alike", ""]
    if not baseline_file:
        return "\n".join(lines).rstrip()
    lines += [
        "To accept the slower figure (the reason is stored with it), in the rootdir:",
        f"  pytest {shlex.quote(nodeid)} --arch {device.arch}{baseline_option} \\",
        "    --update-baselines --reason 'why it is slower'",
    ]
    return "\n".join(lines)


def _comparison(shown: Measurement, now: float, before: float, change: float, baseline: str) -> list[str]:
    rows: list[tuple[str, ...]] = [("", "now", baseline, "change")]
    rows.append(("time per launch", format_time(now), format_time(before), format_change(change)))
    if shown.rate is not None:
        rates = [shown.rate * shown.median_us / us for us in (now, before)]
        rows.append((shown.bound, *(f"{rate:.4g}" for rate in rates), format_change(1 / (1 + change) - 1)))
        if shown.share_of_limit is not None:
            shares = [shown.share_of_limit * shown.median_us / us for us in (now, before)]
            rows.append(("share of limit", *map(format_share, shares), ""))
    return align(rows, indent="  ", right={*FIGURES, baseline})


def _baseline_lines(
    comparison: StoredComparison, shown: Measurement, environment: Mapping[str, str], baseline_file: str
) -> list[str]:
    entry, held_against = comparison.entry, comparison.held_against
    runs = held_against.runs
    changes = list(environment_changes(entry.environment, environment))
    if comparison.other_board:
        changes.append("another board of the same kind")
    lines = [f"  baseline    {baseline_file} ({_recorded(entry)})"]
    if runs != entry.runs:
        lines.append(f"              held against this board's {_recorded(held_against)}")
    control, then = shown.best.partner_median_us, [run.control_us for run in runs if run.control_us]
    if shown.control and control and then:
        before = median(then)
        lines.append(
            f"  control     {control:.4g} us, {before:.4g} us then ({format_change(control / before - 1)}): "
            f"{shown.control}"
        )
    clocks = [run.clock_mhz for run in runs if run.clock_mhz]
    if shown.clock_mhz and clocks:
        lines.append(f"  SM clock    {shown.clock_mhz:.0f} MHz, {median(clocks):.0f} MHz then")
    lines.append("  environment " + ("\n              ".join(changes) if changes else "unchanged"))
    return lines


def _recorded(entry: Entry) -> str:
    runs, sessions = len(entry.runs), entry.sessions
    return (
        f"{runs} run{'s' if runs > 1 else ''} in {sessions} session{'s' if sessions > 1 else ''}, "
        f"last {entry.runs[-1].at[:10]}"
    )


def above_limit_message(key: str, measurement: Measurement) -> str:
    """Return the message for a figure that the chip cannot reach."""
    work = measurement.work
    source = measurement.platform.source if measurement.platform else "unknown"
    return (
        f"{key}: {measurement.exceeded} is above what {measurement.device.name} can do.\n"
        f"The measurement or the work count is wrong: {format_time(measurement.median_us)} per launch for "
        f"{work.flops:.4g} flops and {work.bytes:.4g} bytes.\n"
        "Check that work is counted for what is computed (a causal mask halves it), that the kernel does\n"
        "all of it, and that its data is several times the L2 cache. Nothing is compared or recorded.\n"
        f"The limit is from: {source}"
    )


@dataclass(frozen=True)
class SummaryLine:
    """A line of the summary with what its colour says."""

    text: str
    """The line, at most 100 columns."""
    good: bool | None
    """True: fine, False: failed, None: nothing was decided."""


_HEADER = ("kernel", "case", "arch", "time/launch", "rate", "limit", "change", "verdict")
_ALWAYS = 3
"""Columns that are shown even if they are empty: the names."""
_FAILED = {
    Gate.CORRECT.value: "wrong result",
    Gate.COMPILE.value: "does not compile",
    Gate.STATIC.value: "static failed",
    Gate.SPEED.value: "speed failed",
}


def summary(results: Iterable[GateResult], *, verbose: bool = False) -> list[SummaryLine]:
    """Return the summary table: a row per kernel, case and architecture, and what was not measured.

    Rows in which nothing was timed and nothing failed are joined per kernel unless `verbose`.
    """
    results = list(results)
    undecided: dict[str, None] = {}
    for result in results:
        said = result.verdict in UNDECIDED and result.verdict != Verdict.NOT_MEASURED
        if said and result.detail and not result.recorded:
            undecided[f"{result.verdict}: {result.detail}"] = None
    rows: list[tuple[tuple[str, ...], bool | None]] = []
    quiet: dict[tuple[str, str, str], tuple[list[str], bool | None]] = {}
    for (kernel, case, arch, _), gates in rows_of(results).items():
        verdict, good = verdict_of_row(gates)
        speed = gates.get(Gate.SPEED)
        if not verbose and good is not False and (speed is None or speed.median_us is None):
            quiet.setdefault((kernel, verdict, arch), ([], good))[0].append(case)
            continue
        rows.append(((kernel, case, arch, *figures(speed), verdict), good))
    joined: dict[tuple[str, str, int, bool | None], list[str]] = defaultdict(list)
    for (kernel, verdict, arch), (cases, good) in quiet.items():
        joined[kernel, verdict, len(cases), good].append(arch)
    for (kernel, verdict, count, good), archs in joined.items():
        cases_text = f"{count} case{'s' if count > 1 else ''}"
        arch_text = archs[0] if len(archs) == 1 else f"{len(archs)} archs"
        rows.append(((kernel, cases_text, arch_text, "", "", "", "", verdict), good))
    if not rows:
        return []
    table = align(fit(_without_empty_columns([_HEADER, *(row for row, _ in rows)])), rule=True)
    lines = [SummaryLine(table[0], None), SummaryLine(table[1], None)]
    lines += [SummaryLine(text, good) for text, (_, good) in zip(table[2:], rows, strict=True)]
    interpreted = sum(result.on == INTERPRETER for result in results)
    if interpreted:
        lines.append(SummaryLine(interpreted_line(interpreted), None))
    lines += _nondeterministic_lines(results, verbose=verbose)
    lines += _unseen_lines(results, verbose=verbose)
    lines += [
        SummaryLine(_clipped(text, verbose), None)
        for result in results
        for text in result.searched.splitlines()
    ]
    lines += [
        SummaryLine(f"not measured: {counts}: {detail}", None)
        for detail, counts in not_measured(results).items()
    ]
    shown = 5
    lines += [SummaryLine(text, None) for text in list(undecided)[:shown]]
    if len(undecided) > shown:
        lines.append(
            SummaryLine(f"... and {len(undecided) - shown} more; --perf-strict fails with each", None)
        )
    lines += [
        SummaryLine(result.detail, None)
        for result in results
        if result.verdict == Verdict.IMPROVEMENT and result.detail and not result.recorded
    ]
    lines += _static_lines(results, verbose=verbose)
    recorded = Counter(result.recorded for result in results if result.recorded)
    for note, count in recorded.items():
        first, *more = note.splitlines()
        lines.append(SummaryLine(first + (f" ({count} cases)" if count > 1 else ""), None))
        lines += [SummaryLine(text, None) for text in more]
    return lines


def _nondeterministic_lines(results: Sequence[GateResult], *, verbose: bool) -> list[SummaryLine]:
    """Say which kernels are right, but not the same when they run again."""
    cases: dict[str, list[str]] = defaultdict(list)
    for result in results:
        if result.gate == Gate.CORRECT and result.verdict == "pass" and result.reason == NONDETERMINISTIC:
            cases[result.kernel].append(result.case)
    text = "; ".join(f"{kernel}, {_counted(names)}" for kernel, names in sorted(cases.items()))
    return [SummaryLine(_clipped(f"other bits when run again: {text}", verbose), None)] if text else []


def _unseen_lines(results: Sequence[GateResult], *, verbose: bool) -> list[SummaryLine]:
    """Say where a result passed that was held to less than the derived bound, or not compared at all.

    With `verbose` also of which dtypes results are, and which layouts a launcher refused.
    """
    given: dict[tuple[str, str], list[GateResult]] = defaultdict(list)
    uncompared: dict[tuple[str, str], list[str]] = defaultdict(list)
    refused: dict[tuple[str, str], list[str]] = defaultdict(list)
    returned: dict[tuple[str, str], list[str]] = defaultdict(list)
    for result in results:
        if result.gate != Gate.CORRECT or result.verdict != "pass":
            continue
        if verbose and result.outputs:
            returned[result.kernel, result.outputs].append(result.case)
        for layout in result.refused if verbose else ():
            refused[result.kernel, layout].append(result.case)
        if result.tolerance:
            given[result.kernel, result.tolerance].append(result)
        if result.uncompared:
            uncompared[result.kernel, ", ".join(result.uncompared)].append(result.case)
    texts = []
    for (kernel, tolerance), found in sorted(given.items()):
        allowed = f"held to {tolerance}: {kernel}, {_counted([each.case for each in found])}"
        most = max((each.looser for each in found if each.looser is not None), default=None)
        exactly = next((each.allowed for each in found if each.allowed), "")
        said = [
            *([] if most is None else [f"up to {most:.3g} times the derived bound"]),
            *([exactly] if exactly else []),
        ]
        texts.append(": ".join([allowed, *([", or ".join(said)] if said else [])]))
    for (kernel, names), cases in sorted(uncompared.items()):
        texts.append(f"may change, and was compared with nothing: {kernel}, {_counted(cases)}: {names}")
    for (kernel, dtypes), cases in sorted(returned.items()):
        texts.append(f"returned by {kernel}, {_counted(cases)}: {dtypes}")
    for (kernel, layout), cases in sorted(refused.items()):
        texts.append(f"refused by {kernel}, {_counted(cases)}: {layout}")
    return [SummaryLine(_clipped(text, verbose), None) for text in texts]


def _static_lines(results: Sequence[GateResult], *, verbose: bool) -> list[SummaryLine]:
    """Say what compiled to something better or worse, alike ones together, and what a toolchain did."""
    lines: list[SummaryLine] = []
    several = sum(result.gate == Gate.STATIC and result.verdict == Verdict.REGRESSION for result in results)
    for effect, good in ((Effect.WORSE, False), (Effect.BETTER, True), (Effect.DIFFERENT, None)):
        # One that is worse has its failure above; what is only different is for who wants to know.
        if (effect is Effect.WORSE and several < 2) or (effect is Effect.DIFFERENT and not verbose):  # noqa: PLR2004
            continue
        alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for result in results:
            changes = [text for text in result.changes if text.startswith(effect)]
            if changes:
                alike[result.kernel, *changes].append(f"{result.case} {result.arch}")
        found = [
            SummaryLine(_clipped(f"{kernel}, {_counted(where)}: {'; '.join(changes)}", verbose), good)
            for (kernel, *changes), where in alike.items()
        ]
        if len(found) > _SHOWN_ALIKE and not verbose:
            more = len(found) - _SHOWN_ALIKE
            found[_SHOWN_ALIKE:] = [SummaryLine(f"... and {more} more kinds of {effect} code: -v", good)]
        lines += found
    by_change: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        if result.toolchain:
            by_change[result.toolchain][result.reason] += 1
    return lines + [
        SummaryLine(
            f"toolchain, since the static baselines: {change}: "
            + ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items())),
            None,
        )
        for change, reasons in sorted(by_change.items())
    ]


_SHOWN_ALIKE = 8


def _without_empty_columns(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Leave out figures that no row has: where nothing was timed, verdicts need the room."""
    kept = [
        column for column in range(len(rows[0])) if column < _ALWAYS or any(row[column] for row in rows[1:])
    ]
    return [tuple(row[column] for column in kept) for row in rows]


def _counted(where: Sequence[str]) -> str:
    return where[0] if len(where) == 1 else f"{where[0]} and {len(where) - 1} more"


def _clipped(text: str, verbose: bool) -> str:
    return text if len(text) <= WIDTH or verbose else f"{text[: WIDTH - 4]} ..."


def rows_of(results: Iterable[GateResult]) -> dict[tuple[str, str, str, str], dict[str, GateResult]]:
    """Return the results by (kernel, case, arch, key), sorted, and within each by gate.

    Where GPUs of several kinds share an architecture (a fleet of H100s and H200s), "arch" names the GPU, too.
    Of results that several workers have of the same thing, the worst one counts. It keeps its board only
    where their verdicts differ: that is where it was.
    """
    results = list(results)
    gpus: dict[str, set[str]] = defaultdict(set)
    for result in results:
        if result.gpu:
            gpus[result.arch].add(result.gpu)
    rows: dict[tuple[str, str, str, str], dict[str, GateResult]] = defaultdict(dict)
    verdicts: dict[tuple[int, str], set[str]] = defaultdict(set)
    for result in results:
        where = f"{result.arch} {result.gpu}".strip() if len(gpus[result.arch]) > 1 else result.arch
        gates = rows[result.kernel, result.case, where, result.key]
        verdicts[id(gates), result.gate].add(result.verdict)
        if result.gate not in gates or _badness(result) >= _badness(gates[result.gate]):
            gates[result.gate] = result
    for gates in rows.values():
        for gate, result in gates.items():
            if result.board and len(verdicts[id(gates), gate]) == 1:
                gates[gate] = replace(result, board="")
    return {row: rows[row] for row in sorted(rows)}


def _badness(result: GateResult) -> int:
    if result.verdict == "fail":
        return 3
    return 2 if result.verdict == Verdict.REGRESSION else int(result.verdict in UNDECIDED)


def not_measured(results: Iterable[GateResult]) -> dict[str, str]:
    """Return what was not measured: counts by gate ("3 correct, 3 speed"), for each reason in words."""
    counts = Counter(
        (result.detail or result.reason, result.gate)
        for result in results
        if result.verdict == Verdict.NOT_MEASURED
    )
    by_detail: dict[str, list[str]] = defaultdict(list)
    for (detail, gate), count in sorted(counts.items()):
        by_detail[detail].append(f"{count} {gate}")
    return {detail: ", ".join(gates) for detail, gates in by_detail.items()}


def interpreted_line(count: int) -> str:
    """Say that no GPU has run so many cases."""
    return f"correct was checked by interpretation on the CPU: {count} case{'s' if count > 1 else ''}"


def verdict_word(result: GateResult) -> str:
    """Return one result's verdict in words: "wrong result", "regression (worse-code)", "no-baseline"."""
    if result.verdict == "fail":
        if result.reason == Reason.NOT_COMPILED:
            return _FAILED[Gate.COMPILE]
        own = {"raised": f"{result.gate}: raised", "no-compiler": "no compiler"}
        # What the interpreter caught has a name: "out-of-bounds", "race".
        fault = result.on == INTERPRETER and result.reason
        return own.get(result.reason, fault or _FAILED[result.gate]) + _where(result)
    if result.verdict == Verdict.REGRESSION and result.gate == Gate.STATIC:
        return f"{Verdict.REGRESSION} ({result.reason})"
    return f"{result.verdict}{_where(result)}"


def _where(result: GateResult) -> str:
    """Name the board of a row's verdict where others have another one (`rows_of`)."""
    return f" on {result.board}" if result.board else ""


def verdict_of_row(gates: Mapping[str, GateResult]) -> tuple[str, bool | None]:
    """Return the verdict on a case from those of its gates, the worst first, and what its colour says."""
    for gate in (Gate.COMPILE, Gate.STATIC, Gate.CORRECT, Gate.SPEED):
        result = gates.get(gate)
        if result is not None and result.verdict == "fail":
            return verdict_word(result), False
    speed, static = gates.get(Gate.SPEED), gates.get(Gate.STATIC)
    for result in (speed, static):
        if result is not None and result.verdict == Verdict.REGRESSION:
            return verdict_word(result), False
    if speed is not None and speed.verdict != Verdict.NOT_MEASURED:
        good = True if speed.verdict in (Verdict.PASS, Verdict.IMPROVEMENT) else None
        return verdict_word(speed), good
    correct, compiled = gates.get(Gate.CORRECT), gates.get(Gate.COMPILE)
    said = []
    if correct is not None and correct.verdict == "pass":
        said.append("correct (cpu)" if correct.on == INTERPRETER else "correct")
    if compiled is not None and compiled.verdict == "pass":
        said.append("compiles")
    if static is not None and static.verdict != Verdict.NOT_MEASURED:
        said.append(static.reason or static.verdict)
    if any(result is not None and result.verdict == Verdict.NOT_MEASURED for result in (correct, speed)):
        said.append("not-measured")
        broken = speed is not None and speed.reason in ERRORS  # its worker died
        return ", ".join(said), False if broken else None
    return ", ".join(said), True


def figures(speed: GateResult | None) -> tuple[str, str, str, str]:
    """Return time, rate, share of the limit and change as text, empty where there is none."""
    if speed is None or speed.median_us is None:
        return ("", "", "", "")
    return (
        format_time(speed.median_us),
        f"{speed.rate:.4g} {speed.unit}" if speed.rate is not None else "",
        format_share(speed.share_of_limit) if speed.share_of_limit is not None else "",
        format_change(speed.change) if speed.change is not None else "",
    )


def fit(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Shorten kernel and case names until the table is at most WIDTH columns wide."""
    kernel_width = 20
    rows = [(shorten(row[0], kernel_width), *row[1:]) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    over = sum(widths) + 2 * (len(widths) - 1) - WIDTH
    case_width = max(widths[1] - over, 8)
    kernel_width = max(widths[0] - max(over - (widths[1] - case_width), 0), 8)
    return [(shorten(row[0], kernel_width), shorten(row[1], case_width), *row[2:]) for row in rows]


def shorten(text: str, width: int) -> str:
    """Cut the middle of `text`: names differ at their ends."""
    if len(text) <= width:
        return text
    tail = (width - 2) // 2
    return f"{text[: width - 2 - tail]}..{text[-tail:]}"


FIGURES = frozenset({"time/launch", "rate", "limit", "change", "now", "baseline"})
"""Headers of columns of figures."""


def align(
    rows: Sequence[tuple[str, ...]],
    *,
    indent: str = "",
    rule: bool = False,
    right: Collection[str] = FIGURES,
) -> list[str]:
    """Align `rows` in columns: text left, figures (every column whose header is in `right`) right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for index, row in enumerate(rows):
        cells = [
            cell.rjust(width) if head in right else cell.ljust(width)
            for cell, width, head in zip(row, widths, rows[0], strict=True)
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
        if rule and index == 0:
            lines.append("  ".join("-" * width for width in widths))
    return lines


def speed_word(result: GateResult) -> str:
    """Return one case's progress line: time, rate, change, verdict ("38.8 us, 3459 GB/s, +0.3 %, pass")."""
    return ", ".join([*filter(None, figures(result)), result.verdict])
