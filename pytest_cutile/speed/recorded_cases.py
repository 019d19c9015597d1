"""Cases that are to be recorded: judged as the gate judges them, then recorded if they may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.speed.context import SpeedContext
from pytest_cutile.speed.decide import NO_SESSION_EFFECT, Decision, Estimate, SessionEffect
from pytest_cutile.speed.judging import CaseJudge, Multiplicity, fingerprint_of
from pytest_cutile.speed.pending import PendingCase
from pytest_cutile.speed.recording import Note, Recording, record
from pytest_cutile.speed.recording_rules import Evidence
from pytest_cutile.speed.session_effects import SessionEffects
from pytest_cutile.verdicts import Judgement, Reason, Verdict


class RecordedCases:
    """What `--update-baselines` does with cases besides measuring them. Cases are replaced, never changed."""

    def __init__(
        self, context: SpeedContext, judge: CaseJudge, effects: SessionEffects, multiplicity: Multiplicity
    ) -> None:
        self._context = context
        self._judge = judge
        self._effects = effects
        self._multiplicity = multiplicity

    def judge(self, case: PendingCase) -> PendingCase:
        """Close a case that is to be recorded. None was selected, so the screening counts as well."""
        comparison, effect = case.comparison, self._effects.of_case(case)
        if comparison is None:
            return case.closed(case.judgement)
        decision = comparison.decide(case.measurements, effect, self._multiplicity.total)
        if decision is Decision.SLOWER:
            return self._judge.call_slower(case)
        if decision is not Decision.CLEAR:
            return self._judge.leave_undecided(case)
        is_faster = comparison.estimate(case.measurements, effect).is_faster(comparison.rule)
        return self._judge.finish(case, Reason.FASTER if is_faster else Reason.WITHIN_MARGIN)

    def needs_gate_view(self, case: PendingCase) -> bool:
        """Say whether the baseline kernel has to tell the GPU from the code.

        On a GPU that the entry has no runs of, the GPU may make a case slower, alone or with its stratum, and
        the difference between GPUs hides what other code costs.
        """
        if not case.on_other_gpu or not case.is_measured:
            return False
        effect = self._effects.of_case(case)
        return (
            effect.removed > self._context.settings.rule.least
            or self.looks_slower(case)
            or self._is_hidden(case)
        )

    def is_undecided(self, case: PendingCase, gate_view: PendingCase) -> bool:
        """Say whether the baseline kernel still has to be measured, although nothing looks slower."""
        return gate_view.is_measured and not gate_view.repeats and self._is_hidden(case)

    def _is_hidden(self, case: PendingCase) -> bool:
        """Say whether the difference between GPUs hides what other code costs, and git has its baseline."""
        undecided = case.judgement.verdict is Verdict.INCONCLUSIVE
        return undecided and not self._is_same_code(case) and self._judge.has_baseline_kernel(case)

    def looks_slower(self, case: PendingCase) -> bool:
        """Say whether a case, compared with other GPUs' runs, may be slower."""
        if case.judgement.reason in (Reason.SLOWER, Reason.SUITE_SLOWER, Reason.ENVIRONMENT):
            return True
        estimate = self._estimate(case, self._effects.of_case(case))
        return estimate is not None and estimate.is_suspect(self._context.settings.rule, other_gpu=True)

    def judge_with(
        self, case: PendingCase, gate_view: PendingCase, *, stratum_explained: bool
    ) -> PendingCase:
        """Close a case that is to be recorded by what the gate found out about it."""
        case = self.judge(case)  # the session effect may have been attributed to the code meanwhile
        if gate_view.outcome is not None and gate_view.outcome.failure is not None:
            return case.closed(gate_view.judgement, failure=gate_view.outcome.failure)
        if gate_view.paired is not None:
            return self._judge_paired(case, gate_view)
        if not stratum_explained and not self._is_known_code(case):
            detail = (
                f"{case.case.key} is slower than on the GPUs of its baseline, or all of its stratum are, and "
                f"nothing tells the GPU from the code: {self._judge.missing_evidence(case)}"
            )
            return self._judge.leave_inconclusive(case, Reason.ENVIRONMENT, detail)
        return case

    def _judge_paired(self, case: PendingCase, gate_view: PendingCase) -> PendingCase:
        paired = gate_view.paired
        if paired is None:
            return case
        decision = paired.decide(
            gate_view.repeats, self._effects.of_case(case), self._multiplicity.of(paired)
        )
        is_clear = decision is Decision.CLEAR
        case = replace(case, code_is_no_slower=is_clear, change_of_code=paired.change(gate_view.repeats))
        if not is_clear:
            return replace(case.closed(gate_view.judgement), gate_view=gate_view)
        if case.judgement.verdict not in (Verdict.PASS, Verdict.IMPROVEMENT):
            return case.closed(replace(gate_view.judgement, change=case.judgement.change))
        return case

    def _is_known_code(self, case: PendingCase) -> bool:
        """Say whether the code of a case is known to be that of its baseline, or another."""
        recorded, current = self._fingerprints(case)
        return bool(recorded and current) or self._is_at_stored_commit(case)

    def _is_same_code(self, case: PendingCase) -> bool:
        """Say whether the code of a case is known to be that of its baseline."""
        recorded, current = self._fingerprints(case)
        return recorded == current if recorded and current else self._is_at_stored_commit(case)

    @staticmethod
    def _fingerprints(case: PendingCase) -> tuple[str, str]:
        """Return the fingerprints of the baseline's and the current code; empty where not known."""
        return case.stored.fingerprint if case.stored is not None else "", fingerprint_of(case.case)

    def _is_at_stored_commit(self, case: PendingCase) -> bool:
        return bool(case.stored_commit) and self._context.checkout.is_at(case.stored_commit)

    @staticmethod
    def _estimate(case: PendingCase, effect: SessionEffect) -> Estimate | None:
        return case.comparison.estimate(case.measurements, effect) if case.comparison is not None else None

    def _change(self, case: PendingCase) -> float:
        """Return by what fraction a case is slower.

        That of its code, if the baseline kernel was measured in the baseline's environment.
        """
        if (
            case.code_is_no_slower
            and case.change_of_code is not None
            and not self._judge.changed_environment(case)
        ):
            return case.change_of_code
        if case.comparison is None:
            return 0.0
        return case.comparison.change(case.measurements, self._effect_of_other_gpu(case))

    def _effect_of_other_gpu(self, case: PendingCase) -> SessionEffect:
        """Return what is no step of a case where small steps are counted: what another GPU adds.

        A step that the whole stratum shares on its own GPU may be the code, so it counts in full.
        """
        return self._effects.of_case(case) if case.on_other_gpu else NO_SESSION_EFFECT

    def _evidence(self, case: PendingCase) -> Evidence:
        low_clocks = (measurement.low_clock for measurement in case.measurements)
        return Evidence(
            judgement=case.judgement,
            estimate=self._estimate(case, self._effect_of_other_gpu(case)),
            judged_against=case.stored,
            change=self._change(case),
            code_is_no_slower=case.code_is_no_slower,
            low_clock=next((clock for clock in low_clocks if clock), ""),
            lacks_workload=not all(measurement.reference_workload for measurement in case.measurements),
        )

    def record(self, pending: Sequence[PendingCase]) -> tuple[list[PendingCase], str]:
        """Record what may be recorded, all in one go; return the cases with notes, and a remark."""
        recordings = [
            Recording(
                key=case.case.key,
                work=case.case.work,
                measurements=case.measurements,
                fingerprint=fingerprint_of(case.case),
                evidence=self._evidence(case),
            )
            for case in pending
            if case.records and not case.test_failed and case.is_measured
        ]
        try:
            notes = record(self._context, recordings)
        except BaselineError as error:
            judgement = Judgement(reason=Reason.BAD_BASELINE, detail=str(error))
            failed = [case.closed(judgement, failure=str(error)) for case in pending if case.is_measured]
            return failed, ""
        remark = ""
        if any(note.uncommitted for note in notes.values()):
            commit = self._context.checkout.commit.removesuffix("+")
            remark = (
                f"warning: recorded from uncommitted changes of {commit}: no later run can measure the "
                "baseline kernel; commit it, then record it again"
            )
        return [_with_note(case, notes.get(case.case.key)) for case in pending], remark


def _with_note(case: PendingCase, note: Note | None) -> PendingCase:
    if case.test_failed and case.outcome is not None:
        note = Note(text="not recorded: its test failed", recorded=False)
    if note is None or case.outcome is None:
        return case
    outcome = replace(case.outcome, note=f"{case.case.key}: {note.text}")
    return replace(case, outcome=outcome, is_recorded=note.recorded)
