"""The memory of a launch: the addresses of its arrays, and how they are loaded, stored and updated.

An address is the number of an array in its high bits and the byte in that array's storage in its low ones,
counted from their middle, so that an access that strays to either side says which array it strayed from.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch

from pytest_cutile.tile.interpreter.arrays import Access, Allocation
from pytest_cutile.tile.interpreter.faults import KernelFault
from pytest_cutile.tile.interpreter.frames import Frame, blocks_beside, first_block
from pytest_cutile.tile.interpreter.race_detector import RaceDetector
from pytest_cutile.tile.interpreter.shadow import Shadow, identity_of, shadow_of
from pytest_cutile.tile.interpreter.undetermined import Undetermined
from pytest_cutile.tile.interpreter.values import mark_undetermined, moved, without_origins

_OFFSET_BITS = 40
_OFFSET = (1 << _OFFSET_BITS) - 1
_MIDDLE = 1 << (_OFFSET_BITS - 1)


class AccessObserver(Protocol):
    """Called for each store."""

    def stored(self, frame: Frame, access: Access) -> None:
        """Record what is written."""


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
        self._parameters: dict[str, int] = {}
        self._shadows: dict[int, Shadow] = {}
        """Shadows of storages, which several arguments may share, by identity."""
        self.races = RaceDetector(check_races=check_races, grid=(*grid, 1, 1)[:3])
        self.check_tiles = check_tiles
        """Whether a tile that is wholly outside of its array may not be loaded or stored."""
        self.undetermined = Undetermined()
        """Where values come from that nothing determines."""
        self.observer: AccessObserver | None = None
        """Called for each store; with an observer all accesses go element by element."""
        self.changes = 0
        """Counts what may have changed an element: while it stands still, memory is what it was."""

    def add(self, name: str, tensor: torch.Tensor, parameter: str = "") -> int:
        """Add an array; return the address of its first element.

        Args:
            name: of the array.
            tensor: the array.
            parameter: what it came by, if that has another name.
        """
        shadow = shadow_of(tensor)
        if shadow is None:
            key = tensor.untyped_storage()._cdata  # noqa: SLF001 - one of several arguments may share a storage
            shadow = self._shadows.get(key)
            if shadow is None:
                size = int(tensor.untyped_storage().nbytes())
                shadow = self._shadows[key] = Shadow(size, tensor.element_size(), initialized=True)
        shadow.refine(tensor.element_size())
        number = self._parameters.setdefault(parameter or name, len(self._parameters) + 1)
        shadow.parameters.add(number)
        allocation = Allocation(name=name, tensor=tensor, shadow=shadow, parameter=number)
        self.allocations.append(allocation)
        return (len(self.allocations) << _OFFSET_BITS | _MIDDLE) + allocation.start

    def at(self, address: int) -> tuple[Allocation, int] | None:
        """Return the array that an address belongs to, and the byte in its storage; None: to no array."""
        number = address >> _OFFSET_BITS
        if not 1 <= number <= len(self.allocations):
            return None
        return self.allocations[number - 1], (address & _OFFSET) - _MIDDLE

    def describe(self, address: int) -> str:
        """Return the name of the element at an address, "X[3, 5]"; empty: the address is in no array."""
        place = self.at(address)
        return place[0].describe(place[1]) if place else ""

    def views(
        self, base: torch.Tensor, strides: Sequence[object]
    ) -> tuple[Allocation, tuple[torch.Tensor, ...]] | None:
        """Return the array that views at these addresses are of, and where in it they begin, by axis."""
        numbers = (base >> _OFFSET_BITS).unique()
        place = self.at(int(base[0])) if len(numbers) == 1 else None
        if place is None:
            return None
        origin = place[0].origin((base & _OFFSET) - _MIDDLE, strides)
        return None if origin is None else (place[0], origin)

    def begin_launch(self, written: Iterable[int] | None) -> None:
        """Track reads of the arrays that may be written, by an address of each; None: any of them."""
        allocations = self.allocations
        if written is not None:
            allocations = [entry[0] for entry in map(self.at, written) if entry is not None]
        for allocation in allocations:
            allocation.shadow.track_reads = self.races.check_races and allocation.shadow.tracked

    def written(self) -> dict[int, int]:
        """Return a digest of each storage that this launch wrote, by the identity of the storage."""
        return {
            identity_of(allocation.tensor): zlib.crc32(allocation.flat(torch.uint8).numpy().data)
            for allocation in self.allocations
            if allocation.shadow.was_written or allocation.shadow.was_updated
        }

    def end_launch(self) -> None:
        """Count what was written as written before the next launch."""
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
            KernelFault: an element is in no array, or was written by another block.
        """
        result: torch.Tensor | None = None
        for access in self.resolve(frame, addresses, dtype, mask, "loads"):
            unwritten = self.races.record_read(frame, access, dtype.itemsize)
            values = moved(_take(access.elements), access.allocation.flat(dtype))
            if unwritten is not None:
                element = int(access.elements.expand(unwritten.shape)[unwritten][0])
                self.mark_unwritten(values, unwritten, access.allocation, element * dtype.itemsize)
            if result is None:
                result = values
            else:
                assert access.lanes is not None
                result = moved(_choose(access.lanes), values, result)
        if result is None:
            result = torch.zeros(addresses.shape, dtype=dtype)
        return result

    def mark_unwritten(
        self, values: torch.Tensor, unwritten: torch.Tensor, allocation: Allocation, offset: int
    ) -> None:
        """Mark loaded values that nothing has written, the first of them at a byte of the storage."""
        element = f"{allocation.describe(offset)} of {allocation.layout}"
        origin = self.undetermined.unwritten(self.races.op, element)
        mark_undetermined(values, unwritten.to(torch.int16) * origin)

    def forbid_access(self, frame: Frame, addresses: torch.Tensor, mask: torch.Tensor | None) -> None:
        """Check that nothing undetermined says what is accessed.

        Raises:
            KernelFault: it does.
        """
        if mask is not None:
            self.undetermined.forbid(frame, mask, "masks an access by")
        self.undetermined.forbid(frame, addresses, "takes as an index", mask)

    def _forbid_stored(self, frame: Frame, verb: str, value: torch.Tensor, access: Access) -> None:
        def use(bad: torch.Tensor) -> str:
            element = int(access.elements.expand(bad.shape)[bad][0])
            return f"{verb} {access.allocation.describe(element * value.dtype.itemsize)}"

        self.undetermined.forbid(frame, value, use, access.lanes)

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
        for access in self.resolve(frame, addresses, values.dtype, mask, "stores"):
            self._forbid_stored(frame, "stores into", values, access)
            data, at, lanes = values, access.elements, access.lanes
            writers = blocks_beside(frame, len(shape)).expand(shape)
            if lanes is not None:
                data, at, writers = moved(_take(lanes), data), at[lanes], writers[lanes]
            self.changes += 1
            self.races.record_write(frame, access.allocation, at, writers, values.dtype.itemsize)
            if self.observer is not None:
                self.observer.stored(frame, access)
            moved(_put(at), access.allocation.flat(values.dtype), without_origins(data))

    def update(
        self,
        frame: Frame,
        addresses: torch.Tensor,
        mask: torch.Tensor | None,
        operands: tuple[torch.Tensor, ...],
        act: Callable[..., torch.Tensor],
        *,
        reads: bool = True,
    ) -> torch.Tensor:
        """Update the elements at `addresses` atomically; return what each lane saw, `[blocks, ...]`.

        What `mask` leaves out has the first of the operands.

        Args:
            frame: the blocks.
            addresses: `[blocks, ...]`.
            mask: which lanes act; None: all.
            operands: each `[blocks, ...]`.
            act: Called as `act(row, elements, *operands)` with a storage as one row and, of each lane that
                acts, in the order of blocks, its element and operands; returns what the lanes saw.
            reads: whether what is left depends on what was there.

        Raises:
            KernelFault: an element is in no array, was never written, or was written by another block.
        """
        tails = [tensor.shape[1:] for tensor in (addresses, *operands, *([] if mask is None else [mask]))]
        shape = (frame.size, *torch.broadcast_shapes(*tails))
        addresses = addresses.expand(shape)
        operands = tuple(moved(lambda tensor: tensor.expand(shape), tensor) for tensor in operands)
        mask = None if mask is None else mask.expand(shape)
        result = operands[0].clone(memory_format=torch.contiguous_format)
        dtype = result.dtype
        for access in self.resolve(frame, addresses, dtype, mask, "updates"):
            for operand in operands:
                self._forbid_stored(frame, "updates", operand, access)
            if self.observer is not None:
                self.observer.stored(frame, access)
            self.races.record_update(frame, access, dtype.itemsize, reads=reads)
            pick = torch.ones(shape, dtype=torch.bool) if access.lanes is None else access.lanes
            at = access.elements[pick]
            row = access.allocation.flat(dtype)
            before = row[at]
            result[pick] = act(row, at, *(tensor[pick] for tensor in operands))
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
    ) -> list[Access]:
        """Return what is accessed, array by array.

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
        accesses = []
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
            accesses.append(Access(allocation, offsets // itemsize, chosen))
        return accesses

    def _out_of_bounds(
        self,
        frame: Frame,
        allocation: Allocation,
        bad: torch.Tensor,
        offsets: torch.Tensor,
        itemsize: int,
        verb: str,
    ) -> KernelFault:
        lane = tuple(bad.nonzero()[0].tolist())
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
            f"{verb} {allocation.distance(offset)} of {allocation.name}, which is {allocation.layout}, "
            "counted from its start",
            block=block,
        )


def _take(index: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda data: data[index]


def _choose(pick: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda new, old: torch.where(pick, new, old)


def _put(index: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def put(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        target[index] = source
        return target

    return put
