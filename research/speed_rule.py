"""What the speed gate's rule catches, and how often it is wrong, on simulated suites. Needs no GPU.

    python -m research.speed_rule [--suites 2000] [--cases 200] [--jobs 2] [-k creep]

Each suite has 200 cases. Each case is screened by `judge_screening`, and `SpeedSuite.settle` decides the
suspects: the code of the gate, with simulated measurements. Printed with 95 % intervals (Wilson): how often a
run without any slowdown fails, and what becomes of one case that got slower.

The noise is that of H200s (research/reports/speed-rule.md). Log ratios of two equal kernels:

- Bursts: processes scatter by 0.05 to 0.1 %, placements by 0.1 to 0.4 %. 3 % of the cases are kernels of some
  12 us: 0.3 to 0.5 %, placements by 2 %. 2 % of the cases are noisy: 0.5 to 1 %, placements by 1 to 3 %. In
  another 2 % one placement in four is 3 to 8 % slower, for either kernel on its own.
- Sustained: power limits 40 % of the cases. See `Noise`.
- In 1 % of the measurements the GPU is slower by 3 to 30 %: for both kernels or, as often, for one of them.

Times against stored ones: sessions scatter by 0.3 %, GPUs by 0.8 % for each case, and another driver makes
everything 1 to 3 % slower or faster, the reference workload within 0.5 % of that.
"""

from __future__ import annotations

import argparse
import math
import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from pytest_cutile.baselines.select import Stored
from pytest_cutile.gates.speed.case import SpeedCase
from pytest_cutile.gates.speed.comparison import Comparison, StoredTimes
from pytest_cutile.gates.speed.judge import judge_screening
from pytest_cutile.gates.speed.pending import PendingCase
from pytest_cutile.gates.speed.rule import Rule
from pytest_cutile.gates.speed.suite import MeasuredCases, SpeedSuite
from pytest_cutile.words.spec import Work
from pytest_cutile.words.timing import Block, Device, Measurement, Regime, Sustained
from pytest_cutile.words.verdicts import Judgement, Reason, Verdict

DEVICE = Device(arch="sm_90", name="NVIDIA H200")
WORK = Work()
US = 100.0
PLACEMENTS = 8
POWER_LIMITED = 0.4
HICCUPS, HICCUP = 0.01, (0.03, 0.30)
GPU, SESSION, DRIVER = 0.008, 0.003, (0.01, 0.03)
WORKLOAD = "a reference workload"


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How ratios of two equal kernels scatter from process to process under sustained load."""

    name: str
    usual: tuple[float, float]
    """Standard deviation of most cases, evenly between these."""
    barely_limited: tuple[float, float]
    """Of the others, whose power is only just limited."""
    share_barely: float
    bias: float
    """What placement adds in one process of five, evenly up to this in either direction."""


SEGMENTS_OF_1_S = Noise(
    name="segments of 1 s",
    usual=(0.001, 0.0035),
    barely_limited=(0.0035, 0.01),
    share_barely=0.1,
    bias=0.005,
)
SEGMENTS_OF_400_MS = Noise(
    name="segments of 0.4 s",
    usual=(0.001, 0.006),
    barely_limited=(0.006, 0.02),
    share_barely=0.2,
    bias=0.01,
)


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What a change of code does to one case, besides making it slower."""

    processes: float = 0.0
    """Slowdown in every other process."""
    placements: float = 0.0
    """Slowdown at every other placement, and of every other segment."""
    launches: float = 0.0
    """Slowdown of one launch in five."""
    scatter: float = 0.0
    """Standard deviation from placement to placement and from process to process."""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """The noise of one case, and how much slower today's kernel is, by regime, as a log ratio."""

    process: float
    placement: float
    gap: float
    """How much slower one placement in four is."""
    sustained: float | None
    """Scatter of processes under sustained load; None where power does not limit it."""
    bias: float
    slower: Mapping[Regime, float] = field(default_factory=dict)
    trouble: Trouble = Trouble()
    stored: float | None = None
    """What times against stored ones are off by, as a log ratio; None: nothing is stored."""


class Simulated(Measurement):
    """A measurement that computes each of its figures once."""

    def us(self, regime: Regime) -> float | None:
        return self._once(Measurement.us, regime)

    def baseline_us(self, regime: Regime) -> float | None:
        return self._once(Measurement.baseline_us, regime)

    def log_ratio(self, regime: Regime) -> float | None:
        return self._once(Measurement.log_ratio, regime)

    def standard_error(self, regime: Regime) -> float | None:
        return self._once(Measurement.standard_error, regime)

    def _once(self, figure: Callable[[Measurement, Regime], float | None], regime: Regime) -> float | None:
        kept = self.__dict__.setdefault("_kept", {})
        if (figure, regime) not in kept:
            kept[figure, regime] = figure(self, regime)
        value: float | None = kept[figure, regime]
        return value


def make_kernel(rng: random.Random, noise: Noise) -> Kernel:
    process, placement, gap = rng.uniform(0.0005, 0.001), rng.uniform(0.001, 0.004), 0.0
    kind = rng.random()
    if kind < 0.03:
        process, placement = rng.uniform(0.003, 0.005), 0.02
    elif kind < 0.05:
        process, placement = rng.uniform(0.005, 0.01), rng.uniform(0.01, 0.03)
    elif kind < 0.07:
        gap = rng.uniform(0.03, 0.08)
    sustained = None
    if rng.random() < POWER_LIMITED:
        barely = rng.random() < noise.share_barely
        sustained = rng.uniform(*(noise.barely_limited if barely else noise.usual))
    return Kernel(process=process, placement=placement, gap=gap, sustained=sustained, bias=noise.bias)


def measure(
    rng: random.Random, kernel: Kernel, *, workload: float = 0.0, sustained: bool = True
) -> Measurement:
    """Simulate what one process measures, interleaved with the baseline kernel.

    Args:
        rng: source of randomness.
        kernel: what is measured.
        workload: what the reference workload is off by today, as a log ratio.
        sustained: whether the sustained regime is measured.
    """
    both = current = 0.0
    if rng.random() < HICCUPS:
        hiccup = math.log1p(rng.uniform(*HICCUP))
        both, current = (hiccup, 0.0) if rng.random() < 0.5 else (0.0, rng.choice((-1, 1)) * hiccup)
    trouble = kernel.trouble
    if trouble.processes and rng.random() < 0.5:
        current += math.log1p(trouble.processes)
    if trouble.launches:
        current += math.log1p(trouble.launches / 5)
    if trouble.scatter:
        current += rng.gauss(0, trouble.scatter)
    base = US * math.exp(both + (kernel.stored or 0.0))

    def block(scatter: float, gap: float) -> Block:
        ratio = rng.gauss(0, scatter + trouble.scatter)
        if gap:
            ratio += gap * ((rng.random() < 0.25) - (rng.random() < 0.25))
        if trouble.placements and rng.random() < 0.5:
            ratio += math.log1p(trouble.placements)
        return Block(current_us=(base * math.exp(ratio),), baseline_us=(base,))

    def shifted(blocks: Sequence[Block], by: float) -> tuple[Block, ...]:
        return tuple(replace(one, current_us=(one.current_us[0] * math.exp(by),)) for one in blocks)

    burst = [block(kernel.placement, kernel.gap) for _ in range(PLACEMENTS)]
    own = current + rng.gauss(0, kernel.process) + kernel.slower.get(Regime.BURST, 0.0)
    steady = None
    if sustained and kernel.sustained is not None:
        bias = rng.uniform(-kernel.bias, kernel.bias) if rng.random() < 0.2 else 0.0
        by = current + bias + kernel.slower.get(Regime.SUSTAINED, 0.0)
        first, second, between = (block(kernel.sustained / math.sqrt(1.5), 0.0) for _ in range(3))
        segments = (*first.current_us, *second.current_us)
        steady = Sustained(
            blocks=(
                Block(current_us=tuple(us * math.exp(by) for us in segments), baseline_us=between.current_us),
            )
        )
    return Simulated(
        device=DEVICE,
        work=WORK,
        burst=shifted(burst, own),
        sustained=steady,
        reference_workload=WORKLOAD,
        workload_us=US * math.exp(workload + rng.gauss(0, 0.001)),
    )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one run of the gate said."""

    judgements: Sequence[Judgement]
    suspects: int
    processes: int
    """Measurements in fresh processes."""

    @property
    def failed(self) -> bool:
        return any(one.verdict is Verdict.REGRESSION for one in self.judgements)

    def count(self, verdict: Verdict) -> int:
        return sum(one.verdict is verdict for one in self.judgements)


def run_gate(
    rng: random.Random, kernels: Sequence[Kernel], *, paired: bool = True, driver: float = 0.0
) -> Outcome:
    """Let the gate judge a suite in which every case is measured.

    Args:
        rng: source of randomness.
        kernels: the cases.
        paired: whether there are baseline kernels.
        driver: what another driver has made everything slower by, as a log ratio.
    """
    workload = driver + (rng.gauss(0, 0.0025) if driver else 0.0)
    stored = Stored(
        us=US,
        workload_us=US,
        workload=WORKLOAD,
        is_own=True,
        gpus=1,
        n_runs=3,
    )
    changes = ("driver: 1 -> 2",) if driver else ()
    stored_times = StoredTimes(rule=Rule(), unavailable="no git", environment_changes=changes)
    comparison: Comparison = stored_times.paired_with("anchor", lambda: None) if paired else stored_times
    suite = SpeedSuite(cast("Any", _CONTEXT))
    judgements: dict[str, Judgement] = {}
    measure_case = partial(measure, rng, workload=workload)
    for number, kernel in enumerate(kernels):
        key = str(number)
        known = {} if kernel.stored is None else dict.fromkeys(Regime, stored)
        against = replace(comparison, stored=known)
        screening = measure_case(kernel)
        judgement = judge_screening(key, against, screening)
        judgements[key] = judgement
        if judgement.reason is Reason.UNCONFIRMED:
            suite.add(_case(key), against, judgement, screening)
    pending = suite.pending
    processes = 0

    def measure_again(cases: Sequence[PendingCase], count: int) -> Sequence[MeasuredCases]:
        nonlocal processes
        processes += count * len(cases)
        requests = {case.case.key: case.request for case in cases}
        return [
            {
                key: measure_case(kernels[int(key)], sustained=request.sustained)
                for key, request in requests.items()
            }
            for _ in range(count)
        ]

    suite.settle(measure_again)
    for case in pending:
        judgements[case.case.key] = case.so_far.judgement
    return Outcome(judgements=[*judgements.values()], suspects=len(pending), processes=processes)


_CONTEXT = SimpleNamespace(
    settings=SimpleNamespace(
        perf_margin=None,
        update_baselines=False,
        strict=False,
        baseline_revision=None,
        baseline_option="",
        xdist_worker=False,
    ),
    speed_baselines_name="baselines.json",
    progress=lambda _: None,
)


def _case(key: str) -> SpeedCase:
    return SpeedCase(
        key=key,
        check_key=key,
        kernel=key,
        case="",
        nodeid=key,
        arch="sm_90",
        module="",
        work=WORK,
    )


# -- scenarios ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is simulated, and what one suite of it comes to."""

    name: str
    run: Callable[[random.Random, int], Mapping[str, float]]
    """Returns by column what one suite adds: 0 or 1 where it happened or not, else a count."""


def clean(
    rng: random.Random,
    cases: int,
    *,
    noise: Noise,
    paired: bool = True,
    stored: bool = False,
    driver: bool = False,
) -> Mapping[str, float]:
    movement = _driver(rng) if driver else 0.0
    kernels = [make_kernel(rng, noise) for _ in range(cases)]
    if stored:
        kernels = [replace(kernel, stored=_off(rng, movement)) for kernel in kernels]
    outcome = run_gate(rng, kernels, paired=paired, driver=movement)
    return {
        "fails": outcome.failed,
        "suspects": outcome.suspects,
        "measurements per suspect": outcome.processes / max(outcome.suspects, 1),
        "inconclusive cases": outcome.count(Verdict.INCONCLUSIVE),
    }


def slowed(
    rng: random.Random,
    cases: int,
    *,
    noise: Noise,
    regime: Regime,
    slowdown: float,
    paired: bool = True,
    driver: bool = False,
) -> Mapping[str, float]:
    """Make one case slower, in one regime alone."""
    movement = _driver(rng) if driver else 0.0
    kernels = [make_kernel(rng, noise) for _ in range(cases)]
    if not paired:
        kernels = [replace(kernel, stored=_off(rng, movement)) for kernel in kernels]
    able = [n for n, kernel in enumerate(kernels) if regime is Regime.BURST or kernel.sustained is not None]
    chosen = rng.choice(able)
    kernels[chosen] = replace(kernels[chosen], slower={regime: math.log1p(slowdown)})
    return _shares(run_gate(rng, kernels, paired=paired, driver=movement).judgements[chosen])


def troubled(rng: random.Random, cases: int, *, noise: Noise, trouble: Trouble) -> Mapping[str, float]:
    kernels = [make_kernel(rng, noise) for _ in range(cases)]
    kernels[0] = replace(kernels[0], trouble=trouble)
    return _shares(run_gate(rng, kernels).judgements[0])


def creep(
    rng: random.Random, cases: int, *, noise: Noise, regime: Regime, step: float
) -> Mapping[str, float]:
    """Make one case slower by `step` in each of five commits; the run of each is against the same anchor."""
    kernels = [make_kernel(rng, noise) for _ in range(cases)]
    able = [n for n, kernel in enumerate(kernels) if regime is Regime.BURST or kernel.sustained is not None]
    chosen = rng.choice(able)
    for commit in range(1, 6):
        kernels[chosen] = replace(kernels[chosen], slower={regime: commit * math.log1p(step)})
        verdict = run_gate(rng, kernels).judgements[chosen].verdict
        if verdict is Verdict.REGRESSION:
            return {"regression": 1, "at": commit * step}
    return {"regression": 0}


def _driver(rng: random.Random) -> float:
    return rng.choice((-1, 1)) * rng.uniform(*DRIVER)


def _off(rng: random.Random, movement: float) -> float:
    """Return what the times of a case are off by on another GPU: two sessions, two GPUs, a driver."""
    gpus = rng.gauss(0, GPU * math.sqrt(2))
    sessions = rng.gauss(0, SESSION * math.sqrt(2))
    return gpus + sessions + movement


def _shares(judgement: Judgement) -> Mapping[str, float]:
    verdicts = (Verdict.REGRESSION, Verdict.INCONCLUSIVE, Verdict.PASS, Verdict.IMPROVEMENT)
    return {str(verdict): judgement.verdict is verdict for verdict in verdicts}


def scenarios() -> Iterator[Scenario]:
    for noise in (SEGMENTS_OF_1_S, SEGMENTS_OF_400_MS):
        known: Mapping[str, Any] = {"noise": noise}
        yield Scenario(name=f"clean, {noise.name}", run=partial(clean, **known))
        for regime in Regime:
            for slowdown in (0.01, 0.02, 0.03):
                yield Scenario(
                    name=f"{slowdown:.0%} slower, {regime}, {noise.name}",
                    run=partial(slowed, regime=regime, slowdown=slowdown, **known),
                )
            yield Scenario(
                name=f"creep of 0.4 % in five commits, {regime}, {noise.name}",
                run=partial(creep, regime=regime, step=0.004, **known),
            )
    known = {"noise": SEGMENTS_OF_1_S}
    yield Scenario(
        name="clean, another GPU and driver", run=partial(clean, stored=True, driver=True, **known)
    )
    for trouble in (
        Trouble(processes=0.05),
        Trouble(placements=0.05),
        Trouble(launches=2.0),
        Trouble(scatter=0.05),
    ):
        (what,) = (name for name, value in vars(trouble).items() if value)
        yield Scenario(name=f"trouble: {what}", run=partial(troubled, trouble=trouble, **known))
    for driver in (False, True):
        where = "stored times alone, another GPU" + (" and driver" if driver else "")
        alone: Mapping[str, Any] = {"paired": False, "driver": driver, **known}
        yield Scenario(name=f"clean, {where}", run=partial(clean, stored=True, **alone))
        for slowdown in (0.05, 0.08):
            yield Scenario(
                name=f"{slowdown:.0%} slower, {where}",
                run=partial(slowed, regime=Regime.BURST, slowdown=slowdown, **alone),
            )


# -- running and printing -----------------------------------------------------------------------------


def wilson(hits: float, of: int) -> str:
    """Return a share with its 95 % interval, in percent."""
    p, z = hits / of, 1.96
    middle = (p + z * z / (2 * of)) / (1 + z * z / of)
    half = z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return f"{100 * p:.1f} % ({100 * max(middle - half, 0):.1f}-{100 * min(middle + half, 1):.1f})"


SHARES = ("fails", *(str(verdict) for verdict in Verdict))


def shown(name: str, values: Sequence[float], suites: int) -> str:
    if name in SHARES:
        return f"{name} {wilson(sum(values), suites)}"
    return f"{name} {sum(values) / len(values):.3g} (most {max(values):.3g})"


def _trial(task: tuple[str, int, int]) -> Mapping[str, float]:
    name, cases, number = task
    rng = random.Random(zlib.crc32(f"{name} {number}".encode()))  # noqa: S311
    (scenario,) = (scenario for scenario in scenarios() if scenario.name == name)
    return scenario.run(rng, cases)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m research.speed_rule", description=__doc__)
    parser.add_argument("--suites", type=int, default=2000, help="of each clean scenario; a third of it else")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-k", default="", help="only scenarios whose name has this")
    options = parser.parse_args(arguments)
    for name in ("suites", "cases", "jobs"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    with ProcessPoolExecutor(options.jobs) as pool:
        for name in [scenario.name for scenario in scenarios() if options.k in scenario.name]:
            suites = options.suites if name.startswith("clean") else max(options.suites // 3, 1)
            tasks = [(name, options.cases, number) for number in range(suites)]
            columns: dict[str, list[float]] = {}
            for outcome in pool.map(_trial, tasks, chunksize=10):
                for column, value in outcome.items():
                    columns.setdefault(column, []).append(value)
            print(f"{name}: {suites} suites", flush=True)
            for column, values in columns.items():
                print(f"    {shown(column, values, suites)}", flush=True)


if __name__ == "__main__":
    main()
