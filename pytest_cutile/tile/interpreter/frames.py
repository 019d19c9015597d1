"""The values that groups of blocks see while a kernel runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pytest_cutile.tile.interpreter.values import select_blocks


class Frame:
    """The values that a group of blocks sees; what it has not itself, it has from the frame around it."""

    __slots__ = ("_blocks", "_index", "_parent", "_repeats", "size", "values")

    def __init__(self, parent: Frame | None, index: torch.Tensor | None, size: int) -> None:
        self._parent = parent
        self._index = index
        self._repeats = 1
        self._blocks: torch.Tensor | None = None
        self.size = size
        """Number of blocks."""
        self.values: dict[int, Any] = {}

    @classmethod
    def of_blocks(cls, blocks: torch.Tensor) -> Frame:
        """Make the outermost frame of these blocks, given by their numbers."""
        frame = cls(None, None, len(blocks))
        frame._blocks = blocks
        return frame

    def inner(self, index: torch.Tensor | None = None) -> Frame:
        """Make a frame inside of this one, for all of its blocks or those at `index`."""
        return Frame(self, index, self.size if index is None else len(index))

    def repeated(self, times: int) -> Frame:
        """Make a frame inside of this one in which each block stands `times` times in a row."""
        frame = Frame(self, None, self.size * times)
        frame._repeats = times
        return frame

    def _index_in_parent(self) -> torch.Tensor | None:
        if self._index is None and self._repeats > 1:
            self._index = torch.arange(self.size // self._repeats).repeat_interleave(self._repeats)
        return self._index

    def __getitem__(self, value: int) -> Any:
        data = self.values.get(value)
        if data is None:
            assert self._parent is not None, f"value {value} is not defined"
            data = self._parent[value]
            index = self._index_in_parent()
            if index is not None:
                data = self.values[value] = select_blocks(data, index)
        return data

    def forget(self, values: Sequence[int], outermost: Frame) -> None:
        """Drop values from here up to the frame `outermost`."""
        frame: Frame | None = self
        while frame is not None:
            for value in values:
                frame.values.pop(value, None)
            frame = None if frame is outermost else frame._parent  # noqa: SLF001

    @property
    def blocks(self) -> torch.Tensor:
        """The numbers of the blocks, x fastest."""
        if self._blocks is None:
            assert self._parent is not None
            blocks, index = self._parent.blocks, self._index_in_parent()
            self._blocks = blocks if index is None else blocks[index]
        return self._blocks


def blocks_beside(frame: Frame, dims: int) -> torch.Tensor:
    """Return the numbers of the blocks, int32, as a tensor of `dims` axes whose first counts blocks."""
    return frame.blocks.to(torch.int32).reshape(-1, *[1] * (dims - 1))


def first_block(frame: Frame, lanes: torch.Tensor) -> tuple[int, ...]:
    """Return the number of the first block with a lane set; the machine makes indices of it."""
    rows = lanes.reshape(lanes.shape[0], -1).any(dim=1)
    return (int(frame.blocks[int(rows.nonzero()[0])]),)
