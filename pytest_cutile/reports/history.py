"""The recorded sessions of one case, oldest first: how its time moved over commits, GPUs and environments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from pytest_cutile.baselines.entries import (
    PairedChange,
    Record,
    RecordedSession,
    SpeedBaselines,
    environment_changes,
)
from pytest_cutile.baselines.select import anchor_of
from pytest_cutile.quantities import format_change, format_time
from pytest_cutile.reports.document import Block, Column, Document, Paragraph, Row, Table, Tone
from pytest_cutile.results import Microseconds, SpeedResult, Spread
from pytest_cutile.speed.decide import Rule
from pytest_cutile.statistics import median, relative_spread, usable

STEP = Rule.stored_margin
"""Change from one session to the next on one GPU that is called a step: what stored times alone can show."""
BARS = "▁▂▃▄▅▆▇█"
_BINS = 40


class HistoryPoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one session recorded of a case, and how it compares with the session before on the same GPU."""

    at: str
    """When, ISO 8601 in UTC."""
    commit: str
    gpu_uuid: str
    burst_us: Microseconds | None = None
    """Median over the session's processes; None where bursts were not measured."""
    sustained_us: Microseconds | None = None
    burst_spread: Spread = 0.0
    """Half interquartile range of the burst samples over their median: the median over the processes."""
    paired: Mapping[str, PairedChange] = {}
    """By regime: the change against the anchor's kernel, measured interleaved."""
    is_anchor: bool = False
    moved: str = ""
    """Why the anchor moved here: "faster" or "accepted"."""
    reason: str = ""
    """Text of `--reason`."""
    change: float | None = None
    """Relative change since the last earlier time on this GPU; None for the first one."""
    since: str = ""
    """Commit of that earlier time."""
    environment_changes: tuple[str, ...] = ()
    """What of the environment changed since then: "driver: 580.1 -> 590.2"."""

    @property
    def headline_us(self) -> float | None:
        return self.burst_us or self.sustained_us

    def spread(self, regime: str) -> float:
        """Return by how much half of the samples scatter around the time, as a fraction; 0 if not known."""
        return self.burst_spread if regime == "burst" else 0.0

    def us(self, regime: str) -> float | None:
        return {"burst": self.burst_us, "sustained": self.sustained_us}[regime]

    @property
    def is_step(self) -> bool:
        """Whether the time moved by more than stored times scatter."""
        return self.change is not None and abs(self.change) > STEP


def history_points(key: str, baselines: SpeedBaselines) -> list[HistoryPoint]:
    """Return the recorded sessions of a case, oldest first."""
    entry = baselines.entries[key]
    anchor = anchor_of(entry)
    last: dict[str, tuple[HistoryPoint, RecordedSession]] = {}
    points = []
    for record in entry.records:
        session = baselines.sessions[record.session]
        point = HistoryPoint(
            at=session.at,
            commit=session.commit,
            gpu_uuid=session.gpu_uuid,
            burst_us=_us(record, "burst"),
            sustained_us=_us(record, "sustained"),
            burst_spread=_burst_spread(record),
            paired=record.changes,
            is_anchor=record is anchor,
            moved=record.moved,
            reason=record.reason,
        )
        if session.gpu_uuid in last:  # GPUs of one kind differ by themselves
            before, earlier = last[session.gpu_uuid]
            point = replace(
                point,
                change=_change(before, point),
                since=before.commit,
                environment_changes=tuple(environment_changes(earlier.environment, session.environment)),
            )
        points.append(point)
        if point.headline_us:
            last[session.gpu_uuid] = point, session
    return points


def point_of_run(
    result: SpeedResult, points: Sequence[HistoryPoint], *, at: str, commit: str
) -> HistoryPoint:
    """Return what a run measured of a case, as the point that follows the recorded sessions.

    Its change is against the last session on the same GPU, as for recorded sessions.
    """
    blocks = result.measured.blocks if result.measured is not None else ()
    bursts = [us for block in blocks if block.regime == "burst" for us in block.current_us]
    gpu = result.gpu_id.rpartition(" ")[2]  # the beginning of its UUID
    timed = (one for one in reversed(points) if one.headline_us and gpu and one.gpu_uuid.startswith(gpu))
    before = next(timed, None)
    point = HistoryPoint(
        at=at,
        commit=commit,
        gpu_uuid=gpu if before is None else before.gpu_uuid,
        burst_us=result.us_per_launch if bursts else None,
        sustained_us=result.sustained_us_per_launch,
        burst_spread=relative_spread(bursts) if usable(bursts) else 0.0,
    )
    return point if before is None else replace(point, change=_change(before, point), since=before.commit)


def headline_regimes(points: Sequence[HistoryPoint]) -> list[str]:
    """Return the regimes that a history is read in: sustained where some session has no bursts.

    Times of the two do not compare: power limits the clock in one of them.
    """
    timed = [point for point in points if point.headline_us is not None]
    regimes = ["burst"] if any(point.burst_us for point in timed) else []
    return regimes + (["sustained"] if any(not point.burst_us for point in timed) else [])


def _us(record: Record, regime: str) -> float | None:
    times = [us for run in record.runs if (us := run.time_us(regime)) is not None]
    return median(times) if times else None


def _burst_spread(record: Record) -> float:
    spreads = [run.spread for run in record.runs if run.burst_us is not None]
    return median(spreads) if spreads else 0.0


def _change(before: HistoryPoint, point: HistoryPoint) -> float | None:
    for regime in ("burst", "sustained"):
        old, new = before.us(regime), point.us(regime)
        if old and new:
            return new / old - 1
    return None


def history_document(key: str, baselines: SpeedBaselines) -> Document:
    """Return the history of a case, as a table with a line of bars above it."""
    points = history_points(key, baselines)
    published = baselines.entries[key].published
    blocks: list[Block] = []
    regime = headline_regimes(points)[:1]
    times = [us for point in points for one in regime if (us := point.us(one)) is not None]
    if len(times) > 1:
        shown = f"{format_time(min(times))} to {format_time(max(times))}"
        blocks.append(Paragraph(f"time per launch, {regime[0]}  {sparkline(times)}  {shown}"))
    if points:
        blocks.append(_table(points))
    blocks += [Paragraph(step_text(point)) for point in points if point.is_step]
    if published is not None:
        blocks.append(Paragraph(f"{format_time(published.median_us)}, published: {published.source}"))
    return Document(f"{key} on {baselines.gpu} ({baselines.arch})", blocks)


def _table(points: Sequence[HistoryPoint]) -> Table:
    rows = []
    for point in points:
        paired = point.paired.get("burst") or point.paired.get("sustained")
        notes = filter(None, ["anchor" if point.is_anchor else "", point.moved, point.reason])
        times = (point.burst_us, point.sustained_us)
        rows.append(
            Row(
                (
                    point.at[:10],
                    point.commit[:12],
                    point.gpu_uuid.removeprefix("GPU-")[:8],
                    *("" if us is None else format_time(us) for us in times),
                    "" if point.change is None else format_change(point.change),
                    "" if paired is None else format_change(paired.value),
                    ", ".join(notes),
                ),
                Tone.WARNING if point.is_step else Tone.PLAIN,
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


def step_text(point: HistoryPoint) -> str:
    """Say between which commits a step lies, and what of the environment changed with it."""
    first, last = (commit[:12] or "no commit" for commit in (point.since, point.commit))
    step = f"a step of {format_change(point.change or 0.0)} between {first} and {last}"
    return "; ".join([step, *point.environment_changes])


def sparkline(values: Sequence[float]) -> str:
    """Return a bar for each value. The highest bar is the highest value, or 10 % above the lowest one."""
    low, high = min(values), max(values)
    span = max(high - low, 0.1 * low)
    return "".join(BARS[min(int((value - low) / span * len(BARS)), len(BARS) - 1)] for value in values)


def histograms(groups: Sequence[Sequence[float]]) -> list[str]:
    """Return how each group of values is distributed, as bars over one axis; no bar where no value is."""
    low, high = min(map(min, groups)), max(map(max, groups))
    step = (high - low) / _BINS or 1.0
    rows = []
    for values in groups:
        counts = Counter(min(int((value - low) / step), _BINS - 1) for value in values)
        most = max(counts.values())
        rows.append(
            "".join(
                BARS[counts[place] * (len(BARS) - 1) // most] if counts[place] else " "
                for place in range(_BINS)
            )
        )
    return rows
