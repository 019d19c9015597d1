"""What several runners recorded of one platform, put together case by case."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_cutile.core.baseline_files import BaselineError
from pytest_cutile.core.baselines import MAX_RUNS, Entry, Run, environment_changes


@dataclass(frozen=True, kw_only=True)
class Merged:
    """What becomes of one case."""

    entry: Entry
    """What the file holds afterwards."""
    note: str
    """What changed, for people."""
    changed: bool
    """Whether the entry is another than before."""


def merge_entries(existing: Mapping[str, Entry], others: Iterable[Mapping[str, Entry]]) -> dict[str, Merged]:
    """Return what becomes of the cases in any of `others`; cases of `existing` alone stay as they are.

    Runs are joined where they can be compared: same work, environment, control and compiled code, and the
    same reason if it was accepted as slower. Where they cannot, those beside the newest run stay. What was
    measured takes the place of what was published.

    Raises:
        BaselineError: a run's time of recording cannot be read.
    """
    found: dict[str, list[Entry]] = {}
    for entries in others:
        for key, entry in entries.items():
            found.setdefault(key, []).append(entry)
    return {key: _merge(key, existing.get(key), found[key]) for key in sorted(found)}


def _merge(key: str, before: Entry | None, others: Sequence[Entry]) -> Merged:
    entries = [*([before] if before is not None else []), *others]
    measured = [entry for entry in entries if entry.runs]
    if not measured:
        first = entries[0]
        note = "a published figure" if before is None else ""
        if any(entry != first for entry in entries):
            note = "several published figures differ: the first one stays"
        return Merged(entry=first, note=note, changed=before is None)

    times = {run: _time(key, run) for entry in measured for run in entry.runs}
    # The first of several that are as new, which is the existing one if it is among them.
    by_age = sorted(measured, key=lambda entry: max(times[run] for run in entry.runs), reverse=True)
    newest = by_age[0]
    # Code that is not known may be any; if the newest entry does not know, the next one that does says.
    identity = next((each.identity for each in by_age if each.identity and not _changes(each, newest)), "")
    newest = replace(newest, identity=newest.identity or identity)
    joined = [entry for entry in measured if not _changes(entry, newest)]
    runs = sorted(_united(joined), key=lambda run: times[run])
    entry = replace(newest, runs=tuple(runs[:MAX_RUNS]))

    left_out = [each for each in measured if _changes(each, newest)]
    notes = [_said(before, entry, newest)]
    if len(runs) > MAX_RUNS:
        notes.append(f"{len(runs) - MAX_RUNS} later than the first {MAX_RUNS} left out")
    lost = _united([each for each in left_out if each is not before])
    if lost:
        why = dict.fromkeys(
            text for each in left_out if each is not before for text in _changes(each, newest)
        )
        notes.append(f"{_count(len(lost))} of other conditions left out ({', '.join(why)})")
    if before in joined and before is not None and Counter(before.runs) == Counter(entry.runs):
        entry = replace(before, identity=entry.identity)  # somebody else's copy of it is no news
    return Merged(entry=entry, note="; ".join(filter(None, notes)), changed=entry != before)


def _united(entries: Iterable[Entry]) -> list[Run]:
    """Return the runs of all entries, each as often as the entry has it that has it most often.

    Files that were copied from each other share runs. Two runs of one entry are two, even if they look the
    same: they have their session's time, and figures that were rounded.
    """
    runs: list[Run] = []
    taken: Counter[Run] = Counter()
    for entry in entries:
        here: Counter[Run] = Counter()
        for run in entry.runs:
            here[run] += 1
            if here[run] > taken[run]:
                taken[run] += 1
                runs.append(run)
    return runs


def _said(before: Entry | None, entry: Entry, newest: Entry) -> str:
    now = len(entry.runs)
    if before is None:
        return f"new, {_count(now)}"
    if not before.runs:
        return f"{_count(now)} in place of a published figure"
    changes = _changes(before, newest)
    if changes:
        return f"{_count(now)} in place of {len(before.runs)} older ones ({', '.join(changes)})"
    added = (Counter(entry.runs) - Counter(before.runs)).total()
    return f"+{_count(added)}, {now} now" if added else ""


def _count(runs: int) -> str:
    return f"{runs} run{'s' if runs != 1 else ''}"


def _changes(then: Entry, now: Entry) -> list[str]:
    """Return why the runs of two entries cannot be compared; empty if they can."""
    changes = ["other work"] if then.work != now.work else []
    changes += environment_changes(then.environment, now.environment)
    if then.control != now.control:
        changes.append(f"control: {then.control or 'none'} -> {now.control or 'none'}")
    if then.identity and now.identity and then.identity != now.identity:
        changes.append("other compiled code")
    if then.provenance.get("reason") != now.provenance.get("reason"):
        changes.append(f"accepted as slower: {now.provenance.get('reason') or 'no longer'}")
    return changes


def _time(key: str, run: Run) -> dt.datetime:
    try:
        at = dt.datetime.fromisoformat(run.at)
    except ValueError as error:
        raise BaselineError(f"{key}: a run has the time {run.at!r}, which is not ISO 8601") from error
    return at if at.tzinfo else at.replace(tzinfo=dt.UTC)
