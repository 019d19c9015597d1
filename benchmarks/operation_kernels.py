"""A kernel for every public operation of cuTile, with inputs that reach its edges.

Used by `benchmarks/interpreter_against_gpu.py`, and by the tests of the interpreter for kernels that between
them use most operations of Tile IR.
"""

# ruff: noqa: ANN001, ANN201, ANN202, D103 - kernels' parameters are what a launch passes, and names say enough

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import cuda.tile as ct
import torch

FLOATS = ("float16", "bfloat16", "float32", "float64")
ONE_BYTE_FLOATS = ("float8_e4m3fn", "float8_e5m2")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED

_CUTILE_NAMES = {"bool": "bool_"}
_COUNT = 65536
"""Elements that an operation is tried on: all values of two bytes."""
_TILE = 256


@dataclass(frozen=True, kw_only=True)
class Example:
    """One launch, whose results two ways of running it are to agree on."""

    operation: str
    """The operation by its public name, and what is special about it."""
    dtype: str
    """What it works on: torch's name of the dtype, or "float32 to int8"."""
    kernel: Any
    inputs: Callable[[], Sequence[torch.Tensor]]
    """Makes the tensors that it reads, on the CPU; always the same."""
    outputs: Sequence[tuple[tuple[int, ...], str]]
    """Shape and dtype of the tensors that it writes; they start as zeros."""
    grid: tuple[int, ...]
    constants: Sequence[Any] = field(default=())


def dtype_named(name: str) -> Any:
    """Return cuTile's dtype for torch's name of it."""
    return getattr(ct, _CUTILE_NAMES.get(name, name))


# -- values -------------------------------------------------------------------------------------------

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_EDGES = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.0, 0.1, math.pi, -math.pi / 2, 100.5),
    *(math.inf, -math.inf, math.nan, 65504.0, 65520.0, 448.0, 449.0, 464.0, 57344.0, 61440.0, 1e5, -1e5),
    *(127.0, 127.5, 128.0, -128.0, -128.5, -129.0, 255.0, 255.5, 256.0, 32767.0, 32768.0, -32769.0, 65535.5),
    *(2.0**31, -(2.0**31), 2.0**31 - 1, 2.0**32, 2.0**63, -(2.0**63), 2.0**64, 2.0**24 + 1, 1e30, -1e30),
    *(2.0**-14, 2.0**-15, 2.0**-24, 2.0**-25, 2.0**-126, 2.0**-127, 2.0**-149, 2.0**-150, 1e-30, 88.7, -88.7),
    *(11.0, -11.0, 0.9999999, 1.0000001, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 709.8),
)


@cache
def values(dtype: str, count: int = _COUNT) -> torch.Tensor:
    """Return values of a dtype: all if there are no more than `count`, else the edges and random ones.

    Half of the random ones are random bits, half ordinary numbers.
    """
    kind: torch.dtype = getattr(torch, dtype)
    if kind == torch.bool:
        return torch.arange(count) % 3 == 0
    size = torch.empty(0, dtype=kind).element_size()
    bits = _BITS[size]
    if 256**size <= count:
        every = torch.arange(256**size).repeat(count // 256**size)
        return (every - 2 ** (8 * size) * (every >= 2 ** (8 * size - 1))).to(bits).view(kind)
    generator = torch.Generator().manual_seed(1)
    limits = torch.iinfo(bits)
    low, high = limits.min, limits.max
    random = torch.randint(low, high, (count,), generator=generator, dtype=bits).view(kind)
    if kind.is_floating_point:
        edges = torch.tensor(_EDGES, dtype=torch.float64)
        ordinary = (torch.randn(count // 2, generator=generator, dtype=torch.float64) * 4).to(kind)
        edges = edges.to(kind)
    else:
        powers = torch.tensor([1 << shift for shift in range(8 * size - 1)])
        edges = torch.cat([powers, -powers, powers - 1, 1 - powers, torch.tensor([low, high, low + 1])])
        edges = edges.to(bits).view(kind)
        ordinary = torch.randint(-20, 20, (count // 2,), generator=generator).to(bits).view(kind)
    found = random.view(bits).clone()
    found[-len(ordinary) :] = ordinary.view(bits)
    found[: len(edges)] = edges.view(bits)[:count]
    return found.view(kind)


@cache
def pairs(dtype: str, count: int = _COUNT) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pairs of values: edges with edges, then random ones."""
    bits = _bits_of(values(dtype, count))
    few = _bits_of(_few(dtype))
    first, second = bits.clone(), bits.flip(0).roll(17)
    number = len(few) ** 2
    first[:number] = few.repeat_interleave(len(few))
    second[:number] = few.repeat(len(few))
    kind: torch.dtype = getattr(torch, dtype)
    return first.view(kind), second.view(kind)


def _few(dtype: str) -> torch.Tensor:
    """Return less than 200 values: edges and a few others."""
    kind: torch.dtype = getattr(torch, dtype)
    if kind == torch.bool:
        return torch.tensor([False, True])
    if kind.is_floating_point:
        return torch.tensor(_EDGES, dtype=torch.float64).to(kind)
    some = torch.tensor([0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 31, 32, 33, 63, 64, 65, 100])
    bits = _BITS[torch.empty(0, dtype=kind).element_size()]
    limits = torch.iinfo(bits)
    ends = torch.tensor([limits.min, limits.min + 1, limits.max, limits.max - 1, limits.max // 3])
    return torch.cat([some, -some, ends]).to(bits).view(kind)


def _bits_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(_BITS[tensor.element_size()]) if tensor.dtype != torch.bool else tensor


def small_numbers(dtype: str, shape: Sequence[int], seed: int = 1) -> torch.Tensor:
    """Return small whole numbers, of which sums of products are exact in any order."""
    generator = torch.Generator().manual_seed(seed)
    low = 0 if dtype.startswith("uint") else -2
    return torch.randint(low, 3, tuple(shape), generator=generator).to(getattr(torch, dtype))


def normal_numbers(dtype: str, shape: Sequence[int], seed: int = 1) -> torch.Tensor:
    """Return numbers from the normal distribution."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(getattr(torch, dtype))


# -- element by element -------------------------------------------------------------------------------


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
        outputs=[((_COUNT,), result)],
        grid=(_COUNT // _TILE,),
        constants=(_TILE,),
    )


def _one(operation: str, dtype: str, function: Any, result: str | None = None) -> Example:
    return _elementwise(operation, dtype, map_one(function), lambda: [values(dtype)], result or dtype)


def _two(operation: str, dtype: str, function: Any, result: str | None = None) -> Example:
    return _elementwise(operation, dtype, map_two(function), lambda: pairs(dtype), result or dtype)


def _conversion(operation: str, source: str, target: str, function: Any) -> Example:
    kernel = map_one(function)
    return _elementwise(operation, f"{source} to {target}", kernel, lambda: [values(source)], target)


def _add_rz(x, y):
    return ct.add(x, y, rounding_mode=ct.RoundingMode.RZ)


def _add_rm(x, y):
    return ct.add(x, y, rounding_mode=ct.RoundingMode.RM)


def _add_rp(x, y):
    return ct.add(x, y, rounding_mode=ct.RoundingMode.RP)


def _mul_rz(x, y):
    return ct.mul(x, y, rounding_mode=ct.RoundingMode.RZ)


def _mul_rm(x, y):
    return ct.mul(x, y, rounding_mode=ct.RoundingMode.RM)


def _mul_rp(x, y):
    return ct.mul(x, y, rounding_mode=ct.RoundingMode.RP)


def _truediv_rz(x, y):
    return ct.truediv(x, y, rounding_mode=ct.RoundingMode.RZ)


def _truediv_rm(x, y):
    return ct.truediv(x, y, rounding_mode=ct.RoundingMode.RM)


def _truediv_rp(x, y):
    return ct.truediv(x, y, rounding_mode=ct.RoundingMode.RP)


def _truediv_full(x, y):
    return ct.truediv(x, y, rounding_mode=ct.RoundingMode.FULL)


def _truediv_approx(x, y):
    return ct.truediv(x, y, rounding_mode=ct.RoundingMode.APPROX)


def _add_ftz(x, y):
    return ct.add(x, y, flush_to_zero=True)


def _sub_ftz(x, y):
    return ct.sub(x, y, flush_to_zero=True)


def _mul_ftz(x, y):
    return ct.mul(x, y, flush_to_zero=True)


def _truediv_ftz(x, y):
    return ct.truediv(x, y, flush_to_zero=True)


def _maximum_nan(x, y):
    return ct.maximum(x, y, propagate_nan=True)


def _minimum_nan(x, y):
    return ct.minimum(x, y, propagate_nan=True)


def _maximum_ftz(x, y):
    return ct.maximum(x, y, flush_to_zero=True)


def _exp2_ftz(x):
    return ct.exp2(x, flush_to_zero=True)


def _sqrt_ftz(x):
    return ct.sqrt(x, flush_to_zero=True)


def _sqrt_rz(x):
    return ct.sqrt(x, rounding_mode=ct.RoundingMode.RZ)


def _sqrt_approx(x):
    return ct.sqrt(x, rounding_mode=ct.RoundingMode.APPROX)


def _rsqrt_ftz(x):
    return ct.rsqrt(x, flush_to_zero=True)


def _exp_approx(x):
    return ct.exp(x, rounding_mode=ct.RoundingMode.APPROX)


def _tanh_approx(x):
    return ct.tanh(x, rounding_mode=ct.RoundingMode.APPROX)


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


def _floats() -> Iterator[Example]:
    unary = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh")
    for dtype in FLOATS:
        for name in (*unary, "floor", "ceil", "abs", "negative"):
            yield _one(name, dtype, getattr(ct, name))
        yield _one("isnan", dtype, ct.isnan, "bool")
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "atan2", "minimum", "maximum"):
            yield _two(name, dtype, getattr(ct, name))
        for name in ("greater", "greater_equal", "less", "less_equal", "equal", "not_equal"):
            yield _two(name, dtype, getattr(ct, name), "bool")
        yield _two("maximum propagate_nan", dtype, _maximum_nan)
        yield _two("minimum propagate_nan", dtype, _minimum_nan)
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
    modes = {"RZ": (_add_rz, _mul_rz, _truediv_rz), "RM": (_add_rm, _mul_rm, _truediv_rm)}
    modes["RP"] = (_add_rp, _mul_rp, _truediv_rp)
    for dtype in FLOATS:
        for mode, functions in modes.items():
            for name, function in zip(("add", "mul", "truediv"), functions, strict=True):
                yield _two(f"{name} {mode}", dtype, function)
        yield _one("sqrt RZ", dtype, _sqrt_rz)
    f32 = "float32"
    yield _two("truediv FULL", f32, _truediv_full)
    yield _two("truediv APPROX", f32, _truediv_approx)
    yield _one("sqrt APPROX", f32, _sqrt_approx)
    yield _one("tanh APPROX", f32, _tanh_approx)
    yield _one("exp APPROX", f32, _exp_approx)
    for name, function in {
        "add": _add_ftz,
        "sub": _sub_ftz,
        "mul": _mul_ftz,
        "truediv": _truediv_ftz,
        "maximum": _maximum_ftz,
    }.items():
        yield _two(f"{name} flush_to_zero", f32, function)
    for name, unary_function in {"exp2": _exp2_ftz, "sqrt": _sqrt_ftz, "rsqrt": _rsqrt_ftz}.items():
        yield _one(f"{name} flush_to_zero", f32, unary_function)


def _integers() -> Iterator[Example]:
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


def _conversions() -> Iterator[Example]:
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


# -- along an axis ------------------------------------------------------------------------------------


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


def _along_an_axis() -> Iterator[Example]:
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


# -- products -----------------------------------------------------------------------------------------


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


def _products() -> Iterator[Example]:
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


# -- memory -------------------------------------------------------------------------------------------


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
    found = ct.gather(x, index % 500, mask=index % 3 == 0, padding_value=3, check_bounds=False)
    ct.store(out, (i,), found)


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
    found = x.get_raw_memory().load_offset(at, mask=at % 2 == 0, padding_value=9)
    out.get_raw_memory().store_offset(at, found, mask=at % 5 != 0)


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


def _memory() -> Iterator[Example]:
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


# -- shapes -------------------------------------------------------------------------------------------


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


def _shapes() -> Iterator[Example]:
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


def all_examples() -> Iterator[Example]:
    """Yield every example: conversions last, because they are the most."""
    for part in (_shapes, _memory, _products, _along_an_axis, _integers, _floats, _conversions):
        yield from part()
