"""The torch operations of a launcher: they take time beside its kernels, and belong to its fingerprint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

UNINITIALIZED = {
    *(torch.empty, torch.empty_like, torch.empty_strided, torch.empty_permuted),
    *(torch.Tensor.new_empty, torch.Tensor.new_empty_strided),
}
"""Functions that make a tensor and write nothing."""


class TorchOperations:
    """What torch computed while a launcher was traced."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        """Each operation with all that its time depends on: layouts of tensors, and the other arguments."""
        self.moved_bytes = 0
        """What the launcher's operations have read and written; views move nothing."""
        self._is_paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Add nothing for a while: what a tuner computes to try a configuration."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def add(self, func: Callable[..., Any], arguments: tuple[Any, ...], result: Any) -> None:
        name = getattr(func, "__name__", "")
        if self._is_paused or name.startswith("__get") or not name:
            return
        taken, made = tensors_of(arguments), tensors_of(result)
        with torch._C.DisableTorchFunction():  # noqa: SLF001
            self.texts.append(f"{name}{_as_text(arguments)} -> {_as_text(tuple(made))}")
            if func in UNINITIALIZED:
                return
            there = {*map(place_of, taken)}
            in_place = name.endswith("_") and not name.endswith("__")
            written = [tensor for tensor in made if in_place or place_of(tensor) not in there]
            if written:  # else it is a view
                self.moved_bytes += sum(
                    tensor.numel() * tensor.element_size() for tensor in [*taken, *written]
                )


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in the arguments or results of a call.

    Every torch function comes by here, so tuples, lists and dicts are walked directly, faster than by torch;
    torch knows what else has been registered.
    """
    tensors: list[torch.Tensor] = []
    rest = [tree]
    while rest:
        value = rest.pop()
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (tuple, list)):
            rest += value
        elif isinstance(value, dict):
            rest += value.values()
        elif type(value) in pytree.SUPPORTED_NODES:
            tensors += (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))
    return tensors


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the memory of a tensor; a sparse one has none."""
    with torch._C.DisableTorchFunction():  # noqa: SLF001
        return tensor.untyped_storage() if tensor.layout == torch.strided else None


def place_of(tensor: torch.Tensor) -> int:
    """Return where the memory of a tensor is: its views have the same one."""
    storage = storage_of(tensor)
    return id(tensor) if storage is None else storage._cdata  # noqa: SLF001


def _as_text(value: Any) -> str:
    """Return an argument as text that is the same in every process: tensors by layout, objects by type."""
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout == torch.strided else value.layout
        return f"{value.dtype}{tuple(value.shape)}{strides}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_as_text, value))})"
    if isinstance(value, dict):
        return f"({', '.join(f'{key}={_as_text(item)}' for key, item in sorted(value.items()))})"
    is_plain = isinstance(value, (bool, int, float, complex, str, torch.dtype, torch.device, type(None)))
    return repr(value) if is_plain else type(value).__name__
