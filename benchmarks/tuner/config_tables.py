"""The tables of configurations in `kernels/`: the entry that a launcher used, and a better one."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

LINE = 110


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A configuration in a table of a kernel's module."""

    table: str
    """Name of the table: "CONFIGS"."""
    path: tuple[Any, ...]
    """Keys from the table to the entry: ("sm_90",)."""
    first: int
    """Its first line, counted from 0, with the comment above it that speaks of it alone."""
    end: int
    """The line after its last."""
    indent: str
    """What its lines begin with."""
    key: str
    """Source of its key, as it is."""


def config_source(config: Any) -> str:
    """Return a configuration as Python source; fields that have their default are left out."""
    if not is_dataclass(config):
        return repr(config)
    given = [
        f"{each.name}={getattr(config, each.name)!r}"
        for each in fields(config)
        if each.default is MISSING or getattr(config, each.name) != each.default
    ]
    return f"{type(config).__name__}({', '.join(given)})"


def entry_lines(key: str, source: str, comment: str, *, indent: str = "    ") -> list[str]:
    """Return the lines of an entry: what was measured, then the configuration."""
    lines = [f"{indent}# {line}" for line in wrap(comment, LINE - len(indent) - 2, break_on_hyphens=False)]
    line = f"{indent}{key}: {source},"
    if len(line) <= LINE:
        return [*lines, line]
    name, _, rest = source.partition("(")
    inner = [f"{indent}    {argument.strip()}," for argument in rest.removesuffix(")").split(", ")]
    return [*lines, f"{indent}{key}: {name}(", *inner, f"{indent}),"]


def find_entry(module: Any, arch: str, committed: Mapping[str, Any]) -> Entry | str:
    """Return the one entry for `arch` whose fields are `committed`, or why it cannot be told.

    Args:
        module: a kernel's module, whose tables are dicts (of dicts) with configurations at their leaves.
        arch: "sm_90": one of the keys on the way, or in a key that is a tuple.
        committed: the fields of the configuration that the launcher chose.
    """
    text = Path(inspect.getsourcefile(module) or "").read_text(encoding="utf-8")
    found = []
    for name, table in _tables(text):
        for path, key, value in _leaves(table, ()):
            keys = [part for each in path for part in (each if isinstance(each, tuple) else (each,))]
            if arch not in keys:
                continue
            config = getattr(module, name)
            for each in path:
                config = config[each]
            if is_dataclass(config) and _fields(config) == dict(committed):
                found.append(_entry(text, name, path, key, value))
    if len(found) == 1:
        return found[0]
    if not found:
        return f"no entry of a table for {arch} is the configuration that the launcher chose"
    return f"{len(found)} entries for {arch} are the configuration that the launcher chose"


def replace_entry(module: Any, entry: Entry, source: str, comment: str) -> None:
    """Write a configuration and what was measured in place of `entry`."""
    file = Path(inspect.getsourcefile(module) or "")
    lines = file.read_text(encoding="utf-8").splitlines()
    lines[entry.first : entry.end] = entry_lines(entry.key, source, comment, indent=entry.indent)
    text = "\n".join(lines) + "\n"
    ast.parse(text)
    file.write_text(text, encoding="utf-8")


def _fields(config: Any) -> dict[str, Any]:
    return {each.name: getattr(config, each.name) for each in fields(config)}


def _tables(text: str) -> Iterator[tuple[str, ast.Dict]]:
    """Yield the dicts that are assigned to names in capitals at the top of a module."""
    for statement in ast.parse(text).body:
        targets: Sequence[ast.expr] = ()
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        value = getattr(statement, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and target.id.isupper() and isinstance(value, ast.Dict):
                yield target.id, value


def _leaves(table: ast.Dict, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], ast.expr, ast.expr]]:
    """Yield the path, key and value of each entry that is no dict itself."""
    for key, value in zip(table.keys, table.values, strict=True):
        try:
            name = ast.literal_eval(key) if key is not None else None
        except ValueError:
            continue
        if key is None or name is None:
            continue
        if isinstance(value, ast.Dict):
            yield from _leaves(value, (*path, name))
        elif isinstance(value, ast.Call):
            yield (*path, name), key, value


def _entry(text: str, table: str, path: tuple[Any, ...], key: ast.expr, value: ast.expr) -> Entry | str:
    """Return the entry's place, or why it has none of its own."""
    lines = text.splitlines()
    first, end = key.lineno - 1, (value.end_lineno or value.lineno)
    indent, rest = lines[first][: key.col_offset], lines[end - 1][value.end_col_offset or 0 :]
    if indent.strip() or rest.strip() != ",":
        return f"the entry {path} of {table} shares its lines with others"
    if not lines[end].strip().startswith(("#", "}")):
        return f"the entry {path} of {table} shares its comment with the entries below it"
    own = first
    while lines[own - 1].strip().startswith("#"):
        own -= 1
    return Entry(
        table=table,
        path=path,
        first=own,
        end=end,
        indent=indent,
        key=ast.get_source_segment(text, key) or repr(path[-1]),
    )
