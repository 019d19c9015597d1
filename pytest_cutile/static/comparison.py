"""Compares a compiled case with its baseline: pairs launches, and applies the rules to each pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_cutile.static.changes import Change, Effect, StaticComparison, StaticRule
from pytest_cutile.static.roofline import predict
from pytest_cutile.static.rules import (
    LAUNCH_RULES,
    USE_RULES,
    Launches,
    different,
    spills,
    tensor_cores,
    used,
)
from pytest_cutile.static.sites import site_changes, take_pairs

if TYPE_CHECKING:  # the facts need msgspec, which a run without kernels does not import
    from pytest_cutile.static.facts import CaseFacts, LaunchFacts

_COMPARED = ("registers", "threads", "shared_bytes", "instructions", "sites", "executed")


def compare(baseline: CaseFacts, current: CaseFacts, *, arch: str, rule: StaticRule) -> StaticComparison:
    """Return what is worse, better or different in the `current` code of a case."""
    changes = [*_predicted(baseline, current, arch, rule)]
    pairs, removed, added = _pair_launches(baseline.launches, current.launches)
    for before, after in pairs:
        pair = Launches(baseline=(before,), current=(after,), arch=arch, thresholds=rule)
        of_pair = [change for rule_of in LAUNCH_RULES for change in rule_of(pair)]
        of_pair += site_changes(before, after)
        prefix = f"{after.kernel}: " if len(current.launches) > 1 else ""
        changes += [replace(change, quantity=prefix + change.quantity) for change in of_pair]
    moved = _torch_bytes(baseline, current)
    if moved[0] != moved[1]:
        changes.append(different("bytes that torch operations move", *moved))
    if removed or added:
        names = [", ".join(launch.kernel for launch in facts.launches) for facts in (baseline, current)]
        changes.append(different("launches", *names))
        unpaired = Launches(baseline=removed, current=added, arch=arch, thresholds=rule)
        if removed and added:  # which took the place of which is unknown: all of them together
            changes += [change for rule_of in USE_RULES for change in rule_of(unpaired)]
        elif added:
            changes += spills(unpaired)
        elif not pairs or used(removed, "tensor_core"):
            changes += tensor_cores(replace(unpaired, baseline=baseline.launches, current=current.launches))
    if any(change.effect is Effect.WORSE for change in changes):
        # Of one cause, a part that would be good alone is no improvement.
        changes = [
            replace(change, effect=Effect.DIFFERENT) if change.effect is Effect.BETTER else change
            for change in changes
        ]
    known = _known(current.launches)
    changes.sort(key=lambda change: list(Effect).index(change.effect))
    return StaticComparison(
        changes=tuple(changes),
        unknown=tuple(name for name in _known(baseline.launches) if name not in known),
    )


def _pair_launches(
    baseline: Sequence[LaunchFacts], current: Sequence[LaunchFacts]
) -> tuple[list[tuple[LaunchFacts, LaunchFacts]], list[LaunchFacts], list[LaunchFacts]]:
    """Return launches of the same kernel in pairs, those only in the baseline, and those only in the code.

    Where only the names differ (a kernel was renamed), launches are paired in order.
    """
    names = [sorted(launch.kernel for launch in launches) for launches in (baseline, current)]
    if len(baseline) == len(current) and names[0] != names[1]:
        return list(zip(baseline, current, strict=True)), [], []
    return take_pairs(baseline, current, lambda before, after: before.kernel == after.kernel)


def _predicted(baseline: CaseFacts, current: CaseFacts, arch: str, rule: StaticRule) -> Iterator[Change]:
    """Yield how the predicted time changed; nothing where it is unknown on a side."""
    moved = _torch_bytes(baseline, current)
    before = predict(baseline.launches, arch, torch_bytes=moved[0])
    after = predict(current.launches, arch, torch_bytes=moved[1])
    if before is None or after is None:
        return
    slower = after.us / before.us
    # What spills move is not counted: with more of them, the prediction is a lower bound.
    more_spills = Launches(baseline=baseline.launches, current=current.launches, arch=arch, thresholds=rule)
    if slower < 1 and any(change.effect is Effect.WORSE for change in spills(more_spills)):
        return
    margin = rule.margin
    if 1 / (1 + margin) <= slower <= 1 + margin:
        return
    worse = slower > 1
    yield Change(
        effect=Effect.WORSE if worse else Effect.BETTER,
        quantity=(
            f"predicted {slower:.1f}x slower: {after.grown_since(before)}"
            if worse
            else f"predicted {1 / slower:.1f}x faster: {before.grown_since(after)}"
        ),
        baseline=f"{before.us:.3g} us",
        current=f"{after.us:.3g} us",
    )


def _torch_bytes(baseline: CaseFacts, current: CaseFacts) -> tuple[int, int]:
    """Return the bytes that torch operations move in both; zeros where one of them was not counted."""
    if baseline.torch_bytes is None or current.torch_bytes is None:
        return 0, 0
    return baseline.torch_bytes, current.torch_bytes


def _known(launches: Sequence[LaunchFacts]) -> list[str]:
    return [
        name.replace("_", " ")
        for name in _COMPARED
        if all(getattr(launch, name) is not None for launch in launches)
    ]
