"""Files of older schemas, rewritten once. The rest of the package reads the current schema alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_cutile.baselines import files
from pytest_cutile.baselines.errors import BaselineError

_Document = dict[str, Any]


def migrate(path: Path) -> bool:
    """Rewrite a file of baselines in the current schema; return whether it was of an older one."""
    steps, current = (
        (_STATIC_STEPS, files.STATIC_SCHEMA) if files.is_static(path) else (_SPEED_STEPS, files.SPEED_SCHEMA)
    )
    with files.rewriting(path) as target:
        data = files.read_json(target)
        if data is None:
            raise BaselineError(f"{path}: there is no such file")
        schema = data["schema"]
        if schema not in steps:
            files.check_schema(target, data, current)
            return False
        while schema in steps:
            try:
                data = steps[schema](data)
            except (AttributeError, KeyError, TypeError) as error:
                raise BaselineError(f"{path}: it is not of the form of schema {schema}: {error!r}") from error
            schema = data["schema"]
        if files.is_static(path):
            files.write_static(target, files.static_baselines(target, data))
        else:
            files.write_speed(target, files.speed_baselines(target, data), checked={})
    return True


def _speed_2_to_3(data: _Document) -> _Document:
    names = {"identity": "fingerprint", "control": "reference_workload", "control_us": "workload_us"}

    def renamed(entry: _Document) -> _Document:
        runs = {"runs": [_renamed(run, names) for run in entry["runs"]]} if "runs" in entry else {}
        return {**_renamed(entry, names), **runs}

    entries = {key: renamed(entry) for key, entry in data["entries"].items()}
    return {**data, "schema": 3, "entries": entries}


def _static_1_to_2(data: _Document) -> _Document:
    entries = {key: _renamed(entry, {"identity": "fingerprint"}) for key, entry in data["entries"].items()}
    return {**data, "schema": 2, "entries": entries}


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> _Document:
    return {names.get(key, key): value for key, value in values.items()}


_Steps = Mapping[int, Callable[[_Document], _Document]]
_SPEED_STEPS: _Steps = {2: _speed_2_to_3}
_STATIC_STEPS: _Steps = {1: _static_1_to_2}
"""By the schema that each step reads."""
