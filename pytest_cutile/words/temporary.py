"""Temporary folders, and what killed processes left of theirs."""

from __future__ import annotations

import functools
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_PREFIX = "pytest-cutile-"
_ABANDONED_SECONDS = 24 * 3600.0
"""Longer than a run lasts."""


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a new folder, as a context that removes it; the first one of a process removes abandoned ones.

    What a process that was started still writes there makes nothing wrong.
    """
    _remove_abandoned()
    return tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)


def run_folder(run: str) -> Path:
    """Return the folder of a run, which its processes know by the run's name; whoever needs it makes it."""
    return Path(tempfile.gettempdir(), f"{_PREFIX}run-{run}")


@functools.cache
def _remove_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
