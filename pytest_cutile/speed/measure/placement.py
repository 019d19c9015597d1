"""Arguments at another placement in the GPU's memory."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

STEP_BYTES = 2 << 20
"""Granularity at which the driver and torch hand out large blocks."""
MOST_STEPS = 64
LARGEST_SHARE = 0.25
"""Share of the free memory that a second set of arguments may take; larger ones stay where they are."""


@contextmanager
def placed_anew(arguments: Any) -> Iterator[Any]:
    """Yield `arguments` with every tensor on a GPU copied behind a block of memory of random size.

    Layout, alignment within a page and which tensors share memory stay. Outputs that the launch allocates
    move, too. Without tensors on a GPU, or where memory is short, the arguments are yielded as they are.
    """
    if "torch" not in sys.modules:  # nothing can be a tensor
        yield arguments
        return
    import torch

    from pytest_cutile.tensors.trees import map_tensors

    storages: dict[int, Any] = {}

    def remember(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_cuda:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    map_tensors(remember, arguments)
    if not storages:
        yield arguments
        return
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
