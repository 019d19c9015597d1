"""Steps of a reference: what is not continuous in its operands, and which way it goes in runs with noise.

Noise takes an operand over a step where a kernel's rounding may do so as well. It must not where the kernel
has the very same number: an input that is quantised, sums of small whole numbers that are compared. So steps
whose operands are exact (`ExactTensors`) are settled by the exact run, and all others by a run whose inputs
are not moved. Inputs stand for roundings that a reference does not show (x - max(x), as a kernel may write
it, has some of x); what is selected or quantised among the inputs themselves depends on none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_cutile.check.exactness import ExactTensors
from pytest_cutile.check.injection import AccumulationNoise, Injector
from pytest_cutile.check.operators import (
    CONVERSIONS,
    SELECTIONS,
    STEPS,
    base_name,
    is_float64,
    may_step,
    writes_in_place,
)
from pytest_cutile.gpu.dtypes import format_of
from pytest_cutile.gpu.trees import named_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from pytest_cutile.core.tolerance import FloatFormat

Steps: TypeAlias = "Mapping[int, Mapping[str, torch.Tensor]]"
"""Results of steps that jump, by the number of the step in a run and their place in its result."""


def jumps(name: str, result: torch.Tensor) -> bool:
    """Say whether a result of an aten operator may jump when its operands move."""
    if name in STEPS:
        return True
    if name in SELECTIONS:
        return not is_float64(result)
    # to 16 bits it rounds, which is no jump; fewer, and integers, are quantised values
    target = format_of(result.dtype)
    return name in CONVERSIONS and not result.is_complex() and (target is None or target.eight_bit)


class DecidingNoise(AccumulationNoise):
    """Accumulation noise of a run that decides which way steps go: inputs are what they are.

    So are powers of two, and their logarithms: 2^floor(log2(x)) is how scales of blocks are made.
    """

    moves_inputs = False

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one aten operator."""
        result = super().call(func, args, kwargs)
        if base_name(func) not in ("exp2", "log2") or writes_in_place(func):
            return result
        exact = func(*args, **kwargs)
        whole = args[0] if base_name(func) == "exp2" else exact
        return exact.where(whole == whole.round(), result)


class _AtSteps(Injector):
    """Runs a reference as `injector` does, and numbers the operators that may be steps."""

    def __init__(self, injector: Injector) -> None:
        self.injector = injector
        self.number = 0

    def on_input(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an input as the injector moves it."""
        return self.injector.on_input(tensor)

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one aten operator."""
        result = self.injector.call(func, args, kwargs)
        if may_step(func, args):
            self.number += 1
            name = base_name(func)
            found = {place: each for place, each in named_tensors(result, "") if jumps(name, each)}
            self.at_step(args, found)
        self.after(func, args, kwargs, result)
        return result

    def at_step(self, args: tuple[Any, ...], found: Mapping[str, torch.Tensor]) -> None:
        """See the results of a step that jump, by their place, before the reference does."""

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """See an operator that has run."""


class Settling(_AtSteps):
    """An exact run that keeps the results of steps whose operands are exact.

    Args:
        operands: what tensor cores round the operands of matrix products to.
    """

    def __init__(self, operands: FloatFormat) -> None:
        super().__init__(Injector())
        self._exact = ExactTensors(operands)
        self.settled: dict[int, dict[str, torch.Tensor]] = {}

    def on_input(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an input, which is exact, as it is."""
        self._exact.add(tensor)
        return tensor

    def at_step(self, args: tuple[Any, ...], found: Mapping[str, torch.Tensor]) -> None:
        """Keep results of exact operands."""
        if found and self._exact.holds(args):
            self.settled[self.number] = {place: each.clone() for place, each in found.items()}

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Follow what is exact."""
        self._exact.see(func, args, kwargs, result)


class Settled(_AtSteps):
    """Runs as `injector` does, but takes steps as they are known.

    Args:
        injector: the noise.
        known: the steps that are known.
    """

    def __init__(self, injector: Injector, known: Steps) -> None:
        super().__init__(injector)
        self._known = known

    def at_step(self, args: tuple[Any, ...], found: Mapping[str, torch.Tensor]) -> None:
        """Put what is known in the place of what noise makes of it."""
        del args
        known = self._known.get(self.number, {})
        for place, each in found.items():
            if place in known and known[place].shape == each.shape and known[place].dtype == each.dtype:
                each.copy_(known[place])


class Taken(Settled):
    """The same, and keeps all steps as they were taken."""

    def __init__(self, injector: Injector, known: Steps) -> None:
        super().__init__(injector, known)
        self.taken: dict[int, dict[str, torch.Tensor]] = {}

    def at_step(self, args: tuple[Any, ...], found: Mapping[str, torch.Tensor]) -> None:
        """Keep what it is, known or not."""
        super().at_step(args, found)
        self.taken[self.number] = {place: each.clone() for place, each in found.items()}
