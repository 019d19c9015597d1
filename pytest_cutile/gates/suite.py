"""The second half of the gate `speed`: what the screening left open is measured again in fresh processes.

`suite_weather.py` knows what all cases share, `judging.py` what one case's measurements say, and
`recorded_cases.py` what `--update-baselines` does besides.
"""

from __future__ import annotations

import math
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from pytest_cutile.core.comparisons import Comparison
from pytest_cutile.core.report import format_change, regression_message
from pytest_cutile.core.timing import Measurement
from pytest_cutile.core.verdicts import Judgement, Reason, Verdict
from pytest_cutile.gates.compiling import Compilations
from pytest_cutile.gates.engine import Engine
from pytest_cutile.gates.judging import Chances, Judge
from pytest_cutile.gates.measuring import Unmeasured
from pytest_cutile.gates.open_cases import OpenCase, WeatherClass, missing
from pytest_cutile.gates.recorded_cases import RecordedCases
from pytest_cutile.gates.speed import SpeedCase, strict_failure
from pytest_cutile.gates.suite_weather import SuiteWeather

SPEAKERS = 2
"""Cases of a class that is slower as a whole, yet may be so by the weather, that are measured beside their
kernels of then, to tell for all."""


Measured: TypeAlias = Mapping[str, "Measurement | Unmeasured"]


MeasureAgain: TypeAlias = Callable[[Sequence[OpenCase], str], Measured]
"""Measures cases once more, all in one fresh process, by key; what is missing was lost with the process.

The second argument is the commit whose kernels take turns with them; empty if a control does.
"""


class SpeedSuite:
    """All cases that this process compared: those that stayed open, and what they show together."""

    def __init__(self, engine: Engine, compilations: Compilations) -> None:
        self._engine = engine
        self.chances = Chances()
        self.weather = SuiteWeather(engine)
        self._judge = Judge(engine, compilations, self.weather, self.chances)
        self._recorded = RecordedCases(engine, self._judge, self.weather, self.chances)
        self.open: list[OpenCase] = []
        """What is not decided yet."""
        self.remarks: list[str] = []
        """What was taken off the cases of a class, for people."""

    def add(
        self,
        case: SpeedCase,
        comparison: Comparison | None,
        judgement: Judgement,
        measurement: Measurement,
        *,
        is_open: bool,
        records: bool,
    ) -> None:
        """Take the screening of a case along."""
        if comparison is not None:
            self.chances.compared += 1
        self.weather.add(case.key, comparison, measurement)
        if is_open:
            self.open.append(
                OpenCase(
                    case=case,
                    comparison=comparison,
                    judgement=judgement,
                    first=measurement,
                    records=records,
                )
            )

    # -- deciding -------------------------------------------------------------------------------------

    def settle(self, measure_again: MeasureAgain) -> None:
        """Decide every open case, measuring again as often as it takes; every one then has an outcome."""
        self.weather.find(self.open)
        recorded = [each for each in self.open if each.records]
        self._confirm(recorded, measure_again)
        asked = [(each, each.asked()) for each in recorded if self._recorded.is_asked(each)]
        compared = [each for each in self.open if not each.records]
        suspects: list[OpenCase] = []
        as_others: dict[WeatherClass, list[OpenCase]] = defaultdict(list)  # slow as all of their class today
        judged = [(each, self._judge.is_suspect(each)) for each in compared]
        judged += [(as_asked, self._recorded.looks_slower(each)) for each, as_asked in asked]
        for each, is_suspect in judged:
            (suspects if is_suspect else as_others[each.weather_class]).append(each)
        alone = {id(each) for each in suspects}
        speakers = self._decide(suspects, as_others, measure_again)
        self._reopen([asks for each, asks in asked if self._recorded.is_to_tell(each, asks)], measure_again)
        for each, as_asked in asked:
            told = id(as_asked) not in alone and bool(speakers.get(each.weather_class))
            self._recorded.hear(each, as_asked, told=told)
        for kind in self.weather.classes:
            cleared = [
                each for each in speakers.get(kind, ()) if each.judgement.reason is Reason.WITHIN_MARGIN
            ]
            self._remark(self.weather.remark(kind, [each.case.key for each in cleared]))
        if self._engine.settings.update_baselines:
            self._remark(self._recorded.record(self.open))
        for each in self.open:
            self._say(each)
        self.open.clear()

    def _remark(self, text: str) -> None:
        self.remarks += [text] if text else []

    def _decide(
        self,
        suspects: Sequence[OpenCase],
        as_others: Mapping[WeatherClass, list[OpenCase]],
        measure_again: MeasureAgain,
    ) -> dict[WeatherClass, list[OpenCase]]:
        """Decide suspects, and classes that may be slower by the weather; return who spoke for these."""
        for each in suspects:
            self._judge.confirm_beside_what_was_recorded(each)
        speakers = {kind: self._speakers(kind, cases) for kind, cases in as_others.items()}
        self._confirm([*suspects, *(each for chosen in speakers.values() for each in chosen)], measure_again)
        doubted: list[OpenCase] = []
        for kind, cases in as_others.items():
            if not self._is_weather(kind, cases, speakers[kind]):
                doubted += [each for each in cases if each.outcome is None]
        for each in doubted:
            self._judge.confirm_beside_what_was_recorded(each)
        self._confirm(doubted, measure_again)
        return {kind: [each for each in cases if each.beside] for kind, cases in speakers.items()}

    def _reopen(self, cases: list[OpenCase], measure_again: MeasureAgain) -> None:
        """Let their kernels of then tell of cases that were decided without."""
        for each in cases:
            each.outcome = None
            self._judge.confirm_beside_what_was_recorded(each)
        self._confirm(cases, measure_again)

    def _confirm(self, live: list[OpenCase], measure_again: MeasureAgain) -> None:
        """Measure cases in fresh processes until they are decided."""
        rule = self._engine.settings.rule
        self.chances.suspects += len(live)
        last = rule.runs_per_session - 1 if any(each.records for each in live) else rule.looks[-1]
        for number in range(1, last + 1):
            if not live:
                break
            self._engine.progress(f"measuring {len(live)} cases again in a fresh process ({number}/{last})")
            measured: dict[str, Measurement | Unmeasured] = {}
            with self._engine.gpu_lock.alone():
                for revision in sorted({each.revision for each in live}):
                    measured |= measure_again([each for each in live if each.revision == revision], revision)
            live = [each for each in live if self._judge.take(each, measured)]
        for each in live:
            self._recorded.judge(each) if each.records else self._judge.leave_undecided(each)

    def _speakers(self, kind: WeatherClass, cases: Sequence[OpenCase]) -> list[OpenCase]:
        """Choose those of a class that is slower as a whole who tell whether that is the weather.

        They are nearest to what the class shares, and have a kernel of then to be measured beside.
        """
        weather = self.weather.of(kind)
        if weather.removed <= self._engine.settings.rule.least:
            return []
        chosen: list[OpenCase] = []
        compared = [(each.comparison, each) for each in cases if each.comparison is not None]
        for _, each in sorted(
            compared, key=lambda pair: abs(pair[0].estimate([pair[1].first], weather).difference)
        ):
            self._judge.confirm_beside_what_was_recorded(each)
            chosen += [each] if each.beside is not None else []
            if len(chosen) == SPEAKERS:
                break
        return chosen

    def _is_weather(
        self, kind: WeatherClass, cases: Sequence[OpenCase], speakers: Sequence[OpenCase]
    ) -> bool:
        """Finish the cases that are as slow as all of their class; return False if that is not explained."""
        heard = [each.judgement.reason for each in speakers if each.beside is not None]
        weather = self.weather.of(kind)
        if heard and set(heard) != {Reason.WITHIN_MARGIN}:
            if set(heard) == {Reason.SLOWER}:
                self.weather.blame_the_code(kind)
                for each in speakers:
                    each.close(replace(each.judgement, reason=Reason.SUITE_SLOWER))
            return False
        for each in cases:
            if each.outcome is not None:
                continue
            if heard or weather.removed <= self._engine.settings.rule.limit:
                self._judge.finish(each, Reason.WITHIN_MARGIN)
            else:
                shift, lacks = format_change(math.expm1(weather.removed)), missing(self._engine, each)
                detail = (
                    f"{each.case.key} is no slower than the other cases limited by {kind.bound}, all of "
                    f"which are {shift} in the median: the GPU of today, or something they share. The "
                    f"kernels of then could tell, but git has none that would compare: {lacks}"
                )
                self._judge.leave_open(each, Reason.ENVIRONMENT, detail)
        return True

    def fail(self, error: Exception) -> None:
        """Fail all that is open: something was raised on the way, and nothing may pass for that."""
        told = ""
        for each in self.open:
            outcome = each.decided
            if outcome.failure is None:
                detail = f"{each.case.key} could not be decided: {type(error).__name__}: {error}"
                more = told or "".join(traceback.format_exception(error))
                told = f"{self.open[0].case.key} has the traceback"
                failure = "\n\n".join(filter(None, (detail, more, outcome.note)))
                judgement = Judgement(reason=Reason.NOT_TIMED, detail=detail)
                each.outcome = replace(outcome, judgement=judgement, failure=failure)
        self.open.clear()

    def give_up(self) -> None:
        """Leave undecided what is open, and record nothing: the run was stopped."""
        if unrecorded := sum(each.records for each in self.open):
            plural = "s" if unrecorded > 1 else ""
            self.remarks.append(f"{unrecorded} case{plural} not recorded: the run was stopped")
        for each in self.open:
            if each.outcome is None:
                if each.judgement.verdict is Verdict.INCONCLUSIVE:
                    self._judge.leave_open(each, each.judgement.reason, each.judgement.detail)
                each.outcome = each.decided
                each.outcome.failure = strict_failure(self._engine, each.case.key, each.judgement)
            elif each.judgement.verdict is Verdict.REGRESSION and not (
                each.outcome.failure or each.outcome.note
            ):
                each.outcome.failure = (
                    f"{each.case.key} is slower than its baseline; the run was stopped before more was said"
                )
        self.open.clear()

    # -- saying it ------------------------------------------------------------------------------------

    def _say(self, each: OpenCase) -> None:
        """Set the failure of a decided case, and of one that was to be recorded and was not."""
        outcome = each.outcome = each.decided
        if outcome.failure is not None or each.is_recorded:
            return
        judged = each.told or each
        if outcome.judgement.verdict is Verdict.REGRESSION and judged.decides is not None:
            outcome.failure = self._regression(judged, judged.decides)
        else:
            outcome.failure = strict_failure(self._engine, each.case.key, outcome.judgement)
        if outcome.failure is not None and outcome.note:
            outcome.failure += f"\n\n{outcome.note}"
        elif outcome.note and not each.test_failed:
            outcome.failure = outcome.note

    def _regression(self, each: OpenCase, comparison: Comparison) -> str:
        engine = self._engine
        return regression_message(
            key=each.case.key,
            nodeid=each.case.nodeid,
            shown=each.shown,
            measurements=each.measurements,
            judgement=each.judgement,
            comparison=comparison,
            environment=self._engine.timer.environment(),
            baseline_file="" if engine.duet is not None else engine.shown_baseline_file,
            weather=self.weather.today(each),
            seen=each.problems,
            baseline_option=engine.settings.baseline_option,
            names_board=engine.settings.xdist_worker,
        )
