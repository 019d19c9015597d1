"""What a measurement is compared with: stored runs, a paired baseline kernel, a published figure."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from pytest_cutile.baselines.entries import Entry, Published, Run, environment_changes
from pytest_cutile.baselines.merge import MergeLimits
from pytest_cutile.platforms.data import Platform
from pytest_cutile.speed.decide import (
    NO_SESSION_EFFECT,
    STORED_NOISE,
    BaselineLogTime,
    Decision,
    Estimate,
    LogTime,
    Noise,
    Rule,
    SessionEffect,
    baseline_log_time,
    paired_estimate,
    pooled_noise,
    session_effect_of,
    slope_of,
    slope_variance,
)
from pytest_cutile.speed.measure.timing import Device, Measurement, bound_of

SLOPES: Mapping[str, float] = MappingProxyType({"TFLOPS": 0.8, "GB/s": 0.6})
"""Share of the reference workload's movement between GPUs that a case is assumed to follow, by its limit.

From one H200 to another the matrix product moved by 2 to 4 %, and matrix products of cuTile by 0.4 to 1.1
times as much; between hosts the copy moved by 3 %, and eight memory-bound kernels by 0.3 to 1 times as much
(research/reports/speed-gate.md). Stored runs of several GPUs tell the slope of each case (`slope_of`).
"""
SLOPES_IN_TIME: Mapping[str, float] = MappingProxyType({"TFLOPS": 0.7, "GB/s": 0.1})
"""The same share on one GPU, between processes and sessions.

In the processes of research/data it was 0.1 to 1.3 and -0.3 to 0.5 (research/reports/speed-gate.md).
"""


class Comparison(ABC):
    """What one case is compared with. An effect is that of the session on the case's stratum."""

    rule: Rule
    baseline_us: float | None
    """Time per launch that is shown as the baseline; None if it comes with the measurement."""

    @abstractmethod
    def estimate(
        self, measurements: Sequence[Measurement], effect: SessionEffect = NO_SESSION_EFFECT
    ) -> Estimate:
        """Return the difference that these measurements, one per process, show."""

    def unadjusted(self) -> Comparison:
        """Return the comparison without the reference workload, which a disturbance may slow down more."""
        return self

    def with_clock(
        self, measurement: Measurement, environment: Callable[[], Mapping[str, str]]
    ) -> Measurement:
        """Return the measurement, marked if its clock is lower than the baseline's."""
        del environment
        return measurement

    def change(self, measurements: Sequence[Measurement], effect: SessionEffect = NO_SESSION_EFFECT) -> float:
        """Return the relative change of the time per launch: +0.05 is 5 % slower."""
        return math.expm1(self.estimate(measurements, effect).difference)

    def is_suspect(self, measurement: Measurement, effect: SessionEffect | None = None) -> bool:
        """Say whether a screened case could be slower by the margin; `effect` is None while it is unknown."""
        return self.estimate([measurement], effect or NO_SESSION_EFFECT).is_suspect(self.rule)

    def is_faster(self, measurement: Measurement) -> bool:
        return self.estimate([measurement]).is_faster(self.rule)

    def decide(
        self, measurements: Sequence[Measurement], effect: SessionEffect, n_comparisons: float
    ) -> Decision:
        """Decide about a suspect by its measurements in fresh processes."""
        return self.estimate(measurements, effect).decide(self.rule, n_comparisons)

    def smallest_visible(
        self, measurements: Sequence[Measurement], effect: SessionEffect, n_comparisons: float
    ) -> float:
        """Return the smallest slowdown, as a fraction, that such measurements would have shown."""
        return self.estimate(measurements, effect).smallest_visible(self.rule, n_comparisons)


@dataclass(frozen=True, kw_only=True)
class StoredComparison(Comparison):
    """With the stored runs of the case."""

    rule: Rule
    entry: Entry
    """What is recorded of the case, on all GPUs."""
    selected: Entry
    """The entry with the runs that count: those of the GPU at hand, if it has any."""
    baseline: BaselineLogTime
    unadjusted_baseline: BaselineLogTime
    """The same of times that are not adjusted by the reference workload."""
    slope: float
    """Share of the reference workload's movement that the case follows; 0 where workloads differ."""
    other_gpu: bool
    """Whether none of the runs is of the GPU at hand."""
    prior_effect: SessionEffect = NO_SESSION_EFFECT
    """What is known of the session effect before the stratum has shown it."""
    workload_log_time: float = 0.0
    slope_variance: float = 0.0

    @property
    def baseline_us(self) -> float:  # type: ignore[override]
        return self.selected.reference_us

    def unadjusted(self) -> StoredComparison:
        return replace(self, slope=0.0, slope_variance=0.0, baseline=self.unadjusted_baseline)

    def with_clock(
        self, measurement: Measurement, environment: Callable[[], Mapping[str, str]]
    ) -> Measurement:
        """Return the measurement, marked if its clock is lower than the selected runs' for no known reason.

        NVML reports a clock that is held down as usual while the power is capped. Another driver or
        power limit explains a lower clock, and the verdict names it.
        """
        low = self.selected.low_clock(measurement.clock_mhz)
        if low and environment_changes(self.selected.environment, environment()):
            low = ""
        return replace(measurement, low_clock=low)

    def is_suspect(self, measurement: Measurement, effect: SessionEffect | None = None) -> bool:
        """Say whether a screened case could be slower by the margin; `effect` is None while it is unknown.

        On a disturbed GPU neither the reference workload nor other cases explain a slow case. If the case is
        as fast as recorded while the reference workload is slower, there is nothing to explain.
        """
        if measurement.doubts:
            unadjusted = self.unadjusted().estimate([measurement], self.prior_effect)
            if unadjusted.is_suspect(self.rule, other_gpu=self.other_gpu):
                return True
            _, workload_us = measurement.best_pair(self.slope)
            if self._workload_movement(workload_us) > 0:
                return False
        estimate = self.estimate([measurement], effect or self.prior_effect)
        return estimate.is_suspect(self.rule, other_gpu=self.other_gpu)

    def _workload_movement(self, workload_us: float | None) -> float:
        """Return by how much the reference workload is slower than in the stored runs, as a logarithm."""
        return math.log(workload_us) - self.workload_log_time if workload_us else 0.0

    def log_time(self, measurement: Measurement) -> float:
        """Return the log time of the fastest placement, adjusted by the reference workload."""
        return self._log_time(*measurement.best_pair(self.slope))

    def _log_time(self, us: float, workload_us: float | None) -> float:
        return math.log(us) - (self.slope * math.log(workload_us) if workload_us else 0.0)

    def estimate(
        self, measurements: Sequence[Measurement], effect: SessionEffect = NO_SESSION_EFFECT
    ) -> Estimate:
        pairs = [measurement.best_pair(self.slope) for measurement in measurements]
        return self._estimate(pairs, effect)

    def _estimate(self, pairs: Sequence[tuple[float, float | None]], effect: SessionEffect) -> Estimate:
        """Return the difference by the times of case and reference workload, one pair for each process."""
        movements = [self._workload_movement(us) for _, us in pairs if us]
        variance = self.slope_variance * (sum(movements) / len(movements)) ** 2 if movements else 0.0
        log_times = [self._log_time(us, workload_us) for us, workload_us in pairs]
        return Estimate.of(log_times, self.baseline, effect, workload_variance=variance)

    def estimate_of_times(
        self, times_us: Sequence[float], screening: Measurement, effect: SessionEffect = NO_SESSION_EFFECT
    ) -> Estimate:
        """Return the difference of times without a reference workload: the screening's stands in."""
        _, workload_us = screening.best_pair(self.slope)
        return self._estimate([(us, workload_us) for us in times_us], effect)


@dataclass(frozen=True, kw_only=True)
class PairedComparison(Comparison):
    """With the baseline kernel of another revision, interleaved on the same buffers (A/B)."""

    rule: Rule
    revision: str
    baseline_us: float | None = None

    def estimate(
        self, measurements: Sequence[Measurement], effect: SessionEffect = NO_SESSION_EFFECT
    ) -> Estimate:
        """Return the difference between the two; a session acts on both alike."""
        del effect
        return paired_estimate(
            [[block.log_ratio for block in measurement.blocks] for measurement in measurements]
        )


@dataclass(frozen=True, kw_only=True)
class PublishedComparison(Comparison):
    """With one published figure, whose scatter is unknown."""

    rule: Rule
    published: Published

    @property
    def limit(self) -> float:
        """Slowdown that it can be trusted to show, as a logarithm."""
        return math.log1p(self.published.margin)

    @property
    def baseline_us(self) -> float:  # type: ignore[override]
        return self.published.median_us

    def estimate(
        self, measurements: Sequence[Measurement], effect: SessionEffect = NO_SESSION_EFFECT
    ) -> Estimate:
        """Return the difference from the published figure; the margin stands for its error."""
        del effect
        log_times = [math.log(measurement.median_us) for measurement in measurements]
        return Estimate(
            difference=sum(log_times) / len(log_times) - math.log(self.published.median_us),
            error=self.limit / self.rule.screen_z,
            dof=math.inf,
            processes=len(log_times),
        )

    def is_suspect(self, measurement: Measurement, effect: SessionEffect | None = None) -> bool:
        del effect
        return self.estimate([measurement]).difference > self.limit

    def is_faster(self, measurement: Measurement) -> bool:
        return self.estimate([measurement]).difference < -self.limit

    def decide(
        self, measurements: Sequence[Measurement], effect: SessionEffect, n_comparisons: float
    ) -> Decision:
        """Decide at the first look: more processes do not make a single figure more certain."""
        del n_comparisons
        if self.estimate(measurements, effect).difference <= self.limit:
            return Decision.CLEAR
        return Decision.SLOWER if len(measurements) >= self.rule.looks[0] else Decision.PENDING

    def smallest_visible(
        self, measurements: Sequence[Measurement], effect: SessionEffect, n_comparisons: float
    ) -> float:
        del measurements, effect, n_comparisons
        return math.expm1(self.limit)


def log_time(run: Run, slope: float) -> LogTime:
    """Return the log time of a stored run, less what the reference workload explains of it."""
    workload = run.workload_us**slope if run.workload_us else 1.0
    return LogTime(value=math.log(run.median_us / workload), session=run.session, gpu=run.gpu_uuid)


def merge_limits(rule: Rule) -> MergeLimits:
    """Return by how much merged runs may be slower than stored runs without a reason."""

    def is_a_step(baseline: Entry, current: Entry) -> bool:
        known = [log_time(run, 0.0) for run in baseline.runs]
        reference = baseline_log_time(known, STORED_NOISE, other_gpu=not current.gpus <= baseline.gpus)
        return Estimate.of([log_time(run, 0.0).value for run in current.runs], reference).is_a_step(rule)

    return MergeLimits(
        margin=rule.margin, margin_on_new_gpu=math.expm1(rule.limit_on_other_gpu), is_a_step=is_a_step
    )


class StoredRuns:
    """The stored runs of a kind of GPU, and the noise that they show."""

    def __init__(self, entries: Mapping[str, Entry], *, rule: Rule, platform: Platform | None) -> None:
        self._rule = rule
        self._platform = platform
        self._by_bound: dict[str, list[Entry]] = {}
        for entry in entries.values():
            if entry.runs:
                self._by_bound.setdefault(bound_of(entry.work, platform), []).append(entry)
        self._noise: dict[str, Noise] = {}

    def noise(self, bound: str) -> Noise:
        if bound not in self._noise:
            histories = []
            for entry in self._by_bound.get(bound, ()):
                for gpu in entry.gpus:
                    runs = entry.on_gpu(gpu).runs
                    slope = self._slope(runs, SLOPES_IN_TIME[bound])
                    histories.append([log_time(run, slope) for run in runs])
            self._noise[bound] = pooled_noise(histories, STORED_NOISE)
        return self._noise[bound]

    @staticmethod
    def _slope(runs: Sequence[Run], assumed: float) -> float:
        workloads = [run.workload_us for run in runs if run.workload_us]
        if len(workloads) < len(runs):  # a process may have lacked the memory for it
            return 0.0
        pairs = [
            (math.log(workload_us), math.log(run.median_us))
            for workload_us, run in zip(workloads, runs, strict=True)
        ]
        return slope_of(pairs, assumed)

    def compare(self, entry: Entry, device: Device, workload: str) -> Comparison:
        if entry.published is not None:
            return PublishedComparison(rule=self._rule, published=entry.published)
        bound = bound_of(entry.work, self._platform)
        selected = entry.on_gpu(device.uuid)
        runs = selected.runs
        other_gpu = device.uuid not in selected.gpus
        noise = self.noise(bound)
        # Two reference workloads, or two versions of one, cannot be compared.
        assumed = (SLOPES if other_gpu else SLOPES_IN_TIME)[bound]
        slope = self._slope(runs, assumed) if workload and workload == entry.reference_workload else 0.0
        workloads = [math.log(run.workload_us) for run in runs if run.workload_us] if slope else []

        def baseline(slope: float) -> BaselineLogTime:
            return baseline_log_time([log_time(run, slope) for run in runs], noise, other_gpu=other_gpu)

        return StoredComparison(
            rule=self._rule,
            entry=entry,
            selected=selected,
            baseline=baseline(slope),
            unadjusted_baseline=baseline(0.0),
            slope=slope,
            other_gpu=other_gpu,
            prior_effect=session_effect_of((), noise, self._rule, other_gpu=other_gpu),
            workload_log_time=sum(workloads) / len(workloads) if workloads else 0.0,
            slope_variance=slope_variance(workloads) if workloads else 0.0,
        )
