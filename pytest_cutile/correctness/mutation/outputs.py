"""Mutants of a right output: what typical bugs would make of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from pytest_cutile.correctness.compare.elements import blocks
from pytest_cutile.correctness.compare.outputs import ComparedOutput
from pytest_cutile.correctness.error_model.spread import matrix_view
from pytest_cutile.correctness.mutation.report import Mutant, Weakness
from pytest_cutile.tensors.dtypes import bits_of, format_of
from pytest_cutile.tensors.formats import BFLOAT16, FloatFormat
from pytest_cutile.tensors.rounding import convert, round_to, spacing

TILE = 16
"""Indices in the part of a dimension that goes missing: the smallest tile of a tensor core's operand."""
_SAMPLE = 1 << 16
"""Elements of an output, evenly spaced, that tell which are small."""


def mutate_output(output: ComparedOutput) -> Iterator[tuple[Mutant, torch.Tensor]]:
    """Yield what bugs would make of a right output, one at a time: each is as large as the output."""
    if not output.out.numel():
        yield Mutant(mutation="all zero", where=output.name), output.out
        return
    for mutation, where, bits in _moved(output.out):
        mutant = Mutant(mutation=mutation, where=f"{output.name}{where}")
        yield mutant, bits.contiguous().view(output.out.dtype)
    target = format_of(output.out.dtype)
    for mutation, essential, change in [] if target is None else _misroundings(output, target):
        weakness = Weakness.CASE if essential else Weakness.NONE
        mutant = Mutant(mutation=mutation, where=output.name, weakness=weakness)
        yield mutant, _rewrite(output.out, output.exact, change)


def _moved(out: torch.Tensor) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yield mutation, dimension and the bits of `out` with right values in wrong places, or zeros."""
    right = bits_of(out.contiguous())
    yield "all zero", "", right.new_zeros(right.shape)
    yield "one element lost", "", _without_one(right, out)
    if out.dtype.is_floating_point:
        yield "the smallest tenth lost", "", _without_smallest(right, out)
    if right.numel() == 1:
        return
    yield "a tile missing", "", _without_tile(right)
    for dim, size in enumerate(right.shape):
        where = f", dim {dim}"
        if size == 1:
            continue
        yield "two indices exchanged", where, _exchange_two(right, dim)
        yield "shifted by one", where, right.roll(1, dim)
        if dim < right.ndim - 2:
            continue
        last = min(TILE, size % TILE or TILE, size - 1)
        missing = right.clone()
        missing.narrow(dim, size - last, last).zero_()
        yield "the last tile missing", where, missing
        if size >= 2 * last:
            stale = right.clone()
            stale.narrow(dim, size - last, last).copy_(right.narrow(dim, size - 2 * last, last))
            yield "the last tile stale", where, stale
    for dim in range(right.ndim - 1):
        if min(right.shape[dim : dim + 2]) > 1:
            exchanged = right.transpose(dim, dim + 1).reshape(right.shape)
            yield "dimensions exchanged", f", dims {dim} and {dim + 1}", exchanged


def _without_one(bits: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Return `bits` with one element zero: that of median magnitude among the first that are not zero."""
    flat = bits.flatten().clone()
    some = (flat != 0).nonzero().flatten()[: 1 << 16]
    if some.numel():
        values = out.detach().reshape(-1)[some].double().abs().nan_to_num(nan=math.inf)
        flat[some[values.argsort()[values.numel() // 2]]] = 0
    return flat.view(bits.shape)


def _without_smallest(bits: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Return `bits` with zeros for the smallest tenth by magnitude of the elements that are not zero.

    A bound that follows the largest elements of a row lets small ones be anything.
    """
    magnitudes = out.detach().double().abs()
    some = magnitudes.flatten()[:: -(-out.numel() // _SAMPLE)]
    some = some[some > 0].sort().values
    if not some.numel():
        return bits
    return bits.masked_fill(magnitudes <= some[some.numel() // 10], 0)


def _without_tile(bits: torch.Tensor) -> torch.Tensor:
    """Return `bits` with one tile of the last two dimensions zero, in the middle of the output."""
    missing = bits.clone()
    tile = missing
    for dim, size in enumerate(bits.shape):
        length = min(TILE, max(1, size // 2)) if dim >= bits.ndim - 2 else 1
        start = (size // 2) // length * length
        tile = tile.narrow(dim, start, min(length, size - start))
    tile.zero_()
    return missing


def _exchange_two(bits: torch.Tensor, dim: int) -> torch.Tensor:
    """Return `bits` with the first two neighbours along `dim` exchanged that are not the same."""
    size = bits.shape[dim]
    differ = bits.narrow(dim, 1, size - 1) != bits.narrow(dim, 0, size - 1)
    at = int(differ.transpose(0, dim).reshape(size - 1, -1).any(dim=1).byte().argmax())
    order = torch.arange(size, device=bits.device)
    order[[at, at + 1]] = order[[at + 1, at]]
    return bits.index_select(dim, order)


def _misroundings(
    output: ComparedOutput, target: FloatFormat
) -> Iterator[tuple[str, bool, Callable[[torch.Tensor], torch.Tensor]]]:
    """Yield mutation, whether every case has to kill it, and what it makes of exact values."""

    def truncate(y: torch.Tensor) -> torch.Tensor:
        unit = spacing(y, target)
        return convert(y.div(unit).trunc_().mul_(unit), target)

    def one_ulp_off(y: torch.Tensor) -> torch.Tensor:
        rounded = convert(y, target)
        return convert(rounded + spacing(rounded, target) * rounded.sign(), target)

    # Sums in float32 are honestly off by more than an ulp of float32: only a narrower output has to be exact.
    narrow = target.unit_roundoff > 2.0**-24
    yield "truncated", narrow, truncate
    yield "one ulp off everywhere", narrow, one_ulp_off
    # In fp8 most elements are the same after 1 %.
    yield "1 % too large", target.unit_roundoff < 0.01, lambda y: convert(y * 1.01, target)  # noqa: PLR2004
    if target.precision > BFLOAT16.precision:
        # May be part of the kernel's policy: told, but no weakness.
        yield "rounded to bfloat16", False, lambda y: round_to(y, BFLOAT16)
    if bool((output.exact == 0).any()):
        yield "sign of zero", False, lambda y: convert(y.where(y != 0, -y), target)
    if bool(output.exact.isinf().any()):
        yield "NaN instead of Inf", True, lambda y: convert(y.masked_fill(y.isinf(), math.nan), target)


def rounded_like(out: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    target = format_of(out.dtype)
    if target is None:
        return exact.to(out.dtype)
    return _rewrite(out, exact, lambda y: convert(y, target))


def _rewrite(
    out: torch.Tensor, exact: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Return a tensor like `out` with `change(exact)` in it, of which that dtype holds every value."""
    made = torch.empty(out.shape, dtype=out.dtype, device=out.device)
    grid, truth = matrix_view(made), matrix_view(exact)
    for rows, columns in blocks(grid):
        grid[rows, columns] = change(truth[rows, columns].double()).to(out.dtype)
    return made
