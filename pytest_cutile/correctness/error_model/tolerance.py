"""The terms of a comparison, and the error that rounding explains: how far from exact an element may be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pytest_cutile.tile.tensors.dtypes import format_of, resolve_dtype
from pytest_cutile.tile.tensors.trees import tensors_in
from pytest_cutile.words.formats import FLOAT32, FLOAT64, TFLOAT32, FloatFormat
from pytest_cutile.words.spec import CheckOptions
from pytest_cutile.words.statistics import t_quantile


@dataclass(frozen=True, kw_only=True)
class NumericsPolicy:
    """What a kernel may do beyond computing in float32 and rounding its operands and results once.

    Raises:
        ValueError: exp_error out of its range.
    """

    mid: FloatFormat | None = None
    """Format that intermediate results are rounded to; None where they stay in the accumulator's."""
    exp_error: float = 0.0
    """Relative error of exponentials and of the functions made of them, such as tanh and sigmoid."""
    fast_acc: bool = False
    """See `CheckOptions.fast_acc`."""

    def __post_init__(self) -> None:
        if not 0 <= self.exp_error < 1:
            raise ValueError(f"exp_error is a relative error, from 0 to below 1; got {self.exp_error!r}")

    def __bool__(self) -> bool:
        return self != NumericsPolicy()

    @property
    def is_noise(self) -> bool:
        """Whether it is measured as noise on the reference; the rest is part of the accumulator's model."""
        return self.mid is not None or self.exp_error > 0

    def __str__(self) -> str:
        """Return the options of `check_kernel`: 'mid="bfloat16"'."""
        parts = [] if self.mid is None else [f'mid="{self.mid.name}"']
        parts += [f"exp_error={self.exp_error:g}"] if self.exp_error else []
        return ", ".join([*parts, *(["fast_acc=True"] if self.fast_acc else [])])


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms that outputs are compared on."""

    reduction: int
    """Length of the longest sum behind one output element."""
    operands: FloatFormat
    """Format that operands of matrix products are rounded to."""
    policy: NumericsPolicy
    tolerance: tuple[float, float] | None
    """rtol and atol, given in place of the derived bound."""
    wide: bool
    """Whether floating inputs, but for single numbers, are all 64 bits wide."""
    may_narrow: bool
    """Whether none is, or the options say what operands are rounded to."""
    narrowest: FloatFormat | None = None
    """Format with the fewest significant bits of floating inputs; None without any."""

    @classmethod
    def of(cls, options: CheckOptions, inputs: Mapping[str, Any]) -> Terms:
        """Resolve the options of a check; raise ValueError for an impossible `precision` or `mid`."""
        dtypes = _floating_dtypes(inputs)
        mid = _format("mid", options.mid)
        if mid is FLOAT64:
            raise ValueError("mid is what intermediate results are rounded to, and nothing is to float64")
        narrowest = _narrowest(dtypes)
        given = options.rtol is not None or options.atol is not None
        return cls(
            reduction=options.reduction,
            # Tensor cores round operands to the coarsest floating input dtype.
            operands=_format("precision", options.precision) or narrowest or FLOAT32,
            policy=NumericsPolicy(mid=mid, exp_error=options.exp_error, fast_acc=options.fast_acc),
            tolerance=(options.rtol or 0.0, options.atol or 0.0) if given else None,
            wide=dtypes == {torch.float64},
            may_narrow=options.precision is not None or torch.float64 not in dtypes,
            narrowest=narrowest,
        )


def _floating_dtypes(inputs: Mapping[str, Any]) -> set[torch.dtype]:
    """Return the real floating dtypes of inputs; those of single numbers only if there are no others."""
    tensors = [one for one in tensors_in(dict(inputs)) if one.dtype.is_floating_point or one.is_complex()]
    large = [tensor for tensor in tensors if tensor.numel() > 1]
    return {tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype for tensor in large or tensors}


def _narrowest(dtypes: Iterable[torch.dtype]) -> FloatFormat | None:
    formats = [target for dtype in dtypes if (target := format_of(dtype)) is not None]
    return min(formats, key=lambda target: target.precision, default=None)


def _format(option: str, dtype: torch.dtype | str | None) -> FloatFormat | None:
    if dtype is None or dtype in (TFLOAT32.name, TFLOAT32.short_name):
        return None if dtype is None else TFLOAT32
    target = format_of(resolve_dtype(dtype))
    if target is None:
        raise ValueError(f"{option} must be a floating-point dtype or 'tfloat32', got {dtype!r}")
    return target


@dataclass(frozen=True, kw_only=True)
class ErrorModel:
    """How large an error an honest kernel may make before its output is rounded.

    For an element y whose backward-error noise is A (what rounding every operand in float32 does to y):

        P       = max(A, u |y|)              magnitude of the partial sums, times u
        sigma^2 = reduction / 3 * P^2        float32 accumulation: random signs, so sqrt(reduction)
                + short_variance * P^2       likewise in an accumulator of fewer bits
                + 4 A^2 + (8 u |y|)^2        the operands and a handful of approximate functions
                + operands^2 + policy^2
        bias    = drift * P                  tensor cores truncate once per instruction
                + drift_of_value * |y|       an accumulator of fewer bits truncates every product
        bound   = sigmas * sigma + 1.5 bias + underflow

    `operands` is the noise of operands that tensor cores round, `policy` that of what a `NumericsPolicy`
    allows besides; both are measured on the reference, as A is.
    """

    reduction: int
    unit: float = FLOAT32.unit_roundoff
    """Unit roundoff u of the accumulation."""
    drift: float = 0.0
    """Bias of the accumulator, in units of P."""
    drift_of_value: float = 0.0
    """Bias of the accumulator and of truncated operands, as a fraction of |y|."""
    short_variance: float = 0.0
    """Coefficient of P^2 for products that are truncated in an accumulator of fewer bits."""
    underflow: float = 0.0
    """Absolute error where y is not zero: the smallest normal number of the accumulation, below which
    exp2.approx.ftz and its like flush to zero (PTX ISA)."""

    sigmas: float
    """Standard deviations allowed (`sigmas_for`)."""

    @property
    def accumulation_variance(self) -> float:
        return self.reduction / 3.0 + self.short_variance

    operand_variance: float = 4.0
    """Coefficient of A^2: each operand may be rounded more than once (x log2(e), a scale)."""
    value_variance: float = 64.0
    """Coefficient of (u |y|)^2: exp2.approx, rsqrt.approx and division are each good to about 2 ulp."""


EXACT = ErrorModel(reduction=0, sigmas=0.0, operand_variance=0.0, value_variance=0.0)
"""Model of a computation without any error: the output has to be the exact value, rounded once."""

TENSOR_CORE_K = 16
"""Products that one tensor-core instruction sums before it truncates."""
TFLOAT32_K = 8
"""Products that one tensor-core instruction sums of tf32 operands before it truncates."""
LOSS = 1.1
"""Bias of an instruction, in units of u P: the largest measured on an H200, but for 1.65 of float16 if all
terms have one sign, which the margin of 1.5 covers (`python -m research.false_alarms --accumulators`)."""

SHORT_STEP = 2.0**-13
"""Hopper's accumulator of 8-bit products keeps 13 fraction bits of the largest addend (about 14 bits:
DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 3.3.2) and cuts off what is below."""
SHORT_SUM = 128
"""Longest sum in it, if a kernel does not say `fast_acc`."""
SHORT_LOSS = 1.0 / 7.0
"""Bias of one of its additions, in steps of |y|: measured 0.143 at most, if all terms have one sign."""


FALSE_ALARM = 1e-7
"""Probability that one test rejects an honest output, if its noise were as large as the model allows."""


def sigmas_for(elements: int) -> float:
    """Return how many standard deviations none of `elements` normal errors exceeds, but for `FALSE_ALARM`.

    5.3 for one element, 6.8 for 10^4, 8.1 for 2.7 * 10^8 (Bonferroni's inequality).
    """
    return -t_quantile(FALSE_ALARM / (2 * max(elements, 1)), math.inf)


def model_for(
    reduction: int,
    *,
    accumulation: FloatFormat,
    operands: FloatFormat | None,
    short_sums: bool,
    elements: int,
    fast_acc: bool = False,
) -> ErrorModel:
    """Return the model of a kernel that accumulates `reduction` terms in the `accumulation` format.

    `operands` is the format of the operands of matrix products, None without any. `short_sums` says whether
    the device sums 8-bit products in a short accumulator (compute capability 9), `fast_acc` whether it sums
    all of them there. The output has `elements`.
    """
    drift = drift_of_value = short_variance = 0.0
    if operands is not None and accumulation is FLOAT32:
        drift = LOSS * reduction / (TFLOAT32_K if operands is TFLOAT32 else TENSOR_CORE_K)
        if operands is TFLOAT32:  # hardware may drop the low bits of both operands instead of rounding them
            drift_of_value = 4.0 * operands.unit_roundoff
        if short_sums:
            terms = reduction if fast_acc else min(reduction, SHORT_SUM)
            # What is cut off is uniform within a step of the largest addend, which is at most P.
            short_variance = terms / 3.0 * (SHORT_STEP / accumulation.unit_roundoff) ** 2
            drift_of_value = SHORT_LOSS * terms * SHORT_STEP
    return ErrorModel(
        reduction=reduction,
        sigmas=sigmas_for(elements),
        unit=accumulation.unit_roundoff,
        drift=drift,
        short_variance=short_variance,
        drift_of_value=drift_of_value,
        underflow=math.ldexp(1.0, accumulation.min_exponent),
    )
