"""Rounding float64 values to nearest even in any format, in float64 arithmetic.

torch's own casts differ between versions and devices for fp8, and have no tf32; these do not.
"""

from __future__ import annotations

import torch

from pytest_cutile.words.formats import FloatFormat

_BIAS = 1023
_MANTISSA_BITS = 52


def spacing(values: torch.Tensor, target: FloatFormat) -> torch.Tensor:
    """Return how far apart neighbours of `target` are at each float64 value (NaN, Inf: at the largest)."""
    bits = values.contiguous().view(torch.int64)
    exponent = ((bits >> _MANTISSA_BITS) & 0x7FF) - _BIAS
    exponent.clamp_(target.min_exponent, -target.min_exponent + 2)
    # a power of two, assembled from its exponent: exact and much cheaper than exp2
    exponent += _BIAS + 1 - target.precision
    exponent.clamp_(min=1)  # float64's own subnormals
    return (exponent << _MANTISSA_BITS).view(torch.float64)


def convert(values: torch.Tensor, target: FloatFormat) -> torch.Tensor:
    """Round float64 `values` as kernels convert them: 8-bit formats saturate."""
    return round_to(values, target, saturate=target.saturates)


def round_to(values: torch.Tensor, target: FloatFormat, *, saturate: bool = False) -> torch.Tensor:
    """Return float64 `values` rounded to nearest even in `target`, still as float64.

    Overflow gives Inf, or NaN in a format without Inf (e4m3); with `saturate` the largest finite value.
    """
    if target.name == "float64":
        return values.clone()
    unit = spacing(values, target)
    rounded = values.div(unit).round_().mul_(unit)  # torch.round rounds halves to even; the division is exact
    largest = target.max_finite
    if saturate:
        return rounded.clamp_(-largest, largest)
    overflow = rounded.abs() > largest
    beyond = torch.full_like(rounded, torch.inf if target.has_infinity else torch.nan)
    return torch.where(overflow, beyond.copysign_(rounded), rounded)
