"""Recording baselines: what may be written, and what is said about it."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_cutile.core.baselines import (
    MAX_RUNS,
    Entry,
    Run,
    condition_changes,
    is_clean,
    is_far,
    record_entries,
    same_code,
)
from pytest_cutile.core.comparisons import SLOPES
from pytest_cutile.core.report import format_change, format_step, format_time
from pytest_cutile.core.spec import Work
from pytest_cutile.core.speed_rule import Estimate
from pytest_cutile.core.timing import NOISE_LIMIT, Measurement
from pytest_cutile.core.verdicts import Judgement, Reason, Verdict
from pytest_cutile.gates.engine import Engine


class Refused(Exception):  # noqa: N818 - nothing is broken
    """The rules do not allow to record this; the message says why and what would."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What one session measured of a case."""

    key: str
    """Key in the baseline file."""
    work: Work
    """What one launch does."""
    measurements: Sequence[Measurement]
    """One per process."""
    judgement: Judgement
    """Against what is recorded."""
    estimate: Estimate | None
    """Of the difference from what is recorded; None where there is nothing to compare with."""
    identity: str
    """Digest of the compiled code and the launch; empty where they are not known."""
    judged_against: Entry | None
    """What was recorded when the run began."""
    change: float
    """By how much it is slower than recorded, as a fraction.

    On a board that the entry has no runs of, by its code alone where the kernel of then told that and all
    else is as then; otherwise without what all of its class share. On its own board nothing is taken off.
    """
    as_then: bool = False
    """Whether the kernel that was recorded is as slow on this board, which the entry has no runs of."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """What was done about a case."""

    text: str
    """For people."""
    recorded: bool
    """Whether the file holds it now."""
    uncommitted: bool = False
    """Whether no commit has the kernel that it was recorded from."""


def record(engine: Engine, recordings: Sequence[Recording]) -> dict[str, Note]:
    """Record what one session measured, all cases in one go; return what was done, by key.

    Raises:
        BaselineError: the file cannot be used or written; then nothing was changed.
    """
    path = engine.baseline_file
    if path is None or not recordings:
        return {}
    device = engine.timer.device
    environment = dict(engine.timer.environment())
    session = engine.session
    notes: dict[str, Note] = {}

    def renew(existing: Mapping[str, Entry]) -> dict[str, Entry]:
        renewed = {}
        for each in recordings:
            try:
                runs = _runs(each, session)
                entry, said = _renew(engine, existing.get(each.key), each, runs, environment)
            except Refused as refused:
                notes[each.key] = Note(text=f"not recorded: {refused}", recorded=False)
            else:
                renewed[each.key] = entry
                notes[each.key] = Note(
                    text=f"{said} in {engine.shown_baseline_file}",
                    recorded=True,
                    uncommitted=entry.provenance.get("commit", "").endswith("+"),
                )
        return renewed

    record_entries(path, arch=device.arch, gpu=device.name, renew=renew)
    return notes


def new_session(unique: str | None = None) -> str:
    """Return a name for a run of pytest that no other one has; one for all workers with the same `unique`."""
    return f"{dt.datetime.now(dt.UTC):%Y-%m-%d}-{(unique or uuid.uuid4().hex)[:8]}"


def _runs(recording: Recording, session: str) -> list[Run]:
    """Return what is stored of a session's measurements.

    Raises:
        Refused: the GPU was busy, throttled or held down meanwhile, or the samples scatter too much.
    """
    problems = dict.fromkeys(text for each in recording.measurements for text in each.problems)
    if problems:
        raise Refused("; ".join(problems))
    spread = max(each.relative_spread for each in recording.measurements)
    if spread > NOISE_LIMIT:
        raise Refused(f"the samples spread by {spread:.0%}; run it again")
    at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    return [_run(each, at, session) for each in recording.measurements]


def _run(measurement: Measurement, at: str, session: str) -> Run:
    us, control_us = measurement.beside_control(SLOPES[measurement.bound])
    return Run(
        at=at,
        session=session,
        gpu_uuid=measurement.device.uuid,
        median_us=round(us, 3),
        spread=round(measurement.relative_spread, 5),
        control_us=None if control_us is None else round(control_us, 3),
        clock_mhz=measurement.clock_mhz,
    )


def _renew(  # noqa: PLR0911 - each rule and what it says in one place
    engine: Engine,
    entry: Entry | None,
    recording: Recording,
    runs: Sequence[Run],
    environment: Mapping[str, str],
) -> tuple[Entry, str]:
    """Return the entry that takes the place of `entry`, which is what is on disk now, and what changed.

    Raises:
        Refused: it is worse, or nobody can tell.
    """
    reason, judgement = engine.settings.reason, recording.judgement
    by = provenance(engine)
    if engine.unseen:
        by["unseen"] = "; ".join(engine.unseen)
    fresh = Entry(
        work=recording.work,
        runs=tuple(runs),
        identity=recording.identity,
        control=recording.measurements[0].control,
        environment=environment,
        provenance=by,
    )
    count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    if entry is None:
        return fresh, f"{count} recorded"
    board, now = runs[0].gpu_uuid, fresh.reference_us
    before = entry.on_board(board).reference_us
    said = format_step(before, now)
    others = tuple(run for run in entry.runs if run.gpu_uuid != board)
    if entry.work != recording.work:
        if reason is None:
            raise Refused("the case does other work than the recorded one; give --reason TEXT to replace it")
        return fresh, f"{said}, for other work{_dropped(others, 'the case does other work')}"
    if entry.published is not None and (judgement.reason is not Reason.BELOW_PUBLISHED or reason is not None):
        return fresh, f"{said}, in place of a published figure"
    _refuse_lost_control(engine, entry, recording)
    changes = condition_changes(entry, fresh)
    is_faster = judgement.verdict is Verdict.IMPROVEMENT
    by_board = is_faster and not changes and _differs_by_board(replace(entry, runs=others), fresh)
    is_new_board = len(others) == len(entry.runs)
    # A faster kernel may well draw more power, and so have a lower clock; a control alone makes none faster.
    if is_faster and not (by_board and is_new_board) and (now < before or not _low_clock(recording)):
        if not by_board:
            return fresh, said + _dropped(others, "; ".join(changes) or "it is faster than boards explain")
        # Other boards are held against their own runs: without them, what is usual there would be slower.
        beside = replace(fresh, runs=(*others, *runs)).with_drift(entry.drift)
        return beside, f"{said}, the runs of other boards stay"
    worse = _worse(engine, entry, fresh, recording, changes)
    if worse and reason is None:
        raise Refused(f"{worse}; give --reason TEXT to accept {said}")
    if worse and (changes or not others):
        return fresh, said + _dropped(others, "; ".join(changes))
    if worse:
        return _accepted(entry, fresh, others), f"{said}, the runs of other boards stay"
    if changes:
        drift = (1 + entry.drift) * (1 + recording.change) - 1
        said += f", other conditions ({'; '.join(changes)})"
        return fresh.with_drift(drift), said + _dropped(others)
    if len(entry.runs) - len(others) >= MAX_RUNS:
        return entry, f"it has its {MAX_RUNS} runs of this board, and these are no other: none added"
    renewed, count = _add(entry, fresh)
    why_faster = ", faster by their board alone: the code is the same" if by_board else ""
    return renewed, f"{format_step(before, renewed.on_board(board).reference_us)}: {count}{why_faster}"


def _add(entry: Entry, fresh: Entry) -> tuple[Entry, str]:
    """Return an entry with the runs of `fresh`, and what to say of them."""
    (board,) = fresh.boards
    runs, by, own = fresh.runs, {**fresh.provenance}, entry.on_board(board).runs[0]
    # The commit stays that of the first runs: one that moved with every run would drift with them.
    first = entry.provenance.get("commit", "")
    commit = first if is_clean(first) else by["commit"]
    identity = fresh.identity or entry.identity
    if own.gpu_uuid == board and own.reason is not None:  # more of what was accepted on this board
        runs = tuple(replace(run, commit=own.commit, reason=own.reason) for run in runs)
        commit, identity = first, entry.identity
    by.pop("reason", None)  # nothing had to be accepted, and an earlier reason is that of the first runs
    renewed = entry.with_runs(
        runs,
        provenance={**entry.provenance, **by, "commit": commit},
        identity=identity,
    )
    added = len(renewed.runs) - len(entry.runs)
    count = f"{added} run{'s' if added > 1 else ''} of {format_time(fresh.reference_us)} added"
    return renewed, f"{count}, {len(renewed.runs)} now"


def _accepted(entry: Entry, fresh: Entry, others: tuple[Run, ...]) -> Entry:
    """Return an entry in which `fresh`, accepted as slower, takes the place of its own board's runs alone.

    Nobody said of other boards that they may be slower: they keep their runs, and the commit whose kernel
    takes turns with their suspects. So the runs that were accepted name theirs, and the reason.
    """
    if all(run.reason is not None for run in others):  # the entry's commit and reason are nobody's any more
        return replace(fresh, runs=(*others, *fresh.runs), identity=entry.identity)
    commit, reason = fresh.provenance["commit"], fresh.provenance["reason"]
    runs = (replace(run, commit=commit, reason=reason) for run in fresh.runs)
    return replace(entry, runs=(*others, *runs))


def _dropped(others: Sequence[Run], why: str = "") -> str:
    """Say that runs of other boards are not kept, and why; empty if there are none."""
    if not others:
        return ""
    count = (
        f"the {len(others)} runs of other boards are" if len(others) > 1 else "the run of another board is"
    )
    return f"; {count} dropped" + (f": {why}" if why else "")


def _differs_by_board(then: Entry, now: Entry) -> bool:
    """Say whether boards, and not the code, explain how an entry differs from runs of others, if any."""
    return bool(then.runs) and same_code(then, now) and not is_far(then, now)


def _worse(  # noqa: PLR0911 - as above
    engine: Engine, entry: Entry, fresh: Entry, recording: Recording, changes: Sequence[str]
) -> str:
    """Return in what way `fresh` is worse than what it would join or replace; empty if it is not."""
    judgement, rule, now = recording.judgement, engine.settings.rule, fresh.reference_us
    own = entry.on_board(fresh.runs[0].gpu_uuid)
    before = own.reference_us
    change = judgement.change or 0.0
    if judgement.verdict is Verdict.REGRESSION:
        return "it is slower"
    if entry != recording.judged_against and now > before * (1 + rule.margin):
        return f"it is slower than what another run recorded meanwhile ({format_time(before)})"
    if low_clock := _low_clock(recording):
        return low_clock
    # Small steps, each with another driver or another code, could add up to anything.
    may_be_slower = not same_code(own, fresh) and not recording.as_then
    if not changes and may_be_slower and _is_a_step(engine, recording):
        return f"it is slower, and may be of other code than {_code(own)}"
    if judgement.verdict is Verdict.INCONCLUSIVE and not recording.as_then:
        # While nothing else changed, what nobody can tell from noise is one more run.
        one_more = judgement.reason is Reason.NOISY and not changes and change <= rule.margin
        return "" if one_more else judgement.detail
    if changes and (change := recording.change) > entry.small_step(rule):
        drift = f", and {format_change(entry.drift)} before" if entry.drift > 0 else ""
        return f"it is {format_change(change)} slower under other conditions ({'; '.join(changes)}){drift}"
    return ""


def _is_a_step(engine: Engine, recording: Recording) -> bool:
    return recording.estimate is not None and recording.estimate.is_a_step(engine.settings.rule)


def _code(entry: Entry) -> str:
    """Name what an entry was recorded from."""
    return entry.provenance.get("commit") or "what was recorded outside of git"


def _refuse_lost_control(engine: Engine, entry: Entry, recording: Recording) -> None:
    """Refuse runs without a control in place of runs, or among runs, that have one: less would be known.

    Raises:
        Refused: it is so, and no reason was given.
    """
    lacks = entry.control and not all(each.control for each in recording.measurements)
    if lacks and engine.settings.reason is None:
        raise Refused(
            f"it was measured beside no control, and its runs beside {entry.control}: was GPU memory short? "
            "Free some and run it again, or give --reason TEXT to record it without"
        )


def _low_clock(recording: Recording) -> str:
    """Say what is doubtful about the clocks beside those of the stored runs; empty if nothing is."""
    return next((each.low_clock for each in recording.measurements if each.low_clock), "")


def provenance(engine: Engine) -> dict[str, str]:
    """Return who records, from which commit, and the reason that was given."""
    from pytest_cutile import __version__

    by = {"by": f"pytest-cutile {__version__}", "commit": engine.commit}
    return by if engine.settings.reason is None else {**by, "reason": engine.settings.reason}
