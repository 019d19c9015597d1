"""Detects races: two blocks that access one element, one of them writing, with nothing that orders them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch

from pytest_cutile.tile.interpreter.arrays import Access, Allocation
from pytest_cutile.tile.interpreter.faults import KernelFault, user_location
from pytest_cutile.tile.interpreter.frames import Frame, blocks_beside, first_block
from pytest_cutile.tile.interpreter.happens_before import VectorClocks
from pytest_cutile.tile.interpreter.ir import Op
from pytest_cutile.tile.interpreter.shadow import NOBODY, SEVERAL, UNWRITTEN, WRITTEN, Shadow
from pytest_cutile.tile.interpreter.values import block_of

View: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""Shapes a row of the shadow so that an index selects the accessed units."""

_MOST_PLACES = 3
"""Places in the source up to which a message names them all."""
_WHICH_IS_FIRST = "which of them comes first depends on timing"


@dataclass(frozen=True)
class Units:
    """The units of an array's shadow that one operation accesses, `[blocks, ...]`."""

    allocation: Allocation
    index: Any
    view: View | None = None
    """None: `index` is of the row itself."""

    @property
    def shadow(self) -> Shadow:
        return self.allocation.shadow

    def shaped(self, row: torch.Tensor) -> torch.Tensor:
        """Return a row of the shadow in the shape that `index` is of."""
        return row if self.view is None else self.view(row)

    def read(self, row: torch.Tensor) -> torch.Tensor:
        return self.shaped(row)[self.index]

    def write(self, row: torch.Tensor, values: torch.Tensor | int) -> None:
        self.shaped(row)[self.index] = values

    def numbers(self) -> torch.Tensor:
        numbers: torch.Tensor = self.index
        return numbers if self.view is None else self.read(torch.arange(len(self.shadow.writers)))

    def first_byte(self, bad: torch.Tensor) -> int:
        """Return where in the storage the first bad unit begins."""
        return int(self.numbers().expand(bad.shape)[bad][0]) * self.shadow.unit

    def describe_first(self, bad: torch.Tensor) -> str:
        return self.allocation.describe(self.first_byte(bad))


class RaceDetector:
    """Checks the accesses of one launch."""

    def __init__(self, *, check_races: bool, grid: Sequence[int]) -> None:
        self.check_races = check_races
        """Whether two blocks may not touch one element, unless atomically."""
        self.grid = grid
        self.op: Op | None = None
        """The operation that runs; its ordering says whether it may access what other blocks do."""
        self._vector_clocks: VectorClocks | None = None
        """None: no block has acquired or released yet."""

    def record_read(self, frame: Frame, access: Access, itemsize: int) -> torch.Tensor | None:
        """Record a read; return which elements nothing has written (None: all were).

        Raises:
            KernelFault: an element was written by another block.
        """
        allocation = access.allocation
        if not self.tracks_reads(allocation.shadow):
            return None
        index, chosen = _unit_index(allocation.shadow, access.elements, access.lanes, itemsize)
        unwritten = self.read_units(frame, Units(allocation, index), chosen)
        if unwritten is None or index.dim() == access.elements.dim():
            return unwritten
        return unwritten.any(dim=-1)

    def record_write(
        self,
        frame: Frame,
        allocation: Allocation,
        elements: torch.Tensor,
        blocks: torch.Tensor,
        itemsize: int,
    ) -> None:
        """Record that each of `blocks` writes the element of the storage at the same index, all at once.

        Raises:
            KernelFault: another block has touched an element, or one of these writes it twice.
        """
        if self.check_races:
            self._check_duplicates(allocation, elements, blocks, itemsize)
        index, _ = _unit_index(allocation.shadow, elements, None, itemsize)
        blocks = blocks.reshape(*blocks.shape, *[1] * (index.dim() - elements.dim()))
        self.write_units(frame, Units(allocation, index), blocks)

    def record_update(self, frame: Frame, access: Access, itemsize: int, *, reads: bool) -> None:
        """Record that elements are written atomically, and read if `reads`.

        Raises:
            KernelFault: an element is read that was never written, or another block touched it otherwise.
        """
        allocation, shadow = access.allocation, access.allocation.shadow
        index, chosen = _unit_index(shadow, access.elements, access.lanes, itemsize)
        units = Units(allocation, index)
        if reads and (unwritten := self._unwritten(units, chosen)) is not None:
            element = f"{units.describe_first(unwritten)} of {allocation.layout}"
            raise KernelFault(
                "uninitialized",
                f"updates {element}, which nothing has written",
                block=first_block(frame, unwritten),
            )
        blocks = blocks_beside(frame, index.dim()).expand(index.shape)
        if chosen is not None:
            chosen = chosen.expand(index.shape)
        if self.check_races and shadow.was_written:
            stored = _masked(units.read(shadow.writers) >= 0, chosen)
            self._check_parameter(units, partial(first_block, frame), "updates", stored)
            self._check_writers(frame, units, chosen, "updates")
        if chosen is not None:
            units, blocks = Units(allocation, index[chosen]), blocks[chosen]
        if self.check_races and shadow.was_read:
            self._check_readers(units, blocks, "updates")
        if shadow.unwritten or (self.check_races and shadow.tracked):
            self._record_updaters(units, blocks)
            self._record_parameter(units)

    def tracks_reads(self, shadow: Shadow) -> bool:
        return (
            shadow.unwritten
            or shadow.was_written
            or shadow.track_reads
            or shadow.was_updated
            or (self.check_races and self._is_ordered())
        )

    def read_units(
        self, frame: Frame, units: Units, chosen: torch.Tensor | None, *, distinct: bool = False
    ) -> torch.Tensor | None:
        """Record a read in the lanes of `chosen` (None: all). With `distinct`, no two blocks read one unit.

        Returns:
            Which units nothing has written; None: all were.

        Raises:
            KernelFault: a unit was written by another block.
        """
        if self.check_races:
            self._record_readers(frame, units, chosen, distinct=distinct)
        return self._unwritten(units, chosen)

    def _record_readers(
        self, frame: Frame, units: Units, chosen: torch.Tensor | None, *, distinct: bool
    ) -> None:
        shadow = units.shadow
        self._check_parameter(units, partial(first_block, frame), "reads", chosen)
        if self._is_ordered():
            if shadow.tracked:
                numbers = units.numbers()
                numbers = numbers.expand(frame.size, *numbers.shape[1:])
                blocks = blocks_beside(frame, numbers.dim()).expand(numbers.shape)
                if chosen is not None:
                    chosen = chosen.expand(numbers.shape)
                    numbers, blocks = numbers[chosen], blocks[chosen]
                self._synchronize(shadow, numbers, blocks)
            return
        if shadow.was_written:
            self._check_writers(frame, units, chosen, "reads")
        if shadow.was_updated:
            blocks = blocks_beside(frame, units.read(shadow.writers).dim())
            self._check_updaters(units, blocks, "reads", chosen)
        if shadow.track_reads:
            if self.op is not None:
                shadow.loads[id(self.op)] = self.op
            fresh = not shadow.was_read
            readers = units.shaped(shadow.readers)
            if distinct and fresh:
                dims = readers.dim() // 2 + 1  # of tiles, and the blocks
                readers[units.index] = blocks_beside(frame, dims)
            else:
                _add_readers(frame, units, chosen, distinct=distinct)
            if self._vector_clocks is not None:
                self._record_read_epochs(frame, units, chosen, self._vector_clocks)

    def write_units(
        self, frame: Frame, units: Units, blocks: torch.Tensor, *, distinct: bool = False
    ) -> None:
        """Record that each of `blocks` writes its unit. With `distinct`, no two blocks write one unit.

        Raises:
            KernelFault: another block has touched a unit.
        """
        shadow, clocks = units.shadow, self._vector_clocks
        if not shadow.unwritten and not (self.check_races and shadow.tracked):
            return
        if self.check_races:
            self._check_parameter(units, lambda bad: (int(blocks.expand(bad.shape)[bad][0]),), "writes")
        self._record_parameter(units)
        if self.check_races and self._is_ordered():
            self._record_updaters(units, blocks)
            return
        if self.check_races:
            if shadow.was_written:
                self._check_write_after_write(units, blocks)
            if shadow.was_updated:
                self._check_updaters(units, blocks, "writes")
                units.write(shadow.record("updaters"), NOBODY)
                units.write(shadow.record("updated_by_several"), 0)
            if shadow.was_read:
                self._check_readers(units, blocks, "writes")
                if clocks is not None:
                    # All earlier reads happen before this write, so what happens after the write cannot
                    # race with them: they need not be remembered.
                    units.write(shadow.readers, NOBODY)
            if clocks is not None:
                units.write(shadow.record("write_epochs"), clocks.epochs[blocks.to(torch.int64)])
        units.write(shadow.writers, blocks)
        shadow.was_written = True
        if self.op is not None:
            shadow.stores[id(self.op)] = self.op
        if self.check_races and frame.size > 1 and not distinct:
            self._check_write_after_write(units, blocks)

    # -- checks ---------------------------------------------------------------------------------------

    def _unwritten(self, units: Units, chosen: torch.Tensor | None) -> torch.Tensor | None:
        """Return which of the units nothing has written; None: all were."""
        shadow = units.shadow
        if not shadow.unwritten:
            return None
        bad = _masked(units.read(shadow.writers) == UNWRITTEN, chosen)
        if bad.any():
            shadow.compare_with_pattern(units.allocation.tensor)
            bad = _masked(units.read(shadow.writers) == UNWRITTEN, chosen)
        return bad if bad.any() else None

    def _check_duplicates(
        self, allocation: Allocation, elements: torch.Tensor, blocks: torch.Tensor, itemsize: int
    ) -> None:
        """Check that no block stores one element twice in one operation."""
        pairs = elements.reshape(-1) * math.prod(self.grid) + blocks.reshape(-1)
        ordered = pairs.sort().values
        twice = ordered[1:] == ordered[:-1]
        if twice.any():
            element, block = divmod(int(ordered[1:][twice][0]), math.prod(self.grid))
            raise KernelFault(
                "race",
                f"stores into {allocation.describe(element * itemsize)} twice in one operation: "
                "the final value depends on timing",
                block=(block,),
            )

    def _record_parameter(self, units: Units) -> None:
        """Record by which parameter units are written, where there is more than one."""
        if self.check_races and len(units.shadow.parameters) > 1:
            units.write(units.shadow.record("parameters"), units.allocation.parameter)

    def _check_parameter(
        self,
        units: Units,
        block_of: Callable[[torch.Tensor], tuple[int, ...]],
        verb: str,
        chosen: torch.Tensor | None = None,
    ) -> None:
        """Check that no unit was written through another parameter; `block_of` names who comes later."""
        shadow = units.shadow
        if len(shadow.parameters) < 2 or not (shadow.was_written or shadow.was_updated):  # noqa: PLR2004
            return
        last = units.read(shadow.record("parameters"))
        bad = _masked((last > 0) & (last != units.allocation.parameter), chosen)
        if bad.any():
            raise KernelFault(
                "aliasing",
                f"{verb} {units.describe_first(bad)} after it was written through another parameter"
                f"{_places({**shadow.stores, **shadow.updates})}: the compiler takes for granted that "
                "parameters share no memory that the kernel writes, and may exchange the two",
                block=block_of(bad),
            )

    def _check_writers(self, frame: Frame, units: Units, chosen: torch.Tensor | None, verb: str) -> None:
        writers = units.read(units.shadow.writers)
        own = blocks_beside(frame, writers.dim())
        bad = _masked((writers >= 0) & (writers != own), chosen)
        bad = self._unsynchronized(units, bad, own, writers, "write_epochs")
        if bad.any():
            does = f"writes{_places(units.shadow.stores)}: {_WHICH_IS_FIRST}"
            raise self._race(units, bad, (own, writers), verb, does)

    def _check_write_after_write(self, units: Units, blocks: torch.Tensor) -> None:
        writers = units.read(units.shadow.writers)
        bad = (writers >= 0) & (writers != blocks)
        bad = self._unsynchronized(units, bad, blocks, writers, "write_epochs")
        if bad.any():
            does = f"writes as well{_places(units.shadow.stores)}: the final value depends on timing"
            raise self._race(units, bad, (blocks, writers), "writes", does)

    def _check_readers(self, units: Units, blocks: torch.Tensor, verb: str) -> None:
        shadow = units.shadow
        readers = units.read(shadow.readers)
        bad = (readers == SEVERAL) | ((readers >= 0) & (readers != blocks))
        suspects = readers
        if self._vector_clocks is not None and bad.any():
            last = units.read(units.shadow.record("last_readers"))
            suspects = torch.where(readers == SEVERAL, torch.where(last == blocks, NOBODY, last), readers)
        bad = self._unsynchronized(units, bad, blocks, suspects, "read_epochs")
        if bad.any():
            one, other = (units.read(shadow.record(name)) for name in ("one_reader", "other_readers"))
            readers = torch.where(readers == SEVERAL, torch.where(one == blocks, other, one), readers)
            does = f"reads{_places(shadow.loads)}: {_WHICH_IS_FIRST}"
            raise self._race(units, bad, (blocks, readers), verb, does)

    def _check_updaters(
        self, units: Units, blocks: torch.Tensor, verb: str, chosen: torch.Tensor | None = None
    ) -> None:
        shadow = units.shadow
        last = units.read(shadow.record("updaters"))
        several = units.read(shadow.record("updated_by_several"))
        bad = _masked((last >= 0) & ((last != blocks) | (several > 0)), chosen)
        suspects = torch.where(last == blocks, NOBODY, last)
        bad = self._unsynchronized(units, bad, blocks, suspects, "update_epochs")
        if bad.any():
            does = f"updates atomically{_places(shadow.updates)}: {_WHICH_IS_FIRST}"
            other = units.read(shadow.record("other_updaters"))
            raise self._race(
                units, bad, (blocks, torch.where(suspects == NOBODY, other, suspects)), verb, does
            )

    # -- records --------------------------------------------------------------------------------------

    def _record_updaters(self, units: Units, blocks: torch.Tensor) -> None:
        """Record that each of `blocks` writes its unit atomically, and let it acquire or release there."""
        shadow = units.shadow
        units.write(shadow.writers, WRITTEN)
        if not (self.check_races and shadow.tracked):
            return
        before = units.read(shadow.record("updaters"))
        units.write(shadow.record("updaters"), blocks)
        followed = (before >= 0) & (before != blocks)
        overtaken = units.read(shadow.record("updaters")) != blocks
        numbers = units.numbers().expand(blocks.shape)
        shadow.record("updated_by_several")[numbers[followed | overtaken]] = 1
        shadow.record("other_updaters")[numbers[followed]] = before[followed]
        shadow.record("other_updaters")[numbers[overtaken]] = blocks[overtaken]
        if self._vector_clocks is not None:
            epochs = self._vector_clocks.epochs[blocks.to(torch.int64)]
            units.write(shadow.record("update_epochs"), epochs)
        if self.op is not None:
            shadow.updates[id(self.op)] = self.op
        self._synchronize(shadow, numbers, blocks)

    def _record_read_epochs(
        self, frame: Frame, units: Units, chosen: torch.Tensor | None, clocks: VectorClocks
    ) -> None:
        """Record in which of its epochs the last block to read has read."""
        shadow, index = units.shadow, units.index
        last, epochs = (units.shaped(shadow.record(name)) for name in ("last_readers", "read_epochs"))
        readers = last[index]
        own = blocks_beside(frame, readers.dim())
        if chosen is not None:
            shape = torch.broadcast_shapes(readers.shape, own.shape, chosen.shape)
            lanes = chosen.expand(shape)
            index, own = index.expand(shape)[lanes], own.expand(shape)[lanes]
        elif readers.shape[0] == 1:
            own = own[-1:]
        last[index] = own
        epochs[index] = clocks.epochs[own.to(torch.int64)]

    # -- synchronization ------------------------------------------------------------------------------

    def _synchronize(self, shadow: Shadow, numbers: torch.Tensor, blocks: torch.Tensor) -> None:
        """Let blocks acquire or release, as the operation that runs says, at units of a storage."""
        ordering = "weak" if self.op is None else self.op.attributes.get("ordering", "weak")
        if ordering in {"weak", "relaxed"}:
            return
        if self._vector_clocks is None:
            self._vector_clocks = VectorClocks(math.prod(self.grid))
        bytes_ = numbers.reshape(-1) * shadow.unit
        self._vector_clocks.synchronize(id(shadow), blocks.reshape(-1), bytes_, ordering)

    def _is_ordered(self) -> bool:
        """Return whether the operation that runs may access what other blocks do: it is not a plain one."""
        return self.op is not None and self.op.attributes.get("ordering", "weak") != "weak"

    def _unsynchronized(
        self, units: Units, bad: torch.Tensor, own: torch.Tensor, other: torch.Tensor, epochs_name: str
    ) -> torch.Tensor:
        """Return which of the bad accesses nothing orders, as far as vector clocks tell."""
        if self._vector_clocks is None or not bad.any():
            return bad
        epochs = units.read(units.shadow.record(epochs_name))
        own, other, epochs = (tensor.expand(bad.shape)[bad] for tensor in (own, other, epochs))
        bad = bad.clone()
        bad[bad.clone()] = ~self._vector_clocks.happened_before(own, other, epochs)
        return bad

    def _race(
        self,
        units: Units,
        bad: torch.Tensor,
        blocks: tuple[torch.Tensor, torch.Tensor],
        verb: str,
        does: str,
    ) -> KernelFault:
        """Return the fault of the first of `blocks`, which touches what the second does something to."""
        one, number = (int(tensor.expand(bad.shape)[bad][0]) for tensor in blocks)
        other = f"block {block_of(number, self.grid)}" if number >= 0 else "another block"
        message = f"{verb} {units.describe_first(bad)}, which {other} of the same launch {does}"
        return KernelFault("race", message, block=(one,))


def _add_readers(frame: Frame, units: Units, chosen: torch.Tensor | None, *, distinct: bool) -> None:
    """Record who reads, or that several blocks do, and two of them."""
    readers, index = units.shaped(units.shadow.readers), units.index
    before = readers[index]
    own = blocks_beside(frame, before.dim())
    shape = torch.broadcast_shapes(before.shape, own.shape, () if chosen is None else chosen.shape)
    reader = torch.where((before == NOBODY) | (before == own), own, SEVERAL)
    _name_two_readers(units, (before >= 0) & (before != own), before, own, chosen)
    if before.shape[0] == 1 and frame.size > 1:
        reader = torch.full_like(before, SEVERAL) if chosen is None else reader[:1].fill_(SEVERAL)
        first = torch.ones_like(before, dtype=torch.bool)
        _name_two_readers(units, first, own[:1], own[-1:], None if chosen is None else chosen[:1])
    if chosen is None:
        readers[index] = reader
        if frame.size > 1 and not distinct:
            # Two blocks of these may have read one element: one of the two wrote last.
            after = readers[index]
            _name_two_readers(units, (after != reader) & (after >= 0), after, own, None)
            readers[index] = torch.where(after == reader, after, SEVERAL)
        return
    lanes = chosen.expand(shape)
    reader = reader.expand(shape)[lanes]
    numbers = index.expand(shape)[lanes]
    readers[numbers] = reader
    after = readers[numbers]
    overtaken = after != reader
    units = Units(units.allocation, numbers)
    _name_two_readers(units, overtaken & (after >= 0), after, own.expand(shape)[lanes], None)
    readers[numbers[overtaken]] = SEVERAL


def _name_two_readers(
    units: Units, several: torch.Tensor, one: torch.Tensor, other: torch.Tensor, chosen: torch.Tensor | None
) -> None:
    """Record two of the blocks that have read a unit, where there are several."""
    several = _masked(several, chosen)
    if not several.any():
        return
    numbers = units.numbers().expand(several.shape)[several]
    for name, blocks in (("one_reader", one), ("other_readers", other)):
        units.shadow.record(name)[numbers] = blocks.expand(several.shape)[several]


def _unit_index(
    shadow: Shadow, elements: torch.Tensor, chosen: torch.Tensor | None, itemsize: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the shadow's units that elements of a storage cover, with one more axis if those are several."""
    shadow.refine(itemsize)
    per_element = itemsize // shadow.unit
    if per_element == 1:
        return elements, chosen
    units = elements[..., None] * per_element + torch.arange(per_element)
    return units, None if chosen is None else chosen[..., None]


def _masked(bad: torch.Tensor, chosen: torch.Tensor | None) -> torch.Tensor:
    return bad if chosen is None else bad & chosen


def _places(ops: Mapping[int, Op]) -> str:
    """Return where operations are, if those are few places."""
    places = sorted({str(user_location(op.location)) for op in ops.values()})
    return f" (at {' or '.join(places)})" if 0 < len(places) <= _MOST_PLACES else ""
