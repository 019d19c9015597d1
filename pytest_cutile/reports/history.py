"""The recorded sessions of one case, oldest first: how its time moved over commits, GPUs and environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_cutile.baselines.entries import (
    Record,
    RecordedSession,
    SpeedBaselines,
    environment_changes,
)
from pytest_cutile.baselines.select import anchor_of
from pytest_cutile.quantities import format_change, format_time
from pytest_cutile.reports.document import Block, Column, Document, Paragraph, Row, Table, Tone
from pytest_cutile.speed.decide import Rule
from pytest_cutile.statistics import median

STEP = Rule.stored_margin
"""Change from one session to the next on one GPU that is called a step: what stored times alone can show."""
BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, kw_only=True)
class _Point:
    """A record of a case, with its session."""

    record: Record
    session: RecordedSession

    def us(self, regime: str) -> float | None:
        """Return the median time per launch over the session's processes."""
        times = [us for run in self.record.runs if (us := run.time_us(regime)) is not None]
        return median(times) if times else None

    @property
    def headline_us(self) -> float | None:
        return self.us("burst") or self.us("sustained")


def history(key: str, baselines: SpeedBaselines) -> Document:
    """Return the history of a case, as a table with a line of bars above it."""
    entry = baselines.entries[key]
    points = [_Point(record=record, session=baselines.sessions[record.session]) for record in entry.records]
    blocks: list[Block] = []
    times = [us for point in points if (us := point.headline_us) is not None]
    if len(times) > 1:
        shown = f"{format_time(min(times))} to {format_time(max(times))}"
        blocks.append(Paragraph(f"time per launch  {sparkline(times)}  {shown}"))
    if points:
        blocks.append(_table(points, anchor_of(entry)))
    blocks += [Paragraph(text) for text in _steps(points)]
    if entry.published is not None:
        figure = f"{format_time(entry.published.median_us)}, published: {entry.published.source}"
        blocks.append(Paragraph(figure))
    return Document(f"{key} on {baselines.gpu} ({baselines.arch})", blocks)


def _table(points: Sequence[_Point], anchor: Record | None) -> Table:
    rows = []
    for place, point in enumerate(points):
        session, record = point.session, point.record
        burst, sustained = point.us("burst"), point.us("sustained")
        before = _before(points, place)
        change = _change(before, point)
        paired = record.changes.get("burst") or record.changes.get("sustained")
        notes = filter(None, ["anchor" if record is anchor else "", record.moved, record.reason])
        rows.append(
            Row(
                (
                    session.at[:10],
                    session.commit[:12],
                    session.gpu_uuid.removeprefix("GPU-")[:8],
                    "" if burst is None else format_time(burst),
                    "" if sustained is None else format_time(sustained),
                    "" if change is None else format_change(change),
                    "" if paired is None else format_change(paired.value),
                    ", ".join(notes),
                ),
                Tone.WARNING if change is not None and abs(change) > STEP else Tone.PLAIN,
            )
        )
    return Table(
        [
            Column("recorded"),
            Column("commit"),
            Column("GPU"),
            Column("burst", right=True),
            Column("sustained", right=True),
            Column("since before", right=True),
            Column("to anchor", right=True),
            Column("note", verbatim=True),
        ],
        rows,
    )


def _before(points: Sequence[_Point], place: int) -> _Point | None:
    """Return the last earlier point with a time on the same GPU: others differ by themselves."""
    gpu = points[place].session.gpu_uuid
    earlier = (
        point for point in reversed(points[:place]) if point.session.gpu_uuid == gpu and point.headline_us
    )
    return next(earlier, None)


def _change(before: _Point | None, point: _Point) -> float | None:
    for regime in ("burst", "sustained"):
        old, new = (None if each is None else each.us(regime) for each in (before, point))
        if old and new:
            return new / old - 1
    return None


def _steps(points: Sequence[_Point]) -> list[str]:
    """Say between which commits each step lies, and what of the environment changed with it."""
    lines = []
    for place, point in enumerate(points):
        before = _before(points, place)
        change = _change(before, point)
        if before is None or change is None or abs(change) <= STEP:
            continue
        changes = environment_changes(before.session.environment, point.session.environment)
        first, last = (each.session.commit[:12] or "no commit" for each in (before, point))
        lines.append("; ".join([f"a step of {format_change(change)} between {first} and {last}", *changes]))
    return lines


def sparkline(values: Sequence[float]) -> str:
    """Return a bar for each value. The highest bar is the highest value, or 10 % above the lowest one."""
    low, high = min(values), max(values)
    span = max(high - low, 0.1 * low)
    return "".join(BARS[min(int((value - low) / span * len(BARS)), len(BARS) - 1)] for value in values)
