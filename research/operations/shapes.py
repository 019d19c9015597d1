"""What makes tiles, and what changes their shapes."""

# ruff: noqa: ANN001, ANN201 - kernels' parameters are what a launch passes, and names say enough

from __future__ import annotations

from collections.abc import Iterator

import cuda.tile as ct
import torch

from research.operations.example import Example
from research.operations.values import small_numbers, values


@ct.kernel
def shapes_kernel(x, out, n: ct.Constant[int]):
    tile = ct.load(x, (0, 0), (n, 4))
    both = ct.cat((tile, tile + tile), 1)
    turned = ct.transpose(ct.permute(ct.reshape(both, (2, n // 2, 8)), (1, 0, 2)), 0, 2)
    part = ct.extract(ct.reshape(turned, (n, 8)), (1, 1), (n // 2, 4))
    wide = ct.broadcast_to(ct.expand_dims(part, 0), (2, n // 2, 4))
    ct.store(out, (0, 0), ct.insert(ct.reshape(wide, (n, 4)), (0, 3), ct.full((n, 1), 1, x.dtype)))


@ct.kernel
def made_kernel(out, n: ct.Constant[int]):
    numbers = ct.arange(n, dtype=out.dtype) + ct.ones((n,), out.dtype) - ct.zeros((n,), out.dtype)
    ct.store(out, (0,), numbers * ct.full((n,), 3, out.dtype))


@ct.kernel
def pack_kernel(x, out, back, n: ct.Constant[int]):
    packed = ct.pack_to_bytes(ct.load(x, (0,), (n,)))
    ct.store(out, (0,), packed)
    ct.store(back, (0,), ct.unpack_from_bytes(packed, x.dtype))


@ct.kernel
def scalars_kernel(x, out, a, b, n: ct.Constant[int]):
    total = ct.zeros((n,), dtype=ct.int32)
    for step in range(b):
        if step % 3 == 0:
            continue
        total += ct.load(x, (0,), (n,)) * (a // (step + 1)) + ct.cdiv(a, step + 1) - a % (step + 2)
    while ct.sum(total) > a:
        total = total // 2 - 1
    ct.store(out, (0,), total + min(a, b) + max(a, b))


def shapes() -> Iterator[Example]:
    n = 16
    for dtype in ("float16", "float32", "float64", "int8", "int32", "int64"):
        yield Example(
            operation="cat, reshape, permute, transpose, extract, insert, broadcast_to",
            dtype=dtype,
            kernel=shapes_kernel,
            inputs=lambda dtype=dtype: [small_numbers(dtype, (n, 4))],  # type: ignore[misc]
            outputs=[((n, 4), dtype)],
            grid=(1,),
            constants=(n,),
        )
        yield Example(
            operation="arange, full, ones, zeros",
            dtype=dtype,
            kernel=made_kernel,
            inputs=list,
            outputs=[((n,), dtype)],
            grid=(1,),
            constants=(n,),
        )
        size = torch.empty(0, dtype=getattr(torch, dtype)).element_size()
        yield Example(
            operation="pack_to_bytes, unpack_from_bytes",
            dtype=dtype,
            kernel=pack_kernel,
            inputs=lambda dtype=dtype: [values(dtype)[:n]],  # type: ignore[misc]
            outputs=[((n * size,), "uint8"), ((n,), dtype)],
            grid=(1,),
            constants=(n,),
        )
    for a, b in ((17, 5), (-17, 7), (100, 1), (3, 0)):
        yield Example(
            operation=f"scalars, loops and branches ({a}, {b})",
            dtype="int32",
            kernel=scalars_kernel,
            inputs=lambda: [small_numbers("int32", (n,))],
            outputs=[((n,), "int32")],
            grid=(1,),
            constants=(a, b, n),
        )
