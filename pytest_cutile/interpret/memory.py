"""The memory that a launch sees: the arrays it was given, who wrote what, and what no block may touch.

An address is the number of an array in its high bits and the byte in that array's storage in its low ones,
so that an access that strays says which array it strayed from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from pytest_cutile.interpret.faults import KernelFault
from pytest_cutile.interpret.values import moved

if TYPE_CHECKING:
    from pytest_cutile.interpret.machine import Frame

_OFFSET_BITS = 40
_OFFSET = (1 << _OFFSET_BITS) - 1

UNWRITTEN = -1
"""In a shadow: nobody has written this element."""
WRITTEN = -2
"""In a shadow: written before this launch, or atomically."""


class Shadow:
    """Who wrote each element of a storage: `UNWRITTEN`, `WRITTEN`, or the number of a block of this launch."""

    def __init__(self, elements: int, *, initialized: bool) -> None:
        self.elements = elements
        """Elements of the storage."""
        self.version = 0
        """torch's count of what the host wrote to the storage until it was made."""
        self._initialized = initialized
        self._writers: torch.Tensor | None = None
        self.unwritten = not initialized
        """Whether there may be elements that nobody has written."""
        self.touched = False
        """Whether this launch has written any."""

    @property
    def writers(self) -> torch.Tensor:
        """The writers, int32, by element."""
        if self._writers is None:
            start = WRITTEN if self._initialized else UNWRITTEN
            self._writers = torch.full((self.elements,), start, dtype=torch.int32)
        return self._writers

    def unwritten_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return which elements of a tensor on this storage nobody has written."""
        return self.writers.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()) == UNWRITTEN

    def end_launch(self) -> None:
        """Note that what was written is there for the next launch."""
        if self.touched:
            self.writers[self.writers >= 0] = WRITTEN
            self.touched = False


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
        storage = tensor.untyped_storage()
        self.storage_bytes = storage.nbytes()
        reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        self.start = tensor.storage_offset() * self.itemsize
        self.end = self.start + (reach * self.itemsize if tensor.numel() else 0)
        self._flat: dict[torch.dtype, torch.Tensor] = {}
        self._holes: torch.Tensor | None = None
        self.dense = tensor.numel() == reach

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
                covered = self._holes.as_strided(
                    self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset()
                )
                covered.fill_(value=False)
            elements = offsets.clamp(0, self.storage_bytes - 1) // self.itemsize
            bad = bad | self._holes[elements]
        return bad


class Memory:
    """All arrays of a launch."""

    def __init__(self, *, check_races: bool = True) -> None:
        self.allocations: list[Allocation] = []
        self.shadows: dict[tuple[int, int], Shadow] = {}
        """Of storages that several arguments may share, by identity and element size."""
        self.check_races = check_races
        """Whether two blocks may not touch one element, unless atomically."""
        self.changes = 0
        """Counts what may have changed an element: while it stands still, memory is what it was."""

    def add(self, name: str, tensor: torch.Tensor, shadow: Shadow) -> int:
        """Add an array; return the address of its first element."""
        allocation = Allocation(name=name, tensor=tensor, shadow=shadow)
        self.allocations.append(allocation)
        return len(self.allocations) << _OFFSET_BITS | allocation.start

    def at(self, address: int) -> tuple[Allocation, int] | None:
        """Return the array that an address belongs to, and the byte in its storage; None: to no array."""
        number = address >> _OFFSET_BITS
        if not 1 <= number <= len(self.allocations):
            return None
        return self.allocations[number - 1], address & _OFFSET

    def end_launch(self) -> None:
        """Note that what was written is there for the next launch."""
        for allocation in self.allocations:
            allocation.shadow.end_launch()

    # -- accesses -------------------------------------------------------------------------------------

    def load(
        self, frame: Frame, addresses: torch.Tensor, dtype: torch.dtype, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Load the elements at `addresses`, `[blocks, ...]`; what `mask` leaves out is anything.

        Raises:
            KernelFault: an element is in no array, was never written, or was written by another block.
        """
        result: torch.Tensor | None = None
        for allocation, elements, chosen in self._resolve(frame, addresses, dtype, mask, "loads"):
            if allocation.shadow.unwritten or allocation.shadow.touched:
                self.check_read(frame, allocation, allocation.shadow.writers[elements], chosen)
            row = allocation.flat(dtype)
            values = moved(lambda data, at=elements: data[at], row)  # type: ignore[misc]
            if result is None:
                result = values
            else:
                assert chosen is not None
                result = moved(lambda new, old, pick=chosen: torch.where(pick, new, old), values, result)  # type: ignore[misc]
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
        for allocation, elements, chosen in self._resolve(frame, addresses, values.dtype, mask, "stores"):
            data, at = values, elements
            writers = frame.blocks.reshape(-1, *[1] * (len(shape) - 1)).expand(shape)
            if chosen is not None:
                data, at, writers = moved(lambda t, c=chosen: t[c], data), at[chosen], writers[chosen]  # type: ignore[misc]
            self.claim(frame, allocation, lambda row: row, at, writers.to(torch.int32))
            row = allocation.flat(values.dtype)

            def put(target: torch.Tensor, source: torch.Tensor, at: torch.Tensor = at) -> torch.Tensor:
                target[at] = source
                return target

            moved(put, row, data)

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
        for allocation, elements, chosen in self._resolve(frame, addresses, dtype, mask, "updates"):
            shadow = allocation.shadow
            if reads and (shadow.unwritten or shadow.touched):
                self.check_read(frame, allocation, shadow.writers[elements], chosen)
            pick = torch.ones(shape, dtype=torch.bool) if chosen is None else chosen
            at = elements[pick]
            row = allocation.flat(dtype)
            before = row[at]
            result[pick] = act(row, at, *(each[pick] for each in operands))
            if not torch.equal(before.view(torch.uint8), row[at].view(torch.uint8)):
                self.changes += 1
            shadow.writers[at] = WRITTEN
            shadow.touched = True
        return result

    def _resolve(
        self,
        frame: Frame,
        addresses: torch.Tensor,
        dtype: torch.dtype,
        mask: torch.Tensor | None,
        verb: str,
    ) -> list[tuple[Allocation, torch.Tensor, torch.Tensor | None]]:
        """Return the arrays that are meant: each with the elements, and which of the lanes (None: all)."""
        itemsize = torch.empty(0, dtype=dtype).element_size()
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
            chosen = (
                mask
                if lowest == highest
                else (numbers == number if mask is None else (numbers == number) & mask)
            )
            entry = self.at(number << _OFFSET_BITS)
            if entry is None:
                raise self._stray(frame, chosen, addresses, f"{verb} through an address that is in no array")
            allocation = entry[0]
            offsets = addresses & _OFFSET
            if chosen is not None:
                offsets = offsets.masked_fill(~chosen, allocation.start)
            bad = allocation.outside(offsets, itemsize)
            if chosen is not None:
                bad = bad & chosen
            if bad.any():
                raise self._out_of_bounds(frame, allocation, bad, offsets, verb)
            found.append((allocation, offsets // itemsize, chosen))
        return found

    def _stray(
        self, frame: Frame, chosen: torch.Tensor | None, addresses: torch.Tensor, what: str
    ) -> KernelFault:
        lanes = torch.ones_like(addresses, dtype=torch.bool) if chosen is None else chosen
        return KernelFault("out-of-bounds", what, block=_first_block(frame, lanes))

    def _out_of_bounds(
        self, frame: Frame, allocation: Allocation, bad: torch.Tensor, offsets: torch.Tensor, verb: str
    ) -> KernelFault:
        lane = tuple(int(each) for each in bad.nonzero()[0])
        offset = int(offsets[lane]) - allocation.start
        shape = list(allocation.tensor.shape)
        element, rest = divmod(offset, allocation.itemsize)
        where = f"element {element}" if rest == 0 else f"byte {offset}"
        strides = (
            "" if allocation.tensor.is_contiguous() else f" (strides {list(allocation.tensor.stride())})"
        )
        return KernelFault(
            "out-of-bounds",
            f"{verb} {where} counted from the start of {allocation.name}, which is {shape}{strides}",
            block=_first_block(frame, bad),
        )

    def check_read(
        self, frame: Frame, allocation: Allocation, writers: torch.Tensor, chosen: torch.Tensor | None
    ) -> None:
        if allocation.shadow.unwritten:
            bad = writers == UNWRITTEN
            if chosen is not None:
                bad = bad & chosen
            if bad.any():
                raise KernelFault(
                    "uninitialized",
                    f"reads {int(bad.sum())} elements of {allocation.name} that nothing has written",
                    block=_first_block(frame, bad),
                )
        if self.check_races and allocation.shadow.touched:
            own = frame.blocks.reshape(-1, *[1] * (writers.dim() - 1))
            bad = (writers >= 0) & (writers != own)
            if chosen is not None:
                bad = bad & chosen
            if bad.any():
                raise KernelFault(
                    "race",
                    f"reads elements of {allocation.name} that another block (number "
                    f"{int(writers.expand(bad.shape)[bad][0])}) of this launch has written: "
                    "which of the two comes first is chance",
                    block=_first_block(frame, bad),
                )

    def claim(
        self,
        frame: Frame,
        allocation: Allocation,
        see: Callable[[torch.Tensor], torch.Tensor],
        index: Any,
        blocks: torch.Tensor,
    ) -> None:
        """Note who writes the elements at `index` of the storage as `see` sees it.

        Raises:
            KernelFault: another block has written one of them.
        """
        shadow = allocation.shadow
        self.changes += 1
        writers = see(shadow.writers)
        if self.check_races and shadow.touched:
            before = writers[index]
            bad = (before >= 0) & (before != blocks)
            if bad.any():
                raise self._conflict(allocation, bad, before, blocks)
        writers[index] = blocks
        shadow.touched = True
        if self.check_races and frame.size > 1:
            after = writers[index]
            bad = after != blocks
            if bad.any():
                raise self._conflict(allocation, bad, after, blocks)

    def _conflict(
        self, allocation: Allocation, bad: torch.Tensor, one: torch.Tensor, other: torch.Tensor
    ) -> KernelFault:
        return KernelFault(
            "race",
            f"writes an element of {allocation.name} that another block (number {int(one[bad][0])}) of this "
            "launch writes as well: which value stays is chance",
            block=(int(other.expand(bad.shape)[bad][0]),),
        )


def _first_block(frame: Frame, lanes: torch.Tensor) -> tuple[int, ...]:
    """Return the number of the first block with a lane set; the machine makes indices of it."""
    rows = lanes.reshape(lanes.shape[0], -1).any(dim=1)
    return (int(frame.blocks[int(rows.nonzero()[0])]),)


def join_addresses(addresses: Sequence[int]) -> torch.Tensor:
    """Return addresses as a tensor."""
    return torch.tensor(list(addresses), dtype=torch.int64)
