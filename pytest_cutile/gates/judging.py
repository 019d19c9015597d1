"""What the measurements of one open case say about it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pytest_cutile.core.comparisons import (
    Comparison,
    DuetComparison,
    PublishedComparison,
    StoredComparison,
)
from pytest_cutile.core.report import format_change
from pytest_cutile.core.speed_rule import Decision
from pytest_cutile.core.timing import Measurement
from pytest_cutile.core.verdicts import Judgement, Reason
from pytest_cutile.gates.compiling import Compilations
from pytest_cutile.gates.engine import Engine
from pytest_cutile.gates.measuring import Unmeasured
from pytest_cutile.gates.open_cases import (
    OpenCase,
    changes_since,
    is_comparable,
    lacks_the_revision,
    missing,
    record_again,
)
from pytest_cutile.gates.speed import SpeedCase, unless_noisy, with_clock
from pytest_cutile.gates.suite_weather import SuiteWeather


class Chances:
    """How many cases of a run could look slower by chance: the more there are, the likelier one of them."""

    def __init__(self) -> None:
        self.collected = 0
        """Tests of the run that measure speed: each of them may fail by chance."""
        self.compared = 0
        """Cases that this process compared."""
        self.suspects = 0
        """Cases that this process measured again."""

    @property
    def family(self) -> int:
        """How many cases could have looked slower by chance."""
        return max(self.compared, self.collected)

    def of(self, comparison: Comparison) -> float:
        """Return how many cases could look slower by chance where this decides.

        Two kernels that take turns in fresh processes are measured from nothing: what the screening found is
        not in it, so only suspects can be wrong, and they have this process's share of the run's chances.
        Stored runs are behind the screening, too.
        """
        if not isinstance(comparison, DuetComparison):
            return self.family
        return self.suspects * self.family / max(self.compared, 1)


class Judge:
    """Judges one open case at a time by its measurements."""

    def __init__(
        self, engine: Engine, compilations: Compilations, weather: SuiteWeather, chances: Chances
    ) -> None:
        self._engine = engine
        self._compilations = compilations
        self._weather = weather
        self._chances = chances

    def is_suspect(self, each: OpenCase) -> bool:
        """Say whether the screening of a case makes it a suspect of its own, beyond what its class shares."""
        return each.comparison is not None and each.comparison.is_suspect(
            each.first, self._weather.today(each)
        )

    def confirm_beside_what_was_recorded(self, each: OpenCase) -> None:
        """Let the kernel that the baseline was recorded from take turns with it, if git has that commit.

        There is no better control: it does the same work on the same buffers, on this board, today. Stored
        times screen then, and do not decide. Nor do they with another compiler, driver or torch than then:
        both kernels have the new one, so that what differs is the code.
        """
        if self.has_what_was_recorded(each):
            each.beside = DuetComparison(rule=self._engine.settings.rule, revision=each.stored_commit)

    def has_what_was_recorded(self, each: OpenCase) -> bool:
        """Say whether git has the commit that a baseline was recorded at."""
        commit = each.stored_commit
        return bool(commit) and not commit.endswith("+") and self._engine.has_commit(commit)

    def take(self, each: OpenCase, measured: Mapping[str, Measurement | Unmeasured]) -> bool:
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
        decision = each.decides.decide(each.again, self._weather.today(each), self._chances.of(each.decides))
        if decision is Decision.CLEAR:
            self._clear(each)
        elif decision is Decision.SLOWER:
            self.call_slower(each)
        return decision in (Decision.OPEN, Decision.UNDECIDED)

    def _change(self, each: OpenCase) -> float | None:
        """Return the change to show: that of the fresh processes, if there are any."""
        if not each.again:
            return each.judgement.change
        return (
            each.decides.change(each.again, self._weather.today(each)) if each.decides is not None else None
        )

    def finish(self, each: OpenCase, reason: Reason, detail: str = "") -> None:
        """Close a case with a reason, unless its samples are too noisy to say so."""
        judgement = Judgement(reason=reason, change=self._change(each), detail=detail)
        each.close(unless_noisy(judgement, each.case.key, each.again or [each.first]))

    def leave_open(self, each: OpenCase, reason: Reason, detail: str, *, change: float | None = None) -> None:
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
        visible = comparison.smallest_visible(
            measured, self._weather.today(each), self._chances.of(comparison)
        )
        return f"; only a slowdown of {visible:.1%} could have been seen for certain"

    def _clear(self, each: OpenCase) -> None:
        """Say that a case is not slower, unless both it and the kernel of then are slower than recorded."""
        change = self._both_slower(each)
        if change is None and self._explained_by_a_disturbance(each):
            seen = "; ".join(each.problems)
            detail = f"{each.case.key}: only its control speaks for it, and on the GPU was seen: {seen}; "
            self.leave_open(each, Reason.DISTURBED, f"{detail}run it again")
            return
        if change is None:
            self.finish(each, Reason.WITHIN_MARGIN)
            return
        changes = changes_since(self._engine, each)
        untracked = "a file that git does not track or that is opened relative to the working folder"
        shared = f"({changes}); {record_again(each)}" if changes else f"({untracked}, the GPU)"
        detail = (
            f"{each.case.key} is {format_change(change)} against its baseline, and so is the kernel of "
            f"{each.revision} that it was recorded from: something that both share {shared}"
        )
        self.leave_open(each, Reason.ENVIRONMENT, detail, change=change)

    def _explained_by_a_disturbance(self, each: OpenCase) -> bool:
        """Say whether its times alone would not have cleared a case, on a GPU that was disturbed.

        Two kernels that take turns are disturbed alike.
        """
        comparison = each.decides
        if not isinstance(comparison, StoredComparison) or not any(found.doubts for found in each.again):
            return False
        timed = comparison.as_timed().estimate(each.again)
        return timed.decide(comparison.rule, self._chances.family) is not Decision.CLEAR

    def _both_slower(self, each: OpenCase) -> float | None:
        """Return the change against the stored runs if it, and that of the kernel of then, are beyond chance.

        By the fresh processes alone: the screening was chosen because it looked slow.
        """
        if each.beside is None or not isinstance(each.comparison, StoredComparison):
            return None
        comparison, today, rule = each.comparison, self._weather.today(each), self._engine.settings.rule
        now = [found.median_us for found in each.again]
        then = [found.partner_median_us for found in each.again if found.partner_median_us]
        if not then:
            return None
        estimates = [comparison.estimate_of_times(times, each.first, today) for times in (now, then)]
        if not all(estimate.is_beyond_chance(rule, self._chances.family) for estimate in estimates):
            return None
        return math.expm1(estimates[0].difference)

    def call_slower(self, each: OpenCase) -> None:
        """Say that a case is slower, and what of.

        What disturbs a GPU may slow a case beside its stored runs, but disturbs two kernels that take turns
        alike: their own scatter has said that the one is slower.
        """
        seen = f"on the GPU was seen: {'; '.join(each.problems)}" if each.problems else ""
        takes_turns = isinstance(each.decides, DuetComparison)
        if seen and not takes_turns:
            detail = f"{each.case.key} looks slower, but {seen}; run it again"
            self.leave_open(each, Reason.DISTURBED, detail)
        elif isinstance(each.comparison, PublishedComparison):
            self.finish(each, Reason.BELOW_PUBLISHED)
        elif self._same_code(each):
            if takes_turns:
                same = "it and the kernel that takes turns with it are of one commit, without changes"
                others = "; ".join(each.problems) or "the GPU, or a file that git does not track"
            else:
                same = "its compiled code and launch are those of the baseline"
                others = changes_since(self._engine, each)
                others = others or "driver, board, clocks, or what its launcher does beside the kernel"
            detail = f"{each.case.key}: {same}, so that something else made it slower: {others}"
            self.leave_open(each, Reason.ENVIRONMENT, detail)
        else:
            detail = f"{each.case.key}: {seen}; it disturbed both alike" if seen else ""
            self.finish(
                each, Reason.SUITE_SLOWER if self._weather.today(each).slower else Reason.SLOWER, detail
            )

    def _same_code(self, each: OpenCase) -> bool:
        """Say whether no change of code can have made a case slower.

        Beside stored runs its compiled code and launch have to be theirs. A launcher does more than that:
        beside another kernel the checkout has to be that kernel's commit, and no other compiled code known.
        """
        then = each.stored.identity if each.stored is not None else ""
        if isinstance(each.decides, DuetComparison):
            return self._engine.is_at(each.decides.revision) and then in ("", self.identity(each.case))
        return bool(then) and self.identity(each.case) == then

    def identity(self, case: SpeedCase) -> str:
        """Return the digest of a case's compiled code and launch; empty where it cannot be known."""
        if case.compiled is None:
            return ""
        try:
            return self._compilations.identity(case.compiled)
        except Exception:  # noqa: BLE001 - no compiler, or code that the gate `compile` reports
            return ""

    def leave_undecided(self, each: OpenCase) -> None:
        """Say what as many fresh processes as there may be have not decided, and what would tell more."""
        comparison, today = each.decides, self._weather.today(each)
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
        self.leave_open(each, Reason.DISTURBED if seen else Reason.NOISY, detail)
