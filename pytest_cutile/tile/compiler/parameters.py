"""What a launch gives to its kernel: a number for each parameter, and the sizes of its arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pytest_cutile.tile.compiler import cutile

if TYPE_CHECKING:
    import torch

    from pytest_cutile.tile.compiler.trace.launches import Launch

ARRAY_BITS = 44
"""Pretended addresses: each array has as many bits for itself."""


@dataclass(frozen=True, kw_only=True)
class LaunchParameters:
    """What of a launch decides how much it executes."""

    grid: tuple[int, ...]
    values: tuple[tuple[Any, torch.dtype], ...]
    """The value and dtype of each of the kernel's parameters; addresses are pretended ones."""
    array_bytes: tuple[int, ...]
    """The size of each array, in the order of their addresses."""
    memory_bytes: tuple[int, ...] = ()
    """From the start of each array to the end of the memory that the array is a part of."""
    names: tuple[str, ...] = ()
    """The kernel's parameter of each array."""


def parameters_of(launch: Launch) -> LaunchParameters:
    arrays = ArraySizes()
    values = tuple(flatten(arrays, launch.args, launch.kernel))
    return LaunchParameters(
        grid=launch.grid,
        values=values,
        array_bytes=tuple(arrays.bytes),
        memory_bytes=tuple(arrays.memory_bytes),
        names=tuple(arrays.names),
    )


class Arrays(Protocol):
    """What knows the addresses of tensors."""

    def add(self, name: str, tensor: torch.Tensor, parameter: str = "", /) -> int:
        """Return the address of a tensor."""


class ArraySizes:
    """Stands for a memory: it knows where arrays are and how large, and not what they hold."""

    def __init__(self) -> None:
        self.bytes: list[int] = []
        """Bytes of each array, in the order in which the arrays were added."""
        self.memory_bytes: list[int] = []
        """From the start of each array to the end of the memory that the array is a part of."""
        self.names: list[str] = []

    def add(self, name: str, tensor: torch.Tensor, *_: object) -> int:
        """Return a pretended address."""
        self.names.append(name)
        self.bytes.append(tensor.numel() * tensor.element_size())
        before = int(tensor.storage_offset()) * tensor.element_size()
        self.memory_bytes.append(tensor.untyped_storage().nbytes() - before)
        return len(self.bytes) << ARRAY_BITS


def flatten(memory: Arrays, arguments: Sequence[Any], kernel: Any) -> Iterator[tuple[Any, torch.dtype]]:
    """Yield the value and dtype of each of the kernel's parameters for these arguments."""
    names = cutile.kernel_function(kernel).__code__.co_varnames
    for value, annotation, name in zip(arguments, cutile.parameter_annotations(kernel), names, strict=False):
        yield from _parameters(memory, value, annotation, name)


def _parameters(
    memory: Arrays, value: Any, annotation: cutile.Annotation, name: str
) -> Iterator[tuple[Any, torch.dtype]]:
    import torch

    if isinstance(value, tuple):
        for index, (item, of_item) in enumerate(annotation.of_items(value)):
            yield from _parameters(memory, item, of_item, f"{name}[{index}]")
    elif annotation.constant:
        return
    elif isinstance(value, torch.Tensor):
        yield memory.add(name, value), torch.int64
        for number in (*value.shape, *value.stride()):
            yield number, torch.int64 if annotation.array.wide else torch.int32
    elif isinstance(value, list):
        rows = [
            [memory.add(f"{name}[{index}]", item, name), *item.shape, *item.stride()]
            for index, item in enumerate(value)
        ]
        table = torch.tensor(rows, dtype=torch.int64)
        yield memory.add(name, table), torch.int64
        yield len(value), torch.int32
    elif isinstance(value, bool):
        yield value, torch.bool
    elif isinstance(value, int):
        yield value, torch.int64 if annotation.wide else torch.int32
    else:
        yield value, torch.float32
