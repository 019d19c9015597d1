"""Compares what a launch returned with what the reference computed, and says what is wrong."""

from __future__ import annotations

import functools
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from numbers import Number
from typing import TYPE_CHECKING, Any

from pytest_cutile.check.bounds import Bounds, accumulation_of, pass_torch
from pytest_cutile.check.compare import Bound, Comparing, Comparison, differ
from pytest_cutile.check.errors import KernelMismatch, ReferenceFailed, UncheckableOutput
from pytest_cutile.check.findings import also_wrong, explain, fit
from pytest_cutile.check.ladder import WOULD, are_lost, rungs, what_would_pass, would_pass_with
from pytest_cutile.check.noise import Reference, allow, run_exactly, run_reference
from pytest_cutile.check.parts import OUTPUT, Part
from pytest_cutile.check.reference import floats_as
from pytest_cutile.check.strength import Checked
from pytest_cutile.core.tolerance import FLOAT32, FLOAT64, FORMATS, TFLOAT32, Contract, FloatFormat
from pytest_cutile.gpu.dtypes import format_of, name_of
from pytest_cutile.gpu.trees import describe, named_leaves, named_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from pytest_cutile.check.reference import ReferenceCall

    ExactValues = Callable[[], Mapping[str, torch.Tensor]]
    """Returns the exact values of all outputs, by name."""

LADDER_SECONDS = 20.0
"""Length of a check from which a failure is reported without looking for what would have passed."""
_OR = ", or, in other parts, "


class _Nothing:
    """What a result has where the other one has something."""

    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What the comparison of right outputs has seen: see `CheckReport`."""

    elements: int
    worst_error: float
    worst_ulps: float
    energy: float
    slope: float
    looser: float | None
    allowed: str
    bound: str
    checked: tuple[Checked, ...]
    """Each output with its bound; none of outputs that were compared in parts."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a check asks for, apart from the reference."""

    reduction: int
    """Length of the longest sum behind one output element."""
    operands: FloatFormat
    """Format that operands of matrix products are rounded to."""
    contract: Contract
    """What the kernel may do besides."""
    tolerance: tuple[float, float] | None
    """rtol and atol, given in place of the derived bound."""
    wide: bool
    """Whether floating inputs, but for single numbers, are all 64 bits wide."""
    may_narrow: bool
    """Whether none is, or it is said what operands are rounded to."""


class Judge:
    """Everything that outputs are compared with.

    Args:
        title: First line of a failure.
        reference: The reference, with the arguments as they were before the launch.
        parts: In which the reference runs and outputs are compared, one after the other.
        terms: Of the comparison.
        started: When the check began (time.perf_counter).
    """

    def __init__(
        self, *, title: str, reference: ReferenceCall, parts: Sequence[Part], terms: Terms, started: float
    ) -> None:
        self._title = title
        self._reference = reference
        self._parts = parts
        self._terms = terms
        self._started = started
        self._truth: Reference | None = None
        self._has_products = self._has_exponentials = self._has_short_sums = self._is_fixed = False
        self._longest_sum = 1
        self.runs = 0
        """How often the reference ran on each part, for one launch."""

    def judge(self, outputs: Any) -> Judged:
        """Compare all outputs of a launch.

        Raises:
            KernelMismatch: one is wrong, or has another structure or shape.
            ReferenceFailed: the reference raised, or returned what nothing can be compared with.
        """
        import torch

        if not self._terms.wide:
            outputs = floats_as(torch.float32, outputs)
        outs = dict(named_tensors(outputs, OUTPUT))
        self._check_narrowing(outs)
        exact = functools.cache(lambda: self._exact(outs))
        seen = self._compare(outputs, self._terms.contract, exact)
        looser = seen.looser
        if looser is not None:
            for name in (name for name, out in outs.items() if out.dtype.is_floating_point):
                seen.bases[name] += f"; it allows {looser:.3g} times as much (median over elements)"
        allowed = next(iter(seen.allowed), "")
        for name in (name for name, out in outs.items() if allowed and out.dtype.is_floating_point):
            seen.bases[name] += f"; it allows {allowed} (median over elements)"
        results = seen.results.values()
        if any(each.failed for each in results):
            raise self._explain(outputs, seen, exact)
        return Judged(
            elements=sum(out.numel() for out in outs.values()),
            worst_error=max((each.worst.error for each in results if each.worst is not None), default=0.0),
            worst_ulps=max((each.worst_ulps for each in results), default=0.0),
            energy=max((each.energy for each in results), default=0.0),
            slope=max((each.slope for each in results), default=0.0),
            looser=looser,
            allowed=allowed,
            bound="; ".join(dict.fromkeys(seen.bases.values())),
            checked=tuple(seen.checked),
        )

    def _check_narrowing(self, outs: Mapping[str, torch.Tensor]) -> None:
        """Raise KernelMismatch if float64 inputs became a narrower output, and nothing says that they may."""
        terms = self._terms
        if terms.may_narrow or terms.contract.mid not in (None, FLOAT64) or terms.tolerance is not None:
            return
        for name, dtype in ((name, name_of(out.dtype)) for name, out in outs.items()):
            if dtype in FORMATS and dtype != FLOAT64.name:
                raise KernelMismatch(
                    f"{self._title} in dtype: {name} is {dtype}, floating inputs are 64 bits wide\n"
                    f'a kernel that is meant to narrow them says so, with precision="{dtype}", or with mid '
                    "where it rounds intermediate results"
                )

    def accepts(self, outputs: Any, contract: Contract, exact: ExactValues) -> bool:
        """Return whether all outputs of a launch pass under a contract."""
        return not any(each.failed for each in self._compare(outputs, contract, exact).results.values())

    def _compare(self, outputs: Any, contract: Contract, exact: ExactValues) -> _Seen:
        """Compare all outputs under a contract, one part after the other."""
        seen = _Seen()

        def exact_of(name: str) -> torch.Tensor:
            return seen.as_stepped(name, exact()[name])

        comparing = {
            name: Comparing(out, partial(exact_of, name)) for name, out in named_tensors(outputs, OUTPUT)
        }
        for part in self._parts:
            self._compare_part(part, outputs, contract, comparing, seen)
        for name, count in (+seen.rounded).items():
            seen.bases[name] += f", {count:,} of them as rounding makes them"
        seen.results = {name: each.result() for name, each in comparing.items()}
        return seen

    def _compare_part(
        self, part: Part, outputs: Any, contract: Contract, comparing: Mapping[str, Comparing], seen: _Seen
    ) -> None:
        """Compare a part of all outputs. When this returns, all that it took for that is free again."""
        terms = self._terms
        truth = self._truth_of(part, contract)
        bounds = Bounds(
            truth=truth,
            reduction=terms.reduction,
            operands=terms.operands,
            contract=contract,
            tolerance=terms.tolerance,
        )
        title = (
            self._title if part.is_whole else f"{self._title}, in one of {len(self._parts)} parts of both,"
        )
        pairs = _pair(part.of(OUTPUT, outputs), truth.outputs, title, exact_needed=terms.tolerance is None)
        wholes = dict(named_tensors(outputs, OUTPUT))
        bounds_of = {name: bounds.of(name, out, wholes[name].numel()) for name, out, _ in pairs}
        call = self._reference.of(part)
        rounded = bounds.rounded_integers(
            call, {name: (out, exact) for name, out, exact in pairs if bounds_of[name][0] is None}
        )
        derived = {name: bound for name, (bound, _) in bounds_of.items() if isinstance(bound, Bound)}
        stepped = bounds.rounded_floats(
            call, {name: (out, exact, derived[name]) for name, out, exact in pairs if name in derived}
        )
        seen.stepped += [(part, name, exact) for name, exact in stepped.items()]
        rounded |= stepped
        for name, out, unrounded in pairs:
            elements = wholes[name].numel()
            bound, basis = bounds_of[name]
            exact = rounded.get(name, unrounded)
            if name in rounded:
                seen.rounded[name] += _count_different(exact, unrounded)
            self._has_short_sums |= bounds.has_short_sums(out)
            seen.add_basis(name, basis)
            seen.ratios += bounds.looseness(name, out, exact, elements)
            if allowed := bounds.lets_through(out, exact):
                seen.allowed[allowed] = None
            comparing[name].add(out, exact, bound, part.place(wholes[name]))
            if part.is_whole:
                seen.checked.append(Checked(name=name, out=out, exact=exact, bound=bound))

    def _truth_of(self, part: Part, contract: Contract) -> Reference:
        """Run the reference on a part, exactly and with noise; on all of it once, for all launches."""
        call, terms = self._reference.of(part), self._terms
        truth = self._truth
        if truth is None:
            truth = call.run(run_reference, operands=terms.operands, contract=terms.contract)
            if truth.is_random:
                raise ReferenceFailed(
                    f"{call.name} draws random numbers, and returns something else when it is called again: "
                    "let it make a torch.Generator with a seed of its own, or give it what was drawn"
                )
            self.runs = max(self.runs, truth.runs)
            self._longest_sum = max(self._longest_sum, truth.longest_sum)
            self._is_fixed |= truth.is_fixed
            self._has_products |= truth.has_products
            self._has_exponentials |= truth.has_exponentials
            if part.is_whole:
                self._truth = truth
        if contract != terms.contract:
            truth = call.run(partial(allow, truth, contract))
        return truth

    def _exact(self, outs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the exact values of all outputs, by name."""
        import torch

        if self._truth is not None:
            return dict(named_tensors(self._truth.outputs, OUTPUT))
        exact: dict[str, torch.Tensor] = {}
        for part in self._parts:
            for name, values in named_tensors(self._reference.of(part).run(run_exactly), OUTPUT):
                if name not in exact:
                    exact[name] = torch.empty(outs[name].shape, dtype=values.dtype, device=values.device)
                part.of(OUTPUT, exact[name]).copy_(values)
        return exact

    def _explain(self, outputs: Any, seen: _Seen, exact: ExactValues) -> KernelMismatch:
        """Return a failure that says what is wrong."""
        outs = dict(named_tensors(outputs, OUTPUT))
        name, *others = (name for name, result in seen.results.items() if result.failed)
        out, result = outs[name], seen.results[name]
        reduction = self._terms.reduction
        right = seen.as_stepped(name, exact()[name])
        found = explain(name, out, right, result, basis=seen.bases[name], reduction=reduction)
        mismatch = KernelMismatch()
        mismatch.picture = found.picture
        if result.outside is not None and result.worst is not None:
            mismatch.output, mismatch.index = out, result.worst.index
        lines = found.lines
        if len(self._parts) > 1:
            lines.append(f"  compared in {len(self._parts)} parts, which independent=... says may be")
        if self._is_fixed:
            lines.append("  the reference does not follow its arguments: it has to compute from them")
        elif self._terms.tolerance is None and not any(each.pattern for each in seen.results.values()):
            lines += self._climb(outputs, seen, exact)
        mismatch.args = (f"{fit([self._title, *lines])}{also_wrong(others)}",)
        return mismatch

    def _is_any_lost(self, outs: Mapping[str, torch.Tensor], seen: _Seen, contract: Contract) -> bool:
        """Return whether elements pass under a contract that does not explain them; not known of parts."""
        if self._truth is None:
            return False
        truth = self._truth_of(Part(), contract)
        exact = dict(named_tensors(truth.outputs, OUTPUT))
        return any(
            are_lost(outs[name], seen.as_stepped(name, exact[name]), result.outside, truth.contract[name])
            for name, result in seen.results.items()
            if result.outside is not None and name in truth.contract
        )

    def _climb(self, outputs: Any, seen: _Seen, exact: ExactValues) -> list[str]:
        """Return the line that says what would have passed, or why that is not known."""
        outs = dict(named_tensors(outputs, OUTPUT))
        formats = [found for out in outs.values() if (found := format_of(out.dtype)) is not None]
        if not formats:
            return []
        if (seconds := time.perf_counter() - self._started) > LADDER_SECONDS:
            return [f"  looser contracts were not tried: this check took {seconds:.0f} s without them"]

        def passes(contract: Contract) -> bool:
            return self.accepts(outputs, contract, exact)

        def passes_with(**changes: Any) -> bool:
            terms = replace(self._terms, **changes)
            judge = Judge(
                title=self._title,
                reference=self._reference,
                parts=self._parts,
                terms=terms,
                started=self._started,
            )
            return judge.accepts(outputs, terms.contract, exact)

        def passes_torch() -> bool:
            return pass_torch([(name, out, exact()[name]) for name, out in outs.items()])

        accumulation = min((accumulation_of(each) for each in formats), key=lambda each: each.precision)
        contracts = rungs(
            self._terms.contract,
            accumulation,
            exponentials=self._has_exponentials,
            short_sums=self._has_short_sums,
        )
        on_cuda_cores = self._has_products and self._terms.operands is FLOAT32
        if self._longest_sum > self._terms.reduction and passes_with(reduction=self._longest_sum):
            said = would_pass_with(f"reduction={self._longest_sum}")
        elif on_cuda_cores and passes_with(operands=TFLOAT32):
            said = would_pass_with('precision="tfloat32"')
        else:
            said = what_would_pass(contracts, passes, passes_torch)
        if contracts and said.startswith(WOULD) and self._is_any_lost(outs, seen, contracts[-1]):
            said = "elements are off by more than half of their value, which no looser contract explains"
        return [f"  {said}"]


@dataclass
class _Seen:
    """What a comparison of all outputs has found, by output."""

    results: dict[str, Comparison] = field(default_factory=dict)
    bases: dict[str, str] = field(default_factory=dict)
    """What was allowed, in words."""
    ratios: list[torch.Tensor] = field(default_factory=list)
    """How many times the derived bound is what was given, of some elements."""
    rounded: Counter[str] = field(default_factory=Counter)
    """How many elements are right behind a step that they do not take in the exact run."""
    allowed: dict[str, None] = field(default_factory=dict)
    """What a given tolerance allows where right values are known exactly."""
    checked: list[Checked] = field(default_factory=list)
    """Outputs with their bounds, unless they were compared in parts."""

    stepped: list[tuple[Part, str, torch.Tensor]] = field(default_factory=list)
    """Parts of floating outputs as they have to be where the reference takes a step."""

    def as_stepped(self, name: str, exact: torch.Tensor) -> torch.Tensor:
        """Return the exact values of an output, with those that are right behind a step."""
        found = [(part, values) for part, each, values in self.stepped if each == name]
        if found:
            exact = exact.clone()
        for part, values in found:
            part.of(OUTPUT, exact).copy_(values)
        return exact

    def add_basis(self, name: str, basis: str) -> None:
        """Add what a part of an output was held to."""
        others = self.bases.get(name, "").split(_OR)
        self.bases[name] = _OR.join(dict.fromkeys([*filter(None, others), basis]))

    @property
    def looser(self) -> float | None:
        """The median of the ratios."""
        import torch

        return float(torch.cat(self.ratios).median()) if sum(each.numel() for each in self.ratios) else None


def _count_different(one: torch.Tensor, other: torch.Tensor) -> int:
    if not one.dtype.is_floating_point:
        return int(differ(one, other).sum())
    return int(((one != other) & ~(one.isnan() & other.isnan())).sum())


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
    _compare_others(outputs, exact, title)
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
                "integers with integers, bool with bool"
            )
        if given.device != out.device:
            raise ReferenceFailed(
                f"the reference returned {name} on {given.device}, the kernel on {out.device}: "
                "return it on the device of the arguments, which are where the kernel's are"
            )
    return [(name, out, right[name]) for name, out in left.items()]


def _compare_others(outputs: Any, exact: Any, title: str) -> None:
    """Raise unless what is no tensor in the two results is the same, and has no tensor in it."""
    ours, theirs = _others(outputs, UncheckableOutput), _others(exact, ReferenceFailed)
    for name in dict.fromkeys([*ours, *theirs]):
        got, expected = ours.get(name, _NOTHING), theirs.get(name, _NOTHING)
        if got != expected and not (got != got and expected != expected):  # noqa: PLR0124 - NaN is NaN
            raise KernelMismatch(
                f"{title} in what is no tensor, and has to be equal: {name} is {got!r}, expected {expected!r}"
            )


def _others(result: Any, error: type[Exception]) -> dict[str, Any]:
    """Return all that is no tensor in a result, by name; raise `error` if it cannot be compared."""
    import torch

    plain = (Number, str, bytes, Enum, type(None), torch.dtype, torch.device)
    others = {name: each for name, each in named_leaves(result, OUTPUT) if not isinstance(each, torch.Tensor)}
    for name, each in others.items():
        if not isinstance(each, plain):
            who = "the reference" if error is ReferenceFailed else "the kernel"
            raise error(
                f"{who} returned {name} as {type(each).__name__}, which the check cannot look into: return "
                "tensors in tuples, lists and dicts, with numbers, strings and None beside them if need be"
            )
    return others


def _kind(dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        return "floating"
    return "complex" if dtype.is_complex else {"bool": "bool"}.get(name_of(dtype), "integer")
