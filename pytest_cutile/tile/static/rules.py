"""The rules of the static gate: when a quantity of compiled code is worse than in the baseline.

One function per quantity, listed in `USE_RULES` and `LAUNCH_RULES`; docs/explanation/static-gate.md has
them as a table. A rule yields a change for a quantity that differs, and nothing where it is the same or
unknown on a side. `sites.py` compares loads, stores and products line by line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pytest_cutile.tile.static.changes import Change, Effect
from pytest_cutile.tile.static.instructions import CLASSES, SPILLS
from pytest_cutile.words.platforms.lookup import find_architecture, stand_in
from pytest_cutile.words.platforms.occupancy import Limiter, Occupancy, occupancy

if TYPE_CHECKING:  # the facts need msgspec, which a run without kernels does not import
    from pytest_cutile.tile.static.facts import LaunchFacts


@dataclass(frozen=True, kw_only=True)
class Launches:
    """Launches to compare: one on each side, or several that are compared together."""

    baseline: Sequence[LaunchFacts]
    current: Sequence[LaunchFacts]
    arch: str
    margin: float
    """Growth of the predicted time or of spills, as a fraction, above which they are worse."""

    @property
    def pair(self) -> tuple[LaunchFacts, LaunchFacts]:
        (before,), (after,) = self.baseline, self.current
        return before, after


StaticRule: TypeAlias = Callable[[Launches], Iterator[Change]]


# -- what is used at all: one launch, or several together -----------------------------------------------


def spills(launches: Launches) -> Iterator[Change]:
    """Worse when they appear or grow beyond the margin; better when they shrink or vanish as much.

    Not better where the code has grown: other instructions need other registers.
    """
    quantity = "spills, in bytes per thread"
    before, after = spilled_bytes(launches.baseline), spilled_bytes(launches.current)
    if before is None or after is None:  # without cuobjdump, nvdisasm still sees the instructions
        quantity = "spills, in local loads and stores"
        before, after = _local_accesses(launches.baseline), _local_accesses(launches.current)
    if before is None or after is None or before == after:
        return
    effect, detail = Effect.DIFFERENT, ""
    if after > before * (1 + launches.margin):
        effect, detail = Effect.WORSE, _spill_places(launches.current)
    elif after < before * (1 - launches.margin) and not _has_grown(launches):
        effect = Effect.BETTER
    yield Change(effect=effect, quantity=quantity, baseline=str(before), current=str(after), detail=detail)


def tensor_cores(launches: Launches) -> Iterator[Change]:
    """Worse when they are no longer used, or only by an older kind of instruction; better the reverse."""
    before, after = used(launches.baseline, "tensor_core"), used(launches.current, "tensor_core")
    if before is None or after is None:
        return
    ranks = _tensor_core_rank(before), _tensor_core_rank(after)
    if ranks[0] != ranks[1]:
        effect = Effect.WORSE if ranks[1] < ranks[0] else Effect.BETTER
        yield _used_change("tensor_core", effect, before, after)


def copies(launches: Launches) -> Iterator[Change]:
    """Worse when TMA, bulk or asynchronous copies are no longer used at all; better when used anew.

    Asynchronous copies do not count where TMA or bulk copies do the work.
    """
    sides = (launches.baseline, launches.current)
    better = any(used(side, name) for side in sides for name in ("tma_load", "bulk_copy"))
    for name in ("tma_load", "tma_store", "bulk_copy", *(() if better else ("async_copy",))):
        before, after = used(launches.baseline, name), used(launches.current, name)
        if before is None or after is None or bool(before) == bool(after):
            continue
        yield _used_change(name, Effect.BETTER if after else Effect.WORSE, before, after)


USE_RULES: tuple[StaticRule, ...] = (spills, tensor_cores, copies)
"""Rules that compare any number of launches with any number."""


# -- resources and instructions: one launch on each side ------------------------------------------------


def blocks_per_multiprocessor(launches: Launches) -> Iterator[Change]:
    """Worse when fewer warps and not more blocks fit, unless these load as much at a time as before.

    Never better: more warps are no improvement by themselves, what they do may be slower.
    """
    before, after = (resident(launch, launches.arch) for launch in launches.pair)
    if before is None or after is None or (before.blocks, before.warps) == (after.blocks, after.warps):
        return
    effect = Effect.DIFFERENT  # fewer blocks of more warps, or the reverse
    if after.warps < before.warps and after.blocks <= before.blocks:
        loads = [
            fit.blocks * (launch.executed or {}).get("bytes_in_flight", 0)
            for fit, launch in zip((before, after), launches.pair, strict=True)
        ]
        effect = Effect.DIFFERENT if 0 < loads[0] <= loads[1] else Effect.WORSE
    yield Change(
        effect=effect,
        quantity="blocks per multiprocessor",
        baseline=f"{before.blocks} ({before.warps} warps)",
        current=f"{after.blocks} ({after.warps} warps)",
        detail="limited by " + " and ".join(after.limited_by),
        needs_reason=after.warps > before.warps and after.blocks >= before.blocks,
    )


def other_facts(launches: Launches) -> Iterator[Change]:
    """Never worse: launch configuration, resources and size of the code; spills and blocks have rules."""
    before, after = launches.pair
    for quantity, name in (
        ("registers per thread", "registers"),
        ("shared memory per block, in bytes", "shared_bytes"),
        ("threads per block", "threads"),
        ("thread blocks per cluster", "ctas"),
        ("grid", "grid"),
        ("launches of it", "times"),
        ("bytes of code", "code_bytes"),
        ("instructions", "instruction_count"),
    ):
        values = getattr(before, name), getattr(after, name)
        if None not in values and values[0] != values[1]:
            yield different(quantity, *values)


def instruction_mix(launches: Launches) -> Iterator[Change]:
    """Never worse: counts by class of instructions that the rules above have not reported."""
    before, after = (launch.instructions for launch in launches.pair)
    if before is None or after is None:
        return
    reported = {change.quantity for rule in USE_RULES for change in rule(launches)}
    for name in sorted({*before, *after}):
        counts = [dict(instructions.get(name, {})) for instructions in (before, after)]
        title = CLASSES[name].title if name in CLASSES else name
        if counts[0] != counts[1] and title not in reported:
            texts = [", ".join(f"{n} {mnemonic}" for mnemonic, n in c.items()) or "none" for c in counts]
            yield different(title, *texts)


LAUNCH_RULES: tuple[StaticRule, ...] = (
    *USE_RULES,
    blocks_per_multiprocessor,
    other_facts,
    instruction_mix,
)
"""Rules that compare one launch with one."""


# -- what the rules share -------------------------------------------------------------------------------


def different(quantity: str, baseline: object, current: object) -> Change:
    return Change(effect=Effect.DIFFERENT, quantity=quantity, baseline=str(baseline), current=str(current))


def occupancy_of(launch: LaunchFacts, arch: str) -> Occupancy | None:
    """Return how many blocks of a launch fit a multiprocessor; None when something of it is unknown."""
    architecture = find_architecture(arch)
    if architecture is None or None in (launch.registers, launch.threads, launch.shared_bytes):
        return None
    return occupancy(
        architecture,
        registers_per_thread=launch.registers or 0,
        threads_per_block=launch.threads or 0,
        shared_bytes_per_block=launch.shared_bytes or 0,
    )


def resident(launch: LaunchFacts, arch: str) -> Occupancy | None:
    """Return how many blocks a multiprocessor has at a time: those that fit, if the grid has as many."""
    fit = occupancy_of(launch, arch)
    there = math.ceil(math.prod(launch.grid) * (launch.ctas or 1) / stand_in(arch).sm_count)
    if fit is None or not 0 < there < fit.blocks:
        return fit
    return Occupancy(blocks=there, warps=fit.warps // fit.blocks * there, limited_by=(Limiter.GRID,))


def used(launches: Sequence[LaunchFacts], name: str) -> str | None:
    """Return the instructions of a class that launches use: "HGMMA, HMMA", "" for none, None for unknown."""
    mnemonics: dict[str, None] = {}
    for launch in launches:
        if launch.instructions is None:
            return None
        mnemonics.update(dict.fromkeys(launch.instructions.get(name, {})))
    return ", ".join(mnemonics)


def _used_change(name: str, effect: Effect, before: str, after: str) -> Change:
    return Change(
        effect=effect, quantity=CLASSES[name].title, baseline=before or "none", current=after or "none"
    )


def _tensor_core_rank(mnemonics: str) -> int:
    """Order tensor-core instructions: none, of a warp (HMMA), of a warp group (HGMMA), of a CTA (UTCHMMA).

    An architecture that has a later kind reaches its full rate only with it.
    """
    ranks = [
        3 if name.startswith("UTC") else 2 if name.endswith("GMMA") else 1 for name in mnemonics.split(", ")
    ]
    return max(ranks) if mnemonics else 0


def _has_grown(launches: Launches) -> bool:
    before, after = (
        sum(launch.instruction_count or 0 for launch in side)
        for side in (launches.baseline, launches.current)
    )
    return after > before * (1 + launches.margin)


def spilled_bytes(launches: Sequence[LaunchFacts]) -> int | None:
    """Return the local memory of a thread, over all launches; None where it is not known of one."""
    if any(launch.stack_bytes is None for launch in launches):
        return None
    return sum((launch.stack_bytes or 0) + (launch.local_bytes or 0) for launch in launches)


def _local_accesses(launches: Sequence[LaunchFacts]) -> int | None:
    counts = [launch.count(name) for launch in launches for name in SPILLS]
    return None if None in counts else sum(count or 0 for count in counts)


def _spill_places(launches: Sequence[LaunchFacts]) -> str:
    lines = [line for launch in launches for line in launch.spill_lines]
    places = ", ".join(f"{line.place} ({line.instructions})" for line in lines)
    return f"local loads and stores near {places}" if lines else ""
