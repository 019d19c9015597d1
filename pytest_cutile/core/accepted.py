"""What was accepted as slower: by whom it is excused, and on which boards."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_cutile.core.baselines import Entry, Run, added_runs, condition_changes, united_runs
from pytest_cutile.core.speed_rule import Rule


def with_reason(entry: Entry, reason: str) -> Entry:
    """Return an entry as if it had been recorded with a reason, unless it was recorded with one."""
    if reason_of(entry) is not None:
        return entry
    return replace(entry, provenance={**entry.provenance, "reason": reason})


def known_reasons(
    before: Entry | None, others: Sequence[Entry], times: dict[Run, dt.datetime]
) -> tuple[Entry | None, list[Entry]]:
    """Return what is to be merged, with the reasons that are known of it already.

    A runner's copy of runs lacks the reason that they were merged with: it is known from the others, run by
    run. What adds nothing to `before` is left out. And a later session of what was accepted as slower,
    without a reason of its own, is one more of it, if it is no faster; `times` gets to know its runs.
    """
    entries = [*([before] if before is not None else []), *others]
    marked = {
        replace(run, commit=None, reason=None): run
        for each in entries
        for run in each.runs
        if run.reason is not None
    }
    entries = [replace(each, runs=tuple(marked.get(run, run) for run in each.runs)) for each in entries]
    first, rest = (None, entries) if before is None else (entries[0], entries[1:])
    if first is not None:
        rest = [
            each
            for each in rest
            if not each.runs or reason_of(each) not in (None, reason_of(first)) or added_runs(each, first)
        ]
    slower = [
        each for each in entries if each.runs and (reason_of(each) or any(run.reason for run in each.runs))
    ]
    slower.sort(key=lambda each: ended(each, times), reverse=True)
    for accepted in slower:
        rest = [
            each
            if each is accepted or conditions_changed(accepted, each)
            else _one_more(each, accepted, times)
            for each in rest
        ]
    return first, rest


def _one_more(entry: Entry, accepted: Entry, times: dict[Run, dt.datetime]) -> Entry:
    """Return an entry with the reason of `accepted` where it is a later session of it, and no faster."""
    if reason_of(entry) is not None or not entry.runs:
        return entry
    reason = reason_of(accepted)
    if reason is not None:
        later = begun(entry, times) > begun(accepted, times)
        is_more = later and entry.boards <= accepted.boards and not _is_faster(entry, accepted)
        return with_reason(entry, reason) if is_more else entry
    runs = list(entry.runs)
    for place, run in enumerate(runs):
        board = run.gpu_uuid
        own = [each for each in accepted.runs if each.gpu_uuid == board and each.reason is not None]
        if not own or run.reason is not None or times[run] <= min(times[each] for each in own):
            continue
        if not _is_faster(entry.on_board(board), replace(accepted, runs=tuple(own))):
            runs[place] = replace(run, commit=own[0].commit, reason=own[0].reason)
            times[runs[place]] = times[run]
    return replace(entry, runs=tuple(runs))


def _is_faster(now: Entry, then: Entry) -> bool:
    """Say whether what was accepted as slower has been mended since."""
    return now.reference_us < then.reference_us * (1 - Rule().margin)


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
    return is_new or begun(now, times) > ended(then, times)


def with_reasons_of_boards(measured: Sequence[Entry], times: dict[Run, dt.datetime]) -> list[Entry]:
    """Return the entries with reasons and commits at the runs, where others have boards that stay without.

    A reason says of the boards that it was given on that they may be slower. Others keep their runs, and
    the commit whose kernel takes turns with their suspects. A board's newest run tells what holds for it;
    `times` gets to know the runs that name a reason.
    """
    newest = max(measured, key=lambda entry: ended(entry, times))
    alike = [each for each in measured if not conditions_changed(each, newest)]
    if not newest.identity:  # it may be of any code, but not of two
        known = max(
            (each for each in alike if each.identity),
            key=lambda each: ended(each, times),
            default=newest,
        )
        alike = [each for each in alike if not conditions_changed(each, known)]
    base = min(alike, key=lambda each: (reason_of(each) is not None, begun(each, times)))
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
    return replace(
        entry, runs=tuple(runs), identity=base.identity or entry.identity, provenance=base.provenance
    )


def begun(entry: Entry, times: Mapping[Run, dt.datetime]) -> dt.datetime:
    """Return when the first of an entry's runs was recorded."""
    return min(times[run] for run in entry.runs)


def ended(entry: Entry, times: Mapping[Run, dt.datetime]) -> dt.datetime:
    """Return when the last of an entry's runs was recorded."""
    return max(times[run] for run in entry.runs)


def reason_of(entry: Entry) -> str | None:
    """Return why an entry was accepted as slower; None if it was not."""
    return entry.provenance.get("reason")


def conditions_changed(then: Entry, now: Entry) -> list[str]:
    """Return what differs between what two entries measured, and how."""
    return (["other work"] if then.work != now.work else []) + condition_changes(then, now)
