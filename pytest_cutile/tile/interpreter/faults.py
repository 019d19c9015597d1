"""What an interpreted kernel did wrong, and where."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pytest_cutile.tile.compiler.job import source_line
from pytest_cutile.tile.interpreter.ir import Location
from pytest_cutile.words.errors import ShownWithoutTraceback

if TYPE_CHECKING:
    import torch

FaultKind = Literal[
    "aliasing",
    "assertion",
    "assumption",
    "endless-loop",
    "misaligned",
    "not-interpreted",
    "order",
    "out-of-bounds",
    "race",
    "undetermined",
    "uninitialized",
]
"""Kinds of faults; `pytest_cutile.words.verdicts.Reason` says what each of them means."""


class KernelFault(ShownWithoutTraceback):
    """A kernel did what no GPU promises to do well; `str()` is all that its author needs."""

    def __init__(
        self,
        kind: FaultKind,
        message: str,
        *,
        kernel: str = "",
        block: tuple[int, ...] | None = None,
        location: Location | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        """What sort of fault; in results, the reason code."""
        self.message = message
        self.kernel = kernel
        """Name of the kernel's function."""
        self.block = block
        """The first block that did it."""
        self.location = location
        """Where, in the user's source."""

    def __str__(self) -> str:
        where = f" in block {self.block}" if self.block is not None else ""
        subject = f"{self.kernel}{where}".strip()
        text = f"{subject}: {self.message}" if subject else self.message
        return text + excerpt(self.location)

    def in_one_line(self) -> str:
        """Return the message with its place, without the source text."""
        first = f"{self}".partition("\n")[0]
        return f"{first} ({self.location})" if self.location is not None else first

    def __reduce__(self) -> tuple[object, ...]:  # so that it survives being sent between processes
        copy = partial(KernelFault, kernel=self.kernel, block=self.block, location=self.location)
        return copy, (self.kind, self.message)


class NotInterpreted(KernelFault):
    """The interpreter does not know how to run an operation, by its name and place in the source."""

    def __init__(self, message: str) -> None:
        super().__init__("not-interpreted", message)


class UnwrittenOutput(KernelFault):
    """Nothing has written an element of an output."""

    def __init__(self, message: str, tensor: torch.Tensor) -> None:
        super().__init__("uninitialized", message)
        self.tensor = tensor
        """The output."""


class InterpreterFailed(NotInterpreted):
    """The interpreter itself went wrong; `__cause__` is how."""

    def __init__(self, operation: str, cause: Exception) -> None:
        why = (f"{cause}".strip().splitlines() or [""])[0]
        super().__init__(
            f"the interpreter failed on {operation}: {type(cause).__name__}: {why}; "
            "this is a fault of pytest-cutile, not of the kernel"
        )


class NoSuchBlock(ValueError):  # noqa: N818 - reads as what happened
    """A block was asked for that the grid does not have."""


@dataclass(frozen=True, kw_only=True)
class Occurrence:
    """An operation that ran in one block."""

    launch: int
    """Launches before this one."""
    kernel: str
    """Name of the kernel's function."""
    op: str = ""
    """Name of the operation in Tile IR."""
    block: tuple[int, int, int] | None = None
    """Indices (x, y, z)."""
    location: Location | None = None
    """Where, in the user's source."""
    iterations: tuple[int, ...] = ()
    """Iteration of each loop around it, from 0, outermost first."""


def user_location(location: Location | None) -> Location | None:
    """Return the innermost place that is not in cuda-tile itself, where `x.astype` and the like are."""
    while location is not None and location.caller is not None and is_cutile(location.file):
        location = location.caller
    return location


def is_cutile(file: str) -> bool:
    """Return whether a source file is cuda-tile's own."""
    import cuda.tile

    return Path(file).is_relative_to(Path(cuda.tile.__file__).parent)


def excerpt(location: Location | None) -> str:
    """Return, on new lines, a place, its source line with a mark under the column, and the callers."""
    lines = [""]
    place: Location | None = location
    while place is not None:
        lines.append(f"  {place}" if place is location else f"  called from {place}")
        if place is location and (source := source_line(place.file, place.line, place.column)):
            lines.append(source)
        place = user_location(place.caller)
    return "\n".join(lines)
