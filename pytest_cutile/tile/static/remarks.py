"""Reads the remarks that tileiras writes as YAML: what became of each load, store and matrix product."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import yaml
from msgspec.structs import replace

from pytest_cutile.tile.static.facts import Note, Site

_OPERATIONS = {
    "RemarkMemoryLoadInstructionSelected": "load",
    "RemarkMemoryStoreInstructionSelected": "store",
    "RemarkTensorCoreMMA": "mma",
}
_MISSED = {"RemarkMemoryTmaLoadFailed": "load", "RemarkMemoryTmaStoreFailed": "store"}
_PLACE = re.compile(r"""^loc\((?:".*?"|[^()])*\):\s*""")


_Place: TypeAlias = tuple[str, int, int]
"""File, line and column."""


class _Remark(NamedTuple):
    name: str
    place: _Place
    facts: dict[str, str]
    reasons: tuple[str, ...]


class RemarksError(ValueError):
    """Remarks of another form than tileiras 13.4 writes."""


def _loader() -> type[Any]:
    """Return a loader of plain data; a document's tag (!Passed, !Failure) becomes its key "Kind"."""
    base: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]  # C or Python, whichever is there
        pass

    def tagged(loader: Any, tag: str, node: Any) -> dict[str, Any]:
        return {"Kind": tag, **loader.construct_mapping(node, deep=True)}

    Loader.add_multi_constructor("!", tagged)
    return Loader


def read_remarks(text: str) -> tuple[tuple[Site, ...], tuple[Note, ...]]:
    """Return the sites and the other remarks in `text`, each in source order.

    tileiras 13.4 writes every remark twice and repeats a reason for every element; that is undone.

    Raises:
        RemarksError: they cannot be read.
    """
    try:
        return _read(text)
    except (yaml.YAMLError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error}".partition("\n")[0]
        raise RemarksError(f"tileiras wrote remarks that cannot be read ({reason})") from None


def _read(text: str) -> tuple[tuple[Site, ...], tuple[Note, ...]]:
    sites: list[tuple[_Place, Site]] = []
    missed: dict[tuple[str, _Place], dict[str, None]] = defaultdict(dict)
    notes: dict[Note, None] = {}
    for remark in map(_parsed, _documents(text)):
        file, line, _ = remark.place
        if remark.name in _OPERATIONS:
            site = Site(
                operation=_OPERATIONS[remark.name],
                instruction=remark.facts.get("Instruction", "?").removesuffix(" instruction"),
                shape="x".join(re.findall(r"\d+", remark.facts.get("Shape", ""))),
                file=file,
                line=line,
                missed=remark.reasons,
            )
            sites.append((remark.place, site))
        elif remark.name in _MISSED:
            missed[_MISSED[remark.name], remark.place].update(dict.fromkeys(remark.reasons))
        else:
            parts = [remark.facts.get("Remark", remark.name), *remark.reasons]
            notes[Note(text=": ".join(parts), file=file, line=line)] = None
    explained = []
    for place, site in sorted(sites, key=lambda pair: pair[0]):
        # What became TMA did not fail to.
        reasons = () if site.instruction.startswith("TMA") else missed[site.operation, place]
        explained.append(replace(site, missed=tuple(dict.fromkeys((*site.missed, *reasons)))))
    return tuple(explained), tuple(sorted(notes, key=lambda note: (note.file, note.line, note.text)))


def _parsed(document: dict[str, Any]) -> _Remark:
    place = document.get("DebugLoc") or {}
    arguments = [pair for pair in document.get("Args") or () if isinstance(pair, dict)]
    reasons = (_PLACE.sub("", str(pair["Reason"])) for pair in arguments if "Reason" in pair)
    return _Remark(
        name=str(document.get("Name", "")),
        place=(str(place.get("File", "")), int(place.get("Line", 0)), int(place.get("Column", 0))),
        facts={key: str(value) for pair in arguments for key, value in pair.items()},
        reasons=tuple(dict.fromkeys(reasons)),
    )


def _documents(text: str) -> Iterator[dict[str, Any]]:
    """Yield each different document once. Equal ones are dropped as text, before the parser sees them."""
    seen = set()
    loader = _loader()
    for document in re.split(r"^(?=--- )", text, flags=re.MULTILINE):
        if not document.startswith("---") or document in seen:
            continue
        seen.add(document)
        unrepeated = re.sub(r"^(  - Reason:.*\n)\1+", r"\1", document, flags=re.MULTILINE)
        parsed = yaml.load(unrepeated, Loader=loader)  # noqa: S506 - it is a SafeLoader
        if isinstance(parsed, dict):
            yield parsed
