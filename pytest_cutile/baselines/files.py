"""Baselines as JSON files: read strictly, written atomically under a lock, laid out for diffs.

Speed baselines of a platform are in `<arch>-<gpu>.json`, static ones of an architecture in
`<arch>-static.json`.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pytest_cutile.baselines.entries import (
    Entry,
    RecordedSession,
    SpeedBaselines,
    StaticBaselines,
    StaticEntry,
    is_commit,
)
from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.tile.static.facts import CaseFacts
from pytest_cutile.words.locking import replacing, write_text
from pytest_cutile.words.platforms.lookup import gpu_slug
from pytest_cutile.words.spec import Work

SCHEMA = 1
"""Version of the form that this release writes and reads."""
MAX_BYTES = 32 * 2**20
"""Size of a file above which it is refused unread. 200 cases on 20 GPUs take about 10 MiB."""
# Characters that control a terminal, end lines or reorder text, and surrogates, which cannot be printed.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_STATIC = "-static.json"
_RESTORE = "Restore it from version control"
_Form = TypeVar("_Form")


# -- names --------------------------------------------------------------------------------------------


def is_static(path: Path) -> bool:
    return path.name.endswith(_STATIC)


def speed_path(base: Path, arch: str, gpu: str) -> Path:
    """Return the file of a platform: `base` itself if it is a JSON file, else <arch>-<gpu>.json in it."""
    return base if base.suffix == ".json" else base / f"{arch}-{gpu_slug(gpu)}.json"


def static_path(base: Path, arch: str) -> Path:
    """Return the file of an architecture: in the folder `base`, or beside the file `base`."""
    return _folder(base) / f"{arch}{_STATIC}"


def static_arch(path: Path) -> str:
    return path.name.removesuffix(_STATIC)


def static_architectures(base: Path) -> set[str]:
    return {static_arch(path) for path in _folder(base).glob(f"*{_STATIC}")}


def _folder(base: Path) -> Path:
    return base.parent if base.suffix == ".json" else base


# -- reading ------------------------------------------------------------------------------------------


def read_speed(path: Path) -> SpeedBaselines | None:
    data = _read(path)
    return None if data is None else speed_baselines(path, data)


def speed_baselines(path: Path, data: Mapping[str, Any]) -> SpeedBaselines:
    _refuse_unknown(path, data, ("schema", *SpeedBaselines.__struct_fields__))
    arch = _required(path, data, "arch", str)
    # A mistyped name would make these the baselines of another platform, with which no run compares.
    if not re.fullmatch(r"sm_\d+", arch):
        raise _EntryError(path, "arch", f"{arch!r:.40} is not a name such as sm_90")
    gpu = _required(path, data, "gpu", str)
    if not gpu:
        raise _EntryError(path, "gpu", f"{gpu!r:.40} is not a GPU's name")
    sessions = {
        name: _converted(path, f"sessions / {name}", raw, RecordedSession)
        for name, raw in _required(path, data, "sessions", dict[str, Any]).items()
    }
    raw_entries = _required(path, data, "entries", dict[str, Any])
    entries = {name: _speed_entry(path, name, raw, sessions) for name, raw in raw_entries.items()}
    return SpeedBaselines(arch=arch, gpu=gpu, sessions=sessions, entries=entries).in_order()


def _speed_entry(path: Path, name: str, raw: Any, sessions: Mapping[str, RecordedSession]) -> Entry:
    key = f"entries / {name}"
    entry = _converted(path, key, raw, Entry)
    works = {f"{key} / records / {place}": record for place, record in enumerate(raw.get("records", ()))}
    if entry.published is not None:
        works[f"{key} / published"] = raw["published"]
    for place, holder in works.items():
        _refuse_unknown(path, holder["work"], [field.name for field in fields(Work)], f"{place} / work")
    names = [record.session for record in entry.records]
    for number, session in enumerate(names):
        if session not in sessions or session in names[:number]:
            problem = "is there twice" if session in names[:number] else "is not in sessions"
            raise _EntryError(path, f"{key} / records / {number} / session", f"{session!r} {problem}")
    return entry


def read_static(path: Path, arch: str) -> StaticBaselines | None:
    data = _read(path)
    if data is None:
        return None
    baselines = static_baselines(path, data)
    if baselines.arch != arch:
        of = baselines.arch
        raise BaselineError(f"{path} holds baselines of {of}, not of {arch}: was it copied? Rename it.")
    return baselines


def static_baselines(path: Path, data: Mapping[str, Any]) -> StaticBaselines:
    arch = _required(path, data, "arch", str)
    raw_entries = _required(path, data, "entries", dict[str, Any])
    entries = {name: _static_entry(path, name, raw) for name, raw in raw_entries.items()}
    return StaticBaselines(arch=arch, entries=entries)


def _static_entry(path: Path, name: str, raw: Any) -> StaticEntry:
    key = f"entries / {name}"
    about = {
        about: _required(path, _converted(path, key, raw, dict[str, Any]), about, dict[str, str], key)
        for about in ("toolchain", "provenance")
    }
    commit = about["provenance"].get("commit", "")
    if not is_commit(commit):
        raise _EntryError(path, f"{key} / provenance / commit", f"{commit!r:.80} is no hash of git")
    facts = _converted(path, key, {k: v for k, v in raw.items() if k not in about}, CaseFacts)
    return StaticEntry(facts=facts, **about)


def _read(path: Path) -> dict[str, Any] | None:
    """Read a file of baselines; None when there is none.

    Raises:
        BaselineError: it cannot be read, holds a merge conflict, is no JSON, repeats a key, has control
            characters, or is of another schema.
    """
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise BaselineError(f"{path} is no file. {_RESTORE}.")
        if facts.st_size > MAX_BYTES:
            raise BaselineError(
                f"{path} has {facts.st_size / 2**20:.0f} MiB, more than the {MAX_BYTES / 2**20:.0f} MiB that "
                f"baselines can have. {_RESTORE}."
            )
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineError(f"{path} cannot be read: {error}. {_RESTORE}.") from error
    return _document(path, text)


def _document(path: Path, text: str) -> dict[str, Any]:
    """Return the text of a file as plain values."""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith(("<<<<<<<", "=======", ">>>>>>>")):
            raise BaselineError(
                f"{path}:{number}: merge conflict ({line[:30].strip()!a}). Take one side's file "
                "(git checkout --ours) and add the other's with pytest-cutile merge."
            )
    try:
        data = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_refuse)
    except _BadValue as error:
        raise BaselineError(f"{path}: {error}. {_RESTORE}.") from None
    except json.JSONDecodeError as error:
        raise BaselineError(f"{path}:{error.lineno}: not valid JSON: {error.msg}. {_RESTORE}.") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a thousand brackets
        raise BaselineError(f"{path}: cannot be read as JSON: {error}. {_RESTORE}.") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise BaselineError(f'{path}:1: no baseline file: the key "schema" is missing or no number.')
    for place, problem in _control_characters(data):
        raise _EntryError(path, " / ".join(place) or "(top level)", problem)
    if schema != SCHEMA:
        rows = enumerate(text.splitlines(), start=1)
        number = next((number for number, row in rows if re.search(r'"schema"\s*:', row)), 1)
        raise BaselineError(
            f"{path}:{number}: schema {schema}, this release reads {SCHEMA}. "
            "Use the pytest-cutile that wrote it, or restore the file from version control."
        )
    return dict(data)


def _control_characters(value: Any, *place: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield where a text has control characters: they rewrite what a terminal or a log shows."""
    if isinstance(value, str) and _CONTROL.search(value):
        yield place, "it has control characters"
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _control_characters(item, *place, f"{number}")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not key.isprintable():
                yield place, f"the key {key!a} has characters that cannot be seen"
            yield from _control_characters(item, *place, key)


class _BadValue(ValueError):  # noqa: N818 - internal
    pass


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise _BadValue(f"the key {repeated!r} is there twice, perhaps after a merge; keep one")
    return unique


def _refuse(constant: str) -> Any:
    raise _BadValue(f"{constant} is no measurement")


def _required(path: Path, data: Mapping[str, Any], name: str, form: type[_Form], where: str = "") -> _Form:
    key = f"{where} / {name}" if where else name
    if name not in data:
        raise _EntryError(path, key, "it is missing")
    return _converted(path, key, data[name], form)


def _converted(path: Path, key: str, raw: Any, form: type[_Form]) -> _Form:
    try:
        return msgspec.convert(raw, form)
    except msgspec.ValidationError as error:
        place, problem = _explained(error)
        raise _EntryError(path, " / ".join([key, *place]), problem) from error


def _explained(error: msgspec.ValidationError) -> tuple[list[str], str]:
    """Return the keys that lead to a wrong value, and what is wrong with it."""
    # Of the form "... - at `$.runs[0].session`" or "... - at `key` in `$.environment`".
    problem, _, place = str(error).partition(" - at `")
    return re.findall(r"\.\.\.|\w+", place.rpartition("$")[2]), problem


def _refuse_unknown(
    path: Path, data: Mapping[str, Any], known: Iterable[str], key: str = "(top level)"
) -> None:
    """Refuse unknown keys: a mistyped one would be ignored, and the default used silently."""
    unknown = next((name for name in data if name not in known), None)
    if unknown is not None:
        raise _EntryError(
            path, key, f"Object contains unknown field `{unknown}`; fields: {', '.join(sorted(known))}"
        )


class _EntryError(BaselineError):
    def __init__(self, path: Path, key: str, problem: str) -> None:
        super().__init__(
            f"{path}: bad entry at key {key!r}: {problem}. {_RESTORE}, "
            "or delete the entry and record it with pytest --update-baselines."
        )
        self.key, self.problem = key, problem


# -- writing ------------------------------------------------------------------------------------------


@contextmanager
def rewriting(path: Path) -> Iterator[Path]:
    """Hold the lock of the file at `path`, whose folder is made; yields the file to read and write."""
    try:
        path = path.resolve()  # a link stays a link
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path):
            yield path
    except OSError as error:
        raise BaselineError(f"{path} cannot be written: {error}. Nothing was changed.") from error


def write_speed(path: Path, baselines: SpeedBaselines) -> None:
    _write(path, lambda: render_speed(baselines), speed_baselines)


def write_static(path: Path, baselines: StaticBaselines) -> None:
    _write(path, lambda: render_static(baselines), static_baselines)


def _write(path: Path, render: Callable[[], str], read: Callable[[Path, Mapping[str, Any]], object]) -> None:
    try:
        text = render()
        read(path, _document(path, text))
    except _EntryError as error:
        problem = f"{error.key}: {error.problem}"
    except (TypeError, ValueError) as error:
        problem = f"{error}"
    else:
        return write_text(path, text)
    raise BaselineError(f"{path}: nothing was written, for it could not be read again: {problem}")


def render_speed(baselines: SpeedBaselines) -> str:
    """Return the text of a file: sorted; a line for each session, record and run."""
    raw: dict[str, Any] = msgspec.to_builtins(baselines)
    for entry in raw["entries"].values():
        for holder in (*entry.get("records", ()), *filter(None, [entry.get("published")])):
            holder["work"] = {key: value for key, value in holder["work"].items() if value}
    return _render(
        {"schema": SCHEMA, "arch": baselines.arch, "gpu": baselines.gpu},
        sessions={name: _line(session) for name, session in raw["sessions"].items()},
        entries={name: _case([*_speed_fields(entry)]) for name, entry in raw["entries"].items()},
    )


def _speed_fields(entry: Mapping[str, Any]) -> Iterator[str]:
    if "published" in entry:
        yield f'"published": {_line(entry["published"])}'
    if "records" in entry:
        yield '"records": [\n' + ",\n".join(map(_record, entry["records"])) + "\n   ]"


def _record(record: Mapping[str, Any]) -> str:
    facts = _line({name: value for name, value in record.items() if name != "runs"})
    runs = ",\n".join(f"      {_line(run)}" for run in record.get("runs", ()))
    return f"    {facts}" if not runs else f'    {facts[:-1]}, "runs": [\n{runs}]}}'


def render_static(baselines: StaticBaselines) -> str:
    """Return the text of a file: sorted, a few lines per case, one line per remark."""
    entries = {}
    for name, entry in baselines.entries.items():
        raw = msgspec.to_builtins(entry)
        facts = raw.pop("facts")
        launches = facts.pop("launches")
        entries[name] = _case(_fields({**facts, **raw, "launches": launches}, 3))
    return _render({"schema": SCHEMA, "arch": baselines.arch}, entries=entries)


def _case(lines: Sequence[str]) -> str:
    return "{\n   " + ",\n   ".join(lines) + "\n  }"


def _render(head: Mapping[str, Any], **tables: Mapping[str, str]) -> str:
    """Return the text of a file: plain values, and tables of JSON by name."""
    parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for title, table in tables.items():
        rows = ",\n".join(f"  {json.dumps(name)}: {table[name]}" for name in sorted(table))
        parts.append(f' "{title}": {{\n{rows}\n }}' if rows else f' "{title}": {{}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _fields(value: Mapping[str, Any], indent: int) -> list[str]:
    """Return an object's lines: one of its plain values, and one or more of each object and list in it."""
    nested = {key: item for key, item in value.items() if isinstance(item, dict) or _is_table(item)}
    plain = {key: item for key, item in value.items() if key not in nested}
    lines = [_line(plain)[1:-1]] if plain else []
    return lines + [f"{json.dumps(key)}: {_value(item, indent)}" for key, item in nested.items()]


def _value(value: Any, indent: int) -> str:
    if not _is_table(value):
        return _line(value)
    pad = " " * (indent + 1)
    rows = [f"{pad}{{" + f",\n{pad} ".join(_fields(row, indent + 2)) + "}" for row in value]
    return "[\n" + ",\n".join(rows) + f"\n{' ' * indent}]"


def _is_table(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(item, dict) for item in value)


def _line(value: Any) -> str:
    """Return JSON in one line, sorted: a line is what a diff shows."""
    return json.dumps(value, sort_keys=True, allow_nan=False)
