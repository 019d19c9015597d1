"""The same values in another layout: what a kernel takes for granted of strides and alignment shows."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pytest_cutile.correctness.guards.memory import unguardable
from pytest_cutile.tile.tensors.poison import Pattern, laid_out
from pytest_cutile.tile.tensors.trees import map_tensors, tensors_in

if TYPE_CHECKING:
    import torch

# cuTile compiles a kernel for whether strides are multiples of 16 bytes. They are or are not after as before,
# so that nothing has to be compiled again.
_PADDING = 16


class Layout(StrEnum):
    """How inputs lie in memory, other than they were given; its value says so in a message."""

    PADDED = "padded rows"
    """16 elements behind each row, and behind each matrix and so on: strides differ, alignment does not."""
    OFFSET = "an offset of one element"
    """The first element is not at a multiple of 16 bytes; the strides are as given."""
    TRANSPOSED = "transposed storage"
    """The last two axes lie in memory in the other order."""


def in_layout(arguments: Mapping[str, Any], layout: Layout) -> tuple[dict[str, Any], str] | None:
    """Return copies of arguments in a layout, and words for it; None: none of them can have it.

    Gaps hold `Pattern.BESIDE_INPUT`. Tensors that cannot have the layout, or cannot be copied, stay as given.
    """
    copies: dict[int, torch.Tensor] = {}
    for tensor in tensors_in(dict(arguments)):
        steps = _steps(tensor, layout)
        if steps is not None and id(tensor) not in copies:
            offset = int(layout is Layout.OFFSET)
            copies[id(tensor)] = laid_out(tensor, steps, offset, Pattern.BESIDE_INPUT)
    if not copies:
        return None
    changed = map_tensors(lambda tensor: copies.get(id(tensor), tensor), dict(arguments))
    if layout is Layout.OFFSET:
        return changed, "addresses are multiples of one element, not of 16 bytes"
    strides = (f"{list(copy.shape)} has strides {list(copy.stride())}" for copy in copies.values())
    return changed, ", ".join(dict.fromkeys(strides))


def _steps(tensor: torch.Tensor, layout: Layout) -> tuple[int, ...] | None:
    """Return the strides that a tensor has in a layout; None: it does not differ in it, or has to stay."""
    if unguardable(tensor) is not None or tensor.numel() == 0:
        return None
    steps = list(tensor.stride())
    if layout is Layout.OFFSET:
        return tuple(steps)
    # from the innermost axis; lengths of 1 have strides, too, which no other axis may then reach into
    order = sorted(
        (dim for dim, step in enumerate(steps) if step), key=lambda dim: (steps[dim], tensor.shape[dim])
    )
    if layout is Layout.PADDED:
        if sum(tensor.shape[dim] > 1 for dim in order) < 2:  # noqa: PLR2004
            return None
        for inner, dim in pairwise(order):
            steps[dim] = max(steps[dim], steps[inner] * tensor.shape[inner]) + _PADDING
        return tuple(steps)
    last, other = tensor.ndim - 1, tensor.ndim - 2
    if any(dim not in order or tensor.shape[dim] == 1 for dim in (last, other)):
        return None
    here, there = order.index(last), order.index(other)
    order[here], order[there] = other, last
    step = 1
    for dim in order:
        steps[dim] = step
        step *= tensor.shape[dim]
    return tuple(steps)
