"""The rules of `--update-baselines`: what becomes of a stored entry when a case was measured again.

`plan` decides and `carry_out` builds the entry. Both are pure functions of values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from msgspec.structs import replace

from pytest_cutile.baselines.entries import (
    MAX_RUNS,
    Entry,
    Run,
    condition_changes,
    first_of_each_gpu,
    is_clean,
    is_far,
    same_code,
)
from pytest_cutile.quantities import counted, format_change, format_step, format_time
from pytest_cutile.speed.decide import Estimate, Rule
from pytest_cutile.verdicts import Judgement, Reason, Verdict


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What one session found out about a case that has an entry."""

    judgement: Judgement
    """Against what is recorded."""
    estimate: Estimate | None
    """Of the difference from what is recorded; None where there is nothing to compare with."""
    judged_against: Entry | None
    """What was recorded when the run began."""
    change: float
    """By how much it is slower than recorded, as a fraction.

    On a GPU that the entry has no runs of, by its code alone where the baseline kernel told that and all else
    is as recorded; otherwise without what all of its stratum share. On its own GPU nothing is taken off.
    """
    code_is_no_slower: bool = False
    """Whether the baseline kernel is as slow on this GPU, which the entry has no runs of."""
    low_clock: str = ""
    """What is doubtful about the clock beside those of the stored runs; empty if nothing is."""
    lacks_workload: bool = False
    """Whether a process measured no reference workload."""


class Action(Enum):
    """What becomes of the entry."""

    REPLACE = "replace"
    """The new runs alone are the entry."""
    REPLACE_ON_GPU = "replace on GPU"
    """They take the place of this GPU's runs; the entry is theirs."""
    ACCEPT_ON_GPU = "accept on GPU"
    """They take the place of this GPU's runs, with the reason at these runs."""
    ADD = "add"
    """They are added to this GPU's runs."""
    KEEP = "keep"
    """The entry stays as it is: it has runs enough."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be done, and what has to be accepted for it."""

    action: Action
    objection: str = ""
    """Why it needs `--reason`, and the advice to give one; empty where it needs none."""
    remark: str = ""
    """What to say of it behind the times."""
    drift: float = 0.0
    """Drift of the entry that replaces the stored one."""


def plan(entry: Entry, new: Entry, evidence: Evidence, rule: Rule) -> Plan:
    """Decide what becomes of `entry`."""
    if entry.work != new.work:
        why = "the case does other work"
        objection = f"{why} than the recorded one; give --reason TEXT to replace it"
        remark = f", for other work{_dropped(entry, new, why)}"
        return Plan(action=Action.REPLACE, objection=objection, remark=remark)
    if entry.published is not None:
        below = evidence.judgement.reason is Reason.BELOW_PUBLISHED
        objection = _to_accept("it is slower", entry, new) if below else ""
        return Plan(action=Action.REPLACE, objection=objection, remark=", in place of a published figure")
    plan = _plan_measured(entry, new, evidence, rule)
    if entry.reference_workload and evidence.lacks_workload:  # less would be known
        objection = (
            f"it was measured with no reference workload, and its runs with {entry.reference_workload}: "
            "was GPU memory short? Free some and run it again, or give --reason TEXT to record it without"
        )
        return Plan(action=plan.action, objection=objection, remark=plan.remark, drift=plan.drift)
    return plan


def _plan_measured(  # noqa: PLR0911 - one return for each rule
    entry: Entry, new: Entry, evidence: Evidence, rule: Rule
) -> Plan:
    """Decide about an entry that has runs of the same work."""
    changes = condition_changes(entry, new)
    others = _of_other_gpus(entry, new)
    if evidence.judgement.verdict is Verdict.IMPROVEMENT:
        explained = not changes and _explained_by_gpu(others, new)
        is_new_gpu = others is not None and len(others.runs) == len(entry.runs)
        # A faster kernel may draw more power, and so have a lower clock.
        is_faster = new.reference_us < _on_same_gpu(entry, new).reference_us or not evidence.low_clock
        if is_faster and not (explained and is_new_gpu):
            if explained:  # without their runs, what is usual on other GPUs would be slower
                remark = ", the runs of other GPUs stay"
                return Plan(action=Action.REPLACE_ON_GPU, remark=remark, drift=entry.drift)
            why = "; ".join(changes) or "it is faster than GPUs explain"
            return Plan(action=Action.REPLACE, remark=_dropped(entry, new, why))
    worse = _worse(entry, new, evidence, changes, rule)
    if worse:
        objection = _to_accept(worse, entry, new)
        if changes or others is None:
            remark = _dropped(entry, new, "; ".join(changes))
            return Plan(action=Action.REPLACE, objection=objection, remark=remark)
        remark = ", the runs of other GPUs stay"
        return Plan(action=Action.ACCEPT_ON_GPU, objection=objection, remark=remark)
    if changes:
        remark = f", other conditions ({'; '.join(changes)}){_dropped(entry, new)}"
        drift = (1 + entry.drift) * (1 + evidence.change) - 1
        return Plan(action=Action.REPLACE, remark=remark, drift=drift)
    own = len(entry.runs) - (len(others.runs) if others is not None else 0)
    if own >= MAX_RUNS:
        return Plan(action=Action.KEEP)
    is_faster = evidence.judgement.verdict is Verdict.IMPROVEMENT and _explained_by_gpu(others, new)
    why_faster = ", faster by their GPU alone: the code is the same" if is_faster else ""
    return Plan(action=Action.ADD, remark=why_faster)


def _worse(  # noqa: PLR0911 - one return for each rule
    entry: Entry, new: Entry, evidence: Evidence, changes: Sequence[str], rule: Rule
) -> str:
    """Return in what way `new` is worse than what it would join or replace; empty if it is not."""
    judgement, own = evidence.judgement, _on_same_gpu(entry, new)
    if judgement.verdict is Verdict.REGRESSION:
        return "it is slower"
    if entry != evidence.judged_against and new.reference_us > own.reference_us * (1 + rule.margin):
        return f"it is slower than what another run recorded meanwhile ({format_time(own.reference_us)})"
    if evidence.low_clock:
        return evidence.low_clock
    # Small steps, each with another driver or another code, could add up to anything.
    is_a_step = evidence.estimate is not None and evidence.estimate.is_a_step(rule)
    may_be_slower = not same_code(own, new) and not evidence.code_is_no_slower
    if is_a_step and may_be_slower and not changes:
        code = entry.commit or "what was recorded outside of git"
        return f"it is slower, and may be of other code than {code}"
    if judgement.verdict is Verdict.INCONCLUSIVE and not evidence.code_is_no_slower:
        # While nothing else changed, what cannot be told from noise is one more run.
        within = (judgement.change or 0.0) <= rule.margin
        return "" if judgement.reason is Reason.NOISY and not changes and within else judgement.detail
    if changes and evidence.change > entry.allowed_step(rule.margin):
        drift = f", and {format_change(entry.drift)} before" if entry.drift > 0 else ""
        change = format_change(evidence.change)
        return f"it is {change} slower under other conditions ({'; '.join(changes)}){drift}"
    return ""


def carry_out(plan: Plan, entry: Entry, new: Entry) -> tuple[Entry, str]:
    """Return the entry that takes the place of `entry`, and what to say of it."""
    others = _of_other_gpus(entry, new)
    kept = others.runs if others is not None else ()
    before = _on_same_gpu(entry, new).reference_us
    said = format_step(before, new.reference_us) + plan.remark
    match plan.action:
        case Action.REPLACE:
            return new.with_drift(plan.drift), said
        case Action.REPLACE_ON_GPU:
            return replace(new, runs=(*kept, *new.runs)).with_drift(plan.drift), said
        case Action.ACCEPT_ON_GPU:
            return _accepted(entry, new, kept), said
        case Action.KEEP:
            return entry, f"it has its {MAX_RUNS} runs of this GPU, and these are no other: none added"
        case Action.ADD:
            added = _added(entry, new)
            count = len(added.runs) - len(entry.runs)
            step = format_step(before, _on_same_gpu(added, new).reference_us)
            runs = f"{counted(count, 'run')} of {format_time(new.reference_us)} added, {len(added.runs)} now"
            return added, f"{step}: {runs}{plan.remark}"


def _added(entry: Entry, new: Entry) -> Entry:
    """Return an entry with the runs of `new`.

    The commit stays that of the first runs whose code git has: one that moved with every run would drift with
    them.
    """
    runs, own = new.runs, _on_same_gpu(entry, new).runs[0]
    commit = entry.commit if is_clean(entry.commit) else new.commit
    fingerprint = new.fingerprint or entry.fingerprint
    if own.gpu_uuid == runs[0].gpu_uuid and own.reason is not None:  # more of what was accepted on this GPU
        runs = tuple(replace(run, commit=own.commit, reason=own.reason) for run in runs)
        commit, fingerprint = entry.commit, entry.fingerprint
    # Nothing had to be accepted, and an earlier reason is that of the first runs.
    by = {key: value for key, value in new.provenance.items() if key != "reason"}
    return replace(
        entry,
        runs=first_of_each_gpu((*entry.runs, *runs)),
        provenance={**entry.provenance, **by, "commit": commit},
        fingerprint=fingerprint,
    )


def _accepted(entry: Entry, new: Entry, others: tuple[Run, ...]) -> Entry:
    """Return an entry in which `new`, accepted as slower, takes the place of its own GPU's runs alone.

    Nobody said of other GPUs that they may be slower: they keep their runs, and the commit whose kernel is
    measured beside their suspects. So the runs that were accepted name theirs, and the reason.
    """
    if all(run.reason is not None for run in others):  # the entry's commit and reason are nobody's any more
        return replace(new, runs=(*others, *new.runs), fingerprint=entry.fingerprint)
    runs = (replace(run, commit=new.commit, reason=new.reason) for run in new.runs)
    return replace(entry, runs=(*others, *runs))


def _on_same_gpu(entry: Entry, new: Entry) -> Entry:
    return entry.on_gpu(new.runs[0].gpu_uuid)


def _of_other_gpus(entry: Entry, new: Entry) -> Entry | None:
    runs = tuple(run for run in entry.runs if run.gpu_uuid not in new.gpus)
    return replace(entry, runs=runs) if runs else None


def _explained_by_gpu(others: Entry | None, new: Entry) -> bool:
    """Say whether the GPU, and not the code, explains how `new` differs from runs of others, if any."""
    return others is not None and same_code(others, new) and not is_far(others, new)


def _to_accept(worse: str, entry: Entry, new: Entry) -> str:
    step = format_step(_on_same_gpu(entry, new).reference_us, new.reference_us)
    return f"{worse}; give --reason TEXT to accept {step}"


def _dropped(entry: Entry, new: Entry, why: str = "") -> str:
    """Say that runs of other GPUs are not kept, and why; empty if there are none."""
    others = _of_other_gpus(entry, new)
    if others is None:
        return ""
    count = len(others.runs)
    what = f"the {count} runs of other GPUs are" if count > 1 else "the run of another GPU is"
    return f"; {what} dropped" + (f": {why}" if why else "")
