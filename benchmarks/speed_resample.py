"""The rule of the speed gate on what H200s really measured, drawn again and again. Needs no GPU.

    python -m benchmarks.speed_resample [--trials 200] [--cases 12]

benchmarks/data holds the processes that one session on each of three H200s measured with the gate's own
timer. A trial draws twelve of them as stored runs, one as the screening and more as fresh processes, for a
suite of `--cases` cases, all on one board and against the stored runs alone; in one case a slowdown is added.
Printed by board: how often a clean suite fails, and how often the slowdown is caught, by this rule, by a
fixed 5 % on medians of one run against one run, and by pytest-benchmark's
`--benchmark-compare-fail=mean:5%`. Then the noise, case by case.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections import defaultdict
from pathlib import Path

from benchmarks.speed_rule import wilson
from pytest_cutile.core.comparisons import SLOPES
from pytest_cutile.core.spec import Work
from pytest_cutile.core.speed_rule import (
    Decision,
    Estimate,
    Level,
    Reference,
    Rule,
    pooled_noise,
    reference_of,
    slope_of,
    weather_of,
)
from pytest_cutile.core.timing import Block, Device, Measurement

DATA = Path(__file__).parent / "data" / "h200-2026-11-21.json"
SLOWDOWNS = (0.0, 0.01, 0.02, 0.03, 0.05)
Process = list[list[float]]


class Board:
    """What the processes on one board measured."""

    def __init__(self, name: str, cases: dict[str, tuple[str, list[Process]]]) -> None:
        self.name = name
        self.cases = cases

    def trial(
        self, rng: random.Random, rule: Rule, count: int, slowdown: float, at: int
    ) -> tuple[dict[str, set[int]], int]:
        """Return the cases that each rule fails, and how many fresh processes it took."""
        names = [list(self.cases)[index % len(self.cases)] for index in range(count)]
        bounds = [self.cases[name][0] for name in names]

        def draw(index: int) -> Process:
            factor = 1 + slowdown if index == at else 1.0
            return [[own * factor, control] for own, control in rng.choice(self.cases[names[index]][1])]

        stored = [[rng.choice(self.cases[name][1]) for _ in range(12)] for name in names]
        slopes = [self._slope(runs, bound) for runs, bound in zip(stored, bounds, strict=True)]
        histories = [
            [Level(value=level(run, slope), session=f"{n // 3}", board="b") for n, run in enumerate(runs)]
            for runs, slope in zip(stored, slopes, strict=True)
        ]
        noise = {
            bound: pooled_noise([h for h, each in zip(histories, bounds, strict=True) if each == bound])
            for bound in set(bounds)
        }
        references = [reference_of(h, noise[bound], "b") for h, bound in zip(histories, bounds, strict=True)]
        screened = [draw(index) for index in range(count)]
        first = [level(run, slope) for run, slope in zip(screened, slopes, strict=True)]
        by_bound: dict[str, list[tuple[float, Reference]]] = defaultdict(list)
        for value, reference, bound in zip(first, references, bounds, strict=True):
            by_bound[bound].append((value, reference))
        weather = {b: weather_of(v, noise[b], rule, other_board=False) for b, v in by_bound.items()}
        live = [
            i
            for i in range(count)
            if Estimate.of([first[i]], references[i]).is_suspect(rule)
            and Estimate.of([first[i]], references[i], weather[bounds[i]]).is_suspect(rule)
        ]
        seen: dict[int, list[float]] = defaultdict(list)
        failed: set[int] = set()
        rounds = 0
        while live and rounds < rule.looks[-1]:
            rounds += 1
            still = []
            for i in live:
                seen[i].append(level(draw(i), slopes[i]))
                decision = Estimate.of(seen[i], references[i], weather[bounds[i]]).decide(rule, count)
                if decision is Decision.SLOWER:
                    failed.add(i)
                elif decision is Decision.OPEN:
                    still.append(i)
            live = still
        now = [[own for own, _ in run] for run in screened]
        then = [[own for own, _ in runs[-1]] for runs in stored]
        medians = [statistics.median(a) / statistics.median(b) for a, b in zip(now, then, strict=True)]
        means = [statistics.mean(a) / statistics.mean(b) for a, b in zip(now, then, strict=True)]
        return {
            "this rule": failed,
            "fixed 5 % on medians": {i for i, ratio in enumerate(medians) if ratio > 1.05},
            "compare-fail=mean:5%": {i for i, ratio in enumerate(means) if ratio > 1.05},
        }, rounds

    @staticmethod
    def _slope(runs: list[Process], bound: str) -> float:
        pairs = [beside_control(run, SLOPES[bound]) for run in runs]
        return slope_of([(math.log(control), math.log(own)) for own, control in pairs], SLOPES[bound])


def beside_control(process: Process, slope: float) -> tuple[float, float]:
    """Return what the gate takes of a process, by its own code."""
    blocks = tuple(Block(samples_us=(own,), partner_us=(control,)) for own, control in process)
    device = Device(arch="sm_90", name="NVIDIA H200")
    own, control = Measurement(device=device, blocks=blocks, work=Work(), control="c").beside_control(slope)
    return own, control or 1.0


def level(process: Process, slope: float) -> float:
    """Return what the gate compares of a process."""
    own, control = beside_control(process, slope)
    return math.log(own) - slope * math.log(control)


def read() -> list[Board]:
    """Return the boards with the cases of which they have enough processes."""
    boards: dict[str, dict[str, tuple[str, list[Process]]]] = defaultdict(dict)
    for name, case in json.loads(DATA.read_text())["cases"].items():
        for board in sorted({each for each, _ in case["processes"]}):
            runs = [run for each, run in case["processes"] if each == board]
            if len(runs) >= 12:
                boards[board][name] = (case["bound"], runs)
    return [Board(name, cases) for name, cases in boards.items()]


def show_noise(boards: list[Board]) -> None:
    """Print how far processes scatter, case by case."""
    print("\nnoise, % (standard deviation between processes; n processes)")
    columns = f"{'median of places':>16} {'fastest place':>13} {'less control':>12}"
    print(f"{'case':42} {'board':9} {'n':>3} {columns}")
    for board in boards:
        for name, (bound, runs) in board.cases.items():
            spreads = [
                100 * statistics.stdev(values)
                for values in (
                    [statistics.median(math.log(own) for own, _ in run) for run in runs],
                    [level(run, 0.0) for run in runs],
                    [level(run, SLOPES[bound]) for run in runs],
                )
            ]
            figures = f"{spreads[0]:16.2f} {spreads[1]:13.2f} {spreads[2]:12.2f}"
            print(f"{name:42} {board.name:9} {len(runs):3} {figures}")


def main() -> None:
    """Draw and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--cases", type=int, default=12)
    options = parser.parse_args()
    rng, rule, boards = random.Random(1), Rule(), read()  # noqa: S311 - simulated
    for board in boards:
        print(f"\nboard {board.name}, {options.trials} suites of {options.cases} cases")
        titles = ["clean suite fails", *(f"{each:.0%} caught" for each in SLOWDOWNS[1:])]
        print(f"{'rule':22} " + " ".join(f"{title:>18}" for title in titles))
        hits: dict[str, list[int]] = defaultdict(lambda: [0] * len(SLOWDOWNS))
        processes = []
        for column, slowdown in enumerate(SLOWDOWNS):
            for trial in range(options.trials):
                at = trial % min(options.cases, len(board.cases))
                found, rounds = board.trial(rng, rule, options.cases, slowdown, at)
                if slowdown == 0:
                    processes.append(rounds)
                for key, failed in found.items():
                    hits[key][column] += bool(failed) if slowdown == 0 else at in failed
        for key, row in hits.items():
            print(f"{key:22} " + " ".join(f"{wilson(hit, options.trials):>18}" for hit in row))
        print(f"fresh processes of a clean run: median {statistics.median(processes):.0f}")
    show_noise(boards)


if __name__ == "__main__":
    main()
