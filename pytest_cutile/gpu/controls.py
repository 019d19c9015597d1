"""Controls: launches that tileiras did not compile, and that no change to a kernel can make slower."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from pytest_cutile.core.timing import Control

PLACES = 4
"""Buffers that a control goes round: where they lie moves its time as it does a kernel's."""
PRODUCT = (4096, 2048, 4096)
"""M, K, N of the matrix product: 69 GFLOP, 0.1 ms on an H200."""
COPY_BYTES = 96 << 20
"""Bytes that the copy reads and writes at most."""


def matrix_product() -> Control | None:
    """Return a bfloat16 product of the BLAS library: it lives on the same clock as a compute-bound kernel."""
    import torch

    m, k, n = PRODUCT

    def place() -> Callable[[], object]:
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
        c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        return lambda: torch.mm(a, b, out=c)

    if torch.cuda.mem_get_info()[0] < 8 * PLACES * 2 * (m * k + k * n + m * n):
        return None
    return Control(name=f"torch {torch.__version__} mm bf16 {m}x{k}x{n}", launch=_turns(place))


def copy() -> Control | None:
    """Return a copy within the GPU's memory."""
    import torch

    size = min(COPY_BYTES, 2 * torch.cuda.get_device_properties(0).L2_cache_size)

    def place() -> Callable[[], object]:
        source: Any = torch.empty(size, dtype=torch.int8, device="cuda").random_()
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    if torch.cuda.mem_get_info()[0] < 8 * PLACES * 2 * size:
        return None
    return Control(name=f"torch {torch.__version__} copy of {size >> 20} MiB", launch=_turns(place))


def _turns(place: Callable[[], Callable[[], object]]) -> Callable[[], object]:
    places = itertools.cycle([place() for _ in range(PLACES)])

    def launch() -> object:
        return next(places)()

    return launch


CONTROLS: Mapping[str, Callable[[], Control | None]] = MappingProxyType(
    {"TFLOPS": matrix_product, "GB/s": copy}
)
"""By the limit of the kernels that they stand beside."""
