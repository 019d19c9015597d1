"""The interface of a timer, and the figures that follow from its samples.

How one process measures one case (`blocks.measure`):

1. The reference workload is timed, once in a process.
2. Bursts: at up to eight placements of the buffers, some 10 ms of launches with a cold L2, the current and
   the baseline kernel interleaved. Each placement gives the log ratio of their means.
3. Sustained: each kernel runs for a moment, launch after launch. If power then limits the clock, the two run
   in turn for a second each, and the means of those seconds are compared.
4. A regime's value is the trimmed mean over its blocks. Impossible times are refused.
5. After each placement the GPU is asked what made it unfit to measure on (`problems`).
"""

from __future__ import annotations

import math
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from pytest_cutile.words.platforms.data import Platform
from pytest_cutile.words.spec import Work
from pytest_cutile.words.statistics import (
    mean,
    relative_spread,
    standard_error_of_mean,
    sum_of_squares,
    trimmed_mean,
)

LaunchFunction: TypeAlias = Callable[[], object]

NOISE_LIMIT = 0.10
"""Largest spread of samples, as a fraction of their median, that a pass or a baseline may rest on."""


LONGEST_BURST_US = 5000.0
"""Longest launch that fits into a burst: a replay has four of them."""


class Regime(StrEnum):
    """How a kernel is run while it is timed."""

    BURST = "burst"
    """For some 10 ms after a pause, with a cold L2: the GPU runs at its full clock."""
    SUSTAINED = "sustained"
    """Launch after launch for seconds, as in training and serving: power limits the clock."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """The GPU that a timer measures on."""

    arch: str
    """Its architecture, e.g. "sm_90"."""
    name: str
    """Its name as NVML reports it, e.g. "NVIDIA H200"."""
    uuid: str = ""
    """Its UUID, to tell two GPUs of one kind apart; empty where it is not known."""
    max_sm_clock_mhz: float | None = None
    """Highest clock of its SMs; published peak rates hold at a lower one, so the limit grows with it."""
    torch_device: str = "cuda"
    """Device that `make_tensor` puts tensors on ("cpu" lets a fake timer drive the gate with no GPU)."""

    @property
    def gpu_id(self) -> str:
        """This machine's name and the beginning of the UUID: "h200-box GPU-d91fcf89"."""
        return f"{socket.gethostname()} {self.uuid[:12]}".strip()


@dataclass(frozen=True, kw_only=True)
class ReferenceWorkload:
    """A reference workload: its speed depends on the GPU's condition and on no kernel under test."""

    name: str
    """What it is, with its library's version: times of differently named workloads are not compared."""
    launch: LaunchFunction


@dataclass(frozen=True, kw_only=True)
class Block:
    """Samples that were taken side by side, in microseconds per launch.

    In bursts a block is one placement of the buffers, and a sample one launch. Sustained, it is one series of
    segments, and a sample the mean of one segment.
    """

    current_us: tuple[float, ...]
    baseline_us: tuple[float, ...] = ()
    """Times of the baseline kernel, interleaved with the current one; empty without one."""

    @property
    def current_mean_us(self) -> float:
        return mean(self.current_us)

    @property
    def baseline_mean_us(self) -> float | None:
        return mean(self.baseline_us) if self.baseline_us else None

    @property
    def log_ratio(self) -> float | None:
        """Logarithm of the current kernel's mean over the baseline kernel's; None without a baseline.

        Means, not medians: a kernel that is three times slower in one launch of five is slower.
        """
        baseline_us = self.baseline_mean_us
        return math.log(self.current_mean_us / baseline_us) if baseline_us else None


def _log_ratios(blocks: Sequence[Block]) -> list[float]:
    return [ratio for block in blocks if (ratio := block.log_ratio) is not None]


def mean_log_ratio(blocks: Sequence[Block]) -> float | None:
    """Return the trimmed mean of the blocks' log ratios; None without a pair."""
    ratios = _log_ratios(blocks)
    return trimmed_mean(ratios) if ratios else None


def log_ratio_error(blocks: Sequence[Block]) -> float | None:
    """Return the standard error of `mean_log_ratio`; None where nothing was repeated.

    It follows from the blocks, all of them: a kernel that is slow at one placement in eight scatters.
    In a single block it follows from the samples of each kernel.
    """
    ratios = _log_ratios(blocks)
    if len(ratios) != 1:
        return standard_error_of_mean(ratios) if ratios else None
    (block,) = blocks
    kernels = [[*map(math.log, us)] for us in (block.current_us, block.baseline_us)]
    dof = sum(len(logs) - 1 for logs in kernels)
    if not dof:
        return None
    variance = sum(map(sum_of_squares, kernels)) / dof
    return math.sqrt(variance * sum(1 / len(logs) for logs in kernels))


@dataclass(frozen=True, kw_only=True)
class Sustained:
    """Times of launches that followed each other for seconds, and the clock and power meanwhile."""

    blocks: tuple[Block, ...]
    current_clock_mhz: float | None = None
    """Median clock of the SMs while the current kernel ran; None where it is not known."""
    baseline_clock_mhz: float | None = None
    current_watts: float | None = None
    """Mean power while the current kernel ran; None where it is not known."""
    baseline_watts: float | None = None


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """The sustained regime was to be measured, and was not."""

    reason: str
    """Why, for people: "not limited by power: the SM clock stays at 1980 MHz"."""
    not_limited: bool = False
    """Whether power is known not to limit the kernels: their times cannot differ from those in bursts."""


class Timer(ABC):
    """Times launches on one GPU. Plugins supply their own through `pytest_cutile_make_timer`."""

    @property
    @abstractmethod
    def device(self) -> Device: ...

    @property
    def tick_us(self) -> float:
        """Resolution of a time per launch in bursts; differences below it mean nothing."""
        return 0.0

    @abstractmethod
    def time_block(self, launches: Sequence[LaunchFunction]) -> Sequence[Sequence[float]]:
        """Return the GPU times of each launch in bursts, in microseconds, a few dozen samples at most.

        Interleave the launches, so that they run at the same clocks. The first is the current kernel. A
        second one is the baseline kernel.

        Raises:
            TooLong: the launches are too long for a burst, and `time_sustained` measures them.
            TimingError: a launch cannot be timed; the message says why.
        """

    def time_sustained(
        self, launches: Sequence[Sequence[LaunchFunction]], *, always: bool = False
    ) -> Sustained | Skipped:
        """Time each kernel launch after launch, long enough for power and clock to settle.

        Args:
            launches: of the current kernel, and of the baseline kernel if there is one: the same launch on
                buffers at several places, to be cycled through.
            always: measure also where times cannot differ from those in bursts: there are none.

        Raises:
            TimingError: a launch cannot be timed; the message says why.
        """
        del launches, always
        return Skipped(reason="the timer measures bursts only")

    def reference_workload(self, bound: str) -> ReferenceWorkload | None:
        """Return the reference workload for kernels limited by `bound` ("TFLOPS" or "GB/s"), or None."""
        del bound
        return None

    def environment(self) -> Mapping[str, str]:
        """Return what times depend on besides the kernel: driver, compiler, versions, power limit."""
        return {}

    def problems(self) -> Sequence[str]:
        """Return why a time measured now is doubtful (GPU busy, throttled); empty if it is not."""
        return ()

    def unseen(self) -> Sequence[str]:
        """Return which disturbances `problems` cannot observe; called after a measurement."""
        return ()

    def sm_clock_mhz(self) -> float | None:
        """Return the clock of the SMs, or None where it is not known."""
        return None


class TimingError(RuntimeError):
    """A launch that cannot be timed; the message says why and what to do."""


class TooLong(TimingError):  # noqa: N818 - no mistake of anybody
    """Launches that do not fit into a burst: the GPU would reach its power limit within one."""


class Uncapturable(TimingError):  # noqa: N818 - likewise
    """A launch of which no CUDA graph can be made."""


def bound_of(work: Work, platform: Platform | None) -> str:
    """Return the limit that `work` is nearest to on a platform: "TFLOPS" or "GB/s".

    On an unknown platform, work that counts operations is taken to be limited by them.
    """
    if platform is not None and work.flops and work.bytes:
        peak = platform.tflops_limit(work.dtype or "")
        if peak and work.bytes / platform.memory_bandwidth_gb_s / 1e9 > work.flops / peak / 1e12:
            return "GB/s"
    return "TFLOPS" if work.flops else "GB/s"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What one process measured of one case on one GPU, and the figures that follow from it.

    The time of a regime is the trimmed mean over its blocks: where the buffers lie in memory moves some
    kernels by several percent (docs/explanation/speed.md).
    """

    device: Device
    work: Work
    platform: Platform | None = None
    """The limits of the GPU, where the table of platforms knows it."""
    burst: tuple[Block, ...] = ()
    """One block for each placement of the buffers; empty where a launch is too long for a burst."""
    sustained: Sustained | None = None
    sustained_skipped: Skipped | None = None
    """Why the sustained regime was not measured; None where it was, or where nobody asked for it."""
    clock_mhz: float | None = None
    """Clock of the SMs right after the bursts."""
    problems: tuple[str, ...] = ()
    """What made the GPU unfit to measure on."""
    reference_workload: str = ""
    """Name of the reference workload; empty without one."""
    workload_us: float | None = None
    """Time of the reference workload, measured once in this process; None without one."""
    tick_us: float = 0.0
    """Resolution of the times in bursts."""
    tuning: str = ""
    """What a launcher that tunes chose, in words: that is what was timed."""
    outputs_uncompared: str = ""
    """Why the outputs of timed launches were not compared with those of a first launch; empty: they were."""

    def blocks(self, regime: Regime) -> tuple[Block, ...]:
        if regime is Regime.BURST:
            return self.burst
        return self.sustained.blocks if self.sustained is not None else ()

    @property
    def regimes(self) -> tuple[Regime, ...]:
        return tuple(regime for regime in Regime if self.blocks(regime))

    def us(self, regime: Regime) -> float | None:
        """Return the current kernel's time per launch in microseconds; None where it was not measured."""
        times = [block.current_mean_us for block in self.blocks(regime)]
        return trimmed_mean(times) if times else None

    def baseline_us(self, regime: Regime) -> float | None:
        """Return the baseline kernel's time per launch; None where it was not measured."""
        times = [us for block in self.blocks(regime) if (us := block.baseline_mean_us) is not None]
        return trimmed_mean(times) if times else None

    @property
    def burst_us(self) -> float | None:
        return self.us(Regime.BURST)

    @property
    def sustained_us(self) -> float | None:
        return self.us(Regime.SUSTAINED)

    @property
    def headline_us(self) -> float:
        """Time per launch in the first regime that was measured: in bursts, or else sustained."""
        return self.us(self.regimes[0]) or math.nan

    def log_ratio(self, regime: Regime) -> float | None:
        """Return the logarithm of current over baseline time: +0.01 is 1 % slower. None without a pair."""
        return mean_log_ratio(self.blocks(regime))

    def standard_error(self, regime: Regime) -> float | None:
        """Return the standard error of `log_ratio`; None where nothing was repeated."""
        return log_ratio_error(self.blocks(regime))

    @property
    def samples_us(self) -> tuple[float, ...]:
        """The current kernel's samples in the first regime that was measured."""
        return tuple(us for block in self._headline_blocks for us in block.current_us)

    @property
    def baseline_samples_us(self) -> tuple[float, ...]:
        return tuple(us for block in self._headline_blocks for us in block.baseline_us)

    @property
    def _headline_blocks(self) -> tuple[Block, ...]:
        return self.blocks(self.regimes[0]) if self.regimes else ()

    @property
    def spread(self) -> float:
        """Half the range of the middle 90 % of the current kernel's samples, over their median."""
        return relative_spread(self.samples_us)

    @property
    def excess_spread(self) -> float:
        """By how much more the current kernel's samples spread than those of the baseline kernel, if any."""
        return self.spread - relative_spread(self.baseline_samples_us)

    @property
    def placement_spread(self) -> float:
        """How much slower the slowest placement of the buffers is than the fastest, as a fraction."""
        times = [block.current_mean_us for block in self.burst]
        return max(times) / min(times) - 1 if times else 0.0

    def tflops_at(self, us: float) -> float | None:
        """Return 10^12 floating-point operations per second; None when the work counts none."""
        return self.work.flops / us * 1e-6 if self.work.flops else None

    def gb_per_s_at(self, us: float) -> float | None:
        """Return 10^9 bytes per second; None when the work counts none."""
        return self.work.bytes / us * 1e-3 if self.work.bytes else None

    def rate_at(self, us: float) -> float | None:
        """Return the rate in `unit`; None when the work counts nothing."""
        amount = self.work.amounts.get(self.unit)
        return amount / us * 1e6 if amount else None

    @property
    def tflops(self) -> float | None:
        return self.tflops_at(self.headline_us)

    @property
    def gb_per_s(self) -> float | None:
        return self.gb_per_s_at(self.headline_us)

    @property
    def rate(self) -> float | None:
        """The rate of `headline_us` in `unit`; None when the work counts nothing."""
        return self.rate_at(self.headline_us)

    @property
    def shares(self) -> dict[str, float]:
        """Share of each published peak: {"TFLOPS": 0.72, "GB/s": 0.31}."""
        return self._shares(self.headline_us, max_sm_clock_mhz=None)

    def _shares(self, us: float, *, max_sm_clock_mhz: float | None) -> dict[str, float]:
        shares: dict[str, float] = {}
        if self.platform is None:
            return shares
        peak = self.platform.tflops_limit(self.work.dtype or "", max_sm_clock_mhz=max_sm_clock_mhz)
        tflops, gb_per_s = self.tflops_at(us), self.gb_per_s_at(us)
        if tflops is not None and peak:
            shares["TFLOPS"] = tflops / peak
        if gb_per_s is not None:
            shares["GB/s"] = gb_per_s / self.platform.memory_bandwidth_gb_s
        return shares

    @property
    def fastest_us(self) -> float:
        """Time per launch in the faster regime."""
        return min((us for regime in self.regimes if (us := self.us(regime))), default=math.nan)

    @property
    def exceeded(self) -> str | None:
        """What is above the limit of the chip at its highest clock ("5210 GB/s of at most 4800 GB/s")."""
        us = self.fastest_us
        rates = {"TFLOPS": self.tflops_at(us), "GB/s": self.gb_per_s_at(us)}
        for unit, share in self._shares(us, max_sm_clock_mhz=self.device.max_sm_clock_mhz).items():
            rate = rates[unit]
            if share > 1 and rate is not None:
                return f"{rate:.4g} {unit} of at most {rate / share:.4g} {unit}"
        return None

    @property
    def bound(self) -> str:
        """The limit that this kernel is nearest to: "TFLOPS" or "GB/s"."""
        return bound_of(self.work, self.platform)

    @property
    def unit(self) -> str:
        """What the rate is shown in: "tokens/s" of a language model, else that of `bound`."""
        return "tokens/s" if self.work.tokens else self.bound

    @property
    def share_of_limit(self) -> float | None:
        """Share of the nearest limit; None where the limits are not known."""
        return self.shares.get(self.bound)
