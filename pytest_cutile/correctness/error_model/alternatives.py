"""Alternative results at discontinuities: what a reference also returns when its operands are rounded.

A quantised value at a tie, or the index of the larger of two values that are almost equal, is right if the
reference itself returns it where its intermediate results are moved, by no more than T1 would let them be
off. Inputs stay what they are. A float beyond a discontinuity, such as a quantised value that is scaled
again, is right if it is within the bound of where the reference's value jumps to.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pytest_cutile.correctness.compare.elements import Bound, ComparedOutput, differ
from pytest_cutile.correctness.error_model.discontinuities import ReplayDecisions
from pytest_cutile.correctness.error_model.injection import (
    AccumulationNoise,
    Injector,
    OperandNoise,
    PolicyNoise,
)
from pytest_cutile.correctness.error_model.noise import ReferenceEstimate
from pytest_cutile.correctness.error_model.operators import base_name, is_float64, writes_in_place
from pytest_cutile.correctness.error_model.parts import OUTPUT
from pytest_cutile.correctness.error_model.running import ReferenceCall
from pytest_cutile.correctness.error_model.tolerance import ErrorModel, Terms
from pytest_cutile.tile.tensors.dtypes import bits_of
from pytest_cutile.tile.tensors.rounding import convert
from pytest_cutile.tile.tensors.trees import named_tensors
from pytest_cutile.words.formats import FLOAT32, FLOAT64

ROUNDS = 16
"""Runs with noise. In every second run, noise exchanges the order of two almost equal values."""
SIZES = (1.0, 0.5, 0.25, 0.125)
"""Sizes of noise for integers: any size shows a tie, and many show what may be off by several."""
SIZES_OF_FLOATS = (0.0625, 0.125, 0.25, 0.5)
"""Sizes of noise for floats. Size 1 moves floats by about the bound, also where there is no discontinuity."""
_JUMP = 2.0
"""In units of the bound: what noise of half the size at most moves by more has crossed a discontinuity."""
_MANY = 64
"""So many elements at least are not left over by chance, if a round explains less than one of so many."""


class _IntermediateNoise(AccumulationNoise):
    """Moves rounded results, operands of sums and functions, and quotients, but no input."""

    moves_inputs = False

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if base_name(func) == "div" and is_float64(args[0]):
            # a kernel may multiply by the reciprocal, which is rounded even where the quotient is not; not of
            # whole numbers, positions for the most part: there that is the bug that is looked for
            divisor = torch.as_tensor(args[1], dtype=torch.float64, device=args[0].device)
            fraction, _ = torch.frexp(divisor)
            quotient, whole = args[0] / divisor, (args[0] == args[0].round()) & (divisor == divisor.round())
            exact = (fraction.abs() == 0.5) | (whole & (quotient == quotient.float()))  # noqa: PLR2004 - powers of two
            moved = torch.where(exact, args[0], self._noisy(args[0]))
            if writes_in_place(func):
                args[0].copy_(moved)
            else:
                args = (moved, *args[1:])
        return super().call(func, args, kwargs)


class Unexplained:
    """Elements of an output that differ from the reference, and what is right as far as is known."""

    def __init__(self, output: ComparedOutput) -> None:
        self.output = output
        self._right = output.exact.clone().reshape(-1)
        self._target = output.bound.target or FLOAT64
        self._within: torch.Tensor | None = None
        """How far floats may be off before they are rounded to the target; None: integers."""
        if isinstance(output.bound, Bound):
            self.at, self._within = output.bound.outside(output.out, output.exact)
        else:
            self.at = differ(output.out, output.exact).reshape(-1).nonzero().flatten()

    def explain(self, moved: torch.Tensor) -> None:
        """Accept the values of a run with noise where they explain the kernel's."""
        if moved.shape != self.output.exact.shape:
            return
        values, got = (_pick(whole.reshape(-1), self.at) for whole in (moved, self.output.out))
        if self._within is None:
            explained = ~differ(got, values)
        else:
            jumps = (values - self._right[self.at]).abs() > _JUMP * self._within
            lowest, highest = (
                convert(edge, self._target) for edge in (values - self._within, values + self._within)
            )
            explained = jumps & (lowest <= got.double()) & (got.double() <= highest)
            self._within = self._within[~explained]
        bits_of(self._right)[self.at[explained]] = bits_of(values)[explained]
        self.at = self.at[~explained]

    def result(self) -> torch.Tensor:
        return self._right.reshape(self.output.exact.shape)


def explain_by_noise(
    call: ReferenceCall,
    differing: Sequence[Unexplained],
    *,
    truth: ReferenceEstimate,
    terms: Terms,
    model: ErrorModel,
    sizes: Sequence[float],
) -> None:
    """Explain elements, in place, by what the reference returns with noise of these `sizes` in turn.

    `model` is that of float32 accumulation for all of them together.
    """
    variance = model.accumulation_variance + model.operand_variance + model.value_variance
    # how far intermediate results may be off, in units of float32's unit roundoff
    reach = model.sigmas * math.sqrt(variance) + 1.5 * (model.drift + model.drift_of_value / model.unit)
    if terms.operands is FLOAT64:
        reach *= FLOAT64.unit_roundoff / FLOAT32.unit_roundoff
    makers: list[Callable[[int, float], Injector]] = [
        lambda run, size: _IntermediateNoise(run, scale=size * reach, equally=True)
    ]
    if truth.observed.has_inexact_operands:
        makers.append(lambda run, size: OperandNoise(run, terms.operands, scale=size * model.sigmas))
    if terms.policy.is_noise:
        makers.append(
            lambda run, size: PolicyNoise(run, terms.policy, scale=size * model.sigmas, equally=True)
        )
    for run in range(ROUNDS):
        before = sum(output.at.numel() for output in differing)
        # the same noise with both signs, so that a value at a tie falls to both sides
        for make, sign in itertools.product(makers, (1, -1)):
            noise = make(run, sign * sizes[run % len(sizes)])
            result = call.run(ReplayDecisions(noise, truth.observed.exact_decisions))
            moved = dict(named_tensors(result, OUTPUT))
            for output in differing:
                output.explain(moved[output.output.name])
        unexplained = sum(output.at.numel() for output in differing)
        if not unexplained or (unexplained > _MANY and (before - unexplained) * _MANY < unexplained):
            break


def _pick(values: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Return elements of a tensor; of uint64, which cannot be indexed everywhere, too."""
    return bits_of(values)[at].view(values.dtype)
