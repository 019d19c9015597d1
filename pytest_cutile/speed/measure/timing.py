"""The interface of a timer, and the figures that follow from its samples."""

from __future__ import annotations

import math
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pytest_cutile.platforms.data import Platform
from pytest_cutile.spec import Work
from pytest_cutile.statistics import median, relative_spread

Launch: TypeAlias = Callable[[], object]

NOISE_LIMIT = 0.10
"""Largest spread of samples, as a fraction of their median, that a pass or a baseline may rest on: a median
does not show that a kernel takes three times as long in four launches of ten."""


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
    launch: Launch


class Timer(ABC):
    """Times launches on one GPU. Plugins supply their own through `pytest_cutile_make_timer`."""

    @property
    @abstractmethod
    def device(self) -> Device: ...

    @abstractmethod
    def time_block(self, launches: Sequence[Launch]) -> Sequence[Sequence[float]]:
        """Return the GPU times of each launch, in microseconds, a few dozen samples at most.

        Interleave the launches, so that they run at the same clocks. The first is the case. A second one is
        the reference workload, or the baseline kernel.

        Raises:
            TimingError: a launch cannot be timed; the message says why.
        """

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


@dataclass(frozen=True, kw_only=True)
class Block:
    """Samples of one placement of a case's buffers, in microseconds."""

    samples_us: tuple[float, ...]
    interleaved_us: tuple[float, ...] = ()
    """Of the reference workload, or of the baseline kernel, interleaved with the case; empty without one."""

    @property
    def median_us(self) -> float:
        return median(self.samples_us)

    @property
    def interleaved_median_us(self) -> float | None:
        return median(self.interleaved_us) if self.interleaved_us else None

    @property
    def log_ratio(self) -> float:
        """Logarithm of the case's median over the interleaved one; of the case's alone without one."""
        interleaved_us = self.interleaved_median_us
        return math.log(self.median_us / interleaved_us) if interleaved_us else math.log(self.median_us)


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

    The time of a case is the median of its fastest block: where its buffers lie in memory moves some kernels
    by several percent, so several places are tried, and the best one repeats best
    (docs/explanation/speed.md).
    """

    device: Device
    blocks: tuple[Block, ...]
    """Samples, one block for each placement of the buffers."""
    work: Work
    platform: Platform | None = None
    """The limits of the GPU, where the table of platforms knows it."""
    reference_workload: str = ""
    """Name of the reference workload; empty without one, as beside the baseline kernel."""
    clock_mhz: float | None = None
    """Clock of the SMs at the end."""
    problems: tuple[str, ...] = ()
    low_clock: str = ""
    """Why its clock is doubtful, compared with the stored runs'; empty if it is not."""

    @property
    def doubts(self) -> tuple[str, ...]:
        """All that makes it doubtful where it is compared with stored runs."""
        return (*self.problems, self.low_clock) if self.low_clock else self.problems

    @property
    def best(self) -> Block:
        return min(self.blocks, key=lambda block: block.median_us)

    def best_pair(self, slope: float) -> tuple[float, float | None]:
        """Return the times of case and reference workload in the fastest block, in microseconds.

        Blocks are compared by their times adjusted by `slope` of the workload's movement. A workload that
        was slower than its median over the blocks was disturbed on its own: the median counts instead.
        """
        times = [block.interleaved_median_us for block in self.blocks]
        workloads = [us for us in times if us is not None]
        if not workloads or not self.reference_workload:
            return self.median_us, None
        usual = median(workloads)
        pairs = [
            (block.median_us, min(us or usual, usual)) for block, us in zip(self.blocks, times, strict=True)
        ]
        return min(pairs, key=lambda pair: math.log(pair[0]) - slope * math.log(pair[1]))

    @property
    def samples_us(self) -> tuple[float, ...]:
        return tuple(sample for block in self.blocks for sample in block.samples_us)

    @property
    def median_us(self) -> float:
        """Time per launch, in microseconds: the median of the fastest block."""
        return self.best.median_us

    @property
    def interleaved_median_us(self) -> float | None:
        """Fastest block median of the reference workload or of the baseline kernel; None without one."""
        times = [us for block in self.blocks if (us := block.interleaved_median_us) is not None]
        return min(times, default=None)

    @property
    def relative_spread(self) -> float:
        """Half interquartile range of the fastest block's samples over their median."""
        return relative_spread(self.best.samples_us)

    @property
    def placement_spread(self) -> float:
        """How much slower the slowest placement of the buffers is than the fastest, as a fraction."""
        return max(block.median_us for block in self.blocks) / self.median_us - 1

    @property
    def tflops(self) -> float | None:
        """10^12 floating-point operations per second; None when the work counts none."""
        return self.work.flops / self.median_us * 1e-6 if self.work.flops else None

    @property
    def gb_per_s(self) -> float | None:
        """10^9 bytes per second; None when the work counts none."""
        return self.work.bytes / self.median_us * 1e-3 if self.work.bytes else None

    @property
    def shares(self) -> dict[str, float]:
        """Share of each published peak: {"TFLOPS": 0.72, "GB/s": 0.31}."""
        return self._shares(max_sm_clock_mhz=None)

    def _shares(self, *, max_sm_clock_mhz: float | None) -> dict[str, float]:
        shares: dict[str, float] = {}
        if self.platform is None:
            return shares
        peak = self.platform.tflops_limit(self.work.dtype or "", max_sm_clock_mhz=max_sm_clock_mhz)
        if self.tflops is not None and peak:
            shares["TFLOPS"] = self.tflops / peak
        if self.gb_per_s is not None:
            shares["GB/s"] = self.gb_per_s / self.platform.memory_bandwidth_gb_s
        return shares

    @property
    def exceeded(self) -> str | None:
        """What is above the limit of the chip at its highest clock ("5210 GB/s of at most 4800 GB/s")."""
        rates = {"TFLOPS": self.tflops, "GB/s": self.gb_per_s}
        for unit, share in self._shares(max_sm_clock_mhz=self.device.max_sm_clock_mhz).items():
            rate = rates[unit]
            if share > 1 and rate is not None:
                return f"{rate:.4g} {unit} of at most {rate / share:.4g} {unit}"
        return None

    @property
    def bound(self) -> str:
        """The limit that this kernel is nearest to: "TFLOPS" or "GB/s"."""
        return bound_of(self.work, self.platform)

    @property
    def share_of_limit(self) -> float | None:
        """Share of the nearest limit; None where the limits are not known."""
        return self.shares.get(self.bound)

    @property
    def rate(self) -> float | None:
        """TFLOPS or GB/s, as `bound` says; None when the work counts neither."""
        return self.tflops if self.bound == "TFLOPS" else self.gb_per_s
