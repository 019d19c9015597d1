"""Cases that are to be recorded: judged as the gate judges them, then recorded if they may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_cutile.core.baseline_files import BaselineError
from pytest_cutile.core.comparisons import StoredComparison
from pytest_cutile.core.speed_rule import UNKNOWN_WEATHER, Decision, Estimate, Weather
from pytest_cutile.core.verdicts import Judgement, Reason, Verdict
from pytest_cutile.gates.engine import Engine
from pytest_cutile.gates.judging import Chances, Judge
from pytest_cutile.gates.open_cases import OpenCase, changes_since, missing
from pytest_cutile.gates.recording import Note, Recording, record
from pytest_cutile.gates.suite_weather import SuiteWeather


class RecordedCases:
    """What `--update-baselines` does with cases, beside measuring them."""

    def __init__(self, engine: Engine, judge: Judge, weather: SuiteWeather, chances: Chances) -> None:
        self._engine = engine
        self._judge = judge
        self._weather = weather
        self._chances = chances

    def judge(self, each: OpenCase) -> None:
        """Judge a case that is to be recorded: nothing was chosen here, so the screening counts, too."""
        comparison, today = each.comparison, self._weather.today(each)
        if comparison is None:
            each.close(each.judgement)
            return
        decision = comparison.decide(each.measurements, today, self._chances.family)
        if decision is Decision.SLOWER:
            self._judge.call_slower(each)
        elif decision is Decision.CLEAR and comparison.estimate(each.measurements, today).is_faster(
            comparison.rule
        ):
            self._judge.finish(each, Reason.FASTER)
        elif decision is Decision.CLEAR:
            self._judge.finish(each, Reason.WITHIN_MARGIN)
        else:
            self._judge.leave_undecided(each)

    def is_asked(self, each: OpenCase) -> bool:
        """Say whether the kernel of then has to tell board from code for a case that is to be recorded.

        On a board that its entry has no runs of, what makes it slower may be the board, alone or with all of
        its class; and what boards make of a time hides what other code makes of it.
        """
        elsewhere = isinstance(each.comparison, StoredComparison) and each.comparison.other_board
        if not elsewhere or not each.is_measured:
            return False
        weather = self._weather.today(each)
        return (
            weather.removed > self._engine.settings.rule.least
            or self.looks_slower(each)
            or self._is_hidden(each)
        )

    def is_to_tell(self, each: OpenCase, asked: OpenCase) -> bool:
        """Say whether the kernel of then still has to tell: nothing looks slower, and that is not enough.

        Args:
            each: A case that is to be recorded.
            asked: It, as the gate has judged it.
        """
        return asked.is_measured and not asked.again and self._is_hidden(each)

    def _is_hidden(self, each: OpenCase) -> bool:
        """Say whether what boards make of a time hides what other code makes of it, and git could tell."""
        undecided = each.judgement.verdict is Verdict.INCONCLUSIVE
        return undecided and not self._is_of_same_code(each) and self._judge.has_what_was_recorded(each)

    def looks_slower(self, each: OpenCase) -> bool:
        """Say whether a case that is to be recorded, on another board than its baseline, may be slower."""
        estimate = self._estimate(each, self._weather.today(each))
        if each.judgement.reason in (Reason.SLOWER, Reason.SUITE_SLOWER, Reason.ENVIRONMENT):
            return True
        return estimate is not None and estimate.is_suspect(self._engine.settings.rule, other_board=True)

    def hear(self, each: OpenCase, asked: OpenCase, *, told: bool) -> None:
        """Judge a case that is to be recorded by what the gate has found out about it.

        Args:
            each: The case.
            asked: It, as the gate has judged it.
            told: Whether others of its class, which all are slower, have told beside their kernels of then.
        """
        self.judge(each)  # what its class shares may have been found out to be its code
        if asked.outcome is not None and asked.outcome.failure is not None:
            each.close(asked.judgement, failure=asked.outcome.failure)
        elif asked.beside is not None:
            decision = asked.beside.decide(
                asked.again, self._weather.today(each), self._chances.of(asked.beside)
            )
            each.as_then = decision is Decision.CLEAR
            each.change_of_code = asked.beside.change(asked.again)
            if not each.as_then:
                each.close(asked.judgement)
                each.told = asked
            elif each.judgement.verdict not in (Verdict.PASS, Verdict.IMPROVEMENT):
                each.close(replace(asked.judgement, change=each.judgement.change))
        elif not told and not self._is_of_known_code(each):
            detail = (
                f"{each.case.key} is slower than on the boards of its baseline, or all of its class are, and "
                f"nothing tells the board from the code: {missing(self._engine, each)}"
            )
            self._judge.leave_open(each, Reason.ENVIRONMENT, detail)

    def _is_of_known_code(self, each: OpenCase) -> bool:
        """Say whether the code of a case is known to be that of its baseline, or another."""
        then, now = self._identities(each)
        return bool(then and now) or self._is_at_stored_commit(each)

    def _is_of_same_code(self, each: OpenCase) -> bool:
        """Say whether the code of a case is known to be that of its baseline."""
        then, now = self._identities(each)
        return then == now if then and now else self._is_at_stored_commit(each)

    def _identities(self, each: OpenCase) -> tuple[str, str]:
        """Return the digests of the code of a case: of its baseline, and at hand; empty where not known."""
        return each.stored.identity if each.stored is not None else "", self._judge.identity(each.case)

    def _is_at_stored_commit(self, each: OpenCase) -> bool:
        return bool(each.stored_commit) and self._engine.is_at(each.stored_commit)

    def _estimate(self, each: OpenCase, weather: Weather) -> Estimate | None:
        """Return by how much a case that is to be recorded differs from what is; None if nothing is."""
        comparison = each.comparison
        return comparison.estimate(each.measurements, weather) if comparison is not None else None

    def _change(self, each: OpenCase) -> float:
        """Return by how much it is slower, as a fraction.

        By its code alone, if the kernel of then has told that and all else is as it was then.
        """
        if each.as_then and each.change_of_code is not None and not changes_since(self._engine, each):
            return each.change_of_code
        comparison, weather = each.comparison, self._weather_of_board(each)
        return comparison.change(each.measurements, weather) if comparison is not None else 0.0

    def _weather_of_board(self, each: OpenCase) -> Weather:
        """Return what is no step of a case, where small steps are counted: what another board adds.

        That all of its class share a step on their own board makes it no smaller: it may be their code.
        """
        elsewhere = isinstance(each.comparison, StoredComparison) and each.comparison.other_board
        return self._weather.today(each) if elsewhere else UNKNOWN_WEATHER

    def record(self, opened: Sequence[OpenCase]) -> str:
        """Record what may be recorded, all in one go; say of each case what was done, and return a remark."""
        recordings = [
            Recording(
                key=each.case.key,
                work=each.case.work,
                measurements=tuple(each.measurements),
                judgement=each.judgement,
                estimate=self._estimate(each, self._weather_of_board(each)),
                identity=self._judge.identity(each.case),
                judged_against=each.stored,
                as_then=each.as_then,
                change=self._change(each),
            )
            for each in opened
            if each.records
            and not each.test_failed
            and each.outcome is not None
            and each.outcome.failure is None
        ]
        try:
            notes = record(self._engine, recordings)
        except BaselineError as error:
            for each in opened:
                if each.outcome is not None and each.outcome.failure is None:
                    each.close(Judgement(reason=Reason.BAD_BASELINE, detail=str(error)), failure=str(error))
            return ""
        for each in opened:
            note = notes.get(each.case.key)
            if each.test_failed and each.outcome is not None:
                note = Note(text="not recorded: its test failed", recorded=False)
            if note is not None and each.outcome is not None:
                each.outcome.note = f"{each.case.key}: {note.text}"
                each.is_recorded = note.recorded
        if not any(note.uncommitted for note in notes.values()):
            return ""
        return (
            f"warning: recorded from uncommitted changes of {self._engine.commit[:-1]}: no later run can "
            "measure a suspect beside the kernel that was recorded; commit it, then record it again"
        )
