"""What several runners recorded of one platform, put together case by case."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_cutile.core.accepted import (
    begun,
    board_was_accepted,
    conditions_changed,
    ended,
    known_reasons,
    reason_of,
    was_accepted,
    with_reason,
    with_reasons_of_boards,
)
from pytest_cutile.core.baseline_files import BaselineError
from pytest_cutile.core.baselines import (
    MAX_RUNS,
    Entry,
    Run,
    added_runs,
    first_of_each_board,
    is_clean,
    is_far,
    same_code,
    united_runs,
)
from pytest_cutile.core.report import format_step, format_time
from pytest_cutile.core.speed_rule import STORED_NOISE, Estimate, Rule, reference_of

FUTURE = dt.timedelta(days=1)
"""How much later than now a run may say it was recorded: clocks differ."""


@dataclass(frozen=True, kw_only=True)
class Merged:
    """What becomes of one case."""

    entry: Entry | None
    """What the file holds afterwards, if anything."""
    note: str
    """What changed, for people."""
    changed: bool
    """Whether the entry is another than before."""
    refused: bool = False
    """Whether it would have become worse, and nobody said why."""


def merge_entries(
    existing: Mapping[str, Entry], others: Iterable[Mapping[str, Entry]], *, reason: str | None = None
) -> dict[str, Merged]:
    """Return what becomes of the cases in any of `others`; cases of `existing` alone stay as they are.

    Runs are joined where they can be compared: same work, environment, control and compiled code, no other
    speed, and the same reason if it was accepted as slower. Where they cannot, those beside the newest run
    stay; a reason replaces runs of the boards alone that it was given on. The commit is that of the oldest
    runs. What was measured takes the place of what was published. An entry that would become worse stays as
    it is without a reason: `reason`, or the one that its new runs were recorded with, if all of them are
    newer than what they would replace.

    Raises:
        BaselineError: a run's time of recording cannot be read, or is yet to come.
    """
    found: dict[str, list[Entry]] = {}
    for entries in others:
        for key, entry in entries.items():
            found.setdefault(key, []).append(entry)
    return {key: _merge(key, existing.get(key), found[key], reason) for key in sorted(found)}


def _merge(key: str, before: Entry | None, others: Sequence[Entry], reason: str | None) -> Merged:
    """Merge one case; where that is refused, what is worse counts as recorded with `reason`."""
    times = {run: _time(key, run) for each in (before, *others) if each is not None for run in each.runs}
    before, others = known_reasons(before, others, times)
    if not others:
        return Merged(entry=before, note="", changed=False)
    merged = _merge_as_recorded(before, others, None, times)
    if reason is None or not merged.refused:
        return merged
    given = [
        with_reason(each, reason) if _merge_as_recorded(before, [each], None, times).refused else each
        for each in others
    ]
    return _merge_as_recorded(before, given, reason, times)


def _merge_as_recorded(
    before: Entry | None, others: Sequence[Entry], reason: str | None, times: dict[Run, dt.datetime]
) -> Merged:
    entries = [*([before] if before is not None else []), *others]
    measured = [entry for entry in entries if entry.runs]
    if not measured:
        first = entries[0]
        note = "a published figure" if before is None else ""
        if any(entry != first for entry in entries):
            note = "several published figures differ: the first one stays"
        return Merged(entry=first, note=note, changed=before is None)

    everything = united_runs(measured)
    measured = with_reasons_of_boards(measured, times)
    mine = measured[0] if before is not None and before.runs else None  # what is left of `before`
    measured = [entry for entry in measured if entry.runs]
    replaced = len(everything) - len(united_runs(measured))
    # The first of several that are as new, which is the existing one if it is among them.
    by_age = sorted(measured, key=lambda entry: ended(entry, times), reverse=True)
    newest = by_age[0]
    # Code that is not known may be any; if the newest entry does not know, the next one that does says.
    identity = next((each.identity for each in by_age if each.identity and not _changes(each, newest)), "")
    newest = replace(newest, identity=newest.identity or identity)
    joined = [entry for entry in measured if not _changes(entry, newest)]
    joined.sort(key=lambda entry: begun(entry, times))
    step = _step_between(joined)
    if step and reason is not None:  # other code, and what is accepted is the newest
        joined = [each for each in joined if each is by_age[0] or same_code(each, newest)]
    left_out = [(each, _changes(each, newest) or ["slower code"]) for each in measured if each not in joined]
    runs = sorted(united_runs(joined), key=lambda run: times[run])
    entry = replace(newest, runs=first_of_each_board(runs), provenance=_provenance(joined, newest))

    if before in joined and before is not None and Counter(before.runs) == Counter(entry.runs):
        entry = replace(before, identity=entry.identity)  # somebody else's copy of it is no news
    held_against = [each for each, _ in left_out] if before is None else [before]
    worse = step or _worse(entry, [*held_against, joined[0]], times)
    if worse and reason is None:
        note = f"not merged: {worse}; give --reason TEXT to accept that"
        return Merged(entry=before, note=note, changed=False, refused=True)
    notes = [_said(before, entry, [text for each, why in left_out if each is mine for text in why])]
    if worse:
        entry = replace(entry, provenance={**entry.provenance, "reason": str(reason)}).with_drift(0.0)
    elif before is not None and before.runs and not was_accepted(entry, before, times):
        pairs = [pair for pair in _pairs(before, entry) if not board_was_accepted(*pair, times)]
        steps = (now.reference_us / then.reference_us - 1 for then, now in pairs)
        change = 0.0 if mine in joined else max(steps, default=0.0)
        entry = entry.with_drift(max(entry.drift, (1 + before.drift) * (1 + change) - 1))
    if later := len(runs) - len(entry.runs):
        notes.append(f"{later} later than the first {MAX_RUNS} of their board left out")
    if replaced:
        notes.append(f"{_count(replaced)} of boards that were accepted as slower since left out")
    lost = [(each, why) for each, why in left_out if each is not mine]
    if lost:
        count = _count(len(united_runs(each for each, _ in lost)))
        reasons = dict.fromkeys(text for _, why in lost for text in why)
        notes.append(f"{count} of other conditions left out ({', '.join(reasons)})")
    return Merged(entry=entry, note="; ".join(filter(None, notes)), changed=entry != before)


def _worse(entry: Entry, others: Iterable[Entry], times: Mapping[Run, dt.datetime]) -> str:
    """Return in what way an entry is worse than one that it replaces or joins; empty if it is not."""
    for other in others:
        if was_accepted(entry, other, times):
            continue
        if other.work != entry.work:
            return "the case does other work than the recorded one"
        changes = _changes(other, entry) if other.runs else []
        # By the runs that it alone has: among those of both they would hardly show.
        added = replace(entry, runs=tuple(added_runs(entry, other)) or entry.runs)
        for then, now in _pairs(other, added):
            if board_was_accepted(then, now, times):
                continue
            if now.reference_us > then.reference_us * (1 + _allowed(then, now, changes)):
                step = format_step(then.reference_us, now.reference_us)
                return f"it is slower: {step}" + (f" ({', '.join(changes)})" if changes else "")
    return ""


def _pairs(then: Entry, now: Entry) -> list[tuple[Entry, Entry]]:
    """Pair the runs of `now` with those that the gate holds them against.

    A board's with those of the same board, if `then` has any, and those of all new boards with all.
    """
    by_board: dict[str, list[Run]] = {}
    for run in now.runs:
        by_board.setdefault(run.gpu_uuid if run.gpu_uuid in then.boards else "", []).append(run)
    return [(then.on_board(board), replace(now, runs=tuple(runs))) for board, runs in by_board.items()]


def _allowed(then: Entry, now: Entry, changes: Sequence[str]) -> float:
    """Return by what fraction an entry may be slower than one that it replaces or joins, without a reason."""
    rule = Rule()
    if then.published is not None:
        return then.published.margin
    if changes:  # as `--update-baselines` does
        return then.small_step(rule)
    more_boards = now.boards - then.boards
    return math.expm1(rule.limit_elsewhere) if more_boards and same_code(then, now) else rule.margin


def _step_between(joined: Sequence[Entry]) -> str:
    """Return by what runs that may be of other code are slower than the oldest ones; empty if by nothing.

    Args:
        joined: the entries whose runs become one entry's, oldest first.
    """
    oldest = joined[0]
    for entry in joined[1:]:
        added = added_runs(entry, oldest)
        if not added or same_code(oldest, entry):
            continue
        for then, now in _pairs(oldest, replace(entry, runs=tuple(added))):
            levels, known = ([run.level(0.0) for run in each.runs] for each in (now, then))
            reference = reference_of(known, STORED_NOISE, other_board=not now.boards <= then.boards)
            if Estimate.of([level.value for level in levels], reference).is_a_step(Rule()):
                step = format_step(then.reference_us, now.reference_us)
                commits = " -> ".join(each.provenance.get("commit") or "no commit" for each in (then, now))
                return f"it is slower: {step} ({commits})"
    return ""


def _provenance(joined: Sequence[Entry], newest: Entry) -> dict[str, str]:
    """Return the provenance of joined entries, oldest first: the newest one's, but for the commit.

    That stays the one of the first runs whose kernel git has, as when runs are added one session after the
    other: suspects are measured beside it, and one that moved with every merge would let a slowdown in by
    small steps.
    """
    commits = [each.provenance.get("commit", "") for each in joined]
    clean = next(filter(is_clean, commits), None)
    return {**newest.provenance, **({"commit": clean} if clean else {})}


def _said(before: Entry | None, entry: Entry, changes: Sequence[str]) -> str:
    now = len(entry.runs)
    if before is None:
        return f"new: {format_time(entry.reference_us)}, {_count(now)}"
    if before == entry:
        return ""
    if not before.runs:
        what = f"{_count(now)} in place of a published figure"
    elif changes:
        what = f"{_count(now)} in place of {len(before.runs)} older ones ({', '.join(changes)})"
    else:
        added = len(added_runs(entry, before))
        what = f"+{_count(added)}, {now} now" if added else "its compiled code is known now"
    return f"{format_step(before.reference_us, entry.reference_us)}: {what}"


def _count(runs: int) -> str:
    return f"{runs} run{'s' if runs != 1 else ''}"


def _changes(then: Entry, now: Entry) -> list[str]:
    """Return why the runs of two entries cannot be compared; empty if they can."""
    changes = conditions_changed(then, now)
    if reason_of(then) != reason_of(now):
        changes.append(f"accepted as slower: {reason_of(now) or 'no longer'}")
    if changes:
        return changes
    if is_far(then, now):
        changes.append("another speed")
    clocks = [
        one.on_board(run.gpu_uuid).low_clock(run.clock_mhz)
        for one, other in ((then, now), (now, then))
        for run in other.runs
    ]
    return changes + [*filter(None, clocks)][:1]


def _time(key: str, run: Run) -> dt.datetime:
    try:
        at = dt.datetime.fromisoformat(run.at)
    except ValueError as error:
        raise BaselineError(f"{key}: a run has the time {run.at!r}, which is not ISO 8601") from error
    at = at if at.tzinfo else at.replace(tzinfo=dt.UTC)
    now = dt.datetime.now(dt.UTC)
    if at > now + FUTURE:  # the newest run decides, so it would decide for ever
        raise BaselineError(
            f"{key}: a run has the time {run.at}, which is later than now ({now:%Y-%m-%d}): "
            "correct it, or the clock of this machine"
        )
    return at
