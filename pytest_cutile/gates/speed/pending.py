"""A case whose verdict waits for fresh processes, with the evidence that has come in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_cutile.gates.speed.case import Request, SpeedCase, SpeedOutcome
from pytest_cutile.gates.speed.comparison import Comparison, Paired
from pytest_cutile.gates.speed.rule import Decision
from pytest_cutile.words.timing import Measurement, Regime, Skipped
from pytest_cutile.words.verdicts import Judgement

if TYPE_CHECKING:
    from pytest_cutile.timing.measure.call import MeasurementFailed
    from pytest_cutile.words.results import SpeedResult


@dataclass(eq=False, kw_only=True)
class PendingCase:
    """A case that fresh processes have to decide, or that is to be recorded."""

    case: SpeedCase
    comparison: Comparison | None
    """None when it is only to be recorded."""
    records: bool
    """Whether it is to be recorded."""
    screening: Measurement
    """No evidence about a suspect, which was selected because it looked slow (winner's curse)."""
    judgement: Judgement
    regimes: tuple[Regime, ...]
    """What fresh processes measure: the regimes in which it is a suspect, all of them if it is to be
    recorded."""
    repeats: list[Measurement] = field(default_factory=list)
    """What counts as evidence: a measurement for each process."""
    decisions: dict[Regime, Decision] = field(default_factory=dict)
    """What was decided, by regime; without those that are open."""
    outcome: SpeedOutcome | None = None
    """None until it is decided."""
    test_failed: bool = False
    """Whether its test failed for reasons of its own: nothing of it is recorded then."""
    is_recorded: bool = False
    """Whether the baseline file holds its measurements now."""

    @property
    def open_regimes(self) -> tuple[Regime, ...]:
        if self.outcome is not None or Decision.SLOWER in self.decisions.values():
            return ()  # slower in one regime is slower
        return tuple(regime for regime in self.regimes if regime not in self.decisions)

    @property
    def next_regimes(self) -> tuple[Regime, ...]:
        """What the next fresh processes decide: of pairs at first one regime, since slower in one is slower.

        That is bursts, where there is a choice: sustained measurements take ten times as long. Without a
        baseline kernel there is no further look.
        """
        first_of_several = isinstance(self.comparison, Paired) and not self.records and not self.repeats
        return self.open_regimes[:1] if first_of_several else self.open_regimes

    @property
    def request(self) -> Request:
        comparison = self.comparison
        needs_sustained = (
            self.records
            or Regime.SUSTAINED in self.next_regimes
            # Both kernels are slower than stored: in which regime, the fresh processes have to confirm.
            or (comparison is not None and comparison.slower_than_stored([self.screening]) is not None)
        )
        # What is to be recorded, and is decided already, needs today's kernel alone.
        needs_pairs = isinstance(comparison, Paired) and bool(self.regimes or not self.records)
        return Request(
            nodeid=self.case.nodeid,
            revision=comparison.revision if isinstance(comparison, Paired) and needs_pairs else "",
            sustained=self.screening.sustained is not None and needs_sustained,
        )

    @property
    def measurements(self) -> list[Measurement]:
        """What decides: the fresh processes, or the screening where there were none."""
        return self.repeats or [self.screening]

    @property
    def sustained_skipped(self) -> tuple[Skipped, ...]:
        """Why fresh processes that were to measure sustained did not."""
        return tuple(dict.fromkeys(one.sustained_skipped for one in self.repeats if one.sustained_skipped))

    def scatter(self, regime: Regime) -> float:
        """Return by what fraction the slowest process took longer than the fastest."""
        times = [us for one in self.repeats if (us := one.us(regime)) is not None]
        return max(times) / min(times) - 1 if times else 0.0

    @property
    def problems(self) -> tuple[str, ...]:
        seen = (problem for one in (self.screening, *self.repeats) for problem in one.problems)
        return tuple(dict.fromkeys(seen))

    @property
    def shown(self) -> Measurement:
        """The measurement that the verdict shows: the median one."""
        ordered = sorted(self.measurements, key=lambda one: one.headline_us)
        return ordered[(len(ordered) - 1) // 2]

    @property
    def so_far(self) -> SpeedOutcome:
        """The outcome, or what is known if the run ended before there was one."""
        return self.outcome or SpeedOutcome(judgement=self.judgement, measurement=self.screening)

    @property
    def result(self) -> SpeedResult:
        return self.so_far.result(self.case)

    def close(self, judgement: Judgement, *, failure: str | None = None) -> None:
        self.judgement = judgement
        self.outcome = SpeedOutcome(judgement=judgement, measurement=self.shown, failure=failure)

    def add_note(self, text: str) -> None:
        """Say in the outcome what was recorded, or why nothing was."""
        self.outcome = replace(self.so_far, note=f"{self.case.key}: {text}")

    def fail(self, error: MeasurementFailed) -> None:
        detail = str(error).partition("\n")[0]
        self.close(Judgement(reason=error.reason, detail=detail), failure=str(error))
