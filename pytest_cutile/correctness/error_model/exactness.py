"""What an exact run of a reference shows: what is in it, what gets rounded, and what is exact.

What is exact in a kernel's arithmetic, too, excuses no error: products and sums of small integers. Each
partial sum, in whatever order it is formed, is an integer that the accumulator holds. A kernel then has to
return the correctly rounded result, bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pytest_cutile.correctness.error_model.injection import Injector, inexact_in
from pytest_cutile.correctness.error_model.operators import (
    PRODUCTS,
    SUMS,
    base_name,
    is_exponential,
    is_float64,
    is_view,
    jumps,
    may_be_discontinuous,
)
from pytest_cutile.tensors.dtypes import format_of
from pytest_cutile.tensors.formats import FLOAT32, FloatFormat
from pytest_cutile.tensors.rounding import round_to
from pytest_cutile.tensors.trees import map_tensors, tensors_in

EIGHT_BIT_SUM = 2.0**13
"""Largest partial sum of 8-bit products that is exact: Hopper's tensor cores keep 13 fraction bits of it
(DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 3.3.2, says about 14 bits)."""
_PRODUCTS = frozenset({"mm", "bmm", "mv", "dot"})
_SUMS = frozenset({"sum", "add"})
_KEEPS_VALUES = frozenset(
    {
        *("clone", "_to_copy", "copy", "cat", "stack", "index", "index_select", "gather", "repeat", "flip"),
        *("_unsafe_view", "lift_fresh", "zeros", "zeros_like", "new_zeros", "neg", "abs", "relu", "roll"),
        *("maximum", "minimum", "amax", "amin", "tril", "triu", "constant_pad_nd"),
    }
)
_SAMPLE = 1 << 14  # elements
_SCALES = 16
_CHANCE = 4.0  # standard errors


class Observer(Injector):
    """Notes what there is: products, exponentials, discontinuities, what gets rounded, and what is exact."""

    def __init__(self, operands: FloatFormat) -> None:
        self.operands = operands
        self.has_products = self.has_exponentials = self.draws_numbers = self.computes = False
        self.has_discontinuities = False
        """Whether the reference rounds, compares, sorts or converts what it computes."""
        self.has_inexact_operands = False
        """Whether tensor cores have to round operands of a product."""
        self.common_rounding = 0.0
        """Relative error that rounding may give all operands of a product in common."""
        self.longest_sum = 1
        self.rounds_to: dict[str, None] = {}
        """Dtypes narrower than float32 that intermediate results are rounded to."""
        self._is_exact = True
        """Whether every operator so far was."""

    def is_exact(self, outputs: Any) -> bool:
        """Say whether these outputs are exact in a kernel's arithmetic, too.

        Only where matrices are multiplied: a reference that computes outside of torch shows no operators.
        """
        floats = [tensor for tensor in tensors_in(outputs) if tensor.dtype.is_floating_point]
        return self._is_exact and self.has_products and all(map(_is_whole, floats))

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = base_name(func)
        given = [argument for argument in args if is_float64(argument)]
        self.has_exponentials |= is_exponential(func, args)
        if self._is_exact and not is_view(func) and name not in _KEEPS_VALUES:
            self._is_exact = name != "mean" and add_exactly(func, args, kwargs, self.operands)
        if name in PRODUCTS:
            self.has_products = True
            # noise of a float32 rounding is part of the accumulation noise
            if self.operands.precision < FLOAT32.precision:
                self._see_operands(given)
        self.draws_numbers |= torch.Tag.nondeterministic_seeded in func.tags
        result = func(*args, **kwargs)
        self.computes |= bool(given)
        self.longest_sum = max(self.longest_sum, _count_terms(name, given, result))
        if may_be_discontinuous(func, args):
            self._see_discontinuity(name, tensors_in(result))
        return result

    def _see_discontinuity(self, name: str, results: Sequence[torch.Tensor]) -> None:
        self.has_discontinuities |= any(jumps(name, result) for result in results)
        for target in (format_of(result.dtype) for result in results):
            if target is not None and target.precision < FLOAT32.precision:
                self.rounds_to[target.name] = None

    def _see_operands(self, tensors: Sequence[torch.Tensor]) -> None:
        inexact = [tensor for tensor in tensors if bool(inexact_in(tensor, self.operands).any())]
        self.has_inexact_operands |= bool(inexact)
        shared = sum(common_rounding(tensor, self.operands) for tensor in inexact)
        self.common_rounding = max(self.common_rounding, shared)


def add_exactly(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], operands: FloatFormat, *, terms: float = 1.0
) -> bool:
    """Say whether an operator is a sum, a mean of `terms` or a matrix product, and exact in any order."""
    name = base_name(func)
    if name not in _PRODUCTS | _SUMS | {"mean"}:
        return False
    tensors = [argument for argument in args if isinstance(argument, torch.Tensor)]
    if kwargs.get("alpha", 1) != 1 or any(tensor.is_complex() for tensor in tensors):
        return False
    if not all(map(_is_whole, tensors)):
        return False
    if name in _PRODUCTS and not all(
        bool((round_to(tensor, operands) == tensor).all()) for tensor in tensors
    ):
        return False
    # No partial sum, in whatever order, is larger than the sum of the magnitudes.
    bound = func(*map_tensors(torch.Tensor.abs, args), **kwargs)
    largest = EIGHT_BIT_SUM if operands.eight_bit else 2.0**FLOAT32.precision
    return bound.numel() == 0 or bool(terms * bound.max() <= largest)


def _is_whole(tensor: torch.Tensor) -> bool:
    return bool((tensor == tensor.round()).all())


def _count_terms(name: str, operands: Sequence[torch.Tensor], result: Any) -> int:
    """Return how many terms each element of a sum or of a product of matrices has; 1 for anything else."""
    if not operands or not is_float64(result) or not result.numel():
        return 1
    if name in PRODUCTS - {"convolution"}:
        return operands[-2 if len(operands) > 1 else 0].shape[-1]
    return operands[0].numel() // result.numel() if name in SUMS else 1


def common_rounding(tensor: torch.Tensor, target: FloatFormat) -> float:
    """Return the relative error that all elements have in common when they are rounded to `target`.

    Where values lie close together, such as the probabilities of almost equal scores, their roundings have
    one sign. How large the error is depends on where between two numbers of the format they lie, and kernels
    scale them differently: it is the largest over an octave of scales, in the mean over the elements weighted
    by their squares, as far as that is more than chance.
    """
    flat = tensor.reshape(-1)
    flat = flat[:: flat.numel() // _SAMPLE | 1]
    scales = torch.exp2(torch.arange(_SCALES, dtype=flat.dtype, device=flat.device) / _SCALES)
    values = flat.abs() * scales[:, None]
    weight = values.square().sum(1)
    errors = (round_to(values, target) - values) * values
    chance = _CHANCE * errors.square().sum(1).sqrt()
    excess = (errors.sum(1).abs() - chance).clamp_(min=0.0) / weight
    return float(excess.nan_to_num_(nan=0.0, posinf=0.0).max())
