"""Locks between processes of one machine, gone with their process, and files that are replaced as a whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK_SECONDS = 60.0
"""Longest wait for the lock of a file: a writer needs milliseconds."""


def lock_descriptor(descriptor: int, *, shared: bool = False, wait: bool = True) -> bool:
    """Lock an open file or folder; return whether it is locked now.

    This is `flock` and not the package filelock, which has no shared lock without a database, and polls: GPU
    time would be lost while two processes alternate.

    Raises:
        OSError: the file system has no locks, or the platform has no `flock` (Windows).
    """
    try:
        import fcntl
    except ImportError as error:
        raise OSError(
            errno.ENOSYS, "locks of GPUs and folders need flock, which this platform lacks"
        ) from error
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def unlock_and_close(descriptor: int) -> None:
    """Give up the lock of an open file or folder, if there is one, and close the descriptor.

    Closing is not enough: a process forked meanwhile has the descriptor too, and would keep the lock.
    """
    with suppress(OSError, ImportError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


@contextmanager
def locked(
    path: Path,
    *,
    shared: bool = False,
    on_wait: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Hold the lock of a file or folder that exists, alone or with others that share it.

    `on_wait` is called once if another process holds it.

    Raises:
        OSError: The file cannot be opened or locked.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if not lock_descriptor(descriptor, shared=shared, wait=False):
            if on_wait is not None:
                on_wait()
            lock_descriptor(descriptor, shared=shared)
        yield
    finally:
        unlock_and_close(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[None]:
    """Hold the right to replace the file at `path`, which need not exist; its folder must.

    What a writer that was killed has left is removed. The lock file is there only meanwhile, so that it does
    not turn up in `git status`.

    Raises:
        OSError: nobody could get the lock for a minute: its folder takes no files, or somebody hangs.
    """
    from filelock import FileLock

    lock_file = path.with_name(f".{path.name}.lock")
    with FileLock(lock_file, timeout=LOCK_SECONDS):
        try:
            _unfinished_file(path).unlink(missing_ok=True)
            yield
        finally:
            # Still locked: filelock notices a file that was removed, and makes a new one.
            with suppress(OSError):
                lock_file.unlink()


def write_text(path: Path, text: str) -> None:
    """Replace the file at `path`, whose lock is held, as a whole or not at all."""
    unfinished = _unfinished_file(path)
    try:
        with unfinished.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.chmod(0o644)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _unfinished_file(path: Path) -> Path:
    """Return the file that is written before it replaces `path`: one name, so that no two can be left."""
    return path.with_name(f".{path.name}.tmp")


def replace_file(path: Path, text: str) -> None:
    """Write a file as a whole or not at all; what is no regular file (a pipe, a device) is written to.

    Raises:
        OSError: it cannot be written.
    """
    path = path.resolve()  # a link stays a link
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    with replacing(path):
        write_text(path, text)


def not_written(path: Path, error: OSError) -> str:
    """Say that a file or folder, which the error names unless it is `path` itself, could not be written."""
    target, why = error.filename or path, error.strerror or error
    return f"nothing was written: {target} is full or cannot be written: {why}"
