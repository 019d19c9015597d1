"""What the speed gate asks of a timer, and what it makes of the samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pytest_cutile.core.platforms import Platform
from pytest_cutile.core.spec import Work
from pytest_cutile.core.statistics import median, relative_spread


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


@runtime_checkable
class Timer(Protocol):
    """Times launches on one GPU. Plugins supply their own through `pytest_cutile_make_timer`."""

    @property
    def device(self) -> Device:
        """The GPU that is measured."""

    def time_launch(self, launch: Callable[[], object]) -> Sequence[float]:
        """Return the GPU time of one call of `launch`, in microseconds, once per sample.

        Raises:
            TimingError: it cannot be timed; the message says why.
        """

    def environment(self) -> Mapping[str, str]:
        """Return what the figures depend on beside the kernel: driver, compiler, versions, power limit."""

    def problems(self) -> Sequence[str]:
        """Return why a figure taken now must not become a baseline (busy, throttled); empty when none."""


class TimingError(RuntimeError):
    """A launch that cannot be timed; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The samples of one case on one GPU, and the figures that follow from them."""

    device: Device
    """Where it was measured."""
    samples_us: tuple[float, ...]
    """GPU time per launch, one value per sample, in microseconds."""
    work: Work
    """What one launch does."""
    platform: Platform | None = None
    """The limits of the GPU, where the table of platforms knows it."""

    @property
    def median_us(self) -> float:
        """Median time per launch, in microseconds."""
        return median(self.samples_us)

    @property
    def relative_spread(self) -> float:
        """Half interquartile range of the samples over their median."""
        return relative_spread(self.samples_us)

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
        """The limit that this kernel is nearest to: "TFLOPS" or "GB/s"; by its work where none is known."""
        if self.shares:
            return max(self.shares, key=self.shares.__getitem__)
        return "TFLOPS" if self.work.flops else "GB/s"

    @property
    def share_of_limit(self) -> float | None:
        """Share of the nearest limit; None where the limits are not known."""
        return self.shares.get(self.bound)

    @property
    def rate(self) -> float | None:
        """TFLOPS or GB/s, as `bound` says; None when the work counts neither."""
        return self.tflops if self.bound == "TFLOPS" else self.gb_per_s
