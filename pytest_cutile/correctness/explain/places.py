"""Where the errors of an output sit: indices of each dimension, tiles, the diagonal; pictures and maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import avg_pool2d, max_pool2d

from pytest_cutile.correctness.compare.elements import LEVELS
from pytest_cutile.words.results import ErrorMap

_TILES = tuple(1 << power for power in range(3, 11))
_LEAST = 4
"""Rows and columns from which a diagonal can be told from a corner."""
_SAMPLE = 1 << 20
"""Elements of a matrix that are looked at for a diagonal, in rows at equal distances."""
_SCATTERED = 0.01
"""Share of wrong elements up to which they are called few."""
_SHADES = " .-*#"
_SOME, _MANY = 0.1, 0.5
_SCALE = f"'{_SHADES}' = none, some, > {_SOME:.0%}, > {_MANY:.0%}, all wrong"
_TEXT_CELLS = (6, 32)
"""Rows and columns of the picture in a text."""
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


def find_places(wrong: torch.Tensor) -> list[WrongIndices]:
    places = []
    for dim, size in enumerate(wrong.shape):
        others = [other for other in range(wrong.ndim) if other != dim]
        hit = wrong.any(dim=others) if others else wrong
        indices = hit.nonzero().flatten()
        count = indices.numel()
        if not 0 < count < size:
            continue
        place = WrongIndices(dim=dim, size=size, first=int(indices[0]), last=int(indices[-1]), count=count)
        if place.is_range or 2 * count <= size:  # most of them, here and there: nothing special
            places.append(place)
    return places


def find_diagonal(wrong: torch.Tensor) -> str:
    """Return where errors are relative to the diagonal of the last two dimensions; empty: nowhere special.

    Where those differ in size, the diagonal may begin at the first element or end at the last one.
    """
    if wrong.ndim < 2 or min(wrong.shape[-2:]) < _LEAST:  # noqa: PLR2004
        return ""
    rows, columns = wrong.shape[-2:]
    matrix = wrong.any(dim=tuple(range(wrong.ndim - 2))) if wrong.ndim > 2 else wrong  # noqa: PLR2004
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


def is_scattered(wrong: torch.Tensor) -> bool:
    """Return whether errors are few and in no rows, columns or tiles of their own."""
    bad = int(wrong.sum())
    if bad > _SCATTERED * wrong.numel() or wrong.ndim == 0:
        return False
    at = wrong.nonzero()
    box = 1
    for dim, size in enumerate(wrong.shape):
        box *= int(at[:, dim].max() - at[:, dim].min()) + 1
        by_chance = size * (1 - (1 - 1 / size) ** bad)  # indices that so many errors meet
        if 2 * len({*at[:, dim].tolist()}) < by_chance:
            return False
    return bad == 1 or bad < box / 4


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A matrix in cells, of which the last ones may be smaller."""

    title: str
    """Name of the matrix: "output[2, :, :]"."""
    shape: tuple[int, int]
    cell: tuple[int, int]
    """Rows and columns of a cell."""
    values: Sequence[Sequence[float]]
    """By row and column of cells: the share of wrong elements, from 0 to 1, or the largest level."""

    @property
    def caption(self) -> str:
        rows, columns = self.shape
        tall, wide = self.cell
        return f"{self.title}, {rows} x {columns}, a character for {tall} x {wide}"

    def as_text(self) -> list[str]:
        return [f"|{''.join(map(_shade, row))}|" for row in self.values]

    def as_map(
        self, digit: Callable[[float], int], scale: tuple[str, ...], unit: str, worst: str = ""
    ) -> ErrorMap:
        rows = ("".join(f"{digit(value)}" if value else "." for value in row) for row in self.values)
        return ErrorMap(
            matrix=self.title,
            shape=self.shape,
            cell=self.cell,
            rows=tuple(rows),
            scale=scale,
            unit=unit,
            worst=worst,
        )


def _shade(share: float) -> str:
    if share in (0.0, 1.0):
        return _SHADES[0] if share == 0 else _SHADES[-1]
    return _SHADES[1 + (share > _SOME) + (share > _MANY)]


def draw(wrong: torch.Tensor, name: str) -> list[str]:
    """Return a picture as lines of text; none of a single place, or of errors in every cell."""
    picture = _picture(wrong, name, avg_pool2d, *_TEXT_CELLS)
    if all(map(all, picture.values)) or int(wrong.sum()) <= 1:
        return []
    return [f"{picture.caption}:", *(f"  {line}" for line in picture.as_text()), f"  {_SCALE}"]


def map_errors(levels: torch.Tensor, name: str, *, unit: str, worst: str = "") -> ErrorMap:
    """Return the map of the levels of an output's errors (`ElementComparison.levels`)."""
    picture = _picture(levels, name, max_pool2d, _MAP_CELLS, _MAP_CELLS)
    return picture.as_map(lambda level: int(level) - 1, (*_BOUNDS, "infinite"), unit, worst)


def map_shares(wrong: torch.Tensor, name: str, *, unit: str) -> ErrorMap:
    picture = _picture(wrong, name, avg_pool2d, _MAP_CELLS, _MAP_CELLS)
    return picture.as_map(lambda share: min(int(share * 10), 9), _SHARES, unit)


def _picture(
    errors: torch.Tensor, name: str, pool: Callable[..., torch.Tensor], rows: int, columns: int
) -> Picture:
    """Pool the last two dimensions, at the index with most errors, in `rows` x `columns` cells or fewer."""
    matrix, title = _matrix_with_most_errors(errors, name)
    height, width = matrix.shape
    tall, wide = -(-height // rows), -(-width // columns)
    # no copy of the whole matrix: it may be most of the memory
    strips = (
        pool(strip[None].double(), (len(strip), wide), ceil_mode=True) for strip in torch.split(matrix, tall)
    )
    values = [strip.flatten().tolist() for strip in strips]
    return Picture(title=title, shape=(height, width), cell=(tall, wide), values=values)


def _matrix_with_most_errors(errors: torch.Tensor, name: str) -> tuple[torch.Tensor, str]:
    """Return the last two dimensions of the index at which most elements are not 0, and which it is."""
    if errors.ndim <= 2:  # noqa: PLR2004
        return errors.reshape(-1, errors.shape[-1]) if errors.ndim else errors.reshape(1, 1), name
    leading = errors.flatten(0, -3)
    most = int(leading.count_nonzero(dim=(-2, -1)).argmax())
    index = np.unravel_index(most, errors.shape[:-2])  # torch's imports sympy
    title = f"{name}[{', '.join(str(int(number)) for number in index)}, :, :], with most errors"
    return leading[most], title
