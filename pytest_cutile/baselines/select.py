"""Which records count: pure functions on frozen baselines.

The anchor of a case is the record of its baseline kernel. It moves with a recorded
improvement or an accepted slowdown alone, so that many small slowdowns cannot add up unseen.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from pytest_cutile.baselines.entries import Entry, Record, RecordedSession, SpeedBaselines
from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.words.spec import Work

MAX_RUNS = 12
"""Runs kept of each case and GPU, the newest: four sessions of three processes."""


class SessionConflictError(BaselineError):
    """One session is there twice with different content."""

    def __init__(self, session: str, problem: str) -> None:
        super().__init__(f"session {session} is there twice with different content: {problem}")
        self.session = session


class Stored(Struct, frozen=True, kw_only=True):
    """Stored times of a case since its anchor, on the GPU in use, or on all GPUs if that one has none.

    Of each GPU, only the first record with times counts. The times of later records would follow an
    environment that gets slower step by step.
    """

    us: float
    """Time per launch: geometric mean over the runs of each GPU, then over the GPUs."""
    workload_us: float | None
    """Mean time of the reference workload; None unless every run has the same workload."""
    workload: str
    """Name of that reference workload; empty where there is none."""
    is_own: bool
    """Whether the GPU in use has measured them."""
    gpus: int
    n_runs: int


# -- selecting ----------------------------------------------------------------------------------------


def anchor_of(entry: Entry) -> Record | None:
    """Return the last record that moved the anchor, else the first; None where only a figure is published."""
    return next(iter(since_anchor(entry)), None)


def since_anchor(entry: Entry) -> tuple[Record, ...]:
    """Return the anchor's record, and the later records that were compared with it or are of its code.

    Another branch may have added records that were compared with an earlier anchor: their kernels may be
    slower than this anchor.
    """
    records = _from_anchor(entry)
    return *records[:1], *(record for record in records[1:] if record.compared_with == records[0].code)


def _from_anchor(entry: Entry) -> tuple[Record, ...]:
    """Return the anchor's record and all after it.

    What moves the anchor was compared with it, or with nothing: other work. Of another branch, whose records
    were compared with an earlier anchor, only a kernel that is faster moves it: its log ratio to the first
    kernel tells. None is faster than a kernel of other work.
    """
    anchor, ratios = 0, {entry.records[0].code: 0.0} if entry.records else {}
    for place, record in enumerate(entry.records):
        if record.moved:
            current = entry.records[anchor].code
            base = ratios.get(record.anchor, 0.0) if record.anchor else -math.inf
            ratio = ratios.setdefault(record.code, base + _log_ratio(record))
            if record.anchor in ("", current) or (record.moved == "faster" and ratio < ratios[current]):
                anchor = place
    return entry.records[anchor:]


def _log_ratio(record: Record) -> float:
    """Return the log of a record's time over its anchor's, the mean over regimes; 0 where it is not known."""
    logs = [math.log1p(change.value) for change in record.changes.values()]
    return sum(logs) / len(logs) if logs else 0.0


def work_of(entry: Entry) -> Work:
    """Return the work that the stored times of a case are about: the anchor's, or the published one."""
    of = anchor_of(entry) or entry.published
    assert of is not None  # an entry has one of them
    return of.work


def stored_us(baselines: SpeedBaselines, entry: Entry, regime: str, gpu_uuid: str) -> Stored | None:
    """Return the times since the anchor, of its work, and of this GPU if there are any; else None."""
    records = stored_records(baselines, entry, regime, gpu_uuid)
    used = [[run for run in record.runs if run.time_us(regime) is not None] for record in records]
    if not used:
        return None

    def mean(field: str) -> float | None:
        return _mean(_mean(getattr(run, field) for run in runs) for runs in used)

    us = mean(f"{regime}_us")
    assert us is not None
    workloads = {baselines.sessions[record.session].workload for record in records}
    workload_us = mean("workload_us") if len(workloads) == 1 else None
    return Stored(
        us=us,
        workload_us=workload_us,
        workload=workloads.pop() if workload_us is not None else "",
        is_own=any(baselines.sessions[record.session].gpu_uuid == gpu_uuid for record in records),
        gpus=len(used),
        n_runs=sum(map(len, used)),
    )


def stored_records(baselines: SpeedBaselines, entry: Entry, regime: str, gpu_uuid: str) -> list[Record]:
    """Return the records whose times are the stored ones: the GPU's own, or else one of each other GPU."""
    comparable = (record for record in since_anchor(entry) if record.work == work_of(entry))
    timed = _first_timed(baselines, comparable, regime)
    return [timed[gpu_uuid]] if gpu_uuid in timed else [*timed.values()]


def _first_timed(baselines: SpeedBaselines, records: Iterable[Record], regime: str) -> dict[str, Record]:
    """Return the first record that has times in a regime, by GPU."""
    first: dict[str, Record] = {}
    for record in records:
        if any(run.time_us(regime) is not None for run in record.runs):
            first.setdefault(baselines.sessions[record.session].gpu_uuid, record)
    return first


def n_runs(baselines: SpeedBaselines, entry: Entry, gpu_uuid: str) -> int:
    """Return how many runs of a GPU are kept since the anchor."""
    sessions = {name for name, session in baselines.sessions.items() if session.gpu_uuid == gpu_uuid}
    return sum(len(record.runs) for record in since_anchor(entry) if record.session in sessions)


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the geometric mean of positive values; None if one of them is not known."""
    every = [*values]
    logs = [math.log(value) for value in every if value]
    return math.exp(sum(logs) / len(logs)) if len(logs) == len(every) else None


def unchanged_record(
    baselines: SpeedBaselines,
    entry: Entry,
    *,
    work: Work,
    fingerprint: str,
    environment: Mapping[str, str],
) -> Record | None:
    """Return the newest record since the anchor of this code, work and environment; None if there is none."""
    conditions = (work, fingerprint, environment)
    alike = [
        record
        for record in since_anchor(entry)
        if fingerprint and _conditions(baselines, record) == conditions
    ]
    return alike[-1] if alike else None


def _conditions(baselines: SpeedBaselines, record: Record) -> tuple[Work, str, Mapping[str, str]]:
    return record.work, record.fingerprint, baselines.sessions[record.session].environment


# -- adding and dropping ------------------------------------------------------------------------------


def add(
    baselines: SpeedBaselines, session_id: str, session: RecordedSession, records: Mapping[str, Record]
) -> SpeedBaselines:
    """Return baselines with the records of a session, by case key; old runs are dropped.

    Raises:
        SessionConflictError: the session is there with other content.
    """
    entries = {key: Entry(records=(record,)) for key, record in records.items()}
    return merge([baselines, replace(baselines, sessions={session_id: session}, entries=entries)])


def united(files: Iterable[SpeedBaselines]) -> SpeedBaselines:
    """Return everything that is in one of the files, which are of one platform; nothing is dropped."""
    first, *others = files
    sessions = dict(first.sessions)
    entries = dict(first.entries)
    for other in others:
        for name, session in other.sessions.items():
            if sessions.setdefault(name, session) != session:
                raise SessionConflictError(name, _difference(sessions[name], session))
        for key, entry in other.entries.items():
            entries[key] = _united_entry(key, entries[key], entry) if key in entries else entry
    return replace(first, sessions=sessions, entries=entries).in_order()


def merge(files: Iterable[SpeedBaselines]) -> SpeedBaselines:
    """Return what is in one of the files of one platform, with old runs dropped.

    The order of the files does not matter, except for which old runs are kept where branches moved the
    anchor. Merging a file again changes nothing.
    """
    files = [*files]
    platforms = sorted({f"{file.gpu} ({file.arch})" for file in files})
    if len(platforms) != 1:
        raise BaselineError(f"only files of one platform can be merged, not of {', '.join(platforms)}")
    return pruned(united(files))


def _united_entry(key: str, one: Entry, other: Entry) -> Entry:
    records = {record.session: record for record in one.records}
    for record in other.records:
        records[record.session] = _united_record(key, records.get(record.session, record), record)
    figures = [entry.published for entry in (one, other) if entry.published is not None]
    if figures and figures[0] != figures[-1]:
        raise BaselineError(f"two published figures of {key} differ: {_difference(*figures)}")
    return Entry(records=tuple(records.values()), published=figures[0] if figures else None)


def _united_record(key: str, one: Record, other: Record) -> Record:
    """Return a record with the runs of the copy of which fewer were dropped."""
    fewer, more = sorted((one, other), key=lambda record: len(record.runs))
    if replace(fewer, runs=more.runs) != more or more.runs[: len(fewer.runs)] != fewer.runs:
        raise SessionConflictError(one.session, f"{key}: {_difference(one, other)}")
    return more


def _difference(one: Struct, other: Struct) -> str:
    """Return the first field in which two values of one kind differ, with both values."""
    name = next(name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name))
    return f"{name} is {getattr(one, name)!r} and {getattr(other, name)!r}"


def pruned(baselines: SpeedBaselines) -> SpeedBaselines:
    """Return baselines without old runs, and without records and sessions that nothing needs any more.

    - Runs stay if they are among the newest `MAX_RUNS` of their case and GPU, or count as stored times. The
      runs of the case's first session, and of sessions that moved the anchor, stay as its history.
    - A record without runs stays if it is the anchor. After the anchor, the newest record stays of each
      combination of code, work, environment and kernel that it was compared with.
    - A session stays if a record names it.

    Dropping runs before a merge leaves the same stored times and the same newest runs as dropping them after.
    """
    entries = {key: _pruned_entry(baselines, entry) for key, entry in baselines.entries.items()}
    named = {record.session for entry in entries.values() for record in entry.records}
    sessions = {name: session for name, session in baselines.sessions.items() if name in named}
    return replace(baselines, sessions=sessions, entries=entries)


def _pruned_entry(baselines: SpeedBaselines, entry: Entry) -> Entry:
    lasting, needed = _with_lasting_runs(baselines, entry), _needed_without_runs(baselines, entry)
    n_kept: Counter[str] = Counter()  # runs, by GPU
    kept: list[Record] = []
    for record in reversed(entry.records):
        gpu = baselines.sessions[record.session].gpu_uuid
        n_runs = len(record.runs) if record.session in lasting else max(MAX_RUNS - n_kept[gpu], 0)
        runs = record.runs[:n_runs]
        n_kept[gpu] += len(runs)
        if runs or record.session in needed:
            kept.append(replace(record, runs=runs))
    return replace(entry, records=tuple(reversed(kept)))


def _with_lasting_runs(baselines: SpeedBaselines, entry: Entry) -> set[str]:
    """Return the sessions whose runs stay: the first, those that moved the anchor, those of stored times."""
    comparable: dict[object, list[Record]] = defaultdict(list)
    for record in _from_anchor(entry):
        comparable[record.compared_with, record.work].append(record)
    timed = {
        record.session
        for records in comparable.values()
        for regime in ("burst", "sustained")
        for record in _first_timed(baselines, records, regime).values()
    }
    return timed | {record.session for record in entry.records if record.moved or record is entry.records[0]}


def _needed_without_runs(baselines: SpeedBaselines, entry: Entry) -> set[str]:
    """Return the sessions of the anchor, and of the newest record of each kind after it."""
    current = _from_anchor(entry)
    needed, keys = {record.session for record in current[:1]}, []
    for record in reversed(current):
        if (key := (record.compared_with, _conditions(baselines, record))) not in keys:
            keys.append(key)
            needed.add(record.session)
    return needed
