"""Rounding from first principles, in Python's integers: what the interpreter is compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Format:
    """A format: bits of fraction, exponent of the least normal number, and the largest number."""

    fraction_bits: int
    least_exponent: int
    largest: Fraction
    saturates: bool = False


def ieee(fraction_bits: int, least_exponent: int) -> Format:
    """Return a format of IEEE 754's kind."""
    largest = (2 - Fraction(1, 2**fraction_bits)) * Fraction(2) ** (1 - least_exponent)
    return Format(fraction_bits, least_exponent, largest)


F64, F32, F16 = ieee(52, -1022), ieee(23, -126), ieee(10, -14)
BF16, TF32 = ieee(7, -126), ieee(10, -126)
E4M3 = Format(3, -6, Fraction(448), saturates=True)
E5M2 = Format(2, -14, Fraction(57344), saturates=True)


def rounded(value: Fraction, to: Format, mode: str) -> float:
    """Round a number that is not zero in the mode "RN", "RZ", "RM", "RP" or "RA" (ties away from zero)."""
    sign, size = (-1 if value < 0 else 1), abs(value)
    exponent = max(_exponent(size), to.least_exponent) - to.fraction_bits
    quantum = Fraction(2) ** exponent
    whole, rest = divmod(size, quantum)
    half = quantum / 2
    up = {
        "RN": rest > half or (rest == half and whole % 2 == 1),
        "RA": rest >= half,
        "RZ": False,
        "RM": rest > 0 and sign < 0,
        "RP": rest > 0 and sign > 0,
    }[mode]
    result = (whole + up) * quantum
    if result > to.largest:
        towards_zero = mode == "RZ" or (mode == "RM" and sign > 0) or (mode == "RP" and sign < 0)
        if not to.saturates and not towards_zero:
            return math.copysign(math.inf, sign)
        result = to.largest
    return math.copysign(float(result), sign)


def _exponent(size: Fraction) -> int:
    """Return the e for which 2**e <= size < 2**(e + 1)."""
    guess = size.numerator.bit_length() - size.denominator.bit_length()
    return guess if Fraction(2) ** guess <= size else guess - 1


def root(value: Fraction, to: Format, mode: str) -> float:
    """Round the square root of a positive number."""
    # With 2 * 80 more bits, and whether anything is left of it, it rounds as the root itself.
    shift = 2 * (1200 + 80)
    scaled = (value.numerator << shift) // value.denominator
    whole = math.isqrt(scaled)
    sticky = whole * whole * value.denominator != value.numerator << shift
    near = Fraction(2 * whole + sticky, 2 << (shift // 2))
    return rounded(near, to, mode)
