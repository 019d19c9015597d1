"""Matrix products."""

# ruff: noqa: ANN001, ANN201 - kernels' parameters are what a launch passes, and names say enough

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import cuda.tile as ct
import torch

from research.operations.example import Example
from research.operations.values import normal_numbers, small_numbers


@ct.kernel
def mma_kernel(a, b, c, out, m: ct.Constant[int], n: ct.Constant[int], k: ct.Constant[int]):
    acc = ct.load(c, (0, 0), (m, n))
    ct.store(out, (0, 0), ct.mma(ct.load(a, (0, 0), (m, k)), ct.load(b, (0, 0), (k, n)), acc))


@ct.kernel
def mma_tf32_kernel(a, b, c, out, m: ct.Constant[int], n: ct.Constant[int], k: ct.Constant[int]):
    x = ct.load(a, (0, 0), (m, k)).astype(ct.tfloat32)
    y = ct.load(b, (0, 0), (k, n)).astype(ct.tfloat32)
    ct.store(out, (0, 0), ct.mma(x, y, ct.load(c, (0, 0), (m, n))))


@ct.kernel
def matmul_kernel(a, b, out, m: ct.Constant[int], n: ct.Constant[int], k: ct.Constant[int]):
    ct.store(out, (0, 0), ct.load(a, (0, 0), (m, k)) @ ct.load(b, (0, 0), (k, n)))


@ct.kernel
def mma_batched_kernel(a, b, out, m: ct.Constant[int], n: ct.Constant[int], k: ct.Constant[int]):
    acc = ct.zeros((2, m, n), dtype=ct.float32)
    x, y = ct.load(a, (0, 0, 0), (2, m, k)), ct.load(b, (0, 0), (k, n))
    ct.store(out, (0, 0, 0), ct.mma(x, y, acc))


@ct.kernel
def mma_scaled_kernel(
    a, a_scale, b, b_scale, out, m: ct.Constant[int], n: ct.Constant[int], k: ct.Constant[int]
):
    x, x_scale = ct.load(a, (0, 0), (m, k)), ct.load(a_scale, (0, 0), (m, k // 32))
    y, y_scale = ct.load(b, (0, 0), (k, n)), ct.load(b_scale, (0, 0), (k // 32, n))
    ct.store(out, (0, 0), ct.mma_scaled(x, x_scale, y, y_scale, ct.zeros((m, n), dtype=ct.float32)))


def products() -> Iterator[Example]:
    m, n, k = 64, 32, 128
    accumulators = {
        "float16": ("float16", "float32"),
        "bfloat16": ("float32",),
        "float32": ("float32",),
        "float64": ("float64",),
        "float8_e4m3fn": ("float16", "float32"),
        "float8_e5m2": ("float16", "float32"),
        "int8": ("int32",),
        "uint8": ("int32",),
    }

    def product(
        operation: str, dtype: str, acc: str, kernel: Any, make: Callable[..., torch.Tensor]
    ) -> Example:
        return Example(
            operation=operation,
            dtype=f"{dtype}, {acc}",
            kernel=kernel,
            inputs=lambda: [make(dtype, (m, k), 1), make(dtype, (k, n), 2), make(acc, (m, n), 3)],
            outputs=[((m, n), acc)],
            grid=(1,),
            constants=(m, n, k),
        )

    for dtype, accs in accumulators.items():
        for acc in accs:
            yield product("mma of whole numbers", dtype, acc, mma_kernel, small_numbers)
            if "int" not in dtype:
                yield product("mma", dtype, acc, mma_kernel, normal_numbers)
    yield product("mma of tfloat32", "float32", "float32", mma_tf32_kernel, normal_numbers)
    for dtype in ("float16", "float32"):
        yield Example(
            operation="matmul",
            dtype=dtype,
            kernel=matmul_kernel,
            inputs=lambda dtype=dtype: [  # type: ignore[misc]
                small_numbers(dtype, (m, k), 1),
                small_numbers(dtype, (k, n), 2),
            ],
            outputs=[((m, n), dtype)],
            grid=(1,),
            constants=(m, n, k),
        )
    yield Example(
        operation="mma of a batch",
        dtype="float16, float32",
        kernel=mma_batched_kernel,
        inputs=lambda: [small_numbers("float16", (2, m, k), 1), small_numbers("float16", (k, n), 2)],
        outputs=[((2, m, n), "float32")],
        grid=(1,),
        constants=(m, n, k),
    )
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        yield Example(
            operation="mma_scaled (Blackwell)",
            dtype=dtype,
            kernel=mma_scaled_kernel,
            inputs=lambda dtype=dtype: [  # type: ignore[misc]
                small_numbers(dtype, (m, k), 1),
                torch.full((m, k // 32), 2.0).to(torch.float8_e8m0fnu),
                small_numbers(dtype, (k, n), 2),
                torch.full((k // 32, n), 0.5).to(torch.float8_e8m0fnu),
            ],
            outputs=[((m, n), "float32")],
            grid=(1,),
            constants=(m, n, k),
        )
