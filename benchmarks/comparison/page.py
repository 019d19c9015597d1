"""The comparison with other libraries as text for a terminal, and as the page docs/comparison.md."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.comparison.bounds import explain
from benchmarks.comparison.case import COPY
from benchmarks.comparison.goals import TILEGYM, find_misses, find_unjudged, rival
from benchmarks.gpu_runs.measure import geometric_mean
from benchmarks.gpu_runs.tables import aligned, markdown

Case = Mapping[str, Any]


INTRODUCTION = """\
Made by `python -m benchmarks.compare_kernels`, which anyone with a GPU can run; TileGym is optional. With
`--from benchmarks/data/*-comparison-*.json --markdown docs/comparison.md` it makes this page of what it
measured. Each case and its peers take turns in one run, timed by the speed gate's own timer: CUDA events
inside a CUDA graph, the L2 flushed before every launch, the buffers at up to eight places in memory. A time
is the median of the fastest place. A ratio is the peer's time over ours, so above 1 ours is faster: the
median over the places, and between brackets the second lowest and second highest of eight (lowest and highest
of fewer). The last column of a table is the number of the run."""
MEANS = """\
Of a peer's time over ours; the number of cases is in brackets. `torch` is the one with the lowest ratio of
all that a PyTorch user would call, `copy` of two ways to copy as many bytes. Peers that compute something
else, or faster than the chip can, do not count."""


def case_text(found: Case) -> str:
    """Return a case as text: a line for us and for each peer."""
    ours = found["ours"]
    rows = [("ours", *_speed(ours), "")]
    for name, peer in sorted(found["peers"].items(), key=lambda item: float(item[1]["us_per_launch"])):
        rows.append((name, *_speed(peer), _ratio(peer)))
    lines = [f"{found['kernel']}[{found['case']}]", aligned(("", "us", "rate", "of peak", "ratio"), rows)]
    lines += [
        f"  {name} differs: {peer['differs']}" for name, peer in found["peers"].items() if peer["differs"]
    ]
    lines += [f"  {name} is missing: {why}" for name, why in found["missing"].items()]
    lines += [f"  DOUBTFUL: {problem}" for problem in found["problems"]]
    lines += [f"  {line}" for line in impossible(found)]
    return "\n".join(lines)


def impossible(found: Case) -> Iterator[str]:
    """Yield a warning for each figure that is above what the chip can do."""
    for name, each in {"ours": found["ours"], **found["peers"]}.items():
        if each["exceeded"]:
            yield (
                f"!!! IMPOSSIBLE: {name} {each['exceeded']}: the work count or the timing of "
                f"{found['kernel']}[{found['case']}] is wrong, or {name} does not do all of the work"
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
    parts += [line for found in cases for line in impossible(found)]
    return "\n".join(parts)


def page(
    documents: Sequence[Mapping[str, Any]], *, everything: Sequence[tuple[str, str]] | None = None
) -> str:
    """Return docs/comparison.md for what was measured in one or several runs.

    Args:
        documents: of the runs, the oldest first.
        everything: suites and names of all cases that there are; the page says which were not measured.
    """
    cases = merged(documents)
    by_kernel: dict[str, list[Case]] = defaultdict(list)
    for found in cases:
        by_kernel[found["kernel"]].append(found)
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
    warnings = [line for found in cases for line in impossible(found)]
    if warnings:
        parts += ["## Above the chip's limits", "\n".join(f"- {line}" for line in warnings)]
    for kernel, found_cases in sorted(by_kernel.items()):
        parts += [f"## {kernel}", _kernel_markdown(found_cases, runs), *_notes(found_cases)]
    measured = {_name(found) for found in cases}
    errors = {
        name: why.partition("\n")[0]
        for document in documents
        for name, why in document["errors"].items()
        if name not in measured
    }
    if errors:
        parts += ["## Not measured", "\n".join(f"- {name}: {why}" for name, why in errors.items())]
    left: dict[str, list[str]] = defaultdict(list)
    for suite, case in everything or ():
        if f"{suite}[{case}]" not in measured | errors.keys():
            left[suite].append(f"`{case}`")
    if left:
        head = f"{sum(map(len, left.values()))} of {len(everything or ())} cases of benchmarks/suite:"
        lines = [f"- {suite}: {', '.join(cases)}" for suite, cases in left.items()]
        parts += ["## Not compared yet", head, "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def merged(documents: Sequence[Mapping[str, Any]]) -> list[Case]:
    """Return the cases of several runs, the oldest first, each once: as the last run measured it."""
    found = {(case["suite"], case["case"]): case for document in documents for case in document["cases"]}
    return [*found.values()]


# -- parts of it ------------------------------------------------------------------------------------


def _name(found: Case) -> str:
    return f"{found['suite']}[{found['case']}]"


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
    for found in cases:
        by_kernel[found["kernel"]].append(found)
    rows = []
    for kernel, group in [*sorted(by_kernel.items()), ("all", list(cases))]:
        cells = [kernel]
        for kind in kinds:
            pairs = [pair for found in group if (pair := rival(found, kind)) is not None]
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
    names = list(dict.fromkeys(name for found in cases for name in found["peers"]))
    rows = []
    for found in cases:
        row = [f"`{found['case']}`", *_speed(found["ours"])]
        for name in names:
            peer = found["peers"].get(name)
            row.append(f"{peer['us_per_launch']:.1f}: {_ratio(peer)}" if peer else "-")
        rows.append([*row, f"{runs[_name(found)]}"])
    return markdown(("case", "us", "rate", "of peak", *(f"{name}, us: ratio" for name in names), "run"), rows)


def _notes(cases: Sequence[Case]) -> list[str]:
    """Return what has to be said below a kernel's table: once, with the cases that it is about."""
    notes: dict[str, list[str]] = defaultdict(list)
    for found in cases:
        for name, why in found["missing"].items():
            notes[f"{name} is missing: {why}"].append(found["case"])
        for name, peer in found["peers"].items():
            if peer.get("on_stream"):
                why = "cannot be captured into a CUDA graph: both were timed on a stream, with its overhead"
                notes[f"{name} {why}"].append(found["case"])
            if peer["differs"]:
                notes[f"{name} computes something else"].append(found["case"])
        for problem in found["problems"]:
            notes[f"doubtful: {problem}"].append(found["case"])
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
    runs = {}
    for document in documents:
        number = numbers.setdefault(_origin(document), len(numbers) + 1)
        runs |= {_name(found): number for found in document["cases"]}
    return runs


def _origins(documents: Sequence[Mapping[str, Any]], runs: Mapping[str, int]) -> list[str]:
    """Return date and environment of each run, and of which kernels it measured how many cases last."""
    shown = []
    for number, origin in enumerate(dict.fromkeys(map(_origin, documents)), 1):
        suites = Counter(name.partition("[")[0] for name, run in runs.items() if run == number)
        shown.append(f"{origin}: {', '.join(f'{suite} {count}' for suite, count in sorted(suites.items()))}")
    return shown
