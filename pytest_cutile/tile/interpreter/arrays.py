"""The arrays that a launch is given, as parts of their storages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pytest_cutile.tile.interpreter.shadow import Shadow, row_of


@dataclass(eq=False, kw_only=True)
class Allocation:
    """One array argument."""

    name: str
    tensor: torch.Tensor
    """The argument itself."""
    shadow: Shadow
    parameter: int = 1
    """Number of the parameter, from 1; the arrays of a list have one together."""

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
            self._flat[dtype] = row_of(self.tensor, dtype)
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


@dataclass(frozen=True)
class Access:
    """What one operation accesses in one array."""

    allocation: Allocation
    elements: torch.Tensor
    """Elements of the storage, `[blocks, ...]`."""
    lanes: torch.Tensor | None
    """Which of the elements are meant; None: all."""


def nested(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether each step along an axis is beyond all smaller steps: no element is there twice."""
    reach = 1
    for stride, length in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if stride < reach:
            return False
        reach = stride * length
    return True
