"""Arguments at other placements in the GPU's memory."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

STEP_BYTES = 2 << 20
"""Granularity at which the driver and torch hand out large blocks."""
MOST_STEPS = 64
LARGEST_SHARE = 0.25
"""Share of the free memory that further sets of arguments may take; larger ones stay where they are."""
ROTATION_FACTOR, MOST_COPIES = 4, 16
"""Sets of arguments that sustained launches cycle through: as many as fill this many times the L2 cache."""


@contextmanager
def placed_anew(arguments: Any) -> Iterator[Any]:
    """Yield `arguments` with every tensor on a GPU copied behind a block of memory of random size.

    Layout, alignment within a page and which tensors share memory stay. Outputs that the launch allocates
    move, too. Without tensors on a GPU, or where memory is short, the arguments are yielded as they are.
    """
    storages = _storages(arguments)
    if not storages:
        yield arguments
        return
    import torch

    from pytest_cutile.tile.tensors.trees import map_tensors

    torch.cuda.empty_cache()  # or torch would reuse the last blocks
    pad = torch.empty(random.randrange(1, MOST_STEPS) * STEP_BYTES, dtype=torch.int8, device="cuda")  # noqa: S311
    room = torch.cuda.mem_get_info()[0] * LARGEST_SHARE
    if sum(storage.nbytes() for storage in storages.values()) > room:
        yield arguments
        del pad
        return
    copies = {address: storage.clone() for address, storage in storages.items()}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_cuda:
            return tensor
        moved = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        storage = copies[tensor.untyped_storage().data_ptr()]
        return moved.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())

    try:
        yield map_tensors(move, arguments)
    finally:
        copies.clear()
        del pad


@contextmanager
def placed_in_rotation(arguments: Any) -> Iterator[list[Any]]:
    """Yield copies of `arguments`, each at another placement: together they fill the L2 cache several times.

    A launch on one copy after the other reads its inputs from memory, as in bursts, without a flush between.
    There is at least one copy, and fewer than needed where memory is short.
    """
    with ExitStack() as stack:
        yield [stack.enter_context(placed_anew(arguments)) for _ in range(_copies(arguments))]


def _copies(arguments: Any) -> int:
    size = sum(storage.nbytes() for storage in _storages(arguments).values())
    if not size:
        return 1
    import torch

    needed: int = math.ceil(ROTATION_FACTOR * torch.cuda.get_device_properties(0).L2_cache_size / size)
    affordable = int(torch.cuda.mem_get_info()[0] * LARGEST_SHARE / size)
    return max(1, min(needed, MOST_COPIES, affordable))


def room_bytes(tensors: Iterable[torch.Tensor]) -> float:
    """Return how much memory a further copy of tensors may take, where they are."""
    if not any(tensor.is_cuda for tensor in tensors):
        return math.inf
    import torch

    return torch.cuda.mem_get_info()[0] * LARGEST_SHARE


def _storages(arguments: Any) -> dict[int, Any]:
    if "torch" not in sys.modules:  # nothing can be a tensor
        return {}
    from pytest_cutile.tile.tensors.trees import tensors_in

    storages = (tensor.untyped_storage() for tensor in tensors_in(arguments) if tensor.is_cuda)
    return {storage.data_ptr(): storage for storage in storages}
