"""What bounds a launch, by its counters, in words: pure functions from counters to sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_cutile.tile.static.roofline import LAUNCH_US
from pytest_cutile.timing.profiling.counters import KernelCounters
from pytest_cutile.words.quantities import format_share

BUSY, IDLE = 0.8, 0.6
"""Share of its peak from which a unit bounds a launch, and below which latency does. They are those of Nsight
Compute's own rule SpeedOfLight (its file SpeedOfLight.py: 80 and 60 percent)."""
LAUNCH_SHARE = 0.3
"""Share of the time from which starting and ending a launch counts as what bounds it."""
FULL_WAVES = 0.8
"""Blocks over places in all waves, below which it is worth saying that the last wave is not full."""
_SHOWN_WAITS = 3


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A part of the GPU that can be busy all the time."""

    title: str
    pattern: str
    """Pattern of the metrics that say how busy the unit is; the largest counts."""
    percent: float = 100.0
    """What the metric is when the unit is busy all the time."""
    advice: str

    def share(self, kernel: KernelCounters) -> float | None:
        """Return how busy it was, from 0 to 1; None where that was not counted."""
        value = kernel.largest(self.pattern)
        return None if value is None else value / self.percent


UNITS = (
    Unit(
        title="tensor cores",
        pattern=r"sm__\w*pipe_tensor\w*\.avg\.pct_of_peak_sustained_active",
        advice="Only less arithmetic, or operands of fewer bits, would make it faster.",
    ),
    Unit(
        title="memory",
        pattern=r"(gpu__)?dram__?throughput\.avg\.pct_of_peak_sustained_elapsed",
        advice="Move fewer bytes: fuse what reads them again, or store fewer bits.",
    ),
    Unit(
        title="L2",
        pattern=r"lts__throughput\.avg\.pct_of_peak_sustained_elapsed",
        advice="Larger tiles read each operand less often; an order of blocks that shares tiles helps, too.",
    ),
    Unit(
        title="L1 and shared memory",
        pattern=r"l1tex__throughput\.avg\.pct_of_peak_sustained_active",
        advice="Larger tiles for each product, or another layout, pass fewer bytes through shared memory.",
    ),
    Unit(
        title="special functions",
        pattern=r"sm__\w*pipe_xu\w*\.avg\.pct_of_peak_sustained_active",
        advice="Exponentials, divisions and conversions are what to save.",
    ),
    Unit(
        title="FP32 units",
        pattern=r"sm__\w*pipe_fma(heavy)?(_\w+)?\.avg\.pct_of_peak_sustained_active",
        advice="Save arithmetic outside of the matrix products.",
    ),
    Unit(
        title="integer and logic units",
        pattern=r"sm__\w*pipe_alu\w*\.avg\.pct_of_peak_sustained_active",
        advice="Save comparisons, masks and index arithmetic.",
    ),
    Unit(
        title="FP64 units",
        pattern=r"sm__\w*pipe_fp64\w*\.avg\.pct_of_peak_sustained_active",
        advice="Compute in float32 where that is exact enough.",
    ),
    Unit(
        title="instruction issue",
        pattern=r"smsp__issue_active\.avg\.per_cycle_active",
        percent=1.0,
        advice="Fewer, wider instructions would make it faster.",
    ),
)

WAITS = {
    "long_scoreboard": "for data from memory or the L2",
    "short_scoreboard": "for shared memory or special functions",
    "barrier": "at barriers, for other warps of the block",
    "wait": "for the fixed latency of the instruction before",
    "math_pipe_throttle": "for a busy arithmetic unit",
    "mio_throttle": "for the queue of shared memory and special functions",
    "lg_throttle": "for the queue of loads and stores",
    "tex_throttle": "for the queue of the L1",
    "gmma": "for matrix products of their warpgroup",
    "no_instruction": "for instructions to be fetched",
    "not_selected": "for their turn: another warp issued",
    "branch_resolving": "for a branch",
    "dispatch_stall": "for the dispatcher",
    "imc_miss": "for constants",
    "drain": "for their last stores",
    "membar": "at memory fences",
    "sleeping": "asleep",
}
"""Why a warp does not issue, by Nsight Compute's name of it (Profiling Guide, "Warp Stall Reasons")."""


@dataclass(frozen=True, kw_only=True)
class LaunchBound:
    """What bounds a launch."""

    what: str
    """In two or three words: "memory", "latency"."""
    reasons: tuple[str, ...]
    """Sentences with the counters that say so, and what would help."""


def bound_of_launch(kernel: KernelCounters) -> LaunchBound:
    shares = [(unit, share) for unit in UNITS if (share := unit.share(kernel)) is not None]
    if not shares:
        nothing = "No counter says how busy a unit was: collect SpeedOfLight."
        return LaunchBound(what="unknown", reasons=(nothing,))
    shares.sort(key=lambda pair: pair[1], reverse=True)
    busiest, share = shares[0]
    us = kernel.us
    if share < IDLE and us is not None and us * LAUNCH_SHARE < LAUNCH_US:
        text = (
            f"It takes {us:.1f} us, and starting and ending any launch takes about {LAUNCH_US:g} us. "
            "Do more in one launch: fuse it with its neighbours, or put several into a CUDA graph."
        )
        return LaunchBound(what="the launch itself", reasons=(text, *_unfilled(kernel)))
    said = ", ".join(f"{unit.title} {format_share(own)}" for unit, own in shares[:3])
    if share >= IDLE:
        what = busiest.title if share >= BUSY else f"mostly {busiest.title}"
        return LaunchBound(what=what, reasons=(f"Busy: {said}. {busiest.advice}", *_unfilled(kernel)))
    reasons = (f"No unit is busy: {said}.", *_unfilled(kernel), *_waiting(kernel))
    return LaunchBound(what="latency", reasons=reasons)


def wait_shares(kernel: KernelCounters) -> list[tuple[str, float]]:
    """Return what warps waited for, in words, and in which share of their time; the longest wait first."""
    metric = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
    ratios = {
        reason: kernel.values.get(metric.format(reason), 0.0) for reason in (*WAITS, "misc", "selected")
    }
    total = sum(ratios.values())
    if not total:
        return []
    shares = [(text, ratios[reason] / total) for reason, text in WAITS.items() if ratios[reason]]
    return sorted(shares, key=lambda pair: pair[1], reverse=True)


def _waiting(kernel: KernelCounters) -> Sequence[str]:
    waits = [f"{text} ({format_share(share)})" for text, share in wait_shares(kernel)[:_SHOWN_WAITS]]
    return [f"Warps wait {', '.join(waits)}."] if waits else []


def _unfilled(kernel: KernelCounters) -> Sequence[str]:
    """Return a sentence about multiprocessors without blocks, if many have none for long."""
    waves = kernel.values.get("launch__waves_per_multiprocessor", 0.0)
    waves_begun = max(math.ceil(waves), 1)
    if not waves or waves / waves_begun >= FULL_WAVES:
        return []
    filled = format_share(waves / waves_begun)
    if waves < 1:
        return [f"The grid fills {filled} of the places for blocks: smaller tiles make more blocks."]
    text = (
        f"The grid is {waves:.2f} waves of blocks, which fill {filled} of the places of {waves_begun}: "
        "other tiles, or blocks that take several tiles in turn, may fill more."
    )
    return [text]
