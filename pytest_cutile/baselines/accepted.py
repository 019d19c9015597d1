"""Accepted slowdowns in a merge: which runs a reason covers.

A reason given on some GPUs covers the runs of these GPUs alone, from the run that it was given with on.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from msgspec.structs import replace

from pytest_cutile.baselines.entries import Entry, Run, added_runs, condition_changes, united_runs


def with_reason(entry: Entry, reason: str) -> Entry:
    """Return an entry as if it had been recorded with a reason, unless it has one."""
    if entry.reason is not None:
        return entry
    return replace(entry, provenance={**entry.provenance, "reason": reason})


def covers(entry: Entry, other: Entry) -> bool:
    """Say whether the reason of `entry` accepts that `entry` is slower than `other`.

    It does not if `other` has later runs: whoever gave the reason did not know them.
    """
    is_later = all(run.time > known.time for run in added_runs(entry, other) for known in other.runs)
    return bool(entry.reason) and entry.reason != other.reason and is_later


def covers_gpu(baseline: Entry, current: Entry) -> bool:
    """Say whether the reasons at the runs of one GPU, or of new ones, accept that they are slower."""
    known = {run.reason for run in baseline.runs}
    if any(run.reason is None or run.reason in known for run in current.runs):
        return False
    return not current.gpus & baseline.gpus or began(current) > ended(baseline)


def recover_reasons(
    before: Entry | None, others: Sequence[Entry], margin: float
) -> tuple[Entry | None, list[Entry]]:
    """Return the entries to merge, with the reasons that some of them lack and others know.

    - A runner's copy of runs lacks the reason that they were merged with.
    - The same reason covers a later session of an accepted slowdown, unless it is faster by the margin.

    An entry that adds nothing to `before` is left out.
    """
    entries = [*([before] if before is not None else []), *others]
    known = {
        replace(run, commit=None, reason=None): run for entry in entries for run in entry.runs if run.reason
    }
    entries = [replace(entry, runs=tuple(known.get(run, run) for run in entry.runs)) for entry in entries]
    first, rest = (None, entries) if before is None else (entries[0], entries[1:])
    if first is not None:
        rest = [
            entry
            for entry in rest
            if not entry.runs or entry.reason not in (None, first.reason) or added_runs(entry, first)
        ]
    accepted = [entry for entry in entries if entry.runs and _has_reason(entry)]
    for slower in sorted(accepted, key=ended, reverse=True):
        rest = [
            entry
            if entry is slower or not entry.runs or not are_comparable(slower, entry)
            else _as_later_session(entry, slower, margin)
            for entry in rest
        ]
    return first, rest


def _has_reason(entry: Entry) -> bool:
    return bool(entry.reason) or any(run.reason for run in entry.runs)


def _as_later_session(entry: Entry, accepted: Entry, margin: float) -> Entry:
    """Return `entry` with the reason of `accepted` where it is a later session of it, and no faster."""
    if entry.reason is not None:
        return entry
    if accepted.reason is not None:
        is_later = began(entry) > began(accepted) and entry.gpus <= accepted.gpus
        return (
            with_reason(entry, accepted.reason)
            if is_later and not _is_faster(entry, accepted, margin)
            else entry
        )
    runs = list(entry.runs)
    for place, run in enumerate(runs):
        own = tuple(
            known for known in accepted.runs if known.gpu_uuid == run.gpu_uuid and known.reason is not None
        )
        if not own or run.reason is not None or run.time <= min(known.time for known in own):
            continue
        if not _is_faster(entry.on_gpu(run.gpu_uuid), replace(accepted, runs=own), margin):
            runs[place] = replace(run, commit=own[0].commit, reason=own[0].reason)
    return replace(entry, runs=tuple(runs))


def _is_faster(current: Entry, accepted: Entry, margin: float) -> bool:
    """Say whether an accepted slowdown has been mended since."""
    return current.reference_us < accepted.reference_us * (1 - margin)


def split_reasons(measured: Sequence[Entry]) -> list[Entry | None]:
    """Return the entries with reasons and commits at their runs, if some GPUs have no accepted slowdown.

    These GPUs keep their runs, and the commit whose kernel is measured beside their suspects. A GPU's newest
    run says which reason covers it, if any; its runs of other reasons are left out. An entry without runs
    becomes None.
    """
    newest = max(measured, key=ended)
    comparable = [entry for entry in measured if are_comparable(entry, newest)]
    if not newest.fingerprint:  # it may be of any code, but not of two
        known = max((entry for entry in comparable if entry.fingerprint), key=ended, default=newest)
        comparable = [entry for entry in comparable if are_comparable(entry, known)]
    base = min(comparable, key=lambda entry: (entry.reason is not None, began(entry)))
    marked = {id(entry): _with_reason_at_runs(entry, base) for entry in comparable}
    runs = sorted(united_runs(marked.values()), key=lambda run: run.time)
    reasons = {run.gpu_uuid: run.reason for run in runs}  # of the newest run
    if None not in reasons.values():
        return list(measured)

    def without_replaced(entry: Entry) -> Entry | None:
        kept = tuple(run for run in entry.runs if run.reason == reasons[run.gpu_uuid])
        return replace(entry, runs=kept) if kept else None

    return [without_replaced(marked[id(entry)]) if id(entry) in marked else entry for entry in measured]


def _with_reason_at_runs(entry: Entry, base: Entry) -> Entry:
    """Return an entry whose own runs hold its commit and reason, and which has those of `base`."""
    is_copy = {*entry.runs} <= {*base.runs}  # somebody's, without the reason
    if entry.reason in (None, base.reason) or is_copy:
        return entry

    def marked(run: Run) -> Run:
        is_own = run.reason is None and run not in base.runs
        return replace(run, commit=entry.commit, reason=entry.reason) if is_own else run

    return replace(
        entry,
        runs=tuple(marked(run) for run in entry.runs),
        fingerprint=base.fingerprint or entry.fingerprint,
        provenance=base.provenance,
    )


def began(entry: Entry) -> dt.datetime:
    return min(run.time for run in entry.runs)


def ended(entry: Entry) -> dt.datetime:
    return max(run.time for run in entry.runs)


def are_comparable(baseline: Entry, current: Entry) -> bool:
    return not differences(baseline, current)


def differences(baseline: Entry, current: Entry) -> list[str]:
    return (["other work"] if baseline.work != current.work else []) + condition_changes(baseline, current)
