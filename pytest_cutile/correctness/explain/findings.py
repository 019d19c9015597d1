"""The failure of a check: what is wrong with the outputs, in words short enough for a CI log."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_cutile.correctness.compare.elements import ElementComparison, Worst
from pytest_cutile.correctness.compare.outputs import OutputsComparison
from pytest_cutile.correctness.error_model.noise import ReferenceRuns
from pytest_cutile.correctness.errors import KernelMismatch
from pytest_cutile.correctness.explain.diagnosis import (
    LARGEST,
    all_zero,
    count_ulps,
    find_direction,
    find_inexact,
    find_layout,
    find_noise,
    find_terms,
)
from pytest_cutile.correctness.explain.places import (
    SCALE,
    WrongIndices,
    draw,
    find_diagonal,
    find_places,
    is_scattered,
    map_errors,
    map_shares,
)
from pytest_cutile.correctness.explain.reduced import find_reduced
from pytest_cutile.correctness.explain.relaxation import CANCELS, WOULD, advise
from pytest_cutile.correctness.explain.ties import find_ties
from pytest_cutile.quantities import abridged
from pytest_cutile.tensors.poison import Pattern, poisoned
from pytest_cutile.tensors.trees import describe

WIDTH = 100
LINES = 60
SCATTERED = "few and scattered: run again; if other elements are wrong then, it is a race"
"""What is said of a single launch."""
_MOST_FINDINGS = 5
_MAX_PLACES = 4
_MAX_NAMES = 4
_MAP = (6, 32)
"""Rows and columns of characters of the picture in the text."""


def explain_mismatch(
    outputs: Any,
    comparison: OutputsComparison,
    runs: ReferenceRuns,
    *,
    title: str,
    started: float,
    is_right_around_zero: Callable[[], bool] = bool,
) -> KernelMismatch:
    """Return the failure of wrong outputs of a check that began at `started` (time.perf_counter)."""
    name, *others = comparison.failed
    out, exact, result = comparison.outputs[name], comparison.expected(name), comparison.results[name]
    wrong = find_inexact(out, exact) if result.outside is None else result.outside
    may_run = (
        len(runs.parts) == 1 and not runs.is_fixed and out.numel() <= LARGEST and out.is_floating_point()
    )
    reduction = runs.terms.reduction
    explained = explain(
        name,
        out,
        exact,
        result,
        wrong,
        basis=comparison.bounds[name],
        reduction=reduction,
        causes=[
            *(find_reduced(name, out, exact, wrong, runs.call, reduction) if may_run else ()),
            *find_ties(
                out,
                exact,
                wrong,
                runs.call.arguments,
                () if runs.whole is None else runs.whole.observed.compared,
            ),
        ],
    )
    facts, details, advice = [*explained.facts], [*explained.details], ""
    if others:
        facts.insert(1, f"  wrong, too: {abridged(others, _MAX_NAMES)}")
    if len(runs.parts) > 1:
        details.append(f"  compared in {len(runs.parts)} parts, which independent=... says may be")
    if runs.is_fixed:
        facts.append("  the reference does not follow its arguments: it has to compute from them")
    elif runs.terms.tolerance is None and not any(output.pattern for output in comparison.results.values()):
        advice = advise(outputs, comparison, runs, title, started, is_right_around_zero)
        (facts if advice.startswith((WOULD, CANCELS)) else details).extend([f"  {advice}"] * bool(advice))
    mismatch = KernelMismatch(fit([f"{title}{explained.headline}", *facts, "", *details]))
    mismatch.advice, mismatch.clarity = advice, explained.clarity
    if result.levels is not None and result.worst is not None:
        mismatch.output, mismatch.index = out, result.worst.index
        unit = "times the bound" if out.is_floating_point() else "off by about"
        first, *others = (" ".join(line.split()) for line in _describe_worst(result.worst, out.dtype))
        worst = " ".join([first, "; ".join(others)]).strip()
        mismatch.errors = map_errors(result.levels, name, unit=unit, worst=worst)
    else:
        mismatch.errors = map_shares(wrong, name, unit="of the elements not correctly rounded")
    return mismatch


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What is wrong with an output, in lines."""

    headline: str
    """Where, if not everywhere; after a colon the finding that tells most, or how many elements are wrong."""
    clarity: int
    """What the headline names: 2 a cause, 1 what the errors have in common, 0 their number."""
    facts: Sequence[str]
    details: Sequence[str]
    """What somebody reads who doubts the check."""


def explain(
    name: str,
    out: torch.Tensor,
    exact: torch.Tensor,
    comparison: ElementComparison,
    wrong: torch.Tensor,
    *,
    basis: str,
    reduction: int = 1,
    causes: Sequence[str] = (),
) -> Explanation:
    """Say what is wrong with an output; `basis` is its bound in words, `causes` what is known already."""
    total, bad = out.numel(), int(wrong.sum())
    if comparison.outside is None:  # each element may be as it is, but not all of them together
        share = (
            f"all {total:,} elements are within the bound; {bad:,} are not correctly rounded, and together "
        )
        share += "not by chance"
    else:
        share = f"{bad:,} of {total:,} elements ({100.0 * bad / total:.3g} %) are outside the bound"
    ulps = count_ulps(out, exact)
    places = find_places(wrong)
    found, patterns = _find(out, exact, wrong, bad, places, 0 if causes else reduction)
    causes = [*causes, *found]
    first, *findings = [*causes, *patterns, share]
    where = ", ".join(place.short for place in places[:_MAX_PLACES] if place.is_range)
    return Explanation(
        headline=f" only in {where}: {first}" if where else f": {first}",
        clarity=2 if causes else int(bool(patterns)),
        facts=[
            f"  {name} ({describe(out)}): {share}",
            *(f"  {line}" for line in findings[:_MOST_FINDINGS] if line != share),
            *(f"  {line}" for line in _describe_places(places, wrong, bad)),
            *([] if comparison.worst is None else _describe_worst(comparison.worst, out.dtype)),
            *_draw(wrong, name),
        ],
        details=[
            f"  failed: {', '.join(comparison.failed)}",
            *(f"  {excess.test} {excess.where}: {excess.says}" for excess in comparison.together.excesses),
            *([f"  ulps from the right value: {ulps}"] if ulps else []),
            f"  bound: {basis}",
        ],
    )


def _draw(wrong: torch.Tensor, name: str) -> list[str]:
    picture = draw(wrong, name, rows=_MAP[0], columns=_MAP[1])
    marked = [share > 0 for row in picture.shares for share in row]
    if all(marked) or int(wrong.sum()) <= 1:
        return []
    return [f"  {picture.caption}:", *(f"    {line}" for line in picture.as_text()), f"    {SCALE}"]


def _describe_worst(worst: Worst, dtype: torch.dtype) -> list[str]:
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


def _find(
    out: torch.Tensor,
    exact: torch.Tensor,
    outside: torch.Tensor,
    bad: int,
    places: Sequence[WrongIndices],
    reduction: int,
) -> tuple[list[str], list[str]]:
    """Return what tells a cause, and what the errors have in common besides; first what tells most.

    `reduction` is the length of sums in which terms may be missing; 0 where their cause is known.
    """
    wide = out.half() if out.dtype.is_floating_point and out.dtype.itemsize == 1 else out

    def count(elements: torch.Tensor) -> int:
        return int((elements & outside).sum())

    causes, patterns = [], []
    never = count(poisoned(out))
    beside = 0 if never else count(poisoned(out, Pattern.BESIDE_INPUT))
    if never and out.dtype in (torch.int8, torch.uint8, torch.float8_e4m3fn):
        causes.append(f"{never:,} elements hold the poison, which may be a value: perhaps never written")
    elif never:
        causes.append(f"{never:,} elements still hold the poison: never written")
    if beside:
        causes.append(f"{beside:,} elements hold what lies around the inputs: read out of bounds")
    if never < bad and not all_zero(out):
        causes += find_layout(out, exact, places)
    zeros = count((wide if out.dtype.is_floating_point else out.to(torch.int64)) == 0)
    if out.dtype.is_floating_point:
        if (nans := count(wide.isnan()) - never - beside) > 0:
            patterns.append(f"{nans:,} elements are NaN where the reference is not")
        if infs := count(wide.isinf()):
            patterns.append(f"{infs:,} elements are Inf")
        if zeros == out.numel():
            patterns.append("the whole output is zero")
        elif zeros > bad // 2:
            patterns.append(f"{zeros:,} wrong elements are zero")
        box = tuple(slice(place.first, place.last + 1) for place in _along_each_dim(places, outside))
        patterns += find_direction(wide[box], exact[box], outside[box], out.dtype)
        if not patterns and reduction:
            terms = find_terms(wide[box], exact[box], outside[box], bad, reduction=reduction)
            causes += terms
            patterns += [] if terms or causes else find_noise(wide[box], exact[box], bad)
    elif zeros and zeros == bad:
        patterns.append("all wrong elements are zero")
    if is_scattered(outside, bad) and bool(wide.isfinite().all()):
        patterns.append(SCATTERED)
    return causes, patterns


def _along_each_dim(places: Sequence[WrongIndices], outside: torch.Tensor) -> list[WrongIndices]:
    """Return the range of wrong indices of each dimension: all of them where none is special."""
    special = {place.dim: place for place in places if place.is_range}
    return [
        special.get(dim, WrongIndices(dim=dim, size=size, first=0, last=size - 1, count=size))
        for dim, size in enumerate(outside.shape)
    ]


def _describe_places(places: Sequence[WrongIndices], outside: torch.Tensor, bad: int) -> list[str]:
    """Say which indices of each dimension have errors, if not all of them."""
    texts = [*map(str, places[:_MAX_PLACES])]
    if diagonal := find_diagonal(outside):
        texts = [diagonal, *(str(place) for place in places if place.dim < outside.ndim - 2)]
    if texts:
        line = "where: " + "; ".join(texts)
        return [line] if len(line) <= WIDTH - 2 else [f"where: {text}" for text in texts]
    return [] if bad == outside.numel() else ["where: in every index of every dimension"]


def fit(lines: list[str]) -> str:
    """Return `lines` as one text of at most `LINES` lines; but for the first, wide ones go on in the next."""
    lines = [lines[0], *(part for line in lines[1:] for part in _wrap(line))]
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], f"... and {len(lines) - LINES + 1} lines more"]
    return "\n".join(lines)


def _wrap(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [line]
