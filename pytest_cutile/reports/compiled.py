"""What kernels were compiled to (`--kernel-report`): a table for each launch, architectures as columns."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import msgspec

from pytest_cutile.tile.static.facts import CaseFacts, LaunchFacts
from pytest_cutile.tile.static.instructions import CLASSES
from pytest_cutile.tile.static.rules import occupancy_of
from pytest_cutile.words.document import Column, Document, DocumentBlock, Paragraph, Row, Section, Table
from pytest_cutile.words.results import Result, StaticResult

_RowKey: TypeAlias = tuple[str, int, str]
"""File and line that a row is about ("" and 0: none), and its title."""
_KIB = 1024
_SOURCE_WIDTH = 40
"""Characters of the first column that shows a line of source beside its place."""


def compiled_document(results: Iterable[Result]) -> Document:
    """Return a section for each kernel: resources and the compiler's choices.

    Cases of a kernel that were compiled to the same on every architecture share a section.
    """
    by_kernel: dict[str, dict[str, dict[str, tuple[CaseFacts, StaticResult]]]] = {}
    for result in results:
        if isinstance(result, StaticResult) and result.facts is not None:
            cases = by_kernel.setdefault(result.kernel, {})
            cases.setdefault(result.case, {})[result.arch] = msgspec.convert(result.facts, CaseFacts), result
    blocks: list[DocumentBlock] = []
    for kernel, cases in sorted(by_kernel.items()):
        alike: dict[object, list[str]] = defaultdict(list)
        for case, by_arch in cases.items():
            alike[_sameness(by_arch)].append(case)
        first_cases = {", ".join(names): cases[names[0]] for names in alike.values()}
        blocks += [Section(f"{kernel}: {names}", [*_launches(case)]) for names, case in first_cases.items()]
    nothing = Paragraph("nothing: no test of the static gate compiled a kernel (is it deselected?)")
    return Document("what the kernels were compiled to", blocks or [nothing])


def _sameness(by_arch: Mapping[str, tuple[CaseFacts, StaticResult]]) -> object:
    return tuple(
        (arch, result.verdict, repr([msgspec.structs.replace(launch, grid=()) for launch in facts.launches]))
        for arch, (facts, result) in sorted(by_arch.items())
    )


def _launches(by_arch: Mapping[str, tuple[CaseFacts, StaticResult]]) -> Iterator[DocumentBlock]:
    """Yield a table for each launch, and the compiler's remarks with their architectures."""
    named = {arch: named_launches(facts) for arch, (facts, _) in by_arch.items()}
    names = list(dict.fromkeys(name for launches in named.values() for name in launches))
    for number, name in enumerate(names):
        columns: dict[str, dict[_RowKey, str]] = {}
        remarks: dict[tuple[str, str], list[str]] = defaultdict(list)
        for arch, (_, result) in by_arch.items():
            launch = named[arch].get(name)
            if launch is None:
                continue
            resources = _resources(launch, arch)
            if number == 0:
                resources["verdict"] = f"{result.reason or result.verdict}"
            columns[arch] = {("", 0, title): text for title, text in resources.items()} | _sites(launch)
            missed = [(site.place, text) for site in launch.sites or () for text in site.missed]
            for remark in (*missed, *notes_of(launch)):
                remarks[remark].append(arch)
        yield Section(name, [_table(columns)])
        for (place, text), archs in sorted(remarks.items()):
            where = "all" if archs == [*by_arch] and len(archs) > 1 else ", ".join(archs)
            yield Paragraph(f"{place} ({where}): {text}")


def named_launches(facts: CaseFacts | None) -> dict[str, LaunchFacts]:
    """Return launches by their kernel's name, numbered where there are several of one kernel."""
    named: dict[str, LaunchFacts] = {}
    counts: Counter[str] = Counter()
    for launch in facts.launches if facts is not None else ():
        counts[launch.kernel] += 1
        number = counts[launch.kernel]
        named[f"{launch.kernel}, launch {number}" if number > 1 else launch.kernel] = launch
    return named


def _resources(launch: LaunchFacts, arch: str) -> dict[str, str]:
    fits = occupancy_of(launch, arch)
    limits = "?" if fits is None else "+".join(fits.limited_by).replace("shared memory", "shared mem")
    cells = {
        "launches": str(launch.times),
        "registers per thread": or_unknown(launch.registers),
        "spills per thread": size(launch.stack_bytes),
        "shared memory": size(launch.shared_bytes),
        "threads": or_unknown(launch.threads),
        "blocks per SM": or_unknown(None if fits is None else fits.blocks),
        "limited by": limits,
        "code": size(launch.code_bytes),
        "instructions": or_unknown(launch.instruction_count),
    }
    if launch.ctas not in (None, 1):
        cells["thread blocks per cluster"] = str(launch.ctas)
    cells |= {
        title: or_unknown(launch.count(instruction_class))
        for instruction_class, (title, _) in CLASSES.items()
    }
    if products := tensor_core_text(launch):
        cells[CLASSES["tensor_core"][0]] = products
    return cells


def tensor_core_text(launch: LaunchFacts) -> str:
    """Return the tensor-core instructions: "16 HGMMA"; "" if there are none, or nothing is known."""
    products = (launch.instructions or {}).get("tensor_core", {})
    return ", ".join(f"{count} {name}" for name, count in products.items())


def _sites(launch: LaunchFacts) -> dict[_RowKey, str]:
    """Return what became of loads, stores and products, with the line of source where there is room."""
    rows: dict[_RowKey, str] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for site in launch.sites or ():
        seen[site.place, site.operation] += 1
        number = seen[site.place, site.operation]
        name = f"{site.file.rpartition('/')[2]}:{site.line} {site.operation}"
        title = f"{name} #{number}" if number > 1 else name
        if len(title) <= _SOURCE_WIDTH - 10:
            title = f"{title}  {site.text}"[:_SOURCE_WIDTH].rstrip()
        rows[site.file, site.line, title] = site.outcome
    return rows


def or_unknown(value: int | None) -> str:
    return "?" if value is None else f"{value}"


def size(value: int | None) -> str:
    if value is None:
        return "?"
    return f"{value} B" if value < _KIB else f"{value / _KIB:.1f} KiB"


def notes_of(launch: LaunchFacts) -> list[tuple[str, str]]:
    """Return what else is known of lines of the source: places, with the compiler's notes or with spills."""
    spilled = [
        (line.place, f"{line.instructions} local loads and stores near here") for line in launch.spill_lines
    ]
    return [*((note.place, note.text) for note in launch.notes), *spilled]


def _table(columns: Mapping[str, Mapping[_RowKey, str]]) -> Table:
    """Return the columns side by side without the rows that are 0 everywhere; places in the source last."""
    shown = [
        key
        for key in dict.fromkeys(key for cells in columns.values() for key in cells)
        if any(cells.get(key, "0") not in ("0", "") for cells in columns.values())
    ]
    launches = ("", 0, "launches")
    if all(cells[launches] == "1" for cells in columns.values()):
        shown.remove(launches)
    shown.sort(key=lambda key: key if key[0] else ("", 0, ""))
    rows = [Row((key[2], *(cells.get(key, "-") for cells in columns.values()))) for key in shown]
    return Table([Column(""), *map(Column, columns)], rows)
