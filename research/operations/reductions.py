"""Reductions and scans."""

# ruff: noqa: ANN001, ANN202 - kernels' parameters are what a launch passes, and names say enough

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import cuda.tile as ct

from research.operations.example import FLOATS, Example
from research.operations.values import normal_numbers, small_numbers, values

if TYPE_CHECKING:
    import torch


def reduce_rows(function: Any) -> Any:
    """Make the kernel that reduces each row with `function`."""

    @ct.kernel
    def reduced_rows(x, out, rows: ct.Constant[int], columns: ct.Constant[int]):
        i = ct.bid(0)
        ct.store(out, (i,), function(ct.load(x, (i, 0), (rows, columns)), axis=1))

    return reduced_rows


def scan_rows(function: Any, *, reverse: bool = False) -> Any:
    """Make the kernel that scans each row with `function`."""

    @ct.kernel
    def scanned_rows(x, out, rows: ct.Constant[int], columns: ct.Constant[int]):
        i = ct.bid(0)
        ct.store(out, (i, 0), function(ct.load(x, (i, 0), (rows, columns)), axis=1, reverse=reverse))

    return scanned_rows


def _own_product(x, axis):
    return ct.reduce(x, axis, _times, 1)


def _own_scan(x, axis, reverse):
    return ct.scan(x, axis, _larger, -5, reverse=reverse)


def _times(x, y):
    return x * y


def _larger(x, y):
    return ct.maximum(x, y)


def _argmax_nan(x, axis):
    return ct.argmax(x, axis=axis, propagate_nan=True)


def _max_nan(x, axis):
    return ct.max(x, axis=axis, propagate_nan=True)


def along_an_axis() -> Iterator[Example]:
    rows, columns, blocks = 4, 128, 8
    shape = (rows * blocks, columns)

    def along(
        operation: str,
        dtype: str,
        kernel: Any,
        result: str,
        inputs: Callable[[], torch.Tensor],
        *,
        scan: bool,
    ) -> Example:
        return Example(
            operation=operation,
            dtype=dtype,
            kernel=kernel,
            inputs=lambda: [inputs()],
            outputs=[(shape if scan else shape[:1], result)],
            grid=(blocks,),
            constants=(rows, columns),
        )

    for dtype in (*FLOATS, "int8", "int32", "uint32", "int64"):

        def edges(dtype: str = dtype) -> torch.Tensor:
            return values(dtype)[: shape[0] * shape[1]].reshape(shape)

        def small(dtype: str = dtype) -> torch.Tensor:
            return small_numbers(dtype, shape)

        def normal(dtype: str = dtype) -> torch.Tensor:
            return normal_numbers(dtype, shape)

        for name in ("max", "min", "argmax", "argmin"):
            result = "int32" if name.startswith("arg") else dtype
            yield along(name, dtype, reduce_rows(getattr(ct, name)), result, edges, scan=False)
        yield along("sum of whole numbers", dtype, reduce_rows(ct.sum), dtype, small, scan=False)
        yield along("cumsum of whole numbers", dtype, scan_rows(ct.cumsum), dtype, small, scan=True)
        backwards = scan_rows(ct.cumsum, reverse=True)
        yield along("cumsum reverse of whole numbers", dtype, backwards, dtype, small, scan=True)
        yield along("reduce", dtype, reduce_rows(_own_product), dtype, small, scan=False)
        yield along("scan", dtype, scan_rows(_own_scan), dtype, small, scan=True)
        if dtype in FLOATS:
            yield along("sum", dtype, reduce_rows(ct.sum), dtype, normal, scan=False)
            yield along("prod", dtype, reduce_rows(ct.prod), dtype, normal, scan=False)
            yield along("cumsum", dtype, scan_rows(ct.cumsum), dtype, normal, scan=True)
            yield along("cumprod", dtype, scan_rows(ct.cumprod), dtype, normal, scan=True)
            yield along("max propagate_nan", dtype, reduce_rows(_max_nan), dtype, edges, scan=False)
            yield along("argmax propagate_nan", dtype, reduce_rows(_argmax_nan), "int32", edges, scan=False)
        else:
            yield along("sum that wraps", dtype, reduce_rows(ct.sum), dtype, edges, scan=False)
