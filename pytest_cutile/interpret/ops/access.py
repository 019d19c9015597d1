"""Loads and stores: through views of arrays, and through pointers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from pytest_cutile.interpret.ir import DYNAMIC, Op, Pointer, TensorView, Tile, TiledView
from pytest_cutile.interpret.machine import Frame, Machine, operation
from pytest_cutile.interpret.memory import Allocation
from pytest_cutile.interpret.ops.shapes import numbers
from pytest_cutile.interpret.values import TOKEN, ArrayValue, ViewValue, dtype_of, itemsize_of, moved

_PADDING = {
    "zero": 0.0,
    "neg_zero": -0.0,
    "nan": math.nan,
    "pos_inf": math.inf,
    "neg_inf": -math.inf,
    None: math.nan,  # anything may be there
}


def _fill(machine: Machine, dtype: torch.dtype, padding: str | None) -> torch.Tensor:
    if padding is None and not machine.poison_padding:
        padding = "zero"
    if dtype.is_floating_point:
        return torch.tensor(_PADDING[padding]).to(dtype)
    if padding is None and dtype != torch.bool:
        return torch.tensor(torch.iinfo(dtype).min // 3, dtype=dtype)  # no number that anybody expects
    return torch.zeros((), dtype=dtype)


# -- views --------------------------------------------------------------------------------------------


@operation("make_tensor_view")
def _make_tensor_view(_machine: Machine, frame: Frame, op: Op) -> ArrayValue:
    (kind,) = op.result_types
    assert isinstance(kind, TensorView)
    shape, strides = (list(numbers(frame, op.operands[name])) for name in ("shape", "strides"))
    return ArrayValue(
        element=kind.element,
        base=frame[op.operands["base"]].reshape(-1),
        shape=tuple(shape.pop(0) if length == DYNAMIC else length for length in kind.shape),
        strides=tuple(strides.pop(0) if stride == DYNAMIC else stride for stride in kind.strides),
    )


@operation("make_partition_view", "make_strided_view", "make_gather_scatter_view")
def _make_view(_machine: Machine, frame: Frame, op: Op) -> ViewValue:
    (kind,) = op.result_types
    assert isinstance(kind, TiledView)
    return ViewValue(type=kind, array=frame[op.operands["array"]])


def _scalar(value: int | torch.Tensor) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.tensor([value])


@operation("get_tensor_shape")
def _get_tensor_shape(_machine: Machine, frame: Frame, op: Op) -> tuple[torch.Tensor, ...]:
    array = frame[op.operands["source"]]
    return tuple(
        _scalar(length).to(dtype_of(kind.element))  # type: ignore[union-attr]
        for length, kind in zip(array.shape, op.result_types, strict=True)
    )


@operation("get_index_space_shape")
def _get_index_space_shape(_machine: Machine, frame: Frame, op: Op) -> tuple[torch.Tensor, ...]:
    view: ViewValue = frame[op.operands["source"]]
    counts = []
    for at, kind in enumerate(op.result_types):
        assert isinstance(kind, Tile)
        length = _scalar(view.array.shape[view.type.axes[at]]).to(torch.int64)
        step = _step(view.type, at)
        counts.append(((length + step - 1) // step).to(dtype_of(kind.element)))
    return tuple(counts)


def _step(view: TiledView, axis: int) -> int:
    return view.traversal[axis] if view.kind == "strided" else view.tile_shape[axis]


class Target:
    """Where the tiles of a view are that the blocks name by their indices."""

    def __init__(self, frame: Frame, view: ViewValue, index: tuple[int, ...]) -> None:
        self.frame = frame
        self.view = view
        self.dtype = dtype_of(view.array.element)
        self.itemsize = itemsize_of(view.array.element)
        self._index = [frame[value].to(torch.int64) for value in index]

    def addresses(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the address of each element, and which are in the array (None: all)."""
        array, kind = self.view.array, self.view.type
        dims = len(kind.tile_shape)
        address = array.base.reshape(-1, *[1] * dims)
        inside: torch.Tensor | None = None
        for at, (length, axis) in enumerate(zip(kind.tile_shape, kind.axes, strict=True)):
            index = self._index[at]
            if kind.kind == "gather_scatter" and axis == kind.sparse_axis:
                positions = index.reshape(index.shape[0], -1)
            else:
                first = index.reshape(-1, 1)
                first = first if kind.kind == "gather_scatter" else first * _step(kind, at)
                positions = first + torch.arange(length)
            shape = (positions.shape[0], *[1] * at, length, *[1] * (dims - at - 1))
            positions = positions.reshape(shape)
            limit = _spread(array.shape[axis], dims)
            within = (positions >= 0) & (positions < limit)
            if not within.all():
                inside = within if inside is None else inside & within
            address = address + positions * _spread(array.strides[axis], dims) * self.itemsize
        return address, inside

    def tiles(self, machine: Machine) -> _WholeTiles | None:
        """Return how to see the array as whole tiles, if all tiles that are meant are whole and in bounds."""
        array, kind = self.view.array, self.view.type
        found = machine.memory.at(int(array.base)) if array.base.numel() == 1 else None
        if found is None or kind.kind == "gather_scatter" or not kind.tile_shape:
            return None
        shape = [length for length in array.shape if isinstance(length, int)]
        strides = [stride for stride in array.strides if isinstance(stride, int) and stride >= 0]
        if len(shape) < len(array.shape) or len(strides) < len(shape):
            return None
        allocation, start = found
        reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
        inside = allocation.start <= start and start + reach * self.itemsize <= allocation.end
        if start % self.itemsize or not allocation.dense or not inside:
            return None
        counts, outer, inner, indices = [], [], [], []
        for at, (length, axis) in enumerate(zip(kind.tile_shape, kind.axes, strict=True)):
            step = _step(kind, at)
            count = (shape[axis] - length) // step + 1
            index = self._index[at].reshape(-1)
            if count < 1 or int(index.min()) < 0 or int(index.max()) >= count:
                return None
            counts.append(count)
            outer.append(step * strides[axis])
            inner.append(strides[axis])
            indices.append(index)
        return _WholeTiles(
            allocation=allocation,
            first=start // self.itemsize,
            sizes=(*counts, *kind.tile_shape),
            strides=(*outer, *inner),
            index=tuple(indices),
        )


@dataclass(frozen=True, kw_only=True)
class _WholeTiles:
    """An array seen as tiles, and which of them each block means."""

    allocation: Allocation
    first: int
    """The array's first element in its storage."""
    sizes: tuple[int, ...]
    """Number of tiles along each axis, then their lengths."""
    strides: tuple[int, ...]
    index: tuple[torch.Tensor, ...]

    def see(self, row: torch.Tensor) -> torch.Tensor:
        """Return a storage's elements as tiles of the array."""
        return row.as_strided(self.sizes, self.strides, self.first)


def _spread(value: int | torch.Tensor, dims: int) -> int | torch.Tensor:
    return value.reshape(-1, *[1] * dims) if isinstance(value, torch.Tensor) else value


@operation("load_view_tko")
def _load_view(machine: Machine, frame: Frame, op: Op) -> tuple[torch.Tensor, Any]:
    view: ViewValue = frame[op.operands["view"]]
    target = Target(frame, view, op.operands["index"])
    whole = target.tiles(machine)
    if whole is not None:
        shadow = whole.allocation.shadow
        if shadow.unwritten or shadow.touched:
            writers = whole.see(shadow.writers)[whole.index]
            machine.memory.check_read(frame, whole.allocation, writers, None)
        row = whole.allocation.flat(target.dtype)
        return moved(lambda data: whole.see(data)[whole.index], row), TOKEN
    addresses, inside = target.addresses()
    return _load(
        machine, frame, addresses, target.dtype, inside, _fill(machine, target.dtype, view.type.padding)
    ), TOKEN


def _load(
    machine: Machine,
    frame: Frame,
    addresses: torch.Tensor,
    dtype: torch.dtype,
    mask: torch.Tensor | None,
    fill: torch.Tensor,
) -> torch.Tensor:
    if mask is None or mask.all():
        return machine.memory.load(frame, addresses, dtype, None)
    shape = torch.broadcast_shapes(mask.shape, addresses.shape)
    mask = mask.expand(shape)
    found = machine.memory.load(frame, addresses.expand(shape), dtype, mask)
    return moved(lambda data, pad: torch.where(mask, data, pad), found, fill)


@operation("store_view_tko")
def _store_view(machine: Machine, frame: Frame, op: Op) -> Any:
    view: ViewValue = frame[op.operands["view"]]
    value: torch.Tensor = frame[op.operands["value"]]
    target = Target(frame, view, op.operands["index"])
    whole = target.tiles(machine)
    if whole is not None:
        dims = len(view.type.tile_shape)
        index = tuple(each.expand(frame.size) for each in whole.index)
        writers = frame.blocks.to(torch.int32).reshape(-1, *[1] * dims).expand(-1, *view.type.tile_shape)
        machine.memory.claim(frame, whole.allocation, whole.see, index, writers)

        def put(row: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
            whole.see(row)[index] = data
            return row

        moved(put, whole.allocation.flat(target.dtype), value)
        return TOKEN
    addresses, inside = target.addresses()
    machine.memory.store(frame, addresses, value, inside)
    return TOKEN


# -- pointers -----------------------------------------------------------------------------------------


@operation("offset")
def _offset(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    (kind,) = op.result_types
    assert isinstance(kind, Tile)
    assert isinstance(kind.element, Pointer)
    itemsize = itemsize_of(kind.element.pointee)
    offset = frame[op.operands["offset"]].to(torch.int64)
    result: torch.Tensor = frame[op.operands["pointer"]] + offset * itemsize
    return result


@operation("load_ptr_tko")
def _load_ptr(machine: Machine, frame: Frame, op: Op) -> tuple[torch.Tensor, Any]:
    kind = op.result_types[0]
    assert isinstance(kind, Tile)
    dtype = dtype_of(kind.element)
    mask, padding = op.operands["mask"], op.operands["padding"]
    fill = _fill(machine, dtype, None) if padding is None else frame[padding]
    return (
        _load(
            machine, frame, frame[op.operands["source"]], dtype, None if mask is None else frame[mask], fill
        ),
        TOKEN,
    )


@operation("store_ptr_tko")
def _store_ptr(machine: Machine, frame: Frame, op: Op) -> Any:
    mask = op.operands["mask"]
    machine.memory.store(
        frame,
        frame[op.operands["pointers"]],
        frame[op.operands["value"]],
        None if mask is None else frame[mask],
    )
    return TOKEN


@operation("make_token", "join_tokens", "memory_fence_alias_tko", "gdc_wait_tko", "gdc_launch_dependents_tko")
def _token(_machine: Machine, _frame: Frame, _op: Op) -> Any:
    return TOKEN
