"""One output against its exact value: which elements are outside what rounding explains, and the worst.

T0: NaN and Inf where the reference has them. T1: R(y - b) <= out <= R(y + b), where y is exact, R one
rounding to nearest even into the output's dtype and b the bound of `core.tolerance.ErrorModel`. R makes
ulps, subnormals and saturation exact, so that no relative or absolute tolerance is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_cutile.gpu.noise import Spread, matrix_view
from pytest_cutile.gpu.rounding import round_to, spacing

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from pytest_cutile.core.tolerance import ErrorModel, FloatFormat

CHUNK = 1 << 22
"""Elements analysed at a time: about twenty float64 temporaries of 32 MiB each."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The derived bound of one output."""

    target: FloatFormat
    """Format of the output."""
    model: ErrorModel
    """Coefficients of the noise."""
    accumulation: Spread
    """Mean square change under accumulation noise, in units of u^2."""
    operands: Spread | None
    """Mean square change under operand noise, absolute."""

    def interval(
        self, exact: torch.Tensor, rows: slice, columns: slice
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return `(b, lowest, highest)` for the block `exact = y[rows, columns]`."""
        import torch

        model, unit = self.model, self.model.unit
        value = exact.abs().mul_(unit)
        noise = self.accumulation.block(rows, columns).to(exact.device).sqrt().mul_(unit)
        partial = torch.maximum(noise, value)
        variance = partial.square().mul_(model.accumulation_variance)
        variance.addcmul_(noise, noise, value=model.operand_variance)
        variance.addcmul_(value, value, value=model.value_variance)
        b = variance.sqrt_().mul_(model.sigmas)
        b.add_(partial, alpha=1.5 * model.drift).add_(value, alpha=1.5 * model.drift_of_value / unit)
        if self.operands is not None:
            b.add_(self.operands.block(rows, columns).to(exact.device).sqrt_(), alpha=model.sigmas)
        b = torch.where(exact.isfinite(), b, 0.0)
        saturate = self.target.eight_bit
        lowest = round_to(exact - b, self.target, saturate=saturate)
        return b, lowest, round_to(exact + b, self.target, saturate=saturate)


@dataclass(frozen=True, kw_only=True)
class GivenTolerance:
    """`|out - y| <= atol + rtol |y|`, given by the author in place of the derived bound."""

    rtol: float
    """Allowed relative error."""
    atol: float
    """Allowed absolute error."""
    target: FloatFormat | None
    """Format of the output, for counting ulps."""


@dataclass(frozen=True, kw_only=True)
class Worst:
    """The element with the largest error in units of the bound."""

    index: tuple[int, ...]
    """Where it is in the output."""
    got: float
    """What the kernel wrote."""
    exact: float
    """The reference's value."""
    rounded: float
    """The exact value in the output's dtype."""
    lowest: float
    """Smallest value allowed."""
    highest: float
    """Largest value allowed."""
    error: float
    """Error beyond the output's own rounding, in units of the bound; above 1 is a failure."""
    ulps: float
    """Distance between `got` and `rounded` in units of the output dtype's spacing there."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The comparison of one output."""

    outside: torch.Tensor | None
    """bool, of the output's shape: the elements that fail; None when there are none."""
    worst: Worst | None
    """None for an output with no elements."""
    worst_ulps: float
    """Largest distance from the correctly rounded value, over all elements."""

    @property
    def failed(self) -> tuple[str, ...]:
        """The tests that failed: "T0 pattern" or "T1 interval"; none for an honest output."""
        if self.outside is None or self.worst is None:
            return ()
        pattern = math.isfinite(self.worst.got) != math.isfinite(self.worst.rounded)
        return ("T0 pattern",) if pattern else ("T1 interval",)


def blocks(rows: int, columns: int, chunk: int) -> Iterator[tuple[slice, slice]]:
    """Yield slices that cover `[rows, columns]` in blocks of at most `chunk` elements."""
    wide = max(1, min(columns, chunk))
    tall = max(1, chunk // wide)
    for row in range(0, rows, tall):
        for column in range(0, columns, wide):
            yield slice(row, min(row + tall, rows)), slice(column, min(column + wide, columns))


def compare(
    out: torch.Tensor, exact: torch.Tensor, bound: Bound | GivenTolerance | None, *, chunk: int = CHUNK
) -> Comparison:
    """Compare `out` with `exact`, of the same shape; `bound` None asks for equality (integers and bool)."""
    import torch

    grid, truth = matrix_view(out.detach()), matrix_view(exact)
    outside = torch.zeros(grid.shape, dtype=torch.bool, device=out.device)
    worst: Worst | None = None
    most_ulps = 0.0
    for rows, columns in blocks(grid.shape[0], grid.shape[1], chunk):
        got, y = grid[rows, columns], truth[rows, columns]
        judged = (
            _judge_equal(got, y) if bound is None else _judge(got.double(), y.double(), bound, rows, columns)
        )
        outside[rows, columns] = judged.outside
        most_ulps = max(most_ulps, float(judged.ulps.max()))
        at = int(judged.error.argmax())
        if worst is None or float(judged.error.flatten()[at]) > worst.error:
            row, column = divmod(at, columns.stop - columns.start)
            flat = (rows.start + row) * grid.shape[1] + columns.start + column
            worst = judged.describe(at, _unravel(flat, out.shape))
    failed = bool(outside.any())
    return Comparison(
        outside=outside.reshape(out.shape) if failed else None, worst=worst, worst_ulps=most_ulps
    )


@dataclass(frozen=True, kw_only=True)
class _Judged:
    got: torch.Tensor
    exact: torch.Tensor
    rounded: torch.Tensor
    lowest: torch.Tensor
    highest: torch.Tensor
    error: torch.Tensor
    ulps: torch.Tensor
    outside: torch.Tensor

    def describe(self, at: int, index: tuple[int, ...]) -> Worst:
        def pick(values: torch.Tensor) -> float:
            return values.flatten()[at].item()

        return Worst(
            index=index,
            got=pick(self.got),
            exact=pick(self.exact),
            rounded=pick(self.rounded),
            lowest=pick(self.lowest),
            highest=pick(self.highest),
            error=pick(self.error),
            ulps=pick(self.ulps),
        )


def _judge(
    got: torch.Tensor, y: torch.Tensor, bound: Bound | GivenTolerance, rows: slice, columns: slice
) -> _Judged:
    import torch

    target = bound.target
    distance = (got - y).abs_()
    if isinstance(bound, Bound):
        b, lowest, highest = bound.interval(y, rows, columns)
        unit = spacing(y, bound.target)
        beyond = (distance - 0.5 * unit).clamp_(min=0.0)
    else:
        b = y.abs().mul_(bound.rtol).add_(bound.atol)
        b = torch.where(y.isfinite(), b, 0.0)
        lowest, highest = y - b, y + b
        beyond = distance
    inside = (lowest <= got) & (got <= highest) | (got.isnan() & y.isnan())
    if target is not None and target.eight_bit:
        # a conversion that does not saturate gives NaN (e4m3) or Inf (e5m2) where the value may overflow
        overflow = round_to(y.abs() + b, target).isfinite().logical_not_()
        special = got.isnan() if target.name == "float8_e4m3fn" else got.isinf() & (got.sign() == y.sign())
        inside |= overflow & special
    rounded = y if target is None else round_to(y, target, saturate=target.eight_bit)
    ulps = torch.zeros_like(y) if target is None else (got - rounded).abs_().div_(spacing(rounded, target))
    error = torch.where(beyond == 0, 0.0, beyond / b)
    # the interval decides; this number ranks, and agrees with it on which side of 1 it is
    error = torch.where(
        inside,
        error.nan_to_num(nan=0.0).clamp_(max=1.0),
        error.nan_to_num(nan=math.inf, posinf=math.inf).clamp_(min=1.0 + 2.0**-20),
    )
    return _Judged(
        got=got,
        exact=y,
        rounded=rounded,
        lowest=lowest,
        highest=highest,
        error=error,
        ulps=ulps.nan_to_num_(nan=0.0, posinf=math.inf),
        outside=inside.logical_not(),
    )


def _judge_equal(got: torch.Tensor, y: torch.Tensor) -> _Judged:
    import torch

    # uint64 has few operators; equality and order of its bits as int64 are good enough
    got, y = ((each.view(torch.int64) if each.dtype == torch.uint64 else each).long() for each in (got, y))
    differ = got != y
    apart = (got.double() - y.double()).abs_()
    return _Judged(
        got=got,
        exact=y,
        rounded=y,
        lowest=y,
        highest=y,
        error=torch.where(differ, apart + 1.0, 0.0),
        ulps=torch.zeros_like(apart),
        outside=differ,
    )


def _unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        flat, here = divmod(flat, size)
        index.append(here)
    return tuple(reversed(index))
