"""Compares what the compiler made of each load, store and matrix product of a kernel's source."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from pytest_cutile.tile.static.changes import Change, Effect

if TYPE_CHECKING:  # the facts need msgspec, which a run without kernels does not import
    from pytest_cutile.tile.static.facts import LaunchFacts, Site

PairedT = TypeVar("PairedT")


def site_changes(baseline: LaunchFacts, current: LaunchFacts) -> Iterator[Change]:
    """Yield the changes of loads, stores, products and other remarks of the compiler."""
    if baseline.sites is None or current.sites is None:
        return
    for operation in ("mma", "load", "store"):
        yield from _operation_changes(
            operation,
            [site for site in baseline.sites if site.operation == operation],
            [site for site in current.sites if site.operation == operation],
        )
    recorded = {note.text for note in baseline.notes}
    for note in current.notes:
        if note.text not in recorded:
            yield Change(
                effect=Effect.DIFFERENT,
                quantity="remark",
                baseline="none",
                current=note.text,
                place=note.place,
            )


def _operation_changes(operation: str, baseline: list[Site], current: list[Site]) -> Iterator[Change]:
    """Pair sites by source line and outcome, then by source line, then by outcome, then in source order.

    So lines may move or change places, names may change, and an added site hides no site that was lost.
    """
    pairs: list[tuple[Site, Site]] = []
    for same in (
        lambda before, after: before.text == after.text and before.outcome == after.outcome,
        lambda before, after: before.text == after.text != "",
        lambda before, after: before.outcome == after.outcome,
    ):
        more, baseline, current = take_pairs(baseline, current, same)
        pairs += more
    pairs += zip(baseline, current, strict=False)
    for before, after in sorted(pairs, key=lambda pair: (pair[1].file, pair[1].line)):
        if before.outcome != after.outcome:
            yield _site_change(operation, _effect(before, after), before.outcome, after)
    for site in baseline[len(current) :]:
        yield Change(
            effect=Effect.DIFFERENT,
            quantity=operation,
            baseline=site.outcome,
            current="gone",
            detail=f"it was at {site.place}",
        )
    for site in current[len(baseline) :]:
        yield _site_change(operation, Effect.DIFFERENT, "none", site)


def take_pairs(
    baseline: Sequence[PairedT], current: Sequence[PairedT], same: Callable[[PairedT, PairedT], bool]
) -> tuple[list[tuple[PairedT, PairedT]], list[PairedT], list[PairedT]]:
    """Pair each item of `baseline` with the first unpaired one of `current` that is the `same`.

    Returns the pairs, and what is left of either side.
    """
    pairs, removed, added = [], [], list(current)
    for before in baseline:
        after = next((candidate for candidate in added if same(before, candidate)), None)
        if after is None:
            removed.append(before)
        else:
            added.remove(after)
            pairs.append((before, after))
    return pairs, removed, added


def _site_change(operation: str, effect: Effect, before: str, site: Site) -> Change:
    return Change(
        effect=effect,
        quantity=operation,
        baseline=before,
        current=site.outcome,
        place=site.place,
        detail="; ".join(site.missed),
    )


def _effect(before: Site, after: Site) -> Effect:
    if after.operation == "mma" and before.instruction == after.instruction:
        # A product of one instruction is split among several, each of which fetches its operands anew.
        ranks = _multiply_adds(before.shape), _multiply_adds(after.shape)
    else:
        ranks = _rank(before.instruction), _rank(after.instruction)
    if ranks[0] is None or ranks[1] is None or ranks[0] == ranks[1]:
        return Effect.DIFFERENT
    return Effect.WORSE if ranks[1] < ranks[0] else Effect.BETTER


def _rank(instruction: str) -> int | None:
    """Order the instructions that an operation can become, best last; None for unknown ones."""
    tensor_core = re.fullmatch(r"Tensor-core SM(\d+)", instruction)
    if tensor_core is not None:
        return int(tensor_core[1])
    return {"FMA": 0, "Global-memory": 0, "Ldgsts": 1, "TMA": 2}.get(instruction.partition(" ")[0])


def _multiply_adds(shape: str) -> int | None:
    """Return the multiply-adds of a product's instruction: "64x128x16" does 131072."""
    return math.prod(map(int, shape.split("x"))) if shape else None
