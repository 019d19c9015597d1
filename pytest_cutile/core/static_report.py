"""The text of the static gate: the message of a regression, and the report of what was compiled."""

from __future__ import annotations

import shlex
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from pytest_cutile.core.report import WIDTH, align
from pytest_cutile.core.results import GateResult
from pytest_cutile.core.static_baselines import StaticEntry
from pytest_cutile.core.static_facts import CLASS_TITLES, CaseFacts, LaunchFacts
from pytest_cutile.core.static_json import from_json
from pytest_cutile.core.static_rules import Change, Comparison, Effect, occupancy_of

_KIB = 1024
_SHOWN_DIFFERENCES = 8


# -- a regression -----------------------------------------------------------------------------------


def static_message(
    *,
    key: str,
    arch: str,
    nodeid: str,
    entry: StaticEntry,
    comparison: Comparison,
    same_source: bool,
    toolchain_changes: Sequence[str],
    toolchain: Mapping[str, str],
    baseline_file: str,
    baseline_option: str = "",
    missing: Sequence[str] = (),
) -> str:
    """Return the message of a regression: what is worse and where, who changed, how to accept it."""
    worse, better = comparison.of(Effect.WORSE), comparison.of(Effect.BETTER)
    # What has a line in the source says most.
    different = sorted(
        comparison.of(Effect.DIFFERENT), key=lambda change: not (change.place or change.detail)
    )
    if toolchain_changes:
        source = "the kernel's source is the same" if same_source else "the kernel's source changed, too"
        cause = f"another toolchain ({'; '.join(toolchain_changes)}); {source}"
    else:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(toolchain.items()))
        what = "its source, or what it is specialized for, changed"
        if same_source:
            what = "its source is the same, so its launch or the compiler's choice differs"
        cause = f"{what}; same toolchain ({versions})"
    provenance = entry.provenance
    recorded = ", ".join(
        part
        for part in (provenance.get("at", "")[:10], f"commit {provenance.get('commit') or 'unknown'}")
        if part
    )
    lines = [
        headline(key, arch, worse),
        "",
        *(f"  worse      {text}" for text in _wrapped(worse)),
        *(f"  better     {text}" for text in _wrapped(better)),
        *(f"  different  {text}" for text in _wrapped(different[:_SHOWN_DIFFERENCES])),
    ]
    if len(different) > _SHOWN_DIFFERENCES:
        lines.append(f"             ... and {len(different) - _SHOWN_DIFFERENCES} more differences")
    lines += [
        "",
        f"  cause      {cause}",
        f"  baseline   {baseline_file} ({recorded})",
        *(f"  unknown    {what}" for what in missing),
        "",
        "Nothing was run: this is what the compiler made of it. To accept it (the reason is stored):",
        f"  pytest {shlex.quote(nodeid)} --arch {arch}{baseline_option} \\",
        "    --update-baselines --reason 'why it is worse'",
    ]
    return "\n".join(lines)


def headline(key: str, arch: str, worse: Sequence[Change]) -> str:
    """Return one line for logs and summaries: the case and what is worse first."""
    more = f" (and {len(worse) - 1} more)" if len(worse) > 1 else ""
    first = replace(worse[0], detail="").text if worse else "?"
    return f"{key} for {arch} compiles to something worse: {first}{more}"


def _wrapped(changes: Iterable[Change]) -> list[str]:
    """Return a line for each change; a long reason goes to a line of its own."""
    indent = " " * 15
    lines = []
    for change in changes:
        text = change.text
        if len(text) > WIDTH - 13 and change.detail:
            folded = textwrap.fill(
                change.detail, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False
            )
            text = text.removesuffix(f" ({change.detail})") + f"\n{folded}"
        lines.append(text)
    return lines


# -- what was compiled ------------------------------------------------------------------------------


def kernel_report(
    results: Iterable[GateResult], *, source_line: Callable[[str, int], str] = lambda _file, _line: ""
) -> list[str]:
    """Return a section for each kernel: resources and the compiler's choices, architectures as columns.

    Cases of a kernel that were compiled to the same on every architecture share a table.

    Args:
        results: Results of the static gate with `facts`.
        source_line: Returns the text of a line of source.
    """
    by_kernel: dict[str, dict[str, dict[str, tuple[CaseFacts, GateResult]]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for result in results:
        if result.facts is not None:
            by_kernel[result.kernel][result.case][result.arch] = from_json(result.facts), result
    lines: list[str] = []
    for kernel, cases in sorted(by_kernel.items()):
        tables: dict[object, list[str]] = defaultdict(list)
        for case, by_arch in cases.items():
            tables[_sameness(by_arch)].append(case)
        for alike in tables.values():
            by_arch = cases[alike[0]]
            lines += ["", f"{kernel}: {_listed(alike)}"]
            lines += _case_tables(by_arch, source_line)
    return lines[1:]


def _listed(cases: Sequence[str]) -> str:
    """Return the names of cases, wrapped."""
    lines = [""]
    for case in cases:
        if lines[-1] and len(lines[-1]) + len(case) > WIDTH - 20:
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{case}"
    return ",\n    ".join(lines)


def _sameness(by_arch: Mapping[str, tuple[CaseFacts, GateResult]]) -> object:
    return tuple(
        (arch, result.verdict, repr([{**vars(launch), "grid": ()} for launch in facts.launches]))
        for arch, (facts, result) in sorted(by_arch.items())
    )


def _case_tables(
    by_arch: Mapping[str, tuple[CaseFacts, GateResult]], source_line: Callable[[str, int], str]
) -> list[str]:
    named = {arch: _named(facts.launches) for arch, (facts, _) in by_arch.items()}
    names = list(dict.fromkeys(name for launches in named.values() for name in launches))
    lines = []
    for position, name in enumerate(names):
        columns: dict[str, dict[str, str]] = {}
        reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
        for arch, (_, result) in by_arch.items():
            launch = named[arch].get(name)
            if launch is None:
                continue
            columns[arch] = _cells(launch, arch)
            if position == 0:
                columns[arch]["verdict"] = f"{result.reason or result.verdict}"
            for place, text in _remarks(launch):
                reasons[place, text].append(arch)
        lines += [f"  {name}", *_tables(columns, source_line)]
        lines += [
            f"  {place} ({_archs(archs, by_arch)}): {text}"
            for (place, text), archs in sorted(reasons.items())
        ]
    return lines


def _named(launches: Iterable[LaunchFacts]) -> dict[str, LaunchFacts]:
    """Return launches by their kernel's name, numbered where there are several of one."""
    named: dict[str, LaunchFacts] = {}
    for launch in launches:
        number = 2
        name = launch.kernel
        while name in named:
            name = f"{launch.kernel}, launch {number}"
            number += 1
        named[name] = launch
    return named


def _archs(some: Sequence[str], everything: Iterable[str]) -> str:
    return "all" if list(some) == list(everything) and len(some) > 1 else ", ".join(some)


def _cells(launch: LaunchFacts, arch: str) -> dict[str, str]:
    """Return the cells of one column, in the order of the rows."""
    fits = occupancy_of(launch, arch)
    cells = {
        "launches": str(launch.times),
        "registers per thread": _or_unknown(launch.registers),
        "spills per thread": _size(launch.stack_bytes),
        "shared memory": _size(launch.shared_bytes),
        "threads": _or_unknown(launch.threads),
        "blocks per SM": "?" if fits is None else str(fits.blocks),
        "limited by": "?"
        if fits is None
        else "+".join(fits.limited_by).replace("shared memory", "shared mem"),
        "code": _size(launch.code_bytes),
        "instructions": _or_unknown(launch.instruction_count),
    }
    if launch.ctas not in (None, 1):
        cells["thread blocks per cluster"] = str(launch.ctas)
    for kind, title in CLASS_TITLES.items():
        count = launch.count(kind)
        if count is None or launch.instructions is None:
            cells[title] = "?"
        elif kind == "tensor_core" and count:
            by_name = launch.instructions[kind]
            cells[title] = ", ".join(f"{number} {name}" for name, number in by_name.items())
        else:
            cells[title] = str(count)
    seen: dict[str, int] = defaultdict(int)
    for site in launch.sites or ():
        row = f"{site.place} {site.operation}"
        seen[row] += 1
        cells[row + (f" #{seen[row]}" if seen[row] > 1 else "")] = site.outcome
    return cells


def _or_unknown(value: int | None) -> str:
    return "?" if value is None else str(value)


def _size(value: int | None) -> str:
    if value is None:
        return "?"
    return f"{value} B" if value < _KIB else f"{value / _KIB:.1f} KiB"


def _remarks(launch: LaunchFacts) -> list[tuple[str, str]]:
    missed = [(site.place, text) for site in launch.sites or () for text in site.missed]
    spilled = [
        (line.place, f"{line.instructions} local loads and stores near here") for line in launch.spill_lines
    ]
    return [*missed, *((note.place, note.text) for note in launch.notes), *spilled]


def _tables(columns: Mapping[str, Mapping[str, str]], source_line: Callable[[str, int], str]) -> list[str]:
    """Return the columns side by side, in as many tables as their widths need."""
    rows = list(dict.fromkeys(row for cells in columns.values() for row in cells))
    places = [row for row in rows if ":" in row]
    rows = [*(row for row in rows if row not in places), *sorted(places, key=_by_line)]
    empty = {row for row in rows if all(cells.get(row, "0") in ("0", "") for cells in columns.values())}
    if all(cells["launches"] == "1" for cells in columns.values()):
        empty.add("launches")
    rows = [row for row in rows if row not in empty]
    titles = [_titled(row, source_line) for row in rows]
    left = max(map(len, titles), default=0)
    lines: list[str] = []
    pending = list(columns)
    while pending:
        taken = [pending.pop(0)]
        while pending and _width([*taken, pending[0]], columns) + left <= WIDTH - 2:
            taken.append(pending.pop(0))
        head = ("", *taken)
        body = [
            (title, *(columns[arch].get(row, "-") for arch in taken))
            for title, row in zip(titles, rows, strict=True)
        ]
        lines += ["", *align([head, *body], indent="    ")] if lines else align([head, *body], indent="    ")
    return lines


def _by_line(row: str) -> tuple[str, int, str]:
    file, _, rest = row.partition(":")
    return file, int(rest.split()[0]), rest


def _width(archs: Sequence[str], columns: Mapping[str, Mapping[str, str]]) -> int:
    return sum(2 + max(len(arch), *map(len, columns[arch].values())) for arch in archs)


def _titled(row: str, source_line: Callable[[str, int], str]) -> str:
    """Return a row's title; that of a remark shows its line of source."""
    place, _, rest = row.partition(" ")
    file, _, line = place.rpartition(":")
    if not file or not line.isdigit():
        return row
    text = source_line(file, int(line)).strip()
    name = f"{file.rpartition('/')[2]}:{line} {rest}"
    return f"{name}  {text[: 40 - len(name)]}".rstrip() if len(name) < 32 else name  # noqa: PLR2004
