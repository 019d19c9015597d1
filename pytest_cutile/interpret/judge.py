"""Judges what blocks do to memory: who reads, writes and updates which element, and who may not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from pytest_cutile.interpret.arrays import Allocation
from pytest_cutile.interpret.clocks import Clocks
from pytest_cutile.interpret.faults import KernelFault, user_location
from pytest_cutile.interpret.shadow import NOBODY, SEVERAL, UNWRITTEN, WRITTEN, Shadow
from pytest_cutile.interpret.values import block_of

if TYPE_CHECKING:
    from pytest_cutile.interpret.ir import Op
    from pytest_cutile.interpret.machine import Frame

See: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""How to look at a row of units, so that an index finds those that are meant."""


_WHICH_IS_FIRST = "which of them comes first is chance"


class Judge:
    """Judges the accesses of one launch."""

    def __init__(self, *, check_races: bool, grid: Sequence[int]) -> None:
        self.check_races = check_races
        """Whether two blocks may not touch one element, unless atomically."""
        self.grid = grid
        self.op: Op | None = None
        """The operation that runs: its ordering says whether an access may meet another's."""
        self._clocks: Clocks | None = None
        """What blocks know of each other; None: none has acquired or released yet."""

    def note_read(
        self,
        frame: Frame,
        allocation: Allocation,
        elements: torch.Tensor,
        chosen: torch.Tensor | None,
        itemsize: int,
    ) -> None:
        """Note a read of elements of the storage, `[blocks, ...]`, where `chosen` says so.

        Raises:
            KernelFault: one was never written, or was written by another block.
        """
        shadow = allocation.shadow
        if self.follows_reads(shadow):
            units, chosen = _units(shadow, elements, chosen, itemsize)
            self.check_read(frame, allocation, _itself, units, chosen)

    def note_write(
        self,
        frame: Frame,
        allocation: Allocation,
        elements: torch.Tensor,
        blocks: torch.Tensor,
        itemsize: int,
    ) -> None:
        """Note that each of `blocks` writes the element of the storage that is beside it.

        Raises:
            KernelFault: another block has touched one of them.
        """
        units, _ = _units(allocation.shadow, elements, None, itemsize)
        blocks = blocks.reshape(*blocks.shape, *[1] * (units.dim() - elements.dim()))
        self.claim(frame, allocation, _itself, units, blocks)

    def note_update(
        self,
        frame: Frame,
        allocation: Allocation,
        elements: torch.Tensor,
        chosen: torch.Tensor | None,
        itemsize: int,
        *,
        reads: bool,
    ) -> None:
        """Note that elements of the storage, `[blocks, ...]`, are written atomically, and read if `reads`.

        Raises:
            KernelFault: one was never written, though it is read, or another block wrote it, not atomically.
        """
        shadow = allocation.shadow
        units, chosen = _units(shadow, elements, chosen, itemsize)
        if reads and shadow.unwritten:
            self._check_unwritten(frame, allocation, _itself, units, chosen)
        blocks = _by_block(frame, units.dim()).expand(units.shape)
        if chosen is not None:
            chosen = chosen.expand(units.shape)
        if self.check_races and shadow.touched:
            self._check_writers(frame, allocation, _itself, units, chosen, "updates")
        at = units if chosen is None else units[chosen]
        blocks = blocks if chosen is None else blocks[chosen]
        if self.check_races and shadow.was_read:
            self._judge_readers(allocation, _itself, at, blocks, "updates")
        if shadow.unwritten or (self.check_races and shadow.followed):
            self._note_updaters(shadow, _itself, at, blocks)

    def follows_reads(self, shadow: Shadow) -> bool:
        """Return whether a read is to be noted."""
        return (
            shadow.unwritten
            or shadow.touched
            or shadow.track_reads
            or shadow.was_updated
            or (self.check_races and self._ordered())
        )

    def check_read(
        self,
        frame: Frame,
        allocation: Allocation,
        see: See,
        index: Any,
        chosen: torch.Tensor | None,
        *,
        distinct: bool = False,
    ) -> None:
        """Check who wrote what is read: units at `index` of the storage as `see` sees it, `[blocks, ...]`.

        With `distinct`, no two blocks read one unit here.

        Raises:
            KernelFault: one was never written, or was written by another block.
        """
        shadow = allocation.shadow
        if shadow.unwritten:
            self._check_unwritten(frame, allocation, see, index, chosen)
        if not self.check_races:
            return
        if self._ordered():
            if shadow.followed:
                units = _units_at(shadow, see, index)
                units = units.expand(frame.size, *units.shape[1:])
                blocks = _by_block(frame, units.dim()).expand(units.shape)
                if chosen is not None:
                    chosen = chosen.expand(units.shape)
                    units, blocks = units[chosen], blocks[chosen]
                self._meet(shadow, units, blocks)
            return
        if shadow.touched:
            self._check_writers(frame, allocation, see, index, chosen, "reads")
        if shadow.was_updated:
            self._judge_updaters(
                allocation, see, index, _by_block(frame, see(shadow.writers)[index].dim()), "reads", chosen
            )
        if shadow.track_reads:
            fresh = not shadow.was_read
            readers = see(shadow.readers)
            if distinct and fresh:
                dims = readers.dim() // 2 + 1  # of tiles, and the blocks
                readers[index] = _by_block(frame, dims)
            else:
                self._track_read(frame, readers, index, chosen, distinct=distinct)
            if self._clocks is not None:
                self._stamp_read(frame, shadow, see, index, chosen)

    def _check_unwritten(
        self, frame: Frame, allocation: Allocation, see: See, index: Any, chosen: torch.Tensor | None
    ) -> None:
        shadow = allocation.shadow
        bad = _among(see(shadow.writers)[index] == UNWRITTEN, chosen)
        if bad.any():
            shadow.compare_with_pattern(allocation.tensor)
            bad = _among(see(shadow.writers)[index] == UNWRITTEN, chosen)
        if bad.any():
            place = self._place(allocation, see, index, bad)
            raise KernelFault(
                "uninitialized",
                f"reads {place} of {allocation.layout}, which nothing has written",
                block=first_block(frame, bad),
            )

    def _check_writers(
        self,
        frame: Frame,
        allocation: Allocation,
        see: See,
        index: Any,
        chosen: torch.Tensor | None,
        verb: str,
    ) -> None:
        shadow = allocation.shadow
        writers = see(shadow.writers)[index]
        own = _by_block(frame, writers.dim())
        bad = _among((writers >= 0) & (writers != own), chosen)
        bad = self._unsynchronized(shadow, see, index, bad, own, writers, "write_epochs")
        if bad.any():
            does = f"writes{_places(shadow.stores)}: {_WHICH_IS_FIRST}"
            raise self._race(allocation, see, index, bad, (own, writers), verb, does)

    def _track_read(
        self,
        frame: Frame,
        readers: torch.Tensor,
        index: Any,
        chosen: torch.Tensor | None,
        *,
        distinct: bool,
    ) -> None:
        before = readers[index]
        own = _by_block(frame, before.dim())
        shape = torch.broadcast_shapes(before.shape, own.shape, () if chosen is None else chosen.shape)
        reader = torch.where((before == NOBODY) | (before == own), own, SEVERAL)
        if before.shape[0] == 1 and frame.size > 1:
            reader = torch.full_like(before, SEVERAL) if chosen is None else reader[:1].fill_(SEVERAL)
        if chosen is None:
            readers[index] = reader
            if frame.size > 1 and not distinct:
                # Two blocks of these may have read one element: one of the two wrote last.
                after = readers[index]
                readers[index] = torch.where(after == reader, after, SEVERAL)
            return
        lanes = chosen.expand(shape)
        units = index.expand(shape)[lanes]
        reader = reader.expand(shape)[lanes]
        readers[units] = reader
        after = readers[units]
        readers[units[after != reader]] = SEVERAL

    def _stamp_read(
        self, frame: Frame, shadow: Shadow, see: See, index: Any, chosen: torch.Tensor | None
    ) -> None:
        """Note in which of its epochs the last block to read has read."""
        assert self._clocks is not None
        last, epochs = see(shadow.note("last_readers")), see(shadow.note("read_epochs"))
        found = last[index]
        own = _by_block(frame, found.dim())
        if chosen is not None:
            shape = torch.broadcast_shapes(found.shape, own.shape, chosen.shape)
            lanes = chosen.expand(shape)
            index, own = index.expand(shape)[lanes], own.expand(shape)[lanes]
        elif found.shape[0] == 1:
            own = own[-1:]
        last[index] = own
        epochs[index] = self._clocks.epochs[own.to(torch.int64)]

    def claim(
        self,
        frame: Frame,
        allocation: Allocation,
        see: See,
        index: Any,
        blocks: torch.Tensor,
        *,
        distinct: bool = False,
    ) -> None:
        """Note who writes the units at `index` of the storage as `see` sees it.

        With `distinct`, no two of `blocks` write one unit here.

        Raises:
            KernelFault: another block has touched one of them.
        """
        shadow = allocation.shadow
        if not shadow.unwritten and not (self.check_races and shadow.followed):
            return
        if self.check_races and self._ordered():
            self._note_updaters(shadow, see, index, blocks)
            return
        judged = self.check_races
        writers = see(shadow.writers)
        if judged and shadow.touched:
            self._judge_write(allocation, see, index, writers[index], blocks)
        if judged and shadow.was_updated:
            self._judge_updaters(allocation, see, index, blocks, "writes")
            see(shadow.note("updaters"))[index] = NOBODY
            see(shadow.note("updated_by_several"))[index] = 0
        if judged and shadow.was_read:
            self._judge_readers(allocation, see, index, blocks, "writes")
            if self._clocks is not None:  # what comes after this write comes after what it came after
                see(shadow.readers)[index] = NOBODY
        if judged and self._clocks is not None:
            see(shadow.note("write_epochs"))[index] = self._clocks.epochs[blocks.to(torch.int64)]
        writers[index] = blocks
        shadow.touched = True
        if self.op is not None:
            shadow.stores[id(self.op)] = self.op
        if judged and frame.size > 1 and not distinct:
            self._judge_write(allocation, see, index, writers[index], blocks)

    def _judge_write(
        self, allocation: Allocation, see: See, index: Any, writers: torch.Tensor, blocks: torch.Tensor
    ) -> None:
        shadow = allocation.shadow
        bad = (writers >= 0) & (writers != blocks)
        bad = self._unsynchronized(shadow, see, index, bad, blocks, writers, "write_epochs")
        if bad.any():
            does = f"writes as well{_places(shadow.stores)}: which value stays is chance"
            raise self._race(allocation, see, index, bad, (blocks, writers), "writes", does)

    def _judge_readers(
        self, allocation: Allocation, see: See, index: Any, blocks: torch.Tensor, verb: str
    ) -> None:
        shadow = allocation.shadow
        readers = see(shadow.readers)[index]
        bad = (readers == SEVERAL) | ((readers >= 0) & (readers != blocks))
        suspects = readers
        if self._clocks is not None and bad.any():
            last = see(shadow.note("last_readers"))[index]
            suspects = torch.where(readers == SEVERAL, torch.where(last == blocks, NOBODY, last), readers)
        bad = self._unsynchronized(shadow, see, index, bad, blocks, suspects, "read_epochs")
        if bad.any():
            does = f"reads: {_WHICH_IS_FIRST}"
            raise self._race(allocation, see, index, bad, (blocks, readers), verb, does)

    def _judge_updaters(
        self,
        allocation: Allocation,
        see: See,
        index: Any,
        blocks: torch.Tensor,
        verb: str,
        chosen: torch.Tensor | None = None,
    ) -> None:
        shadow = allocation.shadow
        last = see(shadow.note("updaters"))[index]
        several = see(shadow.note("updated_by_several"))[index]
        bad = _among((last >= 0) & ((last != blocks) | (several > 0)), chosen)
        suspects = torch.where(last == blocks, NOBODY, last)
        bad = self._unsynchronized(shadow, see, index, bad, blocks, suspects, "update_epochs")
        if bad.any():
            does = f"updates atomically{_places(shadow.updates)}: {_WHICH_IS_FIRST}"
            raise self._race(allocation, see, index, bad, (blocks, suspects), verb, does)

    def _note_updaters(self, shadow: Shadow, see: See, index: Any, blocks: torch.Tensor) -> None:
        """Note that each of `blocks` writes the unit that is beside it atomically, and maybe waits there."""
        see(shadow.writers)[index] = WRITTEN
        if not (self.check_races and shadow.followed):
            return
        updaters = see(shadow.note("updaters"))
        before = updaters[index]
        updaters[index] = blocks
        others = ((before >= 0) & (before != blocks)) | (updaters[index] != blocks)
        units = _units_at(shadow, see, index).expand(blocks.shape)
        shadow.note("updated_by_several")[units[others]] = 1
        if self._clocks is not None:
            see(shadow.note("update_epochs"))[index] = self._clocks.epochs[blocks.to(torch.int64)]
        if self.op is not None:
            shadow.updates[id(self.op)] = self.op
        self._meet(shadow, units, blocks)

    # -- blocks that wait for each other --------------------------------------------------------------

    def _meet(self, shadow: Shadow, units: torch.Tensor, blocks: torch.Tensor) -> None:
        """Note that blocks acquire or release, as the operation that runs says, at units of a storage."""
        ordering = "weak" if self.op is None else self.op.attributes.get("ordering", "weak")
        if ordering in {"weak", "relaxed"}:
            return
        if self._clocks is None:
            self._clocks = Clocks(math.prod(self.grid))
        self._clocks.meet(id(shadow), blocks.reshape(-1), units.reshape(-1) * shadow.unit, ordering)

    def _ordered(self) -> bool:
        """Return whether the access that runs may meet those of other blocks: it is not a plain one."""
        return self.op is not None and self.op.attributes.get("ordering", "weak") != "weak"

    def _unsynchronized(
        self,
        shadow: Shadow,
        see: See,
        index: Any,
        bad: torch.Tensor,
        own: torch.Tensor,
        other: torch.Tensor,
        stamps: str,
    ) -> torch.Tensor:
        """Return which of the bad are so although blocks may wait for each other."""
        if self._clocks is None or not bad.any():
            return bad
        epochs = see(shadow.note(stamps))[index]
        own, other, epochs = (each.expand(bad.shape)[bad] for each in (own, other, epochs))
        bad = bad.clone()
        bad[bad.clone()] = ~self._clocks.ordered(own, other, epochs)
        return bad

    # -- what a fault says ----------------------------------------------------------------------------

    def _race(
        self,
        allocation: Allocation,
        see: See,
        index: Any,
        bad: torch.Tensor,
        blocks: tuple[torch.Tensor, torch.Tensor],
        verb: str,
        does: str,
    ) -> KernelFault:
        """Return the fault of one block that touches what another does; `blocks` are those two."""
        one, number = (int(each.expand(bad.shape)[bad][0]) for each in blocks)
        other = f"block {block_of(number, self.grid)}" if number >= 0 else "another block"
        place = self._place(allocation, see, index, bad)
        return KernelFault("race", f"{verb} {place}, which {other} of the same launch {does}", block=(one,))

    def _place(self, allocation: Allocation, see: See, index: Any, bad: torch.Tensor) -> str:
        """Return the name of the first bad element."""
        shadow = allocation.shadow
        found = _units_at(shadow, see, index)
        return allocation.describe(int(found.expand(bad.shape)[bad][0]) * shadow.unit)


def _itself(row: torch.Tensor) -> torch.Tensor:
    return row


def _units_at(shadow: Shadow, see: See, index: Any) -> torch.Tensor:
    """Return the units at `index` of a storage as `see` sees it."""
    found: torch.Tensor = index if see is _itself else see(torch.arange(len(shadow.writers)))[index]
    return found


def _units(
    shadow: Shadow, elements: torch.Tensor, chosen: torch.Tensor | None, itemsize: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the shadow's units that elements of a storage cover, with one more axis if those are several."""
    shadow.refine(itemsize)
    each = itemsize // shadow.unit
    if each == 1:
        return elements, chosen
    units = elements[..., None] * each + torch.arange(each)
    return units, None if chosen is None else chosen[..., None]


def _by_block(frame: Frame, dims: int) -> torch.Tensor:
    return frame.blocks.to(torch.int32).reshape(-1, *[1] * (dims - 1))


def _among(bad: torch.Tensor, chosen: torch.Tensor | None) -> torch.Tensor:
    return bad if chosen is None else bad & chosen


def _places(ops: Mapping[int, Op]) -> str:
    """Say where other blocks have written, if that is one place, and another than the fault's."""
    places = {str(user_location(op.location)) for op in ops.values()}
    return f" (at {places.pop()})" if len(places) == 1 else ""


def first_block(frame: Frame, lanes: torch.Tensor) -> tuple[int, ...]:
    """Return the number of the first block with a lane set; the machine makes indices of it."""
    rows = lanes.reshape(lanes.shape[0], -1).any(dim=1)
    return (int(frame.blocks[int(rows.nonzero()[0])]),)
