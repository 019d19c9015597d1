"""The plots of the page as SVG: small, and coloured by the page's style sheet.

Each plot has a `label`, a sentence that says what it shows, and is empty where there is nothing to draw.
docs/how-to/report.md says why no library draws them.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from textwrap import wrap
from typing import TypeGuard

from markupsafe import Markup

from pytest_cutile.gates.speed.rule import Estimate
from pytest_cutile.reports.history import HistoryPoint, count_in_bins, step_text
from pytest_cutile.words.document import printable, shorten
from pytest_cutile.words.quantities import counted, format_change, format_commit, format_time

WIDTH, HEIGHT = 320, 210
"""Size of a plot: as wide as a page on a phone, so that its text is not made smaller there."""
COLOURS = 6
"""Classes of colours in the style sheet: "c0" to "c5"."""
LEFT, RIGHT, TOP, BOTTOM = 60, 12, 28, 38
_LINE, _TITLE_LINE = 14, 20
"""Height of a line of text, and of a picture's title."""
_ROW, _NAME_CHARACTERS = 32, 46
"""Height of a row with its name above, and what of the name fits there."""
_BINS = 30
_MOST_TICKS = 5
_MOST_COMMITS = 4
"""Ticks of a history: each is as wide as an abbreviated commit."""
_KEY_CHARACTERS = 44
"""Characters of names, with a blank behind each, that fit into a line above a plot."""
_TITLE_CHARACTERS, _CAPTION_CHARACTERS = 34, 50
"""What fits into a line of a picture's title, and of a plot's title in it."""


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A point of a plot."""

    x: float
    y: float
    title: str
    """What it is, for those who point at it."""
    href: str = ""
    """Where a click leads."""
    is_marked: bool = False
    is_hollow: bool = False
    spread: float = 0.0
    """By what fraction of y half of the samples behind it scatter to either side."""


@dataclass(frozen=True, kw_only=True)
class PlottedLine:
    """Points of one colour."""

    name: str
    dots: Sequence[Dot]
    joined: bool = True


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Which pixels values are at."""

    low: float
    high: float
    first: float
    """Where `low` is, in pixels."""
    last: float
    is_log: bool = False
    labels: Sequence[tuple[float, str]] | None = None
    """Ticks with their texts; None: round numbers."""

    def at(self, value: float) -> float:
        values = (self.low, self.high, value)
        low, high, value = map(math.log, values) if self.is_log else values
        return self.first + (value - low) / ((high - low) or 1.0) * (self.last - self.first)

    @property
    def ticks(self) -> Sequence[tuple[float, str]]:
        if self.labels is not None:
            return self.labels
        return [(tick, _number(tick)) for tick in self._decades() or self._steps()]

    def _decades(self) -> list[float]:
        """Return powers of ten and, if they are few, steps between; nothing where that is a single tick."""
        if not self.is_log:
            return []
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = (1,) if len(decades) > 3 else (1, 2, 5)  # noqa: PLR2004 - few decades need more ticks
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        shown = [tick for tick in ticks if self.low <= tick * 1.0000001 and tick <= self.high * 1.0000001]
        return shown[:: -(-len(shown) // (_MOST_TICKS + 1))] if len(shown) > 1 else []

    def _steps(self) -> list[float]:
        span = self.high - self.low
        step = 10.0 ** math.floor(math.log10(span / 2))
        step *= next(many for many in (0.5, 1, 2, 5, 10, 20) if span / (step * many) <= _MOST_TICKS)
        first, last = math.ceil(self.low / step * 0.9999999), int(self.high / step * 1.0000001)
        return [step * number for number in range(first, last + 1)]


def _axis(
    values: Iterable[float],
    first: float = LEFT,
    last: float = WIDTH - RIGHT,
    *,
    is_log: bool = False,
    margin: float = 0.06,
    labels: Sequence[tuple[float, str]] | None = None,
) -> Axis:
    """Return an axis of all finite values, which is longer at both ends by `margin`, a fraction."""
    usable = finite(values)
    low, high = min(usable), max(usable)
    if is_log:
        wider = max((high / low) ** margin, 1.1)
        low, high = low / wider, high * wider
    else:
        wider = (high - low) * margin or abs(high) * margin or 1.0
        low, high = low - wider, high + wider
    return Axis(low=low, high=high, first=first, last=last, is_log=is_log, labels=labels)


def _from_zero(values: Iterable[float], first: float = HEIGHT - BOTTOM, last: float = TOP) -> Axis:
    high = max(values) * 1.08 or 1.0  # zeros alone have no height
    return Axis(low=0, high=high, first=first, last=last)


@dataclass(kw_only=True)
class Plot:
    """A frame with two axes, and what is drawn in it."""

    x: Axis
    y: Axis
    x_title: str
    y_title: str
    parts: list[Markup] = field(default_factory=list)

    def add(self, template: str, *values: object) -> None:
        """Append SVG; each value is escaped."""
        self.parts.append(Markup(template).format(*values))  # noqa: S704 - templates are ours

    def svg(self, label: str) -> Markup:
        """Return the plot; `label` says in a sentence what it shows."""
        left, right = self.x.first, self.x.last
        top, bottom = sorted((self.y.first, self.y.last))
        height = bottom + BOTTOM
        row = Markup('<path class="grid" d="M{} {y}H{}"/><text x="{}" y="{y}" dy="4" class="end">{}</text>')
        column = Markup('<path class="grid" d="M{x} {}V{}"/><text x="{x}" y="{}" class="mid">{}</text>')
        grid = [
            row.format(left, right, left - 5, text, y=f"{self.y.at(tick):.1f}") for tick, text in self.y.ticks
        ]
        grid += [
            column.format(top, bottom, bottom + 15, text, x=f"{self.x.at(tick):.1f}")
            for tick, text in self.x.ticks
        ]
        titles = Markup(
            '<text x="{}" y="{}" class="end">{}</text>'
            '<text transform="translate(14 {})rotate(-90)" class="mid">{}</text>'
        ).format(right, bottom + 32, self.x_title, (bottom + top) // 2, self.y_title)
        svg = Markup(
            '<svg viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">'
            '<g class="axes">{}{}</g>{}</svg>'
        ).format(WIDTH, height, WIDTH, height, label, Markup().join(grid), titles, Markup().join(self.parts))
        return Markup(printable(svg))  # noqa: S704 - XML knows no characters that control a terminal


def _number(value: float) -> str:
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):  # noqa: PLR2004
        return f"{value:.3g}".replace("e+0", "e").replace("e-0", "e-")
    return f"{value:.6g}"


def is_finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


# -- how values are distributed -------------------------------------------------------------------------


def histogram(current_us: Sequence[float], baseline_us: Sequence[float] = ()) -> Markup:
    """Return how samples are distributed, those of the baseline kernel behind; nothing without samples."""
    current, baseline = finite(current_us), finite(baseline_us)
    if not current:
        return Markup()
    plot = _histogram({"baseline": baseline, "current": current}, "us per launch")
    label = f"{counted(len(current), 'sample')} of {_span(current)}"
    if baseline:
        plot.parts.append(_legend([[(5, "baseline kernel"), (0, "current")]]))
        label += f"; {len(baseline)} of the baseline kernel, {_span(baseline)}"
    return plot.svg(label)


def change_histogram(changes: Sequence[float], estimated: Estimate) -> Markup:
    """Return how the changes of pairs are distributed, beside no change; the mean, and how certain it is.

    A change is the current time over that of the baseline kernel, minus 1.
    """
    low, high = estimated.interval()
    mean, shown = estimated.change, f"{format_change(low)} to {format_change(high)}"
    percents = [100 * change for change in changes]
    plot = _histogram(
        {"current": percents}, "change against the baseline kernel, %", [0, 100 * low, 100 * high]
    )
    left, right, middle, same = (f"{plot.x.at(100 * value):.1f}" for value in (low, high, mean, 0))
    bottom = HEIGHT - BOTTOM
    plot.add('<path class="interval" d="M{} {}H{}V{}H{}z"/>', left, TOP, right, bottom, left)
    plot.add('<path class="mean" d="M{} {}V{}"/>', middle, TOP, bottom)
    plot.add('<path class="roof" d="M{} {}V{}"/>', same, TOP, bottom)
    text = f"mean {format_change(mean)}, 95 %: {shown}"
    plot.add('<text x="{}" y="12" class="end">{}</text>', WIDTH - RIGHT, text)
    return plot.svg(f"{counted(len(changes), 'pair')}: mean {format_change(mean)}, 95 % interval {shown}")


def _histogram(groups: Mapping[str, Sequence[float]], x_title: str, also: Sequence[float] = ()) -> Plot:
    """Return bars of each group, by its class in the style sheet; the axis reaches to `also`, too."""
    x = _axis([*itertools.chain(*groups.values()), *also])
    counts = {name: count_in_bins(values, x.low, x.high, _BINS) for name, values in groups.items()}
    y = _from_zero(map(max, counts.values()))
    plot = Plot(x=x, y=y, x_title=x_title, y_title="samples")
    width = (x.last - x.first) / _BINS
    for name, own in counts.items():
        if any(own):
            steps = "".join(f"V{y.at(count):.1f}h{width:.2f}" for count in own)
            plot.add('<path class="{}" d="M{} {:.0f}{}V{:.0f}z"/>', name, x.first, y.first, steps, y.first)
    return plot


def _span(values: Sequence[float]) -> str:
    return f"{format_time(min(values))} to {format_time(max(values))}"


# -- history --------------------------------------------------------------------------------------------


def history_plot(points: Sequence[HistoryPoint], regime: str, run: HistoryPoint | None = None) -> Markup:
    """Return the recorded times in a regime in their order, and after them the time of a run.

    Each GPU has a colour, as far as there are colours, and steps are marked. The point of the run is hollow.
    """
    dots = [(point, dot) for place, point in enumerate(points) if (dot := _session_dot(place, point, regime))]
    if not dots:
        return Markup()
    label, last = counted(len(dots), "recorded session"), points[-1]
    labels = [format_commit(point.commit, 7) for point in points]
    if run is not None and (dot := _session_dot(len(points), run, regime, is_run=True)):
        dots.append((run, dot))
        label, last = f"{label} and this run", run
        labels.append("this run")
    shown = range(len(labels) - 1, -1, -len(labels) // _MOST_COMMITS)  # the newest one has its label
    low = min(dot.y * (1 - dot.spread) for _, dot in dots)
    high = max(dot.y * (1 + dot.spread) for _, dot in dots)
    wider = max(0.06 * low - (high - low), 0.0) / 2  # noise of a percent is no mountain
    plot = Plot(
        x=_axis(
            [0, *(dot.x for _, dot in dots)], margin=0.1, labels=[(place, labels[place]) for place in shown]
        ),
        y=_axis([low - wider, high + wider], HEIGHT - BOTTOM, TOP),
        x_title=f"sessions, {points[0].at[:10]} to {last.at[:10]}",
        y_title="us per launch",
    )
    steps = [(point, dot) for point, dot in dots if point.is_step]
    for number, (point, dot) in enumerate(steps):
        at, change = f"{plot.x.at(dot.x):.1f}", format_change(point.change or 0.0)
        below = TOP + 10 + number % 3 * _LINE  # texts of neighbours may not cover each other
        plot.add('<path class="step" d="M{} {}V{}"/>', at, TOP, HEIGHT - BOTTOM)
        plot.add('<text x="{}" y="{}" class="step end" dx="-3">{}</text>', at, below, change)
    _draw(plot, _lines_of_gpus(dots))
    gpus = counted(len({point.gpu_uuid for point, _ in dots}), "GPU")
    span = _span([dot.y for _, dot in dots])
    return plot.svg(f"{label} on {gpus}, {span}, {counted(len(steps), 'step')}")


def _session_dot(place: int, point: HistoryPoint, regime: str, *, is_run: bool = False) -> Dot | None:
    """Return the dot of a session, or of this run; None where it has no time in the regime."""
    us, spread = point.us(regime), point.spread(regime)
    if not us or not math.isfinite(us):
        return None
    when = "this run" if is_run else point.at[:10]
    title = f"{when} {format_commit(point.commit)} {format_time(us)}, {_short_gpu(point.gpu_uuid)}"
    title += f", half of the samples within {spread:.1%}" if spread else ""
    title += f": {step_text(point)}" if point.is_step else ""
    return Dot(x=place, y=us, title=title, is_marked=point.is_step, is_hollow=is_run, spread=spread)


def _lines_of_gpus(dots: Iterable[tuple[HistoryPoint, Dot]]) -> list[PlottedLine]:
    """Return a line for each GPU; the dots of those that have no colour of their own are the last line."""
    by_gpu: dict[str, list[Dot]] = defaultdict(list)
    for point, dot in dots:
        by_gpu[point.gpu_uuid].append(dot)
    lines = [PlottedLine(name=_short_gpu(gpu), dots=own) for gpu, own in by_gpu.items()]
    if len(lines) <= COLOURS:
        return lines
    rest = [dot for line in lines[COLOURS - 1 :] for dot in line.dots]
    return [*lines[: COLOURS - 1], PlottedLine(name="others", dots=rest, joined=False)]


def _short_gpu(gpu_uuid: str) -> str:
    return gpu_uuid.removeprefix("GPU-")[:4] or "GPU"


# -- lines and dots -------------------------------------------------------------------------------------


def lines_plot(
    lines: Sequence[PlottedLine],
    *,
    x_title: str,
    y_title: str,
    label: str,
    is_log: bool = True,
    is_log_y: bool = False,
    shown_y: Sequence[float] = (),
) -> Markup:
    """Return lines, and the names of those with dots above them. The place of a line chooses its colour.

    The y axis reaches `shown_y`, which are values; without them a linear one starts at 0.
    """
    dots = [dot for line in lines for dot in line.dots]
    if not dots:
        return Markup()
    sizes = sorted({dot.x for dot in dots})
    most = _MOST_TICKS + 1 if is_log else len(sizes)
    ticks = [(size, _number(size)) for size in sizes[:: -(-len(sizes) // most)]]
    x = _axis(sizes, is_log=is_log, labels=ticks)
    further = _LINE * max(len(_key_rows(lines)) - 1, 0)  # a line of names moves the frame down
    bottom, top = HEIGHT - BOTTOM + further, TOP + further
    heights = [dot.y for dot in dots]
    if is_log_y or shown_y:
        y = _axis([*shown_y, *heights], bottom, top, is_log=is_log_y)
    else:
        y = _from_zero(heights, bottom, top)
    plot = Plot(x=x, y=y, x_title=x_title, y_title=y_title)
    _draw(plot, lines, most_key_rows=COLOURS)
    return plot.svg(label)


def roofline(
    dots: Mapping[str, Sequence[Dot]], *, gb_per_s: float, peaks: Mapping[str, float], label: str
) -> Markup:
    """Return cases by dtype (x in operations per byte, y in TFLOPS) under the limit of memory.

    `peaks` are the limits of these dtypes in TFLOPS.
    """
    every = [dot for own in dots.values() for dot in own]
    if not every:
        return Markup()
    places = [dot.x for dot in every] + [peak / gb_per_s * 1e3 for peak in peaks.values()]
    low, high = min(places) / 5, max(places) * 2
    x = _axis([low, high], is_log=True, margin=0)
    heights = [dot.y for dot in every] + [*peaks.values(), low * gb_per_s * 1e-3]
    y = _axis(heights, HEIGHT - BOTTOM, TOP, is_log=True)
    plot = Plot(x=x, y=y, x_title="operations per byte", y_title="TFLOPS")
    for peak in sorted({*peaks.values()}):
        dtypes = ", ".join(dtype for dtype, own in peaks.items() if own == peak)
        ridge = x.at(peak / gb_per_s * 1e3)
        slope = f"{x.at(low):.1f} {y.at(low * gb_per_s * 1e-3):.1f}L{ridge:.1f}"
        _add_roof(plot, slope, peak, f"{peak:g} TFLOPS {dtypes}")
    # Left of the bend, where no case can be.
    highest = max(peaks.values())
    place = f"{max(x.at(highest / gb_per_s * 1e3) - 22, LEFT + 64):.1f}", f"{y.at(highest):.1f}"
    plot.add('<text x="{}" y="{}" dy="12" class="end">{}</text>', *place, f"{gb_per_s:g} GB/s")
    _draw(plot, [PlottedLine(name=dtype, dots=own, joined=False) for dtype, own in dots.items()])
    return plot.svg(label)


def bandwidth(dots: Sequence[Dot], *, gb_per_s: float, label: str) -> Markup:
    """Return cases that count no operations (x in MB per launch, y in GB/s) under the limit of memory."""
    x = _axis([dot.x for dot in dots], is_log=True)
    y = _from_zero([gb_per_s, *(dot.y for dot in dots)])
    plot = Plot(x=x, y=y, x_title="MB per launch", y_title="GB/s")
    _add_roof(plot, x.first, gb_per_s, f"{gb_per_s:g} GB/s")
    _draw(plot, [PlottedLine(name="", dots=dots, joined=False)])
    return plot.svg(label)


def _add_roof(plot: Plot, start: object, limit: float, name: str) -> None:
    """Draw a limit from `start`, an x or a path to one, to the right edge, and its name above."""
    top, right = f"{plot.y.at(limit):.1f}", plot.x.last
    plot.add('<path class="roof" d="M{} {}H{}"/>', start, top, right)
    plot.add('<text x="{}" y="{}" dy="-4" class="end">{}</text>', right, top, name)


def ratio_plot(
    rows: Mapping[str, Sequence[Dot]],
    limits: Mapping[str, float],
    *,
    x_title: str,
    label: str,
    solid: str = "",
    hollow: str = "",
) -> Markup:
    """Return ratios (x of each dot) on a logarithmic axis, a row for each name, which stands above its dots.

    Args:
        rows: The ratios by name.
        limits: Ratios to compare them with by name, drawn as lines.
        x_title: What is over what.
        label: What the plot shows.
        solid: What dots are, for the legend where there are hollow ones, too.
        hollow: What hollow dots are.
    """
    dots = [replace(dot, y=row) for row, own in enumerate(rows.values()) for dot in own]
    if not dots:
        return Markup()
    x = _axis([*(dot.x for dot in dots), *limits.values()], RIGHT, WIDTH - RIGHT, is_log=True)
    top = TOP + _LINE * len(limits)
    last = top + _ROW * (len(rows) + 0.25)
    ticks = [(row, "") for row, _ in enumerate(rows)]
    y = Axis(low=-0.75, high=len(rows) - 0.5, first=top, last=last, labels=ticks)
    plot = Plot(x=x, y=y, x_title=x_title, y_title="")
    heights = {name: top - _LINE * number for number, name in enumerate(limits, 1)}
    for name, ratio in limits.items():
        plot.add('<path class="roof" d="M{:.1f} {}V{}"/>', x.at(ratio), heights[name], y.last)
    for name, ratio in limits.items():  # above the lines of all limits
        at = x.at(ratio)
        is_right = at > (x.first + x.last) / 2
        place, sort = at - 4 if is_right else at + 4, f"row{' end' * is_right}"
        plot.add('<text x="{:.1f}" y="{}" class="{}">{}</text>', place, heights[name] + 10, sort, name)
    for row, name in enumerate(rows):
        above, shown = f"{y.at(row) - 8:.1f}", shorten(name, _NAME_CHARACTERS)
        plot.add('<text class="row" x="{}" y="{}">{}</text>', x.first, above, shown)
    groups = {f"● {solid}": False, f"○ {hollow}": True}
    lines = [
        PlottedLine(name=name, dots=[dot for dot in dots if dot.is_hollow is is_hollow], joined=False)
        for name, is_hollow in groups.items()
    ]
    _draw(plot, [line for line in lines if line.dots])
    return plot.svg(label)


def picture(title: str, plots: Sequence[tuple[str, Markup]], style: str) -> str:
    """Return plots with their titles as one file of SVG, one below the other: a phone shows it, too."""
    title_lines = wrap(printable(title), _TITLE_CHARACTERS)
    top = 32.0 + _TITLE_LINE * len(title_lines)
    parts = []
    for name, plot in plots:
        caption = wrap(printable(name), _CAPTION_CHARACTERS)
        below = 6 + _LINE * len(caption)
        parts.append(
            Markup('<g transform="translate(16 {})">{}<g transform="translate(0 {})">{}</g></g>').format(
                top, _lines_of_text(caption, 0, 12, _LINE, "name"), below, plot
            )
        )
        top += float(plot.partition(' height="')[2].partition('"')[0]) + 20 + below
    above = _lines_of_text(title_lines, 16, 30, _TITLE_LINE, "title")
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'width="{width}" height="{height}">'
        '<style>{style}</style><rect width="100%" height="100%" class="ground"/>{above}{plots}</svg>\n'
    ).format(width=WIDTH + 32, height=top, style=style, above=above, plots=Markup().join(parts))


def _lines_of_text(lines: Sequence[str], x: int, y: int, height: int, sort: str) -> Markup:
    text = Markup('<text x="{}" y="{}" class="{}">{}</text>')
    return Markup().join(text.format(x, y + height * number, sort, line) for number, line in enumerate(lines))


def _draw(plot: Plot, lines: Sequence[PlottedLine], *, most_key_rows: int = 1) -> None:
    for colour, line in enumerate(lines):
        places = [(plot.x.at(dot.x), plot.y.at(dot.y)) for dot in line.dots]
        plot.add('<g class="c{}">', colour % COLOURS)
        if line.joined and len(places) > 1:
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            plot.add('<path class="line" d="M{}"/>', path)
        for dot, (x, y) in zip(line.dots, places, strict=True):
            if dot.spread:
                ends = (plot.y.at(dot.y * (1 + side * dot.spread)) for side in (-1, 1))
                plot.add('<path class="line" d="M{:.1f} {:.1f}V{:.1f}"/>', x, *ends)
            radius = 5 if dot.is_marked or dot.is_hollow else 3.5
            mark = Markup('<circle{} cx="{:.1f}" cy="{:.1f}" r="{}"><title>{}</title></circle>').format(
                Markup(' class="hollow"') * dot.is_hollow, x, y, radius, dot.title
            )
            plot.parts.append(Markup('<a href="{}">{}</a>').format(dot.href, mark) if dot.href else mark)
        plot.add("</g>")
    rows = _key_rows(lines)
    if len(rows) > most_key_rows:
        names = [name for row in rows for name in row]
        most = _KEY_CHARACTERS // len(names) - 1
        rows = [[(colour, shorten(name, most)) for colour, name in names]]
    plot.parts.append(_legend(rows))


def _key_rows(lines: Sequence[PlottedLine]) -> list[list[tuple[int, str]]]:
    """Return the names of lines with dots by colour, as many in a row as fit; nothing of a single name."""
    names = [(place, line.name) for place, line in enumerate(lines) if line.name and line.dots]
    rows: list[list[tuple[int, str]]] = []
    used = _KEY_CHARACTERS
    for colour, name in names[:COLOURS] if len(names) > 1 else ():
        shown = shorten(name, _KEY_CHARACTERS - 1)
        used += len(shown) + 1
        if used > _KEY_CHARACTERS:
            rows.append([])
            used = len(shown) + 1
        rows[-1].append((colour, shown))
    return rows


def _legend(rows: Sequence[Sequence[tuple[int, str]]]) -> Markup:
    """Return rows of names in the colours of their lines, above the plot."""
    name_text = Markup('<tspan class="c{}" dx="6">{}</tspan>')
    row_text = Markup('<text x="{}" y="{}" class="end key">{}</text>')
    texts = []
    for number, row in enumerate(rows):
        names = Markup().join(name_text.format(colour % COLOURS, name) for colour, name in row)
        texts.append(row_text.format(WIDTH - RIGHT, 12 + _LINE * number, names))
    return Markup().join(texts)
