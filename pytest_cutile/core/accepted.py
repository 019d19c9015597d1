"""What was accepted as slower: by whom it is excused, and on which boards."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_cutile.core.baselines import Entry, Run, added_runs, condition_changes, united_runs


def was_accepted(entry: Entry, other: Entry, times: Mapping[Run, dt.datetime]) -> bool:
    """Say whether the reason that an entry was recorded with excuses that it is worse than another one.

    A reason was given for the first runs that it is stored beside. If the other entry has runs since, nobody
    who gave it knew them.
    """
    reason = reason_of(entry)
    is_later = all(times[run] > times[known] for run in added_runs(entry, other) for known in other.runs)
    return bool(reason) and reason != reason_of(other) and is_later


def board_was_accepted(then: Entry, now: Entry, times: Mapping[Run, dt.datetime]) -> bool:
    """Say the same of the runs of one board, or of new ones, of which a reason was given for that board."""
    reasons = {run.reason for run in then.runs}
    if any(run.reason is None or run.reason in reasons for run in now.runs):
        return False
    is_new = not now.boards & then.boards
    return is_new or min(times[run] for run in now.runs) > max(times[run] for run in then.runs)


def with_reasons_of_boards(measured: Sequence[Entry], times: dict[Run, dt.datetime]) -> list[Entry]:
    """Return the entries with reasons and commits at the runs, where others have boards that stay without.

    A reason says of the boards that it was given on that they may be slower. Others keep their runs, and
    the commit whose kernel takes turns with their suspects. A board's newest run tells what holds for it;
    `times` gets to know the runs that name a reason.
    """
    newest = max(measured, key=lambda entry: max(times[run] for run in entry.runs))
    alike = [each for each in measured if not conditions_changed(each, newest)]
    base = min(alike, key=lambda each: (reason_of(each) is not None, min(times[run] for run in each.runs)))
    spread = {id(each): _with_reasons(each, base, times) for each in alike}
    runs = sorted(united_runs(spread.values()), key=lambda run: times[run])
    holds = {run.gpu_uuid: run.reason for run in runs}
    if None not in holds.values():
        return list(measured)
    for key, each in spread.items():
        left = tuple(run for run in each.runs if run.reason == holds[run.gpu_uuid])
        spread[key] = replace(each, runs=left)
    return [spread.get(id(each), each) for each in measured]


def _with_reasons(entry: Entry, base: Entry, times: dict[Run, dt.datetime]) -> Entry:
    """Return an entry with its commit and reason, if `base` has not the same reason, at its own runs."""
    reason = reason_of(entry)
    has_copy = {*entry.runs} <= {*base.runs}  # somebody's, without the reason
    if reason in (None, reason_of(base)) or has_copy:
        return entry
    runs = []
    for run in entry.runs:
        if run.reason is None and run not in base.runs:
            marked = replace(run, commit=entry.provenance.get("commit", ""), reason=reason)
            times[marked] = times[run]
            runs.append(marked)
        else:
            runs.append(run)
    return replace(entry, runs=tuple(runs), identity=base.identity, provenance=base.provenance)


def reason_of(entry: Entry) -> str | None:
    """Return why an entry was accepted as slower; None if it was not."""
    return entry.provenance.get("reason")


def conditions_changed(then: Entry, now: Entry) -> list[str]:
    """Return what differs between what two entries measured, and how."""
    return (["other work"] if then.work != now.work else []) + condition_changes(then, now)
