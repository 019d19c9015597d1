"""What a failed comparison looks like, in words short enough for a CI log."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_cutile.gpu.dtypes import format_of
from pytest_cutile.gpu.poison import Pattern, poisoned
from pytest_cutile.gpu.trees import describe

if TYPE_CHECKING:
    import torch

    from pytest_cutile.gpu.compare import Comparison, Worst

WIDTH = 100
LINES = 24
_SAMPLE = 1 << 20
_ENOUGH = 16  # errors from which a direction can be told
_NEARLY_ALL = 0.98
_MAX_PLACES = 4


def explain(
    name: str, out: torch.Tensor, exact: torch.Tensor, comparison: Comparison, *, basis: str
) -> list[str]:
    """Return the lines that say what is wrong with the output called `name`."""
    outside, worst = comparison.outside, comparison.worst
    if outside is None or worst is None:
        return []
    bad, total = int(outside.sum()), out.numel()
    share = 100.0 * bad / total
    return [
        f"{name} ({describe(out)}): {bad:,} of {total:,} elements ({share:.3g} %) are outside the bound",
        *_describe_worst(worst, out.dtype),
        *(f"  {line}" for line in _find(out, exact, outside, bad)),
        f"  bound: {basis}",
    ]


def _describe_worst(worst: Worst, dtype: torch.dtype) -> list[str]:
    import torch

    where = ", ".join(map(str, worst.index))
    if not dtype.is_floating_point:
        return [f"  worst element [{where}]: got {worst.got}, expected {worst.exact}"]
    digits = 17 if dtype == torch.float64 else 10
    beyond = "" if math.isinf(worst.error) else f", {worst.error:.3g} times what rounding noise explains"
    ulps = "" if not math.isfinite(worst.ulps) or worst.ulps == 0 else f"  ({worst.ulps:.4g} ulp off)"
    return [
        f"  worst element [{where}]{beyond}:",
        f"    got      {worst.got:.{digits}g}{ulps}",
        f"    exact    {worst.exact:.{digits}g}, correctly rounded {worst.rounded:.{digits}g}",
        f"    allowed  {worst.lowest:.{digits}g} to {worst.highest:.{digits}g}",
    ]


def _find(out: torch.Tensor, exact: torch.Tensor, outside: torch.Tensor, bad: int) -> list[str]:
    import torch

    found = []
    never = int((poisoned(out) & outside).sum())
    if never:
        found.append(f"{never:,} elements still hold the poison: never written")
    beside = int((poisoned(out, Pattern.BESIDE_INPUT) & outside).sum()) if not never else 0
    if beside:
        found.append(f"{beside:,} elements hold what lies around the inputs: read out of bounds")
    if out.dtype.is_floating_point:
        wide = out if out.dtype.itemsize > 1 else out.half()
        nans = int((wide.isnan() & outside).sum()) - never - beside
        if nans > 0:
            found.append(f"{nans:,} of them are NaN where the reference is not")
        infs = int((wide.isinf() & outside).sum())
        if infs:
            found.append(f"{infs:,} of them are Inf")
        zeros = int(((wide == 0) & outside).sum())
        if zeros == out.numel():
            found.append("the whole output is zero")
        elif zeros > bad // 2:
            found.append(f"{zeros:,} of them are zero")
        found += _find_direction(wide, exact, outside)
    else:
        zeros = int(((out.to(torch.int64) == 0) & outside).sum())
        if zeros and zeros == bad:
            found.append("all of them are zero")
    return found + _find_place(outside)


def _find_direction(out: torch.Tensor, exact: torch.Tensor, outside: torch.Tensor) -> list[str]:
    """Say whether the errors are a constant factor, or all toward zero."""
    import torch

    at = outside.flatten().nonzero().flatten()[:_SAMPLE]
    got, y = (each.reshape(-1)[at].double() for each in (out, exact))
    usable = got.isfinite() & y.isfinite() & (y != 0) & (got != 0)
    got, y = got[usable], y[usable]
    if got.numel() < _ENOUGH or got.numel() < at.numel() // 2:
        return []
    ratios = got / y
    quarter, middle, three = torch.quantile(ratios[:100_000], ratios.new_tensor([0.25, 0.5, 0.75])).tolist()
    fmt = format_of(out.dtype)
    resolution = fmt.unit_roundoff if fmt else 0.0
    if abs(middle - 1.0) > 2 * (three - quarter) and abs(middle - 1.0) > 2 * resolution:
        return [f"a constant factor: got / exact is about {middle:.4g}"]
    toward = float((got.abs() < y.abs()).double().mean())
    if toward > _NEARLY_ALL and middle > 1.0 - 4.0 * resolution:
        return ["all errors are toward zero (truncation instead of rounding?)"]
    return []


def _find_place(outside: torch.Tensor) -> list[str]:
    """Say which indices of each dimension have errors, if not all of them."""
    places = []
    for dim in range(outside.ndim):
        others = [each for each in range(outside.ndim) if each != dim]
        hit = outside.any(dim=others) if others else outside
        indices = hit.nonzero().flatten()
        size, count = outside.shape[dim], indices.numel()
        if count == size:
            continue
        first, last = int(indices[0]), int(indices[-1])
        if count == 1:
            text = f"index {first} of {size}"
        elif last - first + 1 != count:
            text = f"{count:,} of {size:,} indices, from {first:,} to {last:,}"
        elif last == size - 1:
            text = f"the last {count:,} of {size:,}"
        elif first == 0:
            text = f"the first {count:,} of {size:,}"
        else:
            text = f"{first:,} to {last:,} of {size:,}"
        places.append(f"dim {dim}: only {text}")
    if len(places) > _MAX_PLACES:
        places = [*places[:_MAX_PLACES], "..."]
    if places:
        line = "where: " + "; ".join(places)
        return [line] if len(line) <= WIDTH - 2 else [f"where: {place}" for place in places]
    return [] if bool(outside.all()) else ["where: in every index of every dimension"]


def fit(lines: list[str], *, last: str | None = None) -> str:
    """Return `lines` and `last` as one text of at most `LINES` lines, none wider than `WIDTH`."""
    kept = (
        lines if len(lines) < LINES else [*lines[: LINES - 2], f"... and {len(lines) - LINES + 2} lines more"]
    )
    kept = kept if last is None else [*kept, last]
    return "\n".join(line if len(line) <= WIDTH else line[: WIDTH - 3] + "..." for line in kept)
