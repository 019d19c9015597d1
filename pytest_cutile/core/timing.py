"""What the speed gate asks of a timer, and what it makes of the samples."""

from __future__ import annotations

import math
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pytest_cutile.core.platforms import Platform
from pytest_cutile.core.spec import Work
from pytest_cutile.core.statistics import median, relative_spread

Launch: TypeAlias = Callable[[], object]

NOISE_LIMIT = 0.10
"""Samples that spread by more than this, as a fraction of their median, become no baseline, and no case
passes by them: a median does not see that a kernel takes thrice as long in four launches of ten."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """The GPU that a timer measures on."""

    arch: str
    """Its architecture, e.g. "sm_90"."""
    name: str
    """Its name as NVML reports it, e.g. "NVIDIA H200"."""
    uuid: str = ""
    """Its UUID, to tell two boards of one kind apart; empty where it is not known."""
    max_sm_clock_mhz: float | None = None
    """Highest clock of its SMs; published peak rates hold at a lower one, so the limit grows with it."""
    torch_device: str = "cuda"
    """Where `make_tensor` puts tensors for it ("cpu" lets a fake timer drive the gate with no GPU)."""

    @property
    def board(self) -> str:
        """This machine's name and the beginning of the UUID: "h200-box GPU-d91fcf89"."""
        return f"{socket.gethostname()} {self.uuid[:12]}".strip()


@dataclass(frozen=True, kw_only=True)
class Control:
    """Something whose speed no change to the kernels can touch: it shows what the GPU does today."""

    name: str
    """What it is, with the version of the library it comes from: other controls cannot be compared."""
    launch: Launch
    """Runs it once."""


class Timer(ABC):
    """Times launches on one GPU. Plugins supply their own through `pytest_cutile_make_timer`."""

    @property
    @abstractmethod
    def device(self) -> Device:
        """The GPU that is measured."""

    @abstractmethod
    def time_block(self, launches: Sequence[Launch]) -> Sequence[Sequence[float]]:
        """Return the GPU times of each of `launches`, in microseconds, a few dozen samples at most.

        The launches take turns, so that each of them sees the same clocks. The first is the case; a second
        one is what it is compared with: a control, or the same case of another revision.

        Raises:
            TimingError: one cannot be timed; the message says why.
        """

    def control(self, bound: str) -> Control | None:
        """Return a control for kernels whose limit is `bound` ("TFLOPS" or "GB/s"); None if there is none."""
        del bound
        return None

    def environment(self) -> Mapping[str, str]:
        """Return what the figures depend on beside the kernel: driver, compiler, versions, power limit."""
        return {}

    def problems(self) -> Sequence[str]:
        """Return why a figure taken now is doubtful (busy, throttled); empty when nothing is seen."""
        return ()

    def unseen(self) -> Sequence[str]:
        """Return what `problems` could not see if it were there; asked when something was measured."""
        return ()

    def sm_clock_mhz(self) -> float | None:
        """Return the clock of the SMs now, or None where it is not known."""
        return None


class TimingError(RuntimeError):
    """A launch that cannot be timed; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Samples of one placement of a case's buffers, in microseconds."""

    samples_us: tuple[float, ...]
    """Of the case."""
    partner_us: tuple[float, ...] = ()
    """Of what took turns with it: the control, or another revision; empty if nothing did."""

    @property
    def median_us(self) -> float:
        """Median time of the case."""
        return median(self.samples_us)

    @property
    def partner_median_us(self) -> float | None:
        """Median time of what took turns with it."""
        return median(self.partner_us) if self.partner_us else None

    @property
    def log_ratio(self) -> float:
        """Logarithm of the case's median over its partner's; of the case's alone if it has no partner."""
        partner = self.partner_median_us
        return math.log(self.median_us / partner) if partner else math.log(self.median_us)


def bound_of(work: Work, platform: Platform | None) -> str:
    """Return the limit that `work` is nearest to on a platform: "TFLOPS" or "GB/s".

    Where the platform is not known, work that counts operations is held against them.
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
    by several percent, so several places are tried, and the best one repeats best (docs/measuring.md).
    """

    device: Device
    """Where it was measured."""
    blocks: tuple[Block, ...]
    """Samples, one block for each placement of the buffers."""
    work: Work
    """What one launch does."""
    platform: Platform | None = None
    """The limits of the GPU, where the table of platforms knows it."""
    control: str = ""
    """Name of the control that took turns with the case; empty if there was none, or another revision did."""
    clock_mhz: float | None = None
    """Clock of the SMs at the end of it."""
    problems: tuple[str, ...] = ()
    """What was seen on the GPU that makes it doubtful."""
    low_clock: str = ""
    """What makes its clock doubtful beside those of the stored runs that it is held against."""

    @property
    def doubts(self) -> tuple[str, ...]:
        """All that makes it doubtful where it is held against stored runs."""
        return (*self.problems, self.low_clock) if self.low_clock else self.problems

    @property
    def best(self) -> Block:
        """The fastest block."""
        return min(self.blocks, key=lambda block: block.median_us)

    def beside_control(self, slope: float) -> tuple[float, float | None]:
        """Return the times of case and control in the block that is fastest, in microseconds.

        Fastest is what the control leaves of it if the case follows `slope` of the control's movement. A
        control that was slower than in most blocks had an accident of its own: it counts as in most.
        """
        times = [block.partner_median_us for block in self.blocks]
        controls = [us for us in times if us is not None]
        if not controls or not self.control:
            return self.median_us, None
        usual = median(controls)
        pairs = [
            (block.median_us, min(us or usual, usual)) for block, us in zip(self.blocks, times, strict=True)
        ]
        return min(pairs, key=lambda pair: math.log(pair[0]) - slope * math.log(pair[1]))

    @property
    def samples_us(self) -> tuple[float, ...]:
        """All samples, in microseconds per launch."""
        return tuple(sample for block in self.blocks for sample in block.samples_us)

    @property
    def median_us(self) -> float:
        """Time per launch, in microseconds: the median of the fastest block."""
        return self.best.median_us

    @property
    def partner_median_us(self) -> float | None:
        """The median of the fastest block of what took turns with it; None if nothing did."""
        times = [us for block in self.blocks if (us := block.partner_median_us) is not None]
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
