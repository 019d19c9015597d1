"""What is worse about a compiled case, what is better, and what is only different: one rule per quantity.

docs/static.md has the rules as a table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from pytest_cutile.core.multiprocessor import Occupancy, limits_of, occupancy
from pytest_cutile.core.static_facts import CLASS_TITLES, CaseFacts, LaunchFacts, Site

_Paired = TypeVar("_Paired", LaunchFacts, Site)


class Effect(StrEnum):
    """What a change means."""

    WORSE = "worse"
    BETTER = "better"
    DIFFERENT = "different"


@dataclass(frozen=True, kw_only=True)
class StaticRule:
    """The thresholds of the static gate."""

    margin: float = 0.10
    """Growth of registers, shared memory or spills, as a fraction, above which they are worse."""
    register_step: int = 8
    """Growth of registers per thread that is never worse by itself: they are allocated in such steps."""
    shared_step: int = 1024
    """Growth of shared memory per block, in bytes, that is never worse by itself."""

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 1:
            raise ValueError(f"the margin must be a fraction from 0 to below 1, got {self.margin}")


@dataclass(frozen=True, kw_only=True)
class Change:
    """One difference between the recorded case and the case at hand."""

    effect: Effect
    """What it means."""
    quantity: str
    """What changed: "registers", "load"."""
    then: str
    """Recorded value, for people."""
    now: str
    """Value at hand, for people."""
    place: str = ""
    """File and line in the kernel's source, where the change has one."""
    detail: str = ""
    """Why, as far as that is known."""

    @property
    def text(self) -> str:
        """The change in one line."""
        place = f"{self.place}: " if self.place else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{place}{self.quantity}: {self.then} -> {self.now}{detail}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All differences of a case."""

    changes: tuple[Change, ...]
    """In the order of the rules."""
    unknown: tuple[str, ...]
    """What the baseline has and the case at hand lacks, because a tool is missing."""

    def of(self, effect: Effect) -> list[Change]:
        """Return the changes of one kind."""
        return [change for change in self.changes if change.effect is effect]


def compare(then: CaseFacts, now: CaseFacts, *, arch: str, rule: StaticRule) -> Comparison:
    """Compare a case with what was recorded of it.

    Args:
        then: The baseline.
        now: The case at hand.
        arch: Architecture of both.
        rule: The thresholds.
    """
    changes: list[Change] = []
    pairs, gone, come = _pair_launches(then.launches, now.launches)
    for before, after in pairs:
        prefix = f"{after.kernel}: " if len(now.launches) > 1 else ""
        found = [*_launch_changes(before, after, arch, rule), *_site_changes(before, after)]
        changes += [_prefixed(change, prefix) for change in _with_prices(found)]
    if gone or come:
        names = [", ".join(launch.kernel for launch in facts.launches) for facts in (then, now)]
        changes.append(_different("launches", *names))
        # What took the place of what: nobody knows, so together.
        if gone and come:
            changes += _use_changes(gone, come, rule)
        elif come:
            changes += _spill_changes((), come, rule)
        elif not pairs or _uses(gone, "tensor_core"):
            changes += _tensor_core_changes(then.launches, now.launches)
    known = _known(now.launches)
    unknown = tuple(name for name in _known(then.launches) if name not in known)
    changes.sort(key=lambda change: list(Effect).index(change.effect))
    return Comparison(changes=tuple(changes), unknown=unknown)


def _pair_launches(
    then: Sequence[LaunchFacts], now: Sequence[LaunchFacts]
) -> tuple[list[tuple[LaunchFacts, LaunchFacts]], list[LaunchFacts], list[LaunchFacts]]:
    """Return launches of the same kernel in pairs, and what is left of either side.

    Where only the names differ (a kernel was renamed), launches are paired in order.
    """
    names = [[launch.kernel for launch in launches] for launches in (then, now)]
    if len(then) == len(now) and sorted(names[0]) != sorted(names[1]):
        return list(zip(then, now, strict=True)), [], []
    pairs: list[tuple[LaunchFacts, LaunchFacts]] = []
    gone, come = _take_pairs(then, now, lambda before, after: before.kernel == after.kernel, pairs)
    return pairs, gone, come


def _take_pairs(
    then: Sequence[_Paired],
    now: Sequence[_Paired],
    alike: Callable[[_Paired, _Paired], bool],
    pairs: list[tuple[_Paired, _Paired]],
) -> tuple[list[_Paired], list[_Paired]]:
    """Add to `pairs` the first of `now` that is alike, for each of `then`; return what is left of both."""
    rest = list(now)
    unpaired = []
    for before in then:
        after = next((each for each in rest if alike(before, each)), None)
        if after is None:
            unpaired.append(before)
        else:
            rest.remove(after)
            pairs.append((before, after))
    return unpaired, rest


_PRICES = ("registers per thread", "shared memory per block, in bytes")


def _with_prices(changes: Sequence[Change]) -> list[Change]:
    """Take growth of registers and shared memory for what it is where it buys something and costs no block.

    Loads by TMA, for one, need room in shared memory; blocks that no longer fit are judged by themselves.
    """
    bought = any(change.effect is Effect.BETTER for change in changes)
    lost = any(c.effect is Effect.WORSE and c.quantity not in _PRICES for c in changes)
    if not bought or lost:
        return list(changes)
    return [
        replace(change, effect=Effect.DIFFERENT) if change.quantity in _PRICES else change
        for change in changes
    ]


def _different(quantity: str, then: object, now: object) -> Change:
    return Change(effect=Effect.DIFFERENT, quantity=quantity, then=str(then), now=str(now))


def _prefixed(change: Change, prefix: str) -> Change:
    return replace(change, quantity=prefix + change.quantity)


# -- resources --------------------------------------------------------------------------------------


def _launch_changes(then: LaunchFacts, now: LaunchFacts, arch: str, rule: StaticRule) -> Iterator[Change]:
    uses = list(_use_changes((then,), (now,), rule))
    yield from uses
    yield from _occupancy_changes(then, now, arch)
    # Half the threads with twice the registers each are the same registers per block.
    margin = rule.margin if then.threads == now.threads else math.inf
    yield from _growth("registers per thread", then.registers, now.registers, margin, rule.register_step)
    yield from _growth(
        "shared memory per block, in bytes",
        then.shared_bytes,
        now.shared_bytes,
        rule.margin,
        rule.shared_step,
    )
    for quantity, before, after in (
        ("threads per block", then.threads, now.threads),
        ("thread blocks per cluster", then.ctas, now.ctas),
        ("grid", then.grid, now.grid),
        ("launches of it", then.times, now.times),
        ("bytes of code", then.code_bytes, now.code_bytes),
        ("instructions", then.instruction_count, now.instruction_count),
    ):
        if None not in (before, after) and before != after:
            yield _different(quantity, before, after)
    said = {change.quantity for change in uses}
    yield from (change for change in _mix_changes(then, now) if change.quantity not in said)


def _growth(quantity: str, then: int | None, now: int | None, margin: float, step: int) -> Iterator[Change]:
    if then is None or now is None or then == now:
        return
    worse = now > then * (1 + margin) and now - then > step
    effect = Effect.WORSE if worse else Effect.DIFFERENT
    yield Change(effect=effect, quantity=quantity, then=str(then), now=str(now))


def _mix_changes(then: LaunchFacts, now: LaunchFacts) -> Iterator[Change]:
    if then.instructions is None or now.instructions is None:
        return
    for kind in sorted({*then.instructions, *now.instructions}):
        before, after = then.instructions.get(kind, {}), now.instructions.get(kind, {})
        if dict(before) != dict(after):
            yield _different(CLASS_TITLES.get(kind, kind), _mix(before), _mix(after))


def _mix(counts: object) -> str:
    items = dict(counts).items()  # type: ignore[call-overload]
    return ", ".join(f"{count} {name}" for name, count in items) or "none"


# -- what is used at all ----------------------------------------------------------------------------


def _use_changes(
    then: Sequence[LaunchFacts], now: Sequence[LaunchFacts], rule: StaticRule
) -> Iterator[Change]:
    """Compare spills, tensor cores, TMA and asynchronous copies of one launch, or of all together."""
    yield from _spill_changes(then, now, rule)
    yield from _tensor_core_changes(then, now)
    loads_by_tma = False
    for kind in ("tma_load", "tma_store", "bulk_copy"):
        before, after = _uses(then, kind), _uses(now, kind)
        places = _places(then, now, "load" if kind == "tma_load" else "store")
        for change in _gained_or_lost(CLASS_TITLES[kind], before, after):
            yield replace(change, detail=places if change.effect is Effect.WORSE else "")
        loads_by_tma = loads_by_tma or (bool(before or after) and kind != "tma_store")
    if not loads_by_tma:
        copies = _uses(then, "async_copy"), _uses(now, "async_copy")
        yield from _gained_or_lost(CLASS_TITLES["async_copy"], *copies)


def _uses(launches: Sequence[LaunchFacts], kind: str) -> str | None:
    """Return what is used of a class, "" for nothing and None for unknown."""
    if any(launch.instructions is None for launch in launches):
        return None
    names: dict[str, None] = {}
    for launch in launches:
        names.update(dict.fromkeys((launch.instructions or {}).get(kind, {})))
    return ", ".join(names)


def _places(then: Sequence[LaunchFacts], now: Sequence[LaunchFacts], operation: str) -> str:
    """Say where TMA was used for an operation of which the compiler says nothing any more."""
    said = {site.line for launch in now for site in launch.sites or () if site.operation == operation}
    places = {
        site.place: None
        for launch in then
        for site in launch.sites or ()
        if site.operation == operation and site.instruction.startswith("TMA") and site.line not in said
    }
    return f"it was at {', '.join(places)}" if places else ""


def _gained_or_lost(quantity: str, then: str | None, now: str | None) -> Iterator[Change]:
    if then is None or now is None or bool(then) == bool(now):
        return
    effect = Effect.WORSE if then else Effect.BETTER
    yield Change(effect=effect, quantity=quantity, then=then or "none", now=now or "none")


def _tensor_core_changes(then: Sequence[LaunchFacts], now: Sequence[LaunchFacts]) -> Iterator[Change]:
    before, after = _uses(then, "tensor_core"), _uses(now, "tensor_core")
    if before is None or after is None:
        return
    was, is_now = _generation(before), _generation(after)
    if was != is_now:
        effect = Effect.WORSE if is_now < was else Effect.BETTER
        quantity = CLASS_TITLES["tensor_core"]
        yield Change(effect=effect, quantity=quantity, then=before or "none", now=after or "none")


def _generation(mnemonics: str) -> int:
    """Order tensor-core instructions: none, of a warp (HMMA), of a warp group (HGMMA), of a CTA (UTCHMMA).

    An architecture that has a later kind reaches its full rate only with it.
    """
    kinds = [
        3 if name.startswith("UTC") else 2 if name.endswith("GMMA") else 1 for name in mnemonics.split(", ")
    ]
    return max(kinds) if mnemonics else 0


def _spill_changes(
    then: Sequence[LaunchFacts], now: Sequence[LaunchFacts], rule: StaticRule
) -> Iterator[Change]:
    before, after = _spilled(then), _spilled(now)
    unit = "spills, in bytes per thread"
    if before is None or after is None:  # no cuobjdump: nvdisasm sees the instructions
        before, after = _local_accesses(then), _local_accesses(now)
        unit = "spills, in local loads and stores"
    if before is None or after is None or before == after:
        return
    effect = Effect.DIFFERENT
    if after > before * (1 + rule.margin):
        effect = Effect.WORSE
    elif after < before * (1 - rule.margin):
        effect = Effect.BETTER
    lines = [line for launch in now for line in launch.spill_lines]
    where = "local loads and stores near " + ", ".join(
        f"{line.place} ({line.instructions})" for line in lines
    )
    yield Change(
        effect=effect,
        quantity=unit,
        then=str(before),
        now=str(after),
        detail=where if lines and effect is Effect.WORSE else "",
    )


def _spilled(launches: Sequence[LaunchFacts]) -> int | None:
    sizes = [(launch.stack_bytes, launch.local_bytes) for launch in launches]
    if any(stack is None for stack, _ in sizes):
        return None
    return sum((stack or 0) + (local or 0) for stack, local in sizes)


def _local_accesses(launches: Sequence[LaunchFacts]) -> int | None:
    counts = [launch.count(kind) for launch in launches for kind in ("local_load", "local_store")]
    return None if None in counts else sum(count or 0 for count in counts)


# -- occupancy --------------------------------------------------------------------------------------


def occupancy_of(launch: LaunchFacts, arch: str) -> Occupancy | None:
    """Return how many blocks of a launch fit a multiprocessor; None when something of it is unknown."""
    limits = limits_of(arch)
    if limits is None or None in (launch.registers, launch.threads, launch.shared_bytes):
        return None
    return occupancy(
        limits,
        registers_per_thread=launch.registers or 0,
        threads_per_block=launch.threads or 0,
        shared_bytes_per_block=launch.shared_bytes or 0,
        ctas_per_cluster=launch.ctas or 1,
    )


def _occupancy_changes(then: LaunchFacts, now: LaunchFacts, arch: str) -> Iterator[Change]:
    before, after = occupancy_of(then, arch), occupancy_of(now, arch)
    if before is None or after is None or (before.blocks, before.warps) == (after.blocks, after.warps):
        return
    blocks, warps = after.blocks - before.blocks, after.warps - before.warps
    effect = Effect.DIFFERENT  # fewer blocks of more warps, or the reverse
    if warps < 0 and blocks <= 0:
        effect = Effect.WORSE
    elif warps > 0 and blocks >= 0:
        effect = Effect.BETTER
    yield Change(
        effect=effect,
        quantity="blocks per multiprocessor",
        then=f"{before.blocks} ({before.warps} warps)",
        now=f"{after.blocks} ({after.warps} warps)",
        detail="limited by " + " and ".join(after.limited_by),
    )


# -- the compiler's choices -------------------------------------------------------------------------


def _site_changes(then: LaunchFacts, now: LaunchFacts) -> Iterator[Change]:
    if then.sites is None or now.sites is None:
        return
    for operation in ("mma", "load", "store"):
        before = [site for site in then.sites if site.operation == operation]
        after = [site for site in now.sites if site.operation == operation]
        yield from _operation_changes(operation, before, after)
    notes = {note.text for note in then.notes}
    for note in now.notes:
        if note.text not in notes:
            yield Change(
                effect=Effect.DIFFERENT, quantity="remark", then="none", now=note.text, place=note.place
            )


def _operation_changes(operation: str, then: list[Site], now: list[Site]) -> Iterator[Change]:
    """Pair sites by their line of source, then by what became of them, then in source order.

    So lines may move or change places, names may change, and what is added hides nothing that was lost.
    """
    pairs: list[tuple[Site, Site]] = []
    for alike in (_same_text_and_outcome, _same_text, _same_outcome):
        then, now = _take_pairs(then, now, alike, pairs)
    pairs += zip(then, now, strict=False)
    for before, after in sorted(pairs, key=lambda pair: (pair[1].file, pair[1].line)):
        yield from _choice_changes(before, after)
    for site in then[len(now) :]:
        yield replace(_different(operation, site.outcome, "gone"), detail=f"it was at {site.place}")
    for site in now[len(then) :]:
        yield Change(
            effect=Effect.DIFFERENT,
            quantity=operation,
            then="none",
            now=site.outcome,
            place=site.place,
            detail="; ".join(site.missed),
        )


def _same_text_and_outcome(then: Site, now: Site) -> bool:
    return then.text == now.text and then.outcome == now.outcome


def _same_text(then: Site, now: Site) -> bool:
    return then.text == now.text != ""


def _same_outcome(then: Site, now: Site) -> bool:
    return then.outcome == now.outcome


def _choice_changes(then: Site, now: Site) -> Iterator[Change]:
    if then.outcome == now.outcome:
        return
    before, after = _grade(then.instruction), _grade(now.instruction)
    if now.operation == "mma" and then.instruction == now.instruction:
        # A product that one instruction does is split among several: each fetches its operands anew.
        before, after = _volume(then.shape), _volume(now.shape)
    effect = Effect.DIFFERENT
    if before is not None and after is not None and before != after:
        effect = Effect.WORSE if after < before else Effect.BETTER
    yield Change(
        effect=effect,
        quantity=now.operation,
        then=then.outcome,
        now=now.outcome,
        place=now.place,
        detail="; ".join(now.missed),
    )


def _grade(instruction: str) -> int | None:
    """Order the instructions that one operation can become; None for those that are not known."""
    tensor_core = re.fullmatch(r"Tensor-core SM(\d+)", instruction)
    if tensor_core is not None:
        return int(tensor_core[1])
    order = {"FMA": 0, "Global-memory": 0, "Ldgsts": 1, "TMA": 2}
    return order.get(instruction.partition(" ")[0])


def _volume(shape: str) -> int | None:
    """Return the multiply-adds of a product's instruction: "64x128x16" are 131072."""
    return math.prod(map(int, shape.split("x"))) if shape else None


# -- what could not be compared ---------------------------------------------------------------------

_QUANTITIES = ("registers", "threads", "shared_bytes", "instructions", "sites")


def _known(launches: Sequence[LaunchFacts]) -> list[str]:
    return [
        name.replace("_", " ")
        for name in _QUANTITIES
        if all(getattr(launch, name) is not None for launch in launches)
    ]
