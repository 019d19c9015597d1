"""How strong is a check? `strength_of` alters a right result in ways that bugs do, and judges it again.

Two kinds of alteration. Those of an *output*: the exact one, rounded once, with a tile missing, two heads
exchanged, a truncating cast. (Of what the kernel wrote, a bug may have removed what is to be altered.) They
show how much the bound lets through, and inputs of which too much is alike. Those of an *input*: what the
kernel would have computed without the last indices of one dimension, by the reference. They show inputs that
hide a part of a sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_cutile.check.compare import CHUNK, blocks, compare
from pytest_cutile.check.noise import matrix_view
from pytest_cutile.core.strength import Matters, Outcome, Probe, Strength
from pytest_cutile.core.tolerance import BFLOAT16, FloatFormat
from pytest_cutile.gpu.dtypes import bits_of, format_of, same_bits
from pytest_cutile.gpu.rounding import round_to, spacing
from pytest_cutile.gpu.trees import map_tensors, named_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

    from pytest_cutile.check.compare import Bound, GivenTolerance

TILE = 16
"""Indices in the part of a dimension that goes missing: the smallest tile of a tensor core's operand."""
MOST_RUNS = 32
"""Runs of the reference that altered inputs may cost."""
_SAMPLE = 1 << 16
"""Elements of an output, evenly spaced, that tell which are small."""
_ROUNDING = 1e-12

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


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One output that has passed."""

    name: str
    """Where it is in the result: "output[1]"."""
    out: torch.Tensor
    """What the kernel wrote."""
    exact: torch.Tensor
    """What the reference computed."""
    bound: Bound | GivenTolerance | None
    """What it was held to; None: equality."""


@dataclass(frozen=True, kw_only=True)
class _Altered:
    alteration: str
    where: str
    out: torch.Tensor
    matters: Matters = Matters.CASE
    matters_unchanged: Matters = Matters.CASE
    """If it changes nothing."""


def strength_of(
    outputs: Sequence[Checked],
    inputs: Mapping[str, Any],
    reference: Callable[[Mapping[str, Any]], Any],
    *,
    most_runs: int = MOST_RUNS,
) -> Strength:
    """Return what the check of these outputs would have caught.

    Args:
        outputs: what was compared, and passed.
        inputs: the arguments as they were before the launch, by name.
        reference: computes the exact outputs, float64, from such arguments.
        most_runs: how often `reference` may run.

    Memory: that of the largest output twice, and what a comparison and the reference take.
    """
    probes = [
        _probe(checked, altered) for checked in map(_corrected, outputs) for altered in _alter_output(checked)
    ]
    runs = list(_shortened_inputs(inputs))
    probes += [
        probe
        for name, target, dim, count in runs[:most_runs]
        for probe in _probe_input(outputs, inputs, reference, name, target, dim, count)
    ]
    return Strength(probes=tuple(probes), left_out=max(0, len(runs) - most_runs))


def _corrected(checked: Checked) -> Checked:
    """Return an output as it ought to be: what the reference computed, rounded to the output's dtype."""
    target = format_of(checked.out.dtype)
    if target is None:
        right = checked.exact.to(checked.out.dtype)
    else:
        right = _rewrite(checked.out, checked.exact, lambda y: round_to(y, target, saturate=target.eight_bit))
    return replace(checked, out=right)


def _probe(checked: Checked, altered: _Altered) -> Probe:
    outcome, detail = _judge(checked, altered.out, altered.alteration, base=checked.out)
    return Probe(
        alteration=altered.alteration,
        where=f"{checked.name}{altered.where}",
        outcome=outcome,
        matters=altered.matters_unchanged if outcome is Outcome.UNCHANGED else altered.matters,
        detail=detail,
    )


def _judge(
    checked: Checked, altered: torch.Tensor, alteration: str, *, base: torch.Tensor
) -> tuple[Outcome, str]:
    if not base.numel():
        return Outcome.UNCHANGED, "no elements: nothing is compared"
    if same_bits(altered, base):
        return Outcome.UNCHANGED, _SAME.get(alteration, "the right values need no rounding")
    result = compare(altered, checked.exact, checked.bound)
    if result.failed:
        return Outcome.CAUGHT, ""
    most = f", the largest error {result.worst.error:.2g} of it" if result.worst is not None else ""
    return Outcome.MISSED, f"within the bound{most}"


# -- alterations of an output ----------------------------------------------------------------------


def _alter_output(checked: Checked) -> Iterator[_Altered]:
    """Yield what bugs would make of an output, one at a time: each is as large as the output."""
    if not checked.out.numel():
        yield _Altered(alteration="all zero", where="", out=checked.out)
        return
    yield from _moved(checked.out)
    target = format_of(checked.out.dtype)
    if target is not None:
        yield from _misrounded(checked.out, checked.exact, target)


def _moved(out: torch.Tensor) -> Iterator[_Altered]:
    """Yield `out` with right values in wrong places, or zeros; on its bits, so that every dtype goes."""
    right = bits_of(out.contiguous())

    def altered(alteration: str, where: str, bits: torch.Tensor) -> _Altered:
        return _Altered(alteration=alteration, where=where, out=bits.contiguous().view(out.dtype))

    yield altered("all zero", "", right.new_zeros(right.shape))
    yield altered("one element lost", "", _without_one(right, out))
    if out.dtype.is_floating_point:
        yield altered("the smallest tenth lost", "", _without_smallest(right, out))
    if right.numel() == 1:
        return
    yield altered("a tile missing", "", _without_tile(right))
    for dim, size in enumerate(right.shape):
        where = f", dim {dim}"
        if size == 1:
            continue
        yield altered("two indices exchanged", where, _exchange_two(right, dim))
        yield altered("shifted by one", where, right.roll(1, dim))
        if dim < right.ndim - 2:
            continue
        last = min(TILE, size % TILE or TILE, size - 1)
        missing = right.clone()
        missing.narrow(dim, size - last, last).zero_()
        yield altered("the last tile missing", where, missing)
        if size >= 2 * last:
            stale = right.clone()
            stale.narrow(dim, size - last, last).copy_(right.narrow(dim, size - 2 * last, last))
            yield altered("the last tile stale", where, stale)
    for dim in range(right.ndim - 1):
        if min(right.shape[dim : dim + 2]) > 1:
            exchanged = right.transpose(dim, dim + 1).reshape(right.shape)
            yield altered("dimensions exchanged", f", dims {dim} and {dim + 1}", exchanged)


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
    import torch

    size = bits.shape[dim]
    differ = bits.narrow(dim, 1, size - 1) != bits.narrow(dim, 0, size - 1)
    at = int(differ.transpose(0, dim).reshape(size - 1, -1).any(dim=1).byte().argmax())
    order = torch.arange(size, device=bits.device)
    order[[at, at + 1]] = order[[at + 1, at]]
    return bits.index_select(dim, order)


def _misrounded(out: torch.Tensor, exact: torch.Tensor, target: FloatFormat) -> Iterator[_Altered]:
    """Yield the exact output wrongly rounded or slightly off."""
    saturate = target.eight_bit

    def altered(
        alteration: str, change: Callable[[torch.Tensor], torch.Tensor], *, essential: bool
    ) -> _Altered:
        matters = Matters.CASE if essential else Matters.NOT
        made = _rewrite(out, exact, lambda y: round_to(change(y), target, saturate=saturate))
        # Values that need no rounding (copies, sums of small integers) are no fault of the inputs.
        unchanged = Matters.KERNEL if essential else Matters.NOT
        return _Altered(
            alteration=alteration, where="", out=made, matters=matters, matters_unchanged=unchanged
        )

    def truncate(y: torch.Tensor) -> torch.Tensor:
        unit = spacing(y, target)
        return y.div(unit).trunc_().mul_(unit)

    def one_ulp_off(y: torch.Tensor) -> torch.Tensor:
        rounded = round_to(y, target, saturate=saturate)
        return rounded + spacing(rounded, target) * rounded.sign()

    # Sums in float32 are honestly off by more than an ulp of float32: only a narrower output has to be exact.
    narrow = target.unit_roundoff > 2.0**-24
    yield altered("truncated", truncate, essential=narrow)
    yield altered("one ulp off everywhere", one_ulp_off, essential=narrow)
    # In fp8 most elements are the same after 1 %.
    yield altered("1 % too large", lambda y: y * 1.01, essential=target.unit_roundoff < 0.01)  # noqa: PLR2004
    if target.precision > BFLOAT16.precision:
        # May be part of the kernel's contract: told, but no weakness.
        yield altered("rounded to bfloat16", lambda y: round_to(y, BFLOAT16), essential=False)
    if bool((exact == 0).any()):
        signed = _rewrite(out, out.double(), lambda y: y.where(y != 0, -y))
        yield _Altered(alteration="sign of zero", where="", out=signed, matters=Matters.NOT)
    if bool(exact.isinf().any()):
        nan = math.nan
        yield altered("NaN instead of Inf", lambda y: y.masked_fill(y.isinf(), nan), essential=True)


def _rewrite(
    out: torch.Tensor, exact: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Return a tensor like `out` with `change(exact)` in it, of which that dtype holds every value."""
    import torch

    made = torch.empty(out.shape, dtype=out.dtype, device=out.device)
    grid, truth = matrix_view(made), matrix_view(exact)
    for rows, columns in blocks(grid.shape[0], grid.shape[1], CHUNK):
        grid[rows, columns] = change(truth[rows, columns].double()).to(out.dtype)
    return made


# -- alterations of an input -----------------------------------------------------------------------


def _shortened_inputs(inputs: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor, int, int]]:
    """Yield every floating input, dimension and count of last indices that a kernel could ignore."""
    for count in (1, TILE):
        for label, value in inputs.items():
            for name, tensor in named_tensors(value, label):
                if tensor.dtype.is_floating_point and tensor.numel():
                    sizes = enumerate(tensor.shape)
                    yield from ((name, tensor, dim, count) for dim, size in sizes if size >= count)


def _probe_input(
    outputs: Sequence[Checked],
    inputs: Mapping[str, Any],
    reference: Callable[[Mapping[str, Any]], Any],
    name: str,
    target: torch.Tensor,
    dim: int,
    count: int,
) -> Iterator[Probe]:
    """Judge what a kernel would compute that takes the last `count` indices of an input for zeros.

    What a case makes of them may be nothing, and its bound may hide one of many: another case shows it then.
    No case may hide a tile, nor have inputs that are zero there anyway.
    """
    alteration = "an input's last index ignored" if count == 1 else f"an input's last {count} ignored"

    def shorten(tensor: torch.Tensor) -> torch.Tensor:
        if tensor is not target:
            return tensor
        shortened = tensor.clone()
        bits = bits_of(shortened)
        bits.narrow(dim, bits.shape[dim] - count, count).zero_()
        return shortened

    part = target.narrow(dim, target.shape[dim] - count, count)
    if not bool(bits_of(part).any()):
        yield Probe(
            alteration=alteration,
            where=f"{name}, dim {dim}",
            of_input=True,
            outcome=Outcome.UNCHANGED,
            detail="they are zero",
        )
        return
    try:
        results = dict(named_tensors(reference(map_tensors(shorten, dict(inputs))), "output"))
    except Exception:  # noqa: BLE001 - zeros may be no valid input: then no kernel can take them for it
        return
    outcomes = [
        _judge_input(
            checked, results[checked.name].to(checked.out.device), size=target.shape[dim], count=count
        )
        for checked in outputs
        if checked.name in results
    ]
    # An input need not show in every output, but in one of them.
    best = min(outcomes, key=lambda each: [*Outcome].index(each[0]), default=None)
    if best is not None:
        hidden = best[0] is Outcome.MISSED and count == TILE
        yield Probe(
            alteration=alteration,
            where=f"{name}, dim {dim}",
            of_input=True,
            outcome=best[0],
            matters=Matters.CASE if hidden else Matters.KERNEL,
            detail=best[1],
        )


def _judge_input(checked: Checked, moved: torch.Tensor, *, size: int, count: int) -> tuple[Outcome, str]:
    """Judge an output that was computed without a part of an input, at the end of a dimension of `size`.

    Where that part also counts for elements at other indices (a sum over them), the check has to see it
    there: at its own indices it is seen anyway, as in y = x / sum(x).
    """
    import torch

    exact = checked.exact
    if moved.shape != exact.shape:
        return Outcome.CAUGHT, ""
    differs = _differs(moved, exact)
    if not bool(differs.any()):
        return Outcome.UNCHANGED, "the exact output is the same without them"
    elsewhere = differs.clone()
    for dim, length in enumerate(exact.shape):
        if length == size:
            elsewhere.narrow(dim, size - count, count).fill_(False)
    if bool(elsewhere.any()):
        moved = torch.where(elsewhere, moved, exact)
    fmt = format_of(checked.out.dtype)
    if fmt is None:
        altered = moved.to(checked.out.dtype)
    else:
        altered = _rewrite(checked.out, moved, lambda y: round_to(y, fmt, saturate=fmt.eight_bit))
    if compare(altered, exact, checked.bound).failed:
        return Outcome.CAUGHT, ""
    return Outcome.MISSED, "the exact output moves by less than the bound allows"


def _differs(moved: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return where two results of the reference differ by more than the rounding of float64."""
    if not exact.dtype.is_floating_point:
        return moved != exact
    return ~moved.isclose(exact, rtol=_ROUNDING, atol=0.0, equal_nan=True)
