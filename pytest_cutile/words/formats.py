"""Floating-point formats: what they are called, and what they hold. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class FloatFormat:
    """A binary floating-point format."""

    name: str
    """torch's name of the dtype; it lacks "float4_e2m1fn", and "tfloat32", which only tensor cores have."""
    short_name: str
    """Name in the names of cases."""
    tile_ir: str
    """Its name in Tile IR."""
    aliases: tuple[str, ...] = ()
    """Other names that `resolve_dtype` takes."""
    bits: int
    """Width of a value; that of tfloat32 does not count the low bits that tensor cores ignore."""
    precision: int
    """Bits of the significand, the implicit one included."""
    min_exponent: int
    """Exponent of the smallest normal number; below it the spacing stays the same."""
    max_finite: float
    """Largest finite value."""
    has_infinity: bool = True
    """False: the codes of Inf and of most NaNs are numbers, and one NaN of each sign is left at most."""
    saturates: bool = False
    """Whether what is too large becomes the largest finite value, at least in some conversions."""

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of one round-to-nearest: half the spacing at 1."""
        return math.ldexp(1.0, -self.precision)


def _format(
    name: str, short_name: str, tile_ir: str, *, bits: int, precision: int, **others: Any
) -> FloatFormat:
    """Return a format with the exponents and the largest value of IEEE 754, unless `others` say otherwise."""
    max_exponent = 2 ** (bits - precision - 1) - 1
    max_finite = math.ldexp(2.0 - math.ldexp(1.0, 1 - precision), max_exponent)
    limits = {"min_exponent": 1 - max_exponent, "max_finite": max_finite, **others}
    return FloatFormat(
        name=name, short_name=short_name, tile_ir=tile_ir, bits=bits, precision=precision, **limits
    )


# IEEE 754-2019 table 3.5 for the first three; bfloat16 and tfloat32 have float32's exponents;
# fp8: Micikevicius et al. 2022, "FP8 formats for deep learning" (e4m3 gives its Inf codes to numbers);
# the last two: OCP Microscaling Formats (MX) Specification 1.0, 2023 (e8m0, for scales, has no sign).
FLOAT64 = _format("float64", "fp64", "f64", aliases=("fp64", "f64", "double"), bits=64, precision=53)
FLOAT32 = _format("float32", "fp32", "f32", aliases=("fp32", "f32", "float"), bits=32, precision=24)
FLOAT16 = _format("float16", "fp16", "f16", aliases=("fp16", "f16", "half"), bits=16, precision=11)
BFLOAT16 = _format("bfloat16", "bf16", "bf16", aliases=("bf16",), bits=16, precision=8)
TFLOAT32 = _format("tfloat32", "tf32", "tf32", bits=19, precision=11)
FLOAT8_E4M3FN = _format(
    *("float8_e4m3fn", "e4m3fn", "f8E4M3FN"),
    aliases=("fp8_e4m3", "e4m3", "float8_e4m3"),
    bits=8,
    precision=4,
    max_finite=448.0,
    has_infinity=False,
    saturates=True,
)
FLOAT8_E5M2 = _format(
    "float8_e5m2", "e5m2", "f8E5M2", aliases=("fp8_e5m2", "e5m2"), bits=8, precision=3, saturates=True
)
FLOAT8_E8M0FNU = _format(
    *("float8_e8m0fnu", "e8m0fnu", "f8E8M0FNU"),
    bits=8,
    precision=1,
    min_exponent=-127,
    max_finite=2.0**127,
    has_infinity=False,
    saturates=True,
)
FLOAT4_E2M1FN = _format(
    *("float4_e2m1fn", "e2m1fn", "f4E2M1FN"),
    bits=4,
    precision=2,
    max_finite=6.0,
    has_infinity=False,
    saturates=True,
)

_CHECKED = (FLOAT64, FLOAT32, TFLOAT32, FLOAT16, BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2)
FORMATS = {target.name: target for target in _CHECKED}
"""The formats that checks and rates know, by torch's name, in the order that messages list them."""
BY_TILE_IR = {target.tile_ir: target for target in (*_CHECKED, FLOAT8_E8M0FNU, FLOAT4_E2M1FN)}
"""All formats, by their names in Tile IR."""
