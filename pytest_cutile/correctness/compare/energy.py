"""What single elements do not show: is the mismatch of an output too large, or does it follow the result?

T2, the energy. d = out - R(y), where y is exact and R rounds into the output's dtype. An honest kernel
writes R(y + n) with noise n of standard deviation sigma and bias s, so that the expected d^2 of an element
follows from sigma and the distance of y to where R jumps. Compared are the sums of w d^2 with
w = 1 / (ulp^2 / 12 + sigma^2 + s^2): over the whole output, each index of the leading dimensions, each 16
rows and each 16 columns. Too little is fine.

T3, the slope. The sum of w d y is zero on average unless out - y follows y. Allowed are what the bias s
explains, one common relative error, twice the expected mean (most y may lie just below ties), and chance.

Both allow for noise that is common to a row or a column, and say nothing where many elements are equal: then
their roundings are, too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pytest_cutile.correctness.error_model.tolerance import FALSE_ALARM
from pytest_cutile.words.statistics import t_quantile

BLOCK = 16
"""Rows and columns of a block: the smallest tile of a tensor core has as many."""
LARGEST = 12.0
"""Largest w d^2 of an element that noise moves by one ulp at most: 1 / (1/12)."""
_MOST_ULPS = 1e6  # errors beyond are for the interval to tell; here their squares would overflow
_MOST_NOISE = 1e3  # ulps; with more of it the rounding does not matter
_DISTINCT = 0.5
_TRIED = 4  # blocks that may turn out to hold few distinct values before one that does not
_FEWEST = 3.0  # rows and columns, by weight, from which their scatter says anything
_SAMPLE = 1 << 20
_GAUSSIAN = 0.6  # ulps of noise from which the energy is that of a rounding and the noise, to 1e-3
_SQRT_HALF = math.sqrt(0.5)


@dataclass(frozen=True, kw_only=True)
class Excess:
    """A test over many elements that failed, and what was measured and what allowed, in words."""

    test: str
    where: str
    """The part of the output: "in rows 32 to 47", "in [1, 3]", "in all of it"."""
    says: str


def expected_jumps(distance: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return E[d] and at least E[d^2] of d = round(distance + noise z) for a standard normal z; all in ulps.

    `distance` is |y - R(y)| plus the bias; `noise` is a standard deviation.
    """
    spread = noise.clamp(1e-30, _GAUSSIAN)

    def beyond(jump: float, way: int) -> torch.Tensor:
        # clamped, because subnormal results are slow
        reach = (jump - way * distance).div_(spread).mul_(_SQRT_HALF).clamp_(max=9.0)
        chance: torch.Tensor = torch.special.erfc(reach).mul_(0.5)
        return chance

    up, further_up, down, further_down = (beyond(jump, way) for way in (1, -1) for jump in (0.5, 1.5))
    # d^2 is 1 for each value beyond 0.5 and 3 more beyond 1.5
    near = (up + down).add_(further_up + further_down, alpha=3.0)
    wide = distance.square().addcmul_(noise, noise).add_(1.0 / 12.0)
    far = (distance + 0.5).square_().addcmul_(noise, noise)
    energy = torch.where(distance >= 1.0, far, torch.where(noise >= _GAUSSIAN, wide, near))
    mean = up.add_(further_up).sub_(down).sub_(further_down)
    return torch.where((distance >= 1.0) | (noise >= _GAUSSIAN), distance, mean), energy


class Mismatch:
    """The sums of T2 and T3 over one output seen as `[rows, columns]`, collected block by block.

    `exact` returns y, and is only called where more is measured than is allowed.
    """

    def __init__(self, shape: Sequence[int], device: torch.device, exact: Callable[[], torch.Tensor]) -> None:
        self._exact = exact
        self._shape = tuple(shape)
        self._grid = math.prod(self._shape[:-1]), self._shape[-1] if self._shape else 1
        # w d^2, its expectation, w d y and w y^2, summed over each row and over each column
        self._of_rows, self._of_columns = (
            torch.zeros(4, size, dtype=torch.float64, device=device) for size in self._grid
        )
        # of the sum of w d y: its mean, what bias explains, its variance, its largest change by one ulp
        self._mean, self._bias, self._variance, self._step = torch.zeros(
            4, dtype=torch.float64, device=device
        )

    def add(
        self,
        got: torch.Tensor,
        y: torch.Tensor,
        rounded: torch.Tensor,
        rows: slice | torch.Tensor,
        columns: slice,
        *,
        ulp: torch.Tensor,
        sigma: torch.Tensor,
        bias: torch.Tensor,
        common: float,
        shift: float,
        usable: torch.Tensor,
    ) -> None:
        """Add a block of exact values y, R(y) and what the kernel `got`, at unique rows of the output.

        `ulp` is the spacing of the output's dtype at y, `sigma` the standard deviation of the noise, `bias`
        the largest systematic error, `common` the relative error that all elements may share, and `shift`
        what of it moves single elements by more than `sigma`. Special values and elements near an overflow
        are not `usable`.
        """
        # the ulp of zero among numbers is next to nothing
        ulp = torch.maximum(ulp, (sigma + bias).div_(_MOST_NOISE))
        error = ((got - rounded) / ulp).clamp_(-_MOST_ULPS, _MOST_ULPS)
        value = torch.where(usable, y / ulp, 0.0)
        noise, systematic = sigma / ulp, bias / ulp
        weight = noise.square().addcmul_(systematic, systematic).add_(1.0 / LARGEST).reciprocal_()
        weight = torch.where(usable, weight, 0.0)
        error = torch.where(usable, error, 0.0)
        side = (y - rounded) / ulp
        distance = side.abs().add_(systematic)

        def expected(distance: torch.Tensor) -> Iterator[torch.Tensor]:
            known = (torch.where(usable, one, 0.0).float() for one in (distance, noise))
            return map(torch.Tensor.double, expected_jumps(*known))

        mean, random = expected(distance)
        energy = random
        if shift:  # the slope knows it as `common`
            _, energy = expected(distance.add(value.abs(), alpha=shift))
        weighted = weight * value
        sums = (weight * error * error, weight * energy, weighted * error, weighted * value)
        for index, total in enumerate(sums):
            self._of_rows[index, rows] += total.sum(1)
            self._of_columns[index, columns] += total.sum(0)
        self._mean += (weighted * side.sign_() * mean).sum()
        weighted.abs_()
        self._bias += (weighted * torch.where(usable, systematic, 0.0)).sum() + common * sums[3].sum()
        self._variance += (weighted * weighted * random).sum()
        self._step = torch.maximum(self._step, weighted.max())

    @property
    def excesses(self) -> list[Excess]:
        return [excess for excess, _ in (*self._energies, self._slope) if excess is not None]

    @property
    def energy(self) -> float:
        """T2: the largest energy in any part of the output, in units of what is allowed."""
        return max((ratio for _, ratio in self._energies), default=0.0)

    @property
    def slope(self) -> float:
        """T3: the slope of the mismatch, in units of what is allowed."""
        return self._slope[1]

    @functools.cached_property
    def _energies(self) -> list[tuple[Excess | None, float]]:
        return [self._energy(scope, size) for scope, size in self._scopes()]

    def _scopes(self) -> Iterator[tuple[str, int]]:
        """Yield what T2 looks at, "" (all of it), "head", "rows" or "columns", and the size of a block."""
        rows, columns = self._grid
        if not rows or not columns:
            return
        heads = math.prod(self._shape[:-2])
        yield "", rows
        if heads > 1:
            yield "head", rows // heads
        yield "rows", BLOCK
        yield "columns", BLOCK

    def _energy(self, scope: str, size: int) -> tuple[Excess | None, float]:
        sums = self._of_columns if scope == "columns" else self._of_rows
        measured, expected = (_grouped(total, size) for total in sums[:2])
        risk = math.log(4 * measured.numel() / FALSE_ALARM)  # of four kinds of blocks
        rows, columns = self._grid
        # terms of a block's sum that may be independent
        independent = min(BLOCK, rows, columns) if scope in ("rows", "columns") else min(size, columns)
        factor = _chi_square_excess(independent, math.exp(-risk))
        allowed = expected * factor + _rare(LARGEST, LARGEST * expected, risk)
        ratios = measured / allowed
        largest = ratios.topk(min(_TRIED, ratios.numel()))
        for at, ratio in zip(largest.indices.tolist(), largest.values.tolist(), strict=True):
            if ratio <= 1:
                break
            block = slice(at * size, (at + 1) * size)
            if _are_distinct(self._exact()[:, block] if scope == "columns" else self._exact()[block]):
                times, most = (float(energy[at] / expected[at]) for energy in (measured, allowed))
                says = f"mismatch of {times:.3g} times the energy that rounding and noise explain"
                where = self._name(scope, at, size)
                says += f", at most {most:.3g} times is chance"
                return Excess(test="energy", where=where, says=says), ratio
        return None, float(largest.values[0])

    def _name(self, scope: str, at: int, size: int) -> str:
        if scope == "head":
            index = np.unravel_index(at, self._shape[:-2])  # torch's imports sympy
            return f"in {[int(number) for number in index]}"
        if not scope:
            return "in all of it"
        length = self._grid[scope == "columns"]
        return f"in {scope} {at * size} to {min((at + 1) * size, length) - 1}"

    @functools.cached_property
    def _slope(self) -> tuple[Excess | None, float]:
        moment, square = float(self._of_rows[2].sum()), float(self._of_rows[3].sum())
        if square == 0:
            return None, 0.0
        slope = moment / square
        chance = _rare(self._step, self._variance, math.log(2 / FALSE_ALARM)).item()
        for sums in (self._of_rows, self._of_columns):
            # Noise that is common to a row makes their sums vary more than their elements do; so for columns.
            weights = sums[3] / sums[3].max()  # whose squares are no subnormal numbers
            terms = float(weights.sum().square() / weights.square().sum())
            if terms < _FEWEST:
                return None, 0.0
            residual = float((sums[2] - slope * sums[3]).square().sum()) * terms / (terms - 1)
            chance = max(chance, -t_quantile(FALSE_ALARM / 2, terms - 1) * math.sqrt(residual))
        # of the mean as much as noise and errors that all elements share make of it, which may be none
        expected = 2.0 * self._mean.item()
        allowed = self._bias.item() + chance + max(math.copysign(1.0, moment) * expected, 0.0)
        ratio = abs(moment) / allowed
        if ratio <= 1 or not _are_distinct(self._exact()):
            return None, ratio
        says = f"out - exact is {slope:+.3g} of exact on average, at most {allowed / square:.2g} is chance"
        says += ": truncation, a wrong divisor or scale, eps in the wrong place?"
        return Excess(test="slope", where="in all of it", says=says), ratio


def _rare(step: float | torch.Tensor, variance: torch.Tensor, risk: float) -> torch.Tensor:
    """Return what a sum of independent terms of at most `step` exceeds with probability exp(-risk).

    Bernstein's inequality; terms that are rarely not zero, such as an ulp's flip, are far from normal.
    """
    third = step * risk / 3
    return (third * third + 2 * variance * risk).sqrt() + third


def _chi_square_excess(dof: int, tail: float) -> float:
    """Return the quantile of chi-square over its mean, by Wilson and Hilferty's cube (PNAS 17, 1931)."""
    part = 2 / (9 * max(dof, 1))
    return (1 - part - t_quantile(tail, math.inf) * math.sqrt(part)) ** 3


def _grouped(values: torch.Tensor, size: int) -> torch.Tensor:
    padding = -values.numel() % size
    return torch.nn.functional.pad(values, (0, padding)).view(-1, size).sum(1)


def _are_distinct(exact: torch.Tensor) -> bool:
    flat = exact.reshape(-1)
    if flat.numel() > _SAMPLE:
        flat = flat[:: flat.numel() // _SAMPLE]
    values = flat[flat != 0].sort().values
    repeated = int((values[1:] == values[:-1]).sum())
    return repeated <= (1 - _DISTINCT) * values.numel()
