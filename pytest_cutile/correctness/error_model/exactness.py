"""What an exact run of a reference shows: what is in it, what gets rounded, and what is exact.

Products and sums of small integers are exact in a kernel's arithmetic, too: each partial sum, in whatever
order it is formed, is an integer that the accumulator holds. The result then has to be correctly rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch._decomp import decomposition_table
from torch.multiprocessing.reductions import StorageWeakRef

from pytest_cutile.correctness.error_model.injection import CHUNK, Calls, Injector, inexact_in, on_result
from pytest_cutile.correctness.error_model.operators import (
    COMPARES,
    COMPOSED,
    DISCONTINUOUS,
    MOVES,
    PRODUCTS,
    SELECTIONS,
    SUMS,
    base_name,
    is_exponential,
    is_float64,
    is_view,
    jumping,
    writes_in_place,
)
from pytest_cutile.tile.tensors.dtypes import format_of
from pytest_cutile.tile.tensors.rounding import round_to
from pytest_cutile.tile.tensors.trees import map_tensors, tensors_in
from pytest_cutile.words.formats import FLOAT16, FLOAT32, FloatFormat

Decisions: TypeAlias = "dict[int, Mapping[str, torch.Tensor]]"
"""Discontinuous results, by the number of the operator in a run and their place in its result."""
EIGHT_BIT_SUM = 2.0**13
"""Largest partial sum of 8-bit products that is exact: Hopper's tensor cores keep 13 fraction bits of it
(DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 3.3.2, says about 14 bits)."""
_PRODUCTS = frozenset({"mm", "bmm", "mv", "dot"})
_SUMS = frozenset({"sum", "add", "mean"})
_KEEPS_VALUES = frozenset(
    {
        *("clone", "_to_copy", "copy", "cat", "stack", "index", "index_select", "gather", "repeat", "flip"),
        *("_unsafe_view", "lift_fresh", "zeros", "zeros_like", "new_zeros", "neg", "abs", "relu", "roll"),
        *("maximum", "minimum", "amax", "amin", "tril", "triu", "constant_pad_nd"),
    }
)
_ELEMENTWISE = frozenset({"add", "sub", "rsub", "mul", "div", "square", "clamp", "clamp_min", "clamp_max"})
_DECIDED = MOVES | SELECTIONS | DISCONTINUOUS
_SAMPLE = 1 << 14  # elements
_MOST_COMPARED = 4
_SCALES = 16
_CHANCE = 4.0  # standard errors


class ReferenceObserver(Injector):
    """Notes what there is in an exact run: products, exponentials, discontinuities, and what is exact."""

    def __init__(self, operands: FloatFormat) -> None:
        self.operands = operands
        self.has_products = self.has_exponentials = self.draws_numbers = self.computes = False
        self.has_discontinuities = False
        """Whether the reference rounds, compares, sorts or converts what it computes."""
        self.exact_decisions: Decisions = {}
        """Discontinuous results whose operands a kernel has, too, without any rounding."""
        self.has_inexact_operands = False
        """Whether tensor cores have to round operands of a product."""
        self.common_rounding = 0.0
        """Relative error that rounding may give all operands of a product in common."""
        self.longest_sum = 1
        self.rounds_to: dict[str, None] = {}
        """Dtypes narrower than float32 that intermediate results are rounded to."""
        self.compared: list[torch.Tensor] = []
        """What was sorted, or looked for its largest or smallest values: the first few tensors."""
        self._adds_only = True
        """Whether every operator so far was a product or sum of whole numbers, or kept its values."""
        self._number = 0
        self._known: dict[StorageWeakRef, bool] = {}
        """Whether tensors are exact, by what one shares with its views and with nothing made after it."""

    def is_exact(self, outputs: Any) -> bool:
        """Say whether these outputs are exact in a kernel's arithmetic, too.

        Only where matrices are multiplied: a reference that computes outside of torch shows no operators.
        """
        floats = [tensor for tensor in tensors_in(outputs) if tensor.dtype.is_floating_point]
        return self._adds_only and self.has_products and all(map(_is_whole, floats))

    def on_input(self, tensor: torch.Tensor) -> torch.Tensor:
        self._known[_memory(tensor)] = True
        return tensor

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = base_name(func)
        given = [argument for argument in args if is_float64(argument)]
        self.has_exponentials |= is_exponential(func, args)
        if self._adds_only and not is_view(func) and name not in _KEEPS_VALUES:
            self._adds_only = name != "mean" and add_exactly(func, args, kwargs, self.operands)
        if name in PRODUCTS:
            self.has_products = True
            # noise of a float32 rounding is part of the accumulation noise
            if self.operands.precision < FLOAT32.precision:
                self._see_operands(given)
        self.draws_numbers |= torch.Tag.nondeterministic_seeded in func.tags
        result = func(*args, **kwargs)
        self.computes |= bool(given)
        self.longest_sum = max(self.longest_sum, _count_terms(name, given, result))
        if name in COMPARES and given and len(self.compared) < _MOST_COMPARED and given[0].numel() <= CHUNK:
            self.compared.append(given[0].clone())
        if (jumps := jumping(func, args, result)) is not None:
            self._see_discontinuity(args, result, jumps)
        has_exact_operands = all(map(self._has_exact, tensors_in((args, kwargs))))
        exact = has_exact_operands and self._keeps_exact(func, args, kwargs, result)
        self._known |= {_memory(tensor): exact for tensor in tensors_in(result)}
        return result

    def _see_discontinuity(
        self, args: tuple[Any, ...], result: Any, jumps: Mapping[str, torch.Tensor]
    ) -> None:
        self._number += 1
        self.has_discontinuities |= bool(jumps)
        for target in (format_of(tensor.dtype) for tensor in tensors_in(result)):
            if target is not None and target.precision < FLOAT32.precision:
                self.rounds_to[target.name] = None
        if jumps and all(map(self._has_exact, tensors_in(args))):
            self.exact_decisions[self._number] = {place: tensor.clone() for place, tensor in jumps.items()}

    def _see_operands(self, tensors: Sequence[torch.Tensor]) -> None:
        inexact = [tensor for tensor in tensors if bool(inexact_in(tensor, self.operands).any())]
        self.has_inexact_operands |= bool(inexact)
        shared = sum(common_rounding(tensor, self.operands) for tensor in inexact)
        self.common_rounding = max(self.common_rounding, shared)

    def _has_exact(self, tensor: torch.Tensor) -> bool:
        """Say whether a kernel has the numbers of a tensor, too, without any rounding.

        It has inputs, what is moved, selected, compared or converted of them, sums of small whole numbers,
        elementwise results that float32 holds, and tensors that hold no floats.
        """
        known = self._known.get(_memory(tensor))
        if known is None and (tensor.dtype.is_floating_point or tensor.is_complex()):
            return tensor.ndim == 0 and _is_held(tensor)  # a number that was written in the reference
        return known is not False

    def _keeps_exact(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
        name = base_name(func)
        floats = [tensor for tensor in tensors_in(result) if tensor.dtype.is_floating_point]
        if not floats or is_view(func) or name in _DECIDED:
            return True
        if not any(map(is_float64, args)):  # made of integers, or of nothing
            return all(map(_is_held, floats))
        if name in _ELEMENTWISE:
            return all(map(_is_held, floats)) and (name != "div" or _is_power_of_two(args[1]))
        return add_exactly(func, args, kwargs, self.operands) and all(map(_is_held, floats))


def add_exactly(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], operands: FloatFormat) -> bool:
    """Say whether an operator is a sum, a mean or a matrix product, and exact in any order."""
    name = base_name(func)
    tensors = [argument for argument in args if isinstance(argument, torch.Tensor)]
    if name not in _PRODUCTS | _SUMS or kwargs.get("alpha", 1) != 1:
        return False
    if any(tensor.is_complex() or not _is_whole(tensor) for tensor in tensors):
        return False
    if name in _PRODUCTS and any(bool((round_to(tensor, operands) != tensor).any()) for tensor in tensors):
        return False
    # No partial sum, in whatever order, is larger than the sum of the magnitudes.
    bound = func(*map_tensors(torch.Tensor.abs, args), **kwargs)
    if bound.numel() == 0:
        return True
    terms = args[0].numel() / bound.numel() if name == "mean" else 1
    largest = EIGHT_BIT_SUM if operands.bits < FLOAT16.bits else 2.0**FLOAT32.precision
    return _is_power_of_two(terms) and bool(terms * bound.max() <= largest)


def _is_whole(tensor: torch.Tensor) -> bool:
    return _is_unchanged(tensor, torch.round)


def _is_held(tensor: torch.Tensor) -> bool:
    """Say whether float32 holds all elements."""
    return not tensor.is_complex() and _is_unchanged(tensor, torch.Tensor.float)


def _is_unchanged(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    return all(bool((part == change(part)).all()) for part in torch.split(tensor.reshape(-1), CHUNK))


def _memory(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _is_power_of_two(value: Any) -> bool:
    """Say whether a number, or all of a tensor, is one, so that its reciprocal is exact."""
    fraction, _ = torch.frexp(torch.as_tensor(value, dtype=torch.float64))
    return bool((fraction.abs() == 0.5).all())  # noqa: PLR2004


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
    one sign. Kernels scale them differently: it is the largest over an octave of scales, in the mean over the
    elements weighted by their squares, as far as that is more than chance.
    """
    flat = tensor.reshape(-1)
    flat = flat[:: flat.numel() // _SAMPLE | 1]
    scales = torch.exp2(torch.arange(_SCALES, dtype=flat.dtype, device=flat.device) / _SCALES)
    values = flat.abs() * scales[:, None]
    weight = values.square().sum(1)
    errors = (round_to(values, target) - values) * values
    mean = errors.sum(1) / weight
    chance = _CHANCE * (errors - mean[:, None] * values.square()).square().sum(1).sqrt() / weight
    excess = (mean.abs() - chance).clamp_(min=0.0)
    return float(excess.nan_to_num_(nan=0.0, posinf=0.0).max())


def _sigmoid(x: torch.Tensor) -> torch.Tensor:
    return 1.0 / (1.0 + (-x).exp())


class IntermediateRounding(Injector):
    """Rounds intermediate results to `target`, and measures what that gives all elements in common.

    Functions that a kernel writes as several operations, x sigmoid(x) for one, round within, too.
    """

    def __init__(self, target: FloatFormat) -> None:
        self.target = target
        self._squares = 0.0

    @property
    def common(self) -> float:
        """Relative error: results are rounded one after the other, and independently."""
        return math.sqrt(self._squares)

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = base_name(func)
        made_of = _sigmoid if name == "sigmoid" else decomposition_table.get(func)
        if name in COMPOSED and made_of is not None and not writes_in_place(func):
            with Calls(self):
                return made_of(*args, **kwargs)
        result = func(*args, **kwargs)
        if name in MOVES or is_view(func):
            return result
        return on_result(func, args, result, self._round)

    def _round(self, tensor: torch.Tensor) -> torch.Tensor:
        if not is_float64(tensor):
            return tensor
        inexact = inexact_in(tensor, self.target)
        if not bool(inexact.any()):
            return tensor
        self._squares += common_rounding(tensor, self.target) ** 2
        return torch.where(inexact, round_to(tensor, self.target), tensor)
