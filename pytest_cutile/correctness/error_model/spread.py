"""How far noise moves the elements of one output, by element and pooled over rows and columns."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

from pytest_cutile.correctness.error_model.injection import CHUNK

_BETTER = 0.5
"""What the variance of a better explanation is at most of that of the other one."""
_FEW = 2.0
"""Rows of average noise that are added to the mean over a column."""


def matrix_view(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` as `[rows, columns]`, the last dimension being the columns."""
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1] if tensor.ndim else 1)


@dataclass
class Spread:
    """Mean square change of one output, by element and pooled, the output laid out as `[rows, columns]`.

    A few runs measure an element's own spread badly: two sources of the same size may cancel in all of them.
    So it is pooled, as what a row and a column have in common, as in a matrix product; or, where `exact` is
    given and that explains it far better, in proportion to the element's value (exponentials).
    """

    elements: torch.Tensor
    exact: torch.Tensor | None = None
    """float64 `[rows, columns]`: the exact values, where noise may be in proportion to them."""
    runs: float = math.inf
    """Number of runs that the spread is the mean of."""

    @functools.cached_property
    def _pool(self) -> _Pool:
        absolute = _Pool.of(self.elements, None, self.runs)
        if self.exact is None:
            return absolute
        relative = _Pool.of(self.elements, self.exact, self.runs)
        return relative if relative.misfit < _BETTER * absolute.misfit else absolute

    def block(self, rows: slice, columns: slice) -> torch.Tensor:
        """Return the variance to allow: no less than the element's own and than what it is pooled with."""
        pooled = self._pool.by_row[rows] * self._pool.by_column[:, columns]
        if self._pool.exact is not None:
            pooled *= self._pool.exact[rows, columns].square()
        return torch.maximum(self.elements[rows, columns], pooled.nan_to_num_(nan=0.0))

    @classmethod
    def none(cls, like: torch.Tensor) -> Spread:
        """Return the spread of a result that noise does not move, such as an integer one."""
        zero = torch.zeros((), dtype=torch.float64, device=like.device)
        return cls(zero.expand(matrix_view(like).shape))


@dataclass(frozen=True, kw_only=True)
class _Pool:
    """What the rows and columns of an output have in common, in the mean of logarithms.

    A few elements may have far more noise than others: it is their own.
    """

    exact: torch.Tensor | None
    """float64 `[rows, columns]`: values in units of whose squares it is."""
    by_row: torch.Tensor
    by_column: torch.Tensor
    """float64 `[1, columns]`: the mean over each column, in units of the rows' means."""
    misfit: float
    """Variance of the logarithm of an element's own in units of these; infinite where there is nothing."""

    @classmethod
    def of(cls, elements: torch.Tensor, exact: torch.Tensor | None, runs: float) -> _Pool:
        """Return what they have in common; a row or column without noise in most elements has nothing."""
        rows, columns = elements.shape
        by_row = elements.new_zeros(rows, 1)
        totals, counts = elements.new_zeros(2, 1, columns)
        step = max(1, CHUNK // max(columns, 1))
        parts = [slice(row, row + step) for row in range(0, rows, step)]
        for part in parts:
            level = _level(elements[part], exact if exact is None else exact[part])
            usable = level.isfinite()
            level.masked_fill_(~usable, 0.0)
            noisy = usable.sum(dim=1, keepdim=True)
            common = level.sum(dim=1, keepdim=True) / noisy.clamp(min=1)
            by_row[part] = common.masked_fill_(2 * noisy < columns, -math.inf)
            level -= common
            usable &= level.isfinite()
            totals += level.masked_fill_(~usable, 0.0).sum(dim=0, keepdim=True)
            counts += usable.sum(dim=0, keepdim=True)
        by_column = totals.div_(counts + _FEW)
        moments = torch.zeros(3, dtype=torch.float64, device=elements.device)
        for part in parts:
            level = _level(elements[part], exact if exact is None else exact[part])
            level -= by_row[part] + by_column
            usable = level.isfinite()
            level.masked_fill_(~usable, 0.0)
            moments += torch.stack([usable.sum(), level.sum(), level.square().sum()])
        count, total, square = moments.tolist()
        misfit = square / count - (total / count) ** 2 if count > 1 else math.inf
        # what the logarithm of a mean of k squares is short of on average: log(k / 2) - digamma(k / 2)
        short = 1 / runs + 1 / (3 * runs * runs)
        return cls(exact=exact, by_row=by_row.add_(short).exp_(), by_column=by_column.exp_(), misfit=misfit)


def _level(elements: torch.Tensor, exact: torch.Tensor | None) -> torch.Tensor:
    return elements.log() if exact is None else exact.square().reciprocal_().mul_(elements).log_()
