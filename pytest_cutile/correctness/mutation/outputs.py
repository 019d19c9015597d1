"""Mutants of a right output: what typical bugs would make of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from pytest_cutile.correctness.compare.elements import blocks
from pytest_cutile.correctness.compare.outputs import ComparedOutput
from pytest_cutile.correctness.error_model.spread import matrix_view
from pytest_cutile.correctness.mutation.report import Weakness
from pytest_cutile.tensors.dtypes import bits_of, format_of
from pytest_cutile.tensors.formats import BFLOAT16, FloatFormat
from pytest_cutile.tensors.rounding import convert, round_to, spacing

TILE = 16
"""Indices in the part of a dimension that goes missing: the smallest tile of a tensor core's operand."""
_SAMPLE = 1 << 16
"""Elements of an output, evenly spaced, that tell which are small."""


@dataclass(frozen=True, kw_only=True)
class MutatedOutput:
    """An output with one mutation."""

    mutation: str
    where: str
    """The dimension, as it is appended to the output's name."""
    out: torch.Tensor
    weakness: Weakness = Weakness.CASE
    weakness_if_equivalent: Weakness = Weakness.CASE
    """What is weak if the mutation changes nothing."""


def mutate_output(output: ComparedOutput) -> Iterator[MutatedOutput]:
    """Yield what bugs would make of an output, one at a time: each is as large as the output."""
    if not output.out.numel():
        yield MutatedOutput(mutation="all zero", where="", out=output.out)
        return
    yield from _moved(output.out)
    target = format_of(output.out.dtype)
    if target is not None:
        yield from _misrounded(output.out, output.exact, target)


def _moved(out: torch.Tensor) -> Iterator[MutatedOutput]:
    """Yield `out` with right values in wrong places, or zeros; on its bits, so that every dtype goes."""
    right = bits_of(out.contiguous())

    def mutated(mutation: str, where: str, bits: torch.Tensor) -> MutatedOutput:
        return MutatedOutput(mutation=mutation, where=where, out=bits.contiguous().view(out.dtype))

    yield mutated("all zero", "", right.new_zeros(right.shape))
    yield mutated("one element lost", "", _without_one(right, out))
    if out.dtype.is_floating_point:
        yield mutated("the smallest tenth lost", "", _without_smallest(right, out))
    if right.numel() == 1:
        return
    yield mutated("a tile missing", "", _without_tile(right))
    for dim, size in enumerate(right.shape):
        where = f", dim {dim}"
        if size == 1:
            continue
        yield mutated("two indices exchanged", where, _exchange_two(right, dim))
        yield mutated("shifted by one", where, right.roll(1, dim))
        if dim < right.ndim - 2:
            continue
        last = min(TILE, size % TILE or TILE, size - 1)
        missing = right.clone()
        missing.narrow(dim, size - last, last).zero_()
        yield mutated("the last tile missing", where, missing)
        if size >= 2 * last:
            stale = right.clone()
            stale.narrow(dim, size - last, last).copy_(right.narrow(dim, size - 2 * last, last))
            yield mutated("the last tile stale", where, stale)
    for dim in range(right.ndim - 1):
        if min(right.shape[dim : dim + 2]) > 1:
            exchanged = right.transpose(dim, dim + 1).reshape(right.shape)
            yield mutated("dimensions exchanged", f", dims {dim} and {dim + 1}", exchanged)


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


def _misrounded(out: torch.Tensor, exact: torch.Tensor, target: FloatFormat) -> Iterator[MutatedOutput]:
    def mutated(
        mutation: str, change: Callable[[torch.Tensor], torch.Tensor], *, essential: bool
    ) -> MutatedOutput:
        weakness = Weakness.CASE if essential else Weakness.NONE
        made = _rewrite(out, exact, lambda y: convert(change(y), target))
        # Values that need no rounding (copies, sums of small integers) are no fault of the inputs.
        unchanged = Weakness.KERNEL if essential else Weakness.NONE
        return MutatedOutput(
            mutation=mutation, where="", out=made, weakness=weakness, weakness_if_equivalent=unchanged
        )

    def truncate(y: torch.Tensor) -> torch.Tensor:
        unit = spacing(y, target)
        return y.div(unit).trunc_().mul_(unit)

    def one_ulp_off(y: torch.Tensor) -> torch.Tensor:
        rounded = convert(y, target)
        return rounded + spacing(rounded, target) * rounded.sign()

    # Sums in float32 are honestly off by more than an ulp of float32: only a narrower output has to be exact.
    narrow = target.unit_roundoff > 2.0**-24
    yield mutated("truncated", truncate, essential=narrow)
    yield mutated("one ulp off everywhere", one_ulp_off, essential=narrow)
    # In fp8 most elements are the same after 1 %.
    yield mutated("1 % too large", lambda y: y * 1.01, essential=target.unit_roundoff < 0.01)  # noqa: PLR2004
    if target.precision > BFLOAT16.precision:
        # May be part of the kernel's policy: told, but no weakness.
        yield mutated("rounded to bfloat16", lambda y: round_to(y, BFLOAT16), essential=False)
    if bool((exact == 0).any()):
        signed = _rewrite(out, out.double(), lambda y: y.where(y != 0, -y))
        yield MutatedOutput(mutation="sign of zero", where="", out=signed, weakness=Weakness.NONE)
    if bool(exact.isinf().any()):
        nan = math.nan
        yield mutated("NaN instead of Inf", lambda y: y.masked_fill(y.isinf(), nan), essential=True)


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
