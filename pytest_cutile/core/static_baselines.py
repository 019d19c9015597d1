"""Static baselines: one JSON file per architecture, with what the compiler made of each case."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_cutile.core.baseline_files import (
    BaselineError,
    bad_entry,
    one_line,
    read_document,
    rewriting,
    write_document,
)
from pytest_cutile.core.static_facts import CaseFacts
from pytest_cutile.core.static_json import from_json, to_json

SCHEMA = 1
"""Version of the file's form that this release writes and reads."""
_SUFFIX = "-static.json"


@dataclass(frozen=True, kw_only=True)
class StaticEntry:
    """What one case is compared with."""

    facts: CaseFacts
    """What was compiled."""
    toolchain: Mapping[str, str]
    """Versions of what compiled it: {"cuda-tile": "1.7.0", "tileiras": "13.4.92"}."""
    provenance: Mapping[str, str]
    """Who recorded it, when, from which commit, and the reason if it was worse than what it replaced."""


@dataclass(frozen=True, kw_only=True)
class StaticFile:
    """The recorded entries of one architecture."""

    arch: str
    """Architecture they were compiled for."""
    entries: Mapping[str, StaticEntry] = field(default_factory=dict)
    """By case key, e.g. "softmax[bf16-4096x8192]"."""


def is_static(path: Path) -> bool:
    """Return whether `path` is named as a file of static baselines is."""
    return path.name.endswith(_SUFFIX)


def static_path(base: Path, arch: str) -> Path:
    """Return the file for an architecture: in the folder `base`, or beside the baseline file `base`."""
    folder = base.parent if base.suffix == ".json" else base
    return folder / f"{arch}{_SUFFIX}"


def recorded_architectures(base: Path) -> set[str]:
    """Return the architectures that there are static baselines of."""
    folder = base.parent if base.suffix == ".json" else base
    return {path.name.removesuffix(_SUFFIX) for path in folder.glob(f"*{_SUFFIX}")}


def read_static(path: Path, arch: str) -> StaticFile | None:
    """Read the static baselines of `arch`; None when there are none.

    Raises:
        BaselineError: the file cannot be used, or is about another architecture.
    """
    data = read_document(path, schema=SCHEMA)
    if data is None:
        return None
    key = "arch"
    try:
        found = data["arch"]
        entries = {}
        raw_entries: Mapping[str, Any] = data[key := "entries"]
        for name, raw in raw_entries.items():
            key = f"entries / {name}"
            entries[name] = StaticEntry(
                facts=from_json(raw),
                toolchain={str(k): str(v) for k, v in raw["toolchain"].items()},
                provenance={str(k): str(v) for k, v in raw["provenance"].items()},
            )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise bad_entry(path, key, error) from error
    if found != arch:
        raise BaselineError(f"{path} holds baselines of {found}, not of {arch}: was it copied? Rename it.")
    return StaticFile(arch=arch, entries=entries)


def record_static(
    path: Path, key: str, *, arch: str, renew: Callable[[StaticEntry | None], StaticEntry | None]
) -> None:
    """Put `renew(the entry as it is on disk now)` into the file at `path`, under a lock.

    Nothing is written when `renew` returns None.

    Raises:
        BaselineError: the existing file cannot be used, or cannot be written.
    """
    with rewriting(path) as file:
        existing = read_static(file, arch) or StaticFile(arch=arch)
        entry = renew(existing.entries.get(key))
        if entry is not None:
            write_document(file, render(StaticFile(arch=arch, entries={**existing.entries, key: entry})))


def render(file: StaticFile) -> str:
    """Return the text of a file: sorted, a few lines per case, one line per remark."""
    blocks = []
    for name in sorted(file.entries):
        entry = file.entries[name]
        raw = to_json(entry.facts)
        launches = ",\n".join(_render_launch(launch) for launch in raw["launches"])
        blocks.append(
            f"  {json.dumps(name)}: {{\n"
            f'   "identity": {json.dumps(raw["identity"])}, "source": {json.dumps(raw["source"])},\n'
            f'   "toolchain": {one_line(entry.toolchain)},\n'
            f'   "provenance": {one_line(entry.provenance)},\n'
            f'   "launches": [\n{launches}\n   ]\n'
            "  }"
        )
    body = ",\n".join(blocks)
    head = f' "schema": {SCHEMA},\n "arch": {json.dumps(file.arch)},\n'
    return f'{{\n{head} "entries": {{\n{body}\n }}\n}}\n'


def _render_launch(launch: Mapping[str, Any]) -> str:
    lists = ("sites", "notes", "spill_lines")
    numbers = {key: value for key, value in launch.items() if key not in (*lists, "instructions")}
    lines = [one_line(numbers)[1:-1]]
    if "instructions" in launch:
        lines.append(f'"instructions": {one_line(launch["instructions"])}')
    for name in lists:
        if name in launch:
            items = ",\n".join(f"      {one_line(item)}" for item in launch[name])
            lines.append(f'"{name}": [\n{items}\n     ]' if items else f'"{name}": []')
    return "    {" + ",\n     ".join(lines) + "}"
