"""Discontinuities of a reference (comparisons, rounding, argmax), and the decisions it takes at them.

Noise takes an operand over a discontinuity where a kernel's rounding may do so as well. It must not where the
kernel has the very same number: an input that is quantised, sums of small whole numbers that are compared. So
runs with noise replay recorded decisions:

- of the exact run, where the operands are exact (`ExactTensors`);
- else of a run with noise whose inputs are not moved. The noise of inputs stands for roundings that a
  reference does not show (x - max(x), as a kernel may write it, has some of x); what is selected or quantised
  among the inputs themselves depends on none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_cutile.correctness.error_model.exactness import ExactTensors
from pytest_cutile.correctness.error_model.injection import AccumulationNoise, Injector
from pytest_cutile.correctness.error_model.operators import (
    base_name,
    jumps,
    may_be_discontinuous,
    writes_in_place,
)
from pytest_cutile.tensors.formats import FloatFormat
from pytest_cutile.tensors.trees import named_tensors

if TYPE_CHECKING:
    import torch

Decisions: TypeAlias = "Mapping[int, Mapping[str, torch.Tensor]]"
"""Discontinuous results, by the number of the operator in a run and their place in its result."""


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


class KeepExactDecisions(_AtDiscontinuities):
    """An exact run that records the decisions whose operands are exact."""

    def __init__(self, operands: FloatFormat) -> None:
        super().__init__(Injector())
        self._exact = ExactTensors(operands)
        self.exact_decisions: dict[int, dict[str, torch.Tensor]] = {}

    def on_input(self, tensor: torch.Tensor) -> torch.Tensor:
        self._exact.add(tensor)
        return tensor

    def at_discontinuity(self, args: tuple[Any, ...], results: Mapping[str, torch.Tensor]) -> None:
        if results and self._exact.holds(args):
            self.exact_decisions[self.number] = {place: tensor.clone() for place, tensor in results.items()}

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super().call(func, args, kwargs)
        self._exact.see(func, args, kwargs, result)
        return result


class ReplayDecisions(_AtDiscontinuities):
    """Runs as `injector` does, and replays `known` decisions."""

    def __init__(self, injector: Injector, known: Decisions) -> None:
        super().__init__(injector)
        self._known = known

    def at_discontinuity(self, args: tuple[Any, ...], results: Mapping[str, torch.Tensor]) -> None:
        del args
        known = self._known.get(self.number, {})
        for place, tensor in results.items():
            if place in known and known[place].shape == tensor.shape and known[place].dtype == tensor.dtype:
                tensor.copy_(known[place])


class RecordDecisions(ReplayDecisions):
    """Runs as `ReplayDecisions` does, and records all decisions."""

    def __init__(self, injector: Injector, known: Decisions) -> None:
        super().__init__(injector, known)
        self.decisions: dict[int, dict[str, torch.Tensor]] = {}

    def at_discontinuity(self, args: tuple[Any, ...], results: Mapping[str, torch.Tensor]) -> None:
        super().at_discontinuity(args, results)
        self.decisions[self.number] = {place: tensor.clone() for place, tensor in results.items()}
