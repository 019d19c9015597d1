"""Recording speed baselines: what one session measured of a case becomes a record, or is rejected.

A record is added and never rewritten. The anchor, the commit whose kernel later runs are compared with, moves
only with an improvement or with `--reason`: small steps are all measured against the same kernel and cannot
add up.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_cutile.baselines.entries import (
    PairedChange,
    Record,
    RecordedSession,
    Run,
    SpeedBaselines,
    recorded_by,
)
from pytest_cutile.baselines.errors import Rejected
from pytest_cutile.baselines.select import add
from pytest_cutile.gates.speed.comparison import PublishedFigure, StoredTimes
from pytest_cutile.words.quantities import counted, format_change, format_time
from pytest_cutile.words.timing import NOISE_LIMIT, Measurement, Regime
from pytest_cutile.words.verdicts import Judgement, Reason, Verdict

if TYPE_CHECKING:
    from pytest_cutile.gates.session import Session
    from pytest_cutile.gates.speed.pending import PendingCase


def new_run_id(unique: str | None = None) -> str:
    """Return a name for a run of pytest that no other one has; one for all workers with the same `unique`."""
    return f"{dt.datetime.now(dt.UTC):%Y-%m-%d}-{(unique or uuid.uuid4().hex)[:8]}"


def record(session: Session, cases: Sequence[PendingCase]) -> str:
    """Record what one session measured, all cases in one go; return a remark about all of it, or "".

    Each case gets a note of what was done.

    Raises:
        BaselineError: the file cannot be read or written. Nothing was changed.
    """
    store = session.baselines
    if store is None or not cases:
        return ""
    session_id, recorded = _session(session, cases)
    records: dict[str, Record] = {}
    for case in cases:
        try:
            records[case.case.key] = new_record(case, session_id, session.settings.reason)
        except Rejected as rejected:
            why = f"{rejected}".removeprefix(f"{case.case.key}: ")  # the note begins with the key
            case.add_note(f"not recorded: {why}")
    if not records:
        return ""

    def renew(on_disk: SpeedBaselines) -> SpeedBaselines:
        return add(on_disk, session_id, recorded, records)

    device = session.gpu.timer.device
    store.record_speed(device.arch, device.name, renew)
    for case in cases:
        if (added := records.get(case.case.key)) is not None:
            case.add_note(f"{_added(case, added)} in {session.speed_baselines_name}")
            case.is_recorded = True
    if not recorded.commit.endswith("+"):
        return ""
    return (
        f"warning: recorded from uncommitted changes of {recorded.commit[:12]}: commit them together with "
        "the baselines, else no later run can measure the baseline kernel"
    )


def new_record(case: PendingCase, session: str, reason: str | None) -> Record:
    problems = dict.fromkeys(text for measurement in case.measurements for text in measurement.problems)
    if problems:
        raise Rejected("; ".join(problems))
    spread = max(measurement.spread for measurement in case.measurements)
    if spread > NOISE_LIMIT:
        raise Rejected(f"the samples spread by {spread:.0%}; run it again")
    scatter = max(map(case.scatter, Regime))
    if scatter > NOISE_LIMIT:
        raise Rejected(
            f"the times of {len(case.measurements)} processes differ by {scatter:.0%}; run it again"
        )
    moved = _moved(case, reason)
    return Record(
        session=session,
        work=case.case.work,
        fingerprint=known(case.case.fingerprint),
        source=known(case.case.source),
        runs=tuple(map(_run, case.measurements)),
        changes=_changes(case),
        anchor=_compared_with(case),
        moved=moved,
        reason=(reason or "") if moved == "accepted" or case.judgement.reason is Reason.DISTURBED else "",
    )


def _compared_with(case: PendingCase) -> str:
    anchor = case.comparison.anchor if case.comparison is not None else None
    return anchor.code if anchor is not None else ""


def _moved(case: PendingCase, reason: str | None) -> str:
    """Return why the anchor moves to today's kernel: "faster", "accepted", or "" if it stays."""
    judgement, comparison = case.judgement, case.comparison
    if comparison is None or isinstance(comparison, PublishedFigure):
        needs_reason = judgement.reason in (Reason.WORK_CHANGED, Reason.MAYBE_RENAMED)
        if needs_reason or judgement.verdict is Verdict.REGRESSION:
            return _accepted(judgement, reason)
        return ""
    if judgement.verdict is Verdict.REGRESSION:
        return _accepted(judgement, reason)
    if isinstance(comparison, StoredTimes):
        why = f"there is no baseline kernel to compare it with: {comparison.unavailable}"
        return _accepted(Judgement(reason=judgement.reason, detail=why), reason)
    if judgement.reason is Reason.FASTER:
        return "faster"
    if judgement.reason is Reason.DISTURBED and not comparison.has_own_times:
        _accepted(judgement, reason)  # times of another GPU: the code is not slower, and the anchor stays
    elif judgement.verdict is not Verdict.PASS:
        raise Rejected(judgement.detail)
    return ""


def _accepted(judgement: Judgement, reason: str | None) -> str:
    if reason is not None:
        return "accepted"
    what = judgement.detail
    if judgement.change is not None and judgement.verdict is Verdict.REGRESSION:
        what = f"it is {format_change(judgement.change)} slower" + (f" ({what})" if what else "")
    raise Rejected(f"{what}; give --reason TEXT to accept it")


def _run(measurement: Measurement) -> Run:
    sustained = measurement.sustained
    return Run(
        burst_us=_rounded(measurement.burst_us),
        sustained_us=_rounded(measurement.sustained_us),
        spread=round(measurement.spread, 5),
        clock_mhz=measurement.clock_mhz,
        sustained_clock_mhz=None if sustained is None else sustained.current_clock_mhz,
        sustained_watts=None if sustained is None else _rounded(sustained.current_watts),
        workload_us=_rounded(measurement.workload_us),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _changes(case: PendingCase) -> Mapping[str, PairedChange]:
    comparison, changes = case.comparison, {}
    if comparison is not None:
        for regime in Regime:
            if (estimated := comparison.estimate(case.measurements, regime)) is not None:
                low, high = estimated.interval()
                changes[str(regime)] = PairedChange(
                    value=round(estimated.change, 5), low=round(low, 5), high=round(high, 5)
                )
    return changes


def _session(session: Session, cases: Sequence[PendingCase]) -> tuple[str, RecordedSession]:
    device = session.gpu.timer.device
    workloads = {
        one.reference_workload for case in cases for one in case.measurements if one.reference_workload
    }
    return f"{session.run_id}-{device.uuid.removeprefix('GPU-')[:8]}", RecordedSession(
        at=dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
        gpu_uuid=device.uuid,
        commit=session.checkout.commit,
        by=recorded_by(),
        environment=dict(session.gpu.timer.environment()),
        workload=workloads.pop() if len(workloads) == 1 else "",
        unseen="; ".join(session.gpu.unseen),
    )


def _added(case: PendingCase, added: Record) -> str:
    what = f"{counted(len(added.runs), 'run')} of {format_time(case.shown.headline_us)} recorded"
    return f"{what}, {added.moved}: it is the baseline kernel now" if added.moved else what


def known(digest: Callable[[str], str], revision: str = "") -> str:
    """Return a case's fingerprint or source as of a git revision; empty where it is not known."""
    try:
        return digest(revision)
    except Exception:  # noqa: BLE001 - no compiler, or code that another gate or the measurement reports
        return ""
