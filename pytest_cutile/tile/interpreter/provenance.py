"""Records which block and which line of a kernel wrote each element, and the tiles that it came from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from pytest_cutile.tile.interpreter.analysis import every_op, named_operands
from pytest_cutile.tile.interpreter.arrays import Access, Allocation
from pytest_cutile.tile.interpreter.faults import Occurrence, excerpt, user_location
from pytest_cutile.tile.interpreter.formatting import plain_name, show_number, show_row, summary
from pytest_cutile.tile.interpreter.frames import Frame, blocks_beside
from pytest_cutile.tile.interpreter.ir import Block, EntryPoint, Location, Op
from pytest_cutile.tile.interpreter.machine import Machine
from pytest_cutile.tile.interpreter.nonfinite_origin import element_of
from pytest_cutile.tile.interpreter.ops.access import accessed
from pytest_cutile.tile.interpreter.values import tile_of_block

LEVELS = 2
"""Operations to walk back from a store; those that only move or convert elements are not counted."""
MAX_TILES = 24
"""Tiles to keep for each store."""
MAX_BYTES = 1 << 29
"""Bytes of all kept tiles together; stores after that are remembered without."""

_FREE = {"reshape", "broadcast", "permute", "ftof", "assume", "exti", "trunci", "bitcast"}
_FLOW = {"for": "last iteration", "loop": "last iteration", "if": "branch"}
"""What to call that with which they ended."""
_ENDS = {*_FLOW, "load_view_tko", "load_ptr_tko", "constant", "iota", "get_tile_block_id"}

Position = tuple[int | None, ...]
"""Index of an element of a tile; None stands for a whole axis."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TracedTile:
    """A tile that an element came from."""

    depth: int
    """Steps back from the store."""
    role: str
    """Which operand of the step before: "lhs"."""
    op: str
    """Name of the operation in Tile IR that made it; empty: it is a parameter of the kernel or of a loop."""
    location: Location | None
    """Where, in the user's source."""
    type: str
    """Shape and dtype: "tile<64x1xf32>"."""
    tile: torch.Tensor
    """The value in the block that wrote the element, `[*shape]`."""
    position: Position | None
    """What the element was made of; None: that cannot be said."""
    source: str
    """Element of an array that was loaded: "X[3, 5]"; empty if it is none."""

    def __str__(self) -> str:
        if self.op == "constant" and (self.tile == self.tile.reshape(-1)[0]).all():
            return f"{self.role} = {show_number(self.tile.reshape(-1)[0])}"
        place = f" at {self.location}" if self.location else ""
        name = plain_name(self.op) if self.op else "parameter"
        text = f"{self.role} = {name}{place}: {self.type}, {summary(self.tile)}"
        if self.position is not None:
            text += f"; [{', '.join(':' if at is None else str(at) for at in self.position)}] = "
            text += _show_at(self.tile, self.position)
        return text + (f", loaded from {self.source}" if self.source else "")


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace(Occurrence):
    """The last store to an element of an array, and how that came to be."""

    block: tuple[int, int, int]
    element: str
    """The element by the name of the kernel's argument: "Y[3, 5]"."""
    tiles: tuple[TracedTile, ...]
    """What was stored, then what that was made of; empty if it was not kept."""

    def __str__(self) -> str:
        loops = f", iteration {', '.join(map(str, self.iterations))} of its loop" if self.iterations else ""
        text = f"{self.kernel} wrote {self.element} last in block {self.block}{loops}"
        text += excerpt(self.location)
        return "\n".join([text, *(f"  {'  ' * tile.depth}{tile}" for tile in self.tiles)])


@dataclass(eq=False, kw_only=True)
class _Node:
    """A tile of all blocks of a store, and what it was made of."""

    role: str
    op: Op | None
    type: str
    tile: torch.Tensor
    loaded: tuple[torch.Tensor, torch.Tensor | None] | None = None
    children: list[_Node] = field(default_factory=list)
    last: Sequence[tuple[list[int], _Node]] = ()
    """What a loop or branch ended with, by blocks; the last entry that has a block counts."""


Ended: TypeAlias = dict[tuple[int, int], list[tuple[list[int], _Node]]]
"""What loops and branches ended with, by them and their result; see `_Node.last`."""


@dataclass(eq=False, kw_only=True)
class _Store:
    machine: Machine
    launch: int
    op: Op
    iterations: tuple[int, ...]
    blocks: torch.Tensor
    allocation: Allocation
    elements: torch.Tensor | None
    chosen: torch.Tensor | None
    """Which elements were stored; None: all. The others have addresses, too, maybe those of a neighbour."""
    value: _Node | None


@dataclass(eq=False)
class _Record:
    """The last store to each unit of a storage, by its number; -1: none."""

    storage: torch.UntypedStorage  # kept, so that its identity stays its own
    unit: int
    stores: torch.Tensor
    blocks: torch.Tensor


class Provenance:
    """Follows stores."""

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}
        self._stores: list[_Store] = []
        self._machine: Machine | None = None
        self._launch = -1
        self._bytes = 0
        self._ends: dict[int, list[tuple[Op, int, Op, int]]] = {}
        """Loop, place among its results, end and value, by what makes a value that iterations end with."""
        self._before: dict[tuple[int, int], tuple[Op, int]] = {}
        """What was made before a loop or branch: end and value, by the loop or branch and the place."""
        self._running: dict[tuple[int, int], list[tuple[list[int], Frame, Op, int]]] = {}
        self._ended: Ended = {}

    def begin_launch(self, machine: Machine, entry: EntryPoint) -> None:
        self._machine = machine
        self._launch += 1
        self._ends, self._before, self._running, self._ended = {}, {}, {}, {}
        for flow in every_op(entry.body):
            if flow.name not in _FLOW or id(flow) in machine.definitions.private:
                continue
            inside = {id(op) for region in flow.regions for op in every_op(region)}
            for at in range(len(flow.results)):
                before = []
                for end, value in _endings(flow, at):
                    source = machine.definitions.made_by.get((id(end), value))
                    if source is not None and id(source) in inside:
                        self._ends.setdefault(id(source), []).append((flow, at, end, value))
                    else:
                        before.append((end, value))
                if len(before) == 1:  # of two that were there before, nothing tells which one was taken
                    self._before[id(flow), at] = before[0]

    def ran(self, machine: Machine, frame: Frame, op: Op) -> None:
        for loop, at, end, value in self._ends.get(id(op), ()):
            blocks = frame.blocks.tolist()
            running = self._running.setdefault((id(loop), at), [])
            running[:] = [entry for entry in running if not set(entry[0]) <= set(blocks)]
            running.append((blocks, frame, end, value))
        if op.name in _FLOW:
            for at, result in enumerate(op.results):
                runs = self._running.pop((id(op), at), [])
                if (before := self._before.get((id(op), at))) is not None:
                    runs.insert(0, (frame.blocks.tolist(), frame, *before))
                self._ended[id(op), result] = [
                    (blocks, _walk(machine, inside, end, _FLOW[op.name], value, self._ended))
                    for blocks, inside, end, value in runs
                    if self._bytes < MAX_BYTES and isinstance(inside[value], torch.Tensor)
                ]

    def stored(self, frame: Frame, access: Access) -> None:
        machine = self._machine
        assert machine is not None
        op = machine.memory.races.op
        assert op is not None
        value = op.operands.get("value")
        node = None
        allocation, chosen = access.allocation, access.lanes
        shape = (frame.size, *access.elements.shape[1:])
        elements = access.elements.expand(shape)
        if value is not None and self._bytes < MAX_BYTES:
            node = _walk(machine, frame, op, "value", value, self._ended)
            self._bytes += sum(part.tile.numel() * part.tile.element_size() for part in _all(node))
            self._bytes += elements.numel() * elements.element_size()
        self._stores.append(
            _Store(
                machine=machine,
                launch=self._launch,
                op=op,
                iterations=tuple(machine.iterations),
                blocks=frame.blocks,
                allocation=allocation,
                elements=elements if node is not None else None,
                chosen=chosen.expand(shape) if node is not None and chosen is not None else None,
                value=node,
            )
        )
        record = self._record(allocation)
        per_element = allocation.itemsize // record.unit
        blocks = blocks_beside(frame, len(shape)).expand(shape)
        if chosen is not None:
            elements, blocks = elements[chosen.expand(shape)], blocks[chosen.expand(shape)]
        units = (elements[..., None] * per_element + torch.arange(per_element)).reshape(-1, per_element)
        record.stores[units] = len(self._stores) - 1
        record.blocks[units] = blocks.reshape(-1, 1)

    def _record(self, allocation: Allocation) -> _Record:
        storage = allocation.tensor.untyped_storage()
        key, unit = storage._cdata, allocation.shadow.unit  # noqa: SLF001
        record = self._records.get(key)
        if record is None:
            size = -(-allocation.storage_bytes // unit)
            rows = (torch.full((size,), -1, dtype=torch.int32) for _ in range(2))
            record = self._records[key] = _Record(storage, unit, *rows)
        elif record.unit > unit:
            factor = record.unit // unit
            rows = (row.repeat_interleave(factor) for row in (record.stores, record.blocks))
            record = self._records[key] = _Record(storage, unit, *rows)
        return record

    def trace(self, tensor: torch.Tensor, index: tuple[int, ...]) -> Trace:
        """Return how an element came to be.

        Raises:
            LookupError: no kernel has written it, or there is no such element.
        """
        if len(index) != tensor.dim() or not all(
            0 <= at < length for at, length in zip(index, tensor.shape, strict=True)
        ):
            raise LookupError(f"there is no element {list(index)} in a tensor of shape {list(tensor.shape)}")
        record = self._records.get(tensor.untyped_storage()._cdata)  # noqa: SLF001
        element = int(tensor.storage_offset()) + sum(
            at * stride for at, stride in zip(index, tensor.stride(), strict=True)
        )
        offset = int(element) * tensor.element_size()
        number = -1 if record is None else int(record.stores[offset // record.unit])
        if record is None or number < 0:
            raise LookupError(f"no kernel has written element {list(index)}")
        store = self._stores[number]
        block = int(record.blocks[offset // record.unit])
        row = store.blocks.tolist().index(block)
        tiles: list[TracedTile] = []
        if store.value is not None and store.elements is not None:
            target = offset // store.allocation.itemsize
            where = store.elements[row] == target
            if store.chosen is not None:
                where = where & store.chosen[row]
            position = _first(where.nonzero(), store.value.tile.shape[1:])
            _collect(tiles, store, store.value, block, row, position, 0)
        return Trace(
            launch=store.launch,
            kernel=store.machine.kernel,
            block=store.machine.block_of(block),
            op=store.op.name,
            location=user_location(store.op.location),
            iterations=store.iterations,
            element=store.allocation.describe(offset),
            tiles=tuple(tiles),
        )

    def writers(self, tensor: torch.Tensor) -> str:
        """Return which lines of kernels wrote a tensor's elements last, and from which blocks."""
        record = self._records.get(tensor.untyped_storage()._cdata)  # noqa: SLF001
        blocks_at: dict[tuple[str, Location | None], list[int]] = {}
        places: dict[tuple[str, Location | None], Machine] = {}
        if record is not None:
            elements = torch.arange(len(record.stores) * record.unit // tensor.element_size())
            seen = elements.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            units = seen.reshape(-1).unique() * tensor.element_size() // record.unit
            pairs = torch.stack([record.stores[units], record.blocks[units]], dim=1).unique(dim=0)
            for number, block in pairs[pairs[:, 0] >= 0].tolist():
                store = self._stores[number]
                key = store.machine.kernel, user_location(store.op.location)
                places[key] = store.machine
                blocks_at.setdefault(key, []).append(block)
        lines = []
        for (kernel, location), blocks in blocks_at.items():
            machine = places[kernel, location]
            first, last = (machine.block_of(block) for block in (min(blocks), max(blocks)))
            count, grid = len(set(blocks)), math.prod(machine.grid)
            some = f"all {grid}" if count == grid else f"{count} of {grid}"
            who = f"{some} blocks, {first} to {last}," if count > 1 else f"block {first} of {grid}"
            lines.append(f"{kernel}: {who} stored into it{excerpt(location)}")
        return "\n".join(lines) or "no kernel has stored into it"


def _endings(flow: Op, at: int) -> list[tuple[Op, int]]:
    """Return with what a loop or a branch may end, for one of its results: operations and their operands."""
    if flow.name != "loop":
        ends = [region.ops[-1] for region in flow.regions]
        return [(end, end.operands["values"][at]) for end in ends if end.operands.get("values")]
    [body] = flow.regions
    endings = []
    for end in _exits(body, "break"):
        value = end.operands["values"][at]
        if value in body.parameters:  # it is what the iteration before went on with
            place = body.parameters.index(value)
            endings += [(again, again.operands["values"][place]) for again in _exits(body, "continue")]
        else:
            endings.append((end, value))
    return endings


def _exits(block: Block, name: str) -> Iterator[Op]:
    for op in block.ops:
        if op.name == name:
            yield op
        elif op.name not in {"loop", "for"}:  # those of a loop inside are its own
            for region in op.regions:
                yield from _exits(region, name)


def _first(where: torch.Tensor, shape: tuple[int, ...]) -> Position | None:
    if not len(where) or where.shape[1] != len(shape):
        return None
    return tuple(min(int(at), length - 1) for at, length in zip(where[-1], shape, strict=True))


def _walk(machine: Machine, frame: Frame, op: Op, role: str, value: int, ended: Ended) -> _Node:
    """Return the tiles that a value was made of."""
    count = 0

    def visit(user: Op, role: str, value: int, levels: int) -> _Node | None:
        nonlocal count
        tile = frame[value]
        if not isinstance(tile, torch.Tensor) or count >= MAX_TILES:
            return None
        count += 1
        source = machine.definitions.made_by.get((id(user), value))
        type_ = _type_of(source, value, tile)
        node = _Node(role=role, op=source, type=type_, tile=tile)
        if source is None or source.name in _ENDS:
            if source is not None and source.name in _FLOW:
                node.last = ended.get((id(source), value), ())
            if source is not None and source.name.startswith("load_"):
                node.loaded = accessed(machine, frame, source)
            return node
        left = levels if source.name in _FREE else levels - 1
        if left >= 0:
            for name, operand in named_operands(source):
                child = visit(source, name, operand, left)
                if child is not None:
                    node.children.append(child)
        return node

    root = visit(op, role, value, LEVELS)
    assert root is not None
    return root


def _type_of(source: Op | None, value: int, tile: torch.Tensor) -> str:
    if source is None:
        return f"{list(tile.shape[1:])} {str(tile.dtype).removeprefix('torch.')}"
    return str(source.result_types[source.results.index(value)])


def _all(node: _Node) -> list[_Node]:
    below = [*node.children, *(last for _, last in node.last)]
    return [node, *(part for child in below for part in _all(child))]


def _collect(
    tiles: list[TracedTile],
    store: _Store,
    node: _Node,
    block: int,
    row: int,
    position: Position | None,
    depth: int,
) -> None:
    """List what a node and those below it were in one block."""
    tile = tile_of_block(node.tile, row)
    source = ""
    if (constant := _constant(node)) is not None:
        node = _Node(role=node.role, op=constant, type=node.type, tile=node.tile)
    for blocks, last in reversed(node.last):
        if block in blocks:
            below = blocks.index(block), last
            break
    else:
        below = None
    if node.loaded is not None and position is not None and None not in position:
        source = _loaded_from(store, node, row, [at or 0 for at in position])
    tiles.append(
        TracedTile(
            depth=depth,
            role=node.role,
            op=node.op.name if node.op else "",
            location=user_location(node.op.location) if node.op else None,
            type=node.type,
            tile=tile,
            position=position,
            source=source,
        )
    )
    for child in node.children:
        assert node.op is not None
        before = None
        if position is not None:
            before = _position_before(node.op, child, position, tuple(tile.shape))
        _collect(tiles, store, child, block, row, before, depth + 1)
    if below is not None:
        _collect(tiles, store, below[1], block, below[0], position, depth + 1)


def _constant(node: _Node) -> Op | None:
    """Return the operation that made a constant, if a tile is nothing but that, moved or converted."""
    while node.op is not None and node.op.name in _FREE and len(node.children) == 1:
        [node] = node.children
    return node.op if node.op is not None and node.op.name == "constant" else None


def _loaded_from(store: _Store, node: _Node, row: int, position: Sequence[int]) -> str:
    assert node.loaded is not None
    addresses, inside = node.loaded
    if inside is not None and not bool(element_of(inside, row, position)):
        return "padding"
    return store.machine.memory.describe(int(element_of(addresses, row, position)))


def _position_before(  # noqa: PLR0911 - one for each sort of operation
    op: Op, child: _Node, position: Position, shape: tuple[int, ...]
) -> Position | None:
    """Return where in an operand an element of a result came from."""
    lengths = tuple(child.tile.shape[1:])
    if op.name == "permute":
        before: list[int | None] = [None] * len(lengths)
        for axis, at in zip(op.attributes["permutation"], position, strict=True):
            before[axis] = at
        return tuple(before)
    if op.name == "broadcast":
        return tuple(None if at is None else min(at, n - 1) for at, n in zip(position, lengths, strict=True))
    if op.name == "reshape":
        flat = 0
        for at, length in zip(position, shape, strict=True):
            if at is None:
                return None
            flat = flat * length + at
        index = []
        for length in reversed(lengths):
            flat, at = divmod(flat, length)
            index.append(at)
        return tuple(reversed(index))
    if op.name in {"mmaf", "mmai"}:
        if child.role == "acc":
            return position
        return (*position[:-1], None) if child.role == "lhs" else (*position[:-2], None, position[-1])
    if op.name in {"reduce", "scan"}:
        axis = op.attributes["axis"]
        after = position[axis + 1 :] if op.name == "scan" else position[axis:]
        return (*position[:axis], None, *after)
    if op.name in {"cat", "extract", "insert"}:
        return None
    return position if lengths == shape else None


def _show_at(tile: torch.Tensor, position: Position) -> str:
    if position.count(None) > 1:
        return summary(tile)
    part = tile[tuple(slice(None) if at is None else at for at in position)]
    return show_row(part) if None in position else show_number(part)
