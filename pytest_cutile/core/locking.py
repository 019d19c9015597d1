"""Locks between processes: advisory, on a file, gone with the process that holds them."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def locked(
    path: Path,
    *,
    shared: bool = False,
    on_wait: Callable[[], None] | None = None,
    until: float | None = None,
) -> Iterator[None]:
    """Hold the lock of a file or folder that exists.

    Args:
        path: what is locked.
        shared: whether others may hold it at the same time, if they hold it shared, too.
        on_wait: called once when somebody else holds it.
        until: time of `time.monotonic` at which to give up; None: wait for ever.

    Raises:
        OSError: it cannot be opened.
        TimeoutError: somebody else held it all the time.
    """
    descriptor = os.open(path, os.O_RDONLY)
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_wait is not None:
                on_wait()
            _wait(descriptor, kind, until)
        yield
    finally:
        # Closed, it would be held on by what was forked meanwhile, which has the descriptor, too.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _wait(descriptor: int, kind: int, until: float | None) -> None:
    if until is None:
        fcntl.flock(descriptor, kind)
        return
    while time.monotonic() < until:
        time.sleep(0.05)
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return
    raise TimeoutError("somebody else holds the lock")
