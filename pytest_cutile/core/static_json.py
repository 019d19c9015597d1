"""The facts of a compiled case as JSON: written short, read strictly, field by field."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pytest_cutile.core.static_facts import CaseFacts, LaunchFacts, Note, Site, SpillLine


def to_json(facts: CaseFacts) -> dict[str, Any]:
    """Return plain built-in types; unknown and empty values are left out, and so is `missing`."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value

    launches = []
    for launch in facts.launches:
        raw = {key: plain(value) for key, value in asdict(launch).items()}
        for remark in (*(raw["sites"] or ()), *raw["notes"], *raw["spill_lines"]):
            for key in [key for key, value in remark.items() if value in ("", [])]:
                del remark[key]
        if raw["times"] == 1:
            del raw["times"]
        optional = ("notes", "spill_lines")
        launches.append({k: v for k, v in raw.items() if v is not None and not (k in optional and v == [])})
    return {"identity": facts.identity, "source": facts.source, "launches": launches}


def from_json(raw: Mapping[str, Any]) -> CaseFacts:
    """Rebuild from `to_json`'s form.

    Raises:
        ValueError: it has another form; the message names the field.
    """
    fields = _Fields(raw, "")
    return CaseFacts(
        identity=fields.text("identity"),
        source=fields.text("source"),
        launches=tuple(_launch(fields) for fields in fields.items("launches")),
    )


_COUNTS = {
    # The most that can be: far above what there is, and small enough to calculate with.
    "code_bytes": 2**40,
    "threads": 2**20,
    "ctas": 2**20,
    "registers": 2**20,
    "stack_bytes": 2**40,
    "local_bytes": 2**40,
    "static_shared_bytes": 2**40,
    "dynamic_shared_bytes": 2**40,
    "instruction_count": 2**40,
}


def _launch(fields: _Fields) -> LaunchFacts:
    counts = {
        name: fields.count(name, 1 if name in ("threads", "ctas") else 0, most)
        for name, most in _COUNTS.items()
        if fields.has(name)
    }
    unknown = sorted({*fields.raw} - {field.name for field in dataclasses.fields(LaunchFacts)})
    if unknown:
        raise ValueError(f"{fields.name(unknown[0])} is no field of a launch")
    if "code_bytes" not in counts:
        raise ValueError(f"{fields.name('code_bytes')} is missing")
    mix = fields.mapping("instructions") if fields.has("instructions") else None
    return LaunchFacts(
        kernel=fields.text("kernel"),
        grid=tuple(fields.numbers("grid")),
        times=fields.count("times", 1, 2**40) if fields.has("times") else 1,
        instructions=None
        if mix is None
        else {kind: {name: by.count(name, 0, 2**40) for name in by.raw} for kind, by in mix},
        sites=tuple(_site(site) for site in fields.items("sites")) if fields.has("sites") else None,
        notes=tuple(
            Note(text=note.text("text"), file=note.text("file"), line=note.count("line", 0, 2**31))
            for note in (fields.items("notes") if fields.has("notes") else ())
        ),
        spill_lines=tuple(
            SpillLine(
                file=line.text("file"),
                line=line.count("line", 0, 2**31),
                instructions=line.count("instructions", 0, 2**40),
            )
            for line in (fields.items("spill_lines") if fields.has("spill_lines") else ())
        ),
        **counts,
    )


def _site(fields: _Fields) -> Site:
    shape = fields.text("shape") if fields.has("shape") else ""
    if not re.fullmatch(r"(\d{1,9}(x\d{1,9})*)?", shape):
        raise ValueError(f"{fields.name('shape')} is {shape!r}, not a shape such as 64x128x16")
    return Site(
        operation=fields.text("operation"),
        instruction=fields.text("instruction"),
        file=fields.text("file"),
        line=fields.count("line", 0, 2**31),
        shape=shape,
        missed=tuple(fields.texts("missed")) if fields.has("missed") else (),
        text=fields.text("text") if fields.has("text") else "",
    )


class _Fields:
    """A JSON object that is read field by field; errors name the field."""

    def __init__(self, raw: Any, where: str) -> None:
        if not isinstance(raw, Mapping):
            raise ValueError(f"{where or 'the entry'} is {_shown(raw)}, not an object")  # noqa: TRY004
        self.raw = raw
        self._where = where

    def name(self, field: str) -> str:
        return f"{self._where} / {field}" if self._where else field

    def has(self, field: str) -> bool:
        return field in self.raw

    def _get(self, field: str) -> Any:
        if field not in self.raw:
            raise ValueError(f"{self.name(field)} is missing")
        return self.raw[field]

    def text(self, field: str) -> str:
        value = self._get(field)
        if not isinstance(value, str):
            raise ValueError(f"{self.name(field)} is {_shown(value)}, not a text")  # noqa: TRY004
        return value

    def count(self, field: str, least: int, most: int) -> int:
        value = self._get(field)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"{self.name(field)} is {_shown(value)}, not a count")
        return value

    def _list(self, field: str) -> list[Any]:
        value = self._get(field)
        if not isinstance(value, list):
            raise ValueError(f"{self.name(field)} is {_shown(value)}, not a list")  # noqa: TRY004
        return value

    def texts(self, field: str) -> list[str]:
        values = self._list(field)
        return [_Fields({field: value}, self._where).text(field) for value in values]

    def numbers(self, field: str) -> list[int]:
        values = self._list(field)
        return [_Fields({field: value}, self._where).count(field, 0, 2**31) for value in values]

    def items(self, field: str) -> list[_Fields]:
        return [
            _Fields(value, f"{self.name(field)} / {number}") for number, value in enumerate(self._list(field))
        ]

    def mapping(self, field: str) -> list[tuple[str, _Fields]]:
        inner = _Fields(self._get(field), self.name(field))
        return [(name, _Fields(value, inner.name(name))) for name, value in inner.raw.items()]


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = "a number beyond all measure"
    return text if len(text) <= 40 else f"{text[:40]}..."  # noqa: PLR2004
