"""Run the mutants of a check: mutate a right result in ways that bugs do, and compare the mutant.

Mutants of an *output* are made of the exact values, rounded once. They show how much the bound lets through,
and inputs of which too much is alike. Mutants of an *input* are what the reference computes without the last
indices of one dimension. They show inputs that hide a part of a sum.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from pytest_cutile.correctness.compare.elements import ComparedOutput, blocks, compare
from pytest_cutile.correctness.error_model.running import ROUNDING
from pytest_cutile.correctness.error_model.spread import matrix_view
from pytest_cutile.correctness.mutation.report import Mutant, MutationReport, Outcome, Weakness
from pytest_cutile.correctness.on_cpu import SECONDS
from pytest_cutile.tile.tensors.dtypes import bits_of, format_of, same_bits
from pytest_cutile.tile.tensors.rounding import convert, round_to, spacing
from pytest_cutile.tile.tensors.trees import map_tensors, named_tensors
from pytest_cutile.words.formats import BFLOAT16, FloatFormat

TILE = 16
"""Indices in the part of a dimension that goes missing: the smallest tile of a tensor core's operand."""
_SAMPLE = 1 << 16
"""Elements of an output, evenly spaced, that tell which are small."""
MOST_RUNS = 32
"""Runs of the reference that mutated inputs may cost."""
_SAME = {
    "all zero": "the right output is zero everywhere",
    "a tile missing": "the right output is zero there",
    "the last tile missing": "the right output is zero there",
    "the last tile stale": "the tile before it holds the same values",
    "two indices exchanged": "all indices hold the same values",
    "dimensions exchanged": "the output is symmetric",
    "shifted by one": "neighbours hold the same values",
    "one element lost": "the right output is zero everywhere",
    "the smallest tenth lost": "the right output is zero everywhere",
}


class TooCostly(BaseException):
    """The reference takes too long to run on mutated inputs."""


def run_mutants(
    outputs: Sequence[ComparedOutput],
    inputs: Mapping[str, Any],
    reference: Callable[[Mapping[str, Any]], Any],
) -> MutationReport:
    """Return which mutants the check of these outputs, which passed, kills.

    `inputs` are the arguments before the launch; `reference` computes exact outputs from such arguments, or
    raises TooCostly.

    Memory: that of the largest output twice, and what a comparison and the reference take.
    """
    right = (replace(output, out=_rounded_like(output.out, output.exact)) for output in outputs)
    mutants = [
        _run_mutant(output, mutant, mutated) for output in right for mutant, mutated in _mutated(output)
    ]
    shortened, tried, end = [*_shortened_inputs(inputs)], 0, time.monotonic() + SECONDS
    with contextlib.suppress(TooCostly):
        for shortening in shortened[:MOST_RUNS]:
            mutant = _run_shortened(outputs, inputs, reference, *shortening)
            tried += 1
            mutants += [] if mutant is None else [mutant]
            if time.monotonic() > end:
                break
    return MutationReport(mutants=tuple(mutants), skipped=len(shortened) - tried)


def _run_mutant(output: ComparedOutput, mutant: Mutant, mutated: torch.Tensor) -> Mutant:
    """Return the mutant of an output with its outcome."""
    equivalent = replace(mutant, outcome=Outcome.EQUIVALENT)
    if not output.out.numel():
        return replace(equivalent, detail="no elements: nothing is compared")
    if same_bits(mutated, output.out):
        if mutant.mutation in _SAME:
            return replace(equivalent, detail=_SAME[mutant.mutation])
        # Values that need no rounding (copies, sums of small integers) are no fault of the inputs.
        weakness = Weakness.KERNEL if mutant.weakness == Weakness.CASE else mutant.weakness
        return replace(equivalent, weakness=weakness, detail="the right values need no rounding")
    result = compare(mutated, output.exact, output.bound)
    if result.failed:
        return mutant
    most = "" if result.worst is None else f", the largest error {result.worst.error:.2g} of it"
    return replace(mutant, outcome=Outcome.SURVIVED, detail=f"within the bound{most}")


def _shortened_inputs(inputs: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor, int, int]]:
    """Yield every floating input, dimension and count of last indices that a kernel could ignore."""
    for count in (1, TILE):
        for label, value in inputs.items():
            for name, tensor in named_tensors(value, label):
                if tensor.dtype.is_floating_point and tensor.numel():
                    sizes = enumerate(tensor.shape)
                    yield from ((name, tensor, dim, count) for dim, size in sizes if size >= count)


def _run_shortened(
    outputs: Sequence[ComparedOutput],
    inputs: Mapping[str, Any],
    reference: Callable[[Mapping[str, Any]], Any],
    name: str,
    target: torch.Tensor,
    dim: int,
    count: int,
) -> Mutant | None:
    """Compare what a kernel would compute that takes the last `count` indices of an input for zeros.

    A case may hide one of many indices, and another case shows it then. No case may hide a tile, nor have
    inputs that are zero there anyway. None: the reference does not compute it.
    """
    last = "last index" if count == 1 else f"last {count}"
    mutant = Mutant(mutation=f"an input's {last} ignored", where=f"{name}, dim {dim}", of_input=True)
    shortened = target.clone()
    part = bits_of(shortened).narrow(dim, target.shape[dim] - count, count)
    if not bool(part.any()):
        return replace(mutant, outcome=Outcome.EQUIVALENT, detail="they are zero")
    part.zero_()
    changed = map_tensors(lambda tensor: shortened if tensor is target else tensor, dict(inputs))
    try:
        results = dict(named_tensors(reference(changed), "output"))
    except Exception:  # noqa: BLE001 - zeros may be no valid input: then no kernel can take them for it
        return None
    outcomes = [
        _outcome_of(output, results[output.name].to(output.out.device), size=target.shape[dim], count=count)
        for output in outputs
        if output.name in results
    ]
    if not outcomes:
        return None
    # an input need not show in every output, but in one of them
    outcome, detail = min(outcomes, key=lambda pair: [*Outcome].index(pair[0]))
    hidden = outcome is Outcome.SURVIVED and count == TILE
    weakness = Weakness.CASE if hidden else Weakness.KERNEL
    return replace(mutant, outcome=outcome, detail=detail, weakness=weakness)


def _outcome_of(output: ComparedOutput, moved: torch.Tensor, *, size: int, count: int) -> tuple[Outcome, str]:
    """Compare an output that was computed without a part of an input, at the end of a dimension of `size`.

    Where that part also counts for elements at other indices (a sum over them), the check has to see it
    there: at its own indices it is seen anyway, as in y = x / sum(x).
    """
    exact = output.exact
    if moved.shape != exact.shape:
        return Outcome.KILLED, ""
    differs = moved != exact
    if exact.dtype.is_floating_point:
        differs = ~moved.isclose(exact, rtol=ROUNDING, atol=0.0, equal_nan=True)
    if not bool(differs.any()):
        return Outcome.EQUIVALENT, "the exact output is the same without them"
    elsewhere = differs.clone()
    for dim, length in enumerate(exact.shape):
        if length == size:
            elsewhere.narrow(dim, size - count, count).fill_(False)
    if bool(elsewhere.any()):
        moved = torch.where(elsewhere, moved, exact)
    if compare(_rounded_like(output.out, moved), exact, output.bound).failed:
        return Outcome.KILLED, ""
    return Outcome.SURVIVED, "the exact output moves by less than the bound allows"


def _mutated(output: ComparedOutput) -> Iterator[tuple[Mutant, torch.Tensor]]:
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
    """Return `bits` with zeros for the smallest tenth by magnitude of the elements that are not zero."""
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
        # May be part of the kernel's policy: reported, but no weakness.
        yield "rounded to bfloat16", False, lambda y: round_to(y, BFLOAT16)
    if bool((output.exact == 0).any()):
        yield "sign of zero", False, lambda y: convert(y.where(y != 0, -y), target)
    if bool(output.exact.isinf().any()):
        yield "NaN instead of Inf", True, lambda y: convert(y.masked_fill(y.isinf(), math.nan), target)


def _rounded_like(out: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
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
