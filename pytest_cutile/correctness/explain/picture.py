"""A small picture of where errors sit in a matrix: as text for a log, as SVG for a report in HTML."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from html import escape

_SHADES = " .:*#"
_SOME, _MANY = 0.1, 0.5
SCALE = f"'{_SHADES}' = none, some, > {_SOME:.0%}, > {_MANY:.0%}, all wrong"
"""What the characters mean."""
_CELL = 10
_MARGIN = 4
_LINE = 18


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

    def as_svg(self) -> str:
        """Return the picture as an SVG document, runs of equal cells in one rectangle."""
        width, height = max(map(len, self.shares), default=0) * _CELL, len(self.shares) * _CELL
        (rows, columns), (tall, wide) = self.shape, self.cell
        text = f"{self.title}: {rows} x {columns}, cells of {tall} x {wide}, the darker the more are wrong"
        size = f'width="{max(width, 10 * len(text)) + 2 * _MARGIN}" height="{height + _LINE + 2 * _MARGIN}"'
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
            f'<text x="{_MARGIN}" y="{_LINE - _MARGIN}" font-family="monospace">{escape(text)}</text>',
            f'<g transform="translate({_MARGIN},{_LINE})">',
            f'<rect width="{width}" height="{height}" fill="white" stroke="gray"/>',
        ]
        for y, row in enumerate(self.shares):
            x = 0
            for share, run in itertools.groupby(row):
                count = len([*run])
                if share > 0:
                    parts.append(
                        f'<rect x="{x * _CELL}" y="{y * _CELL}" width="{count * _CELL}" '
                        f'height="{_CELL}" fill="firebrick" fill-opacity="{0.25 + 0.75 * share:.2f}"/>'
                    )
                x += count
        return "\n".join([*parts, "</g>", "</svg>"])


def _shade(share: float) -> str:
    if share in (0.0, 1.0):
        return _SHADES[0] if share == 0 else _SHADES[-1]
    return _SHADES[1 + (share > _SOME) + (share > _MANY)]
