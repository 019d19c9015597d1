"""The second half of the gate `speed`: measure pending cases again in fresh processes, and decide them.

`SpeedSuite` holds what the cases of a process share. `session_effects.py` estimates what a session does to
all of them, `judging.py` judges one case by its evidence, `recorded_cases.py` does what `--update-baselines`
adds.
"""

from __future__ import annotations

import math
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from pytest_cutile.quantities import format_change
from pytest_cutile.reports.failures import regression_message
from pytest_cutile.speed.case import SpeedCase, SpeedOutcome
from pytest_cutile.speed.comparisons import Comparison
from pytest_cutile.speed.context import SpeedContext
from pytest_cutile.speed.judging import CaseJudge, Multiplicity, strict_failure
from pytest_cutile.speed.measure.blocks import MeasurementFailed
from pytest_cutile.speed.measure.timing import Measurement
from pytest_cutile.speed.pending import PendingCase, Stratum
from pytest_cutile.speed.recorded_cases import RecordedCases
from pytest_cutile.speed.session_effects import SessionEffects
from pytest_cutile.verdicts import Judgement, Reason, Verdict

SENTINELS = 2
"""Cases of a stratum with a large session effect that are paired with their baseline kernels, for all."""

Measured: TypeAlias = Mapping[str, "Measurement | MeasurementFailed"]

MeasureAgain: TypeAlias = Callable[[Sequence[PendingCase], str], Measured]
"""Measures cases once, all in one fresh process, by key; what is missing was lost with the process.

The second argument is the commit whose kernels are interleaved with theirs; empty for the reference workload.
"""


class SpeedSuite:
    """All cases that this process compared, and the one owner of those whose verdict is pending."""

    def __init__(self, context: SpeedContext) -> None:
        self._context = context
        self.multiplicity = Multiplicity()
        self.effects = SessionEffects(context)
        self._judge = CaseJudge(context, self.effects, self.multiplicity)
        self._recorded = RecordedCases(context, self._judge, self.effects, self.multiplicity)
        self._cases: dict[int, PendingCase] = {}
        self._waiting: list[int] = []
        self.remarks: list[str] = []
        """What was subtracted from the cases of a stratum, and what was not recorded; for people."""

    @property
    def pending(self) -> list[PendingCase]:
        """The cases whose tests wait for an outcome."""
        return self._current(self._waiting)

    def current(self, number: int) -> PendingCase:
        """Return what is known of the case that was added as `number`."""
        return self._cases[number]

    def add(
        self,
        case: SpeedCase,
        comparison: Comparison | None,
        judgement: Judgement,
        measurement: Measurement,
        *,
        is_pending: bool,
        records: bool,
    ) -> None:
        if comparison is not None:
            self.multiplicity.compared += 1
        self.effects.add(case.key, comparison, measurement)
        if is_pending:
            pending = PendingCase(
                number=len(self._cases),
                case=case,
                comparison=comparison,
                judgement=judgement,
                screening=measurement,
                records=records,
            )
            self._cases[pending.number] = pending
            self._waiting.append(pending.number)

    def mark_failed(self, numbers: Iterable[int]) -> None:
        """Mark cases whose tests failed for reasons of their own."""
        self._update(replace(self._cases[number], test_failed=True) for number in numbers)

    def _current(self, numbers: Iterable[int]) -> list[PendingCase]:
        return [self._cases[number] for number in numbers]

    def _update(self, cases: Iterable[PendingCase]) -> None:
        self._cases |= {case.number: case for case in cases}

    # -- deciding -------------------------------------------------------------------------------------

    def settle(self, measure_again: MeasureAgain) -> None:
        """Decide every pending case, measuring again as often as it takes; each then has an outcome.

        A case that is to be recorded on a GPU without runs of its own may need the baseline kernel to tell
        the GPU from the code. A second case, its gate view, is then judged as without `--update-baselines`.
        """
        self.effects.estimate(self.pending)
        recorded = [case.number for case in self.pending if case.records]
        compared = [case.number for case in self.pending if not case.records]
        self._confirm(recorded, measure_again)
        views: dict[int, int] = {}
        for case in self._current(recorded):
            if self._recorded.needs_gate_view(case):
                views[case.number] = len(self._cases)
                self._update([case.without_recording(len(self._cases))])
        suspects = [case.number for case in self._current(compared) if self._judge.is_suspect(case)]
        suspects += [
            view for number, view in views.items() if self._recorded.looks_slower(self._cases[number])
        ]
        others = [number for number in (*compared, *views.values()) if number not in suspects]
        sentinels = self._decide(suspects, others, measure_again)
        self._reopen(
            [
                view
                for number, view in views.items()
                if self._recorded.is_undecided(self._cases[number], self._cases[view])
            ],
            measure_again,
        )
        for number, view in views.items():
            case, gate_view = self._cases[number], self._cases[view]
            explained = view not in suspects and bool(sentinels.get(gate_view.stratum))
            self._update([self._recorded.judge_with(case, gate_view, stratum_explained=explained)])
        for stratum in self.effects.strata:
            cleared = [
                case.case.key
                for case in self._current(sentinels.get(stratum, ()))
                if case.judgement.reason is Reason.WITHIN_MARGIN
            ]
            self._remark(self.effects.remark(stratum, cleared))
        if self._context.settings.update_baselines:
            updated, remark = self._recorded.record(self.pending)
            self._update(updated)
            self._remark(remark)
        for case in self.pending:
            self._update([self._with_failure(case)])
        self._waiting.clear()

    def _remark(self, text: str) -> None:
        self.remarks += [text] if text else []

    def _decide(
        self, suspects: Sequence[int], others: Sequence[int], measure_again: MeasureAgain
    ) -> dict[Stratum, list[int]]:
        """Decide suspects, and cases that are as slow as their stratum; return the paired sentinel cases."""
        strata: dict[Stratum, list[int]] = defaultdict(list)
        for case in self._current(others):
            strata[case.stratum].append(case.number)
        self._pair(suspects)
        sentinels = {stratum: self._choose_sentinels(stratum, numbers) for stratum, numbers in strata.items()}
        self._confirm(
            [*suspects, *(number for chosen in sentinels.values() for number in chosen)], measure_again
        )
        unexplained: list[int] = []
        for stratum, numbers in strata.items():
            rest = [number for number in numbers if self._cases[number].outcome is None]
            if not self._explain(stratum, rest, sentinels[stratum]):
                unexplained += rest
        self._pair(unexplained)
        self._confirm(unexplained, measure_again)
        return {
            stratum: [case.number for case in self._current(chosen) if case.paired is not None]
            for stratum, chosen in sentinels.items()
        }

    def _pair(self, numbers: Iterable[int]) -> None:
        self._update([self._judge.pair(case) for case in self._current(numbers)])

    def _reopen(self, numbers: Sequence[int], measure_again: MeasureAgain) -> None:
        """Measure cases that were decided without their baseline kernels interleaved with them."""
        self._update([replace(case, outcome=None) for case in self._current(numbers)])
        self._pair(numbers)
        self._confirm(numbers, measure_again)

    def _confirm(self, numbers: Sequence[int], measure_again: MeasureAgain) -> None:
        """Measure cases in fresh processes until they are decided."""
        rule = self._context.settings.rule
        live = self._current(numbers)
        self.multiplicity.suspects += len(live)
        last = rule.runs_per_session - 1 if any(case.records for case in live) else rule.looks[-1]
        for number in range(1, last + 1):
            if not live:
                break
            self._context.progress(f"measuring {len(live)} cases again in a fresh process ({number}/{last})")
            measured: dict[str, Measurement | MeasurementFailed] = {}
            with self._context.gpu.lock.alone():
                for revision in sorted({case.revision for case in live}):
                    cases = [case for case in live if case.revision == revision]
                    measured |= measure_again(cases, revision)
            self._update([self._judge.add(case, measured.get(case.case.key)) for case in live])
            live = [case for case in self._current(numbers) if case.outcome is None]
        for case in live:
            self._update([self._recorded.judge(case) if case.records else self._judge.leave_undecided(case)])

    def _choose_sentinels(self, stratum: Stratum, numbers: Iterable[int]) -> list[int]:
        """Pair the cases nearest to a large session effect with their baseline kernels, and return them."""
        effect = self.effects.of(stratum)
        if effect.removed <= self._context.settings.rule.least:
            return []

        def distance(case: PendingCase) -> float:
            comparison = case.comparison
            return abs(comparison.estimate([case.screening], effect).difference) if comparison else math.inf

        candidates = [
            case
            for case in self._current(numbers)
            if case.comparison is not None and self._judge.has_baseline_kernel(case)
        ]
        chosen = [case.number for case in sorted(candidates, key=distance)[:SENTINELS]]
        self._pair(chosen)
        return chosen

    def _explain(self, stratum: Stratum, rest: Iterable[int], sentinels: Sequence[int]) -> bool:
        """Close the rest of a stratum by what its sentinel cases showed; return False if they are slower."""
        effect = self.effects.of(stratum)
        reasons = {case.judgement.reason for case in self._current(sentinels) if case.paired is not None}
        if reasons - {Reason.WITHIN_MARGIN}:
            if reasons == {Reason.SLOWER}:
                self.effects.attribute_to_code(stratum)
                self._update(
                    case.closed(replace(case.judgement, reason=Reason.SUITE_SLOWER))
                    for case in self._current(sentinels)
                )
            return False
        for case in self._current(rest):
            if reasons or effect.removed <= self._context.settings.rule.limit:
                self._update([self._judge.finish(case, Reason.WITHIN_MARGIN)])
                continue
            shift = format_change(math.expm1(effect.removed))
            detail = (
                f"{case.case.key} is no slower than the other cases limited by {stratum.bound}, which are "
                f"{shift} in the median: the GPU, today's session, or something that they share. Their "
                f"baseline kernels cannot be measured: {self._judge.missing_evidence(case)}"
            )
            self._update([self._judge.leave_inconclusive(case, Reason.ENVIRONMENT, detail)])
        return True

    # -- ending early ---------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """Fail all pending cases after an unexpected error: none of them may pass."""
        shown = ""
        for case in self.pending:
            if case.decided.failure is not None:
                continue
            detail = f"{case.case.key} could not be decided: {type(error).__name__}: {error}"
            trace = shown or "".join(traceback.format_exception(error))
            shown = f"{self.pending[0].case.key} has the traceback"
            failure = "\n\n".join(filter(None, (detail, trace, case.decided.note)))
            judgement = Judgement(reason=Reason.NOT_TIMED, detail=detail)
            self._update([replace(case, outcome=replace(case.decided, judgement=judgement, failure=failure))])
        self._waiting.clear()

    def give_up(self) -> None:
        """Leave pending cases undecided, and record nothing: the run was stopped."""
        if unrecorded := sum(case.records for case in self.pending):
            plural = "s" if unrecorded > 1 else ""
            self.remarks.append(f"{unrecorded} case{plural} not recorded: the run was stopped")
        for case in self.pending:
            key, strict = case.case.key, self._context.settings.strict
            if case.outcome is None:
                if case.judgement.verdict is Verdict.INCONCLUSIVE:
                    judgement = case.judgement
                    case = self._judge.leave_inconclusive(case, judgement.reason, judgement.detail)  # noqa: PLW2901
                failure = strict_failure(key, case.judgement, strict=strict)
                self._update([_with_outcome(case, failure=failure)])
            elif case.judgement.verdict is Verdict.REGRESSION and not (
                case.outcome.failure or case.outcome.note
            ):
                failure = f"{key} is slower than its baseline; the run was stopped before more was said"
                self._update([_with_outcome(case, failure=failure)])
        self._waiting.clear()

    # -- messages -------------------------------------------------------------------------------------

    def _with_failure(self, case: PendingCase) -> PendingCase:
        """Return a decided case with the message that fails its test, if it is slower or was not recorded."""
        outcome, key = case.decided, case.case.key
        if outcome.failure is not None or case.is_recorded:
            return replace(case, outcome=outcome)
        judged = case.gate_view or case
        if outcome.judgement.verdict is Verdict.REGRESSION and judged.deciding is not None:
            failure: str | None = self._regression(judged, judged.deciding)
        else:
            failure = strict_failure(key, outcome.judgement, strict=self._context.settings.strict)
        if failure is not None and outcome.note:
            failure += f"\n\n{outcome.note}"
        elif outcome.note and not case.test_failed:
            failure = outcome.note
        return _with_outcome(case, failure=failure)

    def _regression(self, case: PendingCase, comparison: Comparison) -> str:
        context, settings = self._context, self._context.settings
        return regression_message(
            key=case.case.key,
            nodeid=case.case.nodeid,
            shown=case.shown,
            measurements=case.measurements,
            judgement=case.judgement,
            comparison=comparison,
            environment=context.gpu.timer.environment(),
            baseline_file="" if settings.baseline_revision is not None else context.speed_baselines_name,
            effect=self.effects.of_case(case),
            seen=case.problems,
            baseline_option=settings.baseline_option,
            names_gpu=settings.xdist_worker,
        )


def _with_outcome(case: PendingCase, *, failure: str | None) -> PendingCase:
    outcome: SpeedOutcome = replace(case.decided, failure=failure)
    return replace(case, outcome=outcome)
