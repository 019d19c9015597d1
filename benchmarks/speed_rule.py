"""What the rule of the speed gate catches, and how often it is wrong, on simulated suites. Needs no GPU.

    python -m benchmarks.speed_rule [--suites 400] [--cases 200] [--noise 1.0]

Every suite is screened against twelve stored runs of four sessions, and its suspects are confirmed in fresh
processes, as the gate does it and by the same code: beside the kernel that the baseline was recorded from, or
against the stored runs alone where git does not have that commit. On the same samples three other rules are
tried: a fixed 5 % on the median of one run against one run, pytest-benchmark's
`--benchmark-compare-fail=mean:5%`, and a fixed 2 %. Printed with 95 % intervals (Wilson): how often a suite
without any slowdown fails, how often a true slowdown of one case is caught, and what a run costs.

The noise is that of H200s (docs/measuring.md). Per case: samples scatter by 0.5 to 1.5 %, the eight places
of its buffers by 0.1 to 0.4 % (one kernel in ten: in two modes 3 to 8 % apart), processes by 0.1 to 0.5 %,
sessions by 0.02 to 0.15 %, and boards by 0.8 %. Shared by all: 0.25 % by session, 2 % by board (the clock),
which the control shows, too. 1 % of all processes and places are slower by 1 to 5 %; in a tenth of the
sessions the clock drifts by up to 3 %. The ratio of two kernels on the same inputs scatters as that of one of
the measured cases (`DUETS`): in a third of the cases as a matrix product's, else as a memory-bound kernel's.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_cutile.core.speed_rule import (
    STORED_NOISE,
    Decision,
    Estimate,
    Level,
    Reference,
    Rule,
    duet_estimate,
    pooled_noise,
    reference_of,
    weather_of,
)

PLACEMENTS = 8
SAMPLES = 5
"""Kept samples of one placement."""
SESSIONS, PROCESSES = 4, 3
"""Stored runs."""


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

    def __post_init__(self) -> None:
        draw, n = self.rng.uniform, self.cases
        self.sample = draw(0.005, 0.015, n) * self.scale
        self.placement = draw(0.001, 0.004, n) * self.scale
        self.gap = np.where(self.rng.random(n) < 0.1, draw(0.03, 0.08, n), 0.0) * self.scale
        self.fast = draw(0.4, 0.8, n)
        self.process = draw(0.001, 0.005, n) * self.scale
        self.session = draw(0.0002, 0.0015, n) * self.scale
        dense = self.rng.random(n) < 1 / 3
        kinds = {
            bound: np.array(kinds)[self.rng.integers(len(kinds), size=n)] for bound, kinds in DUETS.items()
        }
        duets = np.where(dense[:, None], kinds["TFLOPS"], kinds["GB/s"]) / 100 * self.scale
        process, self.duet_place = duets.T
        # What the places explain of the scatter between processes is not added twice.
        self.duet_process = np.sqrt(np.maximum(process**2 - self.duet_place**2 / PLACEMENTS, 0))

    def board(self) -> tuple[Any, float]:
        """Return what a board adds to each case, and what it adds to all of them and to the control."""
        return self.rng.normal(0, 0.008 * self.scale, self.cases), self.rng.normal(0, 0.02 * self.scale)

    def begin_session(self) -> tuple[Any, float, float]:
        """Return what a session adds to each case, to all of them, and to all of them and the control."""
        drift = self.rng.uniform(0, 0.03) if self.rng.random() < 0.1 else 0.0
        own = self.rng.normal(0, 1, self.cases) * self.session
        return own, self.rng.normal(0, 0.0025 * self.scale), drift * self.scale

    def process_samples(
        self, board: tuple[Any, ...], session: tuple[Any, ...], slower: Any
    ) -> tuple[Any, Any]:
        """Return log times [case, placement, sample] of one process, and what the control saw."""
        n = self.cases
        own = board[0] + session[0] + self.rng.normal(0, 1, n) * self.process
        own = own + self._accidents(n)
        clock = board[1] + session[2] + self.rng.normal(0, 0.003 * self.scale)
        slow_mode = self.rng.random((n, PLACEMENTS)) > self.fast[:, None]
        placed = self.rng.normal(0, 1, (n, PLACEMENTS)) * self.placement[:, None]
        placed = placed + slow_mode * self.gap[:, None] + self._accidents((n, PLACEMENTS))
        noise = self.rng.normal(0, 1, (n, PLACEMENTS, SAMPLES)) * self.sample[:, None, None]
        times = (own + session[1] + clock + slower)[:, None, None] + placed[:, :, None] + noise
        control = clock + self.rng.normal(0, 0.001 * self.scale, (n, PLACEMENTS))
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


def levels(times: Any, control: Any) -> Any:
    """Return each case's level: its fastest placement, against the control beside it."""
    return (np.median(times, axis=2) - control).min(axis=1)


def run_rule(
    suite: Suite,
    history: list[tuple[str, str, Any]],
    board: tuple[Any, ...],
    session: tuple[Any, ...],
    name: str,
    slower: Any,
    first: Any,
    rule: Rule,
    *,
    beside: bool,
) -> tuple[set[int], int]:
    """Return the cases that the gate fails, and the number of fresh processes it took."""
    stored = [
        [Level(value=float(values[case]), session=when, board=where) for when, where, values in history]
        for case in range(suite.cases)
    ]
    noise = pooled_noise(stored, STORED_NOISE)
    references: list[Reference] = [reference_of(each, noise, name) for each in stored]
    screened = [(float(first[case]), references[case]) for case in range(suite.cases)]
    other = any(where != name for _, where, _ in history)
    weather = weather_of(screened, noise, rule, other_board=other)
    live = [
        case
        for case in range(suite.cases)
        # Twice, as the gate: when a case is measured nobody knows the weather yet.
        if Estimate.of([float(first[case])], references[case]).is_suspect(rule)
        and Estimate.of([float(first[case])], references[case], weather).is_suspect(rule)
    ]
    failed: set[int] = set()
    # As the gate: of kernels that take turns, those count that are confirmed; of stored runs, all.
    family = len(live) if beside else suite.cases
    seen: dict[int, list[Any]] = {case: [] for case in live}
    rounds = 0
    while live and rounds < rule.looks[-1]:
        rounds += 1
        now = suite.duets(slower) if beside else levels(*suite.process_samples(board, session, slower))
        still = []
        for case in live:
            seen[case].append(now[case].tolist())
            if beside:
                estimate = duet_estimate(seen[case])
            else:
                estimate = Estimate.of(seen[case], references[case], weather)
            decision = estimate.decide(rule, family)
            if decision is Decision.SLOWER:
                failed.add(case)
            elif decision is Decision.OPEN:
                still.append(case)
        live = still
    return failed, rounds


def wilson(hits: int, of: int) -> str:
    """Return a share with its 95 % interval, in percent."""
    p, z = hits / of, 1.96
    middle = (p + z * z / (2 * of)) / (1 + z * z / of)
    half = z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return f"{100 * p:5.1f} ({100 * max(middle - half, 0):4.1f}-{100 * min(middle + half, 1):5.1f})"


SLOWDOWNS = (0.0, 0.01, 0.02, 0.03, 0.05)


def trial(
    suite: Suite, rule: Rule, *, other_board: bool, beside: bool, slowdown: float
) -> tuple[dict[str, bool], int]:
    """Return whether each rule failed (a clean suite) or caught the slowed case, and fresh processes."""
    n = suite.cases
    none = np.zeros(n)
    board = suite.board()
    history, raw = [], []
    for s in range(SESSIONS):
        session = suite.begin_session()
        for _ in range(PROCESSES):
            times, control = suite.process_samples(board, session, none)
            history.append((f"s{s}", "stored", levels(times, control)))
            raw.append(times)
    name = "stored"
    if other_board:
        board, name = suite.board(), "other"
    slower = none.copy()
    case = int(suite.rng.integers(n))
    slower[case] = math.log1p(slowdown)
    session = suite.begin_session()
    times, control = suite.process_samples(board, session, slower)
    first = levels(times, control)
    failed, rounds = run_rule(suite, history, board, session, name, slower, first, rule, beside=beside)
    now, then = np.exp(times).reshape(n, -1), np.exp(raw[-1]).reshape(n, -1)
    of_medians = np.median(now, axis=1) / np.median(then, axis=1) - 1
    of_means = now.mean(axis=1) / then.mean(axis=1) - 1
    rules = {
        "this rule": failed,
        "fixed 5 % on medians": set(np.flatnonzero(of_medians > 0.05)),
        "compare-fail=mean:5%": set(np.flatnonzero(of_means > 0.05)),
        "fixed 2 % on medians": set(np.flatnonzero(of_medians > 0.02)),
    }
    return {key: bool(found) if slowdown == 0 else case in found for key, found in rules.items()}, rounds


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--suites", type=_count, default=400)
    parser.add_argument("--cases", type=_count, default=200)
    parser.add_argument("--noise", type=float, default=1.0, help="times the measured noise")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng, rule = np.random.default_rng(options.seed), Rule()
    print(f"{options.suites} suites of {options.cases} cases, {options.noise} x the noise of H200s")
    for other_board, beside in ((False, True), (True, True), (False, False), (True, False)):
        where = "another board of the same kind" if other_board else "the board of the baselines"
        where += ", beside the kernel they were recorded from" if beside else ", stored runs alone"
        print(f"\n{where}\n{'rule':22} " + " ".join(f"{_title(s):>18}" for s in SLOWDOWNS))
        hits: dict[str, list[int]] = {}
        rounds = []
        began = time.perf_counter()
        for column, slowdown in enumerate(SLOWDOWNS):
            for _ in range(options.suites):
                suite = Suite(rng, options.cases, options.noise)
                found, processes = trial(
                    suite, rule, other_board=other_board, beside=beside, slowdown=slowdown
                )
                if slowdown == 0:
                    rounds.append(processes)
                for key, hit in found.items():
                    hits.setdefault(key, [0] * len(SLOWDOWNS))[column] += hit
            if sys.stderr.isatty():
                print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)
        for key, row in hits.items():
            print(f"{key:22} " + " ".join(f"{wilson(hit, options.suites):>18}" for hit in row))
        middle, worst = np.median(rounds), np.quantile(rounds, 0.95)
        print(f"fresh processes of a clean run: median {middle:.0f}, 95 % within {worst:.0f}")


def _count(text: str) -> int:
    """Return a number given on the command line, of which there has to be one at least."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: at least 1 is needed")
    return number


def _title(slowdown: float) -> str:
    return "clean suite fails" if slowdown == 0 else f"{slowdown:.0%} caught"


if __name__ == "__main__":
    main()
