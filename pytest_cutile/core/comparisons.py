"""What a measurement is held against: stored runs, another revision beside it, or a published figure."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from pytest_cutile.core.baselines import Entry, Published, Run
from pytest_cutile.core.platforms import Platform
from pytest_cutile.core.speed_rule import (
    STORED_NOISE,
    UNKNOWN_WEATHER,
    Decision,
    Estimate,
    Noise,
    Reference,
    Rule,
    Weather,
    duet_estimate,
    pooled_noise,
    reference_of,
    slope_of,
    slope_variance,
    weather_of,
)
from pytest_cutile.core.timing import Device, Measurement, bound_of

SLOPES: Mapping[str, float] = MappingProxyType({"TFLOPS": 0.8, "GB/s": 0.6})
"""How much of its control's movement a case is assumed to follow, by its limit.

From one H200 to another the product moved by 2 to 4 %, and matrix products of cuTile by 0.4 to 1.1 times as
much; between hosts the copy moved by 3 %, and eight memory-bound kernels by 0.3 to 1 times as much
(docs/measuring.md). Stored runs of several boards tell the slope of each case (`slope_of`).
"""
SLOPES_IN_TIME: Mapping[str, float] = MappingProxyType({"TFLOPS": 0.7, "GB/s": 0.1})
"""How much of it a case is assumed to follow on one board, from process to process and session to session.

In the processes of benchmarks/data that was 0.1 to 1.3 and -0.3 to 0.5 times as much (docs/measuring.md).
"""


class Comparison(ABC):
    """What one case is held against."""

    rule: Rule
    baseline_us: float | None
    """Time per launch that is shown beside the measured one; None if it comes with the measurement."""

    @abstractmethod
    def estimate(self, measurements: Sequence[Measurement], weather: Weather = UNKNOWN_WEATHER) -> Estimate:
        """Return the difference that these measurements, one per process, show."""

    def as_timed(self) -> Comparison:
        """Return the same without a control: what disturbs a GPU may slow the control more than the case."""
        return self

    def change(self, measurements: Sequence[Measurement], weather: Weather = UNKNOWN_WEATHER) -> float:
        """Return the relative change of the time per launch: +0.05 is 5 % slower."""
        return math.expm1(self.estimate(measurements, weather).difference)

    def is_suspect(self, measurement: Measurement, weather: Weather | None = None) -> bool:
        """Say whether a screened case could be slower by the margin; None: the weather is not known yet."""
        return self.estimate([measurement], weather or UNKNOWN_WEATHER).is_suspect(self.rule)

    def is_faster(self, measurement: Measurement) -> bool:
        """Say whether a screened case is faster."""
        return self.estimate([measurement]).is_faster(self.rule)

    def decide(self, measurements: Sequence[Measurement], weather: Weather, family: float) -> Decision:
        """Decide about a suspect by its measurements in fresh processes."""
        return self.estimate(measurements, weather).decide(self.rule, family)

    def smallest_visible(self, measurements: Sequence[Measurement], weather: Weather, family: float) -> float:
        """Return the smallest slowdown, as a fraction, that such measurements would have shown."""
        return self.estimate(measurements, weather).smallest_visible(self.rule, family)


@dataclass(frozen=True, kw_only=True)
class StoredComparison(Comparison):
    """With the stored runs of the case."""

    rule: Rule
    entry: Entry
    """What is recorded of the case, on all boards."""
    held_against: Entry
    """It with the runs alone that the case is held against: those of the board at hand, if it has any."""
    reference: Reference
    slope: float
    """How much of its control's movement the case follows; 0 where the controls cannot be compared."""
    other_board: bool
    """Whether none of the runs is of the board at hand."""
    plain: Reference
    """The reference of the times as they were measured, with no control followed."""
    forecast: Weather = UNKNOWN_WEATHER
    """What is known of the weather before its class has shown it."""
    control_level: float = 0.0
    """Mean logarithm of the control's time in the stored runs."""
    slope_variance: float = 0.0
    """Variance of `slope`."""

    @property
    def baseline_us(self) -> float:  # type: ignore[override]
        """The mean of the runs that it is held against."""
        return self.held_against.reference_us

    def as_timed(self) -> StoredComparison:
        """Return the comparison of times as they were measured."""
        return replace(self, slope=0.0, slope_variance=0.0, reference=self.plain)

    def is_suspect(self, measurement: Measurement, weather: Weather | None = None) -> bool:
        """Say whether a screened case could be slower by the margin; None: the weather is not known yet.

        What was measured on a busy GPU, or a slow one, is explained neither by its control nor by others; but
        if it is as fast as recorded while the control is slower, nothing is left to explain.
        """
        if measurement.doubts:
            as_timed = self.as_timed().estimate([measurement], self.forecast)
            if as_timed.is_suspect(self.rule, other_board=self.other_board):
                return True
            _, control_us = measurement.beside_control(self.slope)
            if self._moved(control_us) > 0:
                return False
        estimate = self.estimate([measurement], weather or self.forecast)
        return estimate.is_suspect(self.rule, other_board=self.other_board)

    def _moved(self, control_us: float | None) -> float:
        """Return by how much the control is slower than in the stored runs, as a logarithm; 0 without one."""
        return math.log(control_us) - self.control_level if control_us else 0.0

    def level(self, measurement: Measurement) -> float:
        """Return the logarithm of the fastest time, less what the control explains of it."""
        return self._level(*measurement.beside_control(self.slope))

    def _level(self, us: float, control_us: float | None) -> float:
        return math.log(us) - (self.slope * math.log(control_us) if control_us else 0.0)

    def estimate(self, measurements: Sequence[Measurement], weather: Weather = UNKNOWN_WEATHER) -> Estimate:
        """Return the difference from the stored runs."""
        pairs = [each.beside_control(self.slope) for each in measurements]
        return self._estimate(pairs, weather)

    def _estimate(self, pairs: Sequence[tuple[float, float | None]], weather: Weather) -> Estimate:
        """Return the difference by the times of case and control, one pair for each process."""
        moved = [self._moved(us) for _, us in pairs if us]
        of_control = self.slope_variance * (sum(moved) / len(moved)) ** 2 if moved else 0.0
        levels = [self._level(us, control_us) for us, control_us in pairs]
        return Estimate.of(levels, self.reference, weather, of_control=of_control)

    def estimate_of_times(
        self, times_us: Sequence[float], screened: Measurement, weather: Weather = UNKNOWN_WEATHER
    ) -> Estimate:
        """Return the difference of times that no control took turns with: that of the screening stands in."""
        _, control_us = screened.beside_control(self.slope)
        return self._estimate([(us, control_us) for us in times_us], weather)


@dataclass(frozen=True, kw_only=True)
class DuetComparison(Comparison):
    """With the same case of another revision, which takes turns with it on the same buffers."""

    rule: Rule
    revision: str
    baseline_us: float | None = None

    def estimate(self, measurements: Sequence[Measurement], weather: Weather = UNKNOWN_WEATHER) -> Estimate:
        """Return the difference between the two; a session acts on both alike."""
        del weather
        return duet_estimate([[block.log_ratio for block in each.blocks] for each in measurements])


@dataclass(frozen=True, kw_only=True)
class PublishedComparison(Comparison):
    """With one figure that somebody published, of which nobody knows how far it scatters."""

    rule: Rule
    published: Published

    @property
    def limit(self) -> float:
        """Slowdown that it can be trusted to show, as a logarithm."""
        return math.log1p(self.published.margin)

    @property
    def baseline_us(self) -> float:  # type: ignore[override]
        """The published time."""
        return self.published.median_us

    def estimate(self, measurements: Sequence[Measurement], weather: Weather = UNKNOWN_WEATHER) -> Estimate:
        """Return the difference from the published figure; its error is what the margin stands for."""
        del weather
        levels = [math.log(each.median_us) for each in measurements]
        return Estimate(
            difference=sum(levels) / len(levels) - math.log(self.published.median_us),
            error=self.limit / self.rule.screen_z,
            dof=math.inf,
            processes=len(levels),
        )

    def is_suspect(self, measurement: Measurement, weather: Weather | None = None) -> bool:
        """Say whether it is slower by more than the margin."""
        del weather
        return self.estimate([measurement]).difference > self.limit

    def is_faster(self, measurement: Measurement) -> bool:
        """Say whether it is faster by more than the margin."""
        return self.estimate([measurement]).difference < -self.limit

    def decide(self, measurements: Sequence[Measurement], weather: Weather, family: float) -> Decision:
        """Decide after the first look: more processes would not tell more of a single figure."""
        del family
        if self.estimate(measurements, weather).difference <= self.limit:
            return Decision.CLEAR
        return Decision.SLOWER if len(measurements) >= self.rule.looks[0] else Decision.OPEN

    def smallest_visible(self, measurements: Sequence[Measurement], weather: Weather, family: float) -> float:
        """Return the margin: nobody knows how far the figure scatters."""
        del measurements, weather, family
        return math.expm1(self.limit)


class StoredRuns:
    """The stored runs of a platform as the rule sees them: references of cases, noise of classes."""

    def __init__(self, entries: Mapping[str, Entry], *, rule: Rule, platform: Platform | None) -> None:
        self._rule = rule
        self._platform = platform
        self._by_bound: dict[str, list[Entry]] = {}
        for entry in entries.values():
            if entry.runs:
                self._by_bound.setdefault(bound_of(entry.work, platform), []).append(entry)
        self._noise: dict[str, Noise] = {}

    def noise(self, bound: str) -> Noise:
        """Return the noise of the cases with this limit."""
        if bound not in self._noise:
            histories = []
            for entry in self._by_bound.get(bound, ()):
                for board in entry.boards:
                    runs = entry.on_board(board).runs
                    slope = self._slope(runs, SLOPES_IN_TIME[bound])
                    histories.append([run.level(slope) for run in runs])
            self._noise[bound] = pooled_noise(histories, STORED_NOISE)
        return self._noise[bound]

    @staticmethod
    def _slope(runs: Sequence[Run], assumed: float) -> float:
        controls = [run.control_us for run in runs if run.control_us]
        if len(controls) < len(runs):  # a process may have lacked the memory for its control
            return 0.0
        times = [run.median_us for run in runs]
        pairs = [(math.log(control), math.log(us)) for control, us in zip(controls, times, strict=True)]
        return slope_of(pairs, assumed)

    def compare(self, entry: Entry, device: Device, control: str) -> Comparison:
        """Return what a case with this entry is held against on `device`, beside this control."""
        if entry.published is not None:
            return PublishedComparison(rule=self._rule, published=entry.published)
        bound = bound_of(entry.work, self._platform)
        # A case follows its control otherwise from board to board than from process to process, too.
        held_against = entry.on_board(device.uuid)
        runs = held_against.runs
        other_board = device.uuid not in held_against.boards
        # Of two controls, or versions of one, nobody knows how they compare.
        assumed = (SLOPES if other_board else SLOPES_IN_TIME)[bound]
        slope = self._slope(runs, assumed) if control and control == entry.control else 0.0
        noise = self.noise(bound)
        controls = [math.log(run.control_us) for run in runs if run.control_us] if slope else []
        return StoredComparison(
            rule=self._rule,
            entry=entry,
            held_against=held_against,
            reference=reference_of([run.level(slope) for run in runs], noise, other_board=other_board),
            slope=slope,
            other_board=other_board,
            plain=reference_of([run.level(0.0) for run in runs], noise, other_board=other_board),
            forecast=weather_of((), noise, self._rule, other_board=other_board),
            control_level=sum(controls) / len(controls) if controls else 0.0,
            slope_variance=slope_variance(controls) if controls else 0.0,
        )
