"""A large case in parts, checked one after the other: its reference need not fit into memory as a whole.

`CheckOptions.independent` names the axes along which arguments and outputs may be cut, in the form of
`jax.sharding.PartitionSpec`. Whole stay dimensions that are None or left out at the end, arguments that are
left out, and dimensions of length 1, which are broadcast. Names of arguments that a call has not say nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_cutile.tile.tensors.trees import map_tensors, tensors_in
from pytest_cutile.words.spec import Axes

Index = tuple[slice | torch.Tensor, slice]
"""Rows and columns of a matrix."""

OUTPUT = "output"
PART_ELEMENTS = 1 << 21
"""Elements of inputs and outputs from which a case is cut: of 16 MiB each as float64 there may be a dozen."""
MOST_PARTS = 16
"""A reference costs some thousand launches of torch's kernels for each part, however small."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a case: of some axes a range."""

    axes: Axes = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    """By axis: the first unit, the one after the last, and how many equal units its dimensions have."""

    @property
    def is_whole(self) -> bool:
        return not self.ranges

    def of(self, name: str, value: Any) -> Any:
        if self.is_whole:
            return value
        return map_tensors(lambda tensor: _narrow(tensor, self._bounds(name, tensor.shape)), value)

    def origin(self, values: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Return the index in the whole of the first element of each tensor among the arguments, by name."""
        return {
            name: tuple(first for first, _ in self._bounds(name, value.shape))
            for name, value in values.items()
            if isinstance(value, torch.Tensor)
        }

    def position(self, out: torch.Tensor) -> PartPosition:
        if self.is_whole:
            return PartPosition()
        *leading, columns = self._bounds(OUTPUT, out.shape)
        rows = torch.arange(math.prod(out.shape[:-1]), device=out.device).reshape(out.shape[:-1])
        return PartPosition(rows=_narrow(rows, leading).flatten(), first_column=columns[0])

    def _bounds(self, name: str, shape: Sequence[int]) -> list[tuple[int, int]]:
        bounds = []
        for axis, size in _axes_of(self.axes, name, shape):
            first, last, units = self.ranges.get(axis, (0, 1, 1))
            bounds.append((first * size // units, last * size // units))
        return bounds


WHOLE = Part()


@dataclass(frozen=True, kw_only=True)
class PartPosition:
    """Where a part of an output lies in the whole of it, both seen as `[rows, columns]`."""

    rows: torch.Tensor | None = None
    """int64: of each row of the part, its number in the whole; None: they are the same."""
    first_column: int = 0

    def block(self, rows: slice, columns: slice) -> Index:
        first = self.first_column
        moved = slice(columns.start + first, columns.stop + first)
        return rows if self.rows is None else self.rows[rows], moved

    def at(self, row: int, column: int) -> tuple[int, int]:
        return row if self.rows is None else int(self.rows[row]), column + self.first_column


def check_axes(axes: Axes, parameters: Collection[str]) -> None:
    """Raise ValueError if `axes` names dimensions in a way that nothing can be cut by."""
    described = f"independent must name dimensions of arguments and of the result ({OUTPUT!r}); got {axes!r}"
    tuples = isinstance(axes, Mapping) and all(isinstance(names, tuple | list) for names in axes.values())
    if not tuples or OUTPUT not in axes:
        raise ValueError(f"{described}: expected tuples of names, or None, by argument")
    for names in axes.values():
        given = [axis for axis in names if axis is not None]
        if len(given) != len({*given}):
            raise ValueError(f"{described}: a name twice in {tuple(names)}")
        if unknown := {*given} - {*axes[OUTPUT]}:
            raise ValueError(f"{described}: {sorted(unknown)}: no dimension of the result, so its parts meet")
    if parameters and (unknown := {*axes} - {*parameters, OUTPUT}):
        raise ValueError(f"{described}: {sorted(unknown)}: no argument; there are {sorted(parameters)}")


def cut(axes: Axes, values: Mapping[str, Any], outputs: Any) -> list[Part]:
    """Return the parts of a case; one, which is all of it, where it is small or cannot be cut."""
    trees = {**values, OUTPUT: outputs}
    units = _units(axes, trees)
    counts = dict.fromkeys(units, 1)
    enough = max(PART_ELEMENTS, _elements(axes, trees, counts) / MOST_PARTS)
    while _elements(axes, trees, counts) > enough and math.prod(counts.values()) < MOST_PARTS:
        finer = [
            counts | {axis: min(2 * counts[axis], most)}
            for axis, most in units.items()
            if counts[axis] < most
        ]
        if not finer:
            break
        counts = min(finer, key=lambda option: _elements(axes, trees, option))
    ranges = [
        [
            (axis, (at * units[axis] // count, (at + 1) * units[axis] // count, units[axis]))
            for at in range(count)
        ]
        for axis, count in counts.items()
        if count > 1
    ]
    return [Part(axes=axes, ranges=dict(chosen)) for chosen in itertools.product(*ranges)]


def sample(parts: Sequence[Part]) -> list[Part]:
    """Return the first part, the last one and one between: the ends of every loop, and its middle."""
    places = sorted({0, len(parts) // 2, len(parts) - 1})
    return [parts[place] for place in places]


def neighbours(axes: Axes, values: Mapping[str, Any], outputs: Any) -> Iterator[tuple[str, Part, list[Part]]]:
    """Yield of each axis its name, a part of a few units (one of each other axis), and the halves of that.

    They are the first four units, and the last two.
    """
    units = _units(axes, {**values, OUTPUT: outputs})
    for axis, count in units.items():
        others = {other: (0, 1, units[other]) for other in units}
        for first, last in dict.fromkeys(((0, min(4, count)), (max(0, count - 2), count))):
            middle = (first + last) // 2
            if first < middle:
                both, *halves = (
                    Part(axes=axes, ranges=others | {axis: (*between, count)})
                    for between in ((first, last), (first, middle), (middle, last))
                )
                yield axis, both, halves


def _narrow(tensor: torch.Tensor, bounds: Sequence[tuple[int, int]]) -> torch.Tensor:
    for dim, (first, last) in enumerate(bounds):
        tensor = tensor.narrow(dim, first, last - first)
    return tensor


def _axes_of(axes: Axes, name: str, shape: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Yield of each dimension of a tensor its axis and its length; the axis is "" where it stays whole."""
    for axis, size in itertools.zip_longest(axes.get(name, ())[: len(shape)], shape):
        yield (axis or "") if size != 1 else "", size


def _units(axes: Axes, trees: Mapping[str, Any]) -> dict[str, int]:
    """Return in how many equal units each axis can be cut; none where a tensor lacks dimensions."""
    units = {axis: 0 for axis in axes[OUTPUT] if axis is not None}
    for name, names in axes.items():
        for tensor in tensors_in(trees.get(name)):
            if tensor.ndim < len(names):
                return {}
            for axis, size in _axes_of(axes, name, tensor.shape):
                if axis:
                    units[axis] = math.gcd(units[axis], size)
    return {axis: count for axis, count in units.items() if count}


def _elements(axes: Axes, trees: Mapping[str, Any], counts: Mapping[str, int]) -> float:
    return math.fsum(
        math.prod(size / counts.get(axis, 1) for axis, size in _axes_of(axes, name, tensor.shape))
        for name, value in trees.items()
        for tensor in tensors_in(value)
    )
