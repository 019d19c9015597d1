"""The rule of the speed gate: screen each case once, then confirm suspects in fresh processes.

All of it is arithmetic on log ratios: the logarithm of today's time per launch over the baseline kernel's,
both measured interleaved by one process on one GPU. 0.02 is a slowdown of 2 %.

1. **Screen** (`is_suspect`). One process measures each case. A case stays a suspect unless an upper
   confidence limit of its log ratio is below the margin. What selected a suspect is no evidence about it.
2. **Confirm** (`decide`). After 3, 6 and 12 fresh processes a suspect is slower if a one-sided t-test says so
   and its mean is above half of the margin. It is cleared if an upper confidence limit is below the margin.

The test is the moderated t-test of Smyth ("Linear models and empirical Bayes methods", Statistical
Applications in Genetics and Molecular Biology 3, 2004): a case's variance is pooled with a prior (`NOISE`).
The lowest and the highest of five processes or more are trimmed (Tukey and McLaughlin, Sankhya A 25, 1963).
The looks share the error of the run by Bonferroni, and the comparisons of one look by Holm ("A simple
sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979).
`python -m research.speed_rule` simulates how often the rule is wrong (research/reports/speed-rule.md).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from pytest_cutile.words.statistics import (
    TRIMMED_FROM,
    median,
    standard_error,
    t_quantile,
    t_tail,
    trimmed_mean,
)
from pytest_cutile.words.timing import Regime

if TYPE_CHECKING:
    from pytest_cutile.words.settings import Settings

Key = TypeVar("Key", bound=Hashable)

STORED_MARGIN = 0.055
"""Slowdown, as a fraction, that GPUs of one kind, their sessions and drivers do not make: see
research/reports/speed-rule.md."""
STORED_FLOOR_US = 2.0
"""Slowdown of a launch, in us, that they may make: on another host most launches take 1 to 2 us more or less,
whatever their length (research/reports/speed-runs.md, "From host to host")."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The thresholds of the speed gate."""

    margin: float = 0.02
    """The slowdown that must not be missed, as a fraction; less than half of it never fails."""
    alpha: float = 0.005
    """How often a run in which nothing got slower may fail, whatever the number of its cases."""
    screened_out: float = 0.01
    """How often the screening may leave out a case that is slower by the margin."""
    missed: float = 0.0025
    """How often a look may clear a suspect that is slower by the margin."""
    looks: tuple[int, ...] = (3, 6, 12)
    """Numbers of fresh processes after which a suspect may be decided; the last one is the most."""

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1:
            raise ValueError(f"the margin must be a fraction between 0 and 1, got {self.margin}")

    @classmethod
    def of(cls, settings: Settings) -> Rule:
        """Return the rule of a run."""
        return cls() if settings.perf_margin is None else cls(margin=settings.perf_margin)

    @property
    def limit(self) -> float:
        """The margin as a log ratio."""
        return math.log1p(self.margin)

    @property
    def least(self) -> float:
        """The smallest log ratio that is called slower, or faster."""
        return math.log1p(self.margin / 2)

    @property
    def stored_margin(self) -> float:
        """The slowdown against stored times, of other sessions and perhaps other GPUs, that is believed."""
        return max(STORED_MARGIN, self.margin)

    def stored_margin_of(self, stored_us: float) -> float:
        """Return the same for a stored time per launch: less than `STORED_FLOOR_US` is never believed."""
        return max(self.stored_margin, STORED_FLOOR_US / stored_us)

    @property
    def alpha_of_look(self) -> float:
        return self.alpha / len(self.looks)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How much the log ratio of two equal kernels scatters from process to process.

    What a process's own placements and segments show comes on top of that (`Sample.error`).
    """

    deviation: float
    """Usual standard deviation."""
    dof: float
    """Degrees of freedom of the prior variance: with more processes than that, a case's own variance
    outweighs it."""


NOISE: Mapping[Regime, Noise] = {
    Regime.BURST: Noise(deviation=0.001, dof=4),
    Regime.SUSTAINED: Noise(deviation=0.003, dof=4),
}
"""Kernels against themselves on H200s: research/reports/speed-regimes.md. Few degrees of freedom, since cases
differ in how much they scatter."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What one process measured of a case in one regime."""

    log_ratio: float
    error: float = 0.0
    """Its standard error, as far as the placements and segments of that process tell."""
    tick: float = 0.0
    """Resolution of the timer over the time per launch: smaller differences cannot be seen."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A log ratio, and how well it is known."""

    value: float
    error: float
    """Standard error."""
    dof: float
    """Degrees of freedom of `error`."""
    tick: float = 0.0

    def upper(self, missed: float) -> float:
        """Return the limit that the true log ratio exceeds with probability `missed`."""
        return self.value + t_quantile(1 - missed, self.dof) * self.error

    def lower(self, missed: float) -> float:
        return self.value - t_quantile(1 - missed, self.dof) * self.error

    @property
    def p_slower(self) -> float:
        """Probability of a log ratio as high as this one if the two kernels are equally fast."""
        t = (self.value - self.tick) / self.error
        return t_tail(t, self.dof) if t > 0 else 1.0

    @property
    def change(self) -> float:
        """The change of the time per launch: +0.02 is 2 % slower."""
        return math.expm1(self.value)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the two-sided confidence interval of `change`."""
        missed = (1 - confidence) / 2
        return math.expm1(self.lower(missed)), math.expm1(self.upper(missed))


def estimate(samples: Sequence[Sample], noise: Noise) -> Estimate:
    """Estimate a log ratio from one sample for each process: trimmed mean and moderated variance."""
    values = [sample.log_ratio for sample in samples]
    usual = noise.deviation**2 + sum(sample.error**2 for sample in samples) / len(samples)
    # Trimming leaves out what one process alone has met: a hiccup of the GPU.
    count = len(values) - (2 if len(values) >= TRIMMED_FROM else 0)
    dof = noise.dof + count - 1
    squares = standard_error(values) ** 2 * len(values) * (count - 1) if count > 1 else 0.0
    variance = (noise.dof * usual + squares) / dof
    return Estimate(
        value=trimmed_mean(values),
        error=math.sqrt(variance / len(values)),
        dof=dof,
        tick=max(sample.tick for sample in samples),
    )


def is_suspect(sample: Sample, noise: Noise, rule: Rule) -> bool:
    return not is_clear(estimate([sample], noise), rule, rule.screened_out)


def is_clear(estimated: Estimate, rule: Rule, missed: float) -> bool:
    """Say whether a case is not slower by the margin, and known well enough to say so.

    A case that scatters much may look fast by chance: its standard error has to be below a quarter of the
    margin.
    """
    is_known = estimated.error <= rule.limit / 4 + estimated.tick
    return is_known and estimated.upper(missed) < rule.limit + estimated.tick


def is_faster(estimated: Estimate, rule: Rule) -> bool:
    return estimated.value < -rule.limit and estimated.upper(rule.missed) < -estimated.tick


class Decision(Enum):
    """What the fresh processes say of a suspect."""

    SLOWER = "slower"
    CLEAR = "clear"
    """Not slower by the margin."""
    UNDECIDED = "undecided"


def decide(estimates: Mapping[Key, Estimate], rule: Rule, *, n_comparisons: int) -> dict[Key, Decision]:
    """Decide at one look what is not decided yet, of `n_comparisons` that were selected before the first."""
    decisions = dict.fromkeys(estimates, Decision.UNDECIDED)
    # Holm's procedure: the most significant first; the first that fails its level ends it.
    remaining = max(n_comparisons, len(estimates))
    for key in sorted(estimates, key=lambda key: estimates[key].p_slower):
        if estimates[key].p_slower > rule.alpha_of_look / remaining:
            break
        remaining -= 1
        if estimates[key].value > rule.least + estimates[key].tick:
            decisions[key] = Decision.SLOWER
    for key, estimated in estimates.items():
        if decisions[key] is Decision.UNDECIDED and is_clear(estimated, rule, rule.missed):
            decisions[key] = Decision.CLEAR
    return decisions


def decide_stored(log_ratios: Sequence[float], rule: Rule, *, margin: float) -> Decision:
    """Decide by stored times alone: log ratios of today's time over the stored one, one for each process.

    `margin` is a plain one, as a fraction: other sessions, GPUs and drivers move times by percents that no
    interval shows. The median leaves out what one process alone has met.
    """
    middle = median(log_ratios)
    if middle > math.log1p(margin):
        return Decision.SLOWER
    return Decision.CLEAR if middle < rule.limit else Decision.UNDECIDED
