"""What errors look like: a factor, truncation, a part of a sum, right values in the wrong place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from pytest_cutile.correctness.compare.elements import CHUNK, blocks, differ
from pytest_cutile.correctness.error_model.spread import matrix_view
from pytest_cutile.correctness.explain.output import WrongOutput
from pytest_cutile.correctness.explain.places import WrongIndices, is_scattered
from pytest_cutile.tile.tensors.dtypes import format_of
from pytest_cutile.tile.tensors.rounding import convert, spacing

_SAMPLE = 1 << 20
_ENOUGH = 16  # errors from which a direction can be told
_NEARLY_ALL = 0.98
_MOST = 0.5
_LEAST_SHARE = 1e-4
"""Smallest share of a sum's terms that is looked for: the bound alone tells a smaller one from rounding."""
_ULPS = (0.0, 1.0, 2.0, 4.0, 16.0, 256.0, torch.finfo(torch.float64).max)
"""Upper limits of a histogram's classes; beyond the last one are NaN and Inf."""
_ULPS_NAMES = ("0", "1", "2", "3-4", "5-16", "17-256", "> 256", "NaN or Inf")
LARGEST = 1 << 24
"""Elements up to which an output is compared with itself in other layouts: eight float64 copies of it."""
_TRIED = 256
"""Wrong indices of a dimension that are looked at for where their values belong."""
_NOISE = 2.0**-5
"""Error relative to the values, above which it is no rounding."""
_INDEPENDENT = 0.3
"""Correlation of errors with values up to which they do not follow them."""
_BFLOAT16_BITS = 8
_PROJECTIONS = 6
"""Random directions by which the values of an index are known again."""


def count_ulps(out: torch.Tensor, exact: torch.Tensor) -> str:
    """Return how many elements are how far from the correctly rounded value: "0: 91, 1: 5, > 256: 2"."""
    counts = torch.zeros(len(_ULPS_NAMES), dtype=torch.int64, device=out.device)
    limits = torch.tensor(_ULPS, dtype=torch.float64, device=out.device)
    for _, got, rounded, unit in _rounded_blocks(out, exact):
        ulps = (got - rounded).abs_().div_(unit).round_()
        ulps = torch.where(differ(got, rounded), ulps, 0.0).flatten().contiguous()  # else torch warns
        counts += torch.bincount(torch.bucketize(ulps, limits), minlength=len(counts))
    named = zip(_ULPS_NAMES, counts.tolist(), strict=True)
    return ", ".join(f"{name}: {count:,}" for name, count in named if count)


def find_inexact(out: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    inexact = torch.zeros(out.shape, dtype=torch.bool, device=out.device)
    for block, got, rounded, _ in _rounded_blocks(out, exact):
        matrix_view(inexact)[block] = differ(got, rounded)
    return inexact


def _rounded_blocks(
    out: torch.Tensor, exact: torch.Tensor
) -> Iterator[tuple[tuple[slice, slice], torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield a block, what was got, the right value and the spacing there; nothing for integers."""
    if (target := format_of(out.dtype)) is None:
        return
    grid, truth = matrix_view(out.detach()), matrix_view(exact)
    for block in blocks(grid):
        rounded = convert(truth[block].double(), target)
        yield block, grid[block].double(), rounded, spacing(rounded, target)


def find_direction(output: WrongOutput) -> list[str]:
    """Say whether the errors are a constant factor, or all toward zero."""
    at = _first_errors(output.wrong, _SAMPLE)
    got, y = (whole.reshape(-1)[at].double() for whole in (output.values, output.exact))
    usable = got.isfinite() & y.isfinite() & (y != 0) & (got != 0)
    got, y = got[usable], y[usable]
    if got.numel() < _ENOUGH or got.numel() < at.numel() // 2:
        return []
    ratios = got / y
    low, middle, high = torch.quantile(ratios[:100_000], ratios.new_tensor([0.02, 0.5, 0.98])).tolist()
    target = format_of(output.out.dtype)
    resolution = target.unit_roundoff if target else 0.0
    toward = float((got.abs() < y.abs()).double().mean())
    if toward > _NEARLY_ALL and low > 1.0 - 2.0 * resolution:  # by less than one unit in the last place
        return ["all errors are toward zero (truncation instead of rounding?)"]
    # Rounding alone spreads the ratios of one factor by that much.
    spread = high - low - 2 * resolution
    is_factor = abs(middle - 1.0) > 2 * max(spread, resolution)
    if is_factor and not is_scattered(output.wrong):
        return [f"a constant factor: got / exact is about {middle:.4g}"]
    return []


def _first_errors(wrong: torch.Tensor, count: int) -> torch.Tensor:
    errors: list[torch.Tensor] = []
    for number, part in enumerate(torch.split(wrong.flatten(), CHUNK)):
        errors.append(part.nonzero().flatten() + number * CHUNK)
        if sum(map(len, errors)) >= count:
            break
    return torch.cat(errors)[:count]


def find_terms(output: WrongOutput, reduction: int) -> list[str]:
    """Say whether some terms of every sum are missing, counted twice or replaced.

    Of a sum of n independent terms of mean 0, f n terms are missing. Then the error d = out - y has
    |d|^2 = f |y|^2 and <d, y> = -f |y|^2; counted twice, +f; replaced by others, |d|^2 is twice as large.
    """
    if not _is_wrong_all_over(output):
        return []
    size = error = along = 0.0
    grid, truth = matrix_view(output.values), matrix_view(output.exact)
    for block in blocks(grid):
        y, got = truth[block].double().flatten(), grid[block].double().flatten()
        usable = y.isfinite() & got.isfinite()
        y, d = y.where(usable, 0.0), (got - y).where(usable, 0.0)
        size, error, along = size + float(y.dot(y)), error + float(d.dot(d)), along + float(d.dot(y))
    share = error / size if size else 0.0
    if not _LEAST_SHARE < share < 1:
        return []
    for relation, factor, what in ((-1.0, 1.0, "missing"), (1.0, 1.0, "counted twice"), (-0.5, 0.5, "wrong")):
        # the correlation of n samples is known to about 1 / sqrt(n share)
        if abs(along / error - relation) < 0.1 + 3.0 / math.sqrt(output.out.numel() * share):
            part = share * factor
            terms = f"{part * reduction:.3g} of the {reduction:,} terms" if reduction > 1 else f"{part:.2%}"
            return [f"as if {terms} of each sum were {what} (relative error {math.sqrt(share):.3g} all over)"]
    return []


def _is_wrong_all_over(output: WrongOutput) -> bool:
    elements = output.out.numel()
    return output.bad >= _MOST * elements and elements >= _ENOUGH * _ENOUGH


def find_noise(output: WrongOutput) -> list[str]:
    """Say how coarse intermediate results are whose errors are small, everywhere, and follow nothing.

    Rounding to p bits moves a value by 0.4 times 2^-p of it, in the root mean square; a sum that is rounded
    after each of its terms loses two or three bits more.
    """
    if not _is_wrong_all_over(output):
        return []
    y, got = (whole.flatten()[:_SAMPLE].double() for whole in (output.exact, output.values))
    d = got - y
    usable = y.isfinite() & d.isfinite()
    y, d = y[usable], d[usable]
    size, error = float(y.dot(y)), float(d.dot(d))
    share = math.sqrt(error / size) if size else 0.0
    if not 0 < share < _NOISE or abs(float(d.dot(y))) > _INDEPENDENT * math.sqrt(error * size):
        return []
    bits = math.floor(math.log2(0.4 / share))
    coarse = "bfloat16 (8 significant bits)" if bits <= _BFLOAT16_BITS else "float16 or tfloat32 (11 bits)"
    typical = f"typically {100 * share:.2g} % of a value"
    return [f"errors like noise, {typical}: is a sum kept, or a value rounded, in {coarse}?"]


def find_layout(output: WrongOutput, places: Sequence[WrongIndices]) -> list[str]:
    """Say whether the values are right and in the wrong place: transposed, shifted, or of another index."""
    if not 1 < output.out.numel() <= LARGEST or not bool(output.values.any()):
        return []
    got, y = output.out.detach().double(), output.exact.double()
    finite = y[y.isfinite()]
    slack = 1e-3 * float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    if not _is_like(got, y, slack):
        for text, other in _layouts(y):
            if _is_like(got, other, slack):
                return [f"the values are right and in the wrong place: {text}"]
    for place in places:
        others = [other for other in places if other.dim != place.dim and other.is_range]
        if moved := _find_moved(_narrowed(got, others), _narrowed(y, others), place, slack):
            return [f"dim {place.dim}: {moved}"]
    return []


def _is_like(one: torch.Tensor, other: torch.Tensor, slack: float) -> bool:
    close = torch.isclose(one, other, rtol=0.01, atol=slack, equal_nan=True)
    return float(close.double().mean()) > _NEARLY_ALL


def _find_moved(got: torch.Tensor, y: torch.Tensor, place: WrongIndices, slack: float) -> str:
    """Say whether wrong indices of a dimension hold what belongs to others; empty: they do not."""
    dim, size = place.dim, place.count

    def is_from(here: int, origin: int, count: int) -> bool:
        own, other = (y.narrow(dim, at, count) for at in (here, origin))
        mine = got.narrow(dim, here, count)
        return _is_like(mine, other, slack) and not _is_like(mine, own, slack)

    for start in (place.first - size, place.first + size):
        is_inside = place.is_range and 0 <= start <= place.size - size
        if is_inside and is_from(place.first, start, size):
            first, there = (
                f"{at} to {at + size - 1}" if size > 1 else f"{at}" for at in (place.first, start)
            )
            return f"{first} hold what belongs to {there}"
    nearest = _nearest(got, y, dim, slack)
    moved = [here for here, there in nearest.items() if here != there and is_from(here, there, 1)]
    if not moved or len(moved) < min(size, _TRIED):
        return ""
    held = got.index_select(dim, torch.tensor(moved, dtype=torch.long, device=got.device)).flatten()
    if not bool(
        (held != held[0]).any()
    ):  # one value everywhere, as zeros are, is like whatever is next to it
        return ""
    said = [f"{here} holds what belongs to {nearest[here]}" for here in moved[:2]]
    return ", ".join([*said, *(["..."] if moved[2:] else [])])


def _narrowed(whole: torch.Tensor, places: Sequence[WrongIndices]) -> torch.Tensor:
    """Return the part of a tensor that ranges of wrong indices enclose."""
    for place in places:
        whole = whole.narrow(place.dim, place.first, place.count)
    return whole


def _nearest(got: torch.Tensor, y: torch.Tensor, dim: int, slack: float) -> dict[int, int]:
    """Return for wrong indices of `dim` the index of `y` that is most like each, by random projections."""
    rows, others = (
        whole.movedim(dim, 0).reshape(whole.shape[dim], -1).nan_to_num(0.0, 0.0, 0.0) for whole in (got, y)
    )
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(rows.shape[1], _PROJECTIONS, generator=generator, dtype=rows.dtype).to(
        rows.device
    )
    wrong = torch.isclose(rows, others, rtol=0.01, atol=slack).logical_not_().any(1).nonzero()[:_TRIED, 0]
    nearest = torch.cdist((rows @ directions)[wrong], others @ directions).argmin(1)
    return dict(zip(wrong.tolist(), nearest.tolist(), strict=True))


def _layouts(y: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the exact output as a kernel would write it that mistakes its layout."""
    for dim in range(y.ndim - 1):
        if min(y.shape[dim : dim + 2]) > 1:
            exchanged = y.transpose(dim, dim + 1).reshape(y.shape)
            yield f"dims {dim} and {dim + 1} are exchanged (transposed?)", exchanged
    for dim, size in enumerate(y.shape):
        if size > 2:  # noqa: PLR2004
            yield f"shifted by one along dim {dim}", y.roll(1, dim)
            yield f"shifted by minus one along dim {dim}", y.roll(-1, dim)
        if size > 1:
            yield f"dim {dim} is reversed", y.flip(dim)
