"""What the rule of the speed gate catches, and how often it is wrong, on simulated suites. Needs no GPU.

    python -m research.speed_rule [--suites 400] [--cases 200] [--noise 1.0] [--jobs 2]

Every suite is screened against twelve stored runs of four sessions, and its suspects are confirmed in fresh
processes, as the gate does it and by the same code: paired with the baseline kernel, or
against the stored runs alone where git does not have that commit. (What the gate asks of a class that is
slower as a whole is left out: no class is.) On the same samples three other rules are tried: a fixed 5 % on
the median of one run against one run, pytest-benchmark's `--benchmark-compare-fail=mean:5%`, and a fixed 2 %.
Printed with 95 % intervals (Wilson): how often a suite without any slowdown fails, how often a true slowdown
of one case is caught, and what a clean run costs. Then this rule alone, in a quarter of the suites: where
GPUs differ by twice as much, with baselines of one session of three processes, on one GPU or on each of
three, and where most cases have become faster.

The noise is that of H200s (research/reports/speed-gate.md). Per case: samples scatter by 0.5 to 1.5 %, the
eight places of its buffers by 0.1 to 0.4 % (one kernel in ten: in two modes 3 to 8 % apart), processes by 0.1
to 0.5 %, sessions by 0.02 to 0.15 %, and GPUs by 0.8 %. Shared by all: 0.25 % by session. The clock, which
the reference workload shows, differs by 2 % from GPU to GPU and 0.3 % from process to process, and in a tenth
of the sessions it drifts by up to 3 %; each case follows it by a slope of its own (`SLOPES_IN_TIME`,
`SLOPES_OF_GPUS`). 1 % of all processes and places are slower by 1 to 5 %. The ratio of two kernels on the
same inputs scatters as that of one of the measured cases (`PAIRED`). A third of the cases is limited by
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

from pytest_cutile.baselines.entries import Entry, Run
from pytest_cutile.spec import Work
from pytest_cutile.speed.comparisons import SLOPES, PairedComparison, StoredComparison, StoredRuns
from pytest_cutile.speed.decide import BaselineLogTime, Decision, Rule, session_effect_of
from pytest_cutile.speed.measure.timing import Block, Device, Measurement

PLACEMENTS = 8
SAMPLES = 5
"""Kept samples of one placement."""
PROCESSES = 3
"""Of a stored session."""
HERE, ELSEWHERE = (Device(arch="sm_90", name="NVIDIA H200", uuid=uuid) for uuid in ("here", "elsewhere"))
WORK = {"TFLOPS": Work(flops=1.0, dtype="bfloat16"), "GB/s": Work(bytes=1.0)}
WORKLOAD = "a reference workload"

SLOPES_OF_GPUS = {"TFLOPS": (-0.6, 1.3), "GB/s": (0.3, 1.0)}
"""How much of the reference workload's movement a case follows from GPU to GPU, evenly between these, by its
limit: the least and the most of nine compute-bound and eight memory-bound kernels
(research/reports/speed-gate.md)."""
SLOPES_IN_TIME = {"TFLOPS": (0.1, 1.3), "GB/s": (-0.3, 0.5)}
"""Likewise from process to process on one GPU: slopes of the processes in research/data."""

PAIRED = {
    "TFLOPS": ((0.99, 1.9), (1.01, 1.9), (0.44, 1.7), (0.59, 0.6)),
    "GB/s": ((0.57, 0.7), (0.52, 0.7), (0.18, 0.5), (0.22, 0.4), (0.38, 0.7), (0.12, 0.4), (0.13, 0.5)),
}
"""In percent, of cases of matmul, rms_norm and softmax in `kernels/`, by their limit: how far the ratio of
two kernels scatters from process to process, and how far from place to place. `python -m
research.planted_slowdowns --tables` prints what they are from."""
PAIRED_BIAS = -0.03
"""Mean ratio of two equal kernels in percent: twelve pairs on an H200 (research/reports/speed-gate.md)."""


@dataclass
class Suite:
    """The true noise of the cases of one suite on one kind of GPU."""

    rng: np.random.Generator
    cases: int
    scale: float
    gpu_scatter: float

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
        self.follows_gpu = draw(*np.array([SLOPES_OF_GPUS[bound] for bound in self.bounds]).T)
        kinds = {
            bound: np.array(kinds)[self.rng.integers(len(kinds), size=n)] for bound, kinds in PAIRED.items()
        }
        paired = np.where(dense[:, None], kinds["TFLOPS"], kinds["GB/s"]) / 100 * self.scale
        process, self.paired_place = paired.T
        # What the places explain of the scatter between processes is not added twice.
        self.paired_process = np.sqrt(np.maximum(process**2 - self.paired_place**2 / PLACEMENTS, 0))

    def gpu(self) -> tuple[Any, float]:
        """Return what a GPU adds to each case, and how far its clock is off."""
        own = self.rng.normal(0, self.gpu_scatter * self.scale, self.cases)
        return own, self.rng.normal(0, 0.02 * self.scale)

    def begin_session(self) -> tuple[Any, float, float]:
        """Return what a session adds to each case, what to all of them, and how far its clock drifts."""
        drift = self.rng.uniform(0, 0.03) if self.rng.random() < 0.1 else 0.0
        own = self.rng.normal(0, 1, self.cases) * self.session
        return own, self.rng.normal(0, 0.0025 * self.scale), drift * self.scale

    def process_samples(self, gpu: tuple[Any, ...], session: tuple[Any, ...], slower: Any) -> tuple[Any, Any]:
        """Return log times [case, placement, sample] of one process, and those of the reference workload."""
        n = self.cases
        own = gpu[0] + session[0] + self.rng.normal(0, 1, n) * self.process
        own = own + self._accidents(n)
        clock = session[2] + self.rng.normal(0, 0.003 * self.scale)
        followed = self.follows_gpu * gpu[1] + self.follows_clock * clock
        slow_mode = self.rng.random((n, PLACEMENTS)) > self.fast[:, None]
        placed = self.rng.normal(0, 1, (n, PLACEMENTS)) * self.placement[:, None]
        placed = placed + slow_mode * self.gap[:, None] + self._accidents((n, PLACEMENTS))
        noise = self.rng.normal(0, 1, (n, PLACEMENTS, SAMPLES)) * self.sample[:, None, None]
        times = (own + session[1] + followed + slower)[:, None, None] + placed[:, :, None] + noise
        workload = gpu[1] + clock + self.rng.normal(0, 0.001 * self.scale, (n, PLACEMENTS))
        return times, workload

    def paired(self, slower: Any) -> Any:
        """Return ratios [case, place] paired with the baseline kernel, as logarithms."""
        n = self.cases
        own = (
            slower
            + PAIRED_BIAS / 100
            + self.rng.normal(0, 1, n) * self.paired_process
            + 0.3 * self._accidents(n)
        )
        places = self.rng.normal(0, 1, (n, PLACEMENTS)) * self.paired_place[:, None]
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
    paired: PairedComparison | None = None,
) -> Outcome:
    """Return what the gate makes of a run.

    Args:
        comparisons: Of each case, with its stored runs.
        first: Measurement of each case in the process that runs the tests.
        stored: The stored runs.
        rule: The thresholds.
        measure_again: Returns a fresh process, by its number: what measures a case.
        paired: What suspects are compared with; None: their stored runs.
    """
    screened: dict[tuple[str, bool], list[tuple[float, BaselineLogTime]]] = defaultdict(list)
    kinds = [(each.bound, held.other_gpu) for each, held in zip(first, comparisons, strict=True)]
    for kind, measurement, held in zip(kinds, first, comparisons, strict=True):
        screened[kind].append((held.log_time(measurement), held.baseline))
    effect = {
        kind: session_effect_of(cases, stored.noise(kind[0]), rule, other_gpu=kind[1])
        for kind, cases in screened.items()
    }
    live = [
        case
        for case, held in enumerate(comparisons)
        # Twice, as the gate: when a case is measured the session effect is not known yet.
        if held.is_suspect(first[case]) and held.is_suspect(first[case], effect[kinds[case]])
    ]
    # As the gate: paired comparisons count the confirmed cases; stored runs count all.
    n_comparisons = len(live) if paired is not None else len(comparisons)
    seen: dict[int, list[Measurement]] = defaultdict(list)
    failed: set[int] = set()
    inconclusive = processes = 0
    while live:
        processes += 1
        process = measure_again(processes)
        still = []
        for case in live:
            seen[case].append(process(case))
            decision = (paired or comparisons[case]).decide(seen[case], effect[kinds[case]], n_comparisons)
            if decision is Decision.SLOWER:
                failed.add(case)
            elif decision is Decision.PENDING:
                still.append(case)
            inconclusive += decision is Decision.UNDECIDED
        live = still
    return Outcome(
        failed=frozenset(failed),
        processes=processes,
        again=sum(map(len, seen.values())),
        inconclusive=inconclusive,
    )


def measured(logs: Any, interleaved: Any, bound: str, workload: str = WORKLOAD) -> Measurement:
    """Return a measurement by the logarithms of the times [place] of a case and of what was interleaved."""
    blocks = tuple(
        Block(samples_us=(own,), interleaved_us=(other,))
        for own, other in zip(np.exp(logs).tolist(), np.exp(interleaved).tolist(), strict=True)
    )
    return Measurement(device=HERE, blocks=blocks, work=WORK[bound], reference_workload=workload)


def recorded(logs: Any, interleaved: Any, bounds: Sequence[str]) -> list[tuple[float, float]]:
    """Return what is stored of a process: times of case and reference workload, by logarithms [case, place].

    It is `Measurement.best_pair`, of all cases at once.
    """
    interleaved = np.minimum(interleaved, np.median(interleaved, axis=1, keepdims=True))
    slopes = np.array([SLOPES[bound] for bound in bounds])[:, None]
    fastest = np.argmin(logs - slopes * interleaved, axis=1)[:, None]
    chosen = (np.take_along_axis(each, fastest, axis=1)[:, 0] for each in (logs, interleaved))
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

    other_gpu: bool
    """Whether its baselines are of another GPU of the same kind."""
    paired: bool
    """Whether suspects are paired with the baseline kernel."""
    sessions: int = 4
    """Stored sessions, of three processes each."""
    gpus: int = 1
    """GPUs that they were recorded on, in turn; it runs on the first of them, or on another."""
    gpu_scatter: float = 0.008
    """How far GPUs differ, case by case."""
    faster: float = 0.0
    """How much faster most of the cases have become, two of three; not the one that is slower."""

    def __str__(self) -> str:
        theirs = "the GPU of the baselines" if self.gpus == 1 else "one of the GPUs of the baselines"
        where = "another GPU of the same kind" if self.other_gpu else theirs
        what = "paired with the baseline kernel" if self.paired else "stored runs alone"
        return f"{where}, {what}"


def trial(
    rng: np.random.Generator, cases: int, noise: float, setting: Setting, slowdown: float
) -> tuple[dict[str, bool], Outcome]:
    """Return whether each rule failed (a clean suite) or caught the slowed case, and what this one did."""
    suite, rule = Suite(rng, cases, noise, setting.gpu_scatter), Rule()
    none = np.zeros(cases)
    gpus = [suite.gpu() for _ in range(setting.gpus)]
    runs: list[list[Run]] = [[] for _ in range(cases)]
    for s in range(setting.sessions):
        session, number = suite.begin_session(), s % setting.gpus
        for _ in range(PROCESSES):
            before, workload = suite.process_samples(gpus[number], session, none)
            for case, (us, workload_us) in enumerate(
                recorded(np.median(before, axis=2), workload, suite.bounds)
            ):
                run = Run(
                    at="2026-01-01T00:00:00+00:00",
                    session=f"{s}",
                    gpu_uuid=HERE.uuid if number == 0 else f"GPU-{number}",
                    median_us=us,
                    spread=0.0,
                    workload_us=workload_us,
                )
                runs[case].append(run)
    entries = {
        f"{case}": Entry(
            work=WORK[bound],
            runs=tuple(runs[case]),
            reference_workload=WORKLOAD,
            environment={},
            provenance={},
        )
        for case, bound in enumerate(suite.bounds)
    }
    gpu, device = gpus[0], HERE
    if setting.other_gpu:
        gpu, device = suite.gpu(), ELSEWHERE
    slower = none.copy()
    slowed = int(rng.integers(cases))
    slower[np.arange(cases) % 3 != slowed % 3] = math.log1p(-setting.faster)
    slower[slowed] = math.log1p(slowdown)
    session = suite.begin_session()
    times, workload = suite.process_samples(gpu, session, slower)
    stored = StoredRuns(entries, rule=rule, platform=None)
    comparisons = [stored.compare(entry, device, WORKLOAD) for entry in entries.values()]

    def fresh(number: int) -> Callable[[int], Measurement]:
        del number
        if setting.paired:
            ratios = suite.paired(slower)
            return lambda case: measured(ratios[case], np.zeros(PLACEMENTS), suite.bounds[case], workload="")
        samples, workload = suite.process_samples(gpu, session, slower)
        logs = np.median(samples, axis=2)
        return lambda case: measured(logs[case], workload[case], suite.bounds[case])

    first = np.median(times, axis=2)
    outcome = judge(
        [each for each in comparisons if isinstance(each, StoredComparison)],
        [measured(first[case], workload[case], bound) for case, bound in enumerate(suite.bounds)],
        stored,
        rule,
        fresh,
        PairedComparison(rule=rule, revision="baseline") if setting.paired else None,
    )
    current, baseline = np.exp(times).reshape(cases, -1), np.exp(before).reshape(cases, -1)
    of_medians = np.median(current, axis=1) / np.median(baseline, axis=1) - 1
    of_means = current.mean(axis=1) / baseline.mean(axis=1) - 1
    rules = {
        THIS: outcome.failed,
        "fixed 5 % on medians": set(np.flatnonzero(of_medians > 0.05)),
        "compare-fail=mean:5%": set(np.flatnonzero(of_means > 0.05)),
        "fixed 2 % on medians": set(np.flatnonzero(of_medians > 0.02)),
    }
    return {key: bool(cases) if slowdown == 0 else slowed in cases for key, cases in rules.items()}, outcome


THIS = "this rule"
SETTINGS = tuple(
    Setting(other_gpu=other, paired=paired) for other, paired in product((False, True), (True, False))
)
MOST_FASTER = "2 of 3 cases are 6 % faster"
SENSITIVITY = (
    ("GPUs differ by 1.5 %", Setting(other_gpu=True, paired=True, gpu_scatter=0.015)),
    ("1 session x 3 processes", Setting(other_gpu=False, paired=True, sessions=1)),
    ("1 session x 3 processes", Setting(other_gpu=False, paired=False, sessions=1)),
    ("1 session x 3 processes", Setting(other_gpu=True, paired=True, sessions=1)),
    *(
        ("3 GPUs x 1 session", Setting(other_gpu=other, paired=paired, sessions=3, gpus=3))
        for other, paired in ((False, True), (False, False), (True, True))
    ),
    *(
        (MOST_FASTER, Setting(other_gpu=other, paired=paired, faster=0.06))
        for other, paired in product((False, True), (True, False))
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
