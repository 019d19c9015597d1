"""A case about which the screening could not decide: what is known of it, and what would tell more."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_cutile.core.baselines import environment_changes
from pytest_cutile.core.comparisons import DuetComparison, StoredComparison
from pytest_cutile.core.timing import Measurement
from pytest_cutile.core.verdicts import Judgement, Reason
from pytest_cutile.gates.measuring import Unmeasured
from pytest_cutile.gates.speed import SpeedCase, SpeedOutcome

if TYPE_CHECKING:
    from pytest_cutile.core.baselines import Entry
    from pytest_cutile.core.comparisons import Comparison
    from pytest_cutile.core.results import GateResult
    from pytest_cutile.gates.engine import Engine


@dataclass(frozen=True)
class WeatherClass:
    """Cases that share their weather: one limit, and baselines of this board or of others."""

    bound: str
    """Their limit."""
    other_board: bool
    """Whether none of their stored runs is of the board at hand, which shifts them all by more than a day."""


@dataclass(kw_only=True)
class OpenCase:
    """A case about which fresh processes have to tell."""

    case: SpeedCase
    """What is measured."""
    comparison: Comparison | None
    """What it is held against; None when it is only to be recorded."""
    records: bool
    """Whether it is to be recorded."""
    first: Measurement
    """Of the screening. Not among those that decide: it was chosen because it looked slow."""
    judgement: Judgement
    """What is known so far."""
    again: list[Measurement] = field(default_factory=list)
    """Of fresh processes."""
    outcome: SpeedOutcome | None = None
    """Set when it is decided."""
    beside: DuetComparison | None = None
    """Set while the kernel that the baseline was recorded from takes turns with it in fresh processes."""
    test_failed: bool = False
    """Whether its test failed for reasons of its own: then nothing of it is recorded."""

    told: OpenCase | None = None
    """It, as the gate has judged it beside the kernel of then, if that decided what is to be recorded."""
    as_then: bool = False
    """Whether that kernel is as slow on this board, so that what is to be recorded is of no slower code."""
    change_of_code: float | None = None
    """By how much it is slower than that kernel, as a fraction; None if they took no turns."""
    is_recorded: bool = False
    """Whether the baseline file holds now what was measured of it."""

    def asked(self) -> OpenCase:
        """Return it as it is without `--update-baselines`."""
        return OpenCase(
            case=self.case,
            comparison=self.comparison,
            records=False,
            first=self.first,
            judgement=self.judgement,
        )

    @property
    def is_measured(self) -> bool:
        """Whether all measurements have been made."""
        return self.outcome is not None and self.outcome.failure is None

    @property
    def revision(self) -> str:
        """That kernel's commit; empty if there is none."""
        return self.beside.revision if self.beside is not None else ""

    @property
    def decides(self) -> Comparison | None:
        """What its further measurements are held against."""
        return self.beside or self.comparison

    @property
    def stored(self) -> Entry | None:
        """The baseline whose stored runs it is held against; None if it is held against something else."""
        return self.comparison.entry if isinstance(self.comparison, StoredComparison) else None

    @property
    def weather_class(self) -> WeatherClass:
        """The cases that it shares its weather with."""
        moved = isinstance(self.comparison, StoredComparison) and self.comparison.other_board
        return WeatherClass(self.first.bound, moved)

    @property
    def stored_commit(self) -> str:
        """The commit that its baseline was recorded at, with "+" where the checkout had changes; or empty."""
        if not isinstance(self.comparison, StoredComparison):
            return ""
        return self.comparison.held_against.provenance.get("commit", "")

    @property
    def measurements(self) -> list[Measurement]:
        """All, the first one first."""
        return [self.first, *self.again]

    @property
    def problems(self) -> tuple[str, ...]:
        """What was seen on the GPU, each thing once. Two kernels that take turns have the same clock."""
        seen = (each.problems if self.beside else each.doubts for each in self.measurements)
        return tuple(dict.fromkeys(text for texts in seen for text in texts))

    @property
    def shown(self) -> Measurement:
        """The measurement that the verdict shows: the one in the middle."""
        measured, beside = self.again or [self.first], self.decides
        if isinstance(beside, DuetComparison):  # in the middle by what is compared
            ordered = sorted(measured, key=lambda each: beside.change([each]))
        else:
            ordered = sorted(measured, key=lambda each: each.median_us)
        return ordered[(len(ordered) - 1) // 2]

    @property
    def decided(self) -> SpeedOutcome:
        """The outcome; as far as it is known, if the run ended before."""
        return self.outcome or SpeedOutcome(judgement=self.judgement, measurement=self.first)

    @property
    def result(self) -> GateResult:
        """What the report of its test carries."""
        return self.decided.result(self.case)

    def close(self, judgement: Judgement, *, failure: str | None = None) -> None:
        """Set the judgement, and the outcome that goes with it."""
        self.judgement = judgement
        self.outcome = SpeedOutcome(judgement=judgement, measurement=self.shown, failure=failure)


def lacks_the_revision(found: Measurement | Unmeasured | None) -> bool:
    """Say whether a fresh process had no kernel of the revision to take turns with."""
    if isinstance(found, Measurement):
        return bool(found.control) or not found.best.partner_us
    return found is not None and found.reason is Reason.NOT_IN_REVISION


def is_comparable(each: OpenCase, found: Measurement) -> bool:
    """Say whether the control, where it is followed, is the one that the screening had."""
    follows = isinstance(each.decides, StoredComparison) and each.decides.slope > 0
    return not follows or found.control == each.first.control


def record_again(each: OpenCase) -> str:
    """Return the advice to record a case once more, where its times may be others for a reason."""
    return f"record it again: pytest {shlex.quote(each.case.nodeid)} --update-baselines --reason TEXT"


def changes_since(engine: Engine, each: OpenCase) -> str:
    """Say what of the environment is not what it was when the baseline was recorded; empty if nothing."""
    if each.stored is None:
        return ""
    return "; ".join(environment_changes(each.stored.environment, engine.timer.environment()))


def missing(engine: Engine, each: OpenCase) -> str:
    """Say what would have let fresh processes tell more, and how to get it; empty if all was there."""
    commit, lacks = each.stored_commit, []
    if not isinstance(each.comparison, StoredComparison) or each.beside is not None:
        return ""
    if commit.endswith("+"):
        lacks.append(
            f"it was recorded from uncommitted changes of {commit[:-1]}, and git has no kernel of then "
            "that could tell: commit, then record it again"
        )
    elif commit and not engine.has_commit(commit):
        lacks.append(f"git lacks {commit}, whose kernel could tell: git fetch --unshallow")
    if changes := changes_since(engine, each):
        lacks.append(f"since then {changes}: {record_again(each)}")
    if not lacks:  # then more stored runs would help
        if not commit:
            lacks.append("it was recorded outside of git, which has no kernel of then that could tell")
        if (sessions := each.comparison.held_against.sessions) < 4:  # noqa: PLR2004
            lacks.append(f"it is held against {sessions} session{'s' if sessions > 1 else ''}: record more")
    return "; ".join(lacks)
