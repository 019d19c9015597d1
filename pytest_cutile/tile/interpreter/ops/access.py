"""Loads and stores: through views of arrays, and through pointers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from pytest_cutile.tile.interpreter.analysis import named_operands
from pytest_cutile.tile.interpreter.arrays import Allocation, nested
from pytest_cutile.tile.interpreter.faults import KernelFault
from pytest_cutile.tile.interpreter.frames import Frame, blocks_beside, first_block
from pytest_cutile.tile.interpreter.ir import DYNAMIC, Op, Pointer, TensorView, Tile, TiledView
from pytest_cutile.tile.interpreter.machine import Machine, operation
from pytest_cutile.tile.interpreter.ops.shapes import numbers
from pytest_cutile.tile.interpreter.race_detector import Units
from pytest_cutile.tile.interpreter.values import (
    TOKEN,
    ArrayValue,
    ViewValue,
    dtype_of,
    itemsize_of,
    mark_undetermined,
    moved,
    of_block,
    select_blocks,
)

_PADDING = {
    "zero": 0.0,
    "neg_zero": -0.0,
    "nan": math.nan,
    "pos_inf": math.inf,
    "neg_inf": -math.inf,
    None: math.nan,  # anything may be there
}


def _fill(machine: Machine, op: Op, dtype: torch.dtype, padding: str | None) -> torch.Tensor:
    """Return what a load has outside of its array."""
    undetermined = padding is None and machine.poison_padding
    if padding is None and not undetermined:
        padding = "zero"
    fill = (
        torch.tensor(_PADDING[padding]).to(dtype) if dtype.is_floating_point else torch.zeros((), dtype=dtype)
    )
    if not undetermined:
        return fill
    origin = machine.memory.undetermined.padding(op)
    return mark_undetermined(fill, torch.tensor(origin, dtype=torch.int16))


# -- views --------------------------------------------------------------------------------------------


@operation("make_tensor_view")
def _make_tensor_view(machine: Machine, frame: Frame, op: Op) -> ArrayValue:
    (type_,) = op.result_types
    assert isinstance(type_, TensorView)
    for _, value in named_operands(op):
        machine.memory.undetermined.forbid(frame, frame[value], "makes a view by")
    shape, strides = (list(numbers(frame, op.operands[name])) for name in ("shape", "strides"))
    return ArrayValue(
        element=type_.element,
        base=frame[op.operands["base"]].reshape(-1),
        shape=tuple(shape.pop(0) if length == DYNAMIC else length for length in type_.shape),
        strides=tuple(strides.pop(0) if stride == DYNAMIC else stride for stride in type_.strides),
    )


@operation("make_partition_view", "make_strided_view", "make_gather_scatter_view")
def _make_view(_machine: Machine, frame: Frame, op: Op) -> ViewValue:
    (type_,) = op.result_types
    assert isinstance(type_, TiledView)
    return ViewValue(type=type_, array=frame[op.operands["array"]])


def _scalar(value: int | torch.Tensor) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.tensor([value])


@operation("get_tensor_shape")
def _get_tensor_shape(_machine: Machine, frame: Frame, op: Op) -> tuple[torch.Tensor, ...]:
    array = frame[op.operands["source"]]
    return tuple(
        _scalar(length).to(dtype_of(type_.element))  # type: ignore[union-attr]
        for length, type_ in zip(array.shape, op.result_types, strict=True)
    )


@operation("get_index_space_shape")
def _get_index_space_shape(_machine: Machine, frame: Frame, op: Op) -> tuple[torch.Tensor, ...]:
    view: ViewValue = frame[op.operands["source"]]
    counts = []
    for at, type_ in enumerate(op.result_types):
        assert isinstance(type_, Tile)
        length = _scalar(view.array.shape[view.type.axes[at]]).to(torch.int64)
        step = _step(view.type, at)
        counts.append(((length + step - 1) // step).to(dtype_of(type_.element)))
    return tuple(counts)


def _step(view: TiledView, axis: int) -> int:
    return view.traversal[axis] if view.kind == "strided" else view.tile_shape[axis]


class IndexedTiles:
    """Where the tiles of a view are that the blocks name by their indices."""

    def __init__(self, machine: Machine, frame: Frame, view: ViewValue, index: tuple[int, ...]) -> None:
        for value in index:
            machine.memory.undetermined.forbid(frame, frame[value], "takes as an index")
        self.frame = frame
        self.view = view
        self.dtype = dtype_of(view.array.element)
        self.itemsize = itemsize_of(view.array.element)
        self._index = [frame[value].to(torch.int64) for value in index]

    def addresses(self, machine: Machine, op: Op, verb: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the address of each element, and which are in the array (None: all).

        Raises:
            KernelFault: a tile is wholly outside of the array, or outside although the kernel denies it.
        """
        array, type_ = self.view.array, self.view.type
        dims = len(type_.tile_shape)
        address = array.base.reshape(-1, *[1] * dims)
        inside: torch.Tensor | None = None
        within_by_axis = {}
        for at, (length, axis) in enumerate(zip(type_.tile_shape, type_.axes, strict=True)):
            index = self._index[at]
            listed = type_.kind == "gather_scatter" and axis == type_.sparse_axis
            if listed:
                positions = index.reshape(index.shape[0], -1)
            else:
                first = index.reshape(-1, 1)
                first = first if type_.kind == "gather_scatter" else first * _step(type_, at)
                positions = first + torch.arange(length)
            shape = (positions.shape[0], *[1] * at, length, *[1] * (dims - at - 1))
            positions = positions.reshape(shape)
            limit = _spread(array.shape[axis], dims)
            within = (positions >= 0) & (positions < limit)
            if not within.all():
                inside = within if inside is None else inside & within
                if not listed:
                    self._check_within(machine, op, at, within, verb)
            within_by_axis[axis] = positions, within
            address = address + positions * _spread(array.strides[axis], dims) * self.itemsize
        self._check_reach(machine, within_by_axis, inside, verb)
        return address, inside

    def _check_within(self, machine: Machine, op: Op, at: int, within: torch.Tensor, verb: str) -> None:
        """Check that tiles reach into the array along an axis; of an empty slice, no element is meant."""
        denied = op.attributes.get("inbounds") or ()
        if at < len(denied) and denied[at]:
            bad, extent = ~within, "partly"
            what = "although check_bounds=False says that no tile sticks out"
        elif verb == "loads" and self.view.type.padding is not None:
            return  # cuTile's own tests rely on its being padding, whatever the documentation says
        else:
            some = self._is_empty(machine) | torch.as_tensor(
                _spread(self.view.array.shape[self.view.type.axes[at]], within.dim() - 1) > 0
            )
            bad = ~within.any(dim=at + 1, keepdim=True) & some
            extent, what = "wholly", "cuTile leaves that undefined"
        if not machine.memory.check_tiles or not bad.any():
            return
        block = first_block(self.frame, bad)
        row = int(bad.reshape(len(bad), -1).any(dim=1).nonzero()[0])
        index = [int(of_block(numbers.reshape(-1), row)) for numbers in self._index]
        shape = [
            int(of_block(length, row)) if isinstance(length, torch.Tensor) else length
            for length in self.view.array.shape
        ]
        raise KernelFault(
            "out-of-bounds",
            f"{verb} tile {index} of shape {list(self.view.type.tile_shape)}, {extent} outside of "
            f"{self._name(machine)} {shape} along axis {self.view.type.axes[at]}: {what}",
            block=block,
        )

    def _check_reach(
        self,
        machine: Machine,
        by_axis: dict[int, tuple[torch.Tensor, torch.Tensor]],
        inside: torch.Tensor | None,
        verb: str,
    ) -> None:
        """Check that a slice, as far as it is accessed, ends where its array does along every axis."""
        array = self.view.array
        views = machine.memory.views(array.base, array.strides)
        if views is None:
            return
        allocation, origin = views
        for axis, (positions, within) in by_axis.items():
            index = positions + _spread(origin[axis], len(by_axis))
            bad = within & ((index < 0) | (index >= allocation.shape[axis]))
            if not bad.any():
                continue
            bad = bad if inside is None else bad & inside
            if bad.any():
                first = int(index.expand(bad.shape)[bad][0])
                raise KernelFault(
                    "out-of-bounds",
                    f"{verb} index {first} along axis {axis} of {allocation.name}, which is "
                    f"{allocation.layout}: the slice that it goes through reaches beyond its array",
                    block=first_block(self.frame, bad),
                )

    def _is_empty(self, machine: Machine) -> bool:
        """Return whether the whole array has no elements, and not just a slice of it."""
        place = machine.memory.at(int(self.view.array.base[0]))
        return place is not None and place[0].tensor.numel() == 0

    def _name(self, machine: Machine) -> str:
        place = machine.memory.at(int(self.view.array.base[0]))
        if place is None:
            return "its array"
        allocation = place[0]
        whole = self.view.array.shape == allocation.shape
        return allocation.name if whole else f"a slice of {allocation.name}"

    def tiles(self, machine: Machine, op: Op, verb: str) -> list[_Tiles] | None:  # noqa: PLR0911 - reasons
        """Return how to see the array as tiles, by groups of blocks whose tiles end alike at its edges.

        None: blocks are to go by addresses, because they have different arrays, list positions, or may stray.
        """
        array, type_ = self.view.array, self.view.type
        place = machine.memory.at(int(array.base)) if array.base.numel() == 1 else None
        if place is None or type_.kind == "gather_scatter" or not type_.tile_shape:
            return None
        if machine.memory.observer is not None or place[0].shadow.unit != self.itemsize:
            return None  # an observer, or a shadow in smaller units, wants single elements
        shape = [length for length in array.shape if isinstance(length, int)]
        strides = [stride for stride in array.strides if isinstance(stride, int) and stride >= 0]
        if len(shape) < len(array.shape) or len(strides) < len(shape):
            return None
        allocation, start = place
        reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
        inside = allocation.start <= start and start + reach * self.itemsize <= allocation.end
        itself = tuple(shape) == allocation.shape and tuple(strides) == allocation.strides
        if start % self.itemsize or not inside or not (itself or allocation.dense):
            return None
        if not itself:
            origin = allocation.origin(torch.tensor([start]), strides)
            reaches = zip(origin or (), shape, allocation.shape, strict=False)
            if any(int(at) + length > whole for at, length, whole in reaches):
                return None  # it reaches beyond its array, maybe where nothing is accessed
        indices, extents = [], []
        denied = op.attributes.get("inbounds") or (False,) * len(type_.axes)
        padded = verb == "loads" and type_.padding is not None
        for at, (length, axis) in enumerate(zip(type_.tile_shape, type_.axes, strict=True)):
            index = self._index[at].reshape(-1)
            if bool((index < 0).any()):
                return None
            extent = (shape[axis] - index * _step(type_, at)).clamp(0, length)
            if bool((extent < length).any()) and (denied[at] or not (padded or bool(extent.all()))):
                return None  # a fault
            indices.append(index)
            extents.append(extent)
        groups = _groups_of(extents)
        if groups is None:
            return None
        steps = [_step(type_, at) * strides[axis] for at, axis in enumerate(type_.axes)]
        tiles = []
        for blocks, ends in groups:
            index = tuple(
                select_blocks(positions, blocks) if blocks is not None else positions for positions in indices
            )
            counts = [int(positions.max()) + 1 for positions in index]
            tiles.append(
                _Tiles(
                    allocation=allocation,
                    blocks=blocks,
                    first=start // self.itemsize,
                    sizes=(*counts, *ends),
                    strides=(*steps, *(strides[axis] for axis in type_.axes)),
                    index=index,
                )
            )
        return tiles


_MOST_GROUPS = 32


def _groups_of(
    extents: list[torch.Tensor],
) -> list[tuple[torch.Tensor | None, tuple[int, ...]]] | None:
    """Return which blocks (None: all) have which extents along all axes; None for too many groups."""
    if all(extent.numel() == 1 or bool((extent == extent[0]).all()) for extent in extents):
        return [(None, tuple(int(extent[0]) for extent in extents))]
    together = torch.stack(torch.broadcast_tensors(*extents), dim=1)
    ends, group = together.unique(dim=0, return_inverse=True)
    if len(ends) > _MOST_GROUPS:
        return None
    return [((group == at).nonzero().reshape(-1), tuple(end)) for at, end in enumerate(ends.tolist())]


@dataclass(frozen=True, kw_only=True)
class _Tiles:
    """An array seen as tiles, or as what its edges leave of them, and which of them each block means."""

    allocation: Allocation
    blocks: torch.Tensor | None
    """Which blocks of the frame; None: all."""
    first: int
    """The array's first element in its storage."""
    sizes: tuple[int, ...]
    """Number of tiles along each axis, then the lengths of what of them is in the array."""
    strides: tuple[int, ...]
    index: tuple[torch.Tensor, ...]

    def distinct(self, blocks: int) -> bool:
        """Return whether no two of the blocks mean tiles that share an element."""
        if not nested(self.sizes, self.strides):
            return False
        numbers = torch.zeros(1, dtype=torch.int64)
        for count, index in zip(self.sizes, self.index, strict=False):
            numbers = numbers * count + index
        return numbers.numel() == blocks and len(numbers.unique()) == blocks

    @property
    def extents(self) -> tuple[int, ...]:
        """Lengths of what of the tiles is in the array."""
        return self.sizes[len(self.index) :]

    @property
    def within(self) -> tuple[slice, ...]:
        """What of a tile is in the array."""
        return tuple(slice(extent) for extent in self.extents)

    def as_tiles(self, row: torch.Tensor) -> torch.Tensor:
        """Return a storage's elements as tiles of the array."""
        return row.as_strided(self.sizes, self.strides, self.first)

    def frame(self, frame: Frame) -> Frame:
        return frame if self.blocks is None else frame.inner(self.blocks)


def _spread(value: int | torch.Tensor, dims: int) -> int | torch.Tensor:
    return value.reshape(-1, *[1] * dims) if isinstance(value, torch.Tensor) else value


@operation("load_view_tko")
def _load_view(machine: Machine, frame: Frame, op: Op) -> tuple[torch.Tensor, Any]:
    view: ViewValue = frame[op.operands["view"]]
    target = IndexedTiles(machine, frame, view, op.operands["index"])
    tiles = target.tiles(machine, op, "loads")
    if tiles is None:
        addresses, inside = target.addresses(machine, op, "loads")
        padding = view.type.padding
        return _load(
            machine, frame, addresses, target.dtype, inside, lambda: _fill(machine, op, target.dtype, padding)
        ), TOKEN
    parts = [_load_group(machine, frame, group, target.dtype) for group in tiles]
    shape = view.type.tile_shape
    if len(tiles) == 1 and tiles[0].extents == shape:
        return parts[0], TOKEN
    count = max(len(index) for index in tiles[0].index) if len(tiles) == 1 else frame.size

    def read(padding: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        result = padding.expand(count, *shape).clone()
        for group, part in zip(tiles, parts, strict=True):
            blocks = slice(None) if group.blocks is None else group.blocks
            result[(blocks, *group.within)] = part
        return result

    return moved(read, _fill(machine, op, target.dtype, view.type.padding), *parts), TOKEN


def _load_group(machine: Machine, frame: Frame, group: _Tiles, dtype: torch.dtype) -> torch.Tensor:
    """Return what of its tiles is in the array."""
    allocation, memory = group.allocation, machine.memory
    part = moved(lambda data: group.as_tiles(data)[group.index], allocation.flat(dtype))
    if memory.races.tracks_reads(allocation.shadow):
        inner = group.frame(frame)
        distinct = allocation.shadow.track_reads and group.distinct(inner.size)
        units = Units(allocation, group.index, group.as_tiles)
        unwritten = memory.races.read_units(inner, units, None, distinct=distinct)
        if unwritten is not None:
            memory.mark_unwritten(part, unwritten, allocation, units.first_byte(unwritten))
    return part


def _load(
    machine: Machine,
    frame: Frame,
    addresses: torch.Tensor,
    dtype: torch.dtype,
    mask: torch.Tensor | None,
    fill: Callable[[], torch.Tensor],
) -> torch.Tensor:
    machine.memory.forbid_access(frame, addresses, mask)
    if mask is None or mask.all():
        return machine.memory.load(frame, addresses, dtype, None)
    shape = torch.broadcast_shapes(mask.shape, addresses.shape)
    mask = mask.expand(shape)
    loaded = machine.memory.load(frame, addresses.expand(shape), dtype, mask)
    return moved(lambda data, pad: torch.where(mask, data, pad), loaded, fill())


def _describe_store(units: Units, bad: torch.Tensor) -> str:
    return f"stores into {units.describe_first(bad)}"


@operation("store_view_tko")
def _store_view(machine: Machine, frame: Frame, op: Op) -> Any:
    view: ViewValue = frame[op.operands["view"]]
    value: torch.Tensor = frame[op.operands["value"]]
    target = IndexedTiles(machine, frame, view, op.operands["index"])
    tiles = target.tiles(machine, op, "stores")
    if tiles is None:
        addresses, inside = target.addresses(machine, op, "stores")
        machine.memory.store(frame, addresses, value, inside)
        return TOKEN
    for group in tiles:
        inner = group.frame(frame)
        index = tuple(positions.expand(inner.size) for positions in group.index)
        writers = blocks_beside(inner, len(group.extents) + 1)
        units = Units(group.allocation, index, group.as_tiles)

        def part(data: torch.Tensor, group: _Tiles = group) -> torch.Tensor:
            rows = data if group.blocks is None or len(data) == 1 else data[group.blocks]
            return rows[(slice(None), *group.within)]

        stored = moved(part, value)
        machine.memory.undetermined.forbid(inner, stored, partial(_describe_store, units))
        machine.memory.changes += 1
        machine.memory.races.write_units(
            inner,
            units,
            writers.expand(-1, *group.extents),
            distinct=group.distinct(inner.size),
        )

        def put(
            row: torch.Tensor, data: torch.Tensor, group: _Tiles = group, index: Any = index
        ) -> torch.Tensor:
            group.as_tiles(row)[index] = data
            return row

        moved(put, group.allocation.flat(target.dtype), stored)
    return TOKEN


# -- pointers -----------------------------------------------------------------------------------------


@operation("offset")
def _offset(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    (type_,) = op.result_types
    assert isinstance(type_, Tile)
    assert isinstance(type_.element, Pointer)
    itemsize = itemsize_of(type_.element.pointee)
    offset = frame[op.operands["offset"]].to(torch.int64)
    result: torch.Tensor = frame[op.operands["pointer"]] + offset * itemsize
    return result


@operation("load_ptr_tko")
def _load_ptr(machine: Machine, frame: Frame, op: Op) -> tuple[torch.Tensor, Any]:
    type_ = op.result_types[0]
    assert isinstance(type_, Tile)
    dtype = dtype_of(type_.element)
    mask, padding = op.operands["mask"], op.operands["padding"]
    return (
        _load(
            machine,
            frame,
            frame[op.operands["source"]],
            dtype,
            None if mask is None else frame[mask],
            lambda: _fill(machine, op, dtype, None) if padding is None else frame[padding],
        ),
        TOKEN,
    )


@operation("store_ptr_tko")
def _store_ptr(machine: Machine, frame: Frame, op: Op) -> Any:
    mask = None if op.operands["mask"] is None else frame[op.operands["mask"]]
    pointers = frame[op.operands["pointers"]]
    machine.memory.forbid_access(frame, pointers, mask)
    machine.memory.store(frame, pointers, frame[op.operands["value"]], mask)
    return TOKEN


@operation("make_token", "join_tokens", "memory_fence_alias_tko", "gdc_wait_tko", "gdc_launch_dependents_tko")
def _token(_machine: Machine, _frame: Frame, _op: Op) -> Any:
    return TOKEN


def accessed(machine: Machine, frame: Frame, op: Op) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the addresses of a load or store that has run, and which of them it accessed (None: all)."""
    if "view" in op.operands:
        view: ViewValue = frame[op.operands["view"]]
        verb = "loads" if op.name.startswith("load_") else "stores"
        return IndexedTiles(machine, frame, view, op.operands["index"]).addresses(machine, op, verb)
    mask = op.operands["mask"]
    addresses = frame[op.operands["source" if "source" in op.operands else "pointers"]]
    return addresses, None if mask is None else frame[mask]
