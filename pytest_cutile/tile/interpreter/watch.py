"""Records the values that a kernel computes at chosen lines of its source, for chosen blocks."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

import torch

from pytest_cutile.tile.interpreter.analysis import every_op
from pytest_cutile.tile.interpreter.faults import Occurrence, is_cutile, user_location
from pytest_cutile.tile.interpreter.formatting import plain_name, show_tile
from pytest_cutile.tile.interpreter.frames import Frame
from pytest_cutile.tile.interpreter.ir import EntryPoint, Location, Op
from pytest_cutile.tile.interpreter.machine import Machine
from pytest_cutile.tile.interpreter.values import tile_of_block

MAX_VALUES = 1000
"""Values that are kept; of the rest only their number is."""
MAX_ELEMENTS = 1 << 24
"""Elements of all values together that are kept."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WatchedValue(Occurrence):
    """What one operation on a watched line returned in one block."""

    block: tuple[int, int, int]
    location: Location
    """The watched line, or a line within what it called."""
    type: str
    """Shape and dtype: "tile<64x1xf32>"."""
    tile: torch.Tensor
    """The value, `[*shape]`."""

    def __str__(self) -> str:
        loops = f", iteration {', '.join(map(str, self.iterations))}" if self.iterations else ""
        name, where = plain_name(self.op), f"in block {self.block}{loops}"
        return f"{name} at {self.location}: {self.type} {where}\n{show_tile(self.tile)}"


class Watcher:
    """Records values as they are computed."""

    def __init__(self, lines: Sequence[str], blocks: Sequence[tuple[int, int, int]]) -> None:
        self.values: list[WatchedValue] = []
        """In the order in which they were computed."""
        self.dropped = 0
        """How many more there were."""
        self._lines = [parse_line(line) for line in lines]
        self._blocks = tuple(blocks)
        self._elements = 0
        self._launch = -1
        self._watched: dict[int, Location] = {}
        self._numbers: dict[int, tuple[int, int, int]] = {}
        self._other_lines: set[int] = set()

    def begin_launch(self, machine: Machine, entry: EntryPoint) -> None:
        self._launch += 1
        self._watched = {}
        x, y, z = machine.grid
        self._numbers = {
            i + x * (j + y * k): (i, j, k) for i, j, k in self._blocks if i < x and j < y and k < z
        }
        for op in every_op(entry.body):
            if id(op) in machine.definitions.private:
                continue
            place = op.location
            while place is not None:
                if not is_cutile(place.file):
                    if any(matches(place, *line) for line in self._lines):
                        self._watched[id(op)] = user_location(op.location) or place
                        break
                    self._record_other_line(place)
                place = place.caller

    def _record_other_line(self, place: Location) -> None:
        if any(matches(place, path, place.line) for path, _ in self._lines):
            self._other_lines.add(place.line)

    def ran(self, machine: Machine, frame: Frame, op: Op) -> None:
        location = self._watched.get(id(op))
        if location is None:
            return
        blocks = frame.blocks.tolist()
        for number, block in self._numbers.items():
            if number not in blocks:
                continue
            row = blocks.index(number)
            for value, type_ in zip(op.results, op.result_types, strict=True):
                tile = frame.values.get(value)
                if isinstance(tile, torch.Tensor):
                    self._record(
                        WatchedValue(
                            launch=self._launch,
                            kernel=machine.kernel,
                            block=block,
                            location=location,
                            op=op.name,
                            iterations=tuple(machine.iterations),
                            type=str(type_),
                            tile=tile_of_block(tile, row),
                        )
                    )

    def _record(self, value: WatchedValue) -> None:
        self._elements += value.tile.numel()
        if len(self.values) >= MAX_VALUES or self._elements > MAX_ELEMENTS:
            self.dropped += 1
        else:
            self.values.append(value)

    def __str__(self) -> str:
        """Return all that was recorded, line by line."""
        if not self.values:
            lines = ", ".join(f"{path}:{line}" for path, line in self._lines)
            word = "block" if len(self._blocks) == 1 else "blocks"
            text = f"no operation ran on {lines} in {word} {', '.join(map(str, self._blocks))}"
            if not self._other_lines:
                return text
            *others, last = map(str, sorted(self._other_lines))
            there = (
                f"are some on lines {', '.join(others)} and {last}" if others else f"is one on line {last}"
            )
            return f"{text}; there {there}"
        parts = []
        before = None
        for value in self.values:
            place = (value.kernel, value.location.file, value.location.line)
            if place != before:
                before = place
                source = linecache.getline(value.location.file, value.location.line).strip()
                parts.append(f"{value.kernel}: {source}")
            parts.append(_indented(str(value)))
        if self.dropped:
            parts.append(f"... and {self.dropped} more, which were not kept")
        return "\n".join(parts)


def parse_line(text: str) -> tuple[str, int]:
    """Return path and line of "kernels/softmax.py:98".

    Raises:
        ValueError: it is not of that form.
    """
    path, _, line = text.rpartition(":")
    if not path or not line.isdigit():
        raise ValueError(f"{text!r} is no line of source: it has to be of the form kernels/softmax.py:98")
    return path, int(line)


def matches(place: Location, path: str, line: int) -> bool:
    """Return whether a place is on a line of the file whose path ends with `path`."""
    wanted = PurePath(path).parts
    return place.line == line and PurePath(place.file).parts[-len(wanted) :] == wanted


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
