"""Indices of a reference that reach beyond an end: said as an exception, before a GPU runs into them.

torch checks them on the CPU by itself. On a GPU a wrong index is a device-side assert, which ends the
context, and with it every test that follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from pytest_cutile.correctness.error_model.operators import base_name
from pytest_cutile.tile.tensors.trees import is_on_gpu, tensors_in

_ALONG_DIM = {"index_select", "gather", "scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy"}
"""Operators that take a tensor, a dimension of it, and indices along that."""
_INDEXING = {*_ALONG_DIM, "index", "index_put", "embedding", "nll_loss_forward", "nll_loss2d_forward"}


def refuse_beyond(func: Any, args: tuple[Any, ...]) -> None:
    """Raise IndexError if an operator on a GPU takes indices from beyond the end of what they index."""
    if base_name(func) not in _INDEXING or not any(map(is_on_gpu, tensors_in(args))):
        return
    for index, first, size in _indices(func, args):
        if not index.numel():
            continue
        lowest, highest = (int(end) for end in torch.aminmax(index))
        if lowest < first or highest >= size:
            wrong = lowest if lowest < first else highest
            raise IndexError(f"index {wrong} is out of range for {size:,} elements, in {base_name(func)}")


def _indices(func: Any, args: tuple[Any, ...]) -> Iterator[tuple[torch.Tensor, int, int]]:
    """Yield the indices that an operator takes, with the lowest that it takes and the number of elements."""
    match (base_name(func), args):
        case ("index" | "index_put", (source, indices, *_)):
            if not any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
                for size, index in zip(source.shape, indices, strict=False):
                    if index is not None:
                        yield index, -size, size
        case ("embedding", (weight, index, *_)):
            yield index, 0, weight.shape[0]
        case ("nll_loss_forward" | "nll_loss2d_forward", (scores, target, _, _, ignored, *_)):
            yield target[target != ignored], 0, scores.shape[min(1, scores.dim() - 1)]
        case (along, (source, dim, index, *_)) if along in _ALONG_DIM and source.dim():
            yield index, 0, source.shape[dim]
