"""The rule of the speed gate: screen every case once, then confirm suspects in fresh processes.

Everything is arithmetic on *levels*: the logarithm of the time that one process measured, less that of the
control where one is followed (`Level`). A difference of levels of 0.02 is a slowdown of 2 %. What is known of
the noise comes from the stored runs, all cases together, on top of what was measured on H200s
(docs/measuring.md); `python -m benchmarks.speed_rule` shows what the rule catches and how often it is wrong.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

from pytest_cutile.core.statistics import median, sum_of_squares, t_quantile


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
        """The margin as a difference of levels."""
        return math.log1p(self.margin)

    @property
    def limit_elsewhere(self) -> float:
        """The margin of the screening on another board than the baselines': half as much again.

        Boards of one kind differ by 0.8 %, case by case: to miss no 2 % there, the screening would have to
        let nearly every case through to fresh processes, which is no screening.
        """
        return math.log1p(1.5 * self.margin)

    @property
    def least(self) -> float:
        """The smallest difference of levels that is called slower."""
        return math.log1p(self.margin / 2)

    @property
    def least_step(self) -> float:
        """The smallest difference of levels for which a baseline of other code needs a reason."""
        return math.log1p(self.margin / 4)


@dataclass(frozen=True, kw_only=True)
class Level:
    """What one process measured of one case."""

    value: float
    """Logarithm of the time, less that of the control where one is followed."""
    session: str
    """The run it belongs to: levels of one session share its clocks and its weather."""
    board: str
    """UUID of the GPU."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Standard deviations of levels."""

    process: float
    """Between processes of one session on one board."""
    session: float
    """Between sessions, beside the part that the cases of a class share."""
    board: float
    """Between boards of one kind, likewise."""
    shared: float
    """Between sessions, the part that the cases of a class share."""
    shared_board: float
    """Between boards of one kind, the part that the cases of a class share."""


STORED_NOISE = Noise(process=0.0035, session=0.001, board=0.008, shared=0.001, shared_board=0.008)
"""Against stored runs, of H200s (docs/measuring.md): what is assumed until the stored runs say more."""
DUET_PROCESS = 0.0015
"""Standard deviation between processes of the ratio of two kernels that take turns on the same inputs, beside
what its places tell. Session and board act on both alike."""
DUET_PLACES = 1.5
"""By how much more that ratio scatters from process to process than it would if the places of a process were
drawn at random from all that there are: 0.3 to 2.8 times, 1.4 in the middle of ten cases on H200s."""
ASSUMED_DOF = 20.0
"""How many degrees of freedom an assumed standard deviation counts."""
SLOPE_WEIGHT = 3e-4
"""Sum of squared movements of a control from which a case's own slope counts more than the assumed one: the
variance of runs that scatter by 0.5 %, over that of slopes that differ by 0.3 from case to case."""
SLOPE_SCATTER = 0.005
"""Standard deviation of runs that `SLOPE_WEIGHT` takes for granted."""
STEEPEST = 1.2
"""Largest slope that is believed."""
CASE_DOF = 4.0
"""How many degrees of freedom the noise of all cases counts in the noise of one."""
STEADY_SESSIONS = 4
"""Sessions behind a baseline from which a class that is slower by `Rule.least` is not taken for weather."""
LEAST_CENTRED = 10
"""Cases of a class from which they say what the whole class shares, and how far it scatters."""


def pooled_noise(histories: Iterable[Sequence[Level]], assumed: Noise = STORED_NOISE) -> Noise:
    """Return the noise of the typical case that stored levels show, on top of what is assumed of it.

    The typical case, not the mean one: an accident in one process, or one unsteady kernel, must not make all
    others look unsteady. What it does to its own case, `Reference` and `Estimate` see.
    """
    process, session = _Typical(assumed.process), _Typical(assumed.session)
    for history in histories:
        by_board = _by_board(history)
        sessions = [values for each in by_board.values() for values in each]
        within = sum(sum_of_squares(values) for values in sessions)
        dof = sum(len(values) - 1 for values in sessions)
        process.add(within, dof)
        session.add(*_of_sessions(by_board, within / dof if dof else assumed.process**2))
    return replace(assumed, process=process.deviation, session=session.deviation)


class _Typical:
    """A standard deviation: an assumed one, and what the cases show, each by its mean square."""

    def __init__(self, assumed: float) -> None:
        self._assumed = assumed
        self._squares: list[tuple[float, int]] = []

    def add(self, squares: float, dof: int) -> None:
        """Take a case's sum of squares along."""
        if dof:
            self._squares.append((squares / dof, dof))

    @property
    def deviation(self) -> float:
        """Assumed and seen together."""
        if not self._squares:
            return self._assumed
        dof = sum(each for _, each in self._squares)
        each = dof / len(self._squares)
        # The median of a chi-square variable over its mean (Wilson and Hilferty, 1931).
        typical = max(median([square for square, _ in self._squares]), 0.0) / (1 - 2 / (9 * each)) ** 3
        return math.sqrt((ASSUMED_DOF * self._assumed**2 + dof * typical) / (ASSUMED_DOF + dof))


def slope_of(pairs: Sequence[tuple[float, float]], assumed: float) -> float:
    """Return how much of its control's movement a case follows.

    A kernel that the clock of the tensor cores limits moves from board to board as a matrix product does; one
    that waits for memory half of the time moves less. Runs on one board tell little, because little moves.

    Args:
        pairs: logarithms of the control's time and of the case's, one per stored run.
        assumed: what is assumed until they tell more.
    """
    if not pairs:
        return assumed
    controls = sum(control for control, _ in pairs) / len(pairs)
    cases = sum(case for _, case in pairs) / len(pairs)
    moved = sum((control - controls) ** 2 for control, _ in pairs)
    together = sum((control - controls) * (case - cases) for control, case in pairs)
    slope = (SLOPE_WEIGHT * assumed + together) / (SLOPE_WEIGHT + moved)
    return min(max(slope, 0.0), STEEPEST)


def slope_variance(controls: Sequence[float]) -> float:
    """Return the variance of a case's slope, by the logarithms of its control's times in the stored runs."""
    mean = sum(controls) / len(controls)
    return SLOPE_SCATTER**2 / (SLOPE_WEIGHT + sum((control - mean) ** 2 for control in controls))


def _by_board(history: Sequence[Level]) -> dict[str, list[list[float]]]:
    """Return the levels of each session, by board."""
    sessions: dict[tuple[str, str], list[float]] = defaultdict(list)
    for level in history:
        sessions[level.board, level.session].append(level.value)
    by_board: dict[str, list[list[float]]] = defaultdict(list)
    for (board, _), values in sessions.items():
        by_board[board].append(values)
    return by_board


def _means(sessions: Sequence[Sequence[float]]) -> list[float]:
    return [sum(values) / len(values) for values in sessions]


def _of_sessions(by_board: Mapping[str, Sequence[Sequence[float]]], process: float) -> tuple[float, int]:
    """Return the sum of squares by which the sessions of a board differ, over all boards, and its freedom.

    Args:
        by_board: the levels of each session, by board.
        process: variance between processes. Means of few of them differ by what these scatter: that part is
            not the sessions'.
    """
    squares, dof = 0.0, 0
    for sessions in by_board.values():
        of_process = sum(process / len(values) for values in sessions) / len(sessions)
        squares += sum_of_squares(_means(sessions)) - (len(sessions) - 1) * of_process
        dof += len(sessions) - 1
    return squares, dof


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What a case is compared with, and how well that is known."""

    value: float
    """Level to expect."""
    of_sessions: float
    """Variance of `value` that its sessions and boards add."""
    per_process: float
    """Variance that its processes add, in units of that of one: a third for three of them."""
    between: float
    """Variance of what the session at hand, and its board, add to this case: what is assumed of it."""
    squares: float
    """Sum of squares behind the noise of this case between processes."""
    dof: float
    """Its degrees of freedom."""


def reference_of(history: Sequence[Level], noise: Noise, *, other_board: bool) -> Reference:
    """Return what a case with this history (at least one level) is compared with.

    Args:
        history: the levels that it is held against: of the board at hand alone, or of other boards.
        noise: of the stored runs.
        other_board: whether they are of other boards.
    """
    by_board = _by_board(history)
    sessions = [values for each in by_board.values() for values in each]
    # A case that scatters more than others from process to process is held to that,
    squares = CASE_DOF * noise.process**2 + sum(sum_of_squares(values) for values in sessions)
    process_dof = CASE_DOF + sum(len(values) - 1 for values in sessions)
    process = squares / process_dof
    # and one whose sessions differ more than others'.
    scatter, more = _of_sessions(by_board, process)
    of_session = (CASE_DOF * noise.session**2 + max(scatter, 0.0)) / (CASE_DOF + more)
    elsewhere = noise.board**2 if other_board else 0.0
    boards = [*by_board.values()]
    shares = [1 / (len(boards) * len(each)) ** 2 for each in boards for _ in each]
    per_process = sum(share / len(values) for share, values in zip(shares, sessions, strict=True))
    return Reference(
        value=sum(sum(_means(each)) / len(each) for each in boards) / len(boards),
        of_sessions=of_session * sum(shares) + elsewhere / len(boards),
        per_process=per_process,
        between=of_session + elsewhere,
        squares=squares,
        dof=process_dof,
    )


@dataclass(frozen=True, kw_only=True)
class Weather:
    """What a session does to the cases of a class, as they show together."""

    shift: float = 0.0
    """Median of their differences from their references."""
    slower: bool = False
    """Whether that is a slowdown of the whole class rather than the weather of this session."""
    faster: bool = False
    """Whether most cases of the class have become faster, by more than the weather of a session."""
    between: float = 1.0
    """Variance of what the session and its board add to single cases, over what is assumed of it."""
    dof: float = ASSUMED_DOF
    """Degrees of freedom behind `between`."""
    unseen: float = 0.0
    """Variance of what they share, where they are too few to show it, or too many have changed."""
    cases: int = 0
    """How many cases it is known from."""

    @property
    def removed(self) -> float:
        """What to take off each case's difference.

        A slowdown of them all is not explained away, and where most have become faster, the others have not
        become slower.
        """
        return 0.0 if self.slower or self.faster else self.shift


UNKNOWN_WEATHER = Weather()


def weather_of(
    screened: Sequence[tuple[float, Reference]], noise: Noise, rule: Rule, *, other_board: bool
) -> Weather:
    """Return what the cases of a class show together of the session at hand.

    Args:
        screened: The level of each case in one process, and its reference.
        noise: Of the stored runs.
        rule: The thresholds.
        other_board: Whether the references are of other boards than the one at hand.
    """
    n = len(screened)
    # of the stored runs' sessions and boards, and of today's
    usual = math.sqrt(2.0) * math.hypot(noise.shared, noise.shared_board if other_board else 0.0)
    if n < LEAST_CENTRED:  # what they share stays in each of them
        return Weather(unseen=usual**2)
    differences = [level - reference.value for level, reference in screened]
    shift = median(differences)
    # The scatter of the cases around their median, less what is known to be in it, is the session's. It is
    # taken from the median of the absolute values: a quarter of the cases may really have changed.
    scatter = (1.4826 * median([abs(value - shift) for value in differences])) ** 2
    known = sum(ref.of_sessions + (1 + ref.per_process) * ref.squares / ref.dof for _, ref in screened) / n
    assumed = sum(reference.between for _, reference in screened) / n
    seen = 0.37 * n  # the efficiency of the median absolute deviation (Hampel, 1974)
    found = max(scatter - known, 0.0) / assumed if assumed else 1.0
    # Fewer sessions than four leave more of their own weather in the references.
    sessions = [ref.between / ref.of_sessions if ref.of_sessions else math.inf for _, ref in screened]
    doubt = math.sqrt((1 + 1 / median(sessions)) / (1 + 1 / STEADY_SESSIONS))
    most = max(rule.least * max(doubt, 1.0), 3 * usual)  # that weather explains
    return Weather(
        shift=shift,
        slower=shift > most,
        faster=shift < -most,
        between=(ASSUMED_DOF + seen * found) / (ASSUMED_DOF + seen),
        dof=ASSUMED_DOF + seen,
        unseen=2 * usual**2 if shift < -most else 0.0,
        cases=n,
    )


class Decision(Enum):
    """What a number of processes says about one case."""

    CLEAR = "clear"
    """It is not slower by the margin."""
    SLOWER = "slower"
    """It is slower."""
    OPEN = "open"
    """More processes may tell."""
    UNDECIDED = "undecided"
    """As many processes as the rule has did not tell."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The difference of a case from its reference, by the levels that were measured in some processes."""

    difference: float
    """Mean level less the reference and what the class shares; +0.02 is 2 % slower."""
    error: float
    """Its standard error."""
    dof: float
    """Degrees of freedom behind the standard error."""
    processes: int
    """How many were measured."""

    def __post_init__(self) -> None:
        # Each comparison with NaN is false, so that it would pass for as fast as recorded.
        if not (math.isfinite(self.difference) and math.isfinite(self.error)):
            raise ValueError(f"levels must be finite, got {self.difference} with an error of {self.error}")

    @classmethod
    def of(
        cls,
        levels: Sequence[float],
        reference: Reference,
        weather: Weather = UNKNOWN_WEATHER,
        *,
        of_control: float = 0.0,
    ) -> Estimate:
        """Return the estimate of `levels`, one per process, at least one.

        Args:
            levels: What was measured.
            reference: What it is held against.
            weather: What the cases of its class share.
            of_control: Variance of what was taken off for the movement of the control.
        """
        n = len(levels)
        # What this case scatters now counts, too: a kernel that is noisier than others is no regression.
        process_dof = reference.dof + n - 1
        process = (reference.squares + sum_of_squares(levels)) / process_dof
        of_process = process * (1 / n + reference.per_process)
        of_session = reference.of_sessions + reference.between * weather.between + weather.unseen
        # What is assumed between sessions and boards has the usual movements of their controls in it.
        of_session += max(of_control - reference.between, 0.0)
        variance = of_process + of_session
        # Welch and Satterthwaite: how well a sum of variances is known.
        dof = variance**2 / (of_process**2 / process_dof + of_session**2 / weather.dof)
        return cls(
            difference=sum(levels) / n - reference.value - weather.removed,
            error=math.sqrt(variance),
            dof=dof,
            processes=n,
        )

    def is_suspect(self, rule: Rule, *, other_board: bool = False) -> bool:
        """Say whether this, as the screening of one process, could be a slowdown by the margin.

        Also where it looks faster, if it is as uncertain as that: fresh processes tell.
        """
        limit = rule.limit_elsewhere if other_board else rule.limit
        return self.difference > limit - rule.screen_z * self.error

    def is_faster(self, rule: Rule) -> bool:
        """Say whether the case is faster by more than the margin and what may be noise."""
        return self.difference < -max(rule.limit, rule.screen_z * self.error)

    def is_a_step(self, rule: Rule) -> bool:
        """Say whether it is slower by a quarter of the margin, and by more than what may be noise.

        Such steps, each with another code, could add up to anything.
        """
        return self.difference > max(rule.least_step, rule.screen_z * self.error)

    def is_beyond_chance(self, rule: Rule, family: float) -> bool:
        """Say whether it is slower by the margin, and by more than chance explains in such a suite."""
        return self.difference > max(rule.limit, self._quantile(rule, family) * self.error)

    def decide(self, rule: Rule, family: float) -> Decision:
        """Decide about a suspect.

        Args:
            rule: The thresholds.
            family: Cases that could look slower by chance: the more there are, the likelier one of them
                does, so the more evidence each one needs.
        """
        if self.difference + self._clearance(rule) < rule.limit:
            return Decision.CLEAR
        last = rule.looks[-1]
        if self.processes in rule.looks or self.processes > last:
            needed = self._quantile(rule, family) * self.error
            if self.difference > max(needed, rule.least):
                return Decision.SLOWER
        return Decision.UNDECIDED if self.processes >= last else Decision.OPEN

    def smallest_visible(self, rule: Rule, family: float) -> float:
        """Return the smallest slowdown, as a fraction, that 19 of 20 such measurements would have caught."""
        # What is called slower: beyond chance, not too small to matter, and not cleared.
        needed = max(
            self._quantile(rule, family) * self.error, rule.least, rule.limit - self._clearance(rule)
        )
        return math.expm1(needed + t_quantile(0.95, self.dof) * self.error)

    def _clearance(self, rule: Rule) -> float:
        """Return by how much a suspect has to stay below the margin to be cleared."""
        return _quantile(1 - rule.missed, self._shared_dof) * self.error

    def _quantile(self, rule: Rule, family: float) -> float:
        return _quantile(1 - rule.alpha / (len(rule.looks) * max(family, 1)), self._shared_dof)

    @property
    def _shared_dof(self) -> float:
        # Three digits of the degrees of freedom are plenty, and let most cases share a quantile.
        return float(f"{self.dof:.3g}")


@lru_cache(maxsize=4096)
def _quantile(probability: float, dof: float) -> float:
    return t_quantile(probability, dof)


def duet_level(ratios: Sequence[float]) -> float:
    """Return what is compared of a process in which two revisions of a kernel took turns.

    Args:
        ratios: logarithms of their ratios, one for each place of the buffers.
    """
    # Without the highest and the lowest, which may be accidents. Where a kernel has two modes, the median
    # would jump between them.
    return _mean(sorted(ratios)[1:-1] or ratios)


def duet_estimate(processes: Sequence[Sequence[float]]) -> Estimate:
    """Return by how much a kernel differs from another revision of it.

    Args:
        processes: of each one, the logarithms of the ratios of the two, one for each place of the buffers.
    """
    # How far places scatter tells how far processes will, before there are several of them to show it.
    of_places = _mean([sum_of_squares(each) / max(len(each) - 1, 1) / len(each) for each in processes])
    reference = Reference(
        value=0.0,
        of_sessions=0.0,
        per_process=0.0,
        between=0.0,
        squares=CASE_DOF * (DUET_PROCESS**2 + DUET_PLACES**2 * of_places),
        dof=CASE_DOF,
    )
    return Estimate.of([duet_level(each) for each in processes], reference)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
