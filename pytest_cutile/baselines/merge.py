"""Merging what several runners recorded of one platform: a union by session and case."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_cutile.baselines.entries import SpeedBaselines
from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.baselines.select import pruned, united


def merge(files: Iterable[SpeedBaselines]) -> SpeedBaselines:
    """Return what is in one of the files, with old runs dropped.

    The order of the files does not matter, and merging a file again changes nothing.
    """
    files = [*files]
    platforms = sorted({f"{file.gpu} ({file.arch})" for file in files})
    if len(platforms) != 1:
        raise BaselineError(f"only files of one platform can be merged, not of {', '.join(platforms)}")
    return pruned(united(files))
