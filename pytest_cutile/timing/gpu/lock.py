"""One physical GPU, many processes: whoever times has it alone, everyone else shares it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from pytest_cutile.words.locking import locked

FOLDER = Path("/tmp/pytest-cutile-gpus")  # noqa: S108 - whatever TMPDIR is: users of a GPU have to meet
"""Where the locks of this machine's GPUs are."""


class GpuLock:
    """The lock of a GPU, known by its UUID to all processes of this machine that gate kernels.

    Two files: who wants the GPU alone holds the first while it waits for the second, so that those who share
    it, and come and go, cannot keep it waiting for ever.
    """

    def __init__(
        self,
        uuid: str,
        *,
        enabled: bool = True,
        on_wait: Callable[[], None] | None = None,
        folder: Path = FOLDER,
    ) -> None:
        self._uuid = uuid
        self._enabled = enabled and bool(uuid)
        self._on_wait = on_wait
        self._folder = folder
        self._depth = 0
        self._sharing: ExitStack | None = None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the GPU alone; within `shared`, that is given up meanwhile."""
        if not self._enabled or self._depth:
            yield
            return
        was_sharing, self._sharing = self._sharing, None
        if was_sharing is not None:
            was_sharing.close()
        self._depth += 1
        try:
            with self._hold("turn"), self._hold("gpu"):
                yield
        finally:
            self._depth -= 1
            if was_sharing is not None:
                self._sharing = self._share()

    @contextmanager
    def shared(self) -> Iterator[None]:
        if not self._enabled or self._depth or self._sharing is not None:
            yield
            return
        self._sharing = self._share()
        try:
            yield
        finally:
            stack, self._sharing = self._sharing, None
            if stack is not None:
                stack.close()

    def _share(self) -> ExitStack:
        stack = ExitStack()
        with self._hold("turn"):
            stack.enter_context(self._hold("gpu", shared=True))
        return stack

    def _hold(self, name: str, *, shared: bool = False) -> AbstractContextManager[None]:
        return locked(self._file(name), shared=shared, on_wait=self._on_wait)

    def _file(self, name: str) -> Path:
        """Return a file that every user of this machine can open for a lock."""
        folder = self._folder
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(0o1777)
        file = folder / f"{self._uuid}.{name}"
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDONLY)
            os.fchmod(descriptor, 0o644)  # whatever the umask of the first user
            os.close(descriptor)
        return file
