"""Reference workloads: launches that tileiras did not compile, so no change to a kernel makes them slower."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from pytest_cutile.speed.measure.timing import ReferenceWorkload

PLACES = 4
"""Sets of buffers that a reference workload cycles through: its time depends on placement, too."""
PRODUCT = (4096, 2048, 4096)
"""M, K, N of the matrix product: 69 GFLOP, 0.1 ms on an H200."""
COPY_BYTES = 96 << 20
"""Most bytes that the copy reads and writes."""


def matrix_product() -> ReferenceWorkload | None:
    """Return a bfloat16 product of the BLAS library: limited as a compute-bound kernel is.

    None where the GPU lacks memory for it.
    """
    import torch

    m, k, n = PRODUCT

    def place() -> Callable[[], object]:
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
        c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        return lambda: torch.mm(a, b, out=c)

    if torch.cuda.mem_get_info()[0] < 8 * PLACES * 2 * (m * k + k * n + m * n):
        return None
    return ReferenceWorkload(name=f"torch {torch.__version__} mm bf16 {m}x{k}x{n}", launch=_cycle(place))


def copy() -> ReferenceWorkload | None:
    """Return a copy within the GPU's memory; None where the GPU lacks memory for it."""
    import torch

    size = min(COPY_BYTES, 2 * torch.cuda.get_device_properties(0).L2_cache_size)

    def place() -> Callable[[], object]:
        source: Any = torch.empty(size, dtype=torch.int8, device="cuda").random_()
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    if torch.cuda.mem_get_info()[0] < 8 * PLACES * 2 * size:
        return None
    return ReferenceWorkload(name=f"torch {torch.__version__} copy of {size >> 20} MiB", launch=_cycle(place))


def _cycle(place: Callable[[], Callable[[], object]]) -> Callable[[], object]:
    places = itertools.cycle([place() for _ in range(PLACES)])

    def launch() -> object:
        return next(places)()

    return launch


REFERENCE_WORKLOADS: Mapping[str, Callable[[], ReferenceWorkload | None]] = MappingProxyType(
    {"TFLOPS": matrix_product, "GB/s": copy}
)
"""By the limit of the kernels that they are interleaved with."""
