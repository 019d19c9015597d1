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
CLOCKS_PER_PRODUCT = 40
"""In which tensor cores wait for the operands of one product of tiles."""
CLOCKS_PER_WAIT = 600
"""Latency of a load, where nothing else of the block runs in the meantime."""
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
    us, shares = 0.0, dict.fromkeys(("launches",), 0.0)
    for launch in launches:
        units = _microseconds(launch, architecture, stand_in(arch))
        if units is None:
            return None
        waits = units.pop("waiting for loads")
        slowest = max(units, key=lambda unit: units[unit])
        parts = {"launches": LAUNCH_US, slowest: units[slowest], "waiting for loads": waits}
        for unit, part in parts.items():
            shares[unit] = shares.get(unit, 0.0) + part * launch.times
        us += sum(parts.values()) * launch.times
    return Prediction(us=us, slowest=max(shares, key=lambda unit: shares[unit]))


def _microseconds(launch: LaunchFacts, architecture: Architecture, gpu: Platform) -> dict[str, float] | None:
    """Return the time of each unit for one launch."""
    counts = launch.executed
    if counts is None:
        return None
    rates = architecture.operations_per_clock
    clock_mhz = gpu.dense_tflops["float32"] * 1e6 / (2 * rates["fp32"] * gpu.sm_count)
    blocks = math.prod(launch.grid) * (launch.ctas or 1)
    # SMs that take one block more than others, or none, make the rest wait.
    busy = blocks / math.ceil(blocks / gpu.sm_count) if blocks else 1.0
    per_us = clock_mhz * busy  # clocks of all busy SMs in a microsecond

    def clocks(name: str) -> float:
        return counts.get(name, 0) / per_us

    units = {title: clocks(pipe) / rates[pipe] for pipe, title in _PIPES.items()}
    units["loads and stores through pointers"] = clocks("accesses") / ACCESSES_PER_CLOCK
    units["tensor cores"] = _product_us(counts, gpu, rates) * gpu.sm_count / busy
    units["tensor cores"] += clocks("products") * CLOCKS_PER_PRODUCT
    units["L2"] = clocks("moved_bytes") / L2_BYTES_PER_CLOCK
    units["memory"] = counts.get("touched_bytes", 0) / (gpu.memory_bandwidth_gb_s * 1e3)
    resident = occupancy_of(launch, architecture.name)
    units["waiting for loads"] = (
        clocks("waits") * CLOCKS_PER_WAIT / max(1, resident.blocks if resident else 1)
    )
    return units


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
