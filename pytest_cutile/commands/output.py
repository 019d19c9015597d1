"""Files that commands write."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.words.locking import not_written, replace_file


def require_pages() -> None:
    """Raise unless what renders pages and plots is installed."""
    if find_spec("jinja2") is None:
        raise BaselineError("a page needs the package jinja2: pip install 'pytest-cutile[report]'")


def write(path: Path, text: str) -> None:
    """Write the whole file or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text)
    except OSError as error:
        raise BaselineError(not_written(path, error)) from error
