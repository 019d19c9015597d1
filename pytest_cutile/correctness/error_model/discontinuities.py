"""Discontinuities of a reference (comparisons, rounding, argmax), and the decisions it takes at them.

Noise takes an operand over a discontinuity where a kernel's rounding may do so as well. It must not where the
kernel has the very same number: an input that is quantised, sums of small whole numbers that are compared. So
runs with noise replay recorded decisions:

- of the exact run, where the operands are exact (`KeepExactDecisions`);
- else of a run with noise whose inputs are not moved. The noise of inputs stands for roundings that a
  reference does not show (x - max(x), as a kernel may write it, has some of x); what is selected or quantised
  among the inputs themselves depends on none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pytest_cutile.correctness.error_model.exactness import add_exactly
from pytest_cutile.correctness.error_model.injection import AccumulationNoise, Injector
from pytest_cutile.correctness.error_model.operators import (
    DISCONTINUOUS,
    MOVES,
    SELECTIONS,
    base_name,
    is_float64,
    is_view,
    jumps,
    may_be_discontinuous,
    writes_in_place,
)
from pytest_cutile.tensors.formats import FloatFormat
from pytest_cutile.tensors.trees import named_tensors, tensors_in

Decisions: TypeAlias = "Mapping[int, Mapping[str, torch.Tensor]]"
"""Discontinuous results, by the number of the operator in a run and their place in its result."""

_ELEMENTWISE = frozenset({"add", "sub", "rsub", "mul", "div", "square", "clamp", "clamp_min", "clamp_max"})
_DECIDED = MOVES | SELECTIONS | DISCONTINUOUS


class DecisionNoise(AccumulationNoise):
    """Accumulation noise of a run whose decisions are recorded: inputs are what they are.

    So are powers of two, and their logarithms: 2^floor(log2(x)) is how scales of blocks are made.
    """

    moves_inputs = False

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super().call(func, args, kwargs)
        if base_name(func) not in ("exp2", "log2") or writes_in_place(func):
            return result
        exact = func(*args, **kwargs)
        whole = args[0] if base_name(func) == "exp2" else exact
        return exact.where(whole == whole.round(), result)


class _AtDiscontinuities(Injector):
    """Runs a reference as `injector` does, and numbers the operators that may be discontinuous."""

    def __init__(self, injector: Injector) -> None:
        self.injector = injector
        self.number = 0

    def on_input(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.injector.on_input(tensor)

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self.injector.call(func, args, kwargs)
        if may_be_discontinuous(func, args):
            self.number += 1
            name = base_name(func)
            results = {place: tensor for place, tensor in named_tensors(result, "") if jumps(name, tensor)}
            self.at_discontinuity(args, results)
        return result

    def at_discontinuity(self, args: tuple[Any, ...], results: Mapping[str, torch.Tensor]) -> None:
        """Handle discontinuous results, by their place, before the reference gets them."""


class ReplayDecisions(_AtDiscontinuities):
    """Runs as `injector` does, replays `known` decisions, and records all decisions if it is to."""

    def __init__(self, injector: Injector, known: Decisions, *, record: bool = False) -> None:
        super().__init__(injector)
        self.decisions: dict[int, Mapping[str, torch.Tensor]] = {}
        self._known = known
        self._record = record

    def at_discontinuity(self, args: tuple[Any, ...], results: Mapping[str, torch.Tensor]) -> None:
        del args
        known = self._known.get(self.number, {})
        for place, tensor in results.items():
            if place in known and known[place].shape == tensor.shape and known[place].dtype == tensor.dtype:
                tensor.copy_(known[place])
        if self._record:
            self.decisions[self.number] = {place: tensor.clone() for place, tensor in results.items()}


class KeepExactDecisions(_AtDiscontinuities):
    """An exact run that records the decisions whose operands a kernel has, too, without any rounding.

    Such are inputs, and what is moved, selected, compared or converted of such tensors; sums of small whole
    numbers; and elementwise results that float32 holds. Other tensors are if they hold no floats.
    """

    def __init__(self, operands: FloatFormat) -> None:
        super().__init__(Injector())
        self.exact_decisions: dict[int, Mapping[str, torch.Tensor]] = {}
        self._operands = operands
        self._known: dict[StorageWeakRef, bool] = {}
        """Whether tensors are exact, by what one shares with its views and with nothing made after it."""

    def on_input(self, tensor: torch.Tensor) -> torch.Tensor:
        self._known[_memory(tensor)] = True
        return tensor

    def at_discontinuity(self, args: tuple[Any, ...], results: Mapping[str, torch.Tensor]) -> None:
        if results and all(map(self._is_exact, tensors_in(args))):
            self.exact_decisions[self.number] = {place: tensor.clone() for place, tensor in results.items()}

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super().call(func, args, kwargs)
        exact = all(map(self._is_exact, tensors_in((args, kwargs)))) and self._keeps_exact(
            func, args, kwargs, result
        )
        self._known |= {_memory(tensor): exact for tensor in tensors_in(result)}
        return result

    def _is_exact(self, tensor: torch.Tensor) -> bool:
        known = self._known.get(_memory(tensor))
        if known is None and (tensor.dtype.is_floating_point or tensor.is_complex()):
            return tensor.ndim == 0 and _is_held(tensor)  # a number that was written in the reference
        return known is not False

    def _keeps_exact(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
        """Say whether what an operator makes of exact operands is exact."""
        name = base_name(func)
        floats = [tensor for tensor in tensors_in(result) if tensor.dtype.is_floating_point]
        if not floats or is_view(func) or name in _DECIDED:
            return True
        if not all(map(_is_held, floats)):
            return False
        if not any(map(is_float64, args)):  # made of integers, or of nothing
            return True
        if name in _ELEMENTWISE:
            return name != "div" or _is_power_of_two(args[1])
        terms = args[0].numel() / result.numel() if name == "mean" else 1
        return _is_power_of_two(terms) and add_exactly(func, args, kwargs, self._operands, terms=terms)


def _memory(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _is_held(tensor: torch.Tensor) -> bool:
    return not tensor.is_complex() and bool((tensor == tensor.float()).all())


def _is_power_of_two(value: Any) -> bool:
    """Say whether a number, or all of a tensor, is one, so that its reciprocal is exact."""
    fraction, _ = torch.frexp(torch.as_tensor(value, dtype=torch.float64))
    return bool((fraction.abs() == 0.5).all())  # noqa: PLR2004
