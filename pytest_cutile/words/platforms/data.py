"""Reads `gpus.toml`: what each architecture and each GPU model has, with the document that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType

_KIB = 2**10


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What one streaming multiprocessor (SM) of an architecture has; `gpus.toml` explains the figures."""

    name: str
    relative: str | None = None
    max_threads_per_sm: int
    max_blocks_per_sm: int
    shared_bytes_per_sm: int
    has_clusters: bool
    warp_size: int
    max_threads_per_block: int
    registers_per_sm: int
    max_registers_per_thread: int
    register_allocation_unit: int
    warp_allocation_granularity: int
    shared_allocation_unit_bytes: int
    reserved_shared_bytes_per_block: int
    operations_per_clock: Mapping[str, int]
    """Results per clock and SM, without tensor cores: "fp32", "fp64", "integer", "special", "conversion"."""
    operand_clocks: int | None = None
    """From asking for the operands of a product until they are in shared memory; None where not measured."""
    memory_clocks: int | None = None
    """For which a block waits for its first loads and last stores; None where not measured."""
    source: str
    note: str = ""

    @property
    def max_warps_per_sm(self) -> int:
        return self.max_threads_per_sm // self.warp_size

    @property
    def max_shared_bytes_per_block(self) -> int:
        """Shared memory that one block can have when it asks, without what the system reserves."""
        return self.shared_bytes_per_sm - self.reserved_shared_bytes_per_block


@dataclass(frozen=True, kw_only=True)
class CudaReport:
    """L2 and memory of a GPU as CUDA reports them, rounded."""

    l2_mib: int
    memory_gib: int
    integrated: bool = False
    source: str


@dataclass(frozen=True, kw_only=True)
class Platform:
    """One GPU model, or several that share every limit; `gpus.toml` explains the figures."""

    names: tuple[str, ...]
    """Device names, exactly as NVML and torch report them: ("NVIDIA H200",)."""
    arch: str
    sm_count: int
    memory: str | None = None
    memory_bandwidth_gb_s: float
    dense_tflops: Mapping[str, float]
    """Peak rate by cuTile's name of the multiplied operands' dtype, 1e12 operations per second."""
    boost_clock_mhz: int | None = None
    cuda_reports: CudaReport | None = None
    """Only of the GPU that represents its architecture, and of the fallback."""
    reaches_max_clock: str = ""
    source: str
    note: str = ""

    def tflops_limit(self, dtype: str, *, max_sm_clock_mhz: float | None = None) -> float | None:
        """Return the rate in TFLOPS that no kernel on `dtype` operands can exceed; None where unknown.

        Published rates hold at the published boost clock, but a GPU may clock higher for a while (an H200
        is rated at 1830 MHz and reaches 1980): the limit grows with `max_sm_clock_mhz`.
        """
        rate = self.dense_tflops.get(dtype)
        if rate is None or max_sm_clock_mhz is None or self.boost_clock_mhz is None:
            return rate
        return rate * max(1.0, max_sm_clock_mhz / self.boost_clock_mhz)


@dataclass(frozen=True, kw_only=True)
class HardwareTables:
    """All of `gpus.toml`."""

    architectures: Mapping[str, Architecture]
    platforms: tuple[Platform, ...]
    """In the order of the file: the first of an architecture represents it."""
    fallback: Platform
    """Stands for architectures of which no GPU is known, nor one of a relative."""


@cache
def hardware() -> HardwareTables:
    return read_tables(resources.files(__package__).joinpath("gpus.toml").read_text(encoding="utf-8"))


def read_tables(text: str) -> HardwareTables:
    """Read a file in the form of `gpus.toml`. The tests of this package check its form and its sources."""
    import tomllib

    file = tomllib.loads(text)
    documents = {key: f"{one['title']}, {one['url']}" for key, one in file["documents"].items()}
    shared = {key: figure["value"] for key, figure in file["every_architecture"].items()}
    rates = {key: rate for key, rate in file["operations_per_clock"].items() if key != "source"}
    architectures = {}
    for name, entry in file["architectures"].items():
        architectures[name] = Architecture(
            name=name,
            shared_bytes_per_sm=entry.pop("shared_kib_per_sm") * _KIB,
            operations_per_clock=MappingProxyType(rates | entry.pop("operations_per_clock", {})),
            source=documents[entry.pop("source")],
            **entry,
            **shared,
        )
    platforms = []
    for entry in file["gpus"]:
        if report := entry.pop("cuda_reports", None):
            report = CudaReport(**{**report, "source": documents[report["source"]]})
        platforms.append(
            Platform(
                names=tuple(entry.pop("names")),
                dense_tflops=_read_rates(entry.pop("dense_tflops")),
                cuda_reports=report,
                source=documents[entry.pop("source")],
                **entry,
            )
        )
    return HardwareTables(
        architectures=MappingProxyType(architectures),
        platforms=tuple(platforms),
        fallback=next(platform for platform in platforms if file["fallback_gpu"] in platform.names),
    )


def _read_rates(given: Mapping[str, float]) -> Mapping[str, float]:
    """Return rates by cuTile's dtype names; bf16 is as fast as fp16, and int8 as fp8, unless given."""
    fp8 = given.get("fp8")
    rates = {
        "float16": given.get("fp16"),
        "bfloat16": given.get("bf16", given.get("fp16")),
        "tfloat32": given.get("tf32"),
        "float8_e4m3fn": fp8,
        "float8_e5m2": fp8,
        "int8": given.get("int8", fp8),
        "float32": given.get("fp32"),
        "float64": given.get("fp64"),
    }
    return MappingProxyType({dtype: rate for dtype, rate in rates.items() if rate is not None})
