"""The rule of the speed gate on what H200s really measured, drawn again and again. Needs no GPU.

    python -m research.speed_resample [--trials 200] [--cases 12]

research/data holds the processes that one session on each of three H200s measured with the gate's own
timer. A trial draws twelve of them as stored runs, one as the screening and more as fresh processes, for a
suite of `--cases` cases, all on one GPU and against the stored runs alone; in one case a slowdown is added.
Printed by GPU: how often a clean suite fails, and how often the slowdown is caught, by this rule, by a
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

from pytest_cutile.speed.comparisons import SLOPES, StoredComparison, StoredRuns

from pytest_cutile.baselines.entries import Entry, Run
from pytest_cutile.speed.decide import Rule
from pytest_cutile.speed.measure.timing import Block, Measurement
from research.speed_rule import HERE, SLOWDOWNS, THIS, WORK, WORKLOAD, Outcome, cost, judge, title, wilson

DATA = Path(__file__).parent / "data" / "h200-2026-11-21.json"
Process = list[list[float]]


class Gpu:
    """What the processes on one GPU measured."""

    def __init__(self, name: str, cases: dict[str, tuple[str, list[Process]]]) -> None:
        self.name = name
        self.cases = cases

    def trial(
        self, rng: random.Random, count: int, slowdown: float, at: int
    ) -> tuple[dict[str, frozenset[int]], Outcome]:
        """Return the cases that each rule fails, and what this one did."""
        names = [list(self.cases)[index % len(self.cases)] for index in range(count)]
        bounds = [self.cases[name][0] for name in names]

        def draw(index: int) -> Process:
            factor = 1 + slowdown if index == at else 1.0
            return [[own * factor, workload] for own, workload in rng.choice(self.cases[names[index]][1])]

        before = [[rng.choice(self.cases[name][1]) for _ in range(12)] for name in names]
        entries = {f"{n}": entry(runs, bounds[n]) for n, runs in enumerate(before)}
        rule = Rule()
        stored = StoredRuns(entries, rule=rule, platform=None)
        comparisons = [stored.compare(each, HERE, WORKLOAD) for each in entries.values()]
        screened = [draw(index) for index in range(count)]
        outcome = judge(
            [each for each in comparisons if isinstance(each, StoredComparison)],
            [measured(process, bound) for process, bound in zip(screened, bounds, strict=True)],
            stored,
            rule,
            lambda _: lambda case: measured(draw(case), bounds[case]),
        )
        current = [[own for own, _ in run] for run in screened]
        baseline = [[own for own, _ in runs[-1]] for runs in before]
        medians = [
            statistics.median(a) / statistics.median(b) for a, b in zip(current, baseline, strict=True)
        ]
        means = [statistics.mean(a) / statistics.mean(b) for a, b in zip(current, baseline, strict=True)]
        return {
            THIS: outcome.failed,
            "fixed 5 % on medians": frozenset(i for i, ratio in enumerate(medians) if ratio > 1.05),
            "compare-fail=mean:5%": frozenset(i for i, ratio in enumerate(means) if ratio > 1.05),
        }, outcome


def measured(process: Process, bound: str) -> Measurement:
    """Return what the gate makes of a process."""
    blocks = tuple(Block(samples_us=(own,), interleaved_us=(workload,)) for own, workload in process)
    return Measurement(device=HERE, blocks=blocks, work=WORK[bound], reference_workload=WORKLOAD)


def entry(processes: list[Process], bound: str) -> Entry:
    """Return the baseline that the gate would record of them, three to a session."""
    runs = []
    for n, process in enumerate(processes):
        us, workload_us = measured(process, bound).best_pair(SLOPES[bound])
        run = Run(
            at="2026-01-01T00:00:00+00:00",
            session=f"{n // 3}",
            gpu_uuid=HERE.uuid,
            median_us=us,
            spread=0.0,
            workload_us=workload_us,
        )
        runs.append(run)
    return Entry(
        work=WORK[bound], runs=tuple(runs), reference_workload=WORKLOAD, environment={}, provenance={}
    )


def log_time(process: Process, bound: str, slope: float) -> float:
    """Return the logarithm of the fastest time of a process, less what its reference workload explains."""
    own, workload = measured(process, bound).best_pair(slope)
    return math.log(own) - slope * math.log(workload or 1.0)


def read() -> list[Gpu]:
    """Return the GPUs with the cases of which they have enough processes."""
    gpus: dict[str, dict[str, tuple[str, list[Process]]]] = defaultdict(dict)
    for name, case in json.loads(DATA.read_text())["cases"].items():
        for gpu in sorted({each for each, _ in case["processes"]}):
            runs = [run for each, run in case["processes"] if each == gpu]
            if len(runs) >= 12:
                gpus[gpu][name] = (case["bound"], runs)
    return [Gpu(name, cases) for name, cases in gpus.items()]


def show_noise(gpus: list[Gpu]) -> None:
    """Print how far processes scatter, case by case."""
    print("\nnoise, % (standard deviation between processes; n processes)")
    columns = f"{'median of places':>16} {'fastest place':>13} {'adjusted':>12}"
    print(f"{'case':42} {'GPU':9} {'n':>3} {columns}")
    for gpu in gpus:
        for name, (bound, runs) in gpu.cases.items():
            spreads = [
                100 * statistics.stdev(values)
                for values in (
                    [statistics.median(math.log(own) for own, _ in run) for run in runs],
                    [log_time(run, bound, 0.0) for run in runs],
                    [log_time(run, bound, SLOPES[bound]) for run in runs],
                )
            ]
            figures = f"{spreads[0]:16.2f} {spreads[1]:13.2f} {spreads[2]:12.2f}"
            print(f"{name:42} {gpu.name:9} {len(runs):3} {figures}")


def main() -> None:
    """Draw and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--cases", type=int, default=12)
    options = parser.parse_args()
    rng, gpus = random.Random(1), read()  # noqa: S311 - simulated
    for gpu in gpus:
        print(f"\nGPU {gpu.name}, {options.trials} suites of {options.cases} cases")
        print(f"{'rule':22} " + " ".join(f"{title(each):>18}" for each in SLOWDOWNS))
        hits: dict[str, list[int]] = defaultdict(lambda: [0] * len(SLOWDOWNS))
        clean = []
        for column, slowdown in enumerate(SLOWDOWNS):
            for trial in range(options.trials):
                at = trial % min(options.cases, len(gpu.cases))
                rules, outcome = gpu.trial(rng, options.cases, slowdown, at)
                if slowdown == 0:
                    clean.append(outcome)
                for key, failed in rules.items():
                    hits[key][column] += bool(failed) if slowdown == 0 else at in failed
        for key, row in hits.items():
            print(f"{key:22} " + " ".join(f"{wilson(hit, options.trials):>18}" for hit in row))
        print(cost(clean))
    show_noise(gpus)


if __name__ == "__main__":
    main()
