"""One record of the parts of a study that several GPUs of one kind timed, each a part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from studies.running.files import ROWS
from studies.running.study import Record, Study

MAY_DIFFER = ("uuid", "commit", "sources")
"""Entries of the environment in which parts may differ: the record names all."""


def study_of(folder: Path) -> str:
    """Return the name of the study that timed what is in a folder.

    Raises:
        SystemExit: Nothing is, or it is not readable.
    """
    return _read(folder / ROWS).study


def join_records(folders: Sequence[Path], study: Study) -> Record:
    """Return the rows of all folders in the order of the study.

    Raises:
        SystemExit: A folder has no record of the study, environments differ, or a row is in two folders.
    """
    parts = [_read(folder / ROWS) for folder in folders]
    first = parts[0]
    environment = dict(first.environment)
    for folder, part in zip(folders, parts, strict=True):
        if (part.study, part.quick) != (study.name, first.quick):
            raise SystemExit(f"{folder} is no part of the study of {folders[0]}")
        for name in {**environment, **part.environment}:
            if name in MAY_DIFFER:
                environment[name] = ", ".join(_values(name, environment, part.environment))
            elif environment.get(name) != part.environment.get(name):
                values = " and ".join(_values(name, environment, part.environment))
                raise SystemExit(f"{folder} is not comparable with {folders[0]}: {name} {values}")
    rows = [row for part in parts for row in part.rows]
    keys = [row.key for row in rows]
    errors = {key: why for part in parts for key, why in part.errors.items() if key not in keys}
    if twice := [key for key in dict.fromkeys(keys) if keys.count(key) > 1]:
        raise SystemExit(f"{twice[0]} is in two of the folders; leave one of them out")
    places: dict[tuple[str, str], int] = {}
    for place, row in enumerate(study.rows(first.quick)):
        places.setdefault((row.kernel, row.case.name), place)
    return Record(
        study=study.name,
        date=max(part.date for part in parts),
        quick=first.quick,
        environment=environment,
        errors=errors,
        # Contenders of a case stay as the parts have them: what is not installed here is no row of the study.
        rows=sorted(rows, key=lambda row: places.get((row.kernel, row.case), len(places))),
        planned=max(part.planned for part in parts),
        missing={name: why for part in parts for name, why in part.missing.items()},
    )


def _values(name: str, *environments: Mapping[str, str]) -> list[str]:
    """Return each value once."""
    known = [environment[name] for environment in environments if name in environment]
    return [*dict.fromkeys(value for values in known for value in values.split(", "))]


def _read(file: Path) -> Record:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Record)
    except (OSError, msgspec.MsgspecError) as error:
        raise SystemExit(f"{file}: {error}") from error
