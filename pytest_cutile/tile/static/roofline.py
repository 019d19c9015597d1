"""Predicts how long a case takes at least: what it executes, over the rate of each unit of the GPU.

The slowest unit decides. Figures of hardware are those of the GPU that represents an architecture; where the
constants below come from is in research/reports/static-gate.md. A prediction is good for comparing two
versions of a kernel, not for saying how fast one is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_cutile.tile.static.rules import resident
from pytest_cutile.words.formats import FORMATS
from pytest_cutile.words.platforms.data import Architecture, Platform
from pytest_cutile.words.platforms.lookup import find_architecture, stand_in

if TYPE_CHECKING:  # the facts need msgspec, which a run without kernels does not import
    from pytest_cutile.tile.static.facts import LaunchFacts

LAUNCH_US = 2.0
"""What starting and ending a launch takes."""
L2_BYTES_PER_CLOCK = 64
"""What one SM gets from the L2."""
RESULT_CLOCKS = 5.5
"""From one operation of a thread to the next one, which needs its result."""
ACCESSES_PER_CLOCK = 32
"""Elements that one SM loads or stores through pointers."""
ISSUED_PER_CLOCK = 4
"""Instructions of warps that one SM starts: it has four warp schedulers (CUDA C++ Programming Guide, "Compute
Capabilities")."""
CODE_TAKEN = 0.5
"""Share of compiled code that a thread executes: the rest is for what is not aligned, or not inside."""
_BUSIEST = "busiest "
_POINTERS = "loads and stores through pointers"
_BY_STARTERS = (_POINTERS, "integer arithmetic")
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
    {"i8": "int8", **{target.tile_ir: name for name, target in FORMATS.items()}}
)
"""Operands of products by Tile IR's name: cuTile's."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The predicted time of a case."""

    us: float
    shares: Mapping[str, float]
    """How much of it each unit takes that decides, in microseconds: "FP64", "memory", "launches"."""

    @property
    def slowest(self) -> str:
        return max(self.shares, key=lambda unit: self.shares[unit])

    def grown_since(self, before: Prediction) -> str:
        return max(self.shares, key=lambda unit: self.shares[unit] - before.shares.get(unit, 0.0))


def predict(launches: Sequence[LaunchFacts], arch: str, *, torch_bytes: int = 0) -> Prediction | None:
    """Return the predicted time of all launches; None where what one of them executes or takes is unknown.

    What torch operations read and write beside them is taken to come from memory.
    """
    architecture = find_architecture(arch)
    if architecture is None or not launches:
        return None
    us = torch_bytes / (stand_in(architecture.name).memory_bandwidth_gb_s * 1e3)
    shares = {"launches": 0.0, "torch operations": us}
    for launch in launches:
        if launch.executed is None:
            return None
        waits = "products" in launch.executed and architecture.operand_clocks
        if waits and resident(launch, arch) is None:
            return None
        units = _microseconds(launch, launch.executed, architecture)
        slowest = max(units, key=lambda unit: units[unit])
        parts = {"launches": LAUNCH_US, slowest: units[slowest]}
        if "products" in launch.executed:  # the few warps that start products do this, too
            parts |= {unit: units[unit] for unit in _BY_STARTERS}
        for unit, part in parts.items():
            shares[unit] = shares.get(unit, 0.0) + part * launch.times
            us += part * launch.times
    return Prediction(us=us, shares=shares)


def _microseconds(
    launch: LaunchFacts, counts: Mapping[str, int], architecture: Architecture
) -> dict[str, float]:
    """Return the time of each unit: of all SMs for all blocks, or of one for its block if that is longer."""
    gpu, ctas = stand_in(architecture.name), launch.ctas or 1
    blocks = math.prod(launch.grid) * ctas
    # SMs that take one block more than others, or none, make the rest wait.
    busy = blocks / math.ceil(blocks / gpu.sm_count) if blocks else 1.0
    there = resident(launch, architecture.name)
    at_a_time = there.blocks if there else 1
    of_all = _of_units(launch, counts, architecture, sms=busy, blocks=blocks, at_a_time=at_a_time)
    of_all["memory"] = counts.get("touched_bytes", 0) / (gpu.memory_bandwidth_gb_s * 1e3)
    busiest = {name.removeprefix(_BUSIEST): n for name, n in counts.items() if name.startswith(_BUSIEST)}
    of_one = _of_units(launch, busiest, architecture, sms=ctas, blocks=ctas, at_a_time=1)
    return {unit: max(us, of_one.get(unit, 0.0)) for unit, us in of_all.items()}


def _of_units(
    launch: LaunchFacts,
    counts: Mapping[str, int],
    architecture: Architecture,
    *,
    sms: float,
    blocks: int,
    at_a_time: int,
) -> dict[str, float]:
    """Return for how long each unit of `sms` SMs works on `blocks`, each SM with `at_a_time` of them."""
    gpu, rates, ctas = stand_in(architecture.name), architecture.operations_per_clock, launch.ctas or 1
    per_us = sms * gpu.dense_tflops["float32"] * 1e6 / (2 * rates["fp32"] * gpu.sm_count)  # clocks of all

    def clocks(name: str) -> float:
        return counts.get(name, 0) / per_us

    # The CTAs of a cluster share out the larger operand of a product; each takes all of the smaller one.
    moved = counts.get("moved_bytes", 0) + (ctas - 1) * counts.get("smaller_operand_bytes", 0)
    units = {title: clocks(pipe) / rates[pipe] for pipe, title in _PIPES.items()}
    units[_POINTERS] = clocks("accesses") / ACCESSES_PER_CLOCK
    units["tensor cores"] = _product_us(counts, gpu, rates) * gpu.sm_count / sms
    units["L2"] = moved / per_us / L2_BYTES_PER_CLOCK
    products, latency = counts.get("products", 0) * ctas, architecture.operand_clocks
    if not products:  # code with products is a loop
        warps = blocks * (launch.threads or 0) / 32
        code = (launch.instruction_count or 0) * CODE_TAKEN
        units["instructions"] = warps * code / per_us / ISSUED_PER_CLOCK
    if products and latency:
        # Operands take room in shared memory from when they are asked for until they are multiplied.
        room = max(1.0, at_a_time * (launch.shared_bytes or 0) * products / max(1, moved))
        units["waiting for operands"] = (products / per_us * latency + units["tensor cores"]) / room
    if not products and architecture.memory_clocks and resident(launch, architecture.name):
        # A block waits for memory, and then for its own results; loops load ahead.
        steps = sum(counts.get(pipe, 0) for pipe in _PIPES) / (launch.threads or 1)
        alone = blocks * architecture.memory_clocks + steps * RESULT_CLOCKS
        units["waiting, with too few blocks to hide it"] = alone / per_us / at_a_time
    return units


def _product_us(counts: Mapping[str, int], gpu: Platform, rates: Mapping[str, int]) -> float:
    us = 0.0
    for name, flops in counts.items():
        if name.startswith("mma "):
            dtype = _PRODUCT_TYPES.get(name.removeprefix("mma "), "float16")
            tflops = gpu.dense_tflops.get(dtype)
            if tflops is None:  # no tensor cores for it: by FP64 or FP32 units
                share = rates["fp64"] / rates["fp32"] if dtype == "float64" else 1.0
                tflops = gpu.dense_tflops["float32"] * share
            us += flops / (tflops * 1e6)
    return us
