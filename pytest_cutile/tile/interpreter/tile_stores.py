"""Which tiles a launch stores that stick out of an array: known from the launch, without running it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pytest_cutile.tile.compiler.job import CompileJob
from pytest_cutile.tile.compiler.parameters import ARRAY_BITS, LaunchParameters
from pytest_cutile.tile.interpreter.executed import accesses_of
from pytest_cutile.tile.interpreter.ir import Location
from pytest_cutile.tile.interpreter.reuse import CountedAccess
from pytest_cutile.tile.interpreter.scopes import known
from pytest_cutile.tile.interpreter.values import ArrayValue, ViewValue, itemsize_of

_OPERATIONS = {"store_view_tko": "store", "atomic_red_view_tko": "atomic"}


@dataclass(frozen=True, kw_only=True)
class TileStore:
    """One operation of a kernel that stores tiles of an array, all its blocks together."""

    operation: str
    """"store" or "atomic"."""
    places: tuple[tuple[str, int], ...]
    """File and line of the operation, then those of its callers."""
    parameter: str
    """The kernel's parameter that the array is, or "" where that is not known."""
    item_bytes: int = 0
    end_bytes: int = 0
    """Where the array ends, in bytes behind the start of the argument."""
    memory_bytes: int = 0
    """Where the memory of the argument ends, counted likewise."""
    sticks_out: bool = False
    """Whether it is sure that a tile with the array's last element is stored, and goes beyond that."""

    def bytes_past(self, piece_bytes: int) -> int:
        """Return how many bytes behind the memory are written if stores write whole pieces."""
        written_to = -(-self.end_bytes // piece_bytes) * piece_bytes
        return max(0, written_to - max(self.end_bytes, self.memory_bytes)) if self.sticks_out else 0


def tile_stores(job: CompileJob, launch: LaunchParameters) -> list[TileStore]:
    """Return what a launch stores through tiled views; nothing where its loops depend on data."""
    return [_store(access, launch) for access in accesses_of(job, launch) if access.op.name in _OPERATIONS]


def may_go_past(launch: LaunchParameters, piece_bytes: int) -> bool:
    """Say whether the memory of an argument ends within a piece; to find its `tile_stores` takes longer."""
    return any(size % piece_bytes for size in launch.memory_bytes)


def _store(access: CountedAccess, launch: LaunchParameters) -> TileStore:
    operation, places = _OPERATIONS[access.op.name], tuple(_places(access.op.location))
    view = known(access.scope, access.op.operands["view"])
    numbers = _numbers(view.array) if isinstance(view, ViewValue) else None
    if numbers is None:
        return TileStore(operation=operation, places=places, parameter="")
    address, shape, strides = numbers
    at, offset = (address >> ARRAY_BITS) - 1, address & ((1 << ARRAY_BITS) - 1)
    item_bytes = itemsize_of(view.array.element)
    last = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    return TileStore(
        operation=operation,
        places=places,
        parameter=launch.names[at],
        item_bytes=item_bytes,
        end_bytes=offset + (last + 1) * item_bytes,
        memory_bytes=launch.memory_bytes[at],
        sticks_out=access.is_certain and _sticks_out(access, view, shape, strides),
    )


def _sticks_out(
    access: CountedAccess, view: ViewValue, shape: tuple[int, ...], strides: tuple[int, ...]
) -> bool:
    """Say whether a tile with the last element goes beyond it along an axis of stride 1."""
    if view.type.kind == "gather_scatter":
        return False
    rows = access.weight > 0
    has_last, goes_beyond = rows.clone(), torch.zeros_like(rows)
    for at, (axis, length) in enumerate(zip(view.type.axes, view.type.tile_shape, strict=True)):
        index = known(access.scope, access.op.operands["index"][at])
        if index is None:
            return False
        step = view.type.traversal[at] if view.type.kind == "strided" else length
        first = index.reshape(-1).long() * step
        has_last &= (first < shape[axis]) & (first + length >= shape[axis])
        if strides[axis] == 1:
            goes_beyond |= first + length > shape[axis]
    return bool((has_last & goes_beyond).any())


def _numbers(array: ArrayValue) -> tuple[int, tuple[int, ...], tuple[int, ...]] | None:
    """Return address, shape and strides of an array; None where it is empty, or differs by block."""
    values = [array.base, *array.shape, *array.strides]
    if any(isinstance(value, torch.Tensor) and len(value.unique()) != 1 for value in values):
        return None
    address, *sizes = (int(torch.as_tensor(value).reshape(-1)[0]) for value in values)
    shape, strides = sizes[: len(array.shape)], sizes[len(array.shape) :]
    return (address, tuple(shape), tuple(strides)) if all(length > 0 for length in shape) else None


def _places(location: Location | None) -> Iterator[tuple[str, int]]:
    while location is not None:
        yield location.file, location.line
        location = location.caller
