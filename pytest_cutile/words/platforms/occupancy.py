"""How many thread blocks fit a streaming multiprocessor (SM) at a time, and what limits their number.

The calculation is NVIDIA's: that of the header `cuda_occupancy.h` of the CUDA toolkit 13.4, with which
`research/check_occupancy.py` compares. The figures it starts from are in `gpus.toml`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pytest_cutile.words.platforms.data import Architecture


class Limiter(StrEnum):
    """What keeps one more block away."""

    REGISTERS = "registers"
    SHARED_MEMORY = "shared memory"
    THREADS = "threads"
    """The SM's warps, or the threads that one block may have."""
    BLOCKS = "blocks"
    GRID = "the grid"
    """The launch has no more blocks; `occupancy` knows nothing of it."""


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """How many blocks of a kernel are resident on one multiprocessor, and why not more."""

    blocks: int
    """Blocks per SM; 0 when the kernel cannot be launched at all."""
    warps: int
    """Warps of these blocks."""
    limited_by: tuple[Limiter, ...]
    """All that allow this number of blocks and no more, in the order of `Limiter`; never empty."""


def occupancy(
    architecture: Architecture,
    *,
    registers_per_thread: int,
    threads_per_block: int,
    shared_bytes_per_block: int,
) -> Occupancy:
    """Return how many blocks of a kernel fit one multiprocessor, in the largest shared memory configuration.

    Clusters (whose blocks start together within one GPC) and tensor memory are left out: they can only lower
    the number, and only the GPU itself knows by how much.

    Args:
        architecture: that the kernel runs on.
        registers_per_thread: 32-bit registers, as the compiler reports them.
        threads_per_block: of one block (CTA).
        shared_bytes_per_block: static and dynamic together, without what the system reserves. In a cubin
            for sm_90 and newer, the size of `.nv.shared.*` and `cuobjdump -res-usage` contain the reserved
            bytes: subtract them. `ptxas -v`, and cubins for sm_8x, do not.
    """
    warps_per_block = _divide_up(threads_per_block, architecture.warp_size)
    max_blocks = {
        Limiter.REGISTERS: _blocks_by_registers(architecture, registers_per_thread, warps_per_block),
        Limiter.SHARED_MEMORY: _blocks_by_shared_memory(architecture, shared_bytes_per_block),
        Limiter.THREADS: (
            architecture.max_warps_per_sm // warps_per_block
            if threads_per_block <= architecture.max_threads_per_block
            else 0
        ),
        Limiter.BLOCKS: architecture.max_blocks_per_sm,
    }
    blocks = min(number for number in max_blocks.values() if number is not None)
    return Occupancy(
        blocks=blocks,
        warps=blocks * warps_per_block,
        limited_by=tuple(limiter for limiter, number in max_blocks.items() if number == blocks),
    )


def _blocks_by_registers(
    architecture: Architecture, registers_per_thread: int, warps_per_block: int
) -> int | None:
    if registers_per_thread == 0:
        return None
    if registers_per_thread > architecture.max_registers_per_thread:
        return 0
    per_warp = _round_up(registers_per_thread * architecture.warp_size, architecture.register_allocation_unit)
    # Registers left over in one sub-partition do not help a warp in another.
    partitions = architecture.warp_allocation_granularity
    warps_per_partition = architecture.registers_per_sm // partitions // per_warp
    return warps_per_partition * partitions // warps_per_block


def _blocks_by_shared_memory(architecture: Architecture, shared_bytes_per_block: int) -> int:
    if shared_bytes_per_block > architecture.max_shared_bytes_per_block:
        return 0
    allocated = _round_up(
        shared_bytes_per_block + architecture.reserved_shared_bytes_per_block,
        architecture.shared_allocation_unit_bytes,
    )
    return architecture.shared_bytes_per_sm // allocated


def _divide_up(number: int, by: int) -> int:
    return -(-number // by)


def _round_up(number: int, unit: int) -> int:
    return _divide_up(number, unit) * unit
