"""What one case is compared with, as one of four classes.

- `Paired`: the baseline kernel, measured interleaved with today's.
- `SameCode`: today's code is the baseline's, so nothing can have become slower by the code.
- `StoredTimes`: there is no baseline kernel, and stored times decide alone.
- `PublishedFigure`: nobody has recorded the case, and a published figure is all there is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from pytest_cutile.gates.speed.rule import (
    NOISE,
    Decision,
    Estimate,
    Rule,
    Sample,
    decide_stored,
    estimate,
    is_faster,
    is_suspect,
)
from pytest_cutile.words.statistics import median_of_known
from pytest_cutile.words.timing import NOISE_LIMIT, Measurement, Regime

if TYPE_CHECKING:
    from pytest_cutile.baselines.entries import Published, Record
    from pytest_cutile.baselines.select import Stored
    from pytest_cutile.gates.speed.case import Launcher

_Comparison = TypeVar("_Comparison", bound="Comparison")
TimeOf: TypeAlias = Callable[[Measurement, Regime], float | None]
"""Returns a kernel's time per launch in a regime, in us; None where it was not measured."""


@dataclass(frozen=True, kw_only=True)
class Comparison(ABC):
    """What a case is compared with, and what measurements say of it.

    Measurements are one for each process. Log ratios are of today's time per launch over the baseline's.
    """

    kernels: ClassVar[tuple[TimeOf, ...]] = (Measurement.us,)
    """What is compared with stored times: today's kernel, and the baseline kernel where it is measured."""

    rule: Rule
    anchor: Record | None = None
    """The record that later runs are compared with."""
    stored: Mapping[Regime, Stored] = field(default_factory=dict)
    """Stored times since the anchor."""
    environment_changes: Sequence[str] = ()
    """What differs between the environments of the stored times and of today."""

    def _as(self, comparison_type: type[_Comparison], **fields: Any) -> _Comparison:
        """Return a comparison of class `comparison_type` with the same anchor and stored times."""
        return comparison_type(
            rule=self.rule,
            anchor=self.anchor,
            stored=self.stored,
            environment_changes=self.environment_changes,
            **fields,
        )

    @property
    def stored_margin(self) -> float:
        """The slowdown against the stored times, as a fraction, that is believed."""
        shortest_us = min((stored.us for stored in self.stored.values()), default=math.inf)
        return self.rule.stored_margin_of(shortest_us)

    @property
    def has_own_times(self) -> bool:
        """Whether stored times are of the GPU in use, and not of others of its kind."""
        return any(stored.is_own for stored in self.stored.values())

    # -- what the classes differ in -------------------------------------------------------------------

    @abstractmethod
    def suspects(self, screening: Measurement) -> tuple[Regime, ...]:
        """Return the regimes in which a screened case may be slower, or has become unsteady."""

    @abstractmethod
    def decide(self, measurements: Sequence[Measurement], regime: Regime) -> Decision:
        """Decide a regime of which there is no estimate: by itself, without the run's other cases."""

    @abstractmethod
    def is_faster(self, measurements: Sequence[Measurement]) -> bool:
        """Say whether a case has become faster in one regime and slower in none."""

    def log_ratios(self, measurement: Measurement) -> dict[Regime, float]:
        return self.stored_log_ratios(measurement)

    def log_ratio(self, measurements: Sequence[Measurement], regime: Regime) -> float | None:
        """Return the log ratio that measurements show; None if they say nothing of the regime."""
        return median_of_known(self.log_ratios(one).get(regime) for one in measurements)

    def baseline_us(self, measurements: Sequence[Measurement], regime: Regime) -> float | None:  # noqa: ARG002
        """Return the time per launch that today's is compared with, in us."""
        return self.stored[regime].us if regime in self.stored else None

    def estimate(self, measurements: Sequence[Measurement], regime: Regime) -> Estimate | None:  # noqa: ARG002
        """Estimate the log ratio and how well it is known; None where times were not measured in pairs."""
        return None

    def slower_than_stored(self, measurements: Sequence[Measurement]) -> float | None:
        """Return by what fraction today's kernel is slower than stored, though its code is not slower.

        None unless all `kernels` are slower by more than the plain margin.
        """
        for regime in Regime:
            slower = [
                median_of_known(self.stored_log_ratios(one, time_us).get(regime) for one in measurements)
                or 0.0
                for time_us in self.kernels
            ]
            if min(slower) > math.log1p(self.stored_margin):
                return math.expm1(slower[0])
        return None

    # -- what follows ---------------------------------------------------------------------------------

    def regimes(self, measurement: Measurement) -> list[Regime]:
        return [*self.log_ratios(measurement)]

    def change(self, measurements: Sequence[Measurement], regime: Regime | None = None) -> float | None:
        """Return the change to show: +0.05 is 5 % slower. Without a regime, that of the worst one."""
        regimes = [*Regime] if regime is None else [regime]
        known = [value for one in regimes if (value := self.log_ratio(measurements, one)) is not None]
        return math.expm1(max(known)) if known else None

    def stored_log_ratios(
        self, measurement: Measurement, time_us: TimeOf = Measurement.us
    ) -> dict[Regime, float]:
        """Return the log ratios of a kernel's times over stored ones, by regime.

        What the reference workload has become slower by since is taken off: the GPU's condition.
        """
        log_ratios = {}
        for regime, stored in self.stored.items():
            us = time_us(measurement, regime)
            if us is None and regime is Regime.BURST and Regime.SUSTAINED not in self.stored:
                us = time_us(measurement, Regime.SUSTAINED)  # it has become too long for bursts
            if us is not None:
                log_ratios[regime] = math.log(us / stored.us) - _movement(measurement, stored)
        return log_ratios


@dataclass(frozen=True, kw_only=True)
class Paired(Comparison):
    """The baseline kernel, measured interleaved with today's."""

    kernels = (Measurement.us, Measurement.baseline_us)

    revision: str
    """Revision of the baseline kernel: the anchor's commit, or `git:REV`."""
    launcher: Launcher

    def without_baseline_kernel(self, why: str) -> StoredTimes:
        return self._as(StoredTimes, unavailable=why)

    def samples(self, measurement: Measurement) -> dict[Regime, Sample]:
        return {
            regime: Sample(
                log_ratio=log_ratio,
                error=measurement.standard_error(regime) or 0.0,
                tick=measurement.tick_us / measurement.headline_us if regime is Regime.BURST else 0.0,
            )
            for regime in Regime
            if (log_ratio := measurement.log_ratio(regime)) is not None
        }

    def suspects(self, screening: Measurement) -> tuple[Regime, ...]:
        unsteady = screening.regimes[:1] if screening.excess_spread > NOISE_LIMIT else ()
        return tuple(
            regime
            for regime, sample in self.samples(screening).items()
            if regime in unsteady or is_suspect(sample, NOISE[regime], self.rule)
        )

    def decide(self, measurements: Sequence[Measurement], regime: Regime) -> Decision:  # noqa: ARG002
        """Decide a regime that no fresh process has measured: cleared if power limits neither kernel."""
        skipped = [one.sustained_skipped for one in measurements if one.sustained_skipped is not None]
        not_limited = bool(skipped) and all(one.not_limited for one in skipped)
        return Decision.CLEAR if not_limited else Decision.UNDECIDED

    def is_faster(self, measurements: Sequence[Measurement]) -> bool:
        estimates = [*filter(None, (self.estimate(measurements, regime) for regime in Regime))]
        is_slower = any(one.lower(self.rule.missed) > 0 for one in estimates)
        return not is_slower and any(is_faster(one, self.rule) for one in estimates)

    def log_ratios(self, measurement: Measurement) -> dict[Regime, float]:
        return {regime: sample.log_ratio for regime, sample in self.samples(measurement).items()}

    def log_ratio(self, measurements: Sequence[Measurement], regime: Regime) -> float | None:
        estimated = self.estimate(measurements, regime)
        return None if estimated is None else estimated.value

    def baseline_us(self, measurements: Sequence[Measurement], regime: Regime) -> float | None:
        times = [us for one in measurements if (us := one.baseline_us(regime)) is not None]
        return sum(times) / len(times) if times else None

    def estimate(self, measurements: Sequence[Measurement], regime: Regime) -> Estimate | None:
        samples = [sample for one in measurements if (sample := self.samples(one).get(regime)) is not None]
        return estimate(samples, NOISE[regime]) if samples else None


@dataclass(frozen=True, kw_only=True)
class SameCode(Comparison):
    """Today's code is the baseline's: only the environment, or the GPU, can have made a case slower."""

    is_recorded: bool = False
    """Whether a record is of this code, work and environment: there is nothing to find out."""

    @property
    def is_unchanged(self) -> bool:
        return not self.environment_changes

    def suspects(self, screening: Measurement) -> tuple[Regime, ...]:  # noqa: ARG002
        return ()

    def decide(self, measurements: Sequence[Measurement], regime: Regime) -> Decision:  # noqa: ARG002
        return Decision.CLEAR

    def is_faster(self, measurements: Sequence[Measurement]) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True, kw_only=True)
class StoredTimes(Comparison):
    """Stored times alone, by a plain margin: other sessions and GPUs have measured them."""

    unavailable: str
    """Why there is no baseline kernel."""

    def paired_with(self, revision: str, launcher: Launcher) -> Paired:
        return self._as(Paired, revision=revision, launcher=launcher)

    def of_same_code(self, *, is_recorded: bool = False) -> SameCode:
        return self._as(SameCode, is_recorded=is_recorded)

    def suspects(self, screening: Measurement) -> tuple[Regime, ...]:
        return tuple(
            regime for regime, value in self.log_ratios(screening).items() if value >= self.rule.limit
        )

    def decide(self, measurements: Sequence[Measurement], regime: Regime) -> Decision:
        known = [value for one in measurements if (value := self.log_ratios(one).get(regime)) is not None]
        return decide_stored(known, self.rule, margin=self.stored_margin) if known else Decision.UNDECIDED

    def is_faster(self, measurements: Sequence[Measurement]) -> bool:
        burst = self.log_ratio(measurements, Regime.BURST)
        return burst is not None and burst < -math.log1p(self.stored_margin)

    def slower_than_stored(self, measurements: Sequence[Measurement]) -> float | None:  # noqa: ARG002
        """Return None: without a baseline kernel, the code itself may be what got slower."""
        return None


@dataclass(frozen=True, kw_only=True)
class PublishedFigure(Comparison):
    """A published figure, with a margin of its own: what it is slower than says nothing of this run."""

    published: Published

    @property
    def margin(self) -> float:
        """The margin as a log ratio."""
        return math.log1p(self.published.margin)

    def log_ratios(self, measurement: Measurement) -> dict[Regime, float]:
        us = measurement.us(Regime.BURST)
        return {} if us is None else {Regime.BURST: math.log(us / self.published.median_us)}

    def baseline_us(self, measurements: Sequence[Measurement], regime: Regime) -> float | None:  # noqa: ARG002
        return self.published.median_us

    def suspects(self, screening: Measurement) -> tuple[Regime, ...]:
        return tuple(regime for regime, value in self.log_ratios(screening).items() if value >= self.margin)

    def decide(self, measurements: Sequence[Measurement], regime: Regime) -> Decision:
        log_ratio = self.log_ratio(measurements, regime)
        if log_ratio is None:
            return Decision.UNDECIDED
        return Decision.SLOWER if log_ratio > self.margin else Decision.CLEAR

    def is_faster(self, measurements: Sequence[Measurement]) -> bool:
        burst = self.log_ratio(measurements, Regime.BURST)
        return burst is not None and burst < -self.margin


def _movement(measurement: Measurement, stored: Stored) -> float:
    """Return the log ratio of the reference workload's time today over the stored one; 0 if unknown."""
    today_us, stored_us = measurement.workload_us, stored.workload_us
    is_same = measurement.reference_workload == stored.workload
    return math.log(today_us / stored_us) if today_us and stored_us and is_same else 0.0
