"""Floating-point formats, as far as rounding into them is concerned. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class FloatFormat:
    """A binary floating-point format."""

    name: str
    """torch's name of the dtype; "tfloat32" has none in torch and exists only inside tensor cores."""
    precision: int
    """Bits of the significand, the implicit one included."""
    min_exponent: int
    """Exponent of the smallest normal number; below it the spacing stays the same."""
    max_finite: float
    """Largest finite value."""
    eight_bit: bool = False
    """Whether overflow is a matter of the conversion: fp8 saturates in some, and is Inf or NaN in others."""

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of one round-to-nearest: half the spacing at 1."""
        return math.ldexp(1.0, -self.precision)


def _ieee(name: str, precision: int, max_exponent: int) -> FloatFormat:
    largest = math.ldexp(2.0 - math.ldexp(1.0, 1 - precision), max_exponent)
    return FloatFormat(name=name, precision=precision, min_exponent=1 - max_exponent, max_finite=largest)


# IEEE 754-2019 table 3.5 for the first three; bfloat16 and tfloat32 have float32's exponents;
# fp8: Micikevicius et al. 2022, "FP8 formats for deep learning" (e4m3 gives its Inf codes to numbers).
FLOAT64 = _ieee("float64", 53, 1023)
FLOAT32 = _ieee("float32", 24, 127)
FLOAT16 = _ieee("float16", 11, 15)
BFLOAT16 = _ieee("bfloat16", 8, 127)
TFLOAT32 = _ieee("tfloat32", 11, 127)
FLOAT8_E4M3FN = FloatFormat(
    name="float8_e4m3fn", precision=4, min_exponent=-6, max_finite=448.0, eight_bit=True
)
FLOAT8_E5M2 = FloatFormat(
    name="float8_e5m2", precision=3, min_exponent=-14, max_finite=57344.0, eight_bit=True
)

_ALL = (FLOAT64, FLOAT32, FLOAT16, BFLOAT16, TFLOAT32, FLOAT8_E4M3FN, FLOAT8_E5M2)
FORMATS = {target.name: target for target in _ALL}
