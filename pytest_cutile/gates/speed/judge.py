"""What the evidence of one case says: a reason with its verdict. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_cutile.gates.speed.comparison import Comparison, Paired, PublishedFigure, SameCode, StoredTimes
from pytest_cutile.gates.speed.rule import Decision
from pytest_cutile.words.quantities import format_change, format_time
from pytest_cutile.words.timing import NOISE_LIMIT, Measurement, Regime
from pytest_cutile.words.verdicts import Judgement, Reason, Verdict

if TYPE_CHECKING:
    from pytest_cutile.gates.speed.pending import PendingCase


def judge_screening(key: str, comparison: Comparison, measurement: Measurement) -> Judgement:
    """Judge a case by its screening, as far as one measurement can."""
    change = comparison.change([measurement])
    if not isinstance(comparison, SameCode) and not comparison.regimes(measurement):
        return _without_common_regime(key, measurement)
    if comparison.suspects(measurement) or comparison.slower_than_stored([measurement]) is not None:
        detail = f"{key} may be slower; the run ended before fresh processes could tell"
        return Judgement(reason=Reason.UNCONFIRMED, change=change, detail=detail)
    unknown = _sustained_unknown(key, comparison, [measurement])
    return unknown or _not_slower(key, comparison, [measurement], change)


def judge(case: PendingCase) -> Judgement:
    """Judge a case by its fresh processes, when they have decided what they could."""
    comparison, key, repeats = case.comparison, case.case.key, case.repeats
    if comparison is None:
        return case.judgement
    if not isinstance(comparison, SameCode) and not any(map(comparison.regimes, repeats)):
        return _without_common_regime(key, repeats[0])
    decisions = case.decisions
    change = comparison.change(repeats)
    slower = [regime for regime, decision in decisions.items() if decision is Decision.SLOWER]
    if slower:
        change = max(filter(None, (comparison.change(repeats, regime) for regime in slower)), default=change)
        return _slower(case, comparison, change)
    undecided = [regime for regime in case.regimes if decisions.get(regime) is not Decision.CLEAR]
    if undecided:
        return _undecided(case, comparison, undecided, change)
    scatter = max(map(case.scatter, Regime))
    if not case.regimes and isinstance(comparison, Paired) and scatter > comparison.rule.stored_margin:
        detail = (
            f"{key}: the first process was steady, and the times of {len(repeats)} differ by {scatter:.1%}"
        )
        return Judgement(reason=Reason.NOISY, change=change, detail=detail)
    unknown = _sustained_unknown(key, comparison, [case.screening, *repeats])
    return unknown or _not_slower(key, comparison, repeats, change)


def _without_common_regime(key: str, measurement: Measurement) -> Judgement:
    measured = " and ".join(measurement.regimes)
    detail = (
        f"{key} and its baseline have no regime in common (now: {measured}): a launch of more than 5 ms has "
        "no burst, and power limits some kernels only. If the case was changed on purpose, record it again "
        "with --reason TEXT"
    )
    return Judgement(reason=Reason.UNANCHORED, detail=detail)


def _slower(case: PendingCase, comparison: Comparison, change: float | None) -> Judgement:
    key = case.case.key
    if isinstance(comparison, Paired):
        return Judgement(reason=Reason.SLOWER, change=change)
    if case.problems:
        detail = f"{key} looks slower, but the GPU was disturbed: {'; '.join(case.problems)}; run it again"
        return Judgement(reason=Reason.DISTURBED, change=change, detail=detail)
    if isinstance(comparison, PublishedFigure):
        return Judgement(reason=Reason.BELOW_PUBLISHED, change=change)
    return Judgement(reason=Reason.SLOWER, change=change, detail=_unavailable(comparison))


def _unavailable(comparison: Comparison) -> str:
    return comparison.unavailable if isinstance(comparison, StoredTimes) else ""


def _undecided(
    case: PendingCase, comparison: Comparison, regimes: Sequence[Regime], change: float | None
) -> Judgement:
    key, count = case.case.key, len(case.repeats)
    shown = "" if change is None else f" {format_change(change)}"
    if not isinstance(comparison, Paired):
        detail = (
            f"{key}: stored times show{shown}, and alone they show only slowdowns above "
            f"{comparison.stored_margin:.1%}; {_unavailable(comparison)}"
        )
        return Judgement(reason=Reason.UNANCHORED, change=change, detail=detail)
    visible = []
    for regime in regimes:
        estimated = comparison.estimate(case.repeats, regime)
        if estimated is None:
            why = "; ".join(one.reason for one in case.sustained_skipped) or "too long for a burst"
            visible.append(f"{regime}: no fresh process measured it: {why}")
        else:
            missed = comparison.rule.missed
            least = max(estimated.upper(missed) - estimated.value, comparison.rule.least)
            visible.append(
                f"{regime}: only a slowdown of {math.expm1(least):.1%} could have been seen for certain"
            )
    detail = "; ".join([f"{key}: {count} fresh processes measured{shown}", *visible])
    if case.problems:
        detail += f"; the GPU was disturbed: {'; '.join(case.problems)}"
    return Judgement(reason=Reason.NOISY, change=change, detail=detail)


def _sustained_unknown(
    key: str, comparison: Comparison, measurements: Sequence[Measurement]
) -> Judgement | None:
    """Judge a case with stored sustained times that no process could measure sustained; else return None."""
    unknown = [one.sustained_skipped for one in measurements if one.sustained_skipped is not None]
    if (
        isinstance(comparison, SameCode)
        or Regime.SUSTAINED not in comparison.stored
        or any(one.sustained is not None for one in measurements)
        or all(skipped.not_limited for skipped in unknown)
    ):
        return None
    detail = f"{key} was recorded under sustained load, and was not measured so: {unknown[0].reason}"
    return Judgement(reason=Reason.NOISY, change=comparison.change(measurements), detail=detail)


def _not_slower(
    key: str, comparison: Comparison, measurements: Sequence[Measurement], change: float | None
) -> Judgement:
    """Judge a case whose code is not slower: something else may have made it slower than it was recorded."""
    outside = comparison.slower_than_stored(measurements)
    if outside is not None:
        both = "it and its baseline kernel are" if isinstance(comparison, Paired) else "it is"
        shown = f"{key}: {both} {format_change(outside)} against the stored times"
        if comparison.environment_changes:
            detail = f"{shown}, by the environment: {'; '.join(comparison.environment_changes)}"
            return Judgement(reason=Reason.ENVIRONMENT, change=outside, detail=detail)
        causes = ["the GPU's condition (clock, heat, another user)"]
        causes += [] if comparison.has_own_times else ["another GPU than those that recorded it"]
        causes += ["other inputs"] if isinstance(comparison, Paired) else []
        detail = f"{shown}, in the recorded environment: {', or '.join(causes)}"
        return Judgement(reason=Reason.DISTURBED, change=outside, detail=detail)
    reason = Reason.WITHIN_MARGIN
    if isinstance(comparison, SameCode):
        reason = Reason.UNCHANGED
    elif comparison.is_faster(measurements):
        reason = Reason.FASTER
    detail = _hidden_by_tick(key, comparison, measurements[0])
    return unless_noisy(Judgement(reason=reason, change=change, detail=detail), key, measurements)


def _hidden_by_tick(key: str, comparison: Comparison, measurement: Measurement) -> str:
    """Return a note if a pair is so fast that the timer's tick widens its margin noticeably; else ""."""
    tick, us = measurement.tick_us, measurement.burst_us
    if not isinstance(comparison, Paired) or us is None or tick / us <= comparison.rule.margin / 4:
        return ""
    hidden = f"{comparison.rule.margin + tick / us:.1%}"
    return f"{key}: the timer's tick of {format_time(tick)} hides changes below {hidden} in bursts"


def unless_noisy(judgement: Judgement, key: str, measurements: Sequence[Measurement]) -> Judgement:
    """Return `judgement`, or an inconclusive one for a pass if the kernel itself made the samples spread."""
    spread = max(measurement.excess_spread for measurement in measurements)
    if judgement.verdict not in (Verdict.PASS, Verdict.IMPROVEMENT) or spread <= NOISE_LIMIT:
        return judgement
    problems = dict.fromkeys(problem for measurement in measurements for problem in measurement.problems)
    disturbed = f"; the GPU was disturbed: {'; '.join(problems)}" if problems else ""
    detail = f"{key}: the samples spread by {spread:.0%}, so their mean does not tell its speed{disturbed}"
    return replace(judgement, reason=Reason.NOISY, detail=detail)
