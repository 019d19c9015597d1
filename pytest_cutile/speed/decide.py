"""The rule of the speed gate: screen every case once, then confirm suspects in fresh processes.

Everything is arithmetic on log times: the logarithm of the time that one process measured, adjusted by the
reference workload's (`LogTime`). A difference of 0.02 is a slowdown of 2 %. The noise is estimated from the
stored runs of all cases, on top of what was measured on H200s (research/reports/speed-gate.md);
`python -m research.speed_rule` shows what the rule catches and how often it is wrong.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

from pytest_cutile.statistics import median, sum_of_squares, t_quantile


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The thresholds of the speed gate."""

    margin: float = 0.02
    """The slowdown that must not be missed, as a fraction; less than half of it never fails."""
    alpha: float = 0.005
    """How often a run in which nothing got slower may fail, whatever the number of its cases."""
    looks: tuple[int, ...] = (3, 6, 12)
    """Numbers of fresh processes after which a suspect may be called slower; the last one is the most."""
    screen_z: float = 2.6
    """Standard errors that the screening leaves room for: it misses the margin 5 times in 1000, whatever its
    standard error, if that is right."""
    missed: float = 0.0025
    """How often fresh processes may clear, at each number of them, a suspect that is slower by the margin."""
    runs_per_session: int = 3
    """Processes that `--update-baselines` measures each case in."""

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1:
            raise ValueError(f"the margin must be a fraction between 0 and 1, got {self.margin}")

    @property
    def limit(self) -> float:
        """The margin as a difference of log times."""
        return math.log1p(self.margin)

    @property
    def limit_on_other_gpu(self) -> float:
        """The margin of the screening against other GPUs' runs: half as much again.

        GPUs of one kind differ by 0.8 %, case by case. A screening that misses no 2 % there would make nearly
        every case a suspect.
        """
        return math.log1p(1.5 * self.margin)

    @property
    def least(self) -> float:
        """The smallest difference of log times that is called slower."""
        return math.log1p(self.margin / 2)

    @property
    def least_step(self) -> float:
        """The smallest difference of log times for which a baseline of other code needs a reason."""
        return math.log1p(self.margin / 4)


@dataclass(frozen=True, kw_only=True)
class LogTime:
    """What one process measured of one case."""

    value: float
    """Logarithm of the time, adjusted by the reference workload's where that is known."""
    session: str
    """The run it belongs to: log times of one session share its effect."""
    gpu: str


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Standard deviations of log times: the components of a nested random-effects model."""

    process: float
    """Between processes of one session on one GPU."""
    session: float
    """Between sessions, without the part that the cases of a stratum share."""
    gpu: float
    """Between GPUs of one kind, without the part that the cases of a stratum share."""
    shared: float
    """Between sessions, the part that the cases of a stratum share."""
    shared_gpu: float
    """Between GPUs of one kind, the part that the cases of a stratum share."""


STORED_NOISE = Noise(process=0.0035, session=0.001, gpu=0.008, shared=0.001, shared_gpu=0.008)
"""Of H200s (research/reports/speed-gate.md): assumed until the stored runs tell more."""
PAIRED_PROCESS = 0.0015
"""Standard deviation between processes of the log ratio of two interleaved kernels, in addition to what its
placements show. Session and GPU act on both alike."""
PAIRED_PLACEMENTS = 1.5
"""Factor by which that log ratio scatters more between processes than if a process drew its placements at
random from all: 0.3 to 2.8, 1.4 in the median of ten cases on H200s."""
ASSUMED_DOF = 20.0
"""Degrees of freedom of an assumed standard deviation."""
SLOPE_WEIGHT = 3e-4
"""Sum of squared movements of a reference workload from which a case's own slope counts more than the assumed
one: the variance of runs that scatter by 0.5 %, over that of slopes that differ by 0.3 from case to case."""
SLOPE_SCATTER = 0.005
"""Standard deviation of runs that `SLOPE_WEIGHT` assumes."""
STEEPEST = 1.2
"""Largest plausible slope."""
CASE_DOF = 4.0
"""Degrees of freedom of the pooled noise in the noise of one case."""
STEADY_SESSIONS = 4
"""Sessions of a baseline from which a stratum that is slower by `Rule.least` is not a session effect."""
LEAST_CENTRED = 10
"""Cases of a stratum from which their session effect, and its scatter, are estimated."""


def pooled_noise(histories: Iterable[Sequence[LogTime]], assumed: Noise = STORED_NOISE) -> Noise:
    """Return the noise of the typical case: the assumed one, updated by stored log times.

    Typical, not mean: one unsteady kernel must not make all others look unsteady. What it does to its own
    case is in `BaselineLogTime` and `Estimate`.
    """
    process, session = _Typical(assumed.process), _Typical(assumed.session)
    for history in histories:
        by_gpu = _by_gpu(history)
        sessions = [values for sessions in by_gpu.values() for values in sessions]
        within = sum(sum_of_squares(values) for values in sessions)
        dof = sum(len(values) - 1 for values in sessions)
        process.add(within, dof)
        session.add(*_between_sessions(by_gpu, within / dof if dof else assumed.process**2))
    return replace(assumed, process=process.deviation, session=session.deviation)


class _Typical:
    """A standard deviation: an assumed one, updated by the mean squares of cases."""

    def __init__(self, assumed: float) -> None:
        self._assumed = assumed
        self._squares: list[tuple[float, int]] = []

    def add(self, squares: float, dof: int) -> None:
        if dof:
            self._squares.append((squares / dof, dof))

    @property
    def deviation(self) -> float:
        if not self._squares:
            return self._assumed
        dof = sum(case_dof for _, case_dof in self._squares)
        mean_dof = dof / len(self._squares)
        # The median of a chi-square variable over its mean (Wilson and Hilferty, 1931).
        typical = max(median([square for square, _ in self._squares]), 0.0) / (1 - 2 / (9 * mean_dof)) ** 3
        return math.sqrt((ASSUMED_DOF * self._assumed**2 + dof * typical) / (ASSUMED_DOF + dof))


def slope_of(pairs: Sequence[tuple[float, float]], assumed: float) -> float:
    """Return the share of the reference workload's movement that a case follows: a shrunk regression slope.

    A kernel that the tensor cores' clock limits moves between GPUs as a matrix product does; one that waits
    for memory half of the time moves less. On one GPU little moves, so its runs tell little.

    Args:
        pairs: log times of the reference workload and of the case, one pair per stored run.
        assumed: slope to shrink to.
    """
    if not pairs:
        return assumed
    mean_workload = _mean([workload for workload, _ in pairs])
    mean_case = _mean([case for _, case in pairs])
    squares = sum((workload - mean_workload) ** 2 for workload, _ in pairs)
    products = sum((workload - mean_workload) * (case - mean_case) for workload, case in pairs)
    slope = (SLOPE_WEIGHT * assumed + products) / (SLOPE_WEIGHT + squares)
    return min(max(slope, 0.0), STEEPEST)


def slope_variance(workloads: Sequence[float]) -> float:
    """Return the variance of a case's slope, by the reference workload's log times in the stored runs."""
    return SLOPE_SCATTER**2 / (SLOPE_WEIGHT + sum_of_squares(workloads))


def _by_gpu(history: Sequence[LogTime]) -> dict[str, list[list[float]]]:
    sessions: dict[tuple[str, str], list[float]] = defaultdict(list)
    for log_time in history:
        sessions[log_time.gpu, log_time.session].append(log_time.value)
    by_gpu: dict[str, list[list[float]]] = defaultdict(list)
    for (gpu, _), values in sessions.items():
        by_gpu[gpu].append(values)
    return by_gpu


def _means(sessions: Sequence[Sequence[float]]) -> list[float]:
    return [_mean(values) for values in sessions]


def _between_sessions(by_gpu: Mapping[str, Sequence[Sequence[float]]], process: float) -> tuple[float, int]:
    """Return the sum of squares between the sessions of a GPU, over all GPUs, and its degrees of freedom."""
    squares, dof = 0.0, 0
    for sessions in by_gpu.values():
        of_process = sum(process / len(values) for values in sessions) / len(sessions)
        squares += sum_of_squares(_means(sessions)) - (len(sessions) - 1) * of_process
        dof += len(sessions) - 1
    return squares, dof


@dataclass(frozen=True, kw_only=True)
class BaselineLogTime:
    """What a case is compared with, and how well that is known."""

    value: float
    """Log time to expect."""
    of_sessions: float
    """Variance of `value` by its sessions and GPUs."""
    per_process: float
    """Variance of `value` by its processes, in units of one process: a third for three of them."""
    between: float
    """Variance that the session and GPU at hand are assumed to add to this case."""
    squares: float
    """Sum of squares of this case between processes."""
    dof: float
    """Degrees of freedom of `squares`."""


def baseline_log_time(history: Sequence[LogTime], noise: Noise, *, other_gpu: bool) -> BaselineLogTime:
    """Return what a case with this history is compared with: the mean over GPUs of means over sessions.

    Args:
        history: at least one log time: of the GPU at hand alone, or of other GPUs.
        noise: of the stored runs.
        other_gpu: whether the history is of other GPUs.
    """
    by_gpu = _by_gpu(history)
    sessions = [values for sessions in by_gpu.values() for values in sessions]
    # A case is allowed its own scatter between processes, shrunk to the scatter of all cases,
    squares = CASE_DOF * noise.process**2 + sum(sum_of_squares(values) for values in sessions)
    process_dof = CASE_DOF + sum(len(values) - 1 for values in sessions)
    process = squares / process_dof
    # and its own scatter between sessions.
    session_squares, session_dof = _between_sessions(by_gpu, process)
    of_session = (CASE_DOF * noise.session**2 + max(session_squares, 0.0)) / (CASE_DOF + session_dof)
    of_gpu = noise.gpu**2 if other_gpu else 0.0
    gpus = [*by_gpu.values()]
    shares = [1 / (len(gpus) * len(sessions)) ** 2 for sessions in gpus for _ in sessions]
    per_process = sum(share / len(values) for share, values in zip(shares, sessions, strict=True))
    return BaselineLogTime(
        value=_mean([_mean(_means(sessions)) for sessions in gpus]),
        of_sessions=of_session * sum(shares) + of_gpu / len(gpus),
        per_process=per_process,
        between=of_session + of_gpu,
        squares=squares,
        dof=process_dof,
    )


@dataclass(frozen=True, kw_only=True)
class SessionEffect:
    """What a session does to all cases of a stratum."""

    shift: float = 0.0
    """Median of the cases' differences from their baselines."""
    slower: bool = False
    """Whether that is a slowdown of the whole stratum rather than an effect of this session."""
    faster: bool = False
    """Whether most cases have become faster, by more than a session explains."""
    between: float = 1.0
    """Variance that the session and its GPU add to single cases, over the assumed one."""
    dof: float = ASSUMED_DOF
    """Degrees of freedom behind `between`."""
    unseen: float = 0.0
    """Variance of the effect, where too few cases show it or too many have changed."""
    cases: int = 0
    """Number of cases it is estimated from."""

    @property
    def removed(self) -> float:
        """What to subtract from each case's difference.

        A slowdown of all cases is not explained away. Where most have become faster, the others have not
        become slower.
        """
        return 0.0 if self.slower or self.faster else self.shift


NO_SESSION_EFFECT = SessionEffect()


def session_effect_of(
    screened: Sequence[tuple[float, BaselineLogTime]], noise: Noise, rule: Rule, *, other_gpu: bool
) -> SessionEffect:
    """Estimate the effect of the session at hand on a stratum."""
    n = len(screened)
    # Both the stored runs and today's have an effect of session and GPU in them: twice the variance.
    usual = math.sqrt(2.0) * math.hypot(noise.shared, noise.shared_gpu if other_gpu else 0.0)
    if n < LEAST_CENTRED:
        return SessionEffect(unseen=usual**2)
    differences = [log_time - baseline.value for log_time, baseline in screened]
    shift = median(differences)
    # What the cases scatter around their median, less its known parts, is the session's. The median absolute
    # deviation tolerates that a quarter of the cases has really changed.
    scatter = (1.4826 * median([abs(value - shift) for value in differences])) ** 2
    baselines = [baseline for _, baseline in screened]
    known = _mean([base.of_sessions + (1 + base.per_process) * base.squares / base.dof for base in baselines])
    assumed = _mean([base.between for base in baselines])
    ratio = max(scatter - known, 0.0) / assumed if assumed else 1.0
    ratio_dof = 0.37 * n  # the efficiency of the median absolute deviation (Hampel, 1974)
    # Fewer than `STEADY_SESSIONS` leave more of their own session effects in the baselines.
    sessions = [base.between / base.of_sessions if base.of_sessions else math.inf for base in baselines]
    widening = math.sqrt((1 + 1 / median(sessions)) / (1 + 1 / STEADY_SESSIONS))
    largest = max(rule.least * max(widening, 1.0), 3 * usual)
    return SessionEffect(
        shift=shift,
        slower=shift > largest,
        faster=shift < -largest,
        between=(ASSUMED_DOF + ratio_dof * ratio) / (ASSUMED_DOF + ratio_dof),
        dof=ASSUMED_DOF + ratio_dof,
        unseen=2 * usual**2 if shift < -largest else 0.0,
        cases=n,
    )


class Decision(Enum):
    """What the fresh processes so far say about one suspect."""

    CLEAR = "clear"
    """It is not slower by the margin."""
    SLOWER = "slower"
    PENDING = "pending"
    """More processes may decide."""
    UNDECIDED = "undecided"
    """All processes that the rule allows did not decide."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The difference of a case from its baseline, by the log times of some processes."""

    difference: float
    """Mean log time less the baseline and the session effect; +0.02 is 2 % slower."""
    error: float
    """Standard error of `difference`."""
    dof: float
    """Degrees of freedom of `error`."""
    processes: int

    def __post_init__(self) -> None:
        # Every comparison with NaN is false, so a NaN would pass.
        if not (math.isfinite(self.difference) and math.isfinite(self.error)):
            raise ValueError(f"log times must be finite, got {self.difference} with an error of {self.error}")

    @classmethod
    def of(
        cls,
        log_times: Sequence[float],
        baseline: BaselineLogTime,
        effect: SessionEffect = NO_SESSION_EFFECT,
        *,
        workload_variance: float = 0.0,
    ) -> Estimate:
        """Return the estimate of `log_times`, at least one.

        Args:
            log_times: one for each process.
            baseline: what they are compared with.
            effect: of the session on the case's stratum.
            workload_variance: variance of the adjustment by the reference workload.
        """
        n = len(log_times)
        # Today's scatter of the case counts, too: a kernel that is noisier than others is no regression.
        process_dof = baseline.dof + n - 1
        process = (baseline.squares + sum_of_squares(log_times)) / process_dof
        of_process = process * (1 / n + baseline.per_process)
        of_session = baseline.of_sessions + baseline.between * effect.between + effect.unseen
        # The assumed variance between sessions and GPUs includes usual movements of the reference workload.
        of_session += max(workload_variance - baseline.between, 0.0)
        variance = of_process + of_session
        # Degrees of freedom of a sum of variances (Welch and Satterthwaite).
        dof = variance**2 / (of_process**2 / process_dof + of_session**2 / effect.dof)
        return cls(
            difference=_mean(log_times) - baseline.value - effect.removed,
            error=math.sqrt(variance),
            dof=dof,
            processes=n,
        )

    def is_suspect(self, rule: Rule, *, other_gpu: bool = False) -> bool:
        """Say whether this screening leaves room for a slowdown by the margin.

        An uncertain case that looks faster is a suspect, too.
        """
        limit = rule.limit_on_other_gpu if other_gpu else rule.limit
        return self.difference > limit - rule.screen_z * self.error

    def is_faster(self, rule: Rule) -> bool:
        """Say whether the case is faster by more than the margin and by more than noise."""
        return self.difference < -max(rule.limit, rule.screen_z * self.error)

    def is_a_step(self, rule: Rule) -> bool:
        """Say whether it is slower by a quarter of the margin, and by more than noise.

        Such steps could add up to anything if each came with other code.
        """
        return self.difference > max(rule.least_step, rule.screen_z * self.error)

    def is_beyond_chance(self, rule: Rule, n_comparisons: float) -> bool:
        """Say whether it is slower by the margin, and by more than chance explains in so many comparisons."""
        return self.difference > max(rule.limit, self._quantile(rule, n_comparisons) * self.error)

    def decide(self, rule: Rule, n_comparisons: float) -> Decision:
        """Decide about a suspect.

        Args:
            rule: the thresholds.
            n_comparisons: number of cases that could look slower by chance. The rule's alpha is divided by
                it, and by the number of looks (Bonferroni).
        """
        if self.difference + self._clearance(rule) < rule.limit:
            return Decision.CLEAR
        last = rule.looks[-1]
        if self.processes in rule.looks or self.processes > last:
            needed = self._quantile(rule, n_comparisons) * self.error
            if self.difference > max(needed, rule.least):
                return Decision.SLOWER
        return Decision.UNDECIDED if self.processes >= last else Decision.PENDING

    def smallest_visible(self, rule: Rule, n_comparisons: float) -> float:
        """Return the smallest slowdown, as a fraction, that 19 of 20 such measurements would have caught."""
        needed = max(
            self._quantile(rule, n_comparisons) * self.error, rule.least, rule.limit - self._clearance(rule)
        )
        return math.expm1(needed + t_quantile(0.95, self.dof) * self.error)

    def _clearance(self, rule: Rule) -> float:
        """Return by how much a suspect has to stay below the margin to be cleared."""
        return _quantile(1 - rule.missed, self._rounded_dof) * self.error

    def _quantile(self, rule: Rule, n_comparisons: float) -> float:
        return _quantile(1 - rule.alpha / (len(rule.looks) * max(n_comparisons, 1)), self._rounded_dof)

    @property
    def _rounded_dof(self) -> float:
        # Three digits are plenty, and let most cases share a quantile.
        return float(f"{self.dof:.3g}")


@lru_cache(maxsize=4096)
def _quantile(probability: float, dof: float) -> float:
    return t_quantile(probability, dof)


def paired_log_ratio(log_ratios: Sequence[float]) -> float:
    """Return the log ratio of two interleaved kernels in one process, from those of its placements.

    The highest and the lowest, which may be accidents, are left out. A median would jump between the modes of
    a bimodal kernel.
    """
    return _mean(sorted(log_ratios)[1:-1] or log_ratios)


def paired_estimate(processes: Sequence[Sequence[float]]) -> Estimate:
    """Return by how much a kernel differs from the baseline kernel it is interleaved with.

    Args:
        processes: of each process, the log ratios of the two kernels, one for each placement of the buffers.
    """
    # The scatter of placements tells that of processes, before several processes show it.
    of_placements = _mean(
        [sum_of_squares(ratios) / max(len(ratios) - 1, 1) / len(ratios) for ratios in processes]
    )
    baseline = BaselineLogTime(
        value=0.0,
        of_sessions=0.0,
        per_process=0.0,
        between=0.0,
        squares=CASE_DOF * (PAIRED_PROCESS**2 + PAIRED_PLACEMENTS**2 * of_placements),
        dof=CASE_DOF,
    )
    return Estimate.of([paired_log_ratio(ratios) for ratios in processes], baseline)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
