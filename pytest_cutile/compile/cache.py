"""A folder of compiled kernels that survives the run: written whole or not at all, checked when read."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

_DIGEST_SIZE = hashlib.sha256().digest_size


class CubinCache:
    """Compiled kernels by key.

    A cache can only save time, so nothing here raises: what cannot be read counts as absent, what cannot be
    written is not kept. Several processes may share the folder.
    """

    def __init__(self, folder: Path | None) -> None:
        """Use `folder`, made when the first entry is written; None keeps nothing."""
        self._folder = folder

    def read(self, key: str) -> bytes | None:
        """Return the cubin stored under `key` (hexadecimal), or None."""
        if self._folder is None:
            return None
        try:
            stored = self._path(self._folder, key).read_bytes()
        except OSError:
            return None
        digest, cubin = stored[:_DIGEST_SIZE], stored[_DIGEST_SIZE:]
        return cubin if hashlib.sha256(cubin).digest() == digest else None

    def write(self, key: str, cubin: bytes) -> None:
        """Store `cubin` under `key`, replacing what is there."""
        if self._folder is None:
            return
        path = self._path(self._folder, key)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
            temporary = Path(name)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(cubin).digest() + cubin)
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise

    @staticmethod
    def _path(folder: Path, key: str) -> Path:
        return folder / key[:2] / f"{key}.cubin"
