"""Exchange of screenings between the workers of a run.

Session effects are estimated from all cases of a stratum, and each worker of pytest-xdist runs some of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from pytest_cutile.locking import locked

PATIENCE_S = 1800.0
"""How long to wait for the tests of other workers: a process that a killed worker left behind may hold its
lock for ever."""


class Screenings:
    """One file for each worker, locked until the worker has run all its tests, or died."""

    def __init__(self, folder: Path, worker: str) -> None:
        """Announce `worker` in `folder`, which all workers of the run on this machine share."""
        self._own = folder / worker
        self._own.touch(0o600)
        self._announced = ExitStack()
        self._announced.enter_context(locked(self._own))

    def publish(self, screened: Sequence[dict[str, Any]]) -> None:
        """Share what this worker has screened; it screens nothing more."""
        # On a full disk the file stays empty or unreadable: the others then know less.
        with self._announced, suppress(OSError):
            self._own.write_text(json.dumps(list(screened)), encoding="utf-8")

    def others(self, remark: Callable[[str], None]) -> list[dict[str, Any]]:
        """Return what the other workers have screened, when they have run all their tests.

        Args:
            remark: called with a sentence about each worker that has not after `PATIENCE_S`.
        """
        screened: list[dict[str, Any]] = []
        until = time.monotonic() + PATIENCE_S
        for path in sorted(self._own.parent.iterdir()):
            if path == self._own:
                continue
            try:
                with locked(path, shared=True, until=until):
                    text = path.read_text(encoding="utf-8")
                screened += json.loads(text) if text else []
            except TimeoutError:
                remark(
                    f"session effect: {self._own.name} has waited {PATIENCE_S / 60:.0f} minutes for the "
                    f"tests of {path.name}, and judged without its screenings"
                )
            except (OSError, ValueError):  # left by a worker that died, or on a full disk
                continue
        return screened
