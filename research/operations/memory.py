"""Loads, stores, views and atomics."""

# ruff: noqa: ANN001, ANN201, ANN202 - kernels' parameters are what a launch passes, and names say enough

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cuda.tile as ct
import torch

from research.operations.example import Example
from research.operations.values import small_numbers, values


def load_padded(mode: Any) -> Any:
    """Make the kernel that sees what lies beyond an array."""

    @ct.kernel
    def padded(x, out, rows: ct.Constant[int], columns: ct.Constant[int]):
        i, j = ct.bid(0), ct.bid(1)
        tile = ct.load(x, (i, j), (rows, columns), padding_mode=mode)
        ct.store(out, (i, j), tile)

    return padded


@ct.kernel
def transposed_load_kernel(x, out, rows: ct.Constant[int], columns: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    tile = ct.load(x, (j, i), (columns, rows), order="F", padding_mode=ct.PaddingMode.ZERO)
    ct.store(out, (j, i), tile)


@ct.kernel
def gather_kernel(x, where, out, n: ct.Constant[int]):
    i = ct.bid(0)
    index = ct.load(where, (i,), (n,))
    ct.store(out, (i,), ct.gather(x, index, padding_value=7))


@ct.kernel
def gather_masked_kernel(x, where, out, n: ct.Constant[int]):
    i = ct.bid(0)
    index = ct.load(where, (i,), (n,))
    tile = ct.gather(x, index % 500, mask=index % 3 == 0, padding_value=3, check_bounds=False)
    ct.store(out, (i,), tile)


@ct.kernel
def gather_pairs_kernel(x, where, out, n: ct.Constant[int]):
    i = ct.bid(0)
    index = ct.load(where, (i,), (n,))
    ct.store(out, (i,), ct.gather(x, (index % 41, index // 41 - 1)))


@ct.kernel
def scatter_kernel(x, where, out, n: ct.Constant[int]):
    i = ct.bid(0)
    ct.scatter(out, ct.load(where, (i,), (n,)), ct.load(x, (i,), (n,)))


@ct.kernel
def slice_kernel(x, out, n: ct.Constant[int]):
    i = ct.bid(0)
    part = x.slice(axis=0, start=i * n + 3, stop=i * n + n - 5)
    ct.store(out, (i,), ct.load(part, (0,), (n,), padding_mode=ct.PaddingMode.ZERO))


@ct.kernel
def strided_view_kernel(x, out, n: ct.Constant[int]):
    i = ct.bid(0)
    view = x.tiled_view((n,), padding_mode=ct.PaddingMode.NEG_INF, traversal_steps=(n // 2,))
    ct.store(out, (i,), view.load((i,)) + view.num_tiles(0))


@ct.kernel
def advanced_indexing_kernel(x, out, n: ct.Constant[int]):
    i = ct.bid(0)
    rows = ct.arange(n, dtype=ct.int32) * 2 + i
    tile = ct.load_advanced_indexing(x, (rows, ct.Slice(i * 5, 8)), padding_mode=ct.PaddingMode.ZERO)
    ct.store(out, (i, 0), tile)


@ct.kernel
def advanced_store_kernel(x, out, n: ct.Constant[int]):
    rows = ct.arange(n, dtype=ct.int32) * 2 + ct.bid(0)
    tile = ct.load(x, (ct.bid(0), 0), (n, 8))
    ct.store_advanced_indexing(out, (rows, ct.Slice(8, 8)), tile)


@ct.kernel
def raw_memory_kernel(x, out, n: ct.Constant[int]):
    i = ct.bid(0)
    at = ct.arange(n, dtype=ct.int32) + i * n
    tile = x.get_raw_memory().load_offset(at, mask=at % 2 == 0, padding_value=9)
    out.get_raw_memory().store_offset(at, tile, mask=at % 5 != 0)


def atomic_rmw(name: str) -> Any:
    """Make the kernel that changes elements atomically, many blocks the same ones."""
    function = getattr(ct, name)

    @ct.kernel
    def changed(x, where, out, n: ct.Constant[int]):
        i = ct.bid(0)
        function(out, ct.load(where, (i,), (n,)), ct.load(x, (i,), (n,)))

    return changed


@ct.kernel
def atomic_old_kernel(x, where, out, old, n: ct.Constant[int]):
    at = ct.load(where, (0,), (n,))
    ct.store(old, (0,), ct.atomic_xchg(out, at, ct.load(x, (0,), (n,))))


@ct.kernel
def atomic_cas_kernel(x, where, out, old, n: ct.Constant[int]):
    at = ct.load(where, (0,), (n,))
    new = ct.load(x, (0,), (n,))
    ct.store(old, (0,), ct.atomic_cas(out, at, ct.where(at % 2 == 0, 0, 1).astype(out.dtype), new))


@ct.kernel
def atomic_store_kernel(x, out, n: ct.Constant[int]):
    out.tiled_view((n,)).atomic_store_add((ct.bid(0) % 3,), ct.load(x, (ct.bid(0),), (n,)))


@ct.kernel
def grid_kernel(out):
    x, y, z = ct.bid(0), ct.bid(1), ct.bid(2)
    code = x + 10 * y + 100 * z + 1000 * ct.num_blocks(0) + 10000 * ct.num_blocks(1)
    ct.store(out, (z, y, x), ct.full((1, 1, 1), code + 100000 * ct.num_tiles(out, 2, (1, 1, 1)), ct.int32))


def memory() -> Iterator[Example]:
    n, blocks = 64, 8
    modes = ("ZERO", "NEG_ZERO", "NAN", "POS_INF", "NEG_INF")
    for dtype in ("float16", "bfloat16", "float32", "float8_e5m2", "int32", "uint8"):
        for mode in modes if dtype.startswith(("fl", "bf")) else modes[:1]:
            yield Example(
                operation=f"load padding_mode={mode}",
                dtype=dtype,
                kernel=load_padded(getattr(ct.PaddingMode, mode)),
                inputs=lambda dtype=dtype: [values(dtype)[: 37 * 45].reshape(37, 45)],  # type: ignore[misc]
                outputs=[((48, 48), dtype)],
                grid=(3, 3),
                constants=(16, 16),
            )
    shuffled = torch.randperm(n * blocks, generator=torch.Generator().manual_seed(1)).to(torch.int32)
    beyond = shuffled * 2 - 30
    few = shuffled % 37
    for dtype in ("float16", "float32", "int32", "uint8", "int64"):

        def row(dtype: str = dtype) -> torch.Tensor:
            return values(dtype)[: n * blocks]

        def example(
            operation: str,
            kernel: Any,
            inputs: Callable[[], Sequence[torch.Tensor]],
            shape: tuple[int, ...] = (n * blocks,),
            dtype: str = dtype,
            constants: Sequence[Any] = (n,),
        ) -> Example:
            return Example(
                operation=operation,
                dtype=dtype,
                kernel=kernel,
                inputs=inputs,
                outputs=[(shape, dtype)],
                grid=(blocks,),
                constants=constants,
            )

        yield Example(
            operation="load order=F",
            dtype=dtype,
            kernel=transposed_load_kernel,
            inputs=lambda dtype=dtype: [values(dtype)[: 37 * 45].reshape(37, 45)],  # type: ignore[misc]
            outputs=[((48, 48), dtype)],
            grid=(3, 3),
            constants=(16, 16),
        )
        yield example("gather", gather_kernel, lambda row=row: [row(), beyond])  # type: ignore[misc]
        yield example("gather mask", gather_masked_kernel, lambda row=row: [row(), shuffled])  # type: ignore[misc]
        yield example(
            "gather of two axes",
            gather_pairs_kernel,
            lambda row=row: [row()[:400].reshape(40, 10), shuffled],  # type: ignore[misc]
        )
        yield example("scatter", scatter_kernel, lambda row=row: [row(), beyond])  # type: ignore[misc]
        yield example("slice", slice_kernel, lambda row=row: [row()])  # type: ignore[misc]
        if dtype.startswith("float"):
            yield example("tiled_view traversal_steps", strided_view_kernel, lambda row=row: [row()[:250]])  # type: ignore[misc]
        yield example(
            "load_advanced_indexing",
            advanced_indexing_kernel,
            lambda row=row: [row()[:450].reshape(-1, 45)],  # type: ignore[misc]
            (8 * blocks, 8),
            constants=(8,),
        )
        yield Example(
            operation="store_advanced_indexing",
            dtype=dtype,
            kernel=advanced_store_kernel,
            inputs=lambda row=row: [row()[:128].reshape(16, 8)],  # type: ignore[misc]
            outputs=[((13, 20), dtype)],
            grid=(2,),
            constants=(8,),
        )
        yield example("get_raw_memory", raw_memory_kernel, lambda row=row: [row()])  # type: ignore[misc]
    for dtype in ("int32", "uint32", "int64", "uint64", "float16", "float32", "float64"):
        names = ["add"] if dtype.startswith("float") else ["add", "max", "min", "and", "or", "xor"]
        for name in names:
            yield Example(
                operation=f"atomic_{name}",
                dtype=dtype,
                kernel=atomic_rmw(f"atomic_{name}"),
                inputs=lambda dtype=dtype: [small_numbers(dtype, (n * blocks,)), few],  # type: ignore[misc]
                outputs=[((37,), dtype)],
                grid=(blocks,),
                constants=(n,),
            )
        for name, kernel in {"atomic_xchg": atomic_old_kernel, "atomic_cas": atomic_cas_kernel}.items():
            if dtype not in {"float16", "float64"}:
                yield Example(
                    operation=name,
                    dtype=dtype,
                    kernel=kernel,
                    inputs=lambda dtype=dtype: [  # type: ignore[misc]
                        small_numbers(dtype, (n,)),
                        torch.randperm(n, generator=torch.Generator().manual_seed(1)).to(torch.int32),
                    ],
                    outputs=[((n,), dtype), ((n,), dtype)],
                    grid=(1,),
                    constants=(n,),
                )
        if dtype in {"int32", "float32"}:
            yield Example(
                operation="atomic_store_add",
                dtype=dtype,
                kernel=atomic_store_kernel,
                inputs=lambda dtype=dtype: [small_numbers(dtype, (n * blocks,))],  # type: ignore[misc]
                outputs=[((n * 2 + 30,), dtype)],
                grid=(blocks,),
                constants=(n,),
            )
    yield Example(
        operation="bid, num_blocks, num_tiles",
        dtype="int32",
        kernel=grid_kernel,
        inputs=list,
        outputs=[((2, 3, 4), "int32")],
        grid=(4, 3, 2),
    )
