"""Arithmetic of one element, with every edge, against Python's integers and fractions."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import cuda.tile as ct
import pytest
import torch

from pytest_cutile.interpreter import interpret
from tests.tile.interpreter import exact
from tests.tile.interpreter.kernels_arithmetic import OPERATORS, binary, in_mode, run, ternary, unary

MODES = {name: getattr(ct.RoundingMode, name) for name in ("RN", "RZ", "RM", "RP")}
FORMATS = {
    torch.float64: exact.F64,
    torch.float32: exact.F32,
    torch.float16: exact.F16,
    torch.bfloat16: exact.BF16,
}
INTEGERS = [getattr(torch, f"{sign}int{bits}") for bits in (8, 16, 32, 64) for sign in ("", "u")]


def floats_of(dtype: torch.dtype) -> list[float]:
    """Return edges of a format, and numbers without a pattern."""
    info = torch.finfo(dtype)
    least = info.smallest_normal * info.eps
    edges = [1.0, 1 + info.eps, 1 - info.eps / 2, 3.0, info.max, info.max / 2, info.smallest_normal, least]
    edges += [info.smallest_normal - least, 3 * least, 2.0**-12, 1 / 3, 0.1, 65504.0, 1e30]
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(8, generator=generator, dtype=torch.float64) * 2.0 ** torch.arange(-8, 8, 2)
    numbers = torch.tensor([*edges, *drawn.tolist()], dtype=torch.float64).to(dtype).double()
    numbers = numbers[numbers.isfinite() & (numbers != 0)]
    return [0.0, -0.0, *numbers.tolist(), *(-numbers).tolist()]


def columns(rows: list[tuple[Any, ...]], dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.tensor(column, dtype=dtype) for column in zip(*rows, strict=True)]


def assert_same_floats(actual: torch.Tensor, expected: list[float], rows: list[tuple[Any, ...]]) -> None:
    """Compare with signs of zero; any NaN is as good as another."""
    for got, want, row in zip(actual.double().tolist(), expected, rows, strict=True):
        if math.isnan(want):
            assert math.isnan(got), row
        else:
            assert (got, math.copysign(1, got)) == (want, math.copysign(1, want)), row


def sum_of(a: float, b: float, to: exact.Format, mode: str) -> float:
    if Fraction(a) + Fraction(b) != 0:
        return exact.rounded(Fraction(a) + Fraction(b), to, mode)
    # IEEE 754, 6.3: exact zero sums are +0, or -0 when rounding down, unless both are zeros of one sign.
    if a == 0 and math.copysign(1, a) == math.copysign(1, b):
        return a
    return -0.0 if mode == "RM" else 0.0


def product_of(a: float, b: float, to: exact.Format, mode: str) -> float:
    sign = math.copysign(1, a) * math.copysign(1, b)
    exactly = Fraction(a) * Fraction(b)
    return math.copysign(exact.rounded(exactly, to, mode), sign) if exactly else math.copysign(0, sign)


def quotient_of(a: float, b: float, to: exact.Format, mode: str) -> float:
    sign = math.copysign(1, a) * math.copysign(1, b)
    if b == 0:
        return math.nan if a == 0 else math.copysign(math.inf, sign)
    exactly = Fraction(a) / Fraction(b)
    return math.copysign(exact.rounded(exactly, to, mode), sign) if exactly else math.copysign(0, sign)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize(
    ("function", "reference"),
    [
        (ct.add, sum_of),
        (ct.sub, lambda a, b, to, mode: sum_of(a, -b, to, mode)),
        (ct.mul, product_of),
        (ct.truediv, quotient_of),
    ],
    ids=["add", "sub", "mul", "truediv"],
)
def test_floats_are_rounded_once_in_the_mode_asked_for(
    function: Any, reference: Callable[..., float], dtype: torch.dtype, mode: str
) -> None:
    rows = list(itertools.product(floats_of(dtype), repeat=2))
    with interpret("sm_90"):
        results = run(binary(in_mode(function, MODES[mode], 2)), columns(rows, dtype))
    assert_same_floats(results, [reference(a, b, FORMATS[dtype], mode) for a, b in rows], rows)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_square_roots(dtype: torch.dtype, mode: str) -> None:
    rows = [(x,) for x in (*floats_of(dtype), 4.0, 2.25, 2.0)]
    expected = []
    for (x,) in rows:
        if x == 0:
            expected.append(x)
        else:
            expected.append(math.nan if x < 0 else exact.root(Fraction(x), FORMATS[dtype], mode))
    with interpret("sm_90"):
        results = run(unary(in_mode(ct.sqrt, MODES[mode], 1)), columns(rows, dtype))
    assert_same_floats(results, expected, rows)


FMA_TRAPS = [
    (1 + 2.0**-23, 1 - 2.0**-23, -1.0),  # all of what is left is in the product's low half
    (1 + 2.0**-12, 1 + 2.0**-12, 2.0**-60),  # a tie, but for the last summand
    (1 + 2.0**-12, 1 + 2.0**-12, -(2.0**-60)),
    (3.0, 1 / 3, -1.0),
    (1.0, 1.0, -1.0),
    (-0.0, 1.0, 0.0),
    (2.0**-100, 2.0**-20, 1.0),
]


def multiply_add(a, b, c):
    return a * b + c  # cuda-tile makes one operation of it


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_a_product_and_a_sum_are_fused_and_rounded_once(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    drawn[100:, 2] = -drawn[100:, 0] * drawn[100:, 1]  # almost nothing is left
    rows = [tuple(torch.tensor(row, dtype=dtype).tolist()) for row in (*FMA_TRAPS, *drawn.tolist())]
    expected = []
    for a, b, c in rows:
        total = Fraction(a) * Fraction(b) + Fraction(c)
        expected.append(
            exact.rounded(total, FORMATS[dtype], "RN") if total else sum_of(a * b, c, exact.F64, "RN")
        )
    with interpret("sm_90"):
        results = run(ternary(multiply_add), columns(rows, dtype))
    assert_same_floats(results, expected, rows)


def test_denormals_are_flushed_where_asked_for() -> None:
    least, normal = 2.0**-149, 2.0**-126
    rows = [(least, least), (-least, 0.0), (normal, -normal / 2), (normal, normal), (normal, -normal * 1.5)]

    def add(a, b):
        return ct.add(a, b, flush_to_zero=True)

    with interpret("sm_90"):
        flushed = run(binary(add), columns(rows, torch.float32))
        kept = run(binary(ct.add), columns(rows, torch.float32))
    assert_same_floats(flushed, [0.0, 0.0, normal, 2 * normal, -0.0], rows)
    assert_same_floats(kept, [2 * least, -least, normal / 2, 2 * normal, -normal / 2], rows)


SPECIALS = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 2.0**-149]


@pytest.mark.parametrize("propagate", [False, True])
@pytest.mark.parametrize(("function", "choose"), [(ct.maximum, max), (ct.minimum, min)], ids=["max", "min"])
def test_extremes_of_nan_and_signed_zeros(
    function: Any, choose: Callable[..., float], propagate: bool
) -> None:
    def key(x: float) -> tuple[float, float]:
        return x, math.copysign(1, x)  # -0 is less than 0

    rows = list(itertools.product(SPECIALS, repeat=2))
    expected = []
    for pair in rows:
        numbers = [x for x in pair if not math.isnan(x)]
        lost = not numbers or (propagate and len(numbers) < 2)
        expected.append(math.nan if lost else choose(numbers, key=key))

    def extreme(a, b):
        return function(a, b, propagate_nan=propagate)

    with interpret("sm_90"):
        results = run(binary(extreme), columns(rows, torch.float32))
    assert_same_floats(results, expected, rows)


@pytest.mark.parametrize(
    "compare", [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]
)
def test_comparisons_with_nan(compare: Callable[[Any, Any], Any]) -> None:
    rows = list(itertools.product(SPECIALS, repeat=2))
    with interpret("sm_90"):
        results = run(binary(compare), columns(rows, torch.float32), torch.bool)
    assert results.tolist() == [compare(a, b) for a, b in rows]


EDGES: dict[str, list[tuple[float, float]]] = {
    "exp": [(-math.inf, 0.0), (math.inf, math.inf), (0.0, 1.0), (-0.0, 1.0), (89.0, math.inf), (-110.0, 0.0)],
    "exp2": [(-math.inf, 0.0), (math.inf, math.inf), (-149.0, 2.0**-149), (128.0, math.inf), (10.0, 1024.0)],
    "log": [(0.0, -math.inf), (-0.0, -math.inf), (-1.0, math.nan), (math.inf, math.inf), (1.0, 0.0)],
    "log2": [(0.0, -math.inf), (2.0**-149, -149.0), (-1.0, math.nan), (math.inf, math.inf), (8.0, 3.0)],
    "rsqrt": [(0.0, math.inf), (-0.0, -math.inf), (math.inf, 0.0), (-1.0, math.nan), (4.0, 0.5)],
    "tanh": [(math.inf, 1.0), (-math.inf, -1.0), (-0.0, -0.0)],
    "floor": [(-0.0, -0.0), (-0.5, -1.0), (1.5, 1.0), (math.inf, math.inf)],
    "ceil": [(-0.5, -0.0), (0.5, 1.0), (-math.inf, -math.inf)],
}


@pytest.mark.parametrize("name", EDGES)
def test_functions_at_their_edges(name: str) -> None:
    rows = [*EDGES[name], (math.nan, math.nan)]
    with interpret("sm_90"):
        results = run(unary(getattr(ct, name)), [torch.tensor([x for x, _ in rows])])
    assert_same_floats(results, [y for _, y in rows], rows)


# -- integers -----------------------------------------------------------------------------------------


def edges_of(dtype: torch.dtype) -> list[int]:
    info = torch.iinfo(dtype)
    numbers = {
        0,
        1,
        2,
        3,
        7,
        100,
        info.max,
        info.max - 1,
        info.max // 2,
        info.max // 3,
        info.min,
        info.min + 1,
    }
    return sorted(numbers | ({-1, -2, -7, info.min // 2} if dtype.is_signed else set()))


def wrapped(number: int, dtype: torch.dtype) -> int:
    bits: int = torch.iinfo(dtype).bits
    low: int = number % 2**bits
    return low - 2**bits if dtype.is_signed and low >= 2 ** (bits - 1) else low


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "floordiv", "mod", "and", "or", "xor"])
def test_integers_keep_their_width(name: str, dtype: torch.dtype) -> None:
    compute = OPERATORS[name]
    rows = [
        (a, b)
        for a, b in itertools.product(edges_of(dtype), repeat=2)
        if b or name not in {"floordiv", "mod"}
    ]
    with interpret("sm_90"):
        results = run(binary(compute), columns(rows, dtype))
    assert results.tolist() == [wrapped(compute(a, b), dtype) for a, b in rows]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_rounding_up_division(dtype: torch.dtype) -> None:
    rows = [(a, b) for a, b in itertools.product(edges_of(dtype), repeat=2) if b]
    with interpret("sm_90"):
        results = run(binary(ct.cdiv), columns(rows, dtype))
    assert results.tolist() == [wrapped(-(-a // b), dtype) for a, b in rows]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_division_by_zero_ends(dtype: torch.dtype) -> None:
    rows = [(a, 0) for a in edges_of(dtype)]
    with interpret("sm_90"):  # what it gives is nobody's promise
        run(binary(operator.floordiv), columns(rows, dtype))
        run(binary(operator.mod), columns(rows, dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", ["shl", "shr"])
def test_shifts(name: str, dtype: torch.dtype) -> None:
    bits = torch.iinfo(dtype).bits
    rows = list(itertools.product(edges_of(dtype), [0, 1, bits // 2, bits - 1]))
    with interpret("sm_90"):
        results = run(binary(OPERATORS[name]), columns(rows, dtype))
    assert results.tolist() == [wrapped(OPERATORS[name](a, by), dtype) for a, by in rows]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", ["shl", "shr"])
def test_shifts_beyond_the_width_leave_the_sign_at_most(name: str, dtype: torch.dtype) -> None:
    bits = torch.iinfo(dtype).bits
    rows = list(itertools.product(edges_of(dtype), [bits, bits + 1, 100]))
    with interpret("sm_90"):
        results = run(binary(OPERATORS[name]), columns(rows, dtype))
    assert results.tolist() == [-1 if name == "shr" and a < 0 else 0 for a, _ in rows]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize(
    "compare", [operator.lt, operator.ge, ct.maximum, ct.minimum], ids=lambda f: f.__name__
)
def test_order_is_that_of_the_type(compare: Any, dtype: torch.dtype) -> None:
    rows = list(itertools.product(edges_of(dtype), repeat=2))
    chooses = {ct.maximum: max, ct.minimum: min}.get(compare)
    with interpret("sm_90"):
        results = run(binary(compare), columns(rows, dtype), None if chooses else torch.bool)
    reference = chooses or compare
    assert results.tolist() == [reference(a, b) for a, b in rows]


@pytest.mark.parametrize("dtype", [dtype for dtype in INTEGERS if dtype.is_signed], ids=str)
def test_negation_and_size_of_the_least_number_wrap(dtype: torch.dtype) -> None:
    rows = [(a,) for a in edges_of(dtype)]
    with interpret("sm_90"):
        negative = run(unary(operator.neg), columns(rows, dtype))
        size = run(unary(abs), columns(rows, dtype))
    assert negative.tolist() == [wrapped(-a, dtype) for (a,) in rows]
    assert size.tolist() == [wrapped(abs(a), dtype) for (a,) in rows]
