"""What a kernel's operations say before it runs: where values come from, and which arguments are written."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_cutile.tile.interpreter.faults import user_location
from pytest_cutile.tile.interpreter.ir import Block, EntryPoint, Op, Pointer, Tile

_STORES = {
    "store_view_tko": "view",
    "store_ptr_tko": "pointers",
    "atomic_red_view_tko": "view",
    "atomic_rmw_tko": "pointers",
    "atomic_cas_tko": "pointers",
}
_LEADS_TO = {
    "make_partition_view": "array",
    "make_strided_view": "array",
    "make_gather_scatter_view": "array",
    "make_tensor_view": "base",
    "assume": "value",
    "offset": "pointer",
    "broadcast": "source",
    "reshape": "source",
    "ptr_to_ptr": "source",
}
"""The operand from which what an operation returns has its address."""
_PRIVATE = ("reduce", "scan")


def every_op(block: Block) -> Iterator[Op]:
    """Yield all operations of a block and its inner blocks."""
    for op in block.ops:
        yield op
        for region in op.regions:
            yield from every_op(region)


@dataclass(frozen=True, kw_only=True)
class Definitions:
    """Which operation makes each value, as each operation sees them: blocks use a number more than once."""

    made_by: dict[tuple[int, int], Op | None]
    """By the identity of the operation that looks, and the value; None: a parameter of a block."""
    private: frozenset[int]
    """Identities of the operations inside reductions and scans, where lanes are no blocks."""
    parameters: frozenset[int]
    """Values that the kernel is launched with."""

    @classmethod
    def of(cls, entry: EntryPoint) -> Definitions:
        made_by: dict[tuple[int, int], Op | None] = {}
        private: set[int] = set()

        def walk(block: Block, around: dict[int, Op | None], *, inside_private: bool) -> None:
            visible = {**around, **dict.fromkeys(block.parameters)}
            for op in block.ops:
                for _, value in named_operands(op):
                    made_by[id(op), value] = visible.get(value)
                if inside_private:
                    private.add(id(op))
                for region in op.regions:
                    walk(region, visible, inside_private=inside_private or op.name in _PRIVATE)
                visible.update(dict.fromkeys(op.results, op))

        walk(entry.body, {}, inside_private=False)
        return cls(made_by=made_by, private=frozenset(private), parameters=frozenset(entry.body.parameters))

    def root(self, op: Op, value: int) -> int | None:
        """Return the kernel's parameter that an address comes from; None: that cannot be seen."""
        while True:
            source = self.made_by[id(op), value]
            if source is None:
                return value if value in self.parameters else None
            key = _LEADS_TO.get(source.name)
            if key is None:
                return None
            op, value = source, source.operands[key]


NOTHING_DEFINED = Definitions(made_by={}, private=frozenset(), parameters=frozenset())


def named_operands(op: Op) -> Iterator[tuple[str, int]]:
    """Yield the values that an operation takes, with the names of its operands."""
    for name, operand in op.operands.items():
        for value in operand if isinstance(operand, tuple) else (operand,):
            if value is not None:
                yield name, value


FLOW = ("if", "for", "loop")
DROP_EVERY = 64
"""Operations after which values are dropped: to give back memory at each takes a third more time."""


def last_uses(block: Block) -> dict[int, tuple[int, ...]]:
    """Return which values to drop after an operation of a block or its inner blocks: nothing needs them.

    By the identity of the operation. What a block inside of an operation takes from around it counts as used
    by that operation, so that it lasts for all iterations of a loop.
    """
    drops: dict[int, tuple[int, ...]] = {}

    def walk(block: Block) -> set[int]:
        """Return what a block takes from around it."""
        defined = set(block.parameters).union(*(op.results for op in block.ops))
        needed: set[int] = set()
        ended: list[set[int]] = []
        for op in reversed(block.ops):
            used = {value for _, value in named_operands(op)}.union(*(walk(region) for region in op.regions))
            ends = ((used | set(op.results)) & defined) - needed
            ended.append(ends)
            needed |= used
        pending: list[int] = []
        following = [*block.ops[1:], None]
        for at, (op, after, ends) in enumerate(zip(block.ops, following, reversed(ended), strict=True), 1):
            pending += ends
            if pending and (at % DROP_EVERY == 0 or (after is not None and after.name in FLOW)):
                drops[id(op)] = tuple(pending)
                pending = []
        return needed - defined

    walk(block)
    return drops


def written_parameters(entry: EntryPoint, definitions: Definitions) -> set[int] | None:
    """Return the parameters through whose addresses the kernel stores, or updates; None: maybe any."""
    written = set()
    for op in every_op(entry.body):
        if op.name in _STORES:
            root = definitions.root(op, op.operands[_STORES[op.name]])
            if root is None:
                return None
            written.add(root)
    return written


def checked_assumptions(
    entry: EntryPoint, definitions: Definitions, shapes: dict[int, tuple[int, ...]]
) -> dict[int, str]:
    """Return the assumptions whose violation is a fault, by identity, each with what it is about.

    Checked are assumptions on the kernel's parameters and those that its author wrote. Others are derived by
    cuda-tile, whose 1.7.0 derives false ones from strides along axes of length 1; these strides are left out
    as well.

    Args:
        entry: the kernel.
        definitions: of the kernel.
        shapes: the shapes of arrays, by the parameter that is their address; lengths and strides follow it.
    """
    free = {
        base + 1 + len(shape) + axis
        for base, shape in shapes.items()
        for axis, length in enumerate(shape)
        if length <= 1
    }
    subjects = {}
    for op in every_op(entry.body):
        if op.name != "assume":
            continue
        value = op.operands["value"]
        root: int | None = value
        source = definitions.made_by[id(op), value]
        while source is not None and source.name == "assume":
            value = source.operands["value"]
            source = definitions.made_by[id(source), value]
        root = value if source is None and value in definitions.parameters else None
        if root is not None and root not in free:
            subjects[id(op)] = "address" if _is_address(op) else "parameter"
        elif _was_written(op):
            subjects[id(op)] = "value"
    return subjects


def _is_address(op: Op) -> bool:
    (result_type,) = op.result_types
    return isinstance(result_type, Tile) and isinstance(result_type.element, Pointer)


def _was_written(op: Op) -> bool:
    location = user_location(op.location)
    return location is not None and "assume" in linecache.getline(location.file, location.line)
