"""Compares all outputs of a launch with the reference, one part after the other."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from pytest_cutile.correctness.compare.elements import (
    EQUALITY,
    Bound,
    ComparedOutput,
    ElementComparison,
    GivenTolerance,
    differ,
)
from pytest_cutile.correctness.compare.structure import pair_outputs
from pytest_cutile.correctness.error_model.bounds import Bounds
from pytest_cutile.correctness.error_model.noise import ReferenceRuns
from pytest_cutile.correctness.error_model.parts import OUTPUT, Part
from pytest_cutile.correctness.error_model.tolerance import Terms
from pytest_cutile.correctness.errors import KernelMismatch
from pytest_cutile.tile.tensors.dtypes import format_of, name_of
from pytest_cutile.tile.tensors.trees import map_leaves, named_tensors
from pytest_cutile.words.formats import FLOAT64, FORMATS
from pytest_cutile.words.verdicts import Reason

_NEAR = 16.0
"""Largest error, in units of the bound, that more runs with noise are made for; honest kernels reach 2.4."""
_OR = ", or, in other parts, "


class OutputsComparison:
    """The comparison of all outputs of a launch, collected part by part."""

    def __init__(self, outputs: Mapping[str, torch.Tensor], runs: ReferenceRuns) -> None:
        self.outputs = outputs
        self.results = {
            name: ElementComparison(out, functools.partial(self.expected, name))
            for name, out in outputs.items()
        }
        self.allowed = ""
        """What a given tolerance allows where right values are known exactly."""
        self.has_short_sums = False
        """Whether products may be summed in fewer bits than float32 has."""
        self.wholes: list[ComparedOutput] = []
        """Each output with its bound; none of outputs that were compared in parts."""
        self.runs = runs
        self._bases: dict[str, dict[str, None]] = defaultdict(dict)
        """By output, how the bounds of its parts were derived, in words."""
        self._alternatives: dict[str, list[tuple[Part, torch.Tensor]]] = defaultdict(list)
        """By output, parts of it as they have to be beyond a discontinuity."""
        self._rounded: Counter[str] = Counter()
        """How many elements are right beyond a discontinuity that the exact run does not cross."""
        self._ratios: list[torch.Tensor] = []
        """How many times the derived bound a given tolerance is, of some elements."""

    @property
    def failed(self) -> list[str]:
        return [name for name, result in self.results.items() if result.failed]

    @property
    def fails_nearly(self) -> bool:
        """Whether a derived bound might let pass what fails, if noise were measured better."""
        if self.runs.terms.tolerance is not None or not self.failed:
            return False
        failed = [(self.outputs[name], self.results[name]) for name in self.failed]
        return all(
            out.is_floating_point() and not result.pattern and result.worst and result.worst.error <= _NEAR
            for out, result in failed
        )

    def exact(self, name: str) -> torch.Tensor:
        return self.runs.exact(self.outputs)[name]

    def expected(self, name: str) -> torch.Tensor:
        """Return what an output has to be: its exact values, or those beyond a discontinuity."""
        exact = self.exact(name)
        if name in self._alternatives:
            exact = exact.clone()
        for part, values in self._alternatives.get(name, ()):
            part.of(OUTPUT, exact).copy_(values)
        return exact

    @functools.cached_property
    def looser(self) -> float | None:
        """How many times the derived bound a given tolerance allows, in the median."""
        ratios = [ratio for ratio in self._ratios if ratio.numel()]
        return float(torch.cat(ratios).median()) if ratios else None

    def largest(self, figure: Callable[[ElementComparison], float]) -> float:
        return max(map(figure, self.results.values()), default=0.0)

    def add_part(self, part: Part, outputs: Any, title: str) -> None:
        """Compare a part of all outputs; what that took is free again afterwards."""
        terms = self.runs.terms
        truth = self.runs.estimate(part)
        bounds = Bounds(truth=truth, terms=terms)
        title = title if part.is_whole else f"{title}, in one of {len(self.runs.parts)} parts of both,"
        pairs = pair_outputs(
            part.of(OUTPUT, outputs), truth.outputs, title, exact_needed=terms.tolerance is None
        )
        compared = [
            ComparedOutput(name=name, out=out, exact=exact, bound=bounds.of(name, out, self._elements(name)))
            for name, out, exact in pairs
        ]
        alternatives = bounds.beyond_discontinuities(self.runs.call.of(part), compared)
        for output in compared:
            exact = alternatives.get(output.name, output.exact)
            if output.name in alternatives:
                if isinstance(output.bound, Bound):
                    self._alternatives[output.name].append((part, exact))
                self._rounded[output.name] += int(differ(exact, output.exact).sum())
            self._add(part, replace(output, exact=exact), bounds)

    def _elements(self, name: str) -> int:
        return self.outputs[name].numel()

    def _add(self, part: Part, output: ComparedOutput, bounds: Bounds) -> None:
        name, bound = output.name, output.bound
        self.has_short_sums |= bounds.has_short_sums(output.out)
        self._bases[name][bound.basis] = None
        if isinstance(bound, GivenTolerance) and bound is not EQUALITY:
            self._ratios += bounds.looseness(output, bound, self._elements(name))
            self.allowed = self.allowed or bounds.lets_through(output.exact, bound)
        self.results[name].add(output.out, output.exact, bound, part.position(self.outputs[name]))
        if part.is_whole:
            self.wholes.append(output)

    @property
    def overflowed(self) -> tuple[str, ...]:
        """Which outputs are NaN or Inf where the exact value is finite, and rightly so; in words."""
        how = "overflowed to NaN or Inf, as conversions that do not saturate do"
        return tuple(
            f"{result.overflowed:,} of {name} {how}"
            for name, result in self.results.items()
            if result.overflowed
        )

    @property
    def narrowed(self) -> tuple[str, ...]:
        """Which outputs have fewer significant bits than every floating input, in words.

        The bound allows an output's own rounding: the fewer bits a launcher returns, the looser the check.
        """
        inputs = self.runs.terms.narrowest
        if inputs is None:
            return ()
        formats = {name: format_of(out.dtype) for name, out in self.outputs.items()}
        return tuple(
            f"{name} {target.name}, inputs {inputs.name}"
            for name, target in formats.items()
            if target is not None and target.precision < inputs.precision
        )

    def bound(self, name: str) -> str:
        text = _OR.join(self._bases[name])
        if self._rounded[name]:
            text += f", {self._rounded[name]:,} of them as rounding makes them"
        if not self.outputs[name].is_floating_point():
            return text
        if self.looser is not None:
            text += f"; it allows {self.looser:.3g} times as much (median over elements)"
        return f"{text}; it allows {self.allowed} (median over elements)" if self.allowed else text


def compare_outputs(
    outputs: Any, runs: ReferenceRuns, *, title: str = "", may_refine: bool = True
) -> OutputsComparison:
    """Compare all outputs of a launch with the reference, which runs more often where a bound may decide.

    `title` begins the message about outputs that cannot be compared.
    """
    if not runs.terms.wide:
        outputs = floats_as(torch.float32, outputs)
    outs = dict(named_tensors(outputs, OUTPUT))
    _check_width(outs, runs.terms, title)
    while True:
        comparison = OutputsComparison(outs, runs)
        for part in runs.parts:
            comparison.add_part(part, outputs, title)
        if not (may_refine and comparison.fails_nearly and runs.refine()):
            return comparison


def floats_as(dtype: torch.dtype, result: Any) -> Any:
    """Return a result with tensors of no dimension in the place of floats."""
    return map_leaves(
        lambda leaf: torch.tensor(leaf, dtype=dtype) if isinstance(leaf, float) else leaf, result
    )


def _check_width(outs: Mapping[str, torch.Tensor], terms: Terms, title: str) -> None:
    """Raise KernelMismatch if float64 inputs became a narrower output, and nothing says that they may."""
    if terms.may_narrow or terms.policy.mid not in (None, FLOAT64) or terms.tolerance is not None:
        return
    for name, dtype in ((name, name_of(out.dtype)) for name, out in outs.items()):
        if dtype in FORMATS and dtype != FLOAT64.name:
            raise KernelMismatch(
                f"{title} in dtype: {name} is {dtype}, floating inputs are 64 bits wide\n"
                f'a kernel that is meant to narrow them says so, with precision="{dtype}", or with mid '
                "where it rounds intermediate results",
                reason=Reason.OTHER_STRUCTURE,
            )
