"""Redzones of a known pattern around tensors: a write beside a tensor is seen, and a read there is NaN."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

import torch

from pytest_cutile.tile.tensors.dtypes import bits_of, carrier_of
from pytest_cutile.tile.tensors.poison import Pattern, distinct

_ALIGNMENT_BYTES = 512  # of torch's CUDA allocator; a tensor keeps its address modulo this
_SMALLEST_REDZONE_BYTES = 16 << 10
_LARGEST_REDZONE_BYTES = 1 << 20


def redzone_bytes(span_bytes: int) -> int:
    """Return the size of the redzone on each side of `span_bytes`: as large, from 16 KiB to 1 MiB.

    It keeps from others what a tile that sticks out writes.
    """
    size = min(max(span_bytes, _SMALLEST_REDZONE_BYTES), _LARGEST_REDZONE_BYTES)
    return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte that a tensor has in its storage, and the one after its last."""
    first = int(tensor.storage_offset()) * tensor.itemsize
    reach = sum((size - 1) * int(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + ((reach + 1) * tensor.itemsize if tensor.numel() else 0)


def copy_bits(target: torch.Tensor, source: torch.Tensor) -> None:
    """Overwrite a tensor with one of the same shape and dtype, bit for bit: a bool may hold any byte."""
    target = distinct(target)
    bits_of(target).copy_(bits_of(source[tuple(map(slice, target.shape))]))


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
    lowest, end = min(extent(tensor)[0] for tensor in tensors), max(extent(tensor)[1] for tensor in tensors)
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
        # whether one tensor lies in all of it, without gaps
        self._dense = any(
            own == (self._start, self._end)
            and math.prod(distinct(tensor).shape) * tensor.itemsize == self._end - self._start
            for tensor, own in zip(tensors, extents, strict=True)
        )
        self._tensors = [
            (distinct(tensor).shape, distinct(tensor).stride(), tensor.itemsize, first - self._start)
            for tensor, (first, _) in zip(tensors, extents, strict=True)
        ]
        # the smallest elements: all others begin and end where one of those does
        dtypes = [tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype for tensor in tensors]
        self._dtype = min(dtypes, key=lambda dtype: (dtype.itemsize, not dtype.is_floating_point))
        self._carrier = carrier_of(self._dtype)
        self._storage = weakref.ref(tensors[0].untyped_storage())
        self.fill(pattern)

    def fill(self, pattern: Pattern) -> None:
        """Overwrite what the tensors do not cover with a pattern; if that has gaps, the tensors as well."""
        storage = self._storage()
        if storage is None:
            return
        self._pattern = pattern.of(self._dtype)
        before, between, after = self._parts(storage)
        for part in (before, after) if self._dense else (before, between, after):
            part.fill_(self._pattern)

    def violation(self, name: str) -> str:
        """Say what was written beside the tensors, called `name`; empty: nothing, or the memory was freed.

        Elements are those of the pattern's dtype. Of what was written past an end, no more is counted than
        a redzone has. Takes a byte for each element of a redzone, and of the whole where strides leave gaps.
        """
        storage = self._storage()
        if storage is None:
            return ""
        before, between, after = self._parts(storage)
        start, capacity = len(before), min(len(before), len(after))
        before, after = ((zone != self._pattern).nonzero() for zone in (before, after))
        gaps = 0 if self._dense else self._count_between(between)

        def count(elements: int) -> str:
            least = "at least " if elements >= capacity else ""
            return f"{least}{elements:,} element{'' if elements == 1 else 's'}"

        parts = []
        if len(after):
            parts.append(f"{count(len(after))} past the end of {name} (first at offset +{int(after[0]):,})")
        if len(before):
            nearest = start - int(before[-1])
            parts.append(f"{count(len(before))} before the start of {name} (nearest at offset -{nearest:,})")
        if gaps:
            parts.append(f"{count(gaps)} in the gaps that the strides of {name} leave")
        return f"wrote {' and '.join(parts)}" if parts else ""

    def _count_between(self, row: torch.Tensor) -> int:
        changed = row != self._pattern
        for shape, stride, itemsize, first in self._tensors:
            width = itemsize // row.itemsize
            steps = (*(step * width for step in stride), 1)
            changed.as_strided((*shape, width), steps, first // row.itemsize).fill_(value=False)
        return int(changed.sum())

    def _parts(self, storage: torch.UntypedStorage) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        row = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).view(self._carrier)
        start, end = self._start // row.itemsize, self._end // row.itemsize
        return row[:start], row[start:end], row[end:]
