"""What the rule of the speed gate catches, and how often it is wrong, on simulated suites. Needs no GPU.

    python -m benchmarks.speed_rule [--suites 400] [--cases 200] [--noise 1.0] [--jobs 2]

Every suite is screened against twelve stored runs of four sessions, and its suspects are confirmed in fresh
processes, as the gate does it and by the same code: beside the kernel that the baseline was recorded from, or
against the stored runs alone where git does not have that commit. (What the gate asks of a class that is
slower as a whole is left out: no class is.) On the same samples three other rules are tried: a fixed 5 % on
the median of one run against one run, pytest-benchmark's `--benchmark-compare-fail=mean:5%`, and a fixed 2 %.
Printed with 95 % intervals (Wilson): how often a suite without any slowdown fails, how often a true slowdown
of one case is caught, and what a clean run costs. Then this rule alone, in a quarter of the suites: where
boards differ by twice as much, with baselines of one session of three processes, on one board or on each of
three, and where most cases have become faster.

The noise is that of H200s (docs/measuring.md). Per case: samples scatter by 0.5 to 1.5 %, the eight places
of its buffers by 0.1 to 0.4 % (one kernel in ten: in two modes 3 to 8 % apart), processes by 0.1 to 0.5 %,
sessions by 0.02 to 0.15 %, and boards by 0.8 %. Shared by all: 0.25 % by session. The clock, which the
control shows, differs by 2 % from board to board and 0.3 % from process to process, and in a tenth of the
sessions it drifts by up to 3 %; each case follows it by a slope of its own (`SLOPES_IN_TIME`,
`SLOPES_OF_BOARDS`). 1 % of all processes and places are slower by 1 to 5 %. The ratio of two kernels on the
same inputs scatters as that of one of the measured cases (`DUETS`). A third of the cases is limited by
operations, the others by memory.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from pytest_cutile.core.baselines import Entry, Run
from pytest_cutile.core.comparisons import SLOPES, DuetComparison, StoredComparison, StoredRuns
from pytest_cutile.core.spec import Work
from pytest_cutile.core.speed_rule import Decision, Reference, Rule, weather_of
from pytest_cutile.core.timing import Block, Device, Measurement

PLACEMENTS = 8
SAMPLES = 5
"""Kept samples of one placement."""
PROCESSES = 3
"""Of a stored session."""
HERE, ELSEWHERE = (Device(arch="sm_90", name="NVIDIA H200", uuid=uuid) for uuid in ("here", "elsewhere"))
WORK = {"TFLOPS": Work(flops=1.0, dtype="bfloat16"), "GB/s": Work(bytes=1.0)}
CONTROL = "a control"

SLOPES_OF_BOARDS = {"TFLOPS": (-0.6, 1.3), "GB/s": (0.3, 1.0)}
"""How much of its control's movement a case follows from board to board, evenly between these, by its limit:
the least and the most of nine compute-bound kernels and of eight memory-bound ones (docs/measuring.md)."""
SLOPES_IN_TIME = {"TFLOPS": (0.1, 1.3), "GB/s": (-0.3, 0.5)}
"""Likewise from process to process on one board: slopes of the processes in benchmarks/data."""

DUETS = {
    "TFLOPS": ((0.99, 1.9), (1.01, 1.9), (0.44, 1.7), (0.59, 0.6)),
    "GB/s": ((0.57, 0.7), (0.52, 0.7), (0.18, 0.5), (0.22, 0.4), (0.38, 0.7), (0.12, 0.4), (0.13, 0.5)),
}
"""In percent, of cases of matmul, rms_norm and softmax in `kernels/`, by their limit: how far the ratio of
two kernels scatters from process to process, and how far from place to place. `python -m
benchmarks.planted_slowdowns --tables` prints what they are from."""
DUET_BIAS = -0.03
"""In percent: the ratio of two equal kernels in the mean (docs/measuring.md: twelve pairs on an H200)."""


@dataclass
class Suite:
    """The true noise of the cases of one suite on one kind of GPU."""

    rng: np.random.Generator
    cases: int
    scale: float
    board_scatter: float

    def __post_init__(self) -> None:
        draw, n = self.rng.uniform, self.cases
        self.sample = draw(0.005, 0.015, n) * self.scale
        self.placement = draw(0.001, 0.004, n) * self.scale
        self.gap = np.where(self.rng.random(n) < 0.1, draw(0.03, 0.08, n), 0.0) * self.scale
        self.fast = draw(0.4, 0.8, n)
        self.process = draw(0.001, 0.005, n) * self.scale
        self.session = draw(0.0002, 0.0015, n) * self.scale
        dense = self.rng.random(n) < 1 / 3
        self.bounds = ["TFLOPS" if each else "GB/s" for each in dense]
        self.follows_clock = draw(*np.array([SLOPES_IN_TIME[bound] for bound in self.bounds]).T)
        self.follows_board = draw(*np.array([SLOPES_OF_BOARDS[bound] for bound in self.bounds]).T)
        kinds = {
            bound: np.array(kinds)[self.rng.integers(len(kinds), size=n)] for bound, kinds in DUETS.items()
        }
        duets = np.where(dense[:, None], kinds["TFLOPS"], kinds["GB/s"]) / 100 * self.scale
        process, self.duet_place = duets.T
        # What the places explain of the scatter between processes is not added twice.
        self.duet_process = np.sqrt(np.maximum(process**2 - self.duet_place**2 / PLACEMENTS, 0))

    def board(self) -> tuple[Any, float]:
        """Return what a board adds to each case, and how far its clock is off."""
        own = self.rng.normal(0, self.board_scatter * self.scale, self.cases)
        return own, self.rng.normal(0, 0.02 * self.scale)

    def begin_session(self) -> tuple[Any, float, float]:
        """Return what a session adds to each case, what to all of them, and how far its clock drifts."""
        drift = self.rng.uniform(0, 0.03) if self.rng.random() < 0.1 else 0.0
        own = self.rng.normal(0, 1, self.cases) * self.session
        return own, self.rng.normal(0, 0.0025 * self.scale), drift * self.scale

    def process_samples(
        self, board: tuple[Any, ...], session: tuple[Any, ...], slower: Any
    ) -> tuple[Any, Any]:
        """Return log times [case, placement, sample] of one process, and those of the control."""
        n = self.cases
        own = board[0] + session[0] + self.rng.normal(0, 1, n) * self.process
        own = own + self._accidents(n)
        clock = session[2] + self.rng.normal(0, 0.003 * self.scale)
        followed = self.follows_board * board[1] + self.follows_clock * clock
        slow_mode = self.rng.random((n, PLACEMENTS)) > self.fast[:, None]
        placed = self.rng.normal(0, 1, (n, PLACEMENTS)) * self.placement[:, None]
        placed = placed + slow_mode * self.gap[:, None] + self._accidents((n, PLACEMENTS))
        noise = self.rng.normal(0, 1, (n, PLACEMENTS, SAMPLES)) * self.sample[:, None, None]
        times = (own + session[1] + followed + slower)[:, None, None] + placed[:, :, None] + noise
        control = board[1] + clock + self.rng.normal(0, 0.001 * self.scale, (n, PLACEMENTS))
        return times, control

    def duets(self, slower: Any) -> Any:
        """Return ratios [case, place] beside the kernel of the baseline, as logarithms."""
        n = self.cases
        own = (
            slower + DUET_BIAS / 100 + self.rng.normal(0, 1, n) * self.duet_process + 0.3 * self._accidents(n)
        )
        places = self.rng.normal(0, 1, (n, PLACEMENTS)) * self.duet_place[:, None]
        either = self._accidents((n, PLACEMENTS)) - self._accidents((n, PLACEMENTS))
        return own[:, None] + places + either

    def _accidents(self, shape: int | tuple[int, int]) -> Any:
        """Return what the host and its neighbours add now and then."""
        return np.where(self.rng.random(shape) < 0.01, self.rng.uniform(0.01, 0.05, shape) * self.scale, 0.0)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the gate made of a run."""

    failed: frozenset[int]
    """The cases that it fails."""
    processes: int = 0
    """Fresh processes."""
    again: int = 0
    """Cases that were measured in them, each as often as it was."""
    inconclusive: int = 0
    """Cases about which they could not tell."""


def judge(
    comparisons: Sequence[StoredComparison],
    first: Sequence[Measurement],
    stored: StoredRuns,
    rule: Rule,
    measure_again: Callable[[int], Callable[[int], Measurement]],
    duet: DuetComparison | None = None,
) -> Outcome:
    """Return what the gate makes of a run.

    Args:
        comparisons: Of each case, with its stored runs.
        first: Measurement of each case in the process that runs the tests.
        stored: The stored runs.
        rule: The thresholds.
        measure_again: Returns a fresh process, by its number: what measures a case.
        duet: What suspects are held against; None: their stored runs.
    """
    screened: dict[tuple[str, bool], list[tuple[float, Reference]]] = defaultdict(list)
    kinds = [(each.bound, held.other_board) for each, held in zip(first, comparisons, strict=True)]
    for kind, measurement, held in zip(kinds, first, comparisons, strict=True):
        screened[kind].append((held.level(measurement), held.reference))
    weather = {
        kind: weather_of(cases, stored.noise(kind[0]), rule, other_board=kind[1])
        for kind, cases in screened.items()
    }
    live = [
        case
        for case, held in enumerate(comparisons)
        # Twice, as the gate: when a case is measured nobody knows the weather yet.
        if held.is_suspect(first[case]) and held.is_suspect(first[case], weather[kinds[case]])
    ]
    # As the gate: of kernels that take turns, those count that are confirmed; of stored runs, all.
    family = len(live) if duet is not None else len(comparisons)
    seen: dict[int, list[Measurement]] = defaultdict(list)
    failed: set[int] = set()
    inconclusive = processes = 0
    while live:
        processes += 1
        process = measure_again(processes)
        still = []
        for case in live:
            seen[case].append(process(case))
            decision = (duet or comparisons[case]).decide(seen[case], weather[kinds[case]], family)
            if decision is Decision.SLOWER:
                failed.add(case)
            elif decision is Decision.OPEN:
                still.append(case)
            inconclusive += decision is Decision.UNDECIDED
        live = still
    return Outcome(
        failed=frozenset(failed),
        processes=processes,
        again=sum(map(len, seen.values())),
        inconclusive=inconclusive,
    )


def measured(logs: Any, partners: Any, bound: str, control: str = CONTROL) -> Measurement:
    """Return a measurement by the logarithms of the times [place] of a case and of its partner."""
    blocks = tuple(
        Block(samples_us=(own,), partner_us=(partner,))
        for own, partner in zip(np.exp(logs).tolist(), np.exp(partners).tolist(), strict=True)
    )
    return Measurement(device=HERE, blocks=blocks, work=WORK[bound], control=control)


def recorded(logs: Any, partners: Any, bounds: Sequence[str]) -> list[tuple[float, float]]:
    """Return what is stored of a process: the times of case and control, by their logarithms [case, place].

    It is `Measurement.beside_control`, of all cases at once.
    """
    partners = np.minimum(partners, np.median(partners, axis=1, keepdims=True))
    slopes = np.array([SLOPES[bound] for bound in bounds])[:, None]
    fastest = np.argmin(logs - slopes * partners, axis=1)[:, None]
    chosen = (np.take_along_axis(each, fastest, axis=1)[:, 0] for each in (logs, partners))
    return [*zip(*(np.exp(each).tolist() for each in chosen), strict=True)]


def wilson(hits: int, of: int) -> str:
    """Return a share with its 95 % interval, in percent."""
    p, z = hits / of, 1.96
    middle = (p + z * z / (2 * of)) / (1 + z * z / of)
    half = z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return f"{100 * p:5.1f} ({100 * max(middle - half, 0):4.1f}-{100 * min(middle + half, 1):5.1f})"


SLOWDOWNS = (0.0, 0.01, 0.02, 0.03, 0.05)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a suite is run with."""

    other_board: bool
    """Whether its baselines are of another board of the same kind."""
    beside: bool
    """Whether suspects are measured beside the kernel that the baseline was recorded from."""
    sessions: int = 4
    """Stored sessions, of three processes each."""
    boards: int = 1
    """Boards that they were recorded on, in turns; it runs on the first of them, or on another."""
    board_scatter: float = 0.008
    """How far boards differ, case by case."""
    faster: float = 0.0
    """How much faster most of the cases have become, two of three; not the one that is slower."""

    def __str__(self) -> str:
        theirs = "the board of the baselines" if self.boards == 1 else "one of the boards of the baselines"
        where = "another board of the same kind" if self.other_board else theirs
        what = "beside the kernel they were recorded from" if self.beside else "stored runs alone"
        return f"{where}, {what}"


def trial(
    rng: np.random.Generator, cases: int, noise: float, setting: Setting, slowdown: float
) -> tuple[dict[str, bool], Outcome]:
    """Return whether each rule failed (a clean suite) or caught the slowed case, and what this one did."""
    suite, rule = Suite(rng, cases, noise, setting.board_scatter), Rule()
    none = np.zeros(cases)
    boards = [suite.board() for _ in range(setting.boards)]
    runs: list[list[Run]] = [[] for _ in range(cases)]
    for s in range(setting.sessions):
        session, number = suite.begin_session(), s % setting.boards
        for _ in range(PROCESSES):
            before, control = suite.process_samples(boards[number], session, none)
            for case, (us, control_us) in enumerate(
                recorded(np.median(before, axis=2), control, suite.bounds)
            ):
                run = Run(
                    at="",
                    session=f"{s}",
                    gpu_uuid=HERE.uuid if number == 0 else f"GPU-{number}",
                    median_us=us,
                    spread=0.0,
                    control_us=control_us,
                )
                runs[case].append(run)
    entries = {
        f"{case}": Entry(work=WORK[bound], runs=tuple(runs[case]), control=CONTROL)
        for case, bound in enumerate(suite.bounds)
    }
    board, device = boards[0], HERE
    if setting.other_board:
        board, device = suite.board(), ELSEWHERE
    slower = none.copy()
    slowed = int(rng.integers(cases))
    slower[np.arange(cases) % 3 != slowed % 3] = math.log1p(-setting.faster)
    slower[slowed] = math.log1p(slowdown)
    session = suite.begin_session()
    times, control = suite.process_samples(board, session, slower)
    stored = StoredRuns(entries, rule=rule, platform=None)
    comparisons = [stored.compare(entry, device, CONTROL) for entry in entries.values()]

    def fresh(number: int) -> Callable[[int], Measurement]:
        del number
        if setting.beside:
            ratios = suite.duets(slower)
            return lambda case: measured(ratios[case], np.zeros(PLACEMENTS), suite.bounds[case], control="")
        samples, control = suite.process_samples(board, session, slower)
        logs = np.median(samples, axis=2)
        return lambda case: measured(logs[case], control[case], suite.bounds[case])

    first = np.median(times, axis=2)
    outcome = judge(
        [each for each in comparisons if isinstance(each, StoredComparison)],
        [measured(first[case], control[case], bound) for case, bound in enumerate(suite.bounds)],
        stored,
        rule,
        fresh,
        DuetComparison(rule=rule, revision="then") if setting.beside else None,
    )
    now, then = np.exp(times).reshape(cases, -1), np.exp(before).reshape(cases, -1)
    of_medians = np.median(now, axis=1) / np.median(then, axis=1) - 1
    of_means = now.mean(axis=1) / then.mean(axis=1) - 1
    rules = {
        THIS: outcome.failed,
        "fixed 5 % on medians": set(np.flatnonzero(of_medians > 0.05)),
        "compare-fail=mean:5%": set(np.flatnonzero(of_means > 0.05)),
        "fixed 2 % on medians": set(np.flatnonzero(of_medians > 0.02)),
    }
    return {key: bool(found) if slowdown == 0 else slowed in found for key, found in rules.items()}, outcome


THIS = "this rule"
SETTINGS = tuple(
    Setting(other_board=other, beside=beside) for other, beside in product((False, True), (True, False))
)
MOST_FASTER = "2 of 3 cases are 6 % faster"
SENSITIVITY = (
    ("boards differ by 1.5 %", Setting(other_board=True, beside=True, board_scatter=0.015)),
    ("1 session x 3 processes", Setting(other_board=False, beside=True, sessions=1)),
    ("1 session x 3 processes", Setting(other_board=False, beside=False, sessions=1)),
    ("1 session x 3 processes", Setting(other_board=True, beside=True, sessions=1)),
    *(
        ("3 boards x 1 session", Setting(other_board=other, beside=beside, sessions=3, boards=3))
        for other, beside in ((False, True), (False, False), (True, True))
    ),
    *(
        (MOST_FASTER, Setting(other_board=other, beside=beside, faster=0.06))
        for other, beside in product((False, True), (True, False))
    ),
)


def column(
    seed: int, suites: int, cases: int, noise: float, setting: Setting, slowdown: float
) -> tuple[Mapping[str, int], list[Outcome]]:
    """Return how often each rule failed, or caught, in so many suites."""
    rng = np.random.default_rng([seed, int(1000 * slowdown)])
    trials = [trial(rng, cases, noise, setting, slowdown) for _ in range(suites)]
    hits = {key: sum(hit[key] for hit, _ in trials) for key in trials[0][0]}
    return hits, [outcome for _, outcome in trials]


def title(slowdown: float) -> str:
    """Return the head of a column."""
    return "clean suite fails" if slowdown == 0 else f"{slowdown:.0%} caught"


def cost(outcomes: Sequence[Outcome]) -> str:
    """Say what clean runs cost."""
    processes = [each.processes for each in outcomes]
    middle, worst = np.median(processes), np.quantile(processes, 0.95)
    again = np.median([each.again for each in outcomes])
    inconclusive = np.mean([each.inconclusive for each in outcomes])
    return (
        f"a clean run: {middle:.0f} fresh processes (95 % within {worst:.0f}), {again:.0f} measurements in "
        f"them; {inconclusive:.1f} cases inconclusive"
    )


def _count(text: str) -> int:
    """Return a number given on the command line, of which there has to be one at least."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: at least 1 is needed")
    return number


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--suites", type=_count, default=400)
    parser.add_argument("--cases", type=_count, default=200)
    parser.add_argument("--noise", type=float, default=1.0, help="times the measured noise")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes to simulate in")
    options = parser.parse_args()
    began = time.perf_counter()
    print(f"{options.suites} suites of {options.cases} cases, {options.noise} x the noise of H200s")
    header = " ".join(f"{title(each):>18}" for each in SLOWDOWNS)
    with ProcessPoolExecutor(options.jobs) as pool:

        def start(setting: Setting, suites: int) -> list[Any]:
            common = (options.seed, suites, options.cases, options.noise, setting)
            return [pool.submit(column, *common, slowdown) for slowdown in SLOWDOWNS]

        def line(key: str, columns: Sequence[tuple[Mapping[str, int], list[Outcome]]]) -> str:
            shares = " ".join(f"{wilson(hits[key], len(each)):>18}" for hits, each in columns)
            return f"{key:22} {shares}"

        plain = [(setting, start(setting, options.suites)) for setting in SETTINGS]
        few = max(options.suites // 4, 1)
        others = [(name, setting, start(setting, few)) for name, setting in SENSITIVITY]
        for setting, started in plain:
            columns = [each.result() for each in started]
            print(f"\n{setting}\n{'rule':22} {header}")
            for key in columns[0][0]:
                print(line(key, columns))
            print(cost(columns[0][1]), flush=True)
        for name, setting, started in others:
            columns = [each.result() for each in started]
            print(f"\n{name}: {setting}, {few} suites\n{'rule':22} {header}")
            print(line(THIS, columns))
            print(cost(columns[0][1]), flush=True)
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
