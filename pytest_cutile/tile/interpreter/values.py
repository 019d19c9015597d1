"""Values while a kernel is interpreted: tiles of many blocks at once, and views of memory.

A tile is a torch tensor on the CPU whose first axis counts blocks; where it has length 1, all blocks have the
same value. Integers are signed tensors of their width whatever their sign (an operation says how it reads
them), pointers are int64 addresses (`memory`), tf32 is float32 with the low bits zero, and four-bit floats
are the one-byte floats of the same value: they are in tiles only, never in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from pytest_cutile.tile.interpreter.faults import NotInterpreted
from pytest_cutile.tile.interpreter.ir import Pointer, Scalar, TiledView
from pytest_cutile.words.formats import BY_TILE_IR, FLOAT4_E2M1FN, TFLOAT32

_STAND_INS = {TFLOAT32: torch.float32, FLOAT4_E2M1FN: torch.float8_e4m3fn}
"""What holds the values of formats that torch lacks."""
DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"i1": torch.bool}
    | {f"i{bits}": getattr(torch, f"int{bits}") for bits in (8, 16, 32, 64)}
    | {name: _STAND_INS.get(target) or getattr(torch, target.name) for name, target in BY_TILE_IR.items()}
)
"""What holds the elements of each type."""

_IN_TILES_ONLY = {FLOAT4_E2M1FN.tile_ir}
_ONE_BYTE_FLOATS = {dtype for dtype in DTYPES.values() if dtype.is_floating_point and dtype.itemsize == 1}


class _Token:
    """Says that memory operations are ordered; here they run in order anyway."""

    def __repr__(self) -> str:
        return "token"


TOKEN = _Token()


@dataclass(frozen=True, kw_only=True)
class ArrayValue:
    """An array in memory. Lengths and strides, in elements, are numbers, or tensors where blocks differ."""

    element: Scalar
    base: torch.Tensor
    """Address of the first element, by block."""
    shape: tuple[int | torch.Tensor, ...]
    strides: tuple[int | torch.Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class ViewValue:
    """An array cut into tiles."""

    type: TiledView
    array: ArrayValue


def dtype_of(element: Scalar | Pointer) -> torch.dtype:
    """Return what holds elements of this type.

    Raises:
        NotInterpreted: no CPU tensor does.
    """
    if isinstance(element, Pointer):
        return torch.int64
    if element.name not in DTYPES:
        raise NotInterpreted(f"the interpreter does not know elements of type {element}")
    return DTYPES[element.name]


def itemsize_of(element: Scalar | Pointer) -> int:
    """Return how many bytes an element of this type takes in memory.

    Raises:
        NotInterpreted: less than one, or it is not known.
    """
    if str(element) in _IN_TILES_ONLY:
        raise NotInterpreted(f"the interpreter does not know arrays of {element}")
    return dtype_of(element).itemsize


def moved(move: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
    """Apply `move`, which only moves elements, and what is known of them.

    Of one-byte floats torch moves only the bytes.
    """
    dtype = tensors[0].dtype
    if dtype in _ONE_BYTE_FLOATS:
        result = move(*(tensor.view(torch.uint8) for tensor in tensors)).view(dtype)
    else:
        result = move(*tensors)
    if all(undetermined(tensor) is None for tensor in tensors):
        return result
    return mark_undetermined(result, move(*(origins_of(tensor) for tensor in tensors)))


# -- what nothing determines --------------------------------------------------------------------------

_UNDETERMINED = "_pytest_cutile_undetermined"


def undetermined(tile: torch.Tensor) -> torch.Tensor | None:
    """Return the origin of each element that nothing determines, int16, 0 for the others; None: all are."""
    return getattr(tile, _UNDETERMINED, None)


def origins_of(tile: torch.Tensor) -> torch.Tensor:
    """Return what `undetermined` does, zeros in place of None."""
    origins = undetermined(tile)
    return torch.zeros((), dtype=torch.int16).expand(tile.shape) if origins is None else origins


def mark_undetermined(tile: torch.Tensor, origins: torch.Tensor) -> torch.Tensor:
    """Say of a tile which of its elements nothing determines, by their origins, and return it."""
    if origins.any():
        setattr(tile, _UNDETERMINED, origins.expand(tile.shape))
    return tile


def without_origins(tile: torch.Tensor) -> torch.Tensor:
    """Return the same elements, of which nothing is said."""
    return tile if undetermined(tile) is None else tile.detach()


def of_block(value: torch.Tensor, row: int) -> torch.Tensor:
    """Return the tile of one block, by its place among the blocks."""
    return value[row if len(value) > 1 else 0]


def tile_of_block(value: torch.Tensor, row: int) -> torch.Tensor:
    """Return a copy of the tile of one block, by its place among the blocks."""
    return moved(lambda tensor: of_block(tensor, row).clone(), value)


def select_blocks(value: Any, index: torch.Tensor) -> Any:
    if isinstance(value, torch.Tensor):
        return value if value.shape[0] == 1 else moved(lambda tensor: tensor[index], value)
    if isinstance(value, ArrayValue):
        return replace(
            value,
            base=select_blocks(value.base, index),
            shape=tuple(select_blocks(length, index) for length in value.shape),
            strides=tuple(select_blocks(length, index) for length in value.strides),
        )
    if isinstance(value, ViewValue):
        return replace(value, array=select_blocks(value.array, index))
    return value


def merge_blocks(pieces: Sequence[tuple[torch.Tensor | None, Any]], size: int) -> Any:
    """Put together the values that groups of blocks have; together the groups are all `size` blocks."""
    first = pieces[0][1]
    if len(pieces) == 1 or first is TOKEN:
        return first
    if isinstance(first, torch.Tensor):

        def assemble(*tensors: torch.Tensor) -> torch.Tensor:
            merged = tensors[0].new_empty((size, *tensors[0].shape[1:]))
            for (index, _), tensor in zip(pieces, tensors, strict=True):
                merged[index] = tensor
            return merged

        return moved(assemble, *(tensor for _, tensor in pieces))
    if isinstance(first, ArrayValue):

        def field(read: Callable[[ArrayValue], Any]) -> Any:
            parts = [(index, read(array)) for index, array in pieces]
            if (
                not any(isinstance(part, torch.Tensor) for _, part in parts)
                and len({x for _, x in parts}) == 1
            ):
                return parts[0][1]
            tensors = [(i, x if isinstance(x, torch.Tensor) else torch.tensor([x])) for i, x in parts]
            return merge_blocks([(i, x.to(torch.int64)) for i, x in tensors], size)

        return replace(
            first,
            base=field(lambda array: array.base),
            shape=tuple(field(lambda array, d=d: array.shape[d]) for d in range(len(first.shape))),  # type: ignore[misc]
            strides=tuple(field(lambda array, d=d: array.strides[d]) for d in range(len(first.strides))),  # type: ignore[misc]
        )
    if isinstance(first, ViewValue):
        return replace(first, array=merge_blocks([(index, view.array) for index, view in pieces], size))
    return first


def known(value: torch.Tensor) -> int | torch.Tensor:
    """Return a scalar tile as a number where all blocks agree."""
    return int(value.item()) if value.numel() == 1 else value


Number = TypeVar("Number", int, torch.Tensor)


def block_of(number: Number, grid: Sequence[int]) -> tuple[Number, Number, Number]:
    """Return the indices (x, y, z) of blocks by their numbers, which count along x first."""
    x, y, _ = grid
    return number % x, number // x % y, number // (x * y)
