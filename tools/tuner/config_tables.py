"""The tables of configurations in `kernels/`: the entry that a launcher chose, and a better one in its place.

Which entry it is, the launcher itself says. In a copy of the kernel's module every configuration has a class
of its own, and `dataclasses.replace`, with which launchers adapt what they take from a table, keeps it. So
the class of what `choose_config` returns names the entry, whatever the tables look like and however it
searches them; and to ask what it would return with another entry, that one is put there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import unified_diff
from pathlib import Path
from types import ModuleType
from typing import Any

from tools.gpu_runs.suites import plain_config
from tools.tuner.config_source import (
    CannotWrite,
    config_source,
    count_configurations,
    find_source,
    is_configuration,
    parts_of,
    rewrite,
)

NO_ARCHITECTURE = "sm_0"
"""Stands for all that no table has an entry for."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a configuration is in the tables of a module."""

    table: str
    """Name of the table: "CONFIGS"."""
    path: tuple[Any, ...]
    """Keys, and places in tuples, from there: ("sm_90", 1)."""

    def __str__(self) -> str:
        return self.table + "".join(f"[{key!r}]" for key in self.path)


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a launcher asks for a case."""

    case: str
    """Name of the case."""
    arch: str
    """The architecture."""
    facets: Mapping[str, Any]
    """The other arguments."""
    chooser: str = "choose_config"
    """The function that it asks."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What it gets."""

    config: Any = None
    """The configuration; None if the function raised."""
    place: Place | None = None
    """The entry that it was made of; None if no table holds it."""
    error: str = ""
    """What the function raised."""

    @property
    def plain(self) -> tuple[Mapping[str, Any] | None, Place | None, str]:
        """What can be compared between two versions of a module."""
        return plain_config(self.config), self.place, self.error


class Tables:
    """The tables of a kernel's file, as it is or as it may become."""

    def __init__(self, file: Path, text: str | None = None) -> None:
        """Read a file.

        Args:
            file: of the kernel.
            text: what it may hold; None: what it holds now.

        Raises:
            Exception: whatever the module raises as it is executed.
        """
        self.file = file
        self.text = file.read_text(encoding="utf-8") if text is None else text
        self.names = dict(vars(_executed(self)))
        self._marked = _executed(self)
        self._instead: object = ...

    def ask(self, question: Question, instead: Mapping[Place, Any] | None = None) -> Answer:
        """Return what a launcher gets, with the configurations `instead` in their places."""
        names = vars(self._marked)
        if instead != self._instead:
            tables = {name: value for name, value in self.names.items() if count_configurations(value)}
            for name, value in tables.items():
                names[name] = _marked(value, Place(table=name, path=()), instead or {})
            self._instead = instead
        try:
            chosen = names[question.chooser](question.arch, **question.facets)
        except Exception as error:  # noqa: BLE001 - a table may have nothing for these facets
            return Answer(error=repr(error))
        return Answer(config=chosen, place=getattr(type(chosen), "_place", None))

    def evaluate(self, source: str) -> Any:
        """Return the configuration that `source` makes in this module."""
        return eval(source, dict(self.names))  # noqa: S307 - `config_source` wrote it

    def entry(self, place: Place) -> Any:
        """Return the configuration at a place."""
        value = self.names[place.table]
        for key in place.path:
            value = value[key]
        return value

    def architectures(self) -> list[str]:
        """Return those that are a key of a table, and one that is none."""
        architectures = {
            key
            for value in self.names.values()
            if count_configurations(value)
            for path, _ in _leaves(value, ())
            for key in path
            if isinstance(key, str) and re.fullmatch(r"sm_\d+[a-z]?", key)
        }
        return [*sorted(architectures), NO_ARCHITECTURE]

    def leaves(self) -> dict[Place, Any]:
        """Return all that is in tables, limits and the like included."""
        return {
            Place(table=name, path=path): plain_config(leaf) if is_configuration(leaf) else leaf
            for name, value in self.names.items()
            if count_configurations(value)
            for path, leaf in _leaves(value, ())
        }


def _executed(tables: Tables) -> ModuleType:
    """Return the module of a text, which nobody else can import."""
    module = ModuleType(f"{tables.file.stem}_in_tables")
    module.__file__ = str(tables.file)
    sys.modules[module.__name__] = module  # where dataclasses look for the module of their annotations
    try:
        exec(compile(tables.text, str(tables.file), "exec"), vars(module))  # noqa: S102 - as an import does
    finally:
        del sys.modules[module.__name__]
    return module


def _marked(value: Any, place: Place, instead: Mapping[Place, Any]) -> Any:
    """Return a copy of a table in which the class of each configuration says where it is."""
    if is_configuration(value):
        value = instead.get(place, value)
        placed = type(type(value).__name__, (type(value),), {"_place": place})
        return placed(**{field.name: getattr(value, field.name) for field in fields(value)})
    parts = {
        key: _marked(part, replace(place, path=(*place.path, key)), instead) for key, part in parts_of(value)
    }
    if isinstance(value, Mapping):
        return parts
    return type(value)(parts.values()) if isinstance(value, list | tuple) else value


def _leaves(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    parts = list(parts_of(value))
    for key, part in parts:
        yield from _leaves(part, (*path, key))
    if not parts:
        yield path, value


# -- entries ----------------------------------------------------------------------------------------


def find_place(tables: Tables, question: Question) -> Place | str:
    """Return the entry that a launcher's choice was made of, or why there is none."""
    answer = tables.ask(question)
    if answer.error:
        return f"{question.chooser} raised {answer.error}"
    return answer.place or f"no table of {tables.file.name} holds what {question.chooser} returned"


def make_entry(tables: Tables, place: Place, question: Question, config: Any) -> Any:
    """Return the entry with which a launcher would choose `config`, or None if none does.

    What the launcher changes by itself stays as it is in the entry: `min_k`, which is for the search alone,
    or `copy_tile`, which it drops for small matrices.
    """
    entry, chosen = tables.entry(place), tables.ask(question).config
    kept = {
        field.name: getattr(entry, field.name)
        for field in fields(entry)
        if getattr(chosen, field.name) == getattr(config, field.name) != getattr(entry, field.name)
    }
    made = replace(config, **kept)
    answer = tables.ask(question, {place: made})
    return made if answer.place == place and plain_config(answer.config) == plain_config(config) else None


@dataclass(frozen=True, kw_only=True)
class Rewriting:
    """A kernel's file with one entry replaced, not written yet."""

    tables: Tables
    """What it holds now."""
    text: str
    """What it is to hold; what it holds now where `problem` says that this cannot be."""
    problem: str = ""
    """Why it is not to be written, and what to do instead."""
    also: tuple[str, ...] = ()
    """Other cases that take the same entry."""

    def difference(self) -> list[str]:
        """Return the lines that change."""
        old, new = (text.splitlines() for text in (self.tables.text, self.text))
        return list(unified_diff(old, new, n=1, lineterm=""))[2:]

    def write(self) -> None:
        """Write the file."""
        self.tables.file.write_text(self.text, encoding="utf-8")


def replace_entry(
    tables: Tables,
    place: Place,
    entry: Any,
    comment: str,
    *,
    tuned: Sequence[tuple[Question, Any]],
    others: Sequence[Question],
) -> Rewriting:
    """Replace an entry, and check that launchers choose it for the tuned cases, and for others what they did.

    Args:
        tables: of the kernel's file.
        place: of the entry.
        entry: the new one.
        comment: what was measured.
        tuned: what is asked for the tuned cases, and the configurations that they are to get.
        others: what is asked for other cases.
    """
    source = config_source(entry)
    try:
        text = rewrite(tables.text, tables.names, place.table, place.path, source, comment)
        after = Tables(tables.file, text)
        problem = _problem(tables, after, place, entry, tuned, others)
    except CannotWrite as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001 - whatever the new text raises, it is not to be written
        problem = f"the file with it raises {error!r}"
    if problem:
        problem = f"{problem}. {_by_hand(tables, place, source)}"
        return Rewriting(tables=tables, text=tables.text, problem=problem)
    also = tuple(question.case for question in others if tables.ask(question).place == place)
    return Rewriting(tables=tables, text=text, also=also)


def _problem(
    before: Tables,
    after: Tables,
    place: Place,
    entry: Any,
    tuned: Sequence[tuple[Question, Any]],
    others: Sequence[Question],
) -> str:
    """Return what is wrong with new tables, or nothing."""
    expected, actual = {**before.leaves(), place: plain_config(entry)}, after.leaves()
    if changed := [str(place) for place in expected | actual if _differ(place, expected, actual)]:
        return f"other entries would change as well: {', '.join(changed)}"
    for question, config in tuned:
        answer = after.ask(question)
        if answer.place != place or plain_config(answer.config) != plain_config(config):
            return f"the launcher would not choose it for {question.case}, but {_said(answer)}"
    for question in others:
        old, new = before.ask(question), after.ask(question)
        if old.place == place == new.place:
            continue
        if old.plain != new.plain:
            return f"the launcher would choose another for {question.case}, too: {_said(new)}"
    for arch in before.architectures():
        for question in (*(question for question, _ in tuned), *others):
            if question.arch != arch and before.ask(replace(question, arch=arch)).place == place:
                where = "architectures without an entry" if arch == NO_ARCHITECTURE else arch
                return f"{place} is for {where} as well, and {question.arch} needs an entry of its own"
    return ""


def _differ(place: Place, one: Mapping[Place, Any], other: Mapping[Place, Any]) -> bool:
    return place not in one or place not in other or one[place] != other[place]


def _said(answer: Answer) -> str:
    return answer.error or f"{config_source(answer.config)} of {answer.place}"


def _by_hand(tables: Tables, place: Place, source: str) -> str:
    """Return what somebody has to do who wants the entry all the same."""
    try:
        line, old = find_source(tables.text, tables.names, place.table, place.path)
    except CannotWrite:
        return f"By hand: {place} = {source}, where {tables.file} has {place.table} from"
    return f"By hand: {tables.file}, line {line}, which is {old}: {place} = {source}"
