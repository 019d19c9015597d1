"""How much the reference's result moves when its operands are rounded: a backward-error estimate.

The reference runs a few more times, each time with noise of one rounding:

- *accumulation* noise, u = 2^-24: on the inputs, on the operands of sums and transcendental functions, and
  on every intermediate result that float32 does not hold exactly.
- *operand* noise: on operands of matrix products that the tensor core's input dtype does not hold, such as
  the probabilities of attention.
- *policy* noise: on what a kernel's numerics policy rounds more (`mid`) or approximates (`exp_error`).

Runs that would move nothing are left out. What a reference computes outside torch (numpy) only sees the noise
on the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_cutile.correctness.error_model.discontinuities import DecisionNoise, ReplayDecisions
from pytest_cutile.correctness.error_model.exactness import IntermediateRounding, ReferenceObserver
from pytest_cutile.correctness.error_model.injection import (
    CHUNK,
    AccumulationNoise,
    Injector,
    OperandNoise,
    PolicyNoise,
)
from pytest_cutile.correctness.error_model.parts import OUTPUT, Part
from pytest_cutile.correctness.error_model.running import ReferenceCall
from pytest_cutile.correctness.error_model.spread import Spread, matrix_view
from pytest_cutile.correctness.error_model.tolerance import NumericsPolicy, Terms
from pytest_cutile.correctness.errors import ReferenceFailed
from pytest_cutile.tile.tensors.trees import have_same_bits, named_tensors, tensors_in
from pytest_cutile.words.formats import FLOAT32, FloatFormat

_FLOAT32_POLICY = NumericsPolicy()
RUNS = (3, 12, 48)
"""Noisy runs of each kind. Results are pooled over rows and columns, so a few are enough for most elements;
an output that fails near its bound is compared again with more (`ReferenceRuns.refine`)."""
SMALL_OUTPUT = 256
"""Outputs of fewer elements have little to pool over, and cost little: they begin with the second number."""
_LARGEST = 1e150
"""Largest value whose square float64 holds."""


@dataclass(frozen=True, kw_only=True)
class ReferenceEstimate:
    """The exact outputs and how far noise moves each of them."""

    outputs: Any
    accumulation: Mapping[str, Spread]
    """For each floating output: mean square change under accumulation noise, in units of u^2."""
    operands: Mapping[str, Spread]
    """Spread under operand noise, in absolute units; empty when no operand of a product needs rounding."""
    policy: Mapping[str, Spread]
    """Spread under what the numerics policy allows besides; empty when that is nothing."""
    policy_common: float
    """Relative error that roundings to the policy's `mid` may give all elements in common."""
    observed: ReferenceObserver
    is_fixed: bool
    """Whether it returns the same whatever noise its arguments have."""
    exact: bool
    """Whether all that it computes is exact in float32, too."""
    repeats: int
    """How often it ran with noise of each kind."""
    runs: int
    """How often it ran in all."""


def estimate(
    call: ReferenceCall,
    *,
    operands: FloatFormat,
    policy: NumericsPolicy = _FLOAT32_POLICY,
    repeats: int = RUNS[0],
) -> ReferenceEstimate:
    """Run a reference once exactly, then at least `repeats` times with noise; raise ReferenceFailed."""
    observed = ReferenceObserver(operands)
    outputs = call.run(observed)
    if observed.draws_numbers and not have_same_bits(outputs, call.run()):
        raise ReferenceFailed(
            f"{call.name} draws random numbers, and returns something else when it is called again: "
            "let it make a torch.Generator with a seed of its own, or give it what was drawn"
        )
    noise = _Noise(call, outputs, observed, repeats)
    accumulation: Mapping[str, Spread] = {}
    of_operands: Mapping[str, Spread] = {}
    of_policy: Mapping[str, Spread] = {}
    exact = observed.is_exact(outputs)
    # of a reference that rounds there is nothing to estimate
    if all(tensor.dtype == torch.float64 for tensor in _floats(outputs).values()):
        if not exact:
            unit = FLOAT32.unit_roundoff
            accumulation = noise.measure(AccumulationNoise, unit=unit, decision_noise=DecisionNoise)
        if observed.has_inexact_operands:
            # the terms of a product may cancel in its value, and the noise of its operands does not
            of_operands = noise.measure(lambda run: OperandNoise(run, operands), proportional=False)
        of_policy = noise.measure_policy(policy, exact=exact)
    return ReferenceEstimate(
        outputs=outputs,
        accumulation=accumulation,
        operands=of_operands,
        policy=of_policy,
        policy_common=_common_to_results(call, policy),
        observed=observed,
        is_fixed=_is_fixed(observed, accumulation, call),
        exact=exact,
        repeats=noise.repeats,
        runs=1 + observed.draws_numbers + (policy.mid is not None) + noise.runs,
    )


class ReferenceRuns:
    """Runs a reference when its values are needed, and keeps those of the whole for all launches."""

    def __init__(self, call: ReferenceCall, parts: Sequence[Part], terms: Terms) -> None:
        self.call = call
        self.parts = parts
        self.terms = terms
        self.count = 0
        """How often the reference ran on each part, for one launch."""
        self.is_fixed = False
        """Whether it returned the same whatever the arguments of a part were."""
        self.longest_sum = 1
        self.has_products = self.has_exponentials = False
        """What the exact runs on the parts have shown."""
        self.whole: ReferenceEstimate | None = None
        """What is kept: the values of the whole, if it is not cut and was needed."""
        self._exact: Mapping[str, torch.Tensor] | None = None
        self._repeats = RUNS[0]

    def refine(self) -> bool:
        """Have the reference run more often with noise from now on; return False if it did so already."""
        more = [repeats for repeats in RUNS if repeats > self._repeats]
        if more:
            self._repeats, self.whole = more[0], None
        return bool(more)

    def under(self, policy: NumericsPolicy) -> ReferenceRuns:
        """Return the runs under another policy; of the whole, what the policy does not change is kept."""
        others = ReferenceRuns(self.call, self.parts, replace(self.terms, policy=policy))
        others._exact = self._exact
        if (truth := self.whole) is not None:
            noise = _Noise(self.call, truth.outputs, truth.observed, RUNS[0])
            others.whole = replace(
                truth,
                policy=noise.measure_policy(policy, exact=truth.exact),
                policy_common=_common_to_results(self.call, policy),
            )
        return others

    def estimate(self, part: Part) -> ReferenceEstimate:
        """Return a part's exact values and their noise; raise ReferenceFailed."""
        if self.whole is not None:
            return self.whole
        truth = estimate(
            self.call.of(part),
            operands=self.terms.operands,
            policy=self.terms.policy,
            repeats=self._repeats,
        )
        self._repeats = max(self._repeats, truth.repeats)
        self.count = max(self.count, truth.runs)
        self.is_fixed |= truth.is_fixed
        self.longest_sum = max(self.longest_sum, truth.observed.longest_sum)
        self.has_products |= truth.observed.has_products
        self.has_exponentials |= truth.observed.has_exponentials
        if part.is_whole:
            self.whole = truth
        return truth

    def exact(self, outputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return the exact values of all outputs, which have the shapes of these."""
        if self.whole is not None:
            return dict(named_tensors(self.whole.outputs, OUTPUT))
        if self._exact is None:
            exact: dict[str, torch.Tensor] = {}
            for part in self.parts:
                for name, values in named_tensors(self.call.of(part).run(), OUTPUT):
                    if name not in exact:
                        exact[name] = values.new_empty(outputs[name].shape)
                    part.of(OUTPUT, exact[name]).copy_(values)
            self._exact = exact
        return self._exact


def _common_to_results(call: ReferenceCall, policy: NumericsPolicy) -> float:
    """Return the relative error that rounding intermediate results to `mid` may give all elements."""
    if policy.mid is None:
        return 0.0
    rounding = IntermediateRounding(policy.mid)
    call.run(rounding)
    return rounding.common


def _floats(outputs: Any) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in named_tensors(outputs, OUTPUT) if tensor.is_floating_point()}


def _is_fixed(observed: ReferenceObserver, spreads: Mapping[str, Spread], call: ReferenceCall) -> bool:
    """Say whether a reference computed nothing, and returned the same whatever noise its arguments had."""
    if observed.computes or not spreads or any(bool(spread.elements.any()) for spread in spreads.values()):
        return False
    floats = [tensor.double() for tensor in tensors_in(call.args) if tensor.dtype.is_floating_point]
    return any(bool((tensor != tensor.round()).any()) for tensor in floats)  # those are moved


class _Noise:
    """Runs a reference with noise, and measures how far that moves its outputs."""

    def __init__(self, call: ReferenceCall, outputs: Any, observed: ReferenceObserver, repeats: int) -> None:
        self.runs = 0
        self._call = call
        self._exact = {name: matrix_view(tensor) for name, tensor in _floats(outputs).items()}
        self._observed = observed
        small = any(0 < tensor.numel() < SMALL_OUTPUT for tensor in self._exact.values())
        self.repeats = max(repeats, RUNS[1]) if small else repeats
        wide = any(tensor.dtype == torch.float64 for tensor in tensors_in(call.arguments))
        self._largest = _LARGEST if wide else FLOAT32.max_finite
        """The largest value that a kernel with these arguments holds, if its square is a float64."""

    def measure(
        self,
        make: Callable[[int], Injector],
        *,
        unit: float = 1.0,
        proportional: bool = True,
        decision_noise: Callable[[int], Injector] | None = None,
    ) -> dict[str, Spread]:
        """Return the mean square change of each floating output, in units of `unit`, over some runs of noise.

        `make` returns the noise of a run; `decision_noise` that of a run before, whose decisions it replays.
        `proportional` says whether noise may be in proportion to an element's value.
        """
        totals = {name: tensor.new_zeros(tensor.shape) for name, tensor in self._exact.items()}
        for run in range(self.repeats):
            result = self._run(make(run), None if decision_noise is None else decision_noise(run))
            moved = _floats(result)
            if [*map(torch.numel, moved.values())] != [*map(torch.numel, totals.values())]:
                raise ReferenceFailed(f"{self._call.name} returns other shapes if arguments are rounded")
            for name, total in totals.items():
                exact = self._exact[name]
                flat = (torch.split(whole.reshape(-1), CHUNK) for whole in (moved.pop(name), exact, total))
                for values, y, mean_square in zip(*flat, strict=True):
                    # Inf - Inf and NaN have no spread; the comparison wants the same Inf and NaN anyway
                    change = (values - y).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0).div_(unit)
                    # nor what the kernel cannot hold: it would outweigh all others, or be too large squared
                    change.masked_fill_(y.abs() > self._largest, 0.0)
                    mean_square.addcmul_(change, change, value=1.0 / self.repeats)
        return {
            name: Spread(total, self._exact[name] if proportional else None, self.repeats)
            for name, total in totals.items()
        }

    def measure_policy(self, policy: NumericsPolicy, *, exact: bool) -> dict[str, Spread]:
        """Measure what a policy allows; `exact` says that a reference rounds nothing without it."""
        return self.measure(lambda run: PolicyNoise(run, policy, exact=exact)) if policy.is_noise else {}

    def _run(self, noise: Injector, decision_noise: Injector | None) -> Any:
        """Run with noise, replaying exact decisions and those of a run with `decision_noise`."""
        if not self._observed.has_discontinuities:
            return self._call_with(noise)
        decisions = self._observed.exact_decisions
        if decision_noise is not None:
            recording = ReplayDecisions(decision_noise, decisions, record=True)
            self._call_with(recording)
            decisions = recording.decisions
        return self._call_with(ReplayDecisions(noise, decisions))

    def _call_with(self, injector: Injector) -> Any:
        self.runs += 1
        return self._call.run(injector)
