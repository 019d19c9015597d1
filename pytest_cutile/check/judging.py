"""Compares what a launch returned with what the reference computed, and says what is wrong."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_cutile.check.bounds import Bounds, accumulation_of
from pytest_cutile.check.compare import Comparison, compare
from pytest_cutile.check.errors import KernelMismatch, ReferenceFailed
from pytest_cutile.check.findings import also_wrong, explain, fit
from pytest_cutile.check.ladder import rungs, what_would_pass
from pytest_cutile.check.noise import allow
from pytest_cutile.check.strength import Checked
from pytest_cutile.core.tolerance import Contract
from pytest_cutile.gpu.dtypes import format_of, name_of
from pytest_cutile.gpu.trees import describe, named_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

LADDER_SECONDS = 20.0
"""Length of a check from which a failure is reported without looking for what would have passed."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What the comparison of right outputs has seen: see `CheckReport`."""

    elements: int
    worst_error: float
    worst_ulps: float
    energy: float
    slope: float
    looser: float | None
    bound: str
    checked: tuple[Checked, ...]
    """Each output with its bound."""


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Everything that outputs are compared with."""

    title: str
    """First line of a failure."""
    reference: Callable[..., Any]
    """The reference, to look for what would have passed."""
    before: tuple[Sequence[Any], Mapping[str, Any]]
    """Its arguments, before upcasting."""
    bounds: Bounds
    """What is allowed, around what the reference computed."""
    started: float
    """When the check began (time.perf_counter)."""

    def judge(self, outputs: Any) -> Judged:
        """Compare all outputs of a launch.

        Raises:
            KernelMismatch: one is wrong, or has another structure or shape.
            ReferenceFailed: the reference returned what nothing can be compared with.
        """
        bounds = self.bounds
        derived = bounds.tolerance is None
        pairs = _pair(outputs, bounds.truth.outputs, self.title, exact_needed=derived)
        looser = bounds.looseness(pairs)
        mismatch: KernelMismatch | None = None
        lines: list[str] = []
        wrong: list[str] = []
        bases: dict[str, None] = {}
        results: list[Comparison] = []
        checked: list[Checked] = []
        for name, out, exact in pairs:
            bound, basis = bounds.of(name, out)
            if looser is not None and bound is not None:
                basis += f"; it allows {looser:.3g} times as much (median over elements)"
            bases[basis] = None
            result = compare(out, exact, bound)
            results.append(result)
            checked.append(Checked(name=name, out=out, exact=exact, bound=bound))
            if not result.failed:
                continue
            wrong.append(name)
            if mismatch is None:
                found = explain(name, out, exact, result, basis=basis, reduction=bounds.reduction)
                lines, mismatch = found.lines, KernelMismatch()
                mismatch.picture = found.picture
                if result.outside is not None and result.worst is not None:
                    mismatch.output, mismatch.index = out, result.worst.index
        if mismatch is not None:
            if derived and not any(each.pattern for each in results):
                lines += self._climb(pairs)
            mismatch.args = (f"{fit([self.title, *lines])}{also_wrong(wrong[1:])}",)
            raise mismatch
        return Judged(
            elements=sum(out.numel() for _, out, _ in pairs),
            worst_error=max((each.worst.error for each in results if each.worst is not None), default=0.0),
            worst_ulps=max((each.worst_ulps for each in results), default=0.0),
            energy=max((each.energy for each in results), default=0.0),
            slope=max((each.slope for each in results), default=0.0),
            looser=looser,
            bound="; ".join(bases),
            checked=tuple(checked),
        )

    def _climb(self, pairs: list[tuple[str, torch.Tensor, torch.Tensor]]) -> list[str]:
        """Return the line that says what would have passed, or why that is not known."""
        bounds = self.bounds
        formats = [found for _, out, _ in pairs if (found := format_of(out.dtype)) is not None]
        if not formats:
            return []
        if (seconds := time.perf_counter() - self.started) > LADDER_SECONDS:
            return [f"  looser contracts were not tried: this check took {seconds:.0f} s without them"]

        def passes(contract: Contract) -> bool:
            truth = allow(bounds.truth, contract, self.reference, *self.before)
            return replace(bounds, truth=truth, contract=contract).pass_all(pairs)

        accumulation = min((accumulation_of(each) for each in formats), key=lambda each: each.precision)
        contracts = rungs(
            bounds.contract,
            accumulation,
            exponentials=bounds.truth.has_exponentials,
            short_sums=any(bounds.has_short_sums(out) for _, out, _ in pairs),
        )
        return [f"  {what_would_pass(contracts, passes, lambda: bounds.pass_torch(pairs))}"]


def _pair(
    outputs: Any, exact: Any, title: str, *, exact_needed: bool
) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Return every output with its exact value, or raise if they cannot be compared."""
    left, right = dict(named_tensors(outputs, "output")), dict(named_tensors(exact, "output"))
    shapes = [tuple(each.shape) for each in left.values()], [tuple(each.shape) for each in right.values()]
    if left.keys() != right.keys() or shapes[0] != shapes[1]:
        raise KernelMismatch(
            f"{title} in structure or shape:\n  got       {describe(outputs)}\n  reference {describe(exact)}"
        )
    for name, out in left.items():
        given = right[name]
        if out.dtype.is_floating_point and given.dtype.is_floating_point:
            if exact_needed and given.dtype.itemsize < 8:  # noqa: PLR2004
                raise ReferenceFailed(
                    f"the reference returned {name} as {name_of(given.dtype)}: it has to compute and return "
                    "float64, without rounding to the kernel's dtype, or rtol and atol have to be given"
                )
        elif _kind(out.dtype) != _kind(given.dtype):
            raise ReferenceFailed(
                f"the reference returned {name} as {name_of(given.dtype)}, the kernel as "
                f"{name_of(out.dtype)}: floating outputs are compared with float64, "
                "integers exactly with integers, bool with bool"
            )
        if given.device != out.device:
            raise ReferenceFailed(
                f"the reference returned {name} on {given.device}, the kernel on {out.device}: "
                "return it on the device of the arguments, which are where the kernel's are"
            )
    return [(name, out, right[name]) for name, out in left.items()]


def _kind(dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        return "floating"
    return "complex" if dtype.is_complex else {"bool": "bool"}.get(name_of(dtype), "integer")
