"""A folder of results that survive the run; one that is not whole counts as absent."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pytest_cutile.words.locking import lock_descriptor, unlock_and_close

_DIGEST_SIZE = hashlib.sha256().digest_size
_POLL_S = 0.05


class DiskCache:
    """Bytes by key.

    A cache can only save time, so nothing here raises: what cannot be read counts as absent, what cannot be
    written is not kept. Several processes may share the folder.
    """

    def __init__(self, folder: Path | None, *, suffix: str) -> None:
        """Use `folder`, made when the first entry is written; None keeps nothing."""
        self._folder = folder
        self._suffix = suffix
        self.closing = threading.Event()
        """Set when the run ends: nobody waits any more."""

    def read(self, key: str) -> bytes | None:
        if self._folder is None:
            return None
        try:
            stored = self._path(self._folder, key).read_bytes()
        except OSError:
            return None
        digest, data = stored[:_DIGEST_SIZE], stored[_DIGEST_SIZE:]
        return data if hashlib.sha256(data).digest() == digest else None

    def write(self, key: str, data: bytes) -> None:
        if self._folder is None:
            return
        path = self._path(self._folder, key)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            # A writer that is killed leaves no more than an entry that counts as absent.
            path.write_bytes(hashlib.sha256(data).digest() + data)

    @contextlib.contextmanager
    def making(self, key: str, *, wait_s: float) -> Iterator[bytes | None]:
        """Yield the entry of `key`, or None; then everyone else who makes it is held off meanwhile.

        The lock is that of the entry's folder, so no lock files pile up; it goes when its process does. Who
        has waited for `wait_s` seconds, because a process that holds it hangs, goes on without.
        """
        stored = self.read(key)
        if stored is not None:
            yield stored
            return
        descriptor = None
        if self._folder is not None:
            folder = self._path(self._folder, key).parent
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(folder, os.O_RDONLY)
                self._lock(descriptor, wait_s)
        try:
            yield self.read(key)
        finally:
            if descriptor is not None:
                unlock_and_close(descriptor)

    def _lock(self, descriptor: int, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while not (self.closing.is_set() or lock_descriptor(descriptor, wait=False)):
            if time.monotonic() > deadline:
                return
            time.sleep(_POLL_S)

    def _path(self, folder: Path, key: str) -> Path:
        return folder / key[:2] / f"{key}{self._suffix}"
