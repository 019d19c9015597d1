"""The second half of the gate `speed`: what the screening left open is measured again in fresh processes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeAlias

from pytest_cutile.core.baseline_files import BaselineError
from pytest_cutile.core.comparisons import (
    Comparison,
    DuetComparison,
    PublishedComparison,
    StoredComparison,
)
from pytest_cutile.core.report import format_change, regression_message
from pytest_cutile.core.speed_rule import (
    UNKNOWN_WEATHER,
    Decision,
    Estimate,
    Reference,
    Weather,
    weather_of,
)
from pytest_cutile.core.timing import Measurement
from pytest_cutile.core.verdicts import Judgement, Reason, Verdict
from pytest_cutile.gates.compiling import Compilations
from pytest_cutile.gates.engine import Engine
from pytest_cutile.gates.measuring import Unmeasured
from pytest_cutile.gates.open_cases import (
    OpenCase,
    WeatherClass,
    changes_since,
    is_comparable,
    lacks_the_revision,
    missing,
    record_again,
)
from pytest_cutile.gates.recording import Note, Recording, record
from pytest_cutile.gates.speed import SpeedCase, strict_failure, unless_noisy, with_clock

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
        self._compilations = compilations
        self._screened: dict[WeatherClass, list[tuple[float, Reference]]] = defaultdict(list)
        self._weather: dict[WeatherClass, Weather] = {}
        self._compared = 0
        self._suspects = 0
        self.collected = 0
        """Tests of the run that measure speed: each of them may fail by chance."""
        self.open: list[OpenCase] = []
        """What is not decided yet."""
        self.screened: dict[str, dict[str, Any]] = {}
        """What was screened against stored runs, by key, in plain built-in types for other workers."""
        self.of_others: Callable[[], Sequence[dict[str, Any]]] = tuple
        """Returns what other workers have screened; waits for them."""
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
            self._compared += 1
        if isinstance(comparison, StoredComparison):
            level = comparison.level(measurement)
            kind = WeatherClass(measurement.bound, comparison.other_board)
            self._screened[kind].append((level, comparison.reference))
            self.screened[case.key] = {
                "key": case.key,
                "class": asdict(kind),
                "board": measurement.device.uuid,
                "level": level,
                "reference": asdict(comparison.reference),
            }
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

    @property
    def family(self) -> int:
        """How many cases could have looked slower by chance."""
        return max(self._compared, self.collected)

    def _family_of(self, comparison: Comparison) -> float:
        """Return how many cases could look slower by chance where this decides.

        Two kernels that take turns in fresh processes are measured from nothing: what the screening found is
        not in it, so only suspects can be wrong, and they have this process's share of the run's chances.
        Stored runs are behind the screening, too.
        """
        if not isinstance(comparison, DuetComparison):
            return self.family
        return self._suspects * self.family / max(self._compared, 1)

    def _weather_of(self, kind: WeatherClass) -> Weather:
        """Return what the cases of a class show together of the session."""
        noise, rule = self._engine.stored_runs.noise(kind.bound), self._engine.settings.rule
        return weather_of(self._screened[kind], noise, rule, other_board=kind.other_board)

    def _hear_others(self) -> None:
        """Take along what other workers have screened on the same GPU, if anything of it matters."""
        opened = [each for each in self.open if isinstance(each.comparison, StoredComparison)]
        if not opened:
            return
        board = opened[0].first.device.uuid
        for told in self.of_others():
            if told["board"] == board and told["key"] not in self.screened:
                self._screened[WeatherClass(**told["class"])].append(
                    (told["level"], Reference(**told["reference"]))
                )

    def _today(self, each: OpenCase) -> Weather:
        """Return the weather of a case's class."""
        return self._weather.get(each.weather_class, UNKNOWN_WEATHER)

    # -- deciding -------------------------------------------------------------------------------------

    def settle(self, measure_again: MeasureAgain) -> None:
        """Decide every open case, measuring again as often as it takes; every one then has an outcome."""
        self._hear_others()
        self._weather = {kind: self._weather_of(kind) for kind in self._screened}
        recorded = [each for each in self.open if each.records]
        self._confirm(recorded, measure_again)
        asked = {each.case.key: each.asked() for each in recorded if self._is_asked(each)}
        suspects: list[OpenCase] = []
        as_others: dict[WeatherClass, list[OpenCase]] = defaultdict(list)
        for each in self.open:
            if not each.records:
                comparison = each.comparison
                judged = each
                is_suspect = comparison is not None and comparison.is_suspect(each.first, self._today(each))
            elif each.case.key in asked:
                judged, is_suspect = asked[each.case.key], self._looks_slower(each)
            else:
                continue
            if is_suspect:
                suspects.append(judged)
            else:  # slow as all others are today
                as_others[each.weather_class].append(judged)
        speakers = self._judge(suspects, as_others, measure_again)
        alone = {each.case.key for each in suspects}
        for each in recorded:
            if (judged_so := asked.get(each.case.key)) is not None:
                told = each.case.key not in alone and bool(speakers.get(each.weather_class))
                self._hear(each, judged_so, told=told)
        self.remarks += filter(None, (self._removed(kind, speakers.get(kind, [])) for kind in self._weather))
        if self._engine.settings.update_baselines:
            self._record()
        for each in self.open:
            self._say(each)
        self.open.clear()

    def _judge(
        self,
        suspects: Sequence[OpenCase],
        as_others: Mapping[WeatherClass, list[OpenCase]],
        measure_again: MeasureAgain,
    ) -> dict[WeatherClass, list[OpenCase]]:
        """Decide suspects, and classes that may be slower by the weather; return who spoke for these."""
        for each in suspects:
            self._confirm_beside_what_was_recorded(each)
        speakers = {kind: self._speakers(kind, cases) for kind, cases in as_others.items()}
        self._confirm([*suspects, *(each for chosen in speakers.values() for each in chosen)], measure_again)
        doubted: list[OpenCase] = []
        for kind, cases in as_others.items():
            if not self._is_weather(kind, cases, speakers[kind]):
                doubted += [each for each in cases if each.outcome is None]
        for each in doubted:
            self._confirm_beside_what_was_recorded(each)
        self._confirm(doubted, measure_again)
        return {kind: [each for each in cases if each.beside] for kind, cases in speakers.items()}

    def _confirm(self, live: list[OpenCase], measure_again: MeasureAgain) -> None:
        """Measure cases in fresh processes until they are decided."""
        rule = self._engine.settings.rule
        self._suspects += len(live)
        last = rule.runs_per_session - 1 if any(each.records for each in live) else rule.looks[-1]
        for number in range(1, last + 1):
            if not live:
                break
            self._engine.progress(f"measuring {len(live)} cases again in a fresh process ({number}/{last})")
            measured: dict[str, Measurement | Unmeasured] = {}
            with self._engine.gpu_lock.alone():
                for revision in sorted({each.revision for each in live}):
                    measured |= measure_again([each for each in live if each.revision == revision], revision)
            live = [each for each in live if self._take(each, measured)]
        for each in live:
            self._finish_recorded(each) if each.records else self._undecided(each)

    def _speakers(self, kind: WeatherClass, cases: Sequence[OpenCase]) -> list[OpenCase]:
        """Choose those of a class that is slower as a whole who tell whether that is the weather.

        They are nearest to what the class shares, and have a kernel of then to be measured beside.
        """
        weather = self._weather.get(kind, UNKNOWN_WEATHER)
        if weather.removed <= self._engine.settings.rule.least:
            return []
        chosen: list[OpenCase] = []
        compared = [(each.comparison, each) for each in cases if each.comparison is not None]
        for _, each in sorted(
            compared, key=lambda pair: abs(pair[0].estimate([pair[1].first], weather).difference)
        ):
            self._confirm_beside_what_was_recorded(each)
            chosen += [each] if each.beside is not None else []
            if len(chosen) == SPEAKERS:
                break
        return chosen

    def _is_weather(
        self, kind: WeatherClass, cases: Sequence[OpenCase], speakers: Sequence[OpenCase]
    ) -> bool:
        """Finish the cases that are as slow as all of their class; return False if that is not explained."""
        heard = [each.judgement.reason for each in speakers if each.beside is not None]
        weather = self._weather.get(kind, UNKNOWN_WEATHER)
        if heard and set(heard) != {Reason.WITHIN_MARGIN}:
            if set(heard) == {Reason.SLOWER}:
                self._weather[kind] = replace(weather, slower=True)
                for each in speakers:
                    each.close(replace(each.judgement, reason=Reason.SUITE_SLOWER))
            return False
        for each in cases:
            if each.outcome is not None:
                continue
            if heard or weather.removed <= self._engine.settings.rule.limit:
                self._finish(each, Reason.WITHIN_MARGIN)
            else:
                shift, lacks = format_change(math.expm1(weather.removed)), missing(self._engine, each)
                detail = (
                    f"{each.case.key} is no slower than the other cases limited by {kind.bound}, all of "
                    f"which are {shift} in the median: the GPU of today, or something they share. The "
                    f"kernels of then could tell, but git has none that would compare: {lacks}"
                )
                self._leave_open(each, Reason.ENVIRONMENT, detail)
        return True

    def _removed(self, kind: WeatherClass, speakers: Sequence[OpenCase]) -> str:
        """Say what was taken off the cases of a class, or why nothing was, if that is enough to matter."""
        weather = self._weather[kind]
        shift = format_change(math.expm1(weather.shift))
        shown = f"weather: the {weather.cases} cases limited by {kind.bound} are {shift} in the median"
        if weather.faster:
            return f"{shown}, more than weather makes them: most have become faster; nothing was taken off"
        if abs(weather.removed) <= self._engine.settings.rule.least:
            return ""
        told = [each.case.key for each in speakers if each.judgement.reason is Reason.WITHIN_MARGIN]
        where = ", on another board than the baselines'" if kind.other_board else ""
        why = (
            f"beside their kernels of then {' and '.join(told)} are not slower"
            if told
            else "nothing else tells"
        )
        return f"{shown}{where}; that was taken off each of them ({why})"

    def give_up(self) -> None:
        """Leave undecided what is open, and record nothing: the run was stopped."""
        if unrecorded := sum(each.records for each in self.open):
            plural = "s" if unrecorded > 1 else ""
            self.remarks.append(f"{unrecorded} case{plural} not recorded: the run was stopped")
        for each in self.open:
            if each.outcome is None:
                if each.judgement.verdict is Verdict.INCONCLUSIVE:
                    self._leave_open(each, each.judgement.reason, each.judgement.detail)
                each.outcome = each.decided
                each.outcome.failure = strict_failure(self._engine, each.case.key, each.judgement)
        self.open.clear()

    def _confirm_beside_what_was_recorded(self, each: OpenCase) -> None:
        """Let the kernel that the baseline was recorded from take turns with it, if git has that commit.

        There is no better control: it does the same work on the same buffers, on this board, today. Stored
        times screen then, and do not decide. Nor do they with another compiler, driver or torch than then:
        both kernels have the new one, so that what differs is the code.
        """
        commit = each.stored_commit
        if commit and not commit.endswith("+") and self._engine.has_commit(commit):
            each.beside = DuetComparison(rule=self._engine.settings.rule, revision=commit)

    def _take(self, each: OpenCase, measured: Measured) -> bool:
        """Take a further measurement of a case along; return whether it is still open."""
        key = each.case.key
        found = measured.get(key)
        if each.beside is not None and lacks_the_revision(found):
            each.beside = None  # its launcher of then does not know this case: the stored times have to do
            each.again.clear()  # what took turns with it then is no control
            return True
        if isinstance(found, Measurement) and not is_comparable(each, found):
            found = Unmeasured(
                Reason.NOT_TIMED,
                f"{key}: the fresh process measured it beside {found.control or 'no control'}, not beside "
                f"{each.first.control}, and times of the two cannot be compared: was GPU memory short?",
            )
        if not isinstance(found, Measurement):
            error = found or Unmeasured(
                Reason.NOT_TIMED,
                f"{key}: the fresh process that was to measure it again ended before it did",
            )
            each.close(
                Judgement(reason=error.reason, detail=str(error).partition("\n")[0]), failure=str(error)
            )
            return False
        if each.beside is None:
            found = with_clock(self._engine, each.comparison, found)
        each.again.append(found)
        if each.records or each.decides is None:
            return True
        decision = each.decides.decide(each.again, self._today(each), self._family_of(each.decides))
        if decision is Decision.CLEAR:
            self._clear(each)
        elif decision is Decision.SLOWER:
            self._slower(each)
        return decision in (Decision.OPEN, Decision.UNDECIDED)

    def _change(self, each: OpenCase) -> float | None:
        """Return the change to show: that of the fresh processes, if there are any."""
        if not each.again:
            return each.judgement.change
        return each.decides.change(each.again, self._today(each)) if each.decides is not None else None

    def _finish(self, each: OpenCase, reason: Reason, detail: str = "") -> None:
        judgement = Judgement(reason=reason, change=self._change(each), detail=detail)
        each.close(unless_noisy(judgement, each.case.key, each.again or [each.first]))

    def _leave_open(
        self, each: OpenCase, reason: Reason, detail: str, *, change: float | None = None
    ) -> None:
        """Call a case inconclusive, and say what could have been seen."""
        detail += self._visible(each)
        each.close(
            Judgement(reason=reason, change=self._change(each) if change is None else change, detail=detail)
        )

    def _visible(self, each: OpenCase) -> str:
        """Say which slowdown the measurements of a case would have shown; with what separates it."""
        comparison = each.decides
        if comparison is None:
            return ""
        measured = each.again or [each.first]
        visible = comparison.smallest_visible(measured, self._today(each), self._family_of(comparison))
        return f"; only a slowdown of {visible:.1%} could have been seen for certain"

    def _clear(self, each: OpenCase) -> None:
        """Say that a case is not slower, unless both it and the kernel of then are slower than recorded."""
        change = self._both_slower(each)
        if change is None and self._explained_by_a_disturbance(each):
            seen = "; ".join(each.problems)
            detail = f"{each.case.key}: only its control speaks for it, and on the GPU was seen: {seen}; "
            self._leave_open(each, Reason.DISTURBED, f"{detail}run it again")
            return
        if change is None:
            self._finish(each, Reason.WITHIN_MARGIN)
            return
        changes = changes_since(self._engine, each)
        untracked = "a file that git does not track or that is opened relative to the working folder"
        shared = f"({changes}); {record_again(each)}" if changes else f"({untracked}, the GPU)"
        detail = (
            f"{each.case.key} is {format_change(change)} against its baseline, and so is the kernel of "
            f"{each.revision} that it was recorded from: something that both share {shared}"
        )
        self._leave_open(each, Reason.ENVIRONMENT, detail, change=change)

    def _explained_by_a_disturbance(self, each: OpenCase) -> bool:
        """Say whether its times alone would not have cleared a case, on a GPU that was disturbed.

        Two kernels that take turns are disturbed alike.
        """
        comparison = each.decides
        if not isinstance(comparison, StoredComparison) or not any(found.doubts for found in each.again):
            return False
        timed = comparison.as_timed().estimate(each.again)
        return timed.decide(comparison.rule, self.family) is not Decision.CLEAR

    def _both_slower(self, each: OpenCase) -> float | None:
        """Return the change against the stored runs if it, and that of the kernel of then, are beyond chance.

        By the fresh processes alone: the screening was chosen because it looked slow.
        """
        if each.beside is None or not isinstance(each.comparison, StoredComparison):
            return None
        comparison, today, rule = each.comparison, self._today(each), self._engine.settings.rule
        now = [found.median_us for found in each.again]
        then = [found.partner_median_us for found in each.again if found.partner_median_us]
        if not then:
            return None
        estimates = [comparison.estimate_of_times(times, each.first, today) for times in (now, then)]
        if not all(estimate.is_beyond_chance(rule, self.family) for estimate in estimates):
            return None
        return math.expm1(estimates[0].difference)

    def _slower(self, each: OpenCase) -> None:
        """Say that a case is slower, and what of.

        What disturbs a GPU may slow a case beside its stored runs, but disturbs two kernels that take turns
        alike: their own scatter has said that the one is slower.
        """
        seen = f"on the GPU was seen: {'; '.join(each.problems)}" if each.problems else ""
        takes_turns = isinstance(each.decides, DuetComparison)
        if seen and not takes_turns:
            detail = f"{each.case.key} looks slower, but {seen}; run it again"
            self._leave_open(each, Reason.DISTURBED, detail)
        elif isinstance(each.comparison, PublishedComparison):
            self._finish(each, Reason.BELOW_PUBLISHED)
        elif self._same_code(each):
            if takes_turns:
                same = "it and the kernel that takes turns with it are of one commit, without changes"
                others = "; ".join(each.problems) or "the GPU, or a file that git does not track"
            else:
                same = "its compiled code and launch are those of the baseline"
                others = changes_since(self._engine, each)
                others = others or "driver, board, clocks, or what its launcher does beside the kernel"
            detail = f"{each.case.key}: {same}, so that something else made it slower: {others}"
            self._leave_open(each, Reason.ENVIRONMENT, detail)
        else:
            detail = f"{each.case.key}: {seen}; it disturbed both alike" if seen else ""
            self._finish(each, Reason.SUITE_SLOWER if self._today(each).slower else Reason.SLOWER, detail)

    def _same_code(self, each: OpenCase) -> bool:
        """Say whether no change of code can have made a case slower.

        Beside stored runs its compiled code and launch have to be theirs. A launcher does more than that:
        beside another kernel the checkout has to be that kernel's commit, and no other compiled code known.
        """
        then = each.stored.identity if each.stored is not None else ""
        if isinstance(each.decides, DuetComparison):
            return self._engine.is_at(each.decides.revision) and then in ("", self._identity(each.case))
        return bool(then) and self._identity(each.case) == then

    def _identity(self, case: SpeedCase) -> str:
        """Return the digest of a case's compiled code and launch; empty where it cannot be known."""
        if case.compiled is None:
            return ""
        try:
            return self._compilations.identity(case.compiled)
        except Exception:  # noqa: BLE001 - no compiler, or code that the gate `compile` reports
            return ""

    def _undecided(self, each: OpenCase) -> None:
        comparison, today = each.decides, self._today(each)
        if comparison is None:
            return
        detail = (
            f"{each.case.key}: {len(each.again)} fresh processes put it at "
            f"{format_change(comparison.change(each.again, today))}"
        )
        if more := missing(self._engine, each):
            detail += f"; {more}"
        seen = "; ".join(dict.fromkeys(text for found in each.again for text in found.doubts))
        if seen:
            detail += f"; on the GPU was seen: {seen}; run it again"
        self._leave_open(each, Reason.DISTURBED if seen else Reason.NOISY, detail)

    # -- recording ------------------------------------------------------------------------------------

    def _finish_recorded(self, each: OpenCase) -> None:
        """Judge a case that is to be recorded: nothing was chosen here, so the screening counts, too."""
        comparison, today = each.comparison, self._today(each)
        if comparison is None:
            each.close(each.judgement)
            return
        decision = comparison.decide(each.measurements, today, self.family)
        if decision is Decision.SLOWER:
            self._slower(each)
        elif decision is Decision.CLEAR and comparison.estimate(each.measurements, today).is_faster(
            comparison.rule
        ):
            self._finish(each, Reason.FASTER)
        elif decision is Decision.CLEAR:
            self._finish(each, Reason.WITHIN_MARGIN)
        else:
            self._undecided(each)

    def _is_asked(self, each: OpenCase) -> bool:
        """Say whether the kernel of then has to tell what made a case slower that is to be recorded.

        On a board that its entry has no runs of, that may be the board: alone, or with all of its class.
        """
        elsewhere = isinstance(each.comparison, StoredComparison) and each.comparison.other_board
        if not elsewhere or not each.is_measured:
            return False
        return self._looks_slower(each) or self._today(each).removed > self._engine.settings.rule.least

    def _looks_slower(self, each: OpenCase) -> bool:
        """Say whether a case that is to be recorded, on another board than its baseline, may be slower."""
        estimate, rule = self._estimate(each), self._engine.settings.rule
        if each.judgement.reason in (Reason.SLOWER, Reason.SUITE_SLOWER, Reason.ENVIRONMENT):
            return True
        return estimate is not None and estimate.is_suspect(rule, other_board=True)

    def _hear(self, each: OpenCase, asked: OpenCase, *, told: bool) -> None:
        """Judge a case that is to be recorded by what the gate has found out about it.

        Args:
            each: The case.
            asked: It, as the gate has judged it.
            told: Whether others of its class, which all are slower, have told beside their kernels of then.
        """
        self._finish_recorded(each)  # what its class shares may have been found out to be its code
        if asked.outcome is not None and asked.outcome.failure is not None:
            each.close(asked.judgement, failure=asked.outcome.failure)
        elif asked.beside is not None:
            decision = asked.beside.decide(asked.again, self._today(each), self._family_of(asked.beside))
            each.as_then = decision is Decision.CLEAR
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
            self._leave_open(each, Reason.ENVIRONMENT, detail)

    def _is_of_known_code(self, each: OpenCase) -> bool:
        """Say whether the code of a case is known to be that of its baseline, or another."""
        then, now = each.stored.identity if each.stored is not None else "", self._identity(each.case)
        return bool(then and now) or (bool(each.stored_commit) and self._engine.is_at(each.stored_commit))

    def _estimate(self, each: OpenCase) -> Estimate | None:
        """Return by how much a case that is to be recorded differs from what is; None if nothing is."""
        comparison = each.comparison
        return comparison.estimate(each.measurements, self._today(each)) if comparison is not None else None

    def _change_of_board(self, each: OpenCase) -> float:
        """Return by what fraction a case has changed on its board, where small steps are counted.

        That all of its class share a step makes it no smaller; only on another board it is no step.
        """
        comparison = each.comparison
        if comparison is None:
            return 0.0
        elsewhere = isinstance(comparison, StoredComparison) and comparison.other_board
        return comparison.change(each.measurements, self._today(each) if elsewhere else UNKNOWN_WEATHER)

    def _record(self) -> None:
        """Record what may be recorded, all in one go; say of each case what was done."""
        recordings = [
            Recording(
                key=each.case.key,
                work=each.case.work,
                measurements=tuple(each.measurements),
                judgement=each.judgement,
                estimate=self._estimate(each),
                identity=self._identity(each.case),
                judged_against=each.stored,
                as_then=each.as_then,
                change=self._change_of_board(each),
            )
            for each in self.open
            if each.records
            and not each.test_failed
            and each.outcome is not None
            and each.outcome.failure is None
        ]
        try:
            notes = record(self._engine, recordings)
        except BaselineError as error:
            for each in self.open:
                if each.outcome is not None and each.outcome.failure is None:
                    each.close(Judgement(reason=Reason.BAD_BASELINE, detail=str(error)), failure=str(error))
            return
        for each in self.open:
            note = notes.get(each.case.key)
            if each.test_failed and each.outcome is not None:
                note = Note(text="not recorded: its test failed", recorded=False)
            if note is not None and each.outcome is not None:
                each.outcome.note = f"{each.case.key}: {note.text}"
                each.records = note.recorded
        if any(note.uncommitted for note in notes.values()):
            self.remarks.append(
                f"warning: recorded from uncommitted changes of {self._engine.commit[:-1]}: no later run can "
                "measure a suspect beside the kernel that was recorded; commit it, then record it again"
            )

    # -- saying it ------------------------------------------------------------------------------------

    def _say(self, each: OpenCase) -> None:
        """Set the failure of a decided case, unless its slower figure was just accepted."""
        outcome = each.outcome = each.decided
        recorded = each.records and outcome.note is not None
        if outcome.failure is not None or recorded:
            return
        judged = each.told or each
        if outcome.judgement.verdict is Verdict.REGRESSION and judged.decides is not None:
            outcome.failure = self._regression(judged, judged.decides)
        else:
            outcome.failure = strict_failure(self._engine, each.case.key, outcome.judgement)
        if outcome.failure is not None and outcome.note:
            outcome.failure += f"\n\n{outcome.note}"

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
            weather=self._today(each),
            seen=each.problems,
            baseline_option=engine.settings.baseline_option,
            names_board=engine.settings.xdist_worker,
        )
