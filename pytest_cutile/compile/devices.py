"""What launch code is told about the GPU when it is traced for an architecture without one."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from pytest_cutile.core.architectures import normalize_architecture
from pytest_cutile.core.platforms import representative

_UNKNOWN_SM_COUNT = 132
_KIB, _MIB, _GIB = 2**10, 2**20, 2**30
_RESERVED_SHARED = _KIB  # of a multiprocessor's shared memory, 1 KiB a block is the system's


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
    shared_memory_per_block: int = 48 * _KIB
    """Bytes that one block can have without asking."""
    regs_per_multiprocessor: int = 65536
    """32-bit registers."""
    max_threads_per_block: int = 1024
    """Threads."""
    warp_size: int = 32
    """Threads."""
    is_integrated: int = 0
    """1 when the GPU shares the CPU's memory."""
    is_multi_gpu_board: int = 0
    """1 for boards with several GPUs."""


@dataclass(frozen=True, kw_only=True)
class _Limits:
    shared_kib: int
    """Shared memory of a multiprocessor."""
    threads: int
    """Resident threads of a multiprocessor."""
    l2_mib: float = 50
    memory_gib: int = 80
    integrated: bool = False


# Shared memory and threads follow from the architecture (CUDA C++ Programming Guide, technical
# specifications per compute capability); L2 and memory are the representative GPU's.
_LIMITS = MappingProxyType(
    {
        "sm_80": _Limits(shared_kib=164, threads=2048, l2_mib=40, memory_gib=80),  # A100
        "sm_86": _Limits(shared_kib=100, threads=1536, l2_mib=6, memory_gib=48),  # RTX A6000
        "sm_87": _Limits(shared_kib=164, threads=1536, l2_mib=4, memory_gib=64, integrated=True),  # AGX Orin
        "sm_89": _Limits(shared_kib=100, threads=1536, l2_mib=72, memory_gib=24),  # RTX 4090
        "sm_90": _Limits(shared_kib=228, threads=2048, l2_mib=60, memory_gib=140),  # H200
        "sm_100": _Limits(shared_kib=228, threads=2048, l2_mib=126, memory_gib=178),  # B200
        "sm_103": _Limits(shared_kib=228, threads=2048, l2_mib=126, memory_gib=268),  # B300
        "sm_110": _Limits(shared_kib=228, threads=1536, l2_mib=32, memory_gib=122, integrated=True),  # Thor
        "sm_120": _Limits(shared_kib=100, threads=1536, l2_mib=96, memory_gib=32),  # RTX 5090
        "sm_121": _Limits(shared_kib=100, threads=1536, l2_mib=24, memory_gib=119, integrated=True),  # GB10
    }
)
# The smallest there is: code that fits here fits anywhere.
_UNKNOWN_LIMITS = _Limits(shared_kib=100, threads=1536)


def capability(arch: str) -> tuple[int, int]:
    """Return the CUDA compute capability of an architecture: "sm_121" is (12, 1)."""
    number = int(normalize_architecture(arch).removeprefix("sm_"))
    return number // 10, number % 10


def properties_of(arch: str) -> DeviceProperties:
    """Return the properties of the GPU that stands for `arch` ("sm_121")."""
    major, minor = capability(arch)
    limits = _LIMITS.get(arch, _UNKNOWN_LIMITS)
    platform = representative(arch)
    shared = limits.shared_kib * _KIB
    return DeviceProperties(
        name=platform.names[0] if platform is not None else f"NVIDIA {arch}",
        major=major,
        minor=minor,
        multi_processor_count=platform.sm_count if platform is not None else _UNKNOWN_SM_COUNT,
        total_memory=limits.memory_gib * _GIB,
        L2_cache_size=int(limits.l2_mib * _MIB),
        shared_memory_per_multiprocessor=shared,
        shared_memory_per_block_optin=shared - _RESERVED_SHARED,
        max_threads_per_multi_processor=limits.threads,
        is_integrated=int(limits.integrated),
    )
