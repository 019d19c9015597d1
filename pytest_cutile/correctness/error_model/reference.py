"""A reference with its arguments, its runs on the whole or on parts, and whether parts may be taken."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from pytest_cutile.correctness.error_model.noise import ReferenceEstimate, allow, run_reference
from pytest_cutile.correctness.error_model.parts import OUTPUT, Part, neighbours
from pytest_cutile.correctness.error_model.running import Slices, run_exactly
from pytest_cutile.correctness.error_model.tolerance import NumericsPolicy, Terms
from pytest_cutile.correctness.errors import ReferenceFailed
from pytest_cutile.correctness.signatures import parameters_of
from pytest_cutile.spec import Axes
from pytest_cutile.tensors.trees import map_leaves, named_tensors

ORIGIN = "origin"
"""Parameter of a reference to which it matters where in the whole a part lies."""
_ROUNDING = 1e-12
"""Of float64, relative to the largest value: what sums in another order may differ by."""


@dataclass(frozen=True, kw_only=True)
class ReferenceCall:
    """A reference with the arguments of a launch."""

    reference: Callable[..., Any]
    name: str
    """What messages call it: "the reference softmax of softmax_kernel"."""
    args: Mapping[str, Any]
    """Its positional arguments before upcasting, by the names that the launcher has for them."""
    kwargs: Mapping[str, Any]
    sliced: Collection[str] = ()
    """Names of those of which it takes one slice at a time."""
    part: Part = field(default_factory=Part)

    def of(self, part: Part) -> ReferenceCall:
        return replace(self, part=part)

    def leaving(self, names: Collection[str]) -> ReferenceCall:
        """Return the call that returns what the reference leaves in those of `names` that it changes."""
        reference = self.reference

        @functools.wraps(reference)
        def leave(*args: Any, **kwargs: Any) -> dict[str, Any]:
            given = {**dict(zip(self.args, args, strict=True)), **kwargs}

            def versions(name: str) -> list[int]:
                # torch counts what is written to a tensor, or to a view of it
                return [tensor._version for _, tensor in named_tensors(given[name], name)]  # noqa: SLF001

            before = {name: versions(name) for name in names}
            reference(*args, **kwargs)
            return {name: given[name] for name in names if versions(name) != before[name]}

        return replace(self, reference=leave)

    def then(self, change: Callable[[Mapping[str, Any], Any], Any]) -> ReferenceCall:
        """Return the call that returns `change(arguments by name, result)`."""
        reference = self.reference

        @functools.wraps(reference)
        def changed(*args: Any, **kwargs: Any) -> Any:
            result = reference(*args, **kwargs)
            return change({**dict(zip(self.args, args, strict=True)), **kwargs}, result)

        return replace(self, reference=changed)

    def run(self, function: Callable[..., Any], **options: Any) -> Any:
        """Return `function(reference, args, kwargs, **options)`; raise ReferenceFailed if it raised."""
        args, kwargs = (
            {name: self._given(name, value) for name, value in values.items()}
            for values in (self.args, self.kwargs)
        )
        if not self.part.is_whole and any(
            parameter.name == ORIGIN for parameter in parameters_of(self.reference)
        ):
            kwargs[ORIGIN] = self.part.origin({**self.args, **self.kwargs})
        try:
            return function(self.reference, tuple(args.values()), kwargs, **options)
        except Exception as error:
            where = "" if self.part.is_whole else ", for a part of its arguments, as independent=... says,"
            raise ReferenceFailed(f"{self.name}{where} raised {type(error).__name__}: {error}") from error

    def _given(self, name: str, value: Any) -> Any:
        part = self.part.of(name, value)
        if name not in self.sliced:
            return part
        return map_leaves(lambda leaf: Slices(leaf) if isinstance(leaf, torch.Tensor) else leaf, part)


class ReferenceRuns:
    """Runs a reference when its values are needed, and keeps those of the whole for all launches.

    The values of a part are not kept: a case is cut so that they need not fit into memory together.
    """

    def __init__(self, call: ReferenceCall, parts: Sequence[Part], terms: Terms) -> None:
        self.call = call
        self.parts = parts
        self.terms = terms
        self.count = 0
        """How often the reference ran on each part, for one launch."""
        self.longest_sum = 1
        self.is_fixed = self.has_products = self.has_exponentials = False
        """What any run has shown, as `ReferenceEstimate` has it."""
        self._whole: ReferenceEstimate | None = None

    @property
    def keeps_the_whole(self) -> bool:
        return self._whole is not None

    def estimate(self, part: Part, policy: NumericsPolicy) -> ReferenceEstimate:
        """Return a part's exact values and their noise under a policy; raise ReferenceFailed."""
        call = self.call.of(part)
        truth = self._whole
        if truth is None:
            truth = call.run(run_reference, operands=self.terms.operands, policy=self.terms.policy)
            if truth.is_random:
                raise ReferenceFailed(
                    f"{call.name} draws random numbers, and returns something else when it is called again: "
                    "let it make a torch.Generator with a seed of its own, or give it what was drawn"
                )
            self.count = max(self.count, truth.runs)
            self.longest_sum = max(self.longest_sum, truth.observed.longest_sum)
            self.is_fixed |= truth.is_fixed
            self.has_products |= truth.observed.has_products
            self.has_exponentials |= truth.observed.has_exponentials
            if part.is_whole:
                self._whole = truth
        if policy != self.terms.policy:
            truth = call.run(partial(allow, truth, policy))
        return truth

    def exact(self, outputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if self._whole is not None:
            return dict(named_tensors(self._whole.outputs, OUTPUT))
        exact: dict[str, torch.Tensor] = {}
        for part in self.parts:
            for name, values in named_tensors(self.call.of(part).run(run_exactly), OUTPUT):
                if name not in exact:
                    exact[name] = torch.empty(outputs[name].shape, dtype=values.dtype, device=values.device)
                part.of(OUTPUT, exact[name]).copy_(values)
        return exact


def floats_as(dtype: torch.dtype, result: Any) -> Any:
    """Return a result with tensors of no dimension in the place of floats."""
    return map_leaves(
        lambda leaf: torch.tensor(leaf, dtype=dtype) if isinstance(leaf, float) else leaf, result
    )


def check_independence(call: ReferenceCall, axes: Axes, outputs: Any) -> None:
    """Raise ReferenceFailed if the reference of a few neighbours is not that of their halves."""
    for axis, both, halves in neighbours(axes, {**call.args, **call.kwargs}, outputs):
        together = call.of(both).run(run_exactly)
        first, last, _ = both.ranges[axis]
        for half in halves:
            begin, end, _ = half.ranges[axis]
            inside = Part(axes=axes, ranges={axis: (begin - first, end - first, last - first)})
            expected = inside.of(OUTPUT, together)
            alone = call.of(half).run(run_exactly)
            left, right = dict(named_tensors(expected, OUTPUT)), dict(named_tensors(alone, OUTPUT))
            if left.keys() != right.keys() or not all(_is_same(left[name], right[name]) for name in left):
                raise ReferenceFailed(
                    f"{call.name} returns something else for a part of its arguments than for that part "
                    f"among others: it is not independent along {axis!r}, as {dict(axes)!r} says"
                )


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.dtype.is_floating_point:
        return torch.equal(one, other)
    largest = one.abs().nan_to_num(posinf=0.0).max().item() if one.numel() else 0.0
    return torch.allclose(one, other, rtol=0.0, atol=_ROUNDING * largest, equal_nan=True)
