"""Compares all outputs of a launch with the reference, one part after the other."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_cutile.correctness.compare.elements import Bound, Comparing, Comparison, GivenTolerance, differ
from pytest_cutile.correctness.compare.structure import pair_outputs
from pytest_cutile.correctness.error_model.bounds import Bounds
from pytest_cutile.correctness.error_model.parts import OUTPUT, Part
from pytest_cutile.correctness.error_model.reference import floats_as
from pytest_cutile.correctness.error_model.runs import ReferenceRuns
from pytest_cutile.correctness.error_model.terms import Terms
from pytest_cutile.correctness.error_model.tolerance import NumericsPolicy
from pytest_cutile.correctness.errors import KernelMismatch
from pytest_cutile.tensors.dtypes import name_of
from pytest_cutile.tensors.formats import FLOAT64, FORMATS
from pytest_cutile.tensors.trees import named_tensors

ExactValues = Callable[[], Mapping[str, torch.Tensor]]
Alternative = tuple[Part, str, torch.Tensor]
"""A part, the name of an output, and what that part of it has to be."""

_OR = ", or, in other parts, "


@dataclass(frozen=True, kw_only=True)
class ComparedOutput:
    """One output with what it was compared with."""

    name: str
    out: torch.Tensor
    exact: torch.Tensor
    bound: Bound | GivenTolerance | None
    """What it was held to; None: equality."""


@dataclass(frozen=True, kw_only=True)
class OutputsComparison:
    """The comparison of all outputs of a launch; see `CheckReport` for the figures."""

    outputs: Mapping[str, torch.Tensor]
    results: Mapping[str, Comparison]
    bounds: Mapping[str, str]
    looser: float | None
    """How many times the derived bound a given tolerance allows, in the median."""
    allowed: str
    """What a given tolerance allows where right values are known exactly."""
    has_short_sums: bool
    """Whether products may be summed in fewer bits than float32 has."""
    wholes: tuple[ComparedOutput, ...]
    """Each output with its bound; none of outputs that were compared in parts."""
    exact: ExactValues
    alternatives: tuple[Alternative, ...]
    """Parts of floating outputs as they have to be beyond a discontinuity."""

    @property
    def failed(self) -> tuple[str, ...]:
        return tuple(name for name, result in self.results.items() if result.failed)

    def expected(self, name: str) -> torch.Tensor:
        """Return what an output has to be: its exact values, or those beyond a discontinuity."""
        return _with_alternatives(name, self.exact()[name], self.alternatives)

    @property
    def elements(self) -> int:
        return sum(out.numel() for out in self.outputs.values())

    def largest(self, figure: Callable[[Comparison], float]) -> float:
        return max(map(figure, self.results.values()), default=0.0)


def compare_outputs(
    outputs: Any,
    runs: ReferenceRuns,
    *,
    title: str,
    policy: NumericsPolicy | None = None,
    exact: ExactValues | None = None,
) -> OutputsComparison:
    """Compare all outputs of a launch, under the check's own numerics policy by default.

    Raises:
        KernelMismatch: an output has another structure, shape or width.
        ReferenceFailed: the reference raised, or returned incomparable values.
    """
    terms = runs.terms
    if not terms.wide:
        outputs = floats_as(torch.float32, outputs)
    outs = dict(named_tensors(outputs, OUTPUT))
    _check_width(outs, terms, title)
    exact = exact or functools.cache(lambda: runs.exact(outs))
    return _Comparer(outputs, outs, runs, title, terms.policy if policy is None else policy, exact).compare()


def _check_width(outs: Mapping[str, torch.Tensor], terms: Terms, title: str) -> None:
    """Raise KernelMismatch if float64 inputs became a narrower output, and nothing says that they may."""
    if terms.may_narrow or terms.policy.mid not in (None, FLOAT64) or terms.tolerance is not None:
        return
    for name, dtype in ((name, name_of(out.dtype)) for name, out in outs.items()):
        if dtype in FORMATS and dtype != FLOAT64.name:
            raise KernelMismatch(
                f"{title} in dtype: {name} is {dtype}, floating inputs are 64 bits wide\n"
                f'a kernel that is meant to narrow them says so, with precision="{dtype}", or with mid '
                "where it rounds intermediate results"
            )


@dataclass
class _Comparer:
    """Collects the comparison of all outputs, part by part: see `OutputsComparison` for its fields."""

    outputs: Any
    outs: Mapping[str, torch.Tensor]
    runs: ReferenceRuns
    title: str
    policy: NumericsPolicy
    exact: ExactValues
    bounds: dict[str, str] = field(default_factory=dict)
    ratios: list[torch.Tensor] = field(default_factory=list)
    """How many times the derived bound is what was given, of some elements."""
    rounded: Counter[str] = field(default_factory=Counter)
    """How many elements are right beyond a discontinuity that the exact run does not cross."""
    allowed: dict[str, None] = field(default_factory=dict)
    wholes: list[ComparedOutput] = field(default_factory=list)
    alternatives: list[Alternative] = field(default_factory=list)
    has_short_sums: bool = False

    def compare(self) -> OutputsComparison:
        comparing = {
            name: Comparing(out, functools.partial(self._exact_of, name)) for name, out in self.outs.items()
        }
        for part in self.runs.parts:
            self._add_part(part, comparing)
        for name, count in (+self.rounded).items():
            self.bounds[name] += f", {count:,} of them as rounding makes them"
        results = {name: result.result() for name, result in comparing.items()}
        looser = (
            float(torch.cat(self.ratios).median()) if any(ratio.numel() for ratio in self.ratios) else None
        )
        allowed = next(iter(self.allowed), "")
        for name in (name for name, out in self.outs.items() if out.dtype.is_floating_point):
            if looser is not None:
                self.bounds[name] += f"; it allows {looser:.3g} times as much (median over elements)"
            if allowed:
                self.bounds[name] += f"; it allows {allowed} (median over elements)"
        return OutputsComparison(
            outputs=self.outs,
            results=results,
            bounds=self.bounds,
            looser=looser,
            allowed=allowed,
            has_short_sums=self.has_short_sums,
            wholes=tuple(self.wholes),
            exact=self.exact,
            alternatives=tuple(self.alternatives),
        )

    def _add_part(self, part: Part, comparing: Mapping[str, Comparing]) -> None:
        """Compare a part of all outputs. When this returns, all that it took for that is free again."""
        terms, count = self.runs.terms, len(self.runs.parts)
        truth = self.runs.estimate(part, self.policy)
        bounds = Bounds(truth=truth, terms=terms, policy=self.policy)
        title = self.title if part.is_whole else f"{self.title}, in one of {count} parts of both,"
        pairs = pair_outputs(
            part.of(OUTPUT, self.outputs), truth.outputs, title, exact_needed=terms.tolerance is None
        )
        bound_of = {name: bounds.of(name, out, self.outs[name].numel()) for name, out, _ in pairs}
        call = self.runs.call.of(part)
        expected = bounds.rounded_integers(
            call, {name: (out, exact) for name, out, exact in pairs if bound_of[name][0] is None}
        )
        derived = {name: bound for name, (bound, _) in bound_of.items() if isinstance(bound, Bound)}
        alternatives = bounds.rounded_floats(
            call, {name: (out, exact, derived[name]) for name, out, exact in pairs if name in derived}
        )
        self.alternatives += [(part, name, exact) for name, exact in alternatives.items()]
        expected |= alternatives
        for name, out, unrounded in pairs:
            whole = self.outs[name]
            bound, words = bound_of[name]
            exact = expected.get(name, unrounded)
            if name in expected:
                self.rounded[name] += _count_different(exact, unrounded)
            self.has_short_sums |= bounds.has_short_sums(out)
            self._add_bound(name, words)
            self.ratios += bounds.looseness(name, out, exact, whole.numel())
            if allowed := bounds.lets_through(out, exact):
                self.allowed[allowed] = None
            comparing[name].add(out, exact, bound, part.place(whole))
            if part.is_whole:
                self.wholes.append(ComparedOutput(name=name, out=out, exact=exact, bound=bound))

    def _exact_of(self, name: str) -> torch.Tensor:
        return _with_alternatives(name, self.exact()[name], self.alternatives)

    def _add_bound(self, name: str, words: str) -> None:
        others = self.bounds.get(name, "").split(_OR)
        self.bounds[name] = _OR.join(dict.fromkeys([*filter(None, others), words]))


def _with_alternatives(name: str, exact: torch.Tensor, alternatives: Iterable[Alternative]) -> torch.Tensor:
    """Return the exact values of an output, replaced where others are right beyond a discontinuity."""
    parts = [(part, values) for part, other, values in alternatives if other == name]
    if parts:
        exact = exact.clone()
    for part, values in parts:
        part.of(OUTPUT, exact).copy_(values)
    return exact


def _count_different(one: torch.Tensor, other: torch.Tensor) -> int:
    if not one.dtype.is_floating_point:
        return int(differ(one, other).sum())
    return int(((one != other) & ~(one.isnan() & other.isnan())).sum())
