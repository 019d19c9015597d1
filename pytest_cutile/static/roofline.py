"""Predicts how long a case takes at least: what it executes, over the rate of each unit of the GPU.

The slowest unit decides. Figures of hardware are those of the GPU that represents an architecture; the
constants below come from times of matmul on an H200 (research/reports/static-gate.md). A prediction is good
for comparing two versions of a kernel, not for saying how fast one is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_cutile.platforms.data import Architecture, Platform
from pytest_cutile.platforms.lookup import find_architecture, stand_in
from pytest_cutile.static.rules import occupancy_of

if TYPE_CHECKING:  # the facts need msgspec, which a run without kernels does not import
    from pytest_cutile.static.facts import LaunchFacts

LAUNCH_US = 2.0
"""What starting and ending a launch takes."""
L2_BYTES_PER_CLOCK = 64
"""What one SM gets from the L2."""
CLOCKS_PER_PRODUCT = 125
"""In which tensor cores wait for the operands of one product of tiles."""
CLOCKS_PER_LOAD = 1800
"""Latency of a tile's load while others load, too, besides its transfer from the L2."""
ACCESSES_PER_CLOCK = 32
"""Elements that one SM loads or stores through pointers."""
_PIPES = MappingProxyType(
    {
        "fp32": "FP32",
        "fp64": "FP64",
        "integer": "integer arithmetic",
        "special": "special functions",
        "conversion": "conversions",
        "conversion64": "conversions of 64 bits",
    }
)
_PRODUCT_TYPES = MappingProxyType(
    {
        "f16": "float16",
        "bf16": "bfloat16",
        "tf32": "tfloat32",
        "f32": "float32",
        "f64": "float64",
        "f8E4M3FN": "float8_e4m3fn",
        "f8E5M2": "float8_e5m2",
        "i8": "int8",
    }
)
"""Operands of products by Tile IR's name: cuTile's."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The predicted time of a case."""

    us: float
    slowest: str
    """What takes most of the time: "FP64", "memory", "launches"."""


def predict(launches: Sequence[LaunchFacts], arch: str) -> Prediction | None:
    """Return the predicted time of all launches; None where what one of them executes is unknown."""
    architecture = find_architecture(arch)
    if architecture is None or not launches:
        return None
    gpu = stand_in(arch)
    us, shares = 0.0, dict.fromkeys(("launches",), 0.0)
    for launch in launches:
        if launch.executed is None:
            return None
        per_us = _clocks_per_us(launch, architecture, gpu)
        units = _microseconds(launch, architecture, gpu, per_us)
        slowest = max(units, key=lambda unit: units[unit])
        waits = _waiting_us(launch, arch, units[slowest], units["L2"], per_us)
        parts = {"launches": LAUNCH_US, slowest: units[slowest], "waiting for loads": waits}
        for unit, part in parts.items():
            shares[unit] = shares.get(unit, 0.0) + part * launch.times
        us += sum(parts.values()) * launch.times
    return Prediction(us=us, slowest=max(shares, key=lambda unit: shares[unit]))


def _all_clocks_per_us(architecture: Architecture, gpu: Platform) -> float:
    """Return the clocks of all SMs in a microsecond."""
    return gpu.dense_tflops["float32"] * 1e6 / (2 * architecture.operations_per_clock["fp32"])


def _clocks_per_us(launch: LaunchFacts, architecture: Architecture, gpu: Platform) -> float:
    """Return the clocks of the SMs that a launch keeps busy.

    SMs that take one block more than others, or none, make the rest wait.
    """
    blocks = math.prod(launch.grid) * (launch.ctas or 1)
    busy = blocks / math.ceil(blocks / gpu.sm_count) if blocks else 1.0
    return _all_clocks_per_us(architecture, gpu) * busy / gpu.sm_count


def _microseconds(
    launch: LaunchFacts, architecture: Architecture, gpu: Platform, per_us: float
) -> dict[str, float]:
    """Return the time of each unit for one launch."""
    counts, rates = launch.executed or {}, architecture.operations_per_clock

    def clocks(name: str) -> float:
        return counts.get(name, 0) / per_us

    units = {title: clocks(pipe) / rates[pipe] for pipe, title in _PIPES.items()}
    units["loads and stores through pointers"] = clocks("accesses") / ACCESSES_PER_CLOCK
    all_busy_us = _product_us(counts, gpu, rates)
    units["tensor cores"] = all_busy_us * _all_clocks_per_us(architecture, gpu) / per_us
    units["tensor cores"] += clocks("products") * (launch.ctas or 1) * CLOCKS_PER_PRODUCT
    units["L2"] = clocks("moved_bytes") / L2_BYTES_PER_CLOCK
    units["memory"] = counts.get("touched_bytes", 0) / (gpu.memory_bandwidth_gb_s * 1e3)
    return units


def _waiting_us(launch: LaunchFacts, arch: str, busy_us: float, loading_us: float, per_us: float) -> float:
    """Return for how long the slowest unit waits for loads that do not run far enough ahead.

    The blocks of an SM have several passes of their loops under way at a time. Each takes a latency, a
    transfer, and its share of the slowest unit.
    """
    counts = launch.executed or {}
    steps, latencies = counts.get("steps", 0), counts.get("latencies", 0)
    if not latencies:
        return 0.0
    resident = occupancy_of(launch, arch)
    blocks = max(1, resident.blocks if resident else 1)
    waited = latencies * (launch.ctas or 1) * CLOCKS_PER_LOAD  # each thread block of a cluster for its part
    passes_us = (busy_us + loading_us) * latencies / steps + waited / per_us
    return max(0.0, passes_us / blocks - busy_us)


def _product_us(counts: Mapping[str, int], gpu: Platform, rates: Mapping[str, int]) -> float:
    us = 0.0
    for name, flops in counts.items():
        if name.startswith("mma "):
            kind = _PRODUCT_TYPES.get(name.removeprefix("mma "), "float16")
            tflops = gpu.dense_tflops.get(kind)
            if tflops is None:  # no tensor cores for it: by FP64 or FP32 units
                share = rates["fp64"] / rates["fp32"] if kind == "float64" else 1.0
                tflops = gpu.dense_tflops["float32"] * share
            us += flops / (tflops * 1e6)
    return us
