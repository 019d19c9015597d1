"""Files of baselines: read strictly, written atomically under a lock, made for diffs.

What is in them is up to `baselines` (speed) and `static_baselines`.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_cutile.core.locking import locked


class BaselineError(RuntimeError):
    """A baseline file that cannot be used; the message names file, line or key, and what to do."""


def read_document(path: Path, *, schema: int) -> dict[str, Any] | None:
    """Read a file of baselines; None when there is none.

    Args:
        path: the file.
        schema: version of its form that the caller reads.

    Raises:
        BaselineError: it cannot be read, holds a merge conflict, is no JSON, repeats a key, or has another
            schema.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineError(f"{path} cannot be read: {error}. Restore it from version control.") from error
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith(("<<<<<<<", "=======", ">>>>>>>")):
            raise BaselineError(
                f"{path}:{number}: merge conflict ({line[:30].strip()}). Keep one side of every entry "
                "(or both sides' runs), remove the markers, and run again."
            )
    try:
        data = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_refuse)
    except _BadValue as error:
        raise BaselineError(f"{path}: {error}. Restore it from version control.") from None
    except json.JSONDecodeError as error:
        raise BaselineError(
            f"{path}:{error.lineno}: not valid JSON: {error.msg}. Restore it from version control."
        ) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a thousand brackets
        raise BaselineError(
            f"{path}: cannot be read as JSON: {error}. Restore it from version control."
        ) from None
    _check_schema(data, schema, path, text)
    return dict(data)


class _BadValue(ValueError):  # noqa: N818 - internal
    pass


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise _BadValue(f"the key {repeated!r} is there twice, perhaps after a merge; keep one")
    return found


def _refuse(constant: str) -> Any:
    raise _BadValue(f"{constant} is no measurement")


def _check_schema(data: Any, known: int, path: Path, text: str) -> None:
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise BaselineError(f'{path}:1: no baseline file: the key "schema" is missing or no number.')
    if schema != known:
        line = next((n for n, row in enumerate(text.splitlines(), 1) if re.search(r'"schema"\s*:', row)), 1)
        advice = (
            "Upgrade pytest-cutile"
            if schema > known
            else "Delete it, and record anew: pytest --update-baselines"
        )
        raise BaselineError(f"{path}:{line}: schema {schema}, this release reads {known}. {advice}.")


def bad_entry(path: Path, key: str, error: Exception) -> BaselineError:
    """Return the error for a file whose value at `key` made `error`."""
    what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return BaselineError(
        f"{path}: bad entry at key {key!r}: {what}. Restore it from version control, "
        "or delete the entry and record it with pytest --update-baselines."
    )


def one_line(mapping: Mapping[str, Any]) -> str:
    """Return `mapping` as JSON in one line, sorted: a line is what a diff shows."""
    return json.dumps(dict(mapping), sort_keys=True)


@contextmanager
def rewriting(path: Path) -> Iterator[Path]:
    """Hold the lock of the folder of `path`, which is made; yields the file to read and to `write_document`.

    Raises:
        BaselineError: something cannot be written.
    """
    try:
        path = path.resolve()  # a link stays a link
        path.parent.mkdir(parents=True, exist_ok=True)
        # The folder's own lock: no lock file that would turn up in `git status` or depend on TMPDIR.
        with locked(path.parent):
            yield path
    except OSError as error:
        raise BaselineError(f"{path} cannot be written: {error}. Nothing was changed.") from error


def write_document(path: Path, text: str) -> None:
    """Replace the file at `path` as a whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
