"""The comparison with other libraries, for a terminal and as research/reports/comparison.md."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tools.comparison.bounds import explain
from tools.comparison.case import COPY
from tools.comparison.goals import TILEGYM, find_misses, find_unjudged, rival
from tools.gpu_runs.measure import geometric_mean
from tools.gpu_runs.tables import aligned, markdown

Case = Mapping[str, Any]


INTRODUCTION = """\
Made by `python -m tools.compare_kernels`, which anyone with a GPU can run; TileGym is optional. With
`--from research/data/*-comparison-*.json --markdown research/reports/comparison.md` it makes this page of
what it measured. Each case and its peers are interleaved in one run, timed by the speed gate's own timer:
CUDA events inside a CUDA graph, the L2 flushed before every launch, the buffers at up to eight places in
memory. A time is the median of the fastest place. A ratio is the peer's time over ours, so above 1 ours is
faster: the median over the places, and between brackets the second lowest and second highest of eight (lowest
and highest of fewer). The last column of a table is the number of the run."""
MEANS = """\
Of a peer's time over ours; the number of cases is in brackets. `torch` is the one with the lowest ratio of
all that a PyTorch user would call, `copy` of two ways to copy as many bytes. Peers that compute something
else, or faster than the chip can, do not count."""


def case_text(case: Case) -> str:
    """Return a case as text: a line for us and for each peer."""
    ours = case["ours"]
    rows = [("ours", *_speed(ours), "")]
    for name, peer in sorted(case["peers"].items(), key=lambda item: float(item[1]["us_per_launch"])):
        rows.append((name, *_speed(peer), _ratio(peer)))
    lines = [f"{case['kernel']}[{case['case']}]", aligned(("", "us", "rate", "of peak", "ratio"), rows)]
    lines += [
        f"  {name} differs: {peer['differs']}" for name, peer in case["peers"].items() if peer["differs"]
    ]
    lines += [f"  {name} is missing: {why}" for name, why in case["missing"].items()]
    lines += [f"  DOUBTFUL: {problem}" for problem in case["problems"]]
    lines += [f"  {line}" for line in impossible(case)]
    return "\n".join(lines)


def impossible(case: Case) -> Iterator[str]:
    """Yield a warning for each figure that is above what the chip can do."""
    for name, figures in {"ours": case["ours"], **case["peers"]}.items():
        if figures["exceeded"]:
            yield (
                f"!!! IMPOSSIBLE: {name} {figures['exceeded']}: the work count or the timing of "
                f"{case['kernel']}[{case['case']}] is wrong, or {name} does not do all of the work"
            )


def summary_text(cases: Sequence[Case]) -> str:
    """Return geometric means and what is below the goals, as text."""
    header, rows = _means(cases)
    parts = [
        "Geometric means of a peer's time over ours (in brackets: number of cases)",
        aligned(header, rows),
    ]
    misses = [
        (
            miss.what,
            miss.peer,
            f"{miss.ratio:.3f}",
            f"{miss.goal.least:g}",
            _certainty(miss.decided),
            miss.goal.why,
        )
        for miss in find_misses(cases)
    ]
    if misses:
        parts += ["", "Below the goals", aligned(("what", "beside", "ratio", "goal", "", ""), misses)]
    else:
        parts += ["", _no_misses(cases)]
    parts += [line for case in cases for line in impossible(case)]
    return "\n".join(parts)


def page(
    documents: Sequence[Mapping[str, Any]], *, everything: Sequence[tuple[str, str]] | None = None
) -> str:
    """Return research/reports/comparison.md for what was measured in one or several runs.

    Args:
        documents: of the runs, the oldest first.
        everything: suites and names of all cases that there are; the page says which were not measured.
    """
    cases = merged(documents)
    by_kernel: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_kernel[case["kernel"]].append(case)
    runs = _runs(documents)
    parts = [
        "# Beside other libraries",
        INTRODUCTION,
        "## Where and when",
        "\n".join(f"{number}. {line}" for number, line in enumerate(_origins(documents, runs), 1)),
        "## Geometric means",
        MEANS,
        markdown(*_means(cases)),
        "## Below the goals",
        _misses_markdown(cases),
    ]
    unjudged = [
        f"- {goal.why} ({goal.peers}): {', '.join(f'`{name}`' for name in names)}"
        for goal, names in find_unjudged(cases)
    ]
    if unjudged:
        parts += ["Not judged, because the peer was not measured:", "\n".join(unjudged)]
    warnings = [line for case in cases for line in impossible(case)]
    if warnings:
        parts += ["## Above the chip's limits", "\n".join(f"- {line}" for line in warnings)]
    for kernel, group in sorted(by_kernel.items()):
        parts += [f"## {kernel}", _kernel_markdown(group, runs), *_notes(group)]
    measured = {_name(case) for case in cases}
    errors = {
        name: why.partition("\n")[0]
        for document in documents
        for name, why in document["errors"].items()
        if name not in measured
    }
    if errors:
        parts += ["## Not measured", "\n".join(f"- {name}: {why}" for name, why in errors.items())]
    left: dict[str, list[str]] = defaultdict(list)
    for suite, name in everything or ():
        if f"{suite}[{name}]" not in measured | errors.keys():
            left[suite].append(f"`{name}`")
    if left:
        head = f"{sum(map(len, left.values()))} of {len(everything or ())} cases of tools/suite:"
        lines = [f"- {suite}: {', '.join(cases)}" for suite, cases in left.items()]
        parts += ["## Not compared yet", head, "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def merged(documents: Sequence[Mapping[str, Any]]) -> list[Case]:
    """Return the cases of several runs, the oldest first, each once: as the last run measured it."""
    newest = {(case["suite"], case["case"]): case for document in documents for case in document["cases"]}
    return [*newest.values()]


# -- parts of it ------------------------------------------------------------------------------------


def _name(case: Case) -> str:
    return f"{case['suite']}[{case['case']}]"


def _speed(figures: Mapping[str, Any]) -> tuple[str, str, str]:
    rate, share = figures["rate"], figures["share_of_peak"]
    return (
        f"{figures['us_per_launch']:.2f}",
        f"{rate:.4g} {figures['bound']}" if rate else "",
        f"{100 * share:.0f} %" if share else "",
    )


def _ratio(peer: Mapping[str, Any]) -> str:
    ratio = peer["ratio"]
    return f"{ratio['value']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]" + (
        " differs" * bool(peer["differs"]) + " (on a stream)" * bool(peer.get("on_stream"))
    )


def _no_misses(cases: Sequence[Case]) -> str:
    return "Nothing that was measured is below the goals." if cases else "Nothing was measured."


def _certainty(decided: bool) -> str:
    return "" if decided else "within the spread"


def _means(cases: Sequence[Case]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the table of geometric means: a row for each kernel, and one for all."""
    kinds = (TILEGYM, "torch", COPY)
    by_kernel: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_kernel[case["kernel"]].append(case)
    rows = []
    for kernel, group in [*sorted(by_kernel.items()), ("all", list(cases))]:
        cells = [kernel]
        for kind in kinds:
            pairs = [pair for case in group if (pair := rival(case, kind)) is not None]
            ratios = [float(peer["ratio"]["value"]) for _, peer in pairs]
            cells.append(f"{geometric_mean(ratios):.2f} ({len(ratios)})" if ratios else "-")
        rows.append(tuple(cells))
    return ("kernel", *kinds), rows


def _misses_markdown(cases: Sequence[Case]) -> str:
    rows = [
        (
            f"`{miss.what}`",
            miss.peer,
            f"{miss.ratio:.3f}",
            f"{miss.goal.least:g}",
            f"{miss.goal.why}{'' if miss.decided else ' (within the spread)'}",
        )
        for miss in find_misses(cases)
    ]
    if not rows:
        return _no_misses(cases)
    table = markdown(("what", "beside", "ratio", "goal", "which is"), rows)
    cases_below = [miss.what for miss in find_misses(cases) if miss.needs_reason]
    bounds = [f"- {', '.join(f'`{name}`' for name in names)}: {why}" for why, names in explain(cases_below)]
    return "\n\n".join(
        [
            table,
            "What bounds those that are below beyond their spread, or by more than 1 %:",
            "\n".join(bounds),
        ]
    )


def _kernel_markdown(cases: Sequence[Case], runs: Mapping[str, int]) -> str:
    """Return a kernel's table: a column for each peer, and the run that measured it last."""
    names = list(dict.fromkeys(name for case in cases for name in case["peers"]))
    rows = []
    for case in cases:
        row = [f"`{case['case']}`", *_speed(case["ours"])]
        for name in names:
            peer = case["peers"].get(name)
            row.append(f"{peer['us_per_launch']:.1f}: {_ratio(peer)}" if peer else "-")
        rows.append([*row, f"{runs[_name(case)]}"])
    return markdown(("case", "us", "rate", "of peak", *(f"{name}, us: ratio" for name in names), "run"), rows)


def _notes(cases: Sequence[Case]) -> list[str]:
    """Return what has to be said below a kernel's table: once, with the cases that it is about."""
    notes: dict[str, list[str]] = defaultdict(list)
    for case in cases:
        for name, why in case["missing"].items():
            notes[f"{name} is missing: {why}"].append(case["case"])
        for name, peer in case["peers"].items():
            if peer.get("on_stream"):
                why = "cannot be captured into a CUDA graph: both were timed on a stream, with its overhead"
                notes[f"{name} {why}"].append(case["case"])
            if peer["differs"]:
                notes[f"{name} computes something else"].append(case["case"])
        for problem in case["problems"]:
            notes[f"doubtful: {problem}"].append(case["case"])
    lines = [
        f"- {note} ({'all cases' if len(about) == len(cases) else ', '.join(about)})"
        for note, about in notes.items()
    ]
    return ["\n".join(lines)] if lines else []


def _origin(document: Mapping[str, Any]) -> str:
    """Return when and where a run was."""
    environment = ", ".join(f"{key} {value}" for key, value in document["environment"].items())
    return f"{document['date'][:10]}: {environment}"


def _runs(documents: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of the run that measured a case last, by name; those of one origin are one run."""
    numbers: dict[str, int] = {}
    runs: dict[str, int] = {}
    for document in documents:
        number = numbers.setdefault(_origin(document), len(numbers) + 1)
        runs |= {_name(case): number for case in document["cases"]}
    return runs


def _origins(documents: Sequence[Mapping[str, Any]], runs: Mapping[str, int]) -> list[str]:
    """Return date and environment of each run, and of which kernels it measured how many cases last."""
    shown = []
    for number, origin in enumerate(dict.fromkeys(map(_origin, documents)), 1):
        suites = Counter(name.partition("[")[0] for name, run in runs.items() if run == number)
        shown.append(f"{origin}: {', '.join(f'{suite} {count}' for suite, count in sorted(suites.items()))}")
    return shown
