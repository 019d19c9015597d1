"""What the workers of a run tell each other: how fast each case was when it was screened.

Only together do the cases of a class show what they share, and each worker of pytest-xdist runs some of them.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_cutile.core.locking import locked


class Screenings:
    """One file for each worker, locked until it has run all its tests, or died."""

    def __init__(self, folder: Path, worker: str) -> None:
        """Announce a worker.

        Args:
            folder: that all workers of the run on this machine know.
            worker: name of this one.
        """
        self._own = folder / worker
        self._descriptor: int | None = os.open(self._own, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def publish(self, screened: Sequence[dict[str, Any]]) -> None:
        """Tell what this worker has screened; it will screen nothing more."""
        if self._descriptor is None:
            return
        # On a full disk nothing is told, or a part that nobody can read: the others then know less.
        with suppress(OSError), os.fdopen(self._descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(list(screened)))
        self._descriptor = None  # closed, which lets go of the lock

    def others(self) -> list[dict[str, Any]]:
        """Return what the other workers have screened, when each of them has run all its tests."""
        found: list[dict[str, Any]] = []
        for path in sorted(self._own.parent.iterdir()):
            if path == self._own:
                continue
            with suppress(OSError, ValueError):  # one that died tells nothing, one with a full disk no JSON
                with locked(path, shared=True):
                    text = path.read_text(encoding="utf-8")
                found += json.loads(text) if text else []
        return found
