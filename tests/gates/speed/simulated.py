"""Measurements, comparisons and suites that need no GPU."""

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from pytest_cutile import Block, Device, Measurement, Regime, Sustained, Work
from pytest_cutile.baselines.entries import SpeedBaselines
from pytest_cutile.baselines.select import Stored
from pytest_cutile.gates.speed.case import Request, SpeedCase
from pytest_cutile.gates.speed.comparison import Comparison, Paired, StoredTimes
from pytest_cutile.gates.speed.judge import judge_screening
from pytest_cutile.gates.speed.pending import PendingCase
from pytest_cutile.gates.speed.rule import Rule
from pytest_cutile.gates.speed.suite import SpeedSuite
from pytest_cutile.words.timing import Skipped

H200 = Device(arch="sm_90", name="NVIDIA H200", uuid="GPU-1")
WORK = Work(bytes=1e8)
RULE = Rule()
WORKLOAD = "a copy"
NOT_LIMITED = Skipped(reason="not limited by power", not_limited=True)
STEADY = 0.0003
"""Scatter of simulated processes: some, as real ones have."""


def measured(
    burst: float = 0.0,
    sustained: float | None = None,
    *,
    baseline: float = 0.0,
    scatter: float = STEADY,
    rng: random.Random | None = None,
    problems: tuple[str, ...] = (),
    workload: float = 0.0,
) -> Measurement:
    """Return what one process measures.

    Args:
        burst: by what fraction today's kernel is slower than the baseline kernel in bursts.
        sustained: likewise sustained; None: power does not limit it.
        baseline: by what fraction the baseline kernel takes more than 100 us.
        scatter: standard deviation between placements.
        rng: source of the scatter.
        problems: what disturbed the GPU.
        workload: by what fraction the reference workload takes more than 100 us.
    """
    rng = rng or random.Random(0)
    base = 100 * (1 + baseline)

    def block(change: float) -> Block:
        return Block(
            current_us=(base * (1 + change) * (1 + rng.gauss(0, scatter)),) * 2, baseline_us=(base, base)
        )

    return Measurement(
        device=H200,
        work=WORK,
        burst=tuple(block(burst) for _ in range(8)),
        sustained=None if sustained is None else Sustained(blocks=(block(sustained),)),
        sustained_skipped=NOT_LIMITED if sustained is None else None,
        problems=problems,
        reference_workload=WORKLOAD,
        workload_us=100 * (1 + workload),
    )


def stored(us: float = 100.0, **changed: Any) -> dict[Regime, Stored]:
    """Return stored times, of bursts and sustained alike."""
    facts = {
        "workload_us": 100.0,
        "workload": WORKLOAD,
        "is_own": True,
        "gpus": 1,
        "n_runs": 3,
    }
    return dict.fromkeys(Regime, Stored(us=us, **{**facts, **changed}))


def paired(**changed: Any) -> Paired:
    """Return a comparison with a baseline kernel."""
    return Paired(rule=RULE, revision="abc1234", launcher=lambda: None, **changed)


def unpaired(why: str = "abc1234 is not in this clone", **changed: Any) -> StoredTimes:
    """Return a comparison with stored times alone."""
    return StoredTimes(**{"rule": RULE, "unavailable": why, "stored": stored(), **changed})


class FakeCase(SpeedCase):
    """A case of known code, of which nothing is run."""

    def fingerprint(self, revision: str) -> str:  # noqa: ARG002
        return "fingerprint"

    def source(self, revision: str) -> str:  # noqa: ARG002
        return "source"


def make_case(key: str = "k[c]", kind: type[SpeedCase] = FakeCase) -> SpeedCase:
    of = {"key": key, "check_key": key, "kernel": "k", "case": "c", "nodeid": f"x.py::{key}"}
    return kind(**of, arch="sm_90", module="m", work=WORK)  # type: ignore[arg-type]


class FakeStore:
    """Baselines in memory."""

    def __init__(self) -> None:
        self.baselines = SpeedBaselines(arch="sm_90", gpu="NVIDIA H200")
        self.writes = 0

    def record_speed(self, arch: str, gpu: str, renew: Any) -> None:
        assert (arch, gpu) == ("sm_90", "NVIDIA H200")
        self.baselines = renew(self.baselines)
        self.writes += 1


def make_context(store: Any = None, commit: str = "a" * 40, **changed: Any) -> Any:
    settings: dict[str, Any] = {
        "perf_margin": None,
        "update_baselines": False,
        "strict": False,
        "reason": None,
        "baseline_revision": None,
        "xdist_worker": False,
    }
    timer = SimpleNamespace(device=H200, environment=lambda: {"driver": "580"})
    return SimpleNamespace(
        settings=SimpleNamespace(**{**settings, **changed}),
        gpu=SimpleNamespace(timer=timer, unseen={}),
        checkout=SimpleNamespace(commit=commit),
        baselines=store,
        speed_baselines_name="baselines/sm_90-nvidia-h200.json",
        progress=lambda _: None,
        run_id="2026-11-25-0123abcd",
    )


class Fresh:
    """Fresh processes that measure what they are told to, by key."""

    def __init__(self, **measures: Any) -> None:
        self.measures = measures
        self.processes = 0
        self.requests: list[Request] = []

    def __call__(self, cases: Sequence[PendingCase], count: int) -> list[dict[str, Any]]:
        self.processes += count
        self.requests += [case.request for case in cases]
        results = []
        for _ in range(count):
            made = {case.case.key: self.measures[case.case.key](case.case.key) for case in cases}
            results.append({key: value for key, value in made.items() if value is not None})
        return results


def settle(
    *,
    screening: Measurement,
    again: Any,
    comparison: Comparison | None = None,
    context: Any = None,
    case: SpeedCase | None = None,
) -> Any:
    """Screen one case, settle it if it is pending, and return it with the fresh processes.

    Args:
        screening: the first measurement.
        again: `again()` returns what a fresh process measures, an error, or None if the process was lost.
        comparison: what it is compared with.
        context: of the run.
        case: what is measured.
    """
    context, case, comparison = context or make_context(), case or make_case(), comparison or paired()
    suite = SpeedSuite(context)
    suite.add(case, comparison, judge_screening(case.key, comparison, screening), screening)
    [pending] = suite.pending
    fresh = Fresh(**{case.key: lambda _: again()})
    suite.settle(fresh)
    return pending, fresh
