"""Recording speed baselines: what was measured becomes entries, and notes of what was done."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_cutile.baselines.entries import Entry, Run, provenance
from pytest_cutile.baselines.errors import Rejected
from pytest_cutile.quantities import counted
from pytest_cutile.spec import Work
from pytest_cutile.speed.comparisons import SLOPES
from pytest_cutile.speed.context import SpeedContext
from pytest_cutile.speed.measure.timing import NOISE_LIMIT, Measurement
from pytest_cutile.speed.recording_rules import Evidence, carry_out, plan


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What one session measured of a case."""

    key: str
    """Key in the baseline file."""
    work: Work
    measurements: Sequence[Measurement]
    """One per process."""
    fingerprint: str
    """Digest of the compiled code and the launch; empty where they are not known."""
    evidence: Evidence


@dataclass(frozen=True, kw_only=True)
class Note:
    """What was done about a case."""

    text: str
    recorded: bool
    """Whether the file holds it now."""
    uncommitted: bool = False
    """Whether no commit has the kernel that it was recorded from."""


def record(context: SpeedContext, recordings: Sequence[Recording]) -> dict[str, Note]:
    """Record what one session measured, all cases in one go; return what was done, by key."""
    store = context.baselines
    if store is None or not recordings:
        return {}
    device = context.gpu.timer.device
    environment = dict(context.gpu.timer.environment())
    notes: dict[str, Note] = {}

    def renew(existing: Mapping[str, Entry]) -> dict[str, Entry]:
        renewed = {}
        for recording in recordings:
            key = recording.key
            try:
                entry, said = _renewed(context, existing.get(key), recording, environment)
            except Rejected as rejected:
                notes[key] = Note(text=f"not recorded: {rejected}", recorded=False)
            else:
                renewed[key] = entry
                text = f"{said} in {context.speed_baselines_name}"
                notes[key] = Note(text=text, recorded=True, uncommitted=entry.commit.endswith("+"))
        return renewed

    store.record_speed(device.arch, device.name, renew)
    return notes


def new_run_id(unique: str | None = None) -> str:
    """Return a name for a run of pytest that no other one has; one for all workers with the same `unique`."""
    return f"{dt.datetime.now(dt.UTC):%Y-%m-%d}-{(unique or uuid.uuid4().hex)[:8]}"


def _runs(recording: Recording, run_id: str) -> tuple[Run, ...]:
    """Return what is stored of a session's measurements; raise Rejected if they are doubtful."""
    measurements = recording.measurements
    problems = dict.fromkeys(text for measurement in measurements for text in measurement.problems)
    if problems:
        raise Rejected("; ".join(problems))
    spread = max(measurement.relative_spread for measurement in measurements)
    if spread > NOISE_LIMIT:
        raise Rejected(f"the samples spread by {spread:.0%}; run it again")
    at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    return tuple(_run(measurement, at, run_id) for measurement in measurements)


def _run(measurement: Measurement, at: str, run_id: str) -> Run:
    us, workload_us = measurement.best_pair(SLOPES[measurement.bound])
    return Run(
        at=at,
        session=run_id,
        gpu_uuid=measurement.device.uuid,
        median_us=round(us, 3),
        spread=round(measurement.relative_spread, 5),
        workload_us=None if workload_us is None else round(workload_us, 3),
        clock_mhz=measurement.clock_mhz,
    )


def _renewed(
    context: SpeedContext, entry: Entry | None, recording: Recording, environment: Mapping[str, str]
) -> tuple[Entry, str]:
    """Return the entry that replaces the stored `entry`, and what to say of it; or raise Rejected."""
    by = provenance(context.checkout.commit, context.settings.reason)
    if context.gpu.unseen:
        by["unseen"] = "; ".join(context.gpu.unseen)
    new = Entry(
        work=recording.work,
        runs=_runs(recording, context.run_id),
        fingerprint=recording.fingerprint,
        reference_workload=recording.measurements[0].reference_workload,
        environment=environment,
        provenance=by,
    )
    if entry is None:
        return new, f"{counted(len(new.runs), 'run')} recorded"
    planned = plan(entry, new, recording.evidence, context.settings.rule)
    if planned.objection and context.settings.reason is None:
        raise Rejected(planned.objection)
    return carry_out(planned, entry, new)
