"""How much the reference's result moves when its operands are rounded: a backward-error estimate.

The reference runs a few more times, each time with noise of one rounding:

- *accumulation* noise, u = 2^-24: on the inputs, on the operands of sums and transcendental functions, and
  on every intermediate result that float32 does not hold exactly. Exact values stay exact, so that masks
  and counts still compare equal.
- *operand* noise: on operands of matrix products that the tensor core's input dtype does not hold, such as
  the probabilities of attention, which a kernel has to round to float16 before it multiplies them. Equal
  values get equal noise, as they would round equally. Without such operands these runs are left out.
- *policy* noise: on what a kernel's numerics policy rounds more (`mid`) or approximates (`exp_error`).
  Under the float32 policy these runs are left out.

What the reference computes outside torch (numpy) only sees the noise on the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pytest_cutile.correctness.error_model.discontinuities import (
    DecisionNoise,
    Decisions,
    KeepExactDecisions,
    RecordDecisions,
    ReplayDecisions,
)
from pytest_cutile.correctness.error_model.exactness import Observer
from pytest_cutile.correctness.error_model.injection import (
    CHUNK,
    AccumulationNoise,
    Injector,
    OperandNoise,
    PolicyNoise,
)
from pytest_cutile.correctness.error_model.running import run_with
from pytest_cutile.correctness.error_model.spread import Spread, matrix_view
from pytest_cutile.correctness.error_model.tolerance import NumericsPolicy
from pytest_cutile.tensors.formats import FLOAT32, FloatFormat
from pytest_cutile.tensors.trees import have_same_bits, named_tensors

_FLOAT32_POLICY = NumericsPolicy()
RUNS = 3
"""Noisy runs for each of the two kinds; results are pooled over rows and columns, so a few are enough."""
RUNS_OF_SMALL_OUTPUTS = 12
SMALL_OUTPUT = 256
"""Outputs of fewer elements have little to pool over, and cost little: they get more runs."""


_LARGEST = 1e150
"""Of float64: larger values have squares that it does not hold."""


@dataclass(frozen=True, kw_only=True)
class ReferenceEstimate:
    """The exact outputs and how far noise moves each of them."""

    outputs: Any
    accumulation: Mapping[str, Spread]
    """For each floating output: mean square change under accumulation noise, in units of u^2."""
    operands: Mapping[str, Spread]
    """The same for operand noise, in absolute units; empty when no operand of a product needs rounding."""
    policy: Mapping[str, Spread]
    """The same for what the numerics policy allows besides; empty when that is nothing."""
    observed: Observer
    exact_decisions: Decisions
    """Decisions that no noise changes, for their operands are exact."""
    is_random: bool
    """Whether it returns something else when it is called again."""
    is_fixed: bool
    """Whether it returns the same whatever its arguments are, as far as noise on them can tell."""
    exact: bool
    """Whether all that it computes is exact in float32, too, so that a kernel has to be (`exactness`), as far
    as its policy rounds nothing."""
    runs: int


def run_reference(
    reference: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    operands: FloatFormat,
    policy: NumericsPolicy = _FLOAT32_POLICY,
) -> ReferenceEstimate:
    """Run `reference` on its arguments upcast to float64: once exactly, then with noise."""
    runs = _Runs(reference, args, kwargs)
    observed = Observer(operands)
    outputs = runs.run(observed)
    is_exact = observed.exactness.covers(outputs)
    is_random = observed.draws_numbers and not have_same_bits(outputs, runs.run(Injector()))
    if observed.has_discontinuities:
        keeping = KeepExactDecisions(operands)
        runs.run(keeping)
        runs.has_discontinuities, runs.exact_decisions = True, keeping.exact_decisions
    # of a reference that rounds there is nothing to estimate
    estimate = all(
        tensor.dtype == torch.float64
        for _, tensor in named_tensors(outputs, "output")
        if tensor.dtype.is_floating_point
    )
    makers: dict[str, tuple[float, Callable[[int], Injector]]] = {}
    if estimate and not is_exact:
        makers["accumulation"] = FLOAT32.unit_roundoff, AccumulationNoise
    if estimate and observed.has_inexact_operands:
        makers["operands"] = 1.0, lambda run: OperandNoise(run, operands)
    if estimate and policy.is_noise:
        makers["policy"] = 1.0, lambda run: PolicyNoise(run, policy, exact=is_exact)
    # the terms of a product may cancel in its value, and the noise of its operands does not
    spreads = {
        noise: _measure(
            runs,
            outputs,
            make,
            unit,
            proportional=noise != "operands",
            decision_noise=DecisionNoise if noise == "accumulation" else lambda _: None,
        )
        for noise, (unit, make) in makers.items()
    }
    return ReferenceEstimate(
        outputs=outputs,
        accumulation=spreads.get("accumulation", {}),
        operands=spreads.get("operands", {}),
        policy=spreads.get("policy", {}),
        observed=observed,
        exact_decisions=runs.exact_decisions,
        is_fixed=_is_fixed(observed, spreads.get("accumulation", {}), args),
        is_random=is_random,
        exact=is_exact,
        runs=runs.count,
    )


def allow(
    truth: ReferenceEstimate,
    policy: NumericsPolicy,
    reference: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> ReferenceEstimate:
    """Return `truth`, the result of `reference` for these arguments, under another policy."""
    if not policy.is_noise:
        return replace(truth, policy={})

    def make(run: int) -> Injector:
        return PolicyNoise(run, policy, exact=truth.exact)

    runs = _Runs(
        reference,
        args,
        kwargs,
        has_discontinuities=truth.observed.has_discontinuities,
        exact_decisions=truth.exact_decisions,
    )
    spread = _measure(runs, truth.outputs, make, 1.0)
    return replace(truth, policy=spread, runs=truth.runs + runs.count)


def _count_runs(outputs: Any) -> int:
    sizes = [
        tensor.numel() for _, tensor in named_tensors(outputs, "output") if tensor.dtype.is_floating_point
    ]
    return RUNS_OF_SMALL_OUTPUTS if any(0 < size < SMALL_OUTPUT for size in sizes) else RUNS


@dataclass
class _Runs:
    """Runs a reference on the same arguments, and counts the runs."""

    reference: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    has_discontinuities: bool = False
    exact_decisions: Decisions = field(default_factory=dict)
    """Decisions of the exact run that every run with noise replays."""
    count: int = 0

    def run(self, injector: Injector) -> Any:
        self.count += 1
        return run_with(self.reference, self.args, self.kwargs, injector)

    def run_with_noise(self, noise: Injector, decision_noise: Injector | None) -> Any:
        """Run with injected noise, replaying exact decisions and those of a run with `decision_noise`."""
        if not self.has_discontinuities:
            return self.run(noise)
        decisions = self.exact_decisions
        if decision_noise is not None:
            recording = RecordDecisions(decision_noise, decisions)
            self.run(recording)
            decisions = recording.decisions
        return self.run(ReplayDecisions(noise, decisions))

    @property
    def largest(self) -> float:
        """The largest value that a kernel with these arguments holds, if its square is a float64."""
        tensors = named_tensors((self.args, self.kwargs), "")
        is_wide = any(tensor.dtype == torch.float64 for _, tensor in tensors)
        return _LARGEST if is_wide else FLOAT32.max_finite


def _is_fixed(observed: Observer, spreads: Mapping[str, Spread], args: Sequence[Any]) -> bool:
    """Say whether a reference computed nothing, and returned the same whatever noise its arguments had."""
    if observed.computes or not spreads or any(bool(spread.elements.any()) for spread in spreads.values()):
        return False
    floats = [tensor for _, tensor in named_tensors(tuple(args), "") if tensor.dtype.is_floating_point]
    return any(
        bool((tensor.double() != tensor.double().round()).any()) for tensor in floats
    )  # those are moved


def _measure(
    runs: _Runs,
    outputs: Any,
    make: Callable[[int], Injector],
    unit: float,
    *,
    proportional: bool = True,
    decision_noise: Callable[[int], Injector | None] = lambda _: None,
) -> dict[str, Spread]:
    """Return the mean square change of each floating output, in units of `unit`, over some runs of noise.

    `make` and `decision_noise` return the noise of a run, and that of the run whose decisions it replays.
    `proportional` says whether noise may be in proportion to an element's value.
    """
    exact = {
        name: matrix_view(tensor)
        for name, tensor in named_tensors(outputs, "output")
        if tensor.dtype.is_floating_point
    }
    totals = {name: tensor.new_zeros(tensor.shape) for name, tensor in exact.items()}
    count, largest = _count_runs(outputs), runs.largest
    for run in range(count):
        moved = dict(named_tensors(runs.run_with_noise(make(run), decision_noise(run)), "output"))
        for name, total in totals.items():
            flat = (torch.split(whole.reshape(-1), CHUNK) for whole in (moved.pop(name), exact[name], total))
            for values, y, mean_square in zip(*flat, strict=True):
                # Inf - Inf and NaN have no spread; the comparison wants the same Inf and NaN anyway
                change = (values - y).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0).div_(unit)
                # nor what the kernel cannot hold: it would outweigh all others, or be too large when squared
                change.masked_fill_(y.abs() > largest, 0.0)
                mean_square.addcmul_(change, change, value=1.0 / count)
    return {name: Spread(total, exact[name] if proportional else None) for name, total in totals.items()}
