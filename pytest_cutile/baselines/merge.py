"""What several runners recorded of one platform, put together case by case."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from pytest_cutile.baselines.accepted import (
    began,
    covers,
    covers_gpu,
    differences,
    ended,
    recover_reasons,
    split_reasons,
    with_reason,
)
from pytest_cutile.baselines.entries import (
    MAX_RUNS,
    Entry,
    Run,
    added_runs,
    first_of_each_gpu,
    is_clean,
    is_far,
    same_code,
    united_runs,
)
from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.quantities import counted, format_step, format_time

FUTURE = dt.timedelta(days=1)
"""How much later than now a run may say it was recorded: clocks differ."""


@dataclass(frozen=True, kw_only=True)
class MergeLimits:
    """By how much merged runs may be slower without a reason, as the speed gate sees it."""

    margin: float
    """Slowdown under the same conditions, as a fraction."""
    margin_on_new_gpu: float
    """Slowdown of the same code on GPUs that have no runs yet, as a fraction."""
    is_a_step: Callable[[Entry, Entry], bool]
    """Whether the second entry is slower than the first by more than noise: steps of other code add up."""


@dataclass(frozen=True, kw_only=True)
class Merged:
    """What becomes of one case."""

    entry: Entry | None
    """What the file holds afterwards, if anything."""
    note: str
    changed: bool
    refused: bool = False
    """Whether it would have become worse, and nobody said why."""


def merge_entries(
    existing: Mapping[str, Entry],
    others: Iterable[Mapping[str, Entry]],
    *,
    limits: MergeLimits,
    reason: str | None = None,
) -> dict[str, Merged]:
    """Return what becomes of the cases in any of `others`; cases of `existing` alone stay as they are.

    - Runs are joined where they can be compared: same work, environment, reference workload and compiled
      code, no other speed, and the same reason if accepted as slower. Else those beside the newest run stay.
    - A reason replaces runs of the GPUs alone that it was given on.
    - The commit is that of the oldest runs. What was measured takes the place of what was published.
    - An entry that would become worse stays as it is without a reason: `reason`, or the one that its new runs
      were recorded with, if all of them are newer than what they would replace.

    Raises:
        BaselineError: a run's time of recording is yet to come.
    """
    new: dict[str, list[Entry]] = {}
    for entries in others:
        for key, entry in entries.items():
            new.setdefault(key, []).append(entry)
    return {key: _Merge(key, existing.get(key), limits).of(new[key], reason) for key in sorted(new)}


class _Merge:
    """The merge of one case into what is stored of it."""

    def __init__(self, key: str, before: Entry | None, limits: MergeLimits) -> None:
        self._key = key
        self._before = before
        self._limits = limits

    def of(self, others: Sequence[Entry], reason: str | None) -> Merged:
        """Merge `others`; where that is refused, what is worse counts as recorded with `reason`."""
        for entry in (self._before, *others):
            self._refuse_future(entry.runs if entry is not None else ())
        self._before, others = recover_reasons(self._before, others, self._limits.margin)
        if not others:
            return Merged(entry=self._before, note="", changed=False)
        merged = self._merge(others, None)
        if reason is None or not merged.refused:
            return merged
        given = [
            with_reason(entry, reason) if self._merge([entry], None).refused else entry for entry in others
        ]
        return self._merge(given, reason)

    def _refuse_future(self, runs: Iterable[Run]) -> None:
        now = dt.datetime.now(dt.UTC)
        for run in runs:
            if run.time > now + FUTURE:  # the newest run decides, so it would decide for ever
                raise BaselineError(
                    f"{self._key}: a run has the time {run.at}, which is later than now ({now:%Y-%m-%d}): "
                    "correct it, or the clock of this machine"
                )

    def _merge(self, others: Sequence[Entry], reason: str | None) -> Merged:
        before = self._before
        entries = [*([before] if before is not None else []), *others]
        measured = [entry for entry in entries if entry.runs]
        if not measured:
            return _merge_published(before, entries)
        everything = united_runs(measured)
        split = split_reasons(measured)
        mine = split[0] if before is not None and before.runs else None  # what is left of `before`
        measured = [entry for entry in split if entry is not None]
        replaced = len(everything) - len(united_runs(measured))
        # The first of several that are as new, which is the existing one if it is among them.
        by_age = sorted(measured, key=ended, reverse=True)
        newest = _with_known_code(by_age)
        joined = sorted((entry for entry in measured if not _changes(entry, newest)), key=began)
        step = self._step_between(joined)
        if step and reason is not None:  # other code, and what is accepted is the newest
            joined = [entry for entry in joined if entry is by_age[0] or same_code(entry, newest)]
        left_out = [
            (entry, _changes(entry, newest) or ["slower code"]) for entry in measured if entry not in joined
        ]
        runs = sorted(united_runs(joined), key=lambda run: run.time)
        entry = replace(newest, runs=first_of_each_gpu(runs), provenance=_provenance(joined, newest))
        if before in joined and before is not None and Counter(before.runs) == Counter(entry.runs):
            entry = replace(before, fingerprint=entry.fingerprint)  # somebody else's copy of it is no news
        compared = [other for other, _ in left_out] if before is None else [before]
        worse = step or self._worse(entry, [*compared, joined[0]])
        if worse and reason is None:
            note = f"not merged: {worse}; give --reason TEXT to accept that"
            return Merged(entry=before, note=note, changed=False, refused=True)
        notes = [_summary(before, entry, [text for other, why in left_out if other is mine for text in why])]
        if worse:
            entry = replace(entry, provenance={**entry.provenance, "reason": str(reason)}).with_drift(0.0)
        elif before is not None and before.runs and not covers(entry, before):
            entry = _with_drift(before, entry, is_joined=mine in joined)
        if later := len(runs) - len(entry.runs):
            notes.append(f"{later} later than the first {MAX_RUNS} of their GPU left out")
        if replaced:
            notes.append(f"{counted(replaced, 'run')} of GPUs that were accepted as slower since left out")
        lost = [(other, why) for other, why in left_out if other is not mine]
        if lost:
            count = counted(len(united_runs(other for other, _ in lost)), "run")
            reasons = dict.fromkeys(text for _, why in lost for text in why)
            notes.append(f"{count} of other conditions left out ({', '.join(reasons)})")
        return Merged(entry=entry, note="; ".join(filter(None, notes)), changed=entry != before)

    def _worse(self, entry: Entry, others: Iterable[Entry]) -> str:
        """Return in what way an entry is worse than one that it replaces or joins; empty if it is not."""
        for other in others:
            if covers(entry, other):
                continue
            if other.work != entry.work:
                return "the case does other work than the recorded one"
            changes = _changes(other, entry) if other.runs else []
            # By the runs that it alone has: among those of both they would hardly show.
            added = replace(entry, runs=tuple(added_runs(entry, other)) or entry.runs)
            for baseline, current in _pairs(other, added):
                if covers_gpu(baseline, current):
                    continue
                allowed = self._allowed(baseline, current, changes)
                if current.reference_us > baseline.reference_us * (1 + allowed):
                    step = format_step(baseline.reference_us, current.reference_us)
                    return f"it is slower: {step}" + (f" ({', '.join(changes)})" if changes else "")
        return ""

    def _allowed(self, baseline: Entry, current: Entry, changes: Sequence[str]) -> float:
        """Return by what fraction an entry may be slower than one that it replaces or joins."""
        if baseline.published is not None:
            return baseline.published.margin
        if changes:  # as `--update-baselines` does
            return baseline.allowed_step(self._limits.margin)
        is_new_gpu = bool(current.gpus - baseline.gpus)
        same = same_code(baseline, current)
        return self._limits.margin_on_new_gpu if is_new_gpu and same else self._limits.margin

    def _step_between(self, joined: Sequence[Entry]) -> str:
        """Return by what runs of unknown code are slower than the oldest of `joined`; empty if by nothing."""
        oldest = joined[0]
        for entry in joined[1:]:
            added = added_runs(entry, oldest)
            if not added or same_code(oldest, entry):
                continue
            for baseline, current in _pairs(oldest, replace(entry, runs=tuple(added))):
                if self._limits.is_a_step(baseline, current):
                    step = format_step(baseline.reference_us, current.reference_us)
                    commits = f"{baseline.commit or 'no commit'} -> {current.commit or 'no commit'}"
                    return f"it is slower: {step} ({commits})"
        return ""


def _merge_published(before: Entry | None, entries: Sequence[Entry]) -> Merged:
    first = entries[0]
    note = "a published figure" if before is None else ""
    if any(entry != first for entry in entries):
        note = "several published figures differ: the first one stays"
    return Merged(entry=first, note=note, changed=before is None)


def _with_known_code(by_age: Sequence[Entry]) -> Entry:
    """Return the newest entry; where its code is not known, with that of the next one that does know."""
    newest = by_age[0]
    comparable = (entry.fingerprint for entry in by_age if entry.fingerprint and not _changes(entry, newest))
    return replace(newest, fingerprint=newest.fingerprint or next(comparable, ""))


def _with_drift(before: Entry, entry: Entry, *, is_joined: bool) -> Entry:
    """Return `entry` with the drift of `before`, and the step between them if it replaces it."""
    pairs = [pair for pair in _pairs(before, entry) if not covers_gpu(*pair)]
    steps = (current.reference_us / baseline.reference_us - 1 for baseline, current in pairs)
    change = 0.0 if is_joined else max(steps, default=0.0)
    return entry.with_drift(max(entry.drift, (1 + before.drift) * (1 + change) - 1))


def _pairs(baseline: Entry, current: Entry) -> list[tuple[Entry, Entry]]:
    """Pair the runs of `current` with those that the gate compares them with.

    A GPU's with those of the same GPU, if `baseline` has any, and those of all new GPUs with all.
    """
    by_gpu: dict[str, list[Run]] = {}
    for run in current.runs:
        by_gpu.setdefault(run.gpu_uuid if run.gpu_uuid in baseline.gpus else "", []).append(run)
    return [(baseline.on_gpu(gpu), replace(current, runs=tuple(runs))) for gpu, runs in by_gpu.items()]


def _provenance(joined: Sequence[Entry], newest: Entry) -> dict[str, str]:
    """Return the provenance of joined entries, oldest first: the newest one's, but for the commit.

    That stays the one of the first runs whose kernel git has, as when runs are added one session after the
    other: suspects are measured beside it, and one that moved with every merge would let a slowdown in by
    small steps.
    """
    clean = next((entry.commit for entry in joined if is_clean(entry.commit)), None)
    return {**newest.provenance, **({"commit": clean} if clean else {})}


def _summary(before: Entry | None, entry: Entry, changes: Sequence[str]) -> str:
    total = len(entry.runs)
    if before is None:
        return f"new: {format_time(entry.reference_us)}, {counted(total, 'run')}"
    if before == entry:
        return ""
    if not before.runs:
        what = f"{counted(total, 'run')} in place of a published figure"
    elif changes:
        what = f"{counted(total, 'run')} in place of {len(before.runs)} older ones ({', '.join(changes)})"
    else:
        added = len(added_runs(entry, before))
        what = f"+{counted(added, 'run')}, {total} now" if added else "its compiled code is known now"
    return f"{format_step(before.reference_us, entry.reference_us)}: {what}"


def _changes(baseline: Entry, current: Entry) -> list[str]:
    """Return why the runs of two entries cannot be compared; empty if they can."""
    changes = differences(baseline, current)
    if baseline.reason != current.reason:
        changes.append(f"accepted as slower: {current.reason or 'no longer'}")
    if changes:
        return changes
    if is_far(baseline, current):
        changes.append("another speed")
    clocks = (
        one.on_gpu(run.gpu_uuid).low_clock(run.clock_mhz)
        for one, other in ((baseline, current), (current, baseline))
        for run in other.runs
    )
    return changes + [clock for clock in clocks if clock][:1]
