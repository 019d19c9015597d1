"""The plot of where the errors of a wrong output are."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING

from pytest_cutile.reports.html.plots import LEFT, RIGHT, TOP, WIDTH, Axis, Plot, picture
from pytest_cutile.reports.html.templates import text_of
from pytest_cutile.words.results import ErrorMap

if TYPE_CHECKING:
    from markupsafe import Markup

_LEAST_SIDE = 30
"""Pixels of the shorter side, however long the other one is."""


def heat_map(errors: ErrorMap) -> Markup:
    """Return the map as a plot, with the indices of rows and columns, and the scale above."""
    side = WIDTH - LEFT - RIGHT
    rows, columns = max(errors.shape[0], 1), max(errors.shape[1], 1)  # an axis has a length
    pixel = side / max(rows, columns)
    x = Axis(low=0, high=columns, first=LEFT, last=LEFT + max(columns * pixel, _LEAST_SIDE))
    y = Axis(low=0, high=rows, first=TOP, last=TOP + max(rows * pixel, _LEAST_SIDE))
    plot = Plot(x=x, y=y, x_title="column", y_title="row")
    swatch = side / len(errors.scale)
    for level, text in enumerate(errors.scale):
        left, further = LEFT + level * swatch, len(errors.scale) - 1 - level
        path = f"M{left:.1f} 0h{swatch:.1f}v8h-{swatch:.1f}z"
        plot.add('<path class="heat" fill-opacity="{}" d="{}"/>', _opacity(level, errors), path)
        if not further:
            plot.add('<text x="{:.1f}" y="21" class="end">{}</text>', left + swatch, text)
        elif level % 2 == 0 and further > 1:  # all of them would touch each other
            plot.add('<text x="{:.1f}" y="21" class="mid">{}</text>', left + swatch / 2, text)
    for level, path in sorted(_paths(errors, x, y).items()):
        opacity = _opacity(level, errors)
        plot.add('<path class="heat" fill-opacity="{}" d="{}"/>', opacity, path)
    return plot.svg(_label(errors))


def heat_map_file(errors: ErrorMap) -> str:
    """Return the map as a file of SVG, in the colours that the reader's system prefers."""
    return picture("Where the errors are", [(errors.caption, heat_map(errors))], text_of("page.css"))


def _paths(errors: ErrorMap, x: Axis, y: Axis) -> dict[int, str]:
    """Return by level the outline of its cells, runs of equal cells in one rectangle."""
    tall, wide = errors.cell
    paths: dict[int, list[str]] = defaultdict(list)
    for row, cells in enumerate(errors.rows):
        top, bottom = (y.at(min(edge * tall, y.high)) for edge in (row, row + 1))
        column = 0
        for mark, run in itertools.groupby(cells):
            count = len([*run])
            left, right = (x.at(min(edge * wide, x.high)) for edge in (column, column + count))
            if mark.isdecimal():
                paths[int(mark)].append(f"M{left:.1f} {top:.1f}H{right:.1f}V{bottom:.1f}H{left:.1f}z")
            column += count
    return {level: "".join(parts) for level, parts in paths.items()}


def _opacity(level: int, errors: ErrorMap) -> str:
    return f"{0.25 + 0.75 * level / max(len(errors.scale) - 1, 1):.2f}"


def _label(errors: ErrorMap) -> str:
    marks = [mark for row in errors.rows for mark in row]
    wrong = [int(mark) for mark in marks if mark.isdecimal()]
    share = f"{len(wrong)} of {len(marks)} cells have errors"
    most = f", at most {errors.scale[max(wrong)]} or more {errors.unit}" if wrong else ""
    return ". ".join(filter(None, (f"{errors.caption}: {share}{most}", errors.worst)))
