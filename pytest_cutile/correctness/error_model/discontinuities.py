"""Discontinuities of a reference (comparisons, rounding, argmax), and the decisions it takes at them.

Noise must not take an operand over a discontinuity where a kernel has the very same number, such as an input
that is quantised. So runs with noise replay recorded decisions:

- of the exact run, where the operands are exact (`ReferenceObserver.exact_decisions`);
- else of a run with noise whose inputs are not moved: what is selected or quantised among the inputs
  themselves depends on no rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_cutile.correctness.error_model.exactness import Decisions
from pytest_cutile.correctness.error_model.injection import AccumulationNoise, Injector
from pytest_cutile.correctness.error_model.operators import base_name, jumping, writes_in_place

if TYPE_CHECKING:
    import torch


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


class ReplayDecisions(Injector):
    """Runs a reference as `injector` does and replays `known` decisions; `record` keeps all."""

    def __init__(self, injector: Injector, known: Decisions, *, record: bool = False) -> None:
        self.decisions: Decisions = {}
        self._injector = injector
        self._known = known
        self._record = record
        self._number = 0

    def on_input(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._injector.on_input(tensor)

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self._injector.call(func, args, kwargs)
        if (results := jumping(func, args, result)) is not None:
            self._number += 1
            known = self._known.get(self._number, {})
            for place, tensor in results.items():
                old = known.get(place)
                if old is not None and (old.shape, old.dtype) == (tensor.shape, tensor.dtype):
                    tensor.copy_(old)
            if self._record:
                self.decisions[self._number] = {place: tensor.clone() for place, tensor in results.items()}
        return result
