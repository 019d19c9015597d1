"""Judge one pending case by its evidence."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace

from pytest_cutile.baselines.entries import environment_changes
from pytest_cutile.quantities import format_change
from pytest_cutile.speed.case import SpeedCase
from pytest_cutile.speed.comparisons import (
    Comparison,
    PairedComparison,
    PublishedComparison,
    StoredComparison,
)
from pytest_cutile.speed.context import SpeedContext
from pytest_cutile.speed.decide import STEADY_SESSIONS, Decision
from pytest_cutile.speed.measure.blocks import MeasurementFailed
from pytest_cutile.speed.measure.timing import NOISE_LIMIT, Measurement
from pytest_cutile.speed.pending import PendingCase
from pytest_cutile.speed.session_effects import SessionEffects
from pytest_cutile.verdicts import UNDECIDED, Judgement, Reason, Verdict


class Multiplicity:
    """The number of comparisons of a run: the more there are, the likelier one looks slower by chance."""

    def __init__(self) -> None:
        self.collected = 0
        """Tests of the run that measure speed."""
        self.compared = 0
        """Cases that this process compared."""
        self.suspects = 0
        """Cases that this process measured again."""

    @property
    def total(self) -> int:
        """Cases that could have looked slower by chance."""
        return max(self.compared, self.collected)

    def of(self, comparison: Comparison) -> float:
        """Return the number of comparisons that `comparison` is one of.

        A paired measurement uses none of the screening's data, so only suspects can be wrong, and they are
        this process's share of the run. Stored runs are part of the screening, too.
        """
        if not isinstance(comparison, PairedComparison):
            return self.total
        return self.suspects * self.total / max(self.compared, 1)


class CaseJudge:
    """Adds evidence to pending cases and turns it into judgements. Cases are replaced, never changed."""

    def __init__(self, context: SpeedContext, effects: SessionEffects, multiplicity: Multiplicity) -> None:
        self._context = context
        self._effects = effects
        self._multiplicity = multiplicity

    # -- measuring again ------------------------------------------------------------------------------

    def is_suspect(self, case: PendingCase) -> bool:
        """Say whether the screening looks slow beyond the session effect."""
        return case.comparison is not None and case.comparison.is_suspect(
            case.screening, self._effects.of_case(case)
        )

    def has_baseline_kernel(self, case: PendingCase) -> bool:
        """Say whether git has the commit that the baseline was recorded at."""
        commit = case.stored_commit
        return bool(commit) and not commit.endswith("+") and self._context.checkout.has_commit(commit)

    def pair(self, case: PendingCase) -> PendingCase:
        """Return the case to be measured interleaved with the baseline kernel, if git has it.

        Session, GPU, driver and compiler act on both kernels alike, so what differs is the code. The stored
        runs have screened the case, and do not decide it then.
        """
        if not self.has_baseline_kernel(case):
            return case
        paired = PairedComparison(rule=self._context.settings.rule, revision=case.stored_commit)
        return replace(case, paired=paired)

    def add(self, case: PendingCase, evidence: Measurement | MeasurementFailed | None) -> PendingCase:
        """Return the case with the evidence of one more fresh process; decided if that is enough.

        Args:
            case: a case without an outcome.
            evidence: None if the fresh process ended before it measured the case.
        """
        if case.paired is not None and _lacks_revision(evidence):
            # The baseline launcher does not know this case, so stored runs have to decide.
            return replace(case, paired=None, repeats=())
        if not isinstance(evidence, Measurement):
            message = f"{case.case.key}: the fresh process that was to measure it again ended before it did"
            return _failed(case, evidence or MeasurementFailed(Reason.NOT_TIMED, message))
        if not _has_same_workload(case, evidence):
            measured = evidence.reference_workload or "no reference workload"
            message = (
                f"{case.case.key}: the fresh process measured {measured} "
                f"in place of {case.screening.reference_workload}, so its times cannot be compared: was GPU "
                "memory short?"
            )
            return _failed(case, MeasurementFailed(Reason.NOT_TIMED, message))
        if case.paired is None and case.comparison is not None:
            evidence = case.comparison.with_clock(evidence, self._context.gpu.timer.environment)
        case = replace(case, repeats=(*case.repeats, evidence))
        comparison = case.deciding
        if case.records or comparison is None:
            return case
        decision = comparison.decide(
            case.repeats, self._effects.of_case(case), self._multiplicity.of(comparison)
        )
        if decision is Decision.CLEAR:
            return self._clear(case)
        return self.call_slower(case) if decision is Decision.SLOWER else case

    # -- judgements -----------------------------------------------------------------------------------

    def finish(self, case: PendingCase, reason: Reason, detail: str = "") -> PendingCase:
        """Close a case with a reason, unless its samples are too noisy for a pass."""
        judgement = Judgement(reason=reason, change=self._change(case), detail=detail)
        return case.closed(unless_noisy(judgement, case.case.key, case.repeats or [case.screening]))

    def leave_inconclusive(
        self, case: PendingCase, reason: Reason, detail: str, *, change: float | None = None
    ) -> PendingCase:
        """Close a case as inconclusive, with the smallest slowdown that could have been seen."""
        detail += self._smallest_visible(case)
        change = self._change(case) if change is None else change
        return case.closed(Judgement(reason=reason, change=change, detail=detail))

    def leave_undecided(self, case: PendingCase) -> PendingCase:
        """Close a case that all fresh processes left undecided, and say what would have helped."""
        comparison = case.deciding
        if comparison is None:
            return case
        change = comparison.change(case.repeats, self._effects.of_case(case))
        detail = f"{case.case.key}: {len(case.repeats)} fresh processes measured {format_change(change)}"
        if missing := self.missing_evidence(case):
            detail += f"; {missing}"
        disturbed = "; ".join(dict.fromkeys(doubt for repeat in case.repeats for doubt in repeat.doubts))
        if disturbed:
            detail += f"; the GPU was disturbed: {disturbed}; run it again"
        return self.leave_inconclusive(case, Reason.DISTURBED if disturbed else Reason.NOISY, detail)

    def call_slower(self, case: PendingCase) -> PendingCase:
        """Close a case that is slower, with the likely cause.

        A disturbed GPU may explain a difference from stored runs. It disturbs both kernels of a pair alike.
        """
        key = case.case.key
        disturbed = f"the GPU was disturbed: {'; '.join(case.problems)}" if case.problems else ""
        is_paired = isinstance(case.deciding, PairedComparison)
        if disturbed and not is_paired:
            detail = f"{key} looks slower, but {disturbed}; run it again"
            return self.leave_inconclusive(case, Reason.DISTURBED, detail)
        if isinstance(case.comparison, PublishedComparison):
            return self.finish(case, Reason.BELOW_PUBLISHED)
        if not self._is_same_code(case):
            suite_slower = self._effects.of_case(case).slower
            return self.finish(
                case,
                Reason.SUITE_SLOWER if suite_slower else Reason.SLOWER,
                f"{key}: {disturbed}; both kernels were disturbed alike" if disturbed else "",
            )
        if is_paired:
            same = "it and the baseline kernel are of one commit, without changes"
            cause = "; ".join(case.problems) or "the GPU, or a file that git does not track"
        else:
            same = "its compiled code and launch are those of the baseline"
            cause = self.changed_environment(case)
            cause = cause or "the driver, the GPU, its clocks, or what the launcher does besides the kernel"
        return self.leave_inconclusive(
            case, Reason.ENVIRONMENT, f"{key}: {same}, so something else made it slower: {cause}"
        )

    def _clear(self, case: PendingCase) -> PendingCase:
        """Close a case that is not slower, unless a disturbance or the environment may hide a slowdown."""
        key = case.case.key
        change = self._both_slower(case)
        if change is None and self._rests_on_disturbed_workload(case):
            disturbed = "; ".join(case.problems)
            detail = (
                f"{key}: only the reference workload explains its time, and the GPU was disturbed: "
                f"{disturbed}; run it again"
            )
            return self.leave_inconclusive(case, Reason.DISTURBED, detail)
        if change is None:
            return self.finish(case, Reason.WITHIN_MARGIN)
        if changes := self.changed_environment(case):
            shared = f"({changes}); {_record_again(case)}"
        else:
            shared = (
                "(a file that git does not track or that is opened relative to the working folder, the GPU)"
            )
        detail = (
            f"{key} is {format_change(change)} against its baseline, and so is the baseline kernel of "
            f"{case.revision}: something that both share {shared}"
        )
        return self.leave_inconclusive(case, Reason.ENVIRONMENT, detail, change=change)

    def _rests_on_disturbed_workload(self, case: PendingCase) -> bool:
        """Say whether, on a disturbed GPU, the unadjusted times would not have cleared a case."""
        comparison = case.deciding
        if not isinstance(comparison, StoredComparison) or not any(repeat.doubts for repeat in case.repeats):
            return False
        estimate = comparison.unadjusted().estimate(case.repeats)
        return estimate.decide(comparison.rule, self._multiplicity.total) is not Decision.CLEAR

    def _both_slower(self, case: PendingCase) -> float | None:
        """Return the change against stored runs if current and baseline kernel are slower beyond chance."""
        if case.paired is None or not isinstance(case.comparison, StoredComparison):
            return None
        comparison, effect, rule = case.comparison, self._effects.of_case(case), self._context.settings.rule
        current = [repeat.median_us for repeat in case.repeats]
        baseline = [us for repeat in case.repeats if (us := repeat.interleaved_median_us)]
        if not baseline:
            return None
        estimates = [
            comparison.estimate_of_times(times_us, case.screening, effect) for times_us in (current, baseline)
        ]
        if not all(estimate.is_beyond_chance(rule, self._multiplicity.total) for estimate in estimates):
            return None
        return math.expm1(estimates[0].difference)

    def _change(self, case: PendingCase) -> float | None:
        """Return the change to show: that of the fresh processes, if there are any."""
        if not case.repeats:
            return case.judgement.change
        comparison, effect = case.deciding, self._effects.of_case(case)
        return comparison.change(case.repeats, effect) if comparison is not None else None

    def _smallest_visible(self, case: PendingCase) -> str:
        comparison = case.deciding
        if comparison is None:
            return ""
        visible = comparison.smallest_visible(
            case.repeats or [case.screening], self._effects.of_case(case), self._multiplicity.of(comparison)
        )
        return f"; only a slowdown of {visible:.1%} could have been seen for certain"

    # -- what is known of the code and the environment ------------------------------------------------

    def _is_same_code(self, case: PendingCase) -> bool:
        """Say whether no change of code can have made a case slower.

        Against stored runs, compiled code and launch have to be theirs. A launcher does more than launch: in
        a pair the checkout has to be the baseline kernel's commit, and no other compiled code known.
        """
        recorded = case.stored.fingerprint if case.stored is not None else ""
        if isinstance(case.deciding, PairedComparison):
            at_revision = self._context.checkout.is_at(case.deciding.revision)
            return at_revision and recorded in ("", fingerprint_of(case.case))
        return bool(recorded) and fingerprint_of(case.case) == recorded

    def changed_environment(self, case: PendingCase) -> str:
        """Say how the environment differs from the baseline's; empty if it does not."""
        if case.stored is None:
            return ""
        return "; ".join(environment_changes(case.stored.environment, self._context.gpu.timer.environment()))

    def missing_evidence(self, case: PendingCase) -> str:
        """Say what would have let fresh processes decide, and how to get it; empty if nothing is missing."""
        commit, missing = case.stored_commit, []
        if not isinstance(case.comparison, StoredComparison) or case.paired is not None:
            return ""
        if commit.endswith("+"):
            missing.append(
                f"it was recorded from uncommitted changes of {commit[:-1]}, so git has no baseline kernel: "
                "commit, then record it again"
            )
        elif commit and not self._context.checkout.has_commit(commit):
            missing.append(f"git lacks {commit}, the commit of the baseline kernel: git fetch --unshallow")
        if changes := self.changed_environment(case):
            missing.append(f"changed since it was recorded: {changes}; {_record_again(case)}")
        if not missing:
            if not commit:
                missing.append("it was recorded outside of git, so there is no baseline kernel")
            if (sessions := case.comparison.selected.sessions) < STEADY_SESSIONS:
                plural = "s" if sessions > 1 else ""
                missing.append(f"its baseline has {sessions} session{plural}: record more")
        return "; ".join(missing)


def fingerprint_of(case: SpeedCase) -> str:
    """Return the digest of a case's compiled code and launches; empty where it is not known."""
    if case.fingerprint is None:
        return ""
    try:
        return case.fingerprint()
    except Exception:  # noqa: BLE001 - no compiler, or code that the gate `compile` reports
        return ""


def unless_noisy(judgement: Judgement, key: str, measurements: Sequence[Measurement]) -> Judgement:
    """Return `judgement`; as inconclusive if it passes by medians of samples that spread too much."""
    spread = max(measurement.relative_spread for measurement in measurements)
    if judgement.verdict not in (Verdict.PASS, Verdict.IMPROVEMENT) or spread <= NOISE_LIMIT:
        return judgement
    doubts = dict.fromkeys(doubt for measurement in measurements for doubt in measurement.doubts)
    disturbed = f"; the GPU was disturbed: {'; '.join(doubts)}" if doubts else ""
    detail = f"{key}: the samples spread by {spread:.0%}, so their median does not tell its speed{disturbed}"
    return replace(judgement, reason=Reason.NOISY, detail=detail)


def strict_failure(key: str, judgement: Judgement, *, strict: bool) -> str | None:
    """Return the failure of a verdict that decides nothing, if `--perf-strict` asks for one."""
    if strict and judgement.verdict in UNDECIDED:
        return f"{key}: {judgement.verdict} ({judgement.reason}): {judgement.detail} [--perf-strict]"
    return None


def _failed(case: PendingCase, error: MeasurementFailed) -> PendingCase:
    detail = str(error).partition("\n")[0]
    return case.closed(Judgement(reason=error.reason, detail=detail), failure=str(error))


def _lacks_revision(evidence: Measurement | MeasurementFailed | None) -> bool:
    """Say whether a fresh process had no baseline kernel to interleave with."""
    if isinstance(evidence, Measurement):
        return bool(evidence.reference_workload) or not evidence.best.interleaved_us
    return evidence is not None and evidence.reason is Reason.NOT_IN_REVISION


def _has_same_workload(case: PendingCase, evidence: Measurement) -> bool:
    """Say whether the reference workload, where it adjusts times, is that of the screening."""
    adjusts = isinstance(case.deciding, StoredComparison) and case.deciding.slope > 0
    return not adjusts or evidence.reference_workload == case.screening.reference_workload


def _record_again(case: PendingCase) -> str:
    return f"record it again: pytest {shlex.quote(case.case.nodeid)} --update-baselines --reason TEXT"
