"""The torch operations of a launcher: they take time beside its kernels, and belong to its fingerprint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

UNINITIALIZED = {
    *(torch.empty, torch.empty_like, torch.empty_strided, torch.empty_permuted),
    *(torch.Tensor.new_empty, torch.Tensor.new_empty_strided),
}
"""Functions that make a tensor and write nothing."""


class TorchOperations:
    """What torch computed while a launcher was traced."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        """Name of each operation, and the layouts of the tensors that it takes."""
        self.moved_bytes = 0
        """What the launcher's operations have read and written; views move nothing."""

    def add(
        self, func: Callable[..., Any], taken: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Add an operation: what it takes decides what it costs."""
        name = getattr(func, "__name__", "")
        if name.startswith("__get") or not name:
            return
        with torch._C.DisableTorchFunction():  # noqa: SLF001
            self.texts.append(" ".join([name, *(f"{tensor.dtype}{tuple(tensor.shape)}" for tensor in taken)]))
            if func in UNINITIALIZED:
                return
            there = {*map(_place, taken)}
            in_place = name.endswith("_") and not name.endswith("__")
            written = [tensor for tensor in made if in_place or _place(tensor) not in there]
            if written:  # else it is a view
                self.moved_bytes += sum(
                    tensor.numel() * tensor.element_size() for tensor in [*taken, *written]
                )


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the memory of a tensor; a sparse one has none."""
    with torch._C.DisableTorchFunction():  # noqa: SLF001
        return tensor.untyped_storage() if tensor.layout == torch.strided else None


def _place(tensor: torch.Tensor) -> int:
    """Return where the memory of a tensor is: its views have the same one."""
    storage = storage_of(tensor)
    return id(tensor) if storage is None else storage._cdata  # noqa: SLF001
