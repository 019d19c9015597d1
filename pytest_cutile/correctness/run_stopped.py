"""`pytest.exit` in a user's code stops the run, although what a check explains or repeats may fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from _pytest.outcomes import Exit  # pytest.exit.Exception, as a type


class RunStopped(BaseException):
    """Carries what `pytest.exit` raised past handlers of `Exception`, of which pytest's own is one."""

    def __init__(self, request: Exit) -> None:
        super().__init__(request.msg)
        self.request = request


@contextmanager
def carrying_exit() -> Iterator[None]:
    """Let `pytest.exit` in a user's code pass as RunStopped, up to `raising_exit`."""
    try:
        yield
    except Exit as request:
        raise RunStopped(request) from None


@contextmanager
def raising_exit() -> Iterator[None]:
    """Raise what RunStopped carries, for pytest."""
    try:
        yield
    except RunStopped as stopped:
        raise stopped.request from None
