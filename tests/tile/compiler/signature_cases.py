"""Launches whose signature is compared with the one that cuda-tile derives.

Used with no GPU by test_signature.py and, on one, by research/check_signatures.py.
"""

# mypy: allow-untyped-decorators

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import cuda.tile as ct
import torch

# empty(shape, dtype) makes an uninitialized contiguous tensor on the device that is compared.
Empty = Callable[..., Any]


@ct.kernel
def one(x): ...


@ct.kernel
def two(x, y): ...


@ct.kernel
def constant(x, c: ct.Constant): ...


@ct.kernel
def wide_scalar(n: ct.ScalarInt64): ...


@ct.kernel
def wide_index(x: ct.IndexedWithInt64): ...


@ct.kernel
def static_shape(x: Annotated[ct.Array, ct.ArrayAnnotation(static_shape_dims=(0, -1))]): ...


@ct.kernel
def static_stride(x: Annotated[ct.Array, ct.ArrayAnnotation(static_stride_dims=(-1,))]): ...


@ct.kernel
def static_both(
    x: Annotated[ct.Array, ct.ArrayAnnotation(static_shape_dims=(1,), static_stride_dims=(0, 1))],
): ...


@ct.kernel
def static_list(
    x: Annotated[list[Any], ct.ListAnnotation(element=ct.ArrayAnnotation(static_shape_dims=(-1,)))],
): ...


@ct.kernel
def pair(t: tuple[ct.Array, ct.Constant[int]]): ...


@ct.kernel
def constant_tuple(t: ct.Constant[tuple[int, ...]]): ...


DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
)

LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t(),
    "odd columns": lambda x: x[:, :33],
    "offset by a column": lambda x: x[:, 1:],
    "offset by 16 columns": lambda x: x[:, 16:],
    "offset by a row": lambda x: x[1:],
    "every second column": lambda x: x[:, ::2],
    "one row": lambda x: x[3:4],
    "one column": lambda x: x[:, 5:6],
    "one element": lambda x: x[3:4, 5:6],
    "a vector of one": lambda x: x[0, 5:6],
    "a strided vector of one": lambda x: x[5:6, 0],
    "0-d": lambda x: x[3, 5],
    "expanded": lambda x: x[:1].expand(7, 64),
    "expanded, new axis": lambda x: x.unsqueeze(1).expand(32, 5, 64),
    "broadcast to one": lambda x: x[:, :, None],
    "empty": lambda x: x[:0],
    "empty columns": lambda x: x[:, :0],
    "overlapping": lambda x: x.as_strided((8, 8), (4, 1)),
    "interleaved": lambda x: x.as_strided((4, 2), (1, 4)),
    "5-d": lambda x: x.view(2, 16, 1, 4, 16),
    "6-d": lambda x: x.view(2, 4, 4, 1, 4, 16),
    "3-d permuted": lambda x: x.view(2, 16, 64).permute(2, 0, 1),
}


def launches(empty: Empty) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Yield (name, kernel, arguments); the arguments' tensors come from `empty` and are views of it."""
    for name in DTYPES:
        x = empty((32, 64), getattr(torch, name))
        yield f"{name}, contiguous", one, (x,)
        yield f"{name}, offset by 3", one, (x[:, 3:],)
        yield f"{name}, offset by 4", one, (x[:, 4:],)
        yield f"{name}, odd rows", one, (empty((7, 24), getattr(torch, name)),)
    for dtype in (torch.float16, torch.float32, torch.int8):
        for name, view in LAYOUTS.items():
            yield f"{dtype}, {name}", one, (view(empty((32, 64), dtype)),)
    x = empty((32, 64), torch.float16)
    for scalar in (0, 1, -7, 2**31 - 1, -(2**31), True, False, 0.5, 1.0, float("inf")):
        yield f"scalar {scalar!r}", two, (x, scalar)
    yield "scalar, wide", wide_scalar, (2**40,)
    value: Any
    for value in (0, 1, -1, 2**40, -(2**63), 2**64 - 1, True, False, 0.25, -0.0, float("nan"), float("-inf")):
        yield f"constant {value!r}", constant, (x, value)
    for value in (None, "causal", torch.float16, ct.float32, (1, 2), (), (1, (2.0, True))):
        yield f"constant {value!r}", constant, (x, value)
    yield "constant tuple", constant_tuple, ((4, 8, 16),)
    yield "wide index", wide_index, (x[:, 1:],)
    for name in ("contiguous", "transposed", "one row", "one element", "odd columns"):
        for kernel in (static_shape, static_stride, static_both):
            yield f"{kernel._pyfunc.__name__}, {name}", kernel, (LAYOUTS[name](x),)
    yield "static_shape, 6-d", static_shape, (LAYOUTS["6-d"](x),)
    yield "tuple of tensors", one, ((x, x[:1], 3, 0.5),)
    yield "nested tuple", one, ((x, (x.t(), (True,))),)
    yield "annotated pair", pair, ((x, 32),)
    yield "list of one", one, ([x],)
    yield "list, alike", one, ([x, empty((64, 128), torch.float16)],)
    yield "list, unlike", one, ([x, x[:, 1:], x[:1]],)
    yield "list, one row each", one, ([x[:1], x[1:2]],)
    yield "list, static shape", static_list, ([x, x[:16]],)
    yield "tensor twice", two, (x, x)


def refused(empty: Empty) -> Iterator[tuple[str, Any, tuple[Any, ...], type[Exception]]]:
    """Yield launches that cuda-tile refuses, with the exception that it raises."""
    x = empty((32, 64), torch.float16)
    yield "too few", two, (x,), TypeError
    yield "too many", one, (x, x), TypeError
    yield "None", one, (None,), TypeError
    yield "str", one, ("causal",), TypeError
    yield "dict", one, ({},), TypeError
    yield "dtype", one, (torch.float16,), TypeError
    yield "constant tensor", constant, (x, x), TypeError
    yield "constant list", constant, (x, [1]), TypeError
    yield "constant too big", constant, (x, 2**64), OverflowError
    yield "int too big", one, (2**31,), OverflowError
    yield "wide int too big", wide_scalar, (2**63,), OverflowError
    yield "complex", one, (empty((4,), torch.complex64),), TypeError
    yield "empty list", one, ([],), TypeError
    yield "list of numbers", one, ([1, 2],), TypeError
    yield "list, mixed dtypes", one, ([x, empty((32, 64), torch.float32)],), TypeError
    yield "list, mixed ranks", one, ([x, x[0]],), TypeError
    yield "list, differing static shape", static_list, ([x, x[:, :8]],), ValueError
    yield "static axis out of range", static_both, (x[0],), ValueError
    yield "not a tuple", pair, (x,), TypeError
    yield "short tuple", pair, ((x,),), TypeError
    yield "named tuple", one, (torch.Size((3, 4)),), TypeError
