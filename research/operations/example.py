"""What an example is: one launch that two ways of running it are to agree on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import cuda.tile as ct

if TYPE_CHECKING:
    import torch

FLOATS = ("float16", "bfloat16", "float32", "float64")
ONE_BYTE_FLOATS = ("float8_e4m3fn", "float8_e5m2")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED

_CUTILE_NAMES = {"bool": "bool_"}
COUNT = 65536
"""Elements that an operation is tried on: all values of two bytes."""
TILE = 256


@dataclass(frozen=True, kw_only=True)
class Example:
    """One launch, whose results two ways of running it are to agree on."""

    operation: str
    """The operation by its public name, and what is special about it."""
    dtype: str
    """What it works on: torch's name of the dtype, or "float32 to int8"."""
    kernel: Any
    inputs: Callable[[], Sequence[torch.Tensor]]
    """Makes the tensors that it reads, on the CPU; always the same."""
    outputs: Sequence[tuple[tuple[int, ...], str]]
    """Shape and dtype of the tensors that it writes; they start as zeros."""
    grid: tuple[int, ...]
    constants: Sequence[Any] = field(default=())


def dtype_named(name: str) -> Any:
    """Return cuTile's dtype for torch's name of it."""
    return getattr(ct, _CUTILE_NAMES.get(name, name))
