"""Operations on each element, and conversions."""

# ruff: noqa: ANN001, ANN002, ANN202 - kernels' parameters are what a launch passes, and names say enough

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import cuda.tile as ct

from research.operations.example import COUNT, FLOATS, INTEGERS, ONE_BYTE_FLOATS, TILE, Example, dtype_named
from research.operations.values import pairs, values

if TYPE_CHECKING:
    import torch


def map_one(function: Any) -> Any:
    """Make the kernel that computes `function` of each element."""

    @ct.kernel
    def one_argument(x, out, n: ct.Constant[int]):
        i = ct.bid(0)
        ct.store(out, (i,), function(ct.load(x, (i,), (n,))))

    return one_argument


def map_two(function: Any) -> Any:
    """Make the kernel that computes `function` of pairs of elements."""

    @ct.kernel
    def two_arguments(x, y, out, n: ct.Constant[int]):
        i = ct.bid(0)
        ct.store(out, (i,), function(ct.load(x, (i,), (n,)), ct.load(y, (i,), (n,))))

    return two_arguments


def map_three(function: Any) -> Any:
    """Make the kernel that computes `function` of triples of elements."""

    @ct.kernel
    def three_arguments(x, y, z, out, n: ct.Constant[int]):
        i = ct.bid(0)
        tiles = ct.load(x, (i,), (n,)), ct.load(y, (i,), (n,)), ct.load(z, (i,), (n,))
        ct.store(out, (i,), function(tiles[0], tiles[1], tiles[2]))

    return three_arguments


def _elementwise(
    operation: str, dtype: str, kernel: Any, inputs: Callable[[], Sequence[torch.Tensor]], result: str
) -> Example:
    return Example(
        operation=operation,
        dtype=dtype,
        kernel=kernel,
        inputs=inputs,
        outputs=[((COUNT,), result)],
        grid=(COUNT // TILE,),
        constants=(TILE,),
    )


def _one(operation: str, dtype: str, function: Any, result: str | None = None) -> Example:
    return _elementwise(operation, dtype, map_one(function), lambda: [values(dtype)], result or dtype)


def _two(operation: str, dtype: str, function: Any, result: str | None = None) -> Example:
    return _elementwise(operation, dtype, map_two(function), lambda: pairs(dtype), result or dtype)


def _conversion(operation: str, source: str, target: str, function: Any) -> Example:
    kernel = map_one(function)
    return _elementwise(operation, f"{source} to {target}", kernel, lambda: [values(source)], target)


def rounded(function: Any, mode: Any) -> Any:
    """Make the function that rounds as `mode` says."""

    def apply(*values):
        return function(*values, rounding_mode=mode)

    return apply


def flushed(function: Any) -> Any:
    """Make the function that takes denormals for zero."""

    def apply(*values):
        return function(*values, flush_to_zero=True)

    return apply


def with_nan(function: Any) -> Any:
    """Make the function that returns NaN where an operand is."""

    def apply(*values):
        return function(*values, propagate_nan=True)

    return apply


def _multiply_add(x, y, z):
    return x * y + z


def _where_positive(x, y):
    return ct.where(x > 0, x, y)


def _where_true(x, y):
    return ct.where(x, x, y)


def _square(x):
    return x**2


def _cube(x):
    return x**3


def _halves(x):
    return x * 0.5 + 1


def _shift_by_3(x):
    return (x << 3) ^ (x >> 3)


def _divmod_sum(x, y):
    quotient, rest = ct.divmod(x, y)
    return quotient + rest


def floats() -> Iterator[Example]:
    unary = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh")
    for dtype in FLOATS:
        for name in (*unary, "floor", "ceil", "abs", "negative"):
            yield _one(name, dtype, getattr(ct, name))
        yield _one("isnan", dtype, ct.isnan, "bool")
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "atan2", "minimum", "maximum"):
            yield _two(name, dtype, getattr(ct, name))
        for name in ("greater", "greater_equal", "less", "less_equal", "equal", "not_equal"):
            yield _two(name, dtype, getattr(ct, name), "bool")
        yield _two("maximum propagate_nan", dtype, with_nan(ct.maximum))
        yield _two("minimum propagate_nan", dtype, with_nan(ct.minimum))
        yield _two("where", dtype, _where_positive)
        yield _one("pow of 2", dtype, _square)
        yield _one("pow of 3", dtype, _cube)
        yield _one("mul and add of weak constants", dtype, _halves)
        yield _elementwise(
            "mul then add (may fuse)",
            dtype,
            map_three(_multiply_add),
            lambda dtype=dtype: [*pairs(dtype), values(dtype).flip(0)],  # type: ignore[misc]
            dtype,
        )
    modes = {"RZ": ct.RoundingMode.RZ, "RM": ct.RoundingMode.RM, "RP": ct.RoundingMode.RP}
    for dtype in FLOATS:
        for mode, rounding in modes.items():
            for name in ("add", "mul", "truediv"):
                yield _two(f"{name} {mode}", dtype, rounded(getattr(ct, name), rounding))
        yield _one("sqrt RZ", dtype, rounded(ct.sqrt, ct.RoundingMode.RZ))
    f32 = "float32"
    yield _two("truediv FULL", f32, rounded(ct.truediv, ct.RoundingMode.FULL))
    yield _two("truediv APPROX", f32, rounded(ct.truediv, ct.RoundingMode.APPROX))
    for name in ("sqrt", "tanh", "exp"):
        yield _one(f"{name} APPROX", f32, rounded(getattr(ct, name), ct.RoundingMode.APPROX))
    for name in ("add", "sub", "mul", "truediv", "maximum"):
        yield _two(f"{name} flush_to_zero", f32, flushed(getattr(ct, name)))
    for name in ("exp2", "sqrt", "rsqrt"):
        yield _one(f"{name} flush_to_zero", f32, flushed(getattr(ct, name)))


def integers() -> Iterator[Example]:
    for dtype in INTEGERS:
        for name in ("abs", "negative", "bitwise_not"):
            yield _one(name, dtype, getattr(ct, name))
        for name in ("add", "sub", "mul", "floordiv", "mod", "minimum", "maximum", "cdiv"):
            yield _two(name, dtype, getattr(ct, name))
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_lshift", "bitwise_rshift"):
            yield _two(name, dtype, getattr(ct, name))
        for name in ("greater", "less_equal", "equal"):
            yield _two(name, dtype, getattr(ct, name), "bool")
        yield _two("truediv", dtype, ct.truediv, "float32")
        yield _two("divmod", dtype, _divmod_sum)
        yield _two("where", dtype, _where_positive)
        yield _one("shifts by a constant", dtype, _shift_by_3)
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "equal", "less"):
        yield _two(name, "bool", getattr(ct, name))
    yield _one("bitwise_not", "bool", ct.bitwise_not)
    yield _two("where", "bool", _where_true)


# -- conversions --------------------------------------------------------------------------------------


def cast_to(dtype: Any) -> Any:
    """Make the function that converts to a dtype."""

    def cast(x):
        return ct.astype(x, dtype)

    return cast


def bitcast_to(dtype: Any) -> Any:
    """Make the function that reads the bits as another dtype."""

    def cast(x):
        return ct.bitcast(x, dtype)

    return cast


def _to_e8m0_rz(x):
    return ct.astype(x, ct.float8_e8m0fnu, rounding_mode=ct.RoundingMode.RZ)


def _to_e8m0_rp(x):
    return ct.astype(x, ct.float8_e8m0fnu, rounding_mode=ct.RoundingMode.RP)


def _through_tf32(x):
    return ct.astype(ct.astype(x, ct.tfloat32), ct.float32)


def conversions() -> Iterator[Example]:
    one_byte = ONE_BYTE_FLOATS
    for source in (*FLOATS, *one_byte, *INTEGERS, "bool"):
        for target in (*FLOATS, *one_byte, *INTEGERS, "bool"):
            if source != target:
                yield _conversion("astype", source, target, cast_to(dtype_named(target)))
    e8m0 = "float8_e8m0fnu"
    for source in ("float16", "bfloat16", "float32"):
        yield _conversion("astype RZ (Blackwell)", source, e8m0, _to_e8m0_rz)
        yield _conversion("astype RP (Blackwell)", source, e8m0, _to_e8m0_rp)
        yield _conversion("astype (Blackwell)", e8m0, source, cast_to(dtype_named(source)))
    yield _one("astype through tfloat32", "float32", _through_tf32)
    for source, target in (
        *(("float32", "int32"), ("int32", "float32"), ("float16", "int16"), ("uint16", "bfloat16")),
        *(("int64", "float64"), ("float8_e4m3fn", "uint8"), ("uint8", "float8_e5m2")),
    ):
        yield _conversion("bitcast", source, target, bitcast_to(dtype_named(target)))
