"""What the kernels have to reach beside their peers, and which cases do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.comparison.case import COPY
from tools.gpu_runs.measure import geometric_mean

TILEGYM = "tilegym"
DENSE = ("matmul", "bmm", "group_gemm", "fmha")
"""Kernels whose rivals are NVIDIA's own libraries, written for the chip."""
RANDOM = ("dropout",)
"""Kernels whose results are random: peers draw other numbers."""
SEVERAL_L2 = 3
"""Size of a case's data over the L2's from which a plain copy is the measure of a memory-bound kernel."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A least ratio of a peer's time to ours."""

    peers: str
    """"tilegym", "torch" (the fastest of what a PyTorch user would call) or "copy"."""
    least: float
    """The ratio."""
    kernels: tuple[str, ...] = ()
    """Only these; all if empty."""
    not_kernels: tuple[str, ...] = ()
    """All but these."""
    dtypes: tuple[str, ...] = ()
    """Only cases whose `dtype` is one of these; all if empty."""
    mean: bool = False
    """Whether it is the geometric mean over the cases of TileGym's benchmark, and not each case."""
    why: str
    """In words, for the page."""

    def applies(self, case: Mapping[str, Any]) -> bool:
        """Return whether the goal is one for this case."""
        kernel, dtype = case["kernel"], case["params"].get("dtype")
        return (
            (not self.kernels or kernel in self.kernels)
            and kernel not in self.not_kernels
            and (not self.dtypes or dtype in self.dtypes)
        )


FP8 = ("float8_e4m3fn", "float8_e5m2")
GOALS = (
    Goal(peers=TILEGYM, least=1.0, why="no case slower than TileGym"),
    Goal(peers=TILEGYM, least=1.3, mean=True, why="1.3x TileGym over all cases"),
    Goal(
        peers=TILEGYM,
        least=1.6,
        kernels=("fmha",),
        dtypes=("float16",),
        mean=True,
        why="1.6x TileGym for attention in fp16",
    ),
    Goal(
        peers=TILEGYM,
        least=4.0,
        kernels=("matmul",),
        dtypes=FP8,
        mean=True,
        why="4x TileGym for products in fp8",
    ),
    Goal(peers="torch", least=0.97, kernels=DENSE, why="within 3 % of cuBLAS and cuDNN"),
    Goal(peers="torch", least=1.0, not_kernels=DENSE, why="no case slower than PyTorch"),
    Goal(peers=COPY, least=0.85, why="85 % of a plain copy's bandwidth"),
)


@dataclass(frozen=True, kw_only=True)
class Miss:
    """A case, or a mean over cases, that is below a goal."""

    goal: Goal
    """The goal."""
    what: str
    """The case, or what the mean is over."""
    peer: str
    """The peer."""
    ratio: float
    """Of its time to ours."""
    decided: bool
    """Whether the whole interval of the ratio is below the goal."""

    @property
    def needs_reason(self) -> bool:
        """Whether somebody has to say what bounds it: a wide interval alone excuses no more than 1 %."""
        return self.decided or self.ratio < 0.99 * self.goal.least


def kind_of(peer: str) -> str:
    """Return what a peer counts as: "tilegym" (all its variants), "copy", else "torch"."""
    return next((kind for kind in (TILEGYM, COPY) if peer.startswith(kind)), "torch")


def is_memory_bound(case: Mapping[str, Any]) -> bool:
    """Return whether a case moves several times the L2, and memory is what it is nearest to."""
    l2_bytes = case.get("l2_bytes") or 0
    return bool(case["ours"]["bound"] == "GB/s" and case["work"]["bytes"] >= SEVERAL_L2 * l2_bytes)


def rival(case: Mapping[str, Any], peers: str) -> tuple[str, Mapping[str, Any]] | None:
    """Return the peer of a case that a goal speaks of: its name and figures; None if it was not measured.

    Of several the one with the lowest ratio. One that computes something else, or faster than the chip can,
    is none.
    """
    same = {
        name: peer
        for name, peer in case["peers"].items()
        if not peer["exceeded"] and (not peer["differs"] or case["kernel"] in RANDOM)
    }
    same = {name: peer for name, peer in same.items() if kind_of(name) == peers}
    if not same:
        return None
    return min(same.items(), key=lambda item: float(item[1]["ratio"]["value"]))


def is_judged(case: Mapping[str, Any], goal: Goal) -> bool:
    """Return whether a goal speaks of a case, if its peer was measured."""
    return (
        goal.applies(case)
        and (goal.peers != COPY or is_memory_bound(case))
        and (not goal.mean or case["of_tilegym"])
    )


def find_unjudged(cases: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Goal, list[str]]]:
    """Yield the goals of which cases are not judged, because the peer was not measured, and these cases.

    TileGym has not every kernel, and is judged where its own benchmark has the case.
    """
    for goal in GOALS:
        names = [
            f"{case['kernel']}[{case['case']}]"
            for case in cases
            if is_judged(case, goal)
            and (goal.peers != TILEGYM or case["of_tilegym"])
            and rival(case, goal.peers) is None
        ]
        if names:
            yield goal, names


def find_misses(cases: Sequence[Mapping[str, Any]]) -> Iterator[Miss]:
    """Yield what is below the goals."""
    for goal in GOALS:
        ratios = []
        for case in cases:
            if not is_judged(case, goal):
                continue
            pair = rival(case, goal.peers)
            if pair is None:
                continue
            name, ratio = pair[0], pair[1]["ratio"]
            ratios.append(ratio["value"])
            if not goal.mean and ratio["value"] < goal.least:
                yield Miss(
                    goal=goal,
                    what=f"{case['kernel']}[{case['case']}]",
                    peer=name,
                    ratio=ratio["value"],
                    decided=ratio["high"] < goal.least,
                )
        if goal.mean and ratios and (mean := geometric_mean(ratios)) < goal.least:
            what = f"geometric mean of {len(ratios)} cases"
            yield Miss(goal=goal, what=what, peer=goal.peers, ratio=mean, decided=True)
