"""Reference workloads: launches of fixed code, whose times say what the GPU does today."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from pytest_cutile.timing.measure import reference_kernels
from pytest_cutile.timing.measure.reference_kernels import THREADS, VERSION, DriverError, Kernel
from pytest_cutile.words.timing import ReferenceWorkload

PLACES = 4
"""Sets of buffers that a reference workload cycles through: the time of a copy depends on placement, too."""
COPY_BYTES = 96 << 20
"""Most bytes that the copy reads and writes."""
BLOCKS_PER_SM = {"copy": 8, "mma": 1}
STEPS = 4096
"""Rounds of products of each warp: some 0.1 ms on an H200."""


def products() -> ReferenceWorkload | None:
    """Return bfloat16 products on registers: limited by the tensor cores. None where it cannot be made."""
    import torch

    blocks = BLOCKS_PER_SM["mma"] * _properties().multi_processor_count

    def place(kernel: Kernel) -> Callable[[], object]:
        result = torch.empty(blocks * THREADS, dtype=torch.float32, device="cuda")
        return _launch_of(kernel, blocks, result, arguments=(_address(result), ctypes.c_uint32(STEPS)))

    name = f"ptx mma {VERSION}, {STEPS} steps"
    return _made(name, reference_kernels.mma_ptx(), "multiply", place, bytes_per_place=4 * blocks * THREADS)


def copy() -> ReferenceWorkload | None:
    """Return a copy within the GPU's memory. None where it cannot be made."""
    import torch

    size = min(COPY_BYTES, 2 * _properties().L2_cache_size) // 16 * 16
    blocks = BLOCKS_PER_SM["copy"] * _properties().multi_processor_count

    def place(kernel: Kernel) -> Callable[[], object]:
        source: Any = torch.empty(size, dtype=torch.int8, device="cuda").random_()
        target = torch.empty_like(source)
        words = ctypes.c_uint64(size // 16)
        return _launch_of(
            kernel, blocks, source, target, arguments=(_address(source), _address(target), words)
        )

    name = f"ptx copy {VERSION}, {size >> 20} MiB"
    return _made(name, reference_kernels.COPY, "copy_words", place, bytes_per_place=2 * size)


def _properties() -> Any:
    import torch

    return torch.cuda.get_device_properties(0)


def _address(tensor: Any) -> ctypes.c_uint64:
    return ctypes.c_uint64(tensor.data_ptr())


def _launch_of(
    kernel: Kernel, blocks: int, *tensors: Any, arguments: tuple[Any, ...]
) -> Callable[[], object]:
    """Return a launch on the current stream, as a capture needs it; it keeps `tensors` alive."""
    import torch

    def launch() -> object:
        kernel.launch(blocks, arguments, torch.cuda.current_stream().cuda_stream)
        return tensors

    return launch


def _made(
    name: str,
    source: str,
    entry: str,
    place: Callable[[Kernel], Callable[[], object]],
    *,
    bytes_per_place: int,
) -> ReferenceWorkload | None:
    """Return a workload that cycles through its places; None where memory is short or the driver refuses."""
    import torch

    if torch.cuda.mem_get_info()[0] < 8 * PLACES * bytes_per_place:
        return None
    torch.cuda.current_stream().synchronize()  # makes torch's context the current one of this thread
    try:
        kernel = Kernel(source, entry)
        places = [place(kernel) for _ in range(PLACES)]
        for launch in places:
            launch()  # a GPU that cannot run it says so here
    except (DriverError, torch.OutOfMemoryError):
        return None
    turns = itertools.cycle(places)

    def launch_next() -> object:
        return next(turns)()

    return ReferenceWorkload(name=name, launch=launch_next)


REFERENCE_WORKLOADS: Mapping[str, Callable[[], ReferenceWorkload | None]] = MappingProxyType(
    {"TFLOPS": products, "GB/s": copy}
)
"""By the limit of the kernels that they speak for."""
