"""The recorded sessions of one case, oldest first: how its time moved over commits, GPUs and environments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pytest_cutile.baselines.entries import PairedChange, SpeedBaselines, environment_changes
from pytest_cutile.baselines.select import anchor_of
from pytest_cutile.gates.speed.rule import STORED_MARGIN, Rule
from pytest_cutile.words.document import Column, Document, DocumentBlock, Paragraph, Row, Table, Tone
from pytest_cutile.words.quantities import format_change, format_commit, format_time
from pytest_cutile.words.results import Microseconds, RelativeSpread, SpeedResult
from pytest_cutile.words.statistics import median_of_known, relative_spread, usable

STEP = STORED_MARGIN
"""Change between two sessions that is called a step: what stored times of one kind of GPU can show."""
PAIRED_STEP = Rule.margin
"""Change that is called a step where kernels were measured interleaved."""
BARS = "▁▂▃▄▅▆▇█"
_BINS = 40


class HistoryPoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one session recorded of a case, and how it compares with what was recorded before."""

    at: str
    commit: str
    gpu_uuid: str
    burst_us: Microseconds | None = None
    """Median over the session's processes; None where bursts were not measured."""
    sustained_us: Microseconds | None = None
    burst_spread: RelativeSpread = 0.0
    """Median of the processes' `Run.spread`."""
    paired: Mapping[str, PairedChange] = {}
    """By regime: the change against the anchor's kernel, measured interleaved."""
    is_anchor: bool = False
    moved: str = ""
    reason: str = ""
    change: float | None = None
    """Relative change since an earlier session, chosen as `history_points` says; None for the first one."""
    since: str = ""
    is_step: bool = False
    """Whether the change is more than such times scatter."""
    on_another_gpu: bool = False
    """Whether that session ran on another GPU of the kind, and the change compares times of both."""
    environment_changes: tuple[str, ...] = ()
    """What of the environment changed since then: "driver: 580.1 -> 590.2"."""

    @property
    def headline_us(self) -> float | None:
        return self.burst_us or self.sustained_us

    def spread(self, regime: str) -> float:
        """Return `burst_spread` in bursts; 0 in another regime, where it is not known."""
        return self.burst_spread if regime == "burst" else 0.0

    def us(self, regime: str) -> float | None:
        return {"burst": self.burst_us, "sustained": self.sustained_us}[regime]


class _Comparison(NamedTuple):
    """A session beside an earlier one, which has a place among the points."""

    place: int
    change: float
    margin: float
    is_paired: bool = False

    @property
    def is_step(self) -> bool:
        return abs(self.change) > self.margin


def history_points(key: str, baselines: SpeedBaselines) -> list[HistoryPoint]:
    """Return the recorded sessions of a case, oldest first.

    Each is compared with the anchor whose kernel it measured interleaved, with the session before it on the
    same GPU, or, if there is none, on any GPU of the kind, and with the first session since the last step,
    which finds a drift. The first of these changes that is a step counts, else the one since the session
    before. A step against the anchor lies behind the session before: that one was as fast as the anchor.
    """
    entry = baselines.entries[key]
    anchor = anchor_of(entry)
    points: list[HistoryPoint] = []
    sessions = [baselines.sessions[record.session] for record in entry.records]
    environments = [session.environment for session in sessions]
    for record, session in zip(entry.records, sessions, strict=True):
        point = HistoryPoint(
            at=session.at,
            commit=session.commit,
            gpu_uuid=session.gpu_uuid,
            burst_us=median_of_known(run.burst_us for run in record.runs),
            sustained_us=median_of_known(run.sustained_us for run in record.runs),
            burst_spread=median_of_known(run.spread for run in record.runs if run.burst_us is not None)
            or 0.0,
            paired=record.changes,
            is_anchor=record is anchor,
            moved=record.moved,
            reason=record.reason,
        )
        points.append(_compared(point, points, environments))
    return points


def _compared(
    point: HistoryPoint, points: Sequence[HistoryPoint], environments: Sequence[Mapping[str, str]] = ()
) -> HistoryPoint:
    """Return a point with its change since one of the earlier `points`, if there is one to compare it with.

    `environments` are those of all sessions; empty where they are not known.
    """
    comparison = _comparison(point, points)
    if comparison is None:
        return point
    place = comparison.place
    earlier = points[place]
    changes = environment_changes(environments[place], environments[len(points)]) if environments else ()
    return replace(
        point,
        change=comparison.change,
        since=earlier.commit,
        is_step=comparison.is_step,
        on_another_gpu=not comparison.is_paired and earlier.gpu_uuid != point.gpu_uuid,
        environment_changes=tuple(changes),
    )


def _comparison(point: HistoryPoint, points: Sequence[HistoryPoint]) -> _Comparison | None:
    """Choose what a session is compared with, as `history_points` says."""
    timed = [
        place
        for place, one in enumerate(points)
        if _change(one, point) is not None
        # One commit on two GPUs shows how these differ.
        and (one.gpu_uuid == point.gpu_uuid or one.commit != point.commit)
    ]
    comparisons = []
    if point.paired and points:
        # All sessions since the anchor were as fast as it.
        change = max((one.value for one in point.paired.values()), key=abs)
        comparisons.append(_Comparison(len(points) - 1, change, PAIRED_STEP, is_paired=True))
    if timed:
        before = [place for place in timed if points[place].gpu_uuid == point.gpu_uuid] or timed
        settled = [place for place in timed if points[place].is_step] or timed[:1]
        comparisons += [
            _Comparison(place, _change(points[place], point) or 0.0, STEP)
            for place in (before[-1], settled[-1])
        ]
    steps = [one for one in comparisons if one.is_step]
    return next(iter([*steps, *(one for one in comparisons if not one.is_paired)]), None)


def point_of_run(
    result: SpeedResult, points: Sequence[HistoryPoint], *, at: str, commit: str
) -> HistoryPoint:
    """Return what a run measured of a case, as the point that follows the recorded sessions.

    It is compared as they are, where its GPU has recorded some.
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
    return point if before is None else _compared(point, points)


def headline_regimes(points: Sequence[HistoryPoint]) -> list[str]:
    """Return the regimes that a history is read in: sustained where some session has no bursts.

    Times of the two do not compare: power limits the clock in one of them.
    """
    timed = [point for point in points if point.headline_us is not None]
    regimes = ["burst"] if any(point.burst_us for point in timed) else []
    return regimes + (["sustained"] if any(not point.burst_us for point in timed) else [])


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
    blocks: list[DocumentBlock] = []
    for regime in headline_regimes(points)[:1]:
        times = [us for point in points if (us := point.us(regime)) is not None]
        if len(times) > 1:
            shown = f"{format_time(min(times))} to {format_time(max(times))}"
            blocks.append(Paragraph(f"time per launch, {regime}  {sparkline(times)}  {shown}"))
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
        cells = (
            point.at[:10],
            format_commit(point.commit),
            point.gpu_uuid.removeprefix("GPU-")[:8],
            *("" if us is None else format_time(us) for us in (point.burst_us, point.sustained_us)),
            "" if point.change is None else format_change(point.change),
            "" if paired is None else format_change(paired.value),
            ", ".join(notes),
        )
        rows.append(Row(cells, Tone.WARNING if point.is_step else Tone.PLAIN))
    names = [Column(title) for title in ("recorded", "commit", "GPU")]
    figures = [Column(title, right=True) for title in ("burst", "sustained", "change", "to anchor")]
    return Table([*names, *figures, Column("note", verbatim=True)], rows)


def step_text(point: HistoryPoint) -> str:
    """Say between which commits a step lies, and what of the environment changed with it."""
    first, last = (format_commit(commit) or "no commit" for commit in (point.since, point.commit))
    step = f"a step of {format_change(point.change or 0.0)} between {first} and {last}"
    return "; ".join([step, *["on another GPU"] * point.on_another_gpu, *point.environment_changes])


def sparkline(values: Sequence[float]) -> str:
    """Return a bar for each value. The highest bar is the highest value, or 10 % above the lowest one."""
    low, high = min(values), max(values)
    span = max(high - low, 0.1 * low)
    return "".join(BARS[min(int((value - low) / span * len(BARS)), len(BARS) - 1)] for value in values)


def histograms(groups: Sequence[Sequence[float]]) -> list[str]:
    """Return how each group of values is distributed, as bars over one axis; no bar where no value is."""
    low, high = min(map(min, groups)), max(map(max, groups))
    rows = []
    for values in groups:
        counts = count_in_bins(values, low, high, _BINS)
        most = max(counts)
        rows.append("".join(BARS[count * (len(BARS) - 1) // most] if count else " " for count in counts))
    return rows


def count_in_bins(values: Iterable[float], low: float, high: float, bins: int) -> list[int]:
    """Return how many values lie in each of so many equal parts of the range from `low` to `high`."""
    counts = [0] * bins
    for value in values:
        share = (value - low) / ((high - low) or 1.0)
        counts[min(int(share * bins), bins - 1)] += 1
    return counts
