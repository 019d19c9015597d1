"""Times of several launches interleaved on one GPU, their ratios, and where they were taken."""

from __future__ import annotations

import importlib.metadata
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from pytest_cutile.words.platforms.lookup import find_platform
from pytest_cutile.words.spec import Work
from pytest_cutile.words.statistics import median, relative_spread
from pytest_cutile.words.timing import Block, LaunchFunction, Measurement, Timer

MakeTimer: TypeAlias = Callable[[], Timer]
"""Makes the timer of this process's GPU; a function of a module, so that it can be sent to processes."""
Blocks: TypeAlias = Sequence[Sequence[float]]
"""The samples of one launch in microseconds, one sequence for each placement of the buffers."""

MOST_BLOCKS, LEAST_BLOCKS = 8, 3
"""Placements of the buffers that are tried: `LEAST_BLOCKS` at least, then until the seconds are spent."""
TRIMMED_FROM = 8
"""Blocks from which the outermost ratio at each end is an accident: of 8, the 2nd and the 7th enclose the
median with 93 % confidence (order statistics), whatever the distribution."""


def gpu_timer() -> Timer:
    """Return the project's own timer, on the first visible GPU."""
    from pytest_cutile.timing.gpu.nvml import find_gpu
    from pytest_cutile.timing.measure.timer import CudaGraphTimer

    return CudaGraphTimer(find_gpu(), longest_us=math.inf)


def environment_of(timer: Timer) -> dict[str, str]:
    """Return what the figures depend on: GPU, driver, compiler, and the libraries of the peers."""
    environment = {"gpu": timer.device.name, "arch": timer.device.arch, **timer.environment()}
    if timer.device.max_sm_clock_mhz is not None:
        environment["max_sm_clock_mhz"] = f"{timer.device.max_sm_clock_mhz:.0f}"
    for name in ("cuda-tile", "tilegym", "nvidia-cudnn-cu13", "nvidia-cublas", "triton"):
        try:
            environment[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return environment


# -- times ------------------------------------------------------------------------------------------


def time_interleaved(
    timer: Timer,
    launches: Sequence[LaunchFunction],
    inputs: Any,
    *,
    blocks: int = MOST_BLOCKS,
    seconds: float = 2.0,
) -> list[list[tuple[float, ...]]]:
    """Return the samples of each launch in microseconds, by block.

    In a block all launches are interleaved, in an order of its own, on buffers at a place of their own:
    ratios within a block are free of what the clock and the placement did to both.

    Args:
        timer: of this process's GPU.
        launches: functions without arguments, which hold the tensors of `inputs`.
        inputs: arguments, of which each block moves every tensor.
        blocks: at most so many.
        seconds: of GPU time in samples, after which `LEAST_BLOCKS` are enough.

    Raises:
        TimingError: one cannot be captured into a CUDA graph.
    """
    samples: list[list[tuple[float, ...]]] = [[] for _ in launches]
    spent = 0.0
    for block in range(blocks):
        if block >= LEAST_BLOCKS and spent > seconds:
            break
        order = random.Random(block).sample(range(len(launches)), len(launches))  # noqa: S311
        with moved(inputs):
            lanes = timer.time_block([launches[lane] for lane in order])
        for lane, values in zip(order, lanes, strict=True):
            samples[lane].append(tuple(values))
            spent += sum(values) * 1e-6
    return samples


@contextmanager
def moved(inputs: Any) -> Iterator[None]:
    """Let every tensor in `inputs` lie at another place of the GPU's memory inside.

    The tensors stay the same objects, so that closures which were made of them move as well.
    """
    from pytest_cutile.tile.tensors.trees import named_tensors
    from pytest_cutile.timing.measure.placement import placed_anew

    own = [tensor for _, tensor in named_tensors(inputs, "input")]
    homes = [(t.untyped_storage(), t.storage_offset(), t.size(), t.stride()) for t in own]
    with placed_anew(inputs) as elsewhere:
        try:
            for tensor, (_, there) in zip(own, named_tensors(elsewhere, "input"), strict=True):
                tensor.set_(there)  # type: ignore[call-overload]
            yield
        finally:
            for tensor, home in zip(own, homes, strict=True):
                tensor.set_(*home)


def best_us(blocks: Blocks) -> float:
    """Return the time of a launch as the speed gate takes it: the median of its fastest block."""
    return min(median(samples) for samples in blocks)


def spread_percent(blocks: Blocks) -> float:
    """Return the half interquartile range of the fastest block, in percent of its median."""
    return 100 * relative_spread(min(blocks, key=median))


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times as long one launch takes as another: the median over blocks, and its interval."""

    value: float
    """Above 1: the first one takes longer."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def ratio_of(slower: Blocks, faster: Blocks) -> Ratio:
    """Return the ratio of two interleaved launches, block by block."""
    values = sorted(median(a) / median(b) for a, b in zip(slower, faster, strict=True))
    cut = 1 if len(values) >= TRIMMED_FROM else 0
    return Ratio(value=median(values), low=values[cut], high=values[-1 - cut])


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def figures(timer: Timer, work: Work, blocks: Blocks) -> dict[str, Any]:
    """Return time, rates and shares of the GPU's peak, and what is above its limit, for a JSON file."""
    measurement = Measurement(
        device=timer.device,
        burst=(Block(current_us=(best_us(blocks),)),),
        work=work,
        platform=find_platform(timer.device.name),
    )
    return {
        "us_per_launch": measurement.headline_us,
        "spread_percent": spread_percent(blocks),
        "samples": sum(map(len, blocks)),
        "block_medians_us": [median(samples) for samples in blocks],
        "bound": measurement.bound,
        "rate": measurement.rate,
        "share_of_peak": measurement.share_of_limit,
        "exceeded": measurement.exceeded,
    }
