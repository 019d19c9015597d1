"""What launch code sees of the GPU when it is traced for an architecture without one."""

from __future__ import annotations

import functools
from dataclasses import make_dataclass
from typing import Any

from pytest_cutile.words.platforms.architectures import capability
from pytest_cutile.words.platforms.data import hardware
from pytest_cutile.words.platforms.lookup import find_architecture, stand_in

_KIB, _MIB, _GIB = 2**10, 2**20, 2**30


@functools.cache
def properties_of(arch: str) -> Any:
    """Return what `torch.cuda.get_device_properties` returns, a dataclass; names and units are torch's."""
    major, minor = capability(arch)
    gpu = stand_in(arch)
    report = gpu.cuda_reports
    assert report is not None, gpu.names  # tests/words/platforms requires it of every GPU that stands in
    # Without a GPU of the architecture or a relative, promise no more than any architecture has. sm_107 is
    # one: CUDA reports its opt-in limit and its largest configuration apart; only the second is published.
    sm = find_architecture(arch) if gpu is not hardware().fallback else None
    sm = sm or min(hardware().architectures.values(), key=lambda known: known.shared_bytes_per_sm)
    properties = {
        "name": gpu.names[0] if gpu.arch == arch else f"NVIDIA {arch}",
        "major": major,
        "minor": minor,
        "multi_processor_count": gpu.sm_count,
        "total_memory": report.memory_gib * _GIB,
        "L2_cache_size": report.l2_mib * _MIB,
        "shared_memory_per_block": 48 * _KIB,
        "shared_memory_per_block_optin": sm.max_shared_bytes_per_block,
        "shared_memory_per_multiprocessor": sm.shared_bytes_per_sm,
        "max_threads_per_block": sm.max_threads_per_block,
        "max_threads_per_multi_processor": sm.max_threads_per_sm,
        "regs_per_multiprocessor": sm.registers_per_sm,
        "warp_size": sm.warp_size,
        "is_integrated": int(report.integrated),
        "is_multi_gpu_board": 0,
    }
    return make_dataclass("DeviceProperties", properties, frozen=True)(**properties)
