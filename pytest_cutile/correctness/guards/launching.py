"""How a check calls launchers: on a GPU, or interpreted. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from pytest_cutile.correctness.run_stopped import carrying_exit

LauncherCall = Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]
"""Calls a launcher with its arguments and returns its outputs."""


def call_launcher(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a user's launcher, in which `pytest.exit` stops the run."""
    with carrying_exit():
        return fn(*args, **kwargs)


class Launching:
    """Calls launchers for a check, on a GPU."""

    is_interpreted: ClassVar[bool] = False
    """Whether accesses out of bounds and unwritten outputs are found during a call.

    Memory then needs neither redzones nor poison, and "cuda" is the memory of the CPU.
    """
    leaves_other_memory = False
    """Whether the last call left something else in memory than the call before, such as in a workspace."""

    def __call__(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return call_launcher(fn, args, kwargs)


class Interpreted(Launching):
    """Calls launchers where launches are interpreted."""

    is_interpreted = True

    def __init__(self, call: LauncherCall | None = None) -> None:
        self._call = super().__call__ if call is None else call

    def __call__(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self._call(fn, args, kwargs)


ON_GPU = Launching()
