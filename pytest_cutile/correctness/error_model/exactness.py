"""What an exact run of a reference shows: what is in it, what gets rounded, and what is exact.

What is exact in a kernel's arithmetic, too, excuses no error: products and sums of small integers. Each
partial sum, in whatever order it is formed, is an integer that the accumulator holds. A kernel then has to
return the correctly rounded result, bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pytest_cutile.correctness.error_model.injection import Injector, inexact_in
from pytest_cutile.correctness.error_model.operators import (
    DISCONTINUOUS,
    MOVES,
    PRODUCTS,
    SELECTIONS,
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
from pytest_cutile.tensors.trees import map_tensors, named_tensors

EIGHT_BIT_SUM = 2.0**13
"""Largest partial sum of 8-bit products that is exact: Hopper's tensor cores keep 13 fraction bits of it
(DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 3.3.2, says about 14 bits)."""
_PRODUCTS = frozenset({"mm", "bmm", "mv", "dot"})
_SUMS = frozenset({"sum", "add"})
_ELEMENTWISE = frozenset({"add", "sub", "rsub", "mul", "div", "square", "clamp", "clamp_min", "clamp_max"})
_DECIDED = MOVES | SELECTIONS | DISCONTINUOUS
_KEEPS_VALUES = frozenset(
    {
        *("clone", "_to_copy", "copy", "cat", "stack", "index", "index_select", "gather", "repeat", "flip"),
        *("_unsafe_view", "lift_fresh", "zeros", "zeros_like", "new_zeros", "neg", "abs", "relu", "roll"),
        *("maximum", "minimum", "amax", "amin", "tril", "triu", "constant_pad_nd"),
    }
)


class Exactness:
    """Follows a reference, operator by operator, for as long as all of it is exact."""

    def __init__(self, operands: FloatFormat) -> None:
        self.holds = True
        """Whether every operator so far was."""
        self._has_products = False
        self._operands = operands
        self._largest = EIGHT_BIT_SUM if operands.eight_bit else 2.0**FLOAT32.precision

    def see(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Follow one aten operator that is no view, called `name`, with these arguments."""
        self._has_products |= name in _PRODUCTS
        if self.holds and name not in _KEEPS_VALUES:
            self.holds = name in _PRODUCTS | _SUMS and self.adds_exactly(
                name in _PRODUCTS, func, args, kwargs
            )

    def covers(self, outputs: Any) -> bool:
        """Return whether these outputs are exact.

        Only where matrices are multiplied: a reference that computes outside of torch shows no operators.
        """
        tensors = [tensor for _, tensor in named_tensors(outputs, "output") if tensor.dtype.is_floating_point]
        return self.holds and self._has_products and all(map(_is_whole, tensors))

    def adds_exactly(
        self,
        product: bool,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        terms: float = 1.0,
    ) -> bool:
        """Say whether sums, means of `terms`, or matrix products are exact in any order."""
        tensors = [argument for argument in args if isinstance(argument, torch.Tensor)]
        if kwargs.get("alpha", 1) != 1 or any(tensor.is_complex() for tensor in tensors):
            return False
        if not all(map(_is_whole, tensors)):
            return False
        if product and not all(
            bool((round_to(tensor, self._operands) == tensor).all()) for tensor in tensors
        ):
            return False
        # No partial sum, in whatever order, is larger than the sum of the magnitudes.
        bound = func(*map_tensors(torch.Tensor.abs, args), **kwargs)
        return bound.numel() == 0 or bool(terms * bound.max() <= self._largest)


def _is_whole(tensor: torch.Tensor) -> bool:
    return bool((tensor == tensor.round()).all())


class ExactTensors:
    """Follows which tensors of a run hold numbers that a kernel has, too, without any rounding.

    Inputs do, and what is moved, selected, compared or converted of such tensors; sums of small whole
    numbers; and elementwise results that float32 holds. Other tensors do if they hold no floats.
    """

    def __init__(self, operands: FloatFormat) -> None:
        self._sums = Exactness(operands)
        self._known: dict[Any, bool] = {}

    def add(self, tensor: torch.Tensor) -> None:
        self._known[_memory(tensor)] = True

    def holds(self, values: Any) -> bool:
        return all(self._holds(tensor) for _, tensor in named_tensors(values, ""))

    def _holds(self, tensor: torch.Tensor) -> bool:
        known = self._known.get(_memory(tensor))
        if known is None and (tensor.dtype.is_floating_point or tensor.is_complex()):
            return tensor.ndim == 0 and _is_held(tensor)  # a number that was written in the reference
        return known is not False

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        exact = self.holds((args, kwargs)) and self._is_exact(func, args, kwargs, result)
        for _, tensor in named_tensors(result, ""):
            self._known[_memory(tensor)] = exact

    def _is_exact(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
        name = base_name(func)
        floats = [tensor for _, tensor in named_tensors(result, "") if tensor.dtype.is_floating_point]
        if not floats or is_view(func) or name in _DECIDED:
            return True
        if not all(map(_is_held, floats)):
            return False
        if not any(map(is_float64, args)):  # made of integers, or of nothing
            return True
        if name in _PRODUCTS | {"sum"}:
            return self._sums.adds_exactly(name in _PRODUCTS, func, args, kwargs)
        if name == "mean":
            terms = args[0].numel() / result.numel()
            return _is_power_of_two(terms) and self._sums.adds_exactly(False, func, args, kwargs, terms=terms)
        return name in _ELEMENTWISE and (name != "div" or _is_power_of_two(args[1]))


def _memory(tensor: torch.Tensor) -> Any:
    """Return what a tensor shares with its views, and with nothing that is made after it was freed."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _is_held(tensor: torch.Tensor) -> bool:
    return not tensor.is_complex() and bool((tensor == tensor.float()).all())


def _is_power_of_two(value: Any) -> bool:
    """Say whether a number, or all of a tensor, is one, so that its reciprocal is exact."""
    fraction, _ = torch.frexp(torch.as_tensor(value, dtype=torch.float64))
    return bool((fraction.abs() == 0.5).all())  # noqa: PLR2004


_SAMPLE = 1 << 14  # elements
_SCALES = 16
_CHANCE = 4.0  # standard errors


class Observer(Injector):
    """Notes what there is: products, exponentials, discontinuities, what gets rounded, and what is exact."""

    def __init__(self, operands: FloatFormat) -> None:
        self.operands = operands
        self.exactness = Exactness(operands)
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

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = base_name(func)
        given = [argument for argument in args if is_float64(argument)]
        self.has_exponentials |= is_exponential(func, args)
        if not is_view(func):
            self.exactness.see(name, func, args, kwargs)
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
            self._see_discontinuity(name, [tensor for _, tensor in named_tensors(result, "")])
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
