"""How many thread blocks fit a streaming multiprocessor (SM) at a time, and what limits their number.

Every figure comes from the document in `source`; `note` says what was derived and how. What the CUDA
Programming Guide does not give (the units in which registers and shared memory are handed out, and what the
system reserves) is the same for all architectures here. The units and the calculation are those of the header
`cuda_occupancy.h` of the CUDA toolkit 13.4, with which `benchmarks/check_occupancy.py` compares; the reserved
1 KiB is in NVIDIA's tuning guides (https://docs.nvidia.com/cuda/hopper-tuning-guide/).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_cutile.core.architectures import normalize_architecture

if TYPE_CHECKING:
    from collections.abc import Mapping

WARP_SIZE = 32
"""Threads of a warp, on every architecture."""
_KIB = 2**10


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one streaming multiprocessor has. Defaults are what all architectures of the table share."""

    max_threads_per_sm: int
    """Resident threads."""
    max_blocks_per_sm: int
    """Resident thread blocks."""
    shared_bytes_per_sm: int
    """Shared memory in the largest configuration, with what the system takes of it."""
    max_shared_bytes_per_block: int
    """Shared memory that one block can have when it asks; the system's part is not in it."""
    has_clusters: bool
    """Whether blocks can be launched as thread block clusters."""
    source: str
    """Document (title and address) that the figures come from."""
    note: str = ""
    """What was derived and how, or holds only on a condition."""
    max_threads_per_block: int = 1024
    """Threads."""
    registers_per_sm: int = 65536
    """32-bit registers; one block may have them all."""
    max_registers_per_thread: int = 255
    """32-bit registers. The guide's figure; the header lets 256 pass."""
    register_unit_per_warp: int = 256
    """32-bit registers: a warp gets a multiple of this, 8 for each thread."""
    warp_unit: int = 4
    """Sub-partitions of the SM: each has a quarter of the registers, and a warp lives in one of them."""
    shared_unit_bytes: int = 128
    """A block gets a multiple of this."""
    reserved_shared_bytes_per_block: int = _KIB
    """Shared memory that the system takes in addition to what a block asks for."""

    @property
    def max_warps_per_sm(self) -> int:
        """Resident warps."""
        return self.max_threads_per_sm // WARP_SIZE


class Limiter(StrEnum):
    """What keeps one more block away."""

    REGISTERS = "registers"
    SHARED_MEMORY = "shared memory"
    THREADS = "threads"
    """The SM's warps, or the threads that one block may have."""
    BLOCKS = "blocks"
    CLUSTERS = "clusters"
    """A cluster was asked for where there are none."""


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """How many blocks of a kernel are resident on one multiprocessor, and why not more."""

    blocks: int
    """Blocks per SM; 0 when the kernel cannot be launched at all."""
    warps: int
    """Warps of these blocks."""
    max_warps: int
    """Warps that the SM has room for."""
    limited_by: tuple[Limiter, ...]
    """All that allow this number of blocks and no more, in the order of `Limiter`; never empty."""

    @property
    def share(self) -> float:
        """Resident warps as a share of the SM's, 0 to 1: what NVIDIA calls occupancy."""
        return self.warps / self.max_warps


def limits_of(arch: str) -> Limits | None:
    """Return the limits of `arch` ("sm_90"), or None for an architecture that is not in `LIMITS`.

    Raises:
        ArchitectureError: `arch` names no architecture.
    """
    return LIMITS.get(normalize_architecture(arch))


def occupancy(
    limits: Limits,
    *,
    registers_per_thread: int,
    threads_per_block: int,
    shared_bytes_per_block: int,
    ctas_per_cluster: int = 1,
) -> Occupancy:
    """Return how many blocks of a kernel fit one multiprocessor, as NVIDIA's occupancy calculation has it.

    It assumes the largest shared memory configuration and a kernel that has asked to use it.

    What it leaves out can only lower the number:

    - Clusters. All blocks of a cluster start together within one GPC, so on a GPU whose SMs do not divide
      evenly some places stay empty. How GPCs are cut is not published per architecture; only
      `cudaOccupancyMaxActiveClusters` on the GPU itself knows. The figure is per SM, as if each block were
      placed alone.
    - Tensor memory (sm_100, sm_103, sm_107, sm_110). Blocks allocate it while they run, and wait for it.
    - Barriers. At one per block, which is what CUDA's runtime assumes, they never bind before `BLOCKS`.

    Args:
        limits: of the architecture.
        registers_per_thread: 32-bit registers, as the compiler reports them.
        threads_per_block: of one block (CTA).
        shared_bytes_per_block: static and dynamic together, without what the system reserves. In a cubin
            for sm_90 and newer, the size of `.nv.shared.*` and `cuobjdump -res-usage` contain the reserved
            bytes: subtract them. `ptxas -v`, and cubins for sm_8x, do not.
        ctas_per_cluster: blocks per cluster; 1 is no cluster.

    Raises:
        ValueError: a figure is out of range for any kernel.
    """
    for name, value, least in (
        ("registers_per_thread", registers_per_thread, 0),
        ("threads_per_block", threads_per_block, 1),
        ("shared_bytes_per_block", shared_bytes_per_block, 0),
        ("ctas_per_cluster", ctas_per_cluster, 1),
    ):
        if value < least:
            raise ValueError(f"{name} is {value}, expected {least} or more")
    warps_per_block = _divide_up(threads_per_block, WARP_SIZE)
    most = {
        Limiter.REGISTERS: _most_by_registers(limits, registers_per_thread, warps_per_block),
        Limiter.SHARED_MEMORY: _most_by_shared_memory(limits, shared_bytes_per_block),
        Limiter.THREADS: (
            limits.max_warps_per_sm // warps_per_block
            if threads_per_block <= limits.max_threads_per_block
            else 0
        ),
        Limiter.BLOCKS: limits.max_blocks_per_sm,
        Limiter.CLUSTERS: None if ctas_per_cluster == 1 or limits.has_clusters else 0,
    }
    blocks = min(number for number in most.values() if number is not None)
    return Occupancy(
        blocks=blocks,
        warps=blocks * warps_per_block,
        max_warps=limits.max_warps_per_sm,
        limited_by=tuple(limiter for limiter, number in most.items() if number == blocks),
    )


def _most_by_registers(limits: Limits, registers_per_thread: int, warps_per_block: int) -> int | None:
    if registers_per_thread == 0:
        return None
    if registers_per_thread > limits.max_registers_per_thread:
        return 0
    per_warp = _round_up(registers_per_thread * WARP_SIZE, limits.register_unit_per_warp)
    # Registers left over in one sub-partition do not help a warp in another.
    warps_per_part = limits.registers_per_sm // limits.warp_unit // per_warp
    return warps_per_part * limits.warp_unit // warps_per_block


def _most_by_shared_memory(limits: Limits, shared_bytes_per_block: int) -> int:
    if shared_bytes_per_block > limits.max_shared_bytes_per_block:
        return 0
    taken = shared_bytes_per_block + limits.reserved_shared_bytes_per_block
    return limits.shared_bytes_per_sm // _round_up(taken, limits.shared_unit_bytes)


def _divide_up(number: int, by: int) -> int:
    return -(-number // by)


def _round_up(number: int, unit: int) -> int:
    return _divide_up(number, unit) * unit


# Read in November 2026, in the edition that has a column for compute capability 10.7.
_GUIDE = (
    "CUDA Programming Guide, compute capabilities, tables 29 to 32, "
    "https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html"
)
_CCCL = (
    "NVIDIA CUDA Core Compute Libraries, architecture traits, "
    "https://github.com/NVIDIA/cccl/blob/main/libcudacxx/include/cuda/__device/arch_traits.h"
)


def _limits(
    *, threads: int, blocks: int, shared_kib: int, has_clusters: bool, source: str = _GUIDE, note: str = ""
) -> Limits:
    return Limits(
        max_threads_per_sm=threads,
        max_blocks_per_sm=blocks,
        shared_bytes_per_sm=shared_kib * _KIB,
        max_shared_bytes_per_block=(shared_kib - 1) * _KIB,  # the guide's figures, each 1 KiB below the SM's
        has_clusters=has_clusters,
        source=source,
        note=note,
    )


_SM_12X = _limits(threads=1536, blocks=24, shared_kib=100, has_clusters=True)

LIMITS: Mapping[str, Limits] = MappingProxyType(
    {
        "sm_80": _limits(threads=2048, blocks=32, shared_kib=164, has_clusters=False),
        "sm_86": _limits(threads=1536, blocks=16, shared_kib=100, has_clusters=False),
        "sm_87": _limits(threads=1536, blocks=16, shared_kib=164, has_clusters=False),
        "sm_88": _limits(
            threads=1536,
            blocks=16,
            shared_kib=100,
            has_clusters=False,
            source=_CCCL,
            note=(
                "not in the CUDA Programming Guide; NVIDIA's libraries give 8.8 the figures of 8.6. "
                "cuda_occupancy.h treats it like 8.6 too, and ptxas 13.4 accepts up to 16 blocks and up to "
                "1536 threads per SM for it"
            ),
        ),
        "sm_89": _limits(threads=1536, blocks=24, shared_kib=100, has_clusters=False),
        "sm_90": _limits(threads=2048, blocks=32, shared_kib=228, has_clusters=True),
        "sm_100": _limits(threads=2048, blocks=32, shared_kib=228, has_clusters=True),
        "sm_103": _limits(threads=2048, blocks=32, shared_kib=228, has_clusters=True),
        "sm_107": _limits(
            threads=1024,
            blocks=16,
            shared_kib=328,
            has_clusters=True,
            note=(
                "more than 228 KiB per SM (227 per block) only for launches in the shared memory mode "
                "cudaSharedMemoryModeAllowOversizedSharedMemory; others may fit fewer blocks. tileiras 13.4 "
                "counts on the 328: asked for two blocks per SM, it gives a float16 matmul 161 KiB each"
            ),
        ),
        "sm_110": _limits(threads=1536, blocks=24, shared_kib=228, has_clusters=True),
        "sm_120": _SM_12X,
        "sm_121": _SM_12X,
    }
)
"""Limits by architecture: every one that tileiras 13.4 compiles for."""
