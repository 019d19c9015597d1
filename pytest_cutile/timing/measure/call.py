"""What is timed, and the error where it cannot be."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_cutile.words.timing import LaunchFunction
from pytest_cutile.words.verdicts import Reason


class MeasurementFailed(Exception):  # noqa: N818 - carries a reason code
    """A speed that could not be measured, or a figure that is impossible; the message is for people."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Call:
    """A launcher and its arguments."""

    function: Callable[..., object]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    writes: tuple[str | int, ...] = ()
    """Arguments that each launch overwrites without reading them, by name or position."""
    is_stateful: bool = False
    """Whether a launch changes what the next one reads."""

    def __call__(self) -> object:
        return self.function(*self.args, **self.kwargs)

    def on(self, arguments: tuple[tuple[Any, ...], Mapping[str, Any]]) -> LaunchFunction:
        args, kwargs = arguments
        return functools.partial(self.function, *args, **kwargs)
