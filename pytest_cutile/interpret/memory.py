"""The memory that a launch sees: the arrays it was given, who wrote what, and what no block may touch.

An address is the number of an array in its high bits and the byte in that array's storage in its low ones,
counted from their middle, so that an access that strays to either side says which array it strayed from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch

from pytest_cutile.interpret.clocks import Clocks
from pytest_cutile.interpret.faults import KernelFault, user_location
from pytest_cutile.interpret.shadow import NOBODY, SEVERAL, UNWRITTEN, WRITTEN, Shadow, shadow_of
from pytest_cutile.interpret.values import moved

if TYPE_CHECKING:
    from pytest_cutile.interpret.ir import Op
    from pytest_cutile.interpret.machine import Frame

_OFFSET_BITS = 40
_OFFSET = (1 << _OFFSET_BITS) - 1
_MIDDLE = 1 << (_OFFSET_BITS - 1)


class AccessObserver(Protocol):
    """Is told of each load and store, element by element."""

    def loaded(
        self, frame: Frame, allocation: Allocation, elements: torch.Tensor, chosen: torch.Tensor | None
    ) -> None:
        """Note what was read: elements of the storage, and which lanes of them were meant (None: all)."""

    def stored(
        self, frame: Frame, allocation: Allocation, elements: torch.Tensor, chosen: torch.Tensor | None
    ) -> None:
        """Note what was written, likewise."""


@dataclass(eq=False, kw_only=True)
class Allocation:
    """One array argument."""

    name: str
    tensor: torch.Tensor
    """The argument itself."""
    shadow: Shadow

    def __post_init__(self) -> None:
        tensor = self.tensor
        self.itemsize = tensor.element_size()
        self.shape = tuple(int(length) for length in tensor.shape)
        self.strides = tuple(int(stride) for stride in tensor.stride())
        self.storage_bytes = int(tensor.untyped_storage().nbytes())
        reach = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) + 1
        self.start = int(tensor.storage_offset()) * self.itemsize
        self.end = self.start + (reach * self.itemsize if tensor.numel() else 0)
        self._flat: dict[torch.dtype, torch.Tensor] = {}
        self._holes: torch.Tensor | None = None
        self.dense = tensor.numel() == 0 or (tensor.numel() == reach and nested(self.shape, self.strides))
        """Whether the elements lie without gaps, each once, in some order of the axes."""

    def flat(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the whole storage as one row of elements."""
        if dtype not in self._flat:
            itemsize = torch.empty(0, dtype=dtype).element_size()
            row = torch.empty(0, dtype=dtype)
            row.set_(self.tensor.untyped_storage(), 0, (self.storage_bytes // itemsize,), (1,))
            self._flat[dtype] = row
        return self._flat[dtype]

    def outside(self, offsets: torch.Tensor, itemsize: int) -> torch.Tensor:
        """Return which of these bytes of the storage do not begin an element of the array."""
        bad = (offsets < self.start) | (offsets + itemsize > self.end) | (offsets % itemsize != 0)
        if not self.dense and not bad.all():
            if self._holes is None:
                self._holes = torch.ones(self.storage_bytes // self.itemsize, dtype=torch.bool)
                covered = self._holes.as_strided(self.shape, self.strides, self.tensor.storage_offset())
                covered.fill_(value=False)
            elements = offsets.clamp(0, self.storage_bytes - 1) // self.itemsize
            bad = bad | self._holes[elements.clamp(max=len(self._holes) - 1)]
        return bad

    def index_at(self, offset: int) -> tuple[int, ...] | None:
        """Return the index of the element at a byte of the storage; None: there is no single one."""
        element, rest = divmod(offset - self.start, self.itemsize)
        if rest or element < 0 or not nested(self.shape, self.strides):
            return None
        index = [0] * len(self.shape)
        for axis in sorted(range(len(self.shape)), key=lambda axis: -self.strides[axis]):
            if self.shape[axis] > 1:
                index[axis], element = divmod(element, self.strides[axis])
        inside = all(at < length for at, length in zip(index, self.shape, strict=True))
        return tuple(index) if inside and element == 0 else None

    def describe(self, offset: int) -> str:
        """Return the name and index of the element at a byte of the storage: "X[3, 5]"."""
        index = self.index_at(offset)
        if index is not None:
            return f"{self.name}[{', '.join(map(str, index))}]"
        return f"{self.name} ({self.distance(offset)} from its start)"

    def origin(self, offsets: torch.Tensor, strides: Sequence[object]) -> tuple[torch.Tensor, ...] | None:
        """Return at which index of this array views begin, by axis; None: they do not run along its axes.

        Args:
            offsets: the byte of the storage at which each view begins, `[blocks]`.
            strides: of the views, one for each axis; tensors are never those of this array.
        """
        if len(strides) != len(self.shape) or not nested(self.shape, self.strides):
            return None
        along = [axis for axis, length in enumerate(self.shape) if length > 1]
        if any(not isinstance(strides[axis], int) or strides[axis] != self.strides[axis] for axis in along):
            return None
        rest = (offsets - self.start) // self.itemsize
        index = [torch.zeros_like(rest) for _ in self.shape]
        for axis in sorted(along, key=lambda axis: -self.strides[axis]):
            index[axis] = rest.div(self.strides[axis], rounding_mode="floor")
            rest = rest - index[axis] * self.strides[axis]
        return tuple(index)

    def distance(self, offset: int) -> str:
        """Return how far a byte of the storage is from the array's start: "element 12"."""
        element, rest = divmod(offset - self.start, self.itemsize)
        return f"byte {offset - self.start}" if rest else f"element {element}"

    @property
    def layout(self) -> str:
        """Shape, and strides where they do not follow from it."""
        plain = self.tensor.is_contiguous()
        return f"{list(self.shape)}" + ("" if plain else f" with strides {list(self.strides)}")


def nested(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether each step along an axis is beyond all smaller steps: no element is there twice."""
    reach = 1
    for stride, length in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if stride < reach:
            return False
        reach = stride * length
    return True


class Memory:
    """All arrays of a launch."""

    def __init__(
        self,
        *,
        check_races: bool = True,
        check_tiles: bool = True,
        grid: Sequence[int] = (1, 1, 1),
    ) -> None:
        self.allocations: list[Allocation] = []
        self._shadows: dict[int, Shadow] = {}
        """Of storages that several arguments may share, by identity."""
        self.check_races = check_races
        """Whether two blocks may not touch one element, unless atomically."""
        self.check_tiles = check_tiles
        """Whether a tile that is wholly outside of its array may not be loaded or stored."""
        self.op: Op | None = None
        """The operation that runs: its ordering says whether an access may meet another's."""
        self.observer: AccessObserver | None = None
        """Is told of each access; all of them go element by element then."""
        self.grid = (*grid, 1, 1)[:3]
        self._clocks: Clocks | None = None
        """What blocks know of each other; None: none has acquired or released yet."""
        self.changes = 0
        """Counts what may have changed an element: while it stands still, memory is what it was."""

    def add(self, name: str, tensor: torch.Tensor, shadow: Shadow | None = None) -> int:
        """Add an array; return the address of its first element."""
        if shadow is None:
            shadow = shadow_of(tensor)
        if shadow is None:
            key = tensor.untyped_storage()._cdata  # noqa: SLF001 - one of several arguments may share a storage
            shadow = self._shadows.get(key)
            if shadow is None:
                size = int(tensor.untyped_storage().nbytes())
                shadow = self._shadows[key] = Shadow(size, tensor.element_size(), initialized=True)
        shadow.refine(tensor.element_size())
        allocation = Allocation(name=name, tensor=tensor, shadow=shadow)
        self.allocations.append(allocation)
        return (len(self.allocations) << _OFFSET_BITS | _MIDDLE) + allocation.start

    def at(self, address: int) -> tuple[Allocation, int] | None:
        """Return the array that an address belongs to, and the byte in its storage; None: to no array."""
        number = address >> _OFFSET_BITS
        if not 1 <= number <= len(self.allocations):
            return None
        return self.allocations[number - 1], (address & _OFFSET) - _MIDDLE

    def views(
        self, base: torch.Tensor, strides: Sequence[object]
    ) -> tuple[Allocation, tuple[torch.Tensor, ...]] | None:
        """Return the array that views at these addresses are of, and where in it they begin, by axis."""
        numbers = (base >> _OFFSET_BITS).unique()
        found = self.at(int(base[0])) if len(numbers) == 1 else None
        if found is None:
            return None
        origin = found[0].origin((base & _OFFSET) - _MIDDLE, strides)
        return None if origin is None else (found[0], origin)

    def begin_launch(self, written: Iterable[int] | None) -> None:
        """Note which arrays may be written, by an address of each; None: any of them."""
        found = self.allocations
        if written is not None:
            found = [entry[0] for entry in map(self.at, written) if entry is not None]
        for allocation in found:
            allocation.shadow.track_reads = self.check_races and allocation.shadow.followed

    def end_launch(self) -> None:
        """Note that what was written is there for the next launch."""
        for allocation in self.allocations:
            allocation.shadow.end_launch()

    # -- accesses -------------------------------------------------------------------------------------

    def load(
        self,
        frame: Frame,
        addresses: torch.Tensor,
        dtype: torch.dtype,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Load the elements at `addresses`, `[blocks, ...]`; what `mask` leaves out is anything.

        Raises:
            KernelFault: an element is in no array, was never written, or was written by another block.
        """
        result: torch.Tensor | None = None
        for allocation, elements, chosen in self.resolve(frame, addresses, dtype, mask, "loads"):
            self.note_read(frame, allocation, elements, chosen, dtype.itemsize)
            row = allocation.flat(dtype)
            values = moved(_take(elements), row)
            if result is None:
                result = values
            else:
                assert chosen is not None
                result = moved(_choose(chosen), values, result)
        if result is None:
            result = torch.zeros(addresses.shape, dtype=dtype)
        return result

    def store(
        self, frame: Frame, addresses: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
    ) -> None:
        """Store `values` at `addresses`, both `[blocks, ...]`, where `mask` says so.

        Raises:
            KernelFault: an element is in no array, or another block has written it.
        """
        shape = (frame.size, *torch.broadcast_shapes(addresses.shape[1:], values.shape[1:]))
        addresses = addresses.expand(shape)
        values = moved(lambda tensor: tensor.expand(shape), values)
        if mask is not None:
            mask = mask.expand(shape)
        for allocation, elements, chosen in self.resolve(frame, addresses, values.dtype, mask, "stores"):
            data, at = values, elements
            writers = frame.blocks.to(torch.int32).reshape(-1, *[1] * (len(shape) - 1)).expand(shape)
            if chosen is not None:
                data, at, writers = moved(_take(chosen), data), at[chosen], writers[chosen]
            self.note_write(frame, allocation, at, writers, values.dtype.itemsize)
            if self.observer is not None:
                self.observer.stored(frame, allocation, elements, chosen)
            moved(_put(at), allocation.flat(values.dtype), data)

    def update(
        self,
        frame: Frame,
        addresses: torch.Tensor,
        operands: tuple[torch.Tensor, ...],
        mask: torch.Tensor | None,
        act: Callable[..., torch.Tensor],
        *,
        reads: bool = True,
    ) -> torch.Tensor:
        """Update the elements at `addresses` atomically; return what each lane saw, `[blocks, ...]`.

        What `mask` leaves out has the first of the operands.

        Args:
            frame: the blocks.
            addresses: `[blocks, ...]`.
            operands: each `[blocks, ...]`.
            mask: which lanes act; None: all.
            act: Called as `act(row, elements, *operands)` with a storage as one row and, of each lane that
                acts, in the order of blocks, its element and operands; returns what the lanes saw.
            reads: whether what is left depends on what was there.

        Raises:
            KernelFault: an element is in no array, was never written, or was written by another block.
        """
        tails = [each.shape[1:] for each in (addresses, *operands, *([] if mask is None else [mask]))]
        shape = (frame.size, *torch.broadcast_shapes(*tails))
        addresses = addresses.expand(shape)
        operands = tuple(each.expand(shape) for each in operands)
        mask = None if mask is None else mask.expand(shape)
        result = operands[0].clone(memory_format=torch.contiguous_format)
        dtype = result.dtype
        for allocation, elements, chosen in self.resolve(frame, addresses, dtype, mask, "updates"):
            self.note_update(frame, allocation, elements, chosen, dtype.itemsize, reads=reads)
            pick = torch.ones(shape, dtype=torch.bool) if chosen is None else chosen
            at = elements[pick]
            row = allocation.flat(dtype)
            before = row[at]
            result[pick] = act(row, at, *(each[pick] for each in operands))
            if not torch.equal(before.view(torch.uint8), row[at].view(torch.uint8)):
                self.changes += 1
        return result

    def resolve(
        self,
        frame: Frame,
        addresses: torch.Tensor,
        dtype: torch.dtype,
        mask: torch.Tensor | None,
        verb: str,
    ) -> list[tuple[Allocation, torch.Tensor, torch.Tensor | None]]:
        """Return the arrays that are meant: each with the elements, and which of the lanes (None: all).

        Raises:
            KernelFault: an address is in no array, or begins no element of it.
        """
        itemsize = dtype.itemsize
        numbers = addresses >> _OFFSET_BITS
        if mask is not None:
            mask = mask.expand(torch.broadcast_shapes(mask.shape, addresses.shape))
            addresses = addresses.expand(mask.shape)
            numbers = numbers.expand(mask.shape)
            there = numbers[mask]
        else:
            there = numbers.reshape(-1)
        if there.numel() == 0:
            return []
        lowest, highest = int(there.min()), int(there.max())
        found = []
        for number in [lowest] if lowest == highest else there.unique().tolist():
            chosen = mask
            if lowest != highest:
                chosen = numbers == number if mask is None else (numbers == number) & mask
            entry = self.at(number << _OFFSET_BITS)
            if entry is None:
                lanes = torch.ones_like(addresses, dtype=torch.bool) if chosen is None else chosen
                raise KernelFault(
                    "out-of-bounds",
                    f"{verb} through an address that is in no array",
                    block=first_block(frame, lanes),
                )
            allocation = entry[0]
            offsets = (addresses & _OFFSET) - _MIDDLE
            if chosen is not None:
                offsets = offsets.masked_fill(~chosen, allocation.start)
            bad = allocation.outside(offsets, itemsize)
            if chosen is not None:
                bad = bad & chosen
            if bad.any():
                raise self._out_of_bounds(frame, allocation, bad, offsets, itemsize, verb)
            found.append((allocation, offsets // itemsize, chosen))
        return found

    def _out_of_bounds(
        self,
        frame: Frame,
        allocation: Allocation,
        bad: torch.Tensor,
        offsets: torch.Tensor,
        itemsize: int,
        verb: str,
    ) -> KernelFault:
        lane = tuple(int(each) for each in bad.nonzero()[0])
        offset = int(offsets[lane])
        block = first_block(frame, bad)
        if allocation.start <= offset and offset + itemsize <= allocation.end and offset % itemsize:
            return KernelFault(
                "misaligned",
                f"{verb} {itemsize} bytes at {allocation.distance(offset)} of {allocation.name}, "
                f"an address that is no multiple of {itemsize}",
                block=block,
            )
        return KernelFault(
            "out-of-bounds",
            f"{verb} {allocation.distance(offset)} counted from the start of {allocation.name}, "
            f"which is {allocation.layout}",
            block=block,
        )

    # -- who touched what -----------------------------------------------------------------------------

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
        if self.observer is not None:
            self.observer.loaded(frame, allocation, elements, chosen)
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
        if self.observer is not None:
            self.observer.stored(frame, allocation, elements, chosen)
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
            other = int(writers.expand(bad.shape)[bad][0])
            raise KernelFault(
                "race",
                f"{verb} {self._place(allocation, see, index, bad)}, which block {self.block_of(other)} of "
                f"the same launch writes{_places(shadow.stores)}: which of them comes first is chance",
                block=first_block(frame, bad),
            )

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
        self.changes += 1
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
            other = int(writers[bad][0])
            raise KernelFault(
                "race",
                f"writes {self._place(allocation, see, index, bad)}, which block {self.block_of(other)} of "
                f"the same launch writes as well{_places(shadow.stores)}: which value stays is chance",
                block=(int(blocks.expand(bad.shape)[bad][0]),),
            )

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
            one = int(readers.expand(bad.shape)[bad][0])
            reader = f"block {self.block_of(one)}" if one >= 0 else "another block"
            raise KernelFault(
                "race",
                f"{verb} {self._place(allocation, see, index, bad)}, which {reader} of the same launch "
                "reads: which of them comes first is chance",
                block=(int(blocks.expand(bad.shape)[bad][0]),),
            )

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
            one = int(suspects.expand(bad.shape)[bad][0])
            other = f"block {self.block_of(one)}" if one >= 0 else "another block"
            raise KernelFault(
                "race",
                f"{verb} {self._place(allocation, see, index, bad)}, which {other} of the same launch "
                f"updates atomically{_places(shadow.updates)}: which of them comes first is chance",
                block=(int(blocks.expand(bad.shape)[bad][0]),),
            )

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

    def block_of(self, number: int) -> tuple[int, int, int]:
        """Return the indices (x, y, z) of a block by its number."""
        x, y, _ = self.grid
        return number % x, number // x % y, number // (x * y)

    def _place(self, allocation: Allocation, see: See, index: Any, bad: torch.Tensor) -> str:
        """Return the name of the first bad element."""
        shadow = allocation.shadow
        found = _units_at(shadow, see, index)
        return allocation.describe(int(found.expand(bad.shape)[bad][0]) * shadow.unit)


See: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""How to look at a row of units, so that an index finds those that are meant."""


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


def _take(index: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda data: data[index]


def _choose(pick: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda new, old: torch.where(pick, new, old)


def _put(index: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def put(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        target[index] = source
        return target

    return put


def first_block(frame: Frame, lanes: torch.Tensor) -> tuple[int, ...]:
    """Return the number of the first block with a lane set; the machine makes indices of it."""
    rows = lanes.reshape(lanes.shape[0], -1).any(dim=1)
    return (int(frame.blocks[int(rows.nonzero()[0])]),)


def join_addresses(addresses: Sequence[int]) -> torch.Tensor:
    """Return addresses as a tensor."""
    return torch.tensor(list(addresses), dtype=torch.int64)
