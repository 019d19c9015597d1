"""Arithmetic on floats and integers, comparisons, logic."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch

from pytest_cutile.tile.interpreter.frames import Frame
from pytest_cutile.tile.interpreter.ir import Op, Tile
from pytest_cutile.tile.interpreter.machine import Machine, operation
from pytest_cutile.tile.interpreter.ops.rounding import (
    NEAREST,
    canonical_nan,
    flush,
    round_result,
    signed_zero,
    to_odd,
    two_product,
    two_sum,
)
from pytest_cutile.tile.interpreter.values import moved

_BITS = {torch.bool: 1, torch.int8: 8, torch.int16: 16, torch.int32: 32, torch.int64: 64}


# -- floats -------------------------------------------------------------------------------------------


_FloatHandler = Callable[[Machine, Frame, Op], torch.Tensor]


def float_operation(*names: str) -> Callable[[_FloatHandler], _FloatHandler]:
    """Register what computes floats; its NaN is canonical."""

    def register(handler: _FloatHandler) -> _FloatHandler:
        operation(*names)(lambda machine, frame, op: canonical_nan(handler(machine, frame, op)))
        return handler

    return register


def _two(frame: Frame, op: Op) -> tuple[torch.Tensor, torch.Tensor]:
    return frame[op.operands["lhs"]], frame[op.operands["rhs"]]


@float_operation("addf", "subf", "mulf", "divf")
def _arithmetic(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    compute = op.name.removesuffix("f")
    lhs, rhs = _two(frame, op)
    ftz, mode = op.attributes["ftz"], op.attributes["rounding"]
    lhs, rhs = flush(lhs, ftz=ftz), flush(rhs, ftz=ftz)
    if mode in NEAREST:
        return flush(getattr(torch, compute)(lhs, rhs), ftz=ftz)
    a, b = lhs.double(), rhs.double()
    if compute == "div":
        wide = a / b
        back, lost = two_product(wide, b)
        error = (a - back - lost) * torch.copysign(torch.ones_like(b), b)
    elif compute == "mul":
        wide, error = two_product(a, b)
    else:
        term = b if compute == "add" else -b
        wide, error = two_sum(a, term)
        wide = signed_zero(wide, a, term, mode)
    if lhs.dtype == torch.float64:
        _settle_extremes(op.name, a, b, wide, error)
    return flush(round_result(wide, error, lhs.dtype, mode), ftz=ftz)


_EXACTLY = {"addf": operator.add, "subf": operator.sub, "mulf": operator.mul, "divf": operator.truediv}
_ORDINARY = (2.0**-900, 2.0**900)
"""Between these, what a float64 product or quotient lacks is a float64 itself."""


def _settle_extremes(
    name: str, lhs: torch.Tensor, rhs: torch.Tensor, wide: torch.Tensor, error: torch.Tensor
) -> None:
    """Set right, in place, what results of float64 lack where they nearly over- or underflow."""
    least, largest = _ORDINARY
    lhs, rhs = lhs.expand(wide.shape), rhs.expand(wide.shape)
    sizes = [tensor.abs() for tensor in (lhs, rhs, wide)]
    extreme = torch.stack([(size < least) | (size > largest) for size in sizes]).any(dim=0)
    exact = (lhs == 0) | (rhs == 0)
    lanes = (extreme & lhs.isfinite() & rhs.isfinite() & ~exact).nonzero()
    for lane in map(tuple, lanes.tolist()):
        truth = _EXACTLY[name](Fraction(lhs[lane].item()), Fraction(rhs[lane].item()))
        if wide[lane].isinf():  # of what is finite: beyond the largest number
            wide[lane] = math.copysign(torch.finfo(torch.float64).max, wide[lane])
        rest = truth - Fraction(wide[lane].item())
        error[lane] = (rest > 0) - (rest < 0)


@float_operation("fma")
def _fma(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    ftz, mode = op.attributes["ftz"], op.attributes["rounding"]
    lhs, rhs, acc = (flush(frame[op.operands[name]], ftz=ftz) for name in ("lhs", "rhs", "acc"))
    a, b, c = lhs.double(), rhs.double(), acc.double()
    if acc.dtype == torch.float64:
        # Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008.
        product, low = two_product(a, b)
        carried, rest = two_sum(c, low)
        high, middle = two_sum(product, carried)
        wide, error = two_sum(high, to_odd(*two_sum(rest, middle)))
        plain = a * b + c
        there = wide.isfinite() & plain.isfinite()
        wide, error = torch.where(there, wide, plain), torch.where(there, error, torch.zeros_like(error))
    else:
        wide, error = two_sum(a * b, c)  # the product of two narrower floats is exact in float64
    wide = torch.where(wide == 0, signed_zero(a * b + c, a * b, c, mode), wide)
    return flush(round_result(wide, error, acc.dtype, mode), ftz=ftz)


@float_operation("remf")
def _remf(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    lhs, rhs = _two(frame, op)
    wide = torch.float64 if lhs.dtype == torch.float64 else torch.float32
    with np.errstate(invalid="ignore"):  # torch's gives NaN where the quotient overflows
        return torch.from_numpy(np.fmod(lhs.to(wide).numpy(), rhs.to(wide).numpy())).to(lhs.dtype)


@float_operation("maxf", "minf")
def _extreme(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    lhs, rhs = (flush(tensor, ftz=op.attributes["ftz"]) for tensor in _two(frame, op))
    largest = op.name == "maxf"
    if op.attributes["propagate_nan"]:
        result = (torch.maximum if largest else torch.minimum)(lhs, rhs)
    else:
        # Of a signalling NaN and a number, fmax of C makes NaN, a GPU the number.
        result = (torch.maximum if largest else torch.minimum)(
            torch.where(lhs.isnan(), rhs, lhs), torch.where(rhs.isnan(), lhs, rhs)
        )
    # Zeros are ordered by their sign.
    if not result.all():
        zeros = (lhs == 0) & (rhs == 0)
        signed = lhs + rhs if largest else -(-lhs + -rhs)
        result = torch.where(zeros, signed, result)
    return result


@operation("negf")
def _negf(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    return -frame[op.operands["source"]]


@operation("absf")
def _absf(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    return torch.abs(frame[op.operands["source"]])


def _without_overflow(name: str, value: torch.Tensor) -> torch.Tensor:
    """Compute sinh or cosh; torch's are infinite where the exponential overflows and half of it does not."""
    root = torch.exp(value.abs() / 2)
    large = root / 2 * root
    plain = getattr(torch, name)(value)
    large = torch.copysign(large, value) if name == "sinh" else large
    return torch.where(plain.isinf(), large, plain)


_FUNCTIONS = {
    **{name: getattr(torch, name) for name in ("exp", "exp2", "log", "log2", "rsqrt")},
    **{name: getattr(torch, name) for name in ("sin", "cos", "tan", "tanh")},
    **{name: functools.partial(_without_overflow, name) for name in ("sinh", "cosh")},
}


@float_operation(*_FUNCTIONS)
def _function(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    ftz = op.attributes.get("ftz", False)
    source = flush(frame[op.operands["source"]], ftz=ftz)
    # The last bits of float32 functions are the processor's; rounded from float64 they are not.
    return flush(_FUNCTIONS[op.name](source.double()).to(source.dtype), ftz=ftz)


@float_operation("floor", "ceil")
def _whole(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    result: torch.Tensor = getattr(torch, op.name)(frame[op.operands["source"]])
    return result


@float_operation("sqrt")
def _sqrt(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    ftz, mode = op.attributes["ftz"], op.attributes["rounding"]
    source = flush(frame[op.operands["source"]], ftz=ftz)
    exact = source.double()
    # So that the square of the root does not underflow; the root is then shifted back.
    small = exact < _ORDINARY[0]
    exact = torch.where(small, exact * 2.0**200, exact)
    with np.errstate(invalid="ignore"):
        wide = torch.from_numpy(np.sqrt(exact.numpy()))  # torch's is off by a unit in the last place at times
    square, lost = two_product(wide, wide)
    error = (exact - square - lost).nan_to_num(0.0, 0.0, 0.0)
    wide = torch.where(small, wide * 2.0**-100, wide)
    return flush(round_result(wide, error, source.dtype, mode), ftz=ftz)


@float_operation("atan2")
def _atan2(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    lhs, rhs = _two(frame, op)
    return torch.atan2(lhs.double(), rhs.double()).to(lhs.dtype)


@float_operation("fpowf", "fpowi")
def _power(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    source, exponent = frame[op.operands["source"]], frame[op.operands["exponent"]]
    return torch.pow(source.double(), exponent.double()).to(source.dtype)


@operation("cmpf")
def _cmpf(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    lhs, rhs = _two(frame, op)
    nan = lhs.isnan() | rhs.isnan()
    result = _compare(op.attributes["predicate"], lhs, rhs)
    return result & ~nan if op.attributes["ordered"] == "ordered" else result | nan


def _compare(predicate: str, lhs: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
    compute = {
        "equal": torch.eq,
        "not_equal": torch.ne,
        "less": torch.lt,
        "less_equal": torch.le,
        "greater": torch.gt,
        "greater_equal": torch.ge,
    }[predicate]
    return compute(lhs, rhs)


# -- integers -----------------------------------------------------------------------------------------


def bits_of(value: torch.Tensor) -> int:
    """Return the width of an integer tile in bits."""
    return _BITS[value.dtype]


def unsigned(value: torch.Tensor) -> torch.Tensor:
    """Return integers of at most 32 bits, read as unsigned, as int64."""
    return value.to(torch.int64) & ((1 << bits_of(value)) - 1)


def ordered_unsigned(value: torch.Tensor) -> torch.Tensor:
    """Return integers whose signed order is the unsigned order of `value`."""
    if value.dtype == torch.bool:
        return value.to(torch.int8)
    return value ^ torch.iinfo(value.dtype).min


def wrap(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (value & 1) != 0 if dtype == torch.bool else value.to(dtype)


@operation("addi", "subi", "muli")
def _wrapping(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    lhs, rhs = _two(frame, op)
    if lhs.dtype == torch.bool:
        return torch.logical_and(lhs, rhs) if op.name == "muli" else torch.logical_xor(lhs, rhs)
    if op.name == "muli":
        return lhs * rhs
    return lhs + rhs if op.name == "addi" else lhs - rhs


@operation("negi")
def _negi(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    source = frame[op.operands["source"]]
    return source if source.dtype == torch.bool else -source


@operation("absi")
def _absi(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    source = frame[op.operands["source"]]
    return source if source.dtype == torch.bool else source.abs()


@operation("mulhii")
def _mulhii(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    lhs, rhs = _two(frame, op)
    width = bits_of(lhs)
    if width < 32:  # noqa: PLR2004
        return wrap(unsigned(lhs) * unsigned(rhs) >> width, lhs.dtype)
    half = width // 2
    mask = (1 << half) - 1
    if width == 32:  # noqa: PLR2004
        lhs, rhs = unsigned(lhs), unsigned(rhs)
    a, b, c, d = (lhs >> half) & mask, lhs & mask, (rhs >> half) & mask, rhs & mask
    middle = a * d + _high(b * d, half, mask)
    low = (middle & mask) + b * c
    high = a * c + _high(middle, half, mask) + _high(low, half, mask)
    return wrap(high, _two(frame, op)[0].dtype)


def _high(value: torch.Tensor, half: int, mask: int) -> torch.Tensor:
    return (value >> half) & mask


@operation("divi")
def _divi(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    lhs, rhs = _two(frame, op)
    if op.attributes["signed"] == "unsigned":
        return _unsigned_division(lhs, rhs, op.attributes["rounding"])[0]
    # Nothing says what a division by zero is. This is what an H200 makes of it, here and below: the quotient
    # has all bits set before it is rounded, and the rest is then the dividend.
    zero = rhs == 0
    divisor = torch.where(zero, torch.ones_like(rhs), rhs)
    overflows = (divisor == -1) & (lhs == torch.iinfo(lhs.dtype).min)
    divisor = torch.where(overflows, torch.ones_like(rhs), divisor)
    rounding = op.attributes["rounding"]
    if rounding == "positive_inf":
        quotient = -torch.div(-lhs, divisor, rounding_mode="floor")
        quotient = torch.where(lhs == torch.iinfo(lhs.dtype).min, _ceil_of_lowest(lhs, divisor), quotient)
        by_zero = (lhs > 0).to(lhs.dtype) - 1
    else:
        how = "floor" if rounding == "negative_inf" else "trunc"
        quotient = torch.div(lhs, divisor, rounding_mode=how)
        by_zero = -1 - ((lhs < 0) & (how == "floor")).to(lhs.dtype)
    return torch.where(zero, by_zero, quotient)


def _ceil_of_lowest(lhs: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
    quotient = torch.div(lhs, divisor, rounding_mode="floor")
    return quotient + (quotient * divisor != lhs).to(lhs.dtype)


@operation("remi")
def _remi(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    lhs, rhs = _two(frame, op)
    if op.attributes["signed"] == "unsigned":
        return _unsigned_division(lhs, rhs, "zero")[1]
    safe = torch.where((rhs == 0) | (rhs == -1), torch.ones_like(rhs), rhs)
    return torch.where(rhs == 0, torch.full_like(lhs, -1), torch.fmod(lhs, safe))


def _unsigned_division(
    lhs: torch.Tensor, rhs: torch.Tensor, rounding: str
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = lhs.dtype
    if bits_of(lhs) < 64:  # noqa: PLR2004
        a, b = unsigned(lhs), unsigned(rhs)
        safe = torch.where(b == 0, torch.ones_like(b), b)
        quotient = torch.div(a, safe, rounding_mode="floor")
        rest = a - quotient * safe
    else:
        a, b = lhs, torch.where(rhs == 0, torch.ones_like(rhs), rhs)
        # Halved, it fits the signed range; the quotient is then at most one too small (Hacker's Delight 9-3).
        quotient = torch.div((a >> 1) & (2**63 - 1), b.clamp(min=1), rounding_mode="floor") << 1
        quotient = torch.where(b < 0, torch.zeros_like(quotient), quotient)
        rest = a - quotient * b
        more = ordered_unsigned(rest) >= ordered_unsigned(b)
        quotient, rest = quotient + more.to(dtype), torch.where(more, rest - b, rest)
        safe = b
    if rounding == "positive_inf":
        quotient = quotient + (rest != 0).to(quotient.dtype)
    zero = rhs == 0
    all_bits = torch.full_like(lhs, -1) if dtype != torch.bool else zero
    by_zero = torch.zeros_like(lhs) if rounding == "positive_inf" else all_bits
    return torch.where(zero, by_zero, wrap(quotient, dtype)), torch.where(zero, all_bits, wrap(rest, dtype))


@operation("maxi", "mini")
def _extreme_integer(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    lhs, rhs = _two(frame, op)
    keys = (
        (ordered_unsigned(lhs), ordered_unsigned(rhs))
        if op.attributes["signed"] == "unsigned"
        else (lhs, rhs)
    )
    left = keys[0] >= keys[1] if op.name == "maxi" else keys[0] <= keys[1]
    return torch.where(left, lhs, rhs)


@operation("cmpi")
def _cmpi(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    lhs, rhs = _two(frame, op)
    if op.attributes["signed"] == "unsigned":
        lhs, rhs = ordered_unsigned(lhs), ordered_unsigned(rhs)
    elif lhs.dtype == torch.bool:  # one bit, and it is the sign
        lhs, rhs = -lhs.to(torch.int8), -rhs.to(torch.int8)
    return _compare(op.attributes["predicate"], lhs, rhs)


@operation("andi", "ori", "xori")
def _bitwise(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    compute = {"andi": torch.bitwise_and, "ori": torch.bitwise_or, "xori": torch.bitwise_xor}[op.name]
    return compute(*_two(frame, op))


@operation("shli", "shri")
def _shift(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    lhs, rhs = _two(frame, op)
    width = bits_of(lhs)
    if width == 64:  # noqa: PLR2004
        rhs = rhs & 0xFFFFFFFF  # PTX, `shl`: the count has 32 bits, and the rest of it is dropped
    beyond = ordered_unsigned(rhs) >= ordered_unsigned(torch.full_like(rhs, width))
    by = torch.where(beyond, torch.zeros_like(rhs), rhs)
    if op.name == "shli":
        return torch.where(beyond, torch.zeros_like(lhs), lhs << by)
    if op.attributes["signed"] == "signed":
        return torch.where(beyond, lhs >> (width - 1), lhs >> by)
    mask = torch.where(by == 0, torch.full_like(lhs, -1), ~(torch.full_like(lhs, -1) << (width - by)))
    return torch.where(beyond, torch.zeros_like(lhs), (lhs >> by) & mask)


@operation("select")
def _select(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    condition = frame[op.operands["condition"]]
    (type_,) = op.result_types
    assert isinstance(type_, Tile)
    if condition.dim() < len(type_.shape) + 1:
        condition = condition.reshape(condition.shape[0], *[1] * len(type_.shape))
    return moved(
        lambda yes, no: torch.where(condition, yes, no),
        frame[op.operands["if_true"]],
        frame[op.operands["if_false"]],
    )
