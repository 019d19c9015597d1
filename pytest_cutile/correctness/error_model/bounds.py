"""The bound of each output of a check: derived from its reference, or given, and how the two compare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pytest_cutile.correctness.compare.elements import (
    EQUALITY,
    Bound,
    ComparedOutput,
    GivenTolerance,
    blocks,
    compare,
    differ,
)
from pytest_cutile.correctness.error_model.alternatives import (
    SIZES,
    SIZES_OF_FLOATS,
    Unexplained,
    explain_by_noise,
)
from pytest_cutile.correctness.error_model.noise import ReferenceEstimate
from pytest_cutile.correctness.error_model.running import ReferenceCall
from pytest_cutile.correctness.error_model.spread import Spread, matrix_view
from pytest_cutile.correctness.error_model.tolerance import (
    EXACT,
    ErrorModel,
    Terms,
    model_for,
)
from pytest_cutile.tile.tensors.dtypes import format_of, name_of
from pytest_cutile.tile.tensors.rounding import spacing
from pytest_cutile.tile.tensors.trees import tensors_in
from pytest_cutile.words.formats import FLOAT16, FLOAT32, FLOAT64, FloatFormat

_HOPPER = 9
SAMPLE = 1 << 16
"""Elements of a block, evenly spaced, whose bounds are compared."""
TORCH_DEFAULTS = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
}
"""rtol and atol of `torch.testing.assert_close`, as documented for torch 2.13 (none for 8-bit floats)."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a check allows each output."""

    truth: ReferenceEstimate
    terms: Terms

    def of(self, name: str, out: torch.Tensor, elements: int) -> Bound | GivenTolerance:
        """Return the bound of (a part of) an output of `elements`."""
        target = format_of(out.dtype)
        if target is None:
            return self._of_integers(out)
        if self.terms.tolerance is None:
            return self._derive(name, out, target, elements)
        rtol, atol = self.terms.tolerance
        basis = f"rtol={rtol:g}, atol={atol:g}, as given in place of the derived bound"
        return GivenTolerance(rtol=rtol, atol=atol, target=target, basis=basis)

    def _of_integers(self, out: torch.Tensor) -> GivenTolerance:
        atol = 0.0 if self.terms.tolerance is None else math.floor(self.terms.tolerance[1])
        if atol < 1 or out.dtype == torch.bool:
            return EQUALITY
        basis = f"integers within atol={atol}, as given: {_any_of(atol)}"
        return GivenTolerance(rtol=0.0, atol=atol, target=None, basis=basis)

    def beyond_discontinuities(
        self, call: ReferenceCall, outputs: Sequence[ComparedOutput]
    ) -> dict[str, torch.Tensor]:
        """Return the right values of outputs that differ from exact ones as roundings may let them.

        There are none of outputs with a given tolerance.
        """
        inputs = tensors_in(call.arguments)
        if not any(tensor.dtype.is_floating_point or tensor.is_complex() for tensor in inputs):
            return {}
        if not self.truth.observed.has_discontinuities or self._is_exact:
            return {}
        right: dict[str, torch.Tensor] = {}
        for is_float, sizes in ((False, SIZES), (True, SIZES_OF_FLOATS)):
            differing = [
                unexplained
                for output in outputs
                if (isinstance(output.bound, Bound) if is_float else output.bound is EQUALITY)
                if (unexplained := Unexplained(output)).at.numel()
            ]
            if differing:
                elements = sum(unexplained.output.out.numel() for unexplained in differing)
                model = self._model(FLOAT32, differing[0].output.out, elements)
                explain_by_noise(
                    call, differing, truth=self.truth, terms=self.terms, model=model, sizes=sizes
                )
                right |= {unexplained.output.name: unexplained.result() for unexplained in differing}
        return right

    @property
    def _is_exact(self) -> bool:
        """Whether nothing is rounded that a result may jump with."""
        return self.truth.exact and not self.terms.policy.is_noise

    def _model(self, accumulation: FloatFormat, out: torch.Tensor, elements: int) -> ErrorModel:
        return model_for(
            self.terms.reduction,
            accumulation=accumulation,
            operands=self.terms.operands if self.truth.observed.has_products else None,
            short_sums=self.has_short_sums(out),
            elements=elements,
            fast_acc=self.terms.policy.fast_acc,
        )

    def _derive(self, name: str, out: torch.Tensor, target: FloatFormat, elements: int) -> Bound:
        if self._is_exact:
            basis = "correctly rounded: all products and sums of these inputs are exact"
            return Bound(target=target, model=EXACT, accumulation=Spread.none(out), basis=basis)
        accumulation = accumulation_of(target)
        model = self._model(accumulation, out, elements)
        basis = f"derived from reduction={self.terms.reduction}, {accumulation.name} accumulation"
        if self.truth.observed.has_products:
            basis += f", {self.terms.operands.name} operands"
        if self.terms.policy:
            basis += f", {self.terms.policy}"
        if self.truth.observed.rounds_to:
            basis += f", a reference that itself rounds to {', '.join(self.truth.observed.rounds_to)}"
        return Bound(
            target=target,
            model=model,
            accumulation=self.truth.accumulation.get(name) or Spread.none(out),
            operands=self.truth.operands.get(name),
            policy=self.truth.policy.get(name),
            common=math.sqrt(model.value_variance) * model.unit + self._shared_error(name),
            common_of_operands=self._common_of_operands(name),
            basis=basis,
        )

    def has_short_sums(self, out: torch.Tensor) -> bool:
        """Return whether products may be summed in fewer bits than float32 has, on the device of `out`."""
        if not (self.terms.operands.bits < FLOAT16.bits and self.truth.observed.has_products and out.is_cuda):
            return False
        return torch.cuda.get_device_capability(out.device)[0] == _HOPPER

    def _shared_error(self, name: str) -> float:
        """Return the relative error that all elements may share besides that of a few float32 roundings.

        Rounding x to nearest is biased where the density f of x is not constant, by x f'/f u^2 / 3 at most,
        which is u^2 if f falls no faster than x^-3; of operands and results that lie too close together for
        that, it was measured.
        """
        rounded = [self.terms.operands] if name in self.truth.operands else []
        rounded += [] if self.terms.policy.mid is None else [self.terms.policy.mid]
        shared = sum(target.unit_roundoff**2 for target in rounded) + self.terms.policy.exp_error
        return shared + self.truth.policy_common + self._common_of_operands(name)

    def _common_of_operands(self, name: str) -> float:
        return self.truth.observed.common_rounding if name in self.truth.operands else 0.0

    def looseness(self, output: ComparedOutput, given: GivenTolerance, elements: int) -> list[torch.Tensor]:
        """Return how many times the derived bound a given tolerance allows, of some elements.

        Empty for integers, and where the reference returned no float64 to derive a bound from. Allowed is the
        farthest from the exact value that an element may be, its rounding included.
        """
        if given.target is None or not self.truth.accumulation:
            return []
        bound = self._derive(output.name, output.out, given.target, elements)
        truth = matrix_view(output.exact)
        ratios = []
        for block in blocks(truth):
            y = truth[block]
            _, lowest, highest = bound.interval(y, *bound.noise(y, *block))
            ratio = given.allowed(y).div_(torch.maximum(highest - y, y - lowest)).flatten()
            ratio = ratio[:: -(-ratio.numel() // SAMPLE)]
            ratios.append(ratio[ratio.isfinite()])
        return ratios

    def lets_through(self, exact: torch.Tensor, given: GivenTolerance) -> str:
        """Say what a given tolerance allows where right values are known exactly; empty elsewhere."""
        if not exact.numel():
            return ""
        if given.target is None:
            return _any_of(given.atol)
        if not self.truth.exact:
            return ""
        y = exact.reshape(-1)[:: -(-exact.numel() // SAMPLE)].double()
        ulps = given.allowed(y).div_(spacing(y, given.target))
        return f"{float(ulps[y.isfinite()].median()):.3g} ulp from values that are exact"


def _any_of(atol: float) -> str:
    return f"any of {2 * atol + 1:,} integers"


def passes_torch(out: torch.Tensor, exact: torch.Tensor) -> bool:
    if not out.dtype.is_floating_point:
        return not bool(differ(out, exact).any())
    if (tolerance := TORCH_DEFAULTS.get(name_of(out.dtype))) is None:
        return False
    rtol, atol = tolerance
    return not compare(out, exact, GivenTolerance(rtol=rtol, atol=atol, target=format_of(out.dtype))).failed


def accumulation_of(target: FloatFormat) -> FloatFormat:
    return FLOAT64 if target is FLOAT64 else FLOAT32
