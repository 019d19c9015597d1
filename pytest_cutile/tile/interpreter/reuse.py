"""Estimates how much of what a launch asks for comes from memory, and not from the L2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pytest_cutile.tile.interpreter.ir import Op
from pytest_cutile.tile.interpreter.scopes import Scope, known
from pytest_cutile.tile.interpreter.values import ViewValue, itemsize_of

_PRIME = 1_000_003
"""Indices of a tile make one number: as digits to this base."""


@dataclass
class Span:
    """When an access is: what its block has asked for at the begin and the end of the loop around it."""

    begin: torch.Tensor
    end: torch.Tensor


@dataclass(frozen=True)
class CountedAccess:
    """Loads or stores of one operation."""

    op: Op
    operand: str
    """What it is asked through: "view" or pointers."""
    scope: Scope
    weight: torch.Tensor
    """How many passes each row stands for."""
    span: Span
    is_certain: bool = True
    """Whether no branch that only data decides is around it, or leaves before it."""


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """Tiles of one array that one operation asks for."""

    keys: torch.Tensor
    """Which tile it is, by access: equal numbers are the same one."""
    blocks: torch.Tensor
    """Which block asks, by access."""
    within: torch.Tensor
    """When, by access, as a share of the block's time."""
    bytes: torch.Tensor
    """Number of bytes, by access."""


def tiles_of(access: CountedAccess, at_block: torch.Tensor, asked: torch.Tensor) -> Tiles | None:
    """Return which tiles an operation asks for; None where they are not those of a partition.

    `asked` is what each block asks for in all, and `at_block` where in it the block of each row is.
    """
    scope, operands = access.scope, access.op.operands
    view = known(scope, operands["view"]) if access.operand == "view" else None
    if not isinstance(view, ViewValue) or view.type.kind != "partition":
        return None
    index = [known(scope, value) for value in operands["index"]]
    if any(at is None for at in index):
        return None
    keys = torch.zeros(scope.size, dtype=torch.int64)
    elements = access.weight.clone()
    for at, axis, length in zip(index, view.type.axes, view.type.tile_shape, strict=True):
        place = at.reshape(-1).long()
        keys = keys * _PRIME + place
        elements *= torch.as_tensor(view.array.shape[axis] - place * length).clamp(0, length)
    # A block's passes are in order, and share out the time of the loop.
    _, which, counts = torch.unique_consecutive(scope.blocks, return_inverse=True, return_counts=True)
    share = (torch.arange(scope.size) - (counts.cumsum(0) - counts)[which]) / counts[which]
    begin, end, all_of_it = (moved[at_block] for moved in (access.span.begin, access.span.end, asked))
    busy = elements > 0
    return Tiles(
        keys=keys[busy],
        blocks=scope.blocks[busy],
        within=((begin + share * (end - begin)) / (all_of_it + 1))[busy],
        bytes=(elements * itemsize_of(view.array.element))[busy],
    )


def bytes_from_memory(
    arrays: Sequence[tuple[float, Sequence[Tiles]]], *, others: float, l2_bytes: float, at_a_time: int
) -> float:
    """Return the bytes that come at least from memory, when `at_a_time` blocks run together, then the next.

    The launch is cut into as many windows of equal time as times the arrays fill the L2. What is asked for
    twice within a window comes from memory once. `arrays` are sizes in bytes and what is asked for; `others`
    the bytes of arrays that come once anyway.
    """
    windows = math.ceil((others + sum(size for size, _ in arrays)) / l2_bytes)
    return others + sum(_moved(size, tiles, windows, at_a_time) for size, tiles in arrays)


def _moved(size: float, asked: Sequence[Tiles], windows: int, at_a_time: int) -> float:
    """Return the bytes of an array that come from memory; in one window at most all of it."""
    rounds = torch.cat([tiles.blocks for tiles in asked]) // at_a_time
    times = (rounds + torch.cat([tiles.within for tiles in asked])) / (int(rounds.max()) + 1)
    distinct, which = torch.unique(torch.cat([tiles.keys for tiles in asked]), return_inverse=True)
    cells, sizes = (
        (times * windows).long() * len(distinct) + which,
        torch.cat([tiles.bytes for tiles in asked]),
    )
    # Of a sample of passes, a tile stands for its neighbours, too: for how many, differs by block.
    asked_for = torch.bincount(cells, minlength=windows * len(distinct))
    moved = torch.bincount(cells, sizes, windows * len(distinct)) / asked_for.clamp(min=1)
    return float(moved.view(windows, -1).sum(dim=1).clamp(max=size).sum())
