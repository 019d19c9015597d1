"""Reads the remarks that tileiras writes as YAML: what became of each load, store and matrix product."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml
from msgspec.structs import replace

from pytest_cutile.static.facts import Note, Site

_OPERATIONS = {
    "RemarkMemoryLoadInstructionSelected": "load",
    "RemarkMemoryStoreInstructionSelected": "store",
    "RemarkTensorCoreMMA": "mma",
}
_MISSED = {"RemarkMemoryTmaLoadFailed": "load", "RemarkMemoryTmaStoreFailed": "store"}
_PLACE = re.compile(r"""^loc\((?:".*?"|[^()])*\):\s*""")


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
    sites: list[tuple[int, Site]] = []
    missed: dict[tuple[str, str, int, int], dict[str, None]] = {}
    notes: dict[Note, None] = {}
    for remark in _documents(text):
        place = remark.get("DebugLoc") or {}
        file, line = str(place.get("File", "")), int(place.get("Line", 0))
        column = int(place.get("Column", 0))
        arguments = [pair for pair in remark.get("Args") or () if isinstance(pair, dict)]
        facts = {key: str(value) for pair in arguments for key, value in pair.items()}
        name = str(remark.get("Name", ""))
        reasons = [_PLACE.sub("", str(pair["Reason"])) for pair in arguments if "Reason" in pair]
        if name in _OPERATIONS:
            site = Site(
                operation=_OPERATIONS[name],
                instruction=facts.get("Instruction", "?").removesuffix(" instruction"),
                shape="x".join(re.findall(r"\d+", facts.get("Shape", ""))),
                file=file,
                line=line,
                missed=tuple(dict.fromkeys(reasons)),
            )
            sites.append((column, site))
        elif name in _MISSED:
            missed.setdefault((_MISSED[name], file, line, column), {}).update(dict.fromkeys(reasons))
        else:
            parts = [facts.get("Remark", name), *dict.fromkeys(reasons)]
            notes[Note(text=": ".join(parts), file=file, line=line)] = None
    return tuple(_with_reasons(sites, missed)), tuple(
        sorted(notes, key=lambda note: (note.file, note.line, note.text))
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


def _with_reasons(
    sites: list[tuple[int, Site]], missed: dict[tuple[str, str, int, int], dict[str, None]]
) -> Iterator[Site]:
    for column, site in sorted(sites, key=lambda pair: (pair[1].file, pair[1].line, pair[0])):
        reasons = missed.get((site.operation, site.file, site.line, column), {})
        if not reasons or site.instruction.startswith("TMA"):
            yield site
            continue
        yield replace(site, missed=tuple(dict.fromkeys((*site.missed, *reasons))))
