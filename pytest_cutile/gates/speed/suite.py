"""The second half of the gate `speed`: measure pending cases again in fresh processes, and decide them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, TypeAlias

from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.gates.messages import regression_message
from pytest_cutile.gates.speed.comparison import Comparison, Paired
from pytest_cutile.gates.speed.judge import judge
from pytest_cutile.gates.speed.pending import PendingCase
from pytest_cutile.gates.speed.record import record
from pytest_cutile.gates.speed.rule import Decision, Estimate, Rule, decide
from pytest_cutile.timing.measure.call import MeasurementFailed
from pytest_cutile.words.quantities import counted
from pytest_cutile.words.timing import Measurement, Regime
from pytest_cutile.words.verdicts import Judgement, Reason, Verdict, strict_failure

if TYPE_CHECKING:
    from pytest_cutile.gates.session import Session
    from pytest_cutile.gates.speed.case import SpeedCase

MeasuredCases: TypeAlias = Mapping[str, "Measurement | MeasurementFailed"]
MeasureAgain: TypeAlias = Callable[[Sequence[PendingCase], int], Sequence[MeasuredCases]]
"""Measures the `request` of each case once in each of so many fresh processes; returns what each process
measured, by key. What is missing was lost with the process."""


class SpeedSuite:
    """The cases of this process that wait for an outcome."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.pending: list[PendingCase] = []
        """The cases whose tests wait for an outcome."""
        self.remarks: list[str] = []
        """What was not recorded; for people."""

    def add(
        self, case: SpeedCase, comparison: Comparison | None, judgement: Judgement, screening: Measurement
    ) -> None:
        records = self._session.settings.update_baselines
        if comparison is None or (records and judgement.reason is Reason.WITHIN_MARGIN):
            regimes: tuple[Regime, ...] = ()  # nothing is to be decided: today's kernel alone is measured
        elif records:
            regimes = tuple(comparison.regimes(screening))
        else:
            regimes = comparison.suspects(screening)
        self.pending.append(
            PendingCase(
                case=case,
                comparison=comparison,
                judgement=judgement,
                screening=screening,
                records=records,
                regimes=regimes,
                # Where nothing is to be decided, nothing selected the case: the first measurement counts.
                repeats=[screening] if records and not regimes else [],
            )
        )

    # -- deciding -------------------------------------------------------------------------------------

    def settle(
        self,
        measure_again: MeasureAgain,
        *,
        comparisons_of_run: Callable[[int], int] = lambda own: own,
        after_look: Callable[[], None] = lambda: None,
    ) -> None:
        """Decide every pending case, measuring again as often as it takes; each then has an outcome.

        Args:
            measure_again: measures in fresh processes.
            comparisons_of_run: returns how many comparisons all processes of the run make, given the number
                of this one. Each process corrects for all of them, but applies Holm's procedure to its own
                comparisons alone, which errs on the safe side.
            after_look: called after a look, which may have decided some of the pending cases.
        """
        rule, records = Rule.of(self._session.settings), self._session.settings.update_baselines
        n_comparisons = comparisons_of_run(sum(len(case.regimes) for case in self.pending))
        live = self.pending
        for done, look in pairwise((0, *rule.looks)):
            if not live:
                break
            what = counted(len(live), "case")
            self._session.progress(f"measuring {what} again in fresh processes {done + 1} to {look}")
            asked = {case: case.next_regimes for case in live}
            # In the first look, the screening counts for some.
            for measured, cases in groupby(sorted(live, key=_processes), key=_processes):
                _measure([*cases], look - measured, measure_again)
            _decide(asked, rule, n_comparisons)
            live = [case for case in self.pending if _gains_by_more_processes(case)]
            if not records:  # all cases are recorded together, in the end
                self._conclude([case for case in self.pending if not _gains_by_more_processes(case)])
                after_look()
        self._conclude(self.pending)

    def _conclude(self, cases: Sequence[PendingCase]) -> None:
        """Judge cases that no more fresh processes are asked about; their tests need not wait any more."""
        for case in cases:
            if case.outcome is None:
                case.close(judge(case))
        if self._session.settings.update_baselines:
            self._record()
        for case in cases:
            if case.so_far.judgement.verdict is Verdict.REGRESSION and case.comparison is not None:
                changes = tuple(_compiled_otherwise(case.case, case.comparison))
                case.outcome = replace(case.so_far, code_changes=changes)
            case.outcome = replace(case.so_far, failure=self._failure(case))
        self.pending = [case for case in self.pending if case not in cases]

    def _record(self) -> None:
        cases = [
            case for case in self.pending if case.records and not case.test_failed and _is_measured(case)
        ]
        try:
            remark = record(self._session, cases)
        except BaselineError as error:
            for case in cases:
                case.close(Judgement(reason=Reason.BAD_BASELINE, detail=str(error)), failure=str(error))
            return
        self.remarks += [remark] if remark else []
        for case in self.pending:
            if case.test_failed:
                case.add_note("not recorded: its test failed")

    # -- ending early ---------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """Fail all pending cases after an unexpected error: none of them may pass."""
        shown = ""
        for case in self.pending:
            if case.so_far.failure is not None:
                continue
            detail = f"{case.case.key} could not be decided: {type(error).__name__}: {error}"
            trace = shown or "".join(traceback.format_exception(error))
            shown = f"{self.pending[0].case.key} has the traceback"
            failure = "\n\n".join(filter(None, (detail, trace, case.so_far.note)))
            judgement = Judgement(reason=Reason.NOT_TIMED, detail=detail)
            case.outcome = replace(case.so_far, judgement=judgement, failure=failure)
        self.pending = []

    def give_up(self) -> None:
        """Leave pending cases undecided, and record nothing: the run was stopped."""
        if unrecorded := sum(case.records for case in self.pending):
            self.remarks.append(f"{counted(unrecorded, 'case')} not recorded: the run was stopped")
        strict = self._session.settings.strict
        for case in self.pending:
            judgement = case.so_far.judgement
            failure = strict_failure(case.case.key, judgement, strict=strict)
            if judgement.verdict is Verdict.REGRESSION:
                failure = (
                    f"{case.case.key} is slower than its baseline; the run was stopped before more was said"
                )
            case.outcome = replace(case.so_far, failure=case.so_far.failure or failure)
        self.pending = []

    # -- messages -------------------------------------------------------------------------------------

    def _failure(self, case: PendingCase) -> str | None:
        """Return the message that fails the test of a decided case: it is slower, or was not recorded."""
        outcome = case.so_far
        if outcome.failure is not None or case.is_recorded:
            return outcome.failure
        if outcome.judgement.verdict is Verdict.REGRESSION and case.comparison is not None:
            failure: str | None = self._regression(case, case.comparison)
        else:
            failure = strict_failure(case.case.key, outcome.judgement, strict=self._session.settings.strict)
        if failure is not None and outcome.note:
            return f"{failure}\n\n{outcome.note}"
        return failure or (None if case.test_failed else outcome.note)

    def _regression(self, case: PendingCase, comparison: Comparison) -> str:
        session, settings = self._session, self._session.settings
        return regression_message(
            case=case,
            comparison=comparison,
            baseline_file="" if settings.baseline_revision is not None else session.speed_baselines_name,
            names_gpu=settings.xdist_worker,
            compiled_otherwise=case.so_far.code_changes,
        )


def _processes(case: PendingCase) -> int:
    return len(case.repeats)


def _measure(live: Sequence[PendingCase], processes: int, measure_again: MeasureAgain) -> None:
    for measured in measure_again(live, processes):
        for case in live:
            if case.outcome is not None:
                continue
            result = measured.get(case.case.key)
            if isinstance(result, Measurement):
                case.repeats.append(result)
            else:
                lost = f"{case.case.key}: the fresh process that was to measure it again ended before it did"
                case.fail(result or MeasurementFailed(Reason.NOT_TIMED, lost))


def _decide(asked: Mapping[PendingCase, Sequence[Regime]], rule: Rule, n_comparisons: int) -> None:
    """Decide what the evidence decides in the regimes that were asked: pairs together, stored times alone."""
    estimates: dict[tuple[PendingCase, Regime], Estimate] = {}
    for case, regimes in asked.items():
        comparison = case.comparison
        if comparison is None or case.outcome is not None:
            continue
        for regime in regimes:
            estimated = comparison.estimate(case.repeats, regime)
            if estimated is None:
                case.decisions[regime] = comparison.decide(case.repeats, regime)
            elif sum(regime in comparison.log_ratios(one) for one in case.repeats) >= rule.looks[0]:
                estimates[case, regime] = estimated
    for (case, regime), decision in decide(estimates, rule, n_comparisons=n_comparisons).items():
        if decision is not Decision.UNDECIDED:
            case.decisions[regime] = decision


def _gains_by_more_processes(case: PendingCase) -> bool:
    """Say whether further fresh processes may decide a case that the first look has left open.

    Only pairs with a baseline kernel get more certain with each process. All other cases are judged by the
    processes of the first look.
    """
    return isinstance(case.comparison, Paired) and bool(case.open_regimes)


def _compiled_otherwise(case: SpeedCase, comparison: Comparison) -> Sequence[str]:
    """Return what the compiler made otherwise than in the baseline's commit, or why nobody knows."""
    if not isinstance(comparison, Paired):
        return ()
    try:
        return case.compiled_otherwise(comparison.revision)
    except Exception as error:  # noqa: BLE001 - an explanation that fails must not hide what it explains
        return [f"unknown: {type(error).__name__}: {error}".partition("\n")[0]]


def _is_measured(case: PendingCase) -> bool:
    return case.outcome is not None and case.outcome.failure is None
