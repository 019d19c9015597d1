"""Redzones of a known pattern around tensors: a write beside a tensor is seen, and a read there is NaN."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pytest_cutile.tensors.dtypes import bits_of, carrier_of
from pytest_cutile.tensors.poison import Pattern

_ALIGNMENT_BYTES = 512  # of torch's CUDA allocator; a tensor keeps its address modulo this
_SMALLEST_REDZONE_BYTES = 16 << 10
_LARGEST_REDZONE_BYTES = 1 << 20


def redzone_bytes(span_bytes: int) -> int:
    """Return the size of the redzone on each side of `span_bytes`: as large, from 16 KiB to 1 MiB.

    What is written past the end begins at the end, with hardly an exception; a redzone has to be large enough
    that it also keeps from others what a tile that sticks out writes.
    """
    size = min(max(span_bytes, _SMALLEST_REDZONE_BYTES), _LARGEST_REDZONE_BYTES)
    return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte that a tensor has in its storage, and the one after its last."""
    first = int(tensor.storage_offset()) * tensor.itemsize
    reach = sum((size - 1) * int(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + ((reach + 1) * tensor.itemsize if tensor.numel() else 0)


def distinct(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of the elements of `tensor`, with those once that a stride of 0 repeats."""
    for dim, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def copy_bits(target: torch.Tensor, source: torch.Tensor) -> None:
    """Overwrite a tensor with one of the same shape and dtype, bit for bit: a bool may hold any byte."""
    target = distinct(target)
    bits_of(target).copy_(bits_of(source[tuple(map(slice, target.shape))]))


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether no byte between a tensor's first and last is another's."""
    first, end = extent(tensor)
    return math.prod(distinct(tensor).shape) * tensor.itemsize == end - first


@dataclass(frozen=True, kw_only=True)
class Violation:
    """What was written beside the tensors of some memory. Elements are those of its pattern's dtype."""

    before: int
    nearest: int
    """How far before it the nearest of them is: 1 is the element just before."""
    between: int
    """Elements changed in gaps of and between the tensors."""
    after: int
    first: int
    """How far past the end the first of them is: 0 is the element just behind it."""
    capacity: int
    """Elements of the smaller redzone: of what was written, no more is counted."""

    def describe(self, name: str) -> str:
        found = []
        if self.after:
            found.append(
                f"{self._count(self.after)} past the end of {name} (first at offset +{self.first:,})"
            )
        if self.before:
            found.append(
                f"{self._count(self.before)} before the start of {name} (nearest at offset -{self.nearest:,})"
            )
        if self.between:
            found.append(f"{self._count(self.between)} in the gaps that the strides of {name} leave")
        return "wrote " + " and ".join(found)

    def _count(self, elements: int) -> str:
        least = "at least " if elements >= self.capacity else ""
        return f"{least}{elements:,} element{'' if elements == 1 else 's'}"


def enclose(
    tensors: Sequence[torch.Tensor],
    *,
    pattern: Pattern,
    copy: bool = True,
) -> tuple[list[torch.Tensor], Redzones]:
    """Return replacements of tensors in memory of their own between two redzones, and that memory.

    Shapes, strides, dtypes, relative places, and addresses modulo 512 bytes stay. Gaps hold the pattern.
    Without `copy` there are no values, and the tensors' memory is freed at once. The tensors lie on one
    storage, each with an element at least.

    Memory: what the tensors span, and `redzone_bytes` of that twice, 1 MiB each at most.
    """
    lowest, end = min(extent(each)[0] for each in tensors), max(extent(each)[1] for each in tensors)
    span = end - lowest
    address = tensors[0].data_ptr() - extent(tensors[0])[0] + lowest
    device = tensors[0].device
    if not copy:
        tensors[0].untyped_storage().resize_(0)
    redzone = redzone_bytes(span)
    total = 2 * redzone + _ALIGNMENT_BYTES + -(-span // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    memory = torch.empty(total, dtype=torch.uint8, device=device)
    start = redzone + (address - memory.data_ptr() - redzone) % _ALIGNMENT_BYTES
    placed = []
    with torch.no_grad():
        for tensor in tensors:
            offset = (start + extent(tensor)[0] - lowest) // tensor.itemsize
            fresh = torch.empty(0, dtype=tensor.dtype, device=device)
            # no view, which autograd would have rules for
            placed.append(fresh.set_(memory.untyped_storage(), offset, tensor.shape, tensor.stride()))
        zones = Redzones(placed, pattern=pattern)
        if copy:
            for fresh, tensor in zip(placed, tensors, strict=True):
                copy_bits(fresh, tensor)
    return placed, zones


class Redzones:
    """Memory that holds a pattern wherever the tensors in it do not lie; it lives as long as they do."""

    def __init__(self, tensors: Sequence[torch.Tensor], *, pattern: Pattern) -> None:
        extents = [extent(tensor) for tensor in tensors]
        self._start, self._end = min(first for first, _ in extents), max(end for _, end in extents)
        whole = (self._start, self._end)
        self._dense = any(
            one == whole and is_dense(tensor) for tensor, one in zip(tensors, extents, strict=True)
        )
        self._tensors = [
            (distinct(tensor).shape, distinct(tensor).stride(), tensor.itemsize, first - self._start)
            for tensor, (first, _) in zip(tensors, extents, strict=True)
        ]
        # the smallest elements: all others begin and end where one of those does
        kinds = [each.dtype.to_real() if each.is_complex() else each.dtype for each in tensors]
        self._kind = min(kinds, key=lambda each: (each.itemsize, not each.is_floating_point))
        self._carrier = carrier_of(self._kind)
        self._storage = weakref.ref(tensors[0].untyped_storage())
        self.fill(pattern)

    def fill(self, pattern: Pattern) -> None:
        """Overwrite what the tensors do not cover with a pattern; if that has gaps, the tensors as well."""
        storage = self._storage()
        if storage is None:
            return
        self._pattern = pattern.of(self._kind)
        before, between, after = self._parts(storage)
        for part in (before, after) if self._dense else (before, between, after):
            part.fill_(self._pattern)

    def violation(self) -> Violation | None:
        """Return what was written beside the tensors; None: nothing, or the memory was freed.

        Takes a byte for each element of a redzone, and of the whole where strides leave gaps.
        """
        storage = self._storage()
        if storage is None:
            return None
        before, between, after = self._parts(storage)
        before, after = before != self._pattern, after != self._pattern
        counts = int(before.sum()), 0 if self._dense else self._count_between(between), int(after.sum())
        if not any(counts):
            return None
        return Violation(
            before=counts[0],
            nearest=len(before) - int(before.nonzero()[-1]) if counts[0] else 0,
            between=counts[1],
            after=counts[2],
            first=int(after.nonzero()[0]) if counts[2] else 0,
            capacity=min(len(before), len(after)),
        )

    def _count_between(self, row: torch.Tensor) -> int:
        changed = row != self._pattern
        for shape, stride, itemsize, first in self._tensors:
            each = itemsize // row.itemsize
            steps = (*(step * each for step in stride), 1)
            changed.as_strided((*shape, each), steps, first // row.itemsize).fill_(value=False)
        return int(changed.sum())

    def _parts(self, storage: torch.UntypedStorage) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        row = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).view(self._carrier)
        start, end = self._start // row.itemsize, self._end // row.itemsize
        return row[:start], row[start:end], row[end:]
