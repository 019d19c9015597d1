"""One output against its exact value: which elements are outside what rounding explains, and the worst.

T0, the pattern: NaN and Inf where the reference has them. T1, the interval: R(y - b) <= out <= R(y + b),
where y is exact, R one rounding to nearest even into the output's dtype and b the bound of
`tolerance.ErrorModel`. T2 and T3 look at many elements together: `energy`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from pytest_cutile.correctness.compare.energy import Mismatch
from pytest_cutile.correctness.error_model.parts import Index, PartPosition
from pytest_cutile.correctness.error_model.spread import Spread, matrix_view
from pytest_cutile.correctness.error_model.tolerance import ErrorModel
from pytest_cutile.tile.tensors.poison import Pattern, may_be_value, poisoned
from pytest_cutile.tile.tensors.rounding import convert, round_to, spacing
from pytest_cutile.words.formats import FLOAT64, FloatFormat

CHUNK = 1 << 20
"""Elements analysed at a time: about thirty float64 temporaries of 8 MiB each."""
_NEAR = 2.0**62
LEVELS = 9
"""Levels of finite errors, two for each power of ten of the bound; one more is for what is no number."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The derived bound of one output."""

    target: FloatFormat
    model: ErrorModel
    accumulation: Spread
    """Mean square change under accumulation noise, in units of u^2."""
    operands: Spread | None = None
    """Mean square change under operand noise, absolute."""
    policy: Spread | None = None
    """Spread under the noise that the kernel's numerics policy allows besides."""
    common: float = 0.0
    """Relative error that all elements may share."""
    common_of_operands: float = 0.0
    """What of it comes from operands of products that are all rounded in one direction."""
    basis: str = ""
    """How it was derived, in words."""

    def noise(self, exact: torch.Tensor, rows: slice, columns: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `(sigma, bias)` for the block `exact = y[rows, columns]`: what is random, what is not."""
        model, unit = self.model, self.model.unit
        value = exact.abs().mul_(unit)
        noise = self.accumulation.block(rows, columns).to(exact.device).sqrt().mul_(unit)
        partial = torch.maximum(noise, value)
        variance = partial.square().mul_(model.accumulation_variance)
        variance.addcmul_(noise, noise, value=model.operand_variance)
        variance.addcmul_(value, value, value=model.value_variance)
        for spread in (self.operands, self.policy):
            if spread is not None:
                variance += spread.block(rows, columns).to(exact.device)
        bias = partial.mul_(1.5 * model.drift).add_(value, alpha=1.5 * model.drift_of_value / unit)
        bias.add_(exact != 0, alpha=model.underflow)
        finite = exact.isfinite()
        return torch.where(finite, variance.sqrt_(), 0.0), torch.where(finite, bias, 0.0)

    def interval(
        self, exact: torch.Tensor, sigma: torch.Tensor, bias: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return `(b, lowest, highest)` for the exact values of a block and their noise."""
        b = bias.add(sigma, alpha=self.model.sigmas).add_(exact.abs(), alpha=self.common_of_operands)
        b = torch.where(exact.isfinite(), b, 0.0)
        return b, convert(exact - b, self.target), convert(exact + b, self.target)

    def outside(self, out: torch.Tensor, exact: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which finite elements of the flat output are outside of their intervals, and their b."""
        grid, truth = matrix_view(out.detach()), matrix_view(exact)
        numbers = torch.arange(out.numel(), device=out.device).reshape(grid.shape)
        failing = [(numbers.new_empty(0), truth.new_empty(0))]
        for block in blocks(grid):
            got, y = grid[block].double(), truth[block]
            b, lowest, highest = self.interval(y, *self.noise(y, *block))
            outside = ((got < lowest) | (got > highest)) & got.isfinite() & y.isfinite()
            failing.append((numbers[block][outside], b[outside]))
        at, within = (torch.cat(parts) for parts in zip(*failing, strict=True))
        return at, within


@dataclass(frozen=True, kw_only=True)
class GivenTolerance:
    """`|out - y| <= atol + rtol |y|`, given in place of the derived bound; R(y) is always right."""

    rtol: float
    atol: float
    target: FloatFormat | None
    """Format of the output; None: integers."""
    basis: str = ""

    def allowed(self, y: torch.Tensor) -> torch.Tensor:
        return y.abs().mul_(self.rtol).add_(self.atol)

    def interval(
        self, y: torch.Tensor, rounded: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return `(b, lowest, highest)` for exact values and the same, correctly rounded."""
        b = torch.where(y.isfinite(), self.allowed(y), 0.0)
        return b, torch.minimum(y - b, rounded), torch.maximum(y + b, rounded)


EQUALITY = GivenTolerance(rtol=0.0, atol=0.0, target=None, basis="equal (integers and bool)")
"""Tolerance of integers and bools, unless one was given."""


@dataclass(frozen=True, kw_only=True)
class ComparedOutput:
    """An output, or a part of one, with what it is compared with."""

    name: str
    out: torch.Tensor
    exact: torch.Tensor
    bound: Bound | GivenTolerance


@dataclass(frozen=True, kw_only=True)
class Worst:
    """The element with the largest error in units of the bound."""

    index: tuple[int, ...]
    got: float
    exact: float
    rounded: float
    lowest: float
    highest: float
    error: float
    ulps: float
    """Distance between `got` and `rounded` in units of the output dtype's spacing there."""


def blocks(grid: torch.Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield slices that cover a matrix in blocks of at most `CHUNK` elements."""
    rows, columns = grid.shape
    wide = max(1, min(columns, CHUNK))
    tall = max(1, CHUNK // wide)
    for row in range(0, rows, tall):
        for column in range(0, columns, wide):
            yield slice(row, min(row + tall, rows)), slice(column, min(column + wide, columns))


class ElementComparison:
    """The comparison of one output, collected part by part.

    `exact` returns the exact values of the whole output, and is only called where something may have failed.
    """

    def __init__(self, out: torch.Tensor, exact: Callable[[], torch.Tensor]) -> None:
        self.levels: torch.Tensor | None = None
        """uint8, of the output's shape: from 1 to `LEVELS` + 1 the size of errors of elements that fail, 0
        elsewhere; None when no element fails."""
        self.worst: Worst | None = None
        """None for an output with no elements."""
        self.worst_ulps = 0.0
        self.pattern = 0
        """How many of the elements outside are NaN or Inf on one side only (T0)."""
        self.overflowed = 0
        """How many 8-bit elements are NaN or Inf where the exact value is finite, and beyond the largest."""
        self._shape, self._device = tuple(out.shape), out.device
        self.together = Mismatch(self._shape, self._device, lambda: matrix_view(exact()))
        """What all elements together show."""

    def add(
        self,
        out: torch.Tensor,
        exact: torch.Tensor,
        bound: Bound | GivenTolerance,
        position: PartPosition,
    ) -> None:
        """Compare a part of the output, at `position`, with its exact values."""
        grid, truth = matrix_view(out.detach()), matrix_view(exact)
        for block in blocks(grid):
            got, y, here = grid[block], truth[block], position.block(*block)
            if bound.target is None:
                compared = _compare_integers(got, y, float(bound.atol))
            else:
                compared = _compare_floats(got.double(), y.double(), bound, block, here, self.together)
                if bound.target.saturates:
                    special = compared.got.isfinite().logical_not_() & compared.exact.isfinite()
                    self.overflowed += int((special & ~compared.outside).sum())
            if not may_be_value(got.dtype):
                # also where NaN is right: that of what nobody wrote is this check's
                unwritten = poisoned(got)
                compared.outside.logical_or_(unwritten)
                compared.error.masked_fill_(unwritten, math.inf)
            self._add_block(compared, block, position, here)

    @property
    def outside(self) -> torch.Tensor | None:
        """bool, of the output's shape: the elements that fail; None when there are none."""
        return None if self.levels is None else self.levels > 0

    @functools.cached_property
    def failed(self) -> tuple[str, ...]:
        """The failed tests: "pattern of NaN and Inf", "interval", "energy in rows 0 to 15"."""
        outside = 0 if self.levels is None else int(self.levels.count_nonzero())
        return (
            *(("pattern of NaN and Inf",) if self.pattern else ()),
            *(("interval",) if outside > self.pattern else ()),
            *(f"{excess.test} {excess.where}" for excess in self.together.excesses),
        )

    def _add_block(
        self, compared: _BlockComparison, block: tuple[slice, slice], position: PartPosition, here: Index
    ) -> None:
        if bool(compared.outside.any()):
            if self.levels is None:
                self.levels = torch.zeros(self._shape, dtype=torch.uint8, device=self._device)
            matrix_view(self.levels)[here] = _levels(compared.error).where(compared.outside, 0)
            finite = compared.got.isfinite() & compared.rounded.isfinite()
            self.pattern += int((compared.outside & ~finite).sum())
        self.worst_ulps = max(self.worst_ulps, float(compared.ulps.max()))
        at = int(compared.error.argmax())
        if self.worst is None or float(compared.error.flatten()[at]) > self.worst.error:
            (rows, columns), (row, column) = block, divmod(at, compared.got.shape[1])
            row, column = position.at(rows.start + row, columns.start + column)
            flat = row * (self._shape[-1] if self._shape else 1) + column
            index = tuple(map(int, np.unravel_index(flat, self._shape)))  # torch's imports sympy: 4 s
            figures = {name: values.flatten()[at].item() for name, values in vars(compared).items()}
            del figures["outside"]
            self.worst = Worst(index=index, **figures)


def _levels(error: torch.Tensor) -> torch.Tensor:
    """Return the levels of errors above 1, in units of the bound: 1 up to 3.2, 2 up to 10, 3 up to 32 ..."""
    steps = error.log10().mul_(2.0).floor_().clamp_(0, LEVELS - 1).add_(1)
    return steps.masked_fill_(error.isinf(), LEVELS + 1).to(torch.uint8)


def compare(out: torch.Tensor, exact: torch.Tensor, bound: Bound | GivenTolerance) -> ElementComparison:
    comparison = ElementComparison(out, lambda: exact)
    comparison.add(out, exact, bound, PartPosition())
    return comparison


@dataclass(frozen=True, kw_only=True)
class _BlockComparison:
    """The elements of one block, with the figures of `Worst` and whether they fail."""

    got: torch.Tensor
    exact: torch.Tensor
    rounded: torch.Tensor
    lowest: torch.Tensor
    highest: torch.Tensor
    error: torch.Tensor
    ulps: torch.Tensor
    outside: torch.Tensor


def _compare_floats(
    got: torch.Tensor,
    y: torch.Tensor,
    bound: Bound | GivenTolerance,
    block: tuple[slice, slice],
    here: Index,
    mismatch: Mismatch,
) -> _BlockComparison:
    """Compare a block, which lies `here` in the whole output, and add it to the output's mismatch."""
    target = bound.target or FLOAT64
    distance = (got - y).abs_()
    rounded = convert(y, target)
    if isinstance(bound, Bound):
        sigma, bias = bound.noise(y, *block)
        b, lowest, highest = bound.interval(y, sigma, bias)
        unit = spacing(y, target)
        usable = got.isfinite() & (y.abs() + b <= target.max_finite)
        mismatch.add(
            *(got, y, rounded, *here),
            ulp=unit,
            sigma=sigma,
            bias=bias,
            common=bound.common,
            shift=bound.common_of_operands,
            usable=usable,
        )
        beyond = (distance - 0.5 * unit).clamp_(min=0.0)
    else:
        b, lowest, highest = bound.interval(y, rounded)
        beyond = distance
    inside = (lowest <= got) & (got <= highest) | (got.isnan() & y.isnan())
    if target.saturates:
        inside |= _is_overflow(got, y, b, target)
    ulps = (got - rounded).abs_().div_(spacing(rounded, target))
    error = torch.where(beyond == 0, 0.0, beyond / b)
    # the interval decides; this number ranks, and agrees with it on which side of 1 it is
    error = torch.where(
        inside,
        error.nan_to_num(nan=0.0).clamp_(max=1.0),
        error.nan_to_num(nan=math.inf, posinf=math.inf).clamp_(min=1.0 + 2.0**-20),
    )
    return _BlockComparison(
        got=got,
        exact=y,
        rounded=rounded,
        lowest=lowest,
        highest=highest,
        error=error,
        ulps=ulps.nan_to_num_(nan=0.0, posinf=math.inf),
        outside=inside.logical_not(),
    )


def _is_overflow(got: torch.Tensor, y: torch.Tensor, b: torch.Tensor, target: FloatFormat) -> torch.Tensor:
    """Return where 8 bits are NaN (e4m3) or Inf (e5m2), and a conversion that does not saturate may be."""
    may_overflow = round_to(y.abs() + b, target).isfinite().logical_not_()
    special = got.isinf() & (got.sign() == y.sign()) if target.has_infinity else got.isnan()
    return may_overflow & special


def differ(got: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return which elements are not equal, integers by value whatever the dtypes; NaN equals NaN."""
    if got.dtype.is_floating_point:
        return (got != y) & ~(got.isnan() & y.isnan())
    return _distance(_written(got), y) != 0


def _distance(got: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return how far apart integers are, by value whatever the dtypes, rounded where that is above 2^53."""
    rough = (got.double() - y.double()).abs_()
    # uint64 has few operators, but bits; the difference wraps where integers are farther apart than that
    left, right = (one.view(torch.int64) if one.dtype == torch.uint64 else one.long() for one in (got, y))
    return torch.where(rough < _NEAR, (left - right).abs_().double(), rough)


def _written(got: torch.Tensor) -> torch.Tensor:
    """Return bools as integers, so that unwritten bytes, which torch reads as true, are neither 0 nor 1."""
    if got.dtype != torch.bool:
        return got
    return torch.where(poisoned(got), int(Pattern.UNWRITTEN.of(got.dtype)), got.long())


def _compare_integers(got: torch.Tensor, y: torch.Tensor, atol: float) -> _BlockComparison:
    got = _written(got)
    distance = _distance(got, y)
    outside = distance > atol
    return _BlockComparison(
        got=got,
        exact=y,
        rounded=y,
        lowest=y,
        highest=y,
        error=torch.where(outside, distance + 1.0, distance / max(atol, 1.0)),
        ulps=torch.zeros_like(distance),
        outside=outside,
    )
