"""What launch code is told about the GPU when it is traced for an architecture without one."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from pytest_cutile.core.architectures import normalize_architecture
from pytest_cutile.core.multiprocessor import LIMITS, WARP_SIZE
from pytest_cutile.core.platforms import representative

_UNKNOWN_SM_COUNT = 132
_KIB, _MIB, _GIB = 2**10, 2**20, 2**30


@dataclass(frozen=True, kw_only=True)
class DeviceProperties:
    """What `torch.cuda.get_device_properties` returns; names and units are torch's."""

    name: str
    """Name of the GPU that stands for the architecture."""
    major: int
    """Compute capability, the part before the point."""
    minor: int
    """Compute capability, the part after the point."""
    multi_processor_count: int
    """Streaming multiprocessors."""
    total_memory: int
    """Bytes of DRAM."""
    L2_cache_size: int
    """Bytes."""
    shared_memory_per_multiprocessor: int
    """Bytes."""
    shared_memory_per_block_optin: int
    """Bytes that one block can have when it asks."""
    max_threads_per_multi_processor: int
    """Resident threads."""
    regs_per_multiprocessor: int
    """32-bit registers."""
    max_threads_per_block: int
    """Threads."""
    shared_memory_per_block: int = 48 * _KIB
    """Bytes that one block can have without asking."""
    warp_size: int = WARP_SIZE
    """Threads."""
    is_integrated: int = 0
    """1 when the GPU shares the CPU's memory."""
    is_multi_gpu_board: int = 0
    """1 for boards with several GPUs."""


@dataclass(frozen=True, kw_only=True)
class _Board:
    """What the GPU that stands for an architecture has outside its multiprocessors."""

    l2_mib: float = 50
    """L2 cache."""
    memory_gib: int = 80
    """DRAM."""
    integrated: bool = False
    """Whether it shares the CPU's memory."""


_BOARDS = MappingProxyType(
    {
        "sm_80": _Board(l2_mib=40, memory_gib=80),  # A100
        "sm_86": _Board(l2_mib=6, memory_gib=48),  # RTX A6000
        "sm_87": _Board(l2_mib=4, memory_gib=64, integrated=True),  # AGX Orin
        "sm_89": _Board(l2_mib=72, memory_gib=24),  # RTX 4090
        "sm_90": _Board(l2_mib=60, memory_gib=140),  # H200
        "sm_100": _Board(l2_mib=126, memory_gib=178),  # B200
        "sm_103": _Board(l2_mib=126, memory_gib=268),  # B300
        "sm_110": _Board(l2_mib=32, memory_gib=122, integrated=True),  # Thor
        "sm_120": _Board(l2_mib=96, memory_gib=32),  # RTX 5090
        "sm_121": _Board(l2_mib=24, memory_gib=119, integrated=True),  # GB10
    }
)
# Where the GPU is not known: the smallest shared memory that any has. sm_107 is such a case: CUDA reports its
# opt-in limit and its largest configuration apart, and only the second is published.
_UNKNOWN_LIMITS = LIMITS["sm_86"]


def capability(arch: str) -> tuple[int, int]:
    """Return the CUDA compute capability of an architecture: "sm_121" is (12, 1)."""
    number = int(normalize_architecture(arch).removeprefix("sm_"))
    return number // 10, number % 10


def properties_of(arch: str) -> DeviceProperties:
    """Return the properties of the GPU that stands for `arch` ("sm_121")."""
    major, minor = capability(arch)
    limits = LIMITS[arch] if arch in _BOARDS else _UNKNOWN_LIMITS
    board = _BOARDS.get(arch, _Board())
    platform = representative(arch)
    return DeviceProperties(
        name=platform.names[0] if platform is not None else f"NVIDIA {arch}",
        major=major,
        minor=minor,
        multi_processor_count=platform.sm_count if platform is not None else _UNKNOWN_SM_COUNT,
        total_memory=board.memory_gib * _GIB,
        L2_cache_size=int(board.l2_mib * _MIB),
        shared_memory_per_multiprocessor=limits.shared_bytes_per_sm,
        shared_memory_per_block_optin=limits.max_shared_bytes_per_block,
        max_threads_per_multi_processor=limits.max_threads_per_sm,
        regs_per_multiprocessor=limits.registers_per_sm,
        max_threads_per_block=limits.max_threads_per_block,
        is_integrated=int(board.integrated),
    )
