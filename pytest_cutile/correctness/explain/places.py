"""Where the errors of an output sit: indices of each dimension, tiles, the diagonal, and a picture of them.

The picture is text in a log, and a map for reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from pytest_cutile.correctness.compare.elements import LEVELS
from pytest_cutile.results import ErrorMap

_TILES = tuple(1 << power for power in range(3, 11))
_LEAST = 4
"""Rows and columns from which a diagonal can be told from a corner."""
_SAMPLE = 1 << 20
"""Elements of a matrix that are looked at for a diagonal, in rows at equal distances."""
_SCATTERED = 0.01
"""Share of wrong elements up to which they are called few."""
_SHADES = " .-*#"
_SOME, _MANY = 0.1, 0.5
SCALE = f"'{_SHADES}' = none, some, > {_SOME:.0%}, > {_MANY:.0%}, all wrong"
"""What the characters mean."""
_MAP_CELLS = 64
"""Rows and columns of a map: 4 kB, and as fine as a plot of phone width can show."""
_BOUNDS = tuple(f"{float(f'{10 ** (step / 2):.1g}'):g}" for step in range(LEVELS))
_SHARES = tuple(f"{tenths} %" for tenths in range(0, 100, 10))


@dataclass(frozen=True, kw_only=True)
class WrongIndices:
    """The indices of one dimension that have errors, where others have none."""

    dim: int
    size: int
    first: int
    last: int
    count: int

    @property
    def is_range(self) -> bool:
        return self.last - self.first + 1 == self.count

    @property
    def short(self) -> str:
        """The indices in words: "the last 4 of 100 of dim 1"."""
        return f"{self._indices} of dim {self.dim}"

    def __str__(self) -> str:
        """Return "dim 1: only the last 4 of 100 (a last partial tile, if tiles have 16 or 32)"."""
        return f"dim {self.dim}: only {self._indices}{self._tile()}"

    @property
    def _indices(self) -> str:
        size, count, first, last = self.size, self.count, self.first, self.last
        if count == 1:
            return f"index {first} of {size}"
        if not self.is_range:
            return f"{count:,} of {size:,} indices, from {first:,} to {last:,}"
        if last == size - 1:
            return f"the last {count:,} of {size:,}"
        if first == 0:
            return f"the first {count:,} of {size:,}"
        return f"{first:,} to {last:,} of {size:,}"

    def _tile(self) -> str:
        if not self.is_range or self.count == self.size:
            return ""
        partial = [tile for tile in _TILES if tile < self.size and self.size % tile == self.count]
        if self.last == self.size - 1 and partial:
            return f" (the last partial tile, if tiles have {' or '.join(map(str, partial))})"
        if self.count in _TILES and self.first % self.count == 0:
            return f" (one tile, if tiles have {self.count})"
        return ""


def find_places(outside: torch.Tensor) -> list[WrongIndices]:
    places = []
    for dim, size in enumerate(outside.shape):
        others = [other for other in range(outside.ndim) if other != dim]
        hit = outside.any(dim=others) if others else outside
        indices = hit.nonzero().flatten()
        count = indices.numel()
        if not 0 < count < size:
            continue
        place = WrongIndices(dim=dim, size=size, first=int(indices[0]), last=int(indices[-1]), count=count)
        if place.is_range or 2 * count <= size:  # most of them, here and there: nothing special
            places.append(place)
    return places


def find_diagonal(outside: torch.Tensor) -> str:
    """Return where errors are relative to the diagonal of the last two dimensions; empty: nowhere special.

    Where those differ in size, the diagonal may begin at the first element or end at the last one.
    """
    if outside.ndim < 2 or min(outside.shape[-2:]) < _LEAST:  # noqa: PLR2004
        return ""
    rows, columns = outside.shape[-2:]
    matrix = outside.any(dim=tuple(range(outside.ndim - 2))) if outside.ndim > 2 else outside  # noqa: PLR2004
    step = max(1, rows * columns // _SAMPLE)
    row, column = matrix[::step].nonzero().unbind(1)
    row = row * step
    if row.numel() == 0:
        return ""
    spread = min(int(numbers.max() - numbers.min()) + 1 for numbers in (row, column))
    if spread <= min(rows, columns) // 2:  # a corner
        return ""
    starts = {columns - rows: "the diagonal that ends at the last element", 0: "the diagonal"}
    for start, name in starts.items():
        offset = column - row - start
        side = _side(int(offset.min()), int(offset.max()))
        # A few errors may lie on one side by chance: half of the side's first diagonal has to be wrong.
        nearest = int(offset.abs().min())
        if side and 2 * int((offset.abs() == nearest).sum()) * step >= min(rows, columns):
            return f"only {side} {name} of the last two dimensions"
    return ""


def _side(lowest: int, highest: int) -> str:
    """Return on which side of a diagonal offsets between these are that begin beside it."""
    if lowest == highest == 0:
        return "on"
    if lowest in (0, 1):
        return "above" if lowest else "on and above"
    if highest in (0, -1):
        return "below" if highest else "on and below"
    return ""


def is_scattered(outside: torch.Tensor, bad: int) -> bool:
    """Return whether errors are few and in no rows, columns or tiles of their own."""
    if bad > _SCATTERED * outside.numel() or outside.ndim == 0:
        return False
    at = outside.nonzero()
    box = 1
    for dim, size in enumerate(outside.shape):
        box *= int(at[:, dim].max() - at[:, dim].min()) + 1
        by_chance = size * (1 - (1 - 1 / size) ** bad)  # indices that so many errors meet
        if 2 * len({*at[:, dim].tolist()}) < by_chance:
            return False
    return bad == 1 or bad < box / 4


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The share of wrong elements in each cell of a grid over a matrix."""

    title: str
    """Of which matrix: "output[2, :, :]"."""
    shape: tuple[int, int]
    cell: tuple[int, int]
    """Rows and columns of a cell; the last cells may have fewer."""
    shares: tuple[tuple[float, ...], ...]
    """By row and column of cells, from 0 to 1."""

    @property
    def caption(self) -> str:
        rows, columns = self.shape
        tall, wide = self.cell
        return f"{self.title}, {rows} x {columns}, a character for {tall} x {wide}"

    def as_text(self) -> list[str]:
        return [f"|{''.join(map(_shade, row))}|" for row in self.shares]


def _shade(share: float) -> str:
    if share in (0.0, 1.0):
        return _SHADES[0] if share == 0 else _SHADES[-1]
    return _SHADES[1 + (share > _SOME) + (share > _MANY)]


def draw(outside: torch.Tensor, name: str, *, rows: int, columns: int) -> Picture:
    """Draw the last two dimensions in `rows` x `columns` cells or fewer, of the index with most errors."""
    matrix, title = _matrix_with_most_errors(outside, name)
    tall, wide = _cell(matrix, rows, columns)
    shares = [
        tuple(sum(cell) / (min(tall, matrix.shape[0] - row * tall) * len(cell)) for cell in cells)
        for row, cells in enumerate(_cells(matrix, tall, wide, lambda strip: strip.sum(dim=0)))
    ]
    return Picture(
        title=title,
        shape=(matrix.shape[0], matrix.shape[1]),
        cell=(tall, wide),
        shares=tuple(shares),
    )


def map_errors(levels: torch.Tensor, name: str, *, unit: str, worst: str = "") -> ErrorMap:
    """Return the map of the levels of an output's errors (`ElementComparison.levels`)."""
    matrix, title = _matrix_with_most_errors(levels, name)
    tall, wide = _cell(matrix, _MAP_CELLS, _MAP_CELLS)
    rows = [
        "".join("." if not max(cell) else f"{max(cell) - 1}" for cell in cells)
        for cells in _cells(matrix, tall, wide, lambda strip: strip.amax(dim=0))
    ]
    return ErrorMap(
        matrix=title,
        shape=(matrix.shape[0], matrix.shape[1]),
        cell=(tall, wide),
        rows=tuple(rows),
        scale=(*_BOUNDS, "infinite"),
        unit=unit,
        worst=worst,
    )


def map_shares(wrong: torch.Tensor, name: str, *, unit: str) -> ErrorMap:
    """Return the map of the shares of an output's elements of which something holds."""
    picture = draw(wrong, name, rows=_MAP_CELLS, columns=_MAP_CELLS)
    return ErrorMap(
        matrix=picture.title,
        shape=picture.shape,
        cell=picture.cell,
        rows=tuple(
            "".join("." if not share else f"{min(math.floor(share * 10), 9)}" for share in row)
            for row in picture.shares
        ),
        scale=_SHARES,
        unit=unit,
    )


def _matrix_with_most_errors(errors: torch.Tensor, name: str) -> tuple[torch.Tensor, str]:
    """Return the last two dimensions of the index at which most elements are not 0, and which it is."""
    if errors.ndim <= 2:  # noqa: PLR2004
        return errors.reshape(-1, errors.shape[-1]) if errors.ndim else errors.reshape(1, 1), name
    leading = errors.flatten(0, -3)
    most = int(leading.count_nonzero(dim=(-2, -1)).argmax())
    index = np.unravel_index(most, errors.shape[:-2])  # torch's imports sympy
    title = f"{name}[{', '.join(str(int(number)) for number in index)}, :, :], with most errors"
    return leading[most], title


def _cell(matrix: torch.Tensor, rows: int, columns: int) -> tuple[int, int]:
    """Return the size of cells of which a matrix has at most so many rows and columns."""
    tall, wide = (max(1, -(-size // most)) for size, most in zip(matrix.shape, (rows, columns), strict=True))
    return tall, wide


def _cells(
    matrix: torch.Tensor, tall: int, wide: int, pooled: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[list[list[int]]]:
    """Yield for each row of cells the columns of each cell, pooled over its rows."""
    for strip in torch.split(matrix, tall):  # no copy of the matrix: it may be most of the memory
        columns = pooled(strip).tolist()
        yield [columns[start : start + wide] for start in range(0, len(columns), wide)]
