"""What the workers of a run tell each other: how fast each case was when it was screened.

Only together do the cases of a class show what they share, and each worker of pytest-xdist runs some of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from pytest_cutile.core.locking import locked

PATIENCE_S = 1800.0
"""How long to wait for the tests of other workers: one that was killed may have left a process behind that
holds its lock for ever."""


class Screenings:
    """One file for each worker, locked until it has run all its tests, or died."""

    def __init__(self, folder: Path, worker: str) -> None:
        """Announce a worker.

        Args:
            folder: that all workers of the run on this machine know.
            worker: name of this one.
        """
        self._own = folder / worker
        self._own.touch(0o600)
        self._announced = ExitStack()
        self._announced.enter_context(locked(self._own))

    def publish(self, screened: Sequence[dict[str, Any]]) -> None:
        """Tell what this worker has screened; it will screen nothing more."""
        # On a full disk nothing is told, or a part that nobody can read: the others then know less.
        with self._announced, suppress(OSError):
            self._own.write_text(json.dumps(list(screened)), encoding="utf-8")

    def others(self, say: Callable[[str], None]) -> list[dict[str, Any]]:
        """Return what the other workers have screened, when each of them has run all its tests.

        Args:
            say: told of workers that have not, after `PATIENCE_S`.
        """
        found: list[dict[str, Any]] = []
        until = time.monotonic() + PATIENCE_S
        for path in sorted(self._own.parent.iterdir()):
            if path == self._own:
                continue
            try:
                with locked(path, shared=True, until=until):
                    text = path.read_text(encoding="utf-8")
                found += json.loads(text) if text else []
            except TimeoutError:
                say(
                    f"weather: {self._own.name} has waited {PATIENCE_S / 60:.0f} minutes for the tests of "
                    f"{path.name}, and judged without what that screened"
                )
            except (OSError, ValueError):  # one that died tells nothing, one with a full disk no JSON
                continue
        return found
