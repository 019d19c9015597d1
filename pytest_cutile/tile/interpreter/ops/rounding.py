"""Rounding as Tile IR asks for it: modes, flushed denormals, saturation, formats that torch lacks.

What is rounded is float64. Where float64 cannot hold a result either, it holds the result *rounded to odd*:
cut off, and the last bit set if anything was cut off. Rounding that to a format with two bits less is the
same as rounding the result itself, in any mode (Boldo and Melquiond, "When double rounding is odd", 2005).
"""

from __future__ import annotations

import math

import torch

from pytest_cutile.tile.tensors.dtypes import name_of
from pytest_cutile.words.formats import FLOAT64, FORMATS, FloatFormat

_F32_LARGEST_DENORMAL = 2.0**-126 - 2.0**-149
_F64_BIAS = 1023
_F64_FRACTION_BITS = 52
_SPLITTER = 2.0**27 + 1
NEAREST = frozenset({"nearest_even", "approx", "full"})
"""Modes that round to the nearest value; "approx" and "full" promise less than that."""

_NAN_BITS = {
    torch.float32: (torch.int32, 0x7FFFFFFF),
    torch.float16: (torch.int16, 0x7FFF),
    torch.bfloat16: (torch.int16, 0x7FFF),
    torch.float64: (torch.int64, 0x7FF8000000000000),
    torch.float8_e4m3fn: (torch.int8, 0x7F),
    torch.float8_e5m2: (torch.int8, 0x7F),
}
"""The NaN that arithmetic makes: PTX's canonical one; of float64, for which PTX names none, the usual one."""


def canonical_nan(value: torch.Tensor) -> torch.Tensor:
    """Give every NaN the bits that a GPU gives it; those of a CPU differ by processor and vector lane."""
    if value.dtype not in _NAN_BITS:
        return value
    numbers = value.float() if value.itemsize == 1 else value
    if not numbers.sum().isnan():  # a fraction of the time that isnan takes of all
        return value
    integer, bits = _NAN_BITS[value.dtype]
    return value.contiguous().view(integer).masked_fill(numbers.isnan(), bits).view(value.dtype)


def flush(value: torch.Tensor, *, ftz: bool) -> torch.Tensor:
    """Replace denormal float32 by zero of the same sign if `ftz`."""
    if not ftz or value.dtype != torch.float32:
        return value
    return torch.copysign(torch.nn.functional.hardshrink(value, _F32_LARGEST_DENORMAL), value)


def round_to(value: torch.Tensor, target: FloatFormat, mode: str) -> torch.Tensor:
    """Round float64 to `target`, and return it as float64.

    NaN stays NaN; of a format that has none, the caller says what it is.
    """
    if target is FLOAT64:
        return value
    exponent = (torch.frexp(value)[1] - 1).clamp(min=target.min_exponent) - (target.precision - 1)
    quantum = (exponent.to(torch.int64) + _F64_BIAS << _F64_FRACTION_BITS).view(torch.float64)
    scaled = value / quantum
    if mode in NEAREST:
        whole = torch.round(scaled)
    elif mode == "nearest_away":
        whole = torch.trunc(scaled + torch.copysign(torch.full_like(scaled, 0.5), scaled))
    else:
        whole = {"zero": torch.trunc, "negative_inf": torch.floor, "positive_inf": torch.ceil}[mode](scaled)
    rounded = torch.where(value.isfinite(), torch.copysign(whole * quantum, value), value)
    beyond = rounded.abs() > target.max_finite
    if not beyond.any():
        return rounded
    top = torch.copysign(torch.full_like(rounded, target.max_finite), rounded)
    if target.saturates:
        return torch.where(beyond, top, rounded)
    # Rounded away from infinity, what is too large stays finite.
    stays = {
        "zero": torch.ones_like(beyond),
        "negative_inf": rounded > 0,
        "positive_inf": rounded < 0,
    }.get(mode, torch.zeros_like(beyond))
    infinite = torch.copysign(torch.full_like(rounded, math.inf), rounded)
    return torch.where(beyond & value.isfinite(), torch.where(stays, top, infinite), rounded)


def round_result(value: torch.Tensor, error: torch.Tensor, dtype: torch.dtype, mode: str) -> torch.Tensor:
    """Round a result to `dtype`; float64 `value` is the nearest to it, `error` has the sign of its rest."""
    if dtype != torch.float64:
        return round_to(to_odd(value, error), FORMATS[name_of(dtype)], mode).to(dtype)
    upwards, downwards = torch.full_like(value, math.inf), torch.full_like(value, -math.inf)
    up = (error > 0) & ((mode == "positive_inf") | ((mode == "zero") & (value < 0)))
    down = (error < 0) & ((mode == "negative_inf") | ((mode == "zero") & (value > 0)))
    value = torch.where(up & value.isfinite(), torch.nextafter(value, upwards), value)
    return torch.where(down & value.isfinite(), torch.nextafter(value, downwards), value)


def signed_zero(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor, mode: str) -> torch.Tensor:
    """Return `a + b`, given as `total`, with the sign that it has in this mode where it is zero."""
    if mode != "negative_inf":
        return total
    return torch.where((total == 0) & (a.signbit() != b.signbit()), -torch.zeros_like(total), total)


def to_odd(value: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """Return `value + error`, of which float64 `value` is the nearest, rounded to odd instead."""
    even = (value.view(torch.int64) & 1) == 0
    there = (error != 0) & value.isfinite() & error.isfinite()
    towards = torch.copysign(torch.full_like(value, math.inf), error)
    return torch.where(even & there, torch.nextafter(value, towards), value)


def two_sum(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the float64 nearest to `a + b`, and what it lacks (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def two_product(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the float64 nearest to `a * b`, and what it lacks (Dekker), if nothing over- or underflows."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error.nan_to_num(0.0, 0.0, 0.0)


def _halves(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scaled = value * _SPLITTER
    high = scaled - (scaled - value)
    return high, value - high


def round_to_tf32(value: torch.Tensor) -> torch.Tensor:
    """Round float32 to the 10 bits of fraction that tf32 has, ties to even."""
    bits = value.view(torch.int32)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF
    return torch.where(value.isfinite(), rounded.view(torch.float32), value)
