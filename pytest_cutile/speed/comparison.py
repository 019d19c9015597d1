"""What one case is compared with: the interleaved baseline kernel, else stored or published times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_cutile.baselines.entries import Published, Record
from pytest_cutile.baselines.select import Stored
from pytest_cutile.speed.case import Launcher
from pytest_cutile.speed.decide import (
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
from pytest_cutile.speed.measure.timing import LONGEST_BURST_US, NOISE_LIMIT, Measurement, Regime
from pytest_cutile.statistics import median


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a case is compared with, and what a measurement says of it."""

    rule: Rule
    revision: str = ""
    """Revision whose kernel is the baseline kernel: the anchor's commit, or `git:REV`."""
    launcher: Launcher | None = None
    """Its launcher, to be interleaved with today's; None where there is none, or where it is the same
    code."""
    is_same_code: bool = False
    """Whether today's code is the baseline's: then nothing can have become slower by the code."""
    is_recorded: bool = False
    """Whether a record is of this very code, work and environment: there is nothing to find out."""
    unavailable: str = ""
    """Why there is no baseline kernel: stored times alone decide."""
    anchor: Record | None = None
    """The record that the baseline kernel is of."""
    stored: Mapping[Regime, Stored] = field(default_factory=dict)
    """Stored times since the anchor."""
    environment_changes: Sequence[str] = ()
    """What differs between the environments of the stored times and of today."""
    published: Published | None = None

    def with_launcher(self, revision: str, launcher: Launcher) -> Comparison:
        return replace(self, revision=revision, launcher=launcher)

    def of_same_code(self, revision: str, *, is_recorded: bool = False) -> Comparison:
        return replace(self, revision=revision, is_same_code=True, is_recorded=is_recorded)

    def without_baseline_kernel(self, why: str) -> Comparison:
        return replace(self, revision="", launcher=None, unavailable=why)

    @property
    def is_unchanged(self) -> bool:
        """Whether code and environment are those of a record."""
        return self.is_same_code and not self.environment_changes

    @property
    def is_paired(self) -> bool:
        """Whether the baseline kernel is measured interleaved with today's."""
        return self.launcher is not None

    def regimes(self, measurement: Measurement) -> list[Regime]:
        """Return the regimes in which this measurement says something."""
        return [*(self.samples(measurement) if self.is_paired else self.changes_of_stored(measurement))]

    # -- paired ---------------------------------------------------------------------------------------

    def samples(self, measurement: Measurement) -> dict[Regime, Sample]:
        """Return the log ratios of today's kernel over the baseline kernel, measured interleaved."""
        samples = {}
        for regime in Regime:
            log_ratio = measurement.log_ratio(regime)
            if log_ratio is not None:
                samples[regime] = Sample(
                    log_ratio=log_ratio,
                    error=measurement.standard_error(regime) or 0.0,
                    tick=measurement.tick_us / measurement.headline_us if regime is Regime.BURST else 0.0,
                )
        return samples

    def estimate(self, measurements: Sequence[Measurement], regime: Regime) -> Estimate | None:
        """Estimate the log ratio in a regime from measurements of one process each; None without any."""
        samples = [sample for one in measurements if (sample := self.samples(one).get(regime)) is not None]
        return estimate(samples, NOISE[regime]) if samples else None

    # -- stored ---------------------------------------------------------------------------------------

    def changes_of_stored(
        self, measurement: Measurement, *, of_baseline: bool = False
    ) -> dict[Regime, float]:
        """Return the log ratios of today's times over stored or published ones, by regime.

        What the reference workload has become slower by since is taken off: the GPU's condition.

        Args:
            measurement: of today.
            of_baseline: whether the times of the baseline kernel are meant, not those of today's.
        """
        changes: dict[Regime, float] = {}
        for regime in Regime:
            time_us = measurement.baseline_us if of_baseline else measurement.us
            us = time_us(regime)
            if self.published is not None:
                if regime is Regime.BURST and us is not None:
                    changes[regime] = math.log(us / self.published.median_us)
            elif (stored := self.stored.get(regime)) is not None:
                if us is None and regime is Regime.BURST and (sustained_us := time_us(Regime.SUSTAINED)):
                    us = min(sustained_us, LONGEST_BURST_US)  # too long for the bursts that it had once
                if us is not None:
                    changes[regime] = math.log(us / stored.us) - _movement(measurement, stored)
        return changes

    def slower_than_stored(self, measurements: Sequence[Measurement]) -> float | None:
        """Return by what fraction both kernels are slower than stored, if they are beyond the plain margin.

        Without a baseline kernel at hand, today's kernel alone: it is the baseline's code then. A published
        figure says nothing of the environment.
        """
        if self.published is not None:
            return None
        limit = math.log1p(self.rule.stored_margin)
        sides = [False, True] if self.is_paired else [False]
        for regime in Regime:
            changes = []
            for of_baseline in sides:
                found = [
                    self.changes_of_stored(one, of_baseline=of_baseline).get(regime) for one in measurements
                ]
                known = [change for change in found if change is not None]
                changes.append(median(known) if known else 0.0)
            if min(changes) > limit:
                return math.expm1(changes[0])
        return None

    # -- screening and deciding -----------------------------------------------------------------------

    def suspects(self, measurement: Measurement) -> tuple[Regime, ...]:
        """Return the regimes in which a screened case may be slower, or has become unsteady."""
        if self.is_same_code:
            return ()
        if self.is_paired:
            unsteady = measurement.regimes[:1] if measurement.excess_spread > NOISE_LIMIT else ()
            return tuple(
                regime
                for regime, sample in self.samples(measurement).items()
                if regime in unsteady or is_suspect(sample, NOISE[regime], self.rule)
            )
        margin = self.rule.limit if self.published is None else math.log1p(self.published.margin)
        return tuple(
            regime for regime, change in self.changes_of_stored(measurement).items() if change >= margin
        )

    def decide_stored(self, measurements: Sequence[Measurement], regime: Regime) -> Decision:
        """Decide by stored or published times alone."""
        changes = [self.changes_of_stored(measurement).get(regime) for measurement in measurements]
        known = [change for change in changes if change is not None]
        if not known:
            return Decision.UNDECIDED
        if self.published is not None:
            slower = median(known) > math.log1p(self.published.margin)
            return Decision.SLOWER if slower else Decision.CLEAR
        return decide_stored(known, self.rule)

    def change(self, measurements: Sequence[Measurement], regime: Regime | None = None) -> float | None:
        """Return the change to show: +0.05 is 5 % slower. Without a regime, that of the worst one."""
        regimes = [*Regime] if regime is None else [regime]
        changes: list[float] = []
        for each in regimes:
            if self.is_paired:
                estimated = self.estimate(measurements, each)
                changes += [] if estimated is None else [estimated.value]
            else:
                found = [self.changes_of_stored(one).get(each) for one in measurements]
                known = [change for change in found if change is not None]
                changes += [median(known)] if known else []
        return math.expm1(max(changes)) if changes else None

    def is_faster(self, measurements: Sequence[Measurement]) -> bool:
        """Say whether a case has become faster in one regime and slower in none."""
        if self.is_same_code:
            return False
        if not self.is_paired:
            changes = [self.changes_of_stored(measurement) for measurement in measurements]
            burst = [change[Regime.BURST] for change in changes if Regime.BURST in change]
            margin = self.rule.stored_margin if self.published is None else self.published.margin
            return bool(burst) and median(burst) < -math.log1p(margin)
        found = [
            estimated for regime in Regime if (estimated := self.estimate(measurements, regime)) is not None
        ]
        return any(is_faster(one, self.rule) for one in found) and all(one.value <= 0 for one in found)


def _movement(measurement: Measurement, stored: Stored) -> float:
    """Return the log ratio of the reference workload's time today over the stored one; 0 if unknown."""
    if not measurement.workload_us or not stored.workload_us:
        return 0.0
    if measurement.reference_workload != stored.workload:
        return 0.0
    return math.log(measurement.workload_us / stored.workload_us)
