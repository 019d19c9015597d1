"""What launch code is told about the GPU when it is traced for an architecture without one."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_cutile.platforms.architectures import capability
from pytest_cutile.platforms.data import hardware
from pytest_cutile.platforms.lookup import find_architecture, stand_in

_KIB, _MIB, _GIB = 2**10, 2**20, 2**30


@dataclass(frozen=True, kw_only=True)
class DeviceProperties:
    """What `torch.cuda.get_device_properties` returns; names and units are torch's."""

    name: str
    """Name of the GPU that stands for the architecture."""
    major: int
    minor: int
    multi_processor_count: int
    total_memory: int
    L2_cache_size: int
    shared_memory_per_multiprocessor: int
    shared_memory_per_block_optin: int
    max_threads_per_multi_processor: int
    regs_per_multiprocessor: int
    max_threads_per_block: int
    warp_size: int
    shared_memory_per_block: int = 48 * _KIB
    is_integrated: int = 0
    is_multi_gpu_board: int = 0


def properties_of(arch: str) -> DeviceProperties:
    major, minor = capability(arch)
    gpu = stand_in(arch)
    report = gpu.cuda_reports
    assert report is not None, gpu.names  # tests/platforms requires it of every GPU that stands in
    # Without a GPU of the architecture or a relative, promise no more than any architecture has. sm_107 is
    # one: CUDA reports its opt-in limit and its largest configuration apart; only the second is published.
    sm = find_architecture(arch) if gpu is not hardware().fallback else None
    sm = sm or min(hardware().architectures.values(), key=lambda known: known.shared_bytes_per_sm)
    return DeviceProperties(
        name=gpu.names[0] if gpu.arch == arch else f"NVIDIA {arch}",
        major=major,
        minor=minor,
        multi_processor_count=gpu.sm_count,
        total_memory=report.memory_gib * _GIB,
        L2_cache_size=report.l2_mib * _MIB,
        shared_memory_per_multiprocessor=sm.shared_bytes_per_sm,
        shared_memory_per_block_optin=sm.max_shared_bytes_per_block,
        max_threads_per_multi_processor=sm.max_threads_per_sm,
        regs_per_multiprocessor=sm.registers_per_sm,
        max_threads_per_block=sm.max_threads_per_block,
        warp_size=sm.warp_size,
        is_integrated=int(report.integrated),
    )
