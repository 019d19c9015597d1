"""Reductions and scans along an axis, with whatever the kernel combines elements with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_cutile.tile.interpreter.analysis import named_operands
from pytest_cutile.tile.interpreter.frames import Frame
from pytest_cutile.tile.interpreter.ir import Block, Op
from pytest_cutile.tile.interpreter.machine import OPS, Machine, operation
from pytest_cutile.tile.interpreter.undetermined import propagate
from pytest_cutile.tile.interpreter.values import moved

# Operations on two tiles of any shape, element by element.
_ELEMENTWISE = {
    *("addf", "mulf", "maxf", "minf", "addi", "muli", "maxi", "mini", "andi", "ori", "xori"),
}
# What depends on the block, or names it, whatever its operands are.
_OF_BLOCKS = {"get_tile_block_id", "assert", "assume", "print_tko"}


class _Combine:
    """Combines two rows of values element by element, as the region of the operation says."""

    def __init__(self, machine: Machine, frame: Frame, region: Block) -> None:
        self._machine = machine
        self._frame = frame
        self._region = region
        self._elementwise = self._without_frames()
        self.differs = self._elementwise is None and self._differs_by_block()
        """Whether it may do something else in every block, with the same elements."""

    def _differs_by_block(self) -> bool:
        captured: set[int] = set()

        def walk(block: Block, around: frozenset[int]) -> bool:
            inside = set(around).union(block.parameters)
            for op in block.ops:
                captured.update(value for _, value in named_operands(op) if value not in inside)
                if op.name in _OF_BLOCKS or any(walk(region, frozenset(inside)) for region in op.regions):
                    return True
                inside.update(op.results)
            return False

        if walk(self._region, frozenset()):
            return True
        values = (self._frame[value] for value in captured)
        return any(not isinstance(value, torch.Tensor) or value.shape[0] > 1 for value in values)

    def _without_frames(self) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
        """Return what combines whole tensors, if the region is one operation on its two parameters."""
        op, *rest = self._region.ops
        handler = OPS.get(op.name)
        operands = tuple(op.operands.values())
        if (
            op.name not in _ELEMENTWISE
            or handler is None
            or len(rest) != 1
            or rest[0].operands["values"] != op.results
            or sorted(operands) != sorted(self._region.parameters)
        ):
            return None

        def combine(lhs: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
            inside = self._frame.inner()
            inside.values.update(zip(self._region.parameters, (lhs, rhs), strict=True))
            result: torch.Tensor = handler(self._machine, inside, op)
            if self._machine.memory.undetermined:
                propagate(inside, op, result)
            return result

        return combine

    def __call__(
        self, lhs: tuple[torch.Tensor, ...], rhs: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        """Combine tensors of one shape, `[blocks, ...]`."""
        if self._elementwise is not None:
            return (self._elementwise(lhs[0], rhs[0]),)
        shape = lhs[0].shape
        # To the region every pair is a block of its own.
        repeats = shape[1:].numel() if shape[0] == self._frame.size else 1
        inside = self._frame.repeated(repeats)
        inside.size = shape.numel()
        pairs = [tile for pair in zip(lhs, rhs, strict=True) for tile in pair]
        rows = (moved(lambda tensor: tensor.reshape(-1), tile) for tile in pairs)
        inside.values.update(zip(self._region.parameters, rows, strict=True))
        (results,) = self._machine.run_block(self._region, inside)
        return tuple(
            moved(lambda tensor: tensor.expand(shape.numel()).reshape(shape), value)
            for value in results.values
        )


def _operands(frame: Frame, op: Op, combine: _Combine) -> tuple[tuple[torch.Tensor, ...], int]:
    values = tuple(frame[value] for value in op.operands["operands"])
    blocks = frame.size if combine.differs else max(value.shape[0] for value in values)
    axis = op.attributes["axis"] + 1
    return tuple(
        moved(lambda tensor: tensor.expand(blocks, *tensor.shape[1:]).movedim(axis, -1), value)
        for value in values
    ), axis


@operation("reduce")
def _reduce(machine: Machine, frame: Frame, op: Op) -> Any:
    combine = _Combine(machine, frame, op.regions[0])
    values, _ = _operands(frame, op, combine)
    while values[0].shape[-1] > 1:
        # Neighbours, so that what is combined keeps its order.
        values = combine(_cut(values, slice(0, None, 2)), _cut(values, slice(1, None, 2)))
    results = tuple(moved(lambda tensor: tensor[..., 0], tile) for tile in values)
    return results if len(results) > 1 else results[0]


@operation("scan")
def _scan(machine: Machine, frame: Frame, op: Op) -> Any:
    combine = _Combine(machine, frame, op.regions[0])
    values, axis = _operands(frame, op, combine)
    if op.attributes["reverse"]:
        values = _flipped(values)
    step = 1
    while step < values[0].shape[-1]:
        later = combine(_cut(values, slice(-step)), _cut(values, slice(step, None)))
        values = tuple(
            moved(lambda *parts: torch.cat(parts, dim=-1), first, new)
            for first, new in zip(_cut(values, slice(step)), later, strict=True)
        )
        step *= 2
    if op.attributes["reverse"]:
        values = _flipped(values)
    results = tuple(moved(lambda tensor: tensor.movedim(-1, axis), tile) for tile in values)
    return results if len(results) > 1 else results[0]


def _cut(values: tuple[torch.Tensor, ...], along: slice) -> tuple[torch.Tensor, ...]:
    return tuple(moved(lambda tensor: tensor[..., along], tile) for tile in values)


def _flipped(values: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(moved(lambda tensor: tensor.flip(-1), tile) for tile in values)
