"""The bound of each output of a check: derived from its reference, or given, and how the two compare."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_cutile.check.compare import CHUNK, Bound, GivenTolerance, blocks, compare, differ
from pytest_cutile.check.integers import (
    SIZES,
    SIZES_OF_FLOATS,
    Unexplained,
    UnexplainedFloats,
    as_rounded,
)
from pytest_cutile.check.noise import Reference, Spread, matrix_view
from pytest_cutile.core.tolerance import EXACT, FLOAT32, FLOAT64, Contract, ErrorModel, FloatFormat, model_for
from pytest_cutile.gpu.dtypes import format_of, name_of
from pytest_cutile.gpu.rounding import spacing
from pytest_cutile.gpu.trees import named_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from pytest_cutile.check.reference import ReferenceCall

    Pairs = Sequence[tuple[str, torch.Tensor, torch.Tensor]]
_HOPPER = 9
SAMPLE = 1 << 16
"""Elements of a block, evenly spaced, whose bounds are compared: enough for a median."""
TORCH_DEFAULTS = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
}
"""rtol and atol of `torch.testing.assert_close` by dtype, as documented for torch 2.13 (it has none for 8-bit
floats); its table has no public name."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a check allows each output."""

    truth: Reference
    """What the reference returned, and how far noise moves it."""
    reduction: int
    """Length of the longest sum behind one output element."""
    operands: FloatFormat
    """Format that operands of matrix products are rounded to."""
    contract: Contract
    """What the kernel may do besides."""
    tolerance: tuple[float, float] | None = None
    """rtol and atol, given in place of the derived bound."""

    def of(self, name: str, out: torch.Tensor, elements: int) -> tuple[Bound | GivenTolerance | None, str]:
        """Return the bound of an output, None where it has to be equal, and what that is in words.

        Args:
            name: where it is in the result.
            out: the output, or the part of it that `truth` is of.
            elements: of all of the output.
        """
        target = format_of(out.dtype)
        if target is None:
            return self._of_integers(out)
        if self.tolerance is None:
            return self._derive(name, out, target, elements)
        rtol, atol = self.tolerance
        given = GivenTolerance(rtol=rtol, atol=atol, target=target)
        return given, f"rtol={rtol:g}, atol={atol:g}, as given in place of the derived bound"

    def _of_integers(self, out: torch.Tensor) -> tuple[GivenTolerance | None, str]:
        import torch

        atol = 0.0 if self.tolerance is None else math.floor(self.tolerance[1])
        if atol < 1 or out.dtype == torch.bool:
            return None, "equal (integers and bool)"
        basis = f"integers within atol={atol}, as given: {_any_of(atol)}"
        return GivenTolerance(rtol=0.0, atol=atol, target=None), basis

    def rounded_integers(
        self, call: ReferenceCall, pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]]
    ) -> dict[str, torch.Tensor]:
        """Return what integers and bools have to be, which depends on roundings of what they are made of.

        Args:
            call: the reference, or a part of it, that `truth` is of.
            pairs: those outputs, or parts of them, and the exact ones, by name.
        """
        if not self._rounds(call):
            return {}
        left: dict[str, Unexplained] = {}
        for name, (out, exact) in pairs.items():
            at = differ(out, exact).reshape(-1).nonzero().flatten()
            if at.numel():
                left[name] = Unexplained(out, exact, at)
        return self._explain(call, left, [pairs[name][0] for name in left], sizes=SIZES)

    def rounded_floats(
        self, call: ReferenceCall, triples: Mapping[str, tuple[torch.Tensor, torch.Tensor, Bound]]
    ) -> dict[str, torch.Tensor]:
        """Return what floats have to be that lie behind a step of the reference, where some are not.

        Args:
            call: the reference, or a part of it, that `truth` is of.
            triples: those outputs, or parts of them, the exact ones, and their bounds, by name.
        """
        if not self._rounds(call):
            return {}
        left: dict[str, Unexplained] = {}
        for name, (out, exact, bound) in triples.items():
            at, within = bound.outside(out, exact)
            if at.numel():
                left[name] = UnexplainedFloats(out, exact, at, within, bound.target)
        return self._explain(call, left, [triples[name][0] for name in left], sizes=SIZES_OF_FLOATS)

    def _rounds(self, call: ReferenceCall) -> bool:
        """Return whether anything is rounded that a result may jump with."""
        floating = any(
            each.dtype.is_floating_point or each.is_complex()
            for _, each in named_tensors((call.args, call.kwargs), "input")
        )
        return floating and self.truth.has_steps and not (self.truth.exact and not self.contract.is_noise)

    def _explain(
        self,
        call: ReferenceCall,
        left: Mapping[str, Unexplained],
        outs: Sequence[torch.Tensor],
        *,
        sizes: Sequence[float],
    ) -> dict[str, torch.Tensor]:
        """Return what outputs have to be, by noise on what they are made of."""
        if not left:
            return {}
        model = self._model(FLOAT32, outs[0], sum(out.numel() for out in outs))
        variance = model.accumulation_variance + model.operand_variance + model.value_variance
        reach = model.sigmas * math.sqrt(variance) + 1.5 * (model.drift + model.drift_of_value / model.unit)
        if self.operands is FLOAT64:
            reach *= FLOAT64.unit_roundoff / FLOAT32.unit_roundoff
        call.run(
            as_rounded,
            settled=self.truth.settled,
            left=left,
            sizes=sizes,
            operands=self.operands if self.truth.rounds_operands else None,
            contract=self.contract,
            reach=reach,
            sigmas=model.sigmas,
        )
        return {name: each.result() for name, each in left.items()}

    def _model(self, accumulation: FloatFormat, out: torch.Tensor, elements: int) -> ErrorModel:
        return model_for(
            self.reduction,
            accumulation=accumulation,
            operands=self.operands if self.truth.has_products else None,
            short_sums=self.has_short_sums(out),
            elements=elements,
            fast_acc=self.contract.fast_acc,
        )

    def _derive(self, name: str, out: torch.Tensor, target: FloatFormat, elements: int) -> tuple[Bound, str]:
        if self.truth.exact and not self.contract.is_noise:
            bound = Bound(
                target=target,
                model=EXACT,
                accumulation=Spread.none(out),
                operands=None,
                contract=None,
                common=0.0,
            )
            return bound, "correctly rounded: all products and sums of these inputs are exact"
        accumulation = accumulation_of(target)
        model = self._model(accumulation, out, elements)
        basis = f"derived from reduction={self.reduction}, {accumulation.name} accumulation"
        if self.truth.has_products:
            basis += f", {self.operands.name} operands"
        if self.contract:
            basis += f", {self.contract}"
        if self.truth.rounds_to:
            basis += f", a reference that itself rounds to {', '.join(self.truth.rounds_to)}"
        bound = Bound(
            target=target,
            model=model,
            accumulation=self.truth.accumulation.get(name) or Spread.none(out),
            operands=self.truth.operands.get(name),
            contract=self.truth.contract.get(name),
            common=math.sqrt(model.value_variance) * model.unit + self._shared_error(name),
        )
        return bound, basis

    def has_short_sums(self, out: torch.Tensor) -> bool:
        """Return whether products may be summed in fewer bits than float32 has, on the device of `out`."""
        import torch

        if not (self.operands.eight_bit and self.truth.has_products and out.is_cuda):
            return False
        return torch.cuda.get_device_capability(out.device)[0] == _HOPPER

    def _shared_error(self, name: str) -> float:
        """Return the relative error that all elements may share besides that of a few float32 roundings.

        Rounding x to nearest is biased where the density f of x is not constant, by x f'/f u^2 / 3 at most:
        the first term of f's expansion over a rounding interval. Falls f no faster than x^-3, that is u^2;
        of operands that lie too close together for that, `common_rounding` was measured.
        """
        rounded = [self.operands] if name in self.truth.operands else []
        rounded += [] if self.contract.mid is None else [self.contract.mid]
        shared = sum(each.unit_roundoff**2 for each in rounded) + self.contract.exp_error
        return shared + (self.truth.common_rounding if name in self.truth.operands else 0.0)

    def looseness(
        self, name: str, out: torch.Tensor, exact: torch.Tensor, elements: int
    ) -> list[torch.Tensor]:
        """Return how many times what is derived the given tolerance allows, of some elements.

        Nothing where nothing was given, or the reference returned no float64 to derive anything from. Allowed
        is the farthest from the exact value that an element may be, its rounding included.

        Args:
            name: see `of`.
            out: likewise.
            exact: of the same shape.
            elements: see `of`.
        """
        import torch

        target = format_of(out.dtype)
        if self.tolerance is None or target is None or not self.truth.accumulation:
            return []
        rtol, atol = self.tolerance
        bound, _ = self._derive(name, out, target, elements)
        truth = matrix_view(exact)
        ratios = []
        for rows, columns in blocks(truth.shape[0], truth.shape[1], CHUNK):
            y = truth[rows, columns]
            _, lowest, highest = bound.interval(y, *bound.noise(y, rows, columns))
            derived = torch.maximum(highest - y, y - lowest)
            ratio = y.abs().mul_(rtol).add_(atol).div_(derived).flatten()
            ratio = ratio[:: -(-ratio.numel() // SAMPLE)]
            ratios.append(ratio[ratio.isfinite()])
        return ratios

    def lets_through(self, out: torch.Tensor, exact: torch.Tensor) -> str:
        """Say what the given tolerance allows where right values are known exactly; empty elsewhere."""
        target = format_of(out.dtype)
        if self.tolerance is None or not exact.numel():
            return ""
        rtol, atol = self.tolerance
        if target is None:
            given, _ = self._of_integers(out)
            return "" if given is None else _any_of(math.floor(atol))
        if not self.truth.exact:
            return ""
        y = exact.reshape(-1)[:: -(-exact.numel() // SAMPLE)].double()
        ulps = y.abs().mul_(rtol).add_(atol).div_(spacing(y, target))
        return f"{float(ulps[y.isfinite()].median()):.3g} ulp from values that are exact"


def _any_of(atol: float) -> str:
    return f"any of {2 * atol + 1:,} integers"


def pass_torch(pairs: Pairs) -> bool:
    """Return whether every output is within the default tolerance of `torch.testing.assert_close`."""
    for _, out, exact in pairs:
        if not out.dtype.is_floating_point:
            if bool(differ(out, exact).any()):
                return False
            continue
        if (tolerance := TORCH_DEFAULTS.get(name_of(out.dtype))) is None:
            return False
        rtol, atol = tolerance
        if compare(out, exact, GivenTolerance(rtol=rtol, atol=atol, target=format_of(out.dtype))).failed:
            return False
    return True


def accumulation_of(target: FloatFormat) -> FloatFormat:
    """Return the format that a kernel with outputs in `target` accumulates in."""
    return FLOAT64 if target is FLOAT64 else FLOAT32
