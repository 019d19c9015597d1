"""Compares a compiled case with its baseline: pairs launches, and applies the rules to each pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_cutile.tile.static.changes import Change, Effect, StaticComparison
from pytest_cutile.tile.static.roofline import predict
from pytest_cutile.tile.static.rules import (
    LAUNCH_RULES,
    USE_RULES,
    Launches,
    different,
    spills,
    tensor_cores,
    used,
)
from pytest_cutile.tile.static.sites import site_changes, take_pairs
from pytest_cutile.words.quantities import format_time

if TYPE_CHECKING:  # the facts need msgspec, which a run without kernels does not import
    from pytest_cutile.tile.static.facts import CaseFacts, LaunchFacts

_COMPARED = ("registers", "threads", "shared_bytes", "instructions", "sites", "executed")


def compare(baseline: CaseFacts, current: CaseFacts, *, arch: str, margin: float) -> StaticComparison:
    """Return what is worse, better or different in the `current` code of a case."""
    both = Launches(baseline=baseline.launches, current=current.launches, arch=arch, margin=margin)
    pairs, unpaired = _pair_launches(both)
    torch_bytes = _torch_bytes(baseline, current)
    changes = [*_predicted(both, torch_bytes)]
    for pair in pairs:
        changes += _pair_changes(pair, is_named=len(current.launches) > 1)
    if torch_bytes[0] != torch_bytes[1]:
        changes.append(different("bytes that torch operations move", *torch_bytes))
    if unpaired.baseline or unpaired.current:
        changes.append(different("launches", *map(_names, (baseline, current))))
        changes += _unpaired_changes(both, unpaired)
    if any(change.effect is Effect.WORSE for change in changes):
        changes = [*map(_not_better, changes)]
    known = _known(current.launches)
    return StaticComparison(
        changes=tuple(sorted(changes, key=lambda change: list(Effect).index(change.effect))),
        unknown=tuple(name for name in _known(baseline.launches) if name not in known),
    )


def _pair_launches(both: Launches) -> tuple[list[Launches], Launches]:
    """Return launches of the same kernel in pairs, and all that have no partner.

    Where only the names differ (a kernel was renamed), launches are paired in order.
    """
    before, after = both.baseline, both.current
    removed: Sequence[LaunchFacts] = ()
    added: Sequence[LaunchFacts] = ()
    names = [sorted(launch.kernel for launch in side) for side in (before, after)]
    if len(before) == len(after) and names[0] != names[1]:
        pairs = [*zip(before, after, strict=True)]
    else:
        pairs, removed, added = take_pairs(before, after, lambda one, other: one.kernel == other.kernel)
    return (
        [replace(both, baseline=(one,), current=(other,)) for one, other in pairs],
        replace(both, baseline=removed, current=added),
    )


def _pair_changes(pair: Launches, *, is_named: bool) -> Iterator[Change]:
    before, after = pair.pair
    prefix = f"{after.kernel}: " if is_named else ""
    for changes in (*(rule(pair) for rule in LAUNCH_RULES), site_changes(before, after)):
        for change in changes:
            yield replace(change, quantity=prefix + change.quantity)


def _unpaired_changes(both: Launches, unpaired: Launches) -> Iterator[Change]:
    if unpaired.baseline and unpaired.current:
        for rule in USE_RULES:  # which launch replaces which is unknown: all of them together
            yield from rule(unpaired)
    elif unpaired.current:
        yield from spills(unpaired)
    elif not both.current or used(unpaired.baseline, "tensor_core"):
        yield from tensor_cores(both)


def _not_better(change: Change) -> Change:
    """Beside something worse of one cause, a part that would be good alone is no improvement."""
    return replace(change, effect=Effect.DIFFERENT) if change.effect is Effect.BETTER else change


def _predicted(both: Launches, torch_bytes: tuple[int, int]) -> Iterator[Change]:
    """Yield how the predicted time changed; nothing where it is unknown on a side."""
    before = predict(both.baseline, both.arch, torch_bytes=torch_bytes[0])
    after = predict(both.current, both.arch, torch_bytes=torch_bytes[1])
    if before is None or after is None:
        return
    slower = after.us / before.us
    # What spills move is not counted: with more of them, the prediction is a lower bound.
    if slower < 1 and any(change.effect is Effect.WORSE for change in spills(both)):
        return
    if 1 / (1 + both.margin) <= slower <= 1 + both.margin:
        return
    effect, quantity = Effect.WORSE, f"predicted {slower:.1f}x slower: {after.grown_since(before)}"
    if slower < 1:
        effect, quantity = Effect.BETTER, f"predicted {1 / slower:.1f}x faster: {before.grown_since(after)}"
    yield Change(
        effect=effect, quantity=quantity, baseline=format_time(before.us), current=format_time(after.us)
    )


def _torch_bytes(baseline: CaseFacts, current: CaseFacts) -> tuple[int, int]:
    """Return the bytes that torch operations move in both; zeros where one of them was not counted."""
    if baseline.torch_bytes is None or current.torch_bytes is None:
        return 0, 0
    return baseline.torch_bytes, current.torch_bytes


def _names(facts: CaseFacts) -> str:
    return ", ".join(launch.kernel for launch in facts.launches)


def _known(launches: Sequence[LaunchFacts]) -> list[str]:
    return [
        name.replace("_", " ")
        for name in _COMPARED
        if all(getattr(launch, name) is not None for launch in launches)
    ]
