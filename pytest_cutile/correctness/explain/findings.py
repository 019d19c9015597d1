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
from pytest_cutile.correctness.errors import KernelMismatch
from pytest_cutile.correctness.explain.diagnosis import (
    LARGEST,
    count_ulps,
    find_direction,
    find_inexact,
    find_layout,
    find_noise,
    find_terms,
)
from pytest_cutile.correctness.explain.output import WrongOutput
from pytest_cutile.correctness.explain.places import (
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
from pytest_cutile.tile.tensors.poison import Pattern, poisoned
from pytest_cutile.tile.tensors.trees import describe
from pytest_cutile.words.quantities import abridged
from pytest_cutile.words.results import CAUSE

WIDTH = 100
LINES = 60
SCATTERED = "few and scattered: run again; if other elements are wrong then, it is a race"
"""What is said of a single launch."""
_MOST_FINDINGS = 5
_MAX_PLACES = 4
_MAX_NAMES = 4


def explain_mismatch(
    outputs: Any,
    comparison: OutputsComparison,
    *,
    title: str,
    started: float,
    is_right_around_zero: Callable[[], bool],
) -> KernelMismatch:
    """Return the failure of wrong outputs of a check that began at `started` (time.perf_counter)."""
    runs, (name, *others) = comparison.runs, comparison.failed
    out, exact, result = comparison.outputs[name], comparison.expected(name), comparison.results[name]
    wrong = find_inexact(out, exact) if result.outside is None else result.outside
    output = WrongOutput(name=name, out=out, exact=exact, wrong=wrong)
    reduction = runs.terms.reduction
    compared = () if runs.whole is None else runs.whole.observed.compared
    causes = find_ties(output, runs.call.arguments, compared)
    if len(runs.parts) == 1 and not runs.is_fixed and out.numel() <= LARGEST and out.is_floating_point():
        causes = find_reduced(output, runs.call, reduction)
    explained = explain(output, result, basis=comparison.bound(name), reduction=reduction, causes=causes)
    facts, details, advice = [*explained.facts], [*explained.details], ""
    if others:
        facts.insert(1, f"  wrong, too: {abridged(others, _MAX_NAMES)}")
    if len(runs.parts) > 1:
        details.append(f"  compared in {len(runs.parts)} parts, which independent=... says may be")
    if runs.is_fixed:
        facts.append("  the reference does not follow its arguments: it has to compute from them")
    elif runs.terms.tolerance is None and not any(
        compared_output.pattern for compared_output in comparison.results.values()
    ):
        advice = advise(outputs, comparison, started, is_right_around_zero)
        (facts if advice.startswith((WOULD, CANCELS)) else details).extend([f"  {advice}"] * bool(advice))
    mismatch = KernelMismatch(fit([f"{title}{explained.headline}", *facts, "", *details]))
    mismatch.advice, mismatch.clarity = advice, explained.clarity
    mismatch.wrong_share = 0.0 if result.outside is None else output.bad / out.numel()
    if result.levels is not None and result.worst is not None:
        mismatch.output, mismatch.index = out, result.worst.index
        unit = "times the bound" if out.is_floating_point() else "off by about"
        first, *values = (" ".join(line.split()) for line in _describe_worst(result.worst, out.dtype))
        worst = " ".join([first, "; ".join(values)]).strip()
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
    """What the headline names: 2 a cause, 1 what the errors have in common, 0 that they are many or few."""
    facts: Sequence[str]
    details: Sequence[str]
    """What somebody reads who doubts the check."""


def explain(
    output: WrongOutput,
    comparison: ElementComparison,
    *,
    basis: str,
    reduction: int = 1,
    causes: Sequence[str] = (),
) -> Explanation:
    """Say what is wrong with an output; `basis` is its bound in words, `causes` what is known already."""
    total, bad = output.out.numel(), output.bad
    share = f"{bad:,} of {total:,} elements ({100.0 * bad / total:.3g} %) are outside the bound"
    if comparison.outside is None:
        share = f"all {total:,} elements are within the bound; {bad:,} are not correctly rounded, "
        share += "and together not by chance"
    ulps = count_ulps(output.out, output.exact)
    places = find_places(output.wrong)
    new_causes, patterns = _find(output, places, 0 if causes else reduction)
    causes = [*causes, *new_causes]
    first, *findings = [*causes, *patterns, share]
    where = ", ".join(place.short for place in places[:_MAX_PLACES] if place.is_range)
    facts = [
        f"{output.name} ({describe(output.out)}): {share}",
        *(line for line in findings[:_MOST_FINDINGS] if line != share),
        *_describe_places(places, output),
        *([] if comparison.worst is None else _describe_worst(comparison.worst, output.out.dtype)),
        *draw(output.wrong, output.name),
    ]
    details = [
        f"failed: {', '.join(comparison.failed)}",
        *(f"{excess.test} {excess.where}: {excess.says}" for excess in comparison.together.excesses),
        *([f"ulps from the right value: {ulps}"] if ulps else []),
        f"bound: {basis}",
    ]
    return Explanation(
        headline=f" only in {where}: {first}" if where else f": {first}",
        clarity=CAUSE if causes else int(bool({*patterns} - {SCATTERED})),
        facts=[f"  {line}" for line in facts],
        details=[f"  {line}" for line in details],
    )


def _describe_worst(worst: Worst, dtype: torch.dtype) -> list[str]:
    where = ", ".join(map(str, worst.index))
    if not dtype.is_floating_point:
        return [f"worst element [{where}]: got {worst.got}, expected {worst.exact}"]
    digits = 17 if dtype == torch.float64 else 10
    beyond = "" if math.isinf(worst.error) else f", {worst.error:.3g} times what rounding noise explains"
    ulps = "" if not math.isfinite(worst.ulps) or worst.ulps == 0 else f"  ({worst.ulps:.4g} ulp off)"
    return [
        f"worst element [{where}]{beyond}:",
        f"  got      {worst.got:.{digits}g}{ulps}",
        f"  exact    {worst.exact:.{digits}g}, correctly rounded {worst.rounded:.{digits}g}",
        f"  allowed  {worst.lowest:.{digits}g} to {worst.highest:.{digits}g}",
    ]


def _find(output: WrongOutput, places: Sequence[WrongIndices], reduction: int) -> tuple[list[str], list[str]]:
    """Return what tells a cause, and what the errors have in common besides; first what tells most.

    `reduction` is the length of sums in which terms may be missing; 0 where their cause is known.
    """
    never = output.count(poisoned(output.out))
    beside = 0 if never else output.count(poisoned(output.out, Pattern.BESIDE_INPUT))
    causes = _name_poison(output.out.dtype, never, beside)
    if never < output.bad:
        causes += find_layout(output, places)
    patterns = _find_values(output, poison=never + beside)
    if output.out.is_floating_point():
        ranges = {place.dim: slice(place.first, place.last + 1) for place in places if place.is_range}
        inside = output.part([ranges.get(dim, slice(None)) for dim in range(output.out.ndim)])
        patterns += find_direction(inside)
        if reduction and not patterns:
            causes += find_terms(inside, reduction)
        if reduction and not patterns and not causes:
            patterns = find_noise(inside)
    if is_scattered(output.wrong) and bool(output.values.isfinite().all()):
        patterns.append(SCATTERED)
    return causes, patterns


def _name_poison(dtype: torch.dtype, never: int, beside: int) -> list[str]:
    """Say how many elements hold the poison of what was never written, and of what lies beside inputs."""
    if never and dtype in (torch.int8, torch.uint8, torch.float8_e4m3fn):
        return [f"{never:,} elements hold the poison, which may be a value: perhaps never written"]
    if never:
        return [f"{never:,} elements still hold the poison: never written"]
    if beside:
        return [f"{beside:,} elements hold what lies around the inputs: read out of bounds"]
    return []


def _find_values(output: WrongOutput, *, poison: int) -> list[str]:
    """Say how many wrong elements are NaN, apart from `poison`, Inf or zero."""
    values, zeros = output.values, output.count(output.values == 0)
    if not output.out.is_floating_point():
        return ["all wrong elements are zero"] if zeros and zeros == output.bad else []
    texts = []
    if (nans := output.count(values.isnan()) - poison) > 0:
        texts.append(f"{nans:,} elements are NaN where the reference is not")
    if infs := output.count(values.isinf()):
        texts.append(f"{infs:,} elements are Inf")
    if zeros == values.numel():
        texts.append("the whole output is zero")
    elif zeros > output.bad // 2:
        texts.append(f"{zeros:,} wrong elements are zero")
    return texts


def _describe_places(places: Sequence[WrongIndices], output: WrongOutput) -> list[str]:
    """Say which indices of each dimension have errors, if not all of them."""
    texts = [*map(str, places[:_MAX_PLACES])]
    if diagonal := find_diagonal(output.wrong):
        texts = [diagonal, *(str(place) for place in places if place.dim < output.wrong.ndim - 2)]
    if texts:
        line = "where: " + "; ".join(texts)
        return [line] if len(line) <= WIDTH - 2 else [f"where: {text}" for text in texts]
    return [] if output.bad == output.wrong.numel() else ["where: in every index of every dimension"]


def fit(lines: list[str]) -> str:
    """Return `lines` as one text of at most `LINES` lines; but for the first, wide ones go on in the next."""
    lines = [lines[0], *(part for line in lines[1:] for part in _wrap(line))]
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], f"... and {len(lines) - LINES + 1} lines more"]
    return "\n".join(lines)


def _wrap(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [line]
