"""Counts what a launch would execute: operations, weighted by how often loops run them.

Numbers that follow from the launch (block numbers, shapes, constants) are computed by the interpreter's own
operations, where a loop's bounds, a branch or an address asks for them: of all passes of all blocks at once,
addresses of some. What depends on data in memory is unknown, and so is the count of a kernel with such a
loop.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from pytest_cutile.tile.compiler.job import CompileJob
from pytest_cutile.tile.compiler.parameters import ARRAY_BITS, LaunchParameters
from pytest_cutile.tile.interpreter.analysis import every_op
from pytest_cutile.tile.interpreter.ir import Block, Op, Pointer, Tile, Type
from pytest_cutile.tile.interpreter.launch import read_program
from pytest_cutile.tile.interpreter.machine import OPS, Machine
from pytest_cutile.tile.interpreter.memory import Memory
from pytest_cutile.tile.interpreter.reader import UnknownBytecode
from pytest_cutile.tile.interpreter.reuse import CountedAccess, Span, bytes_from_memory, tiles_of
from pytest_cutile.tile.interpreter.scopes import (
    PASS,
    Maker,
    Scope,
    Unknown,
    choose,
    computed,
    computed_inside,
    get,
    get_outer,
    in_line,
    known,
    unknown,
)
from pytest_cutile.tile.interpreter.values import ViewValue, itemsize_of
from pytest_cutile.words.platforms.data import Platform
from pytest_cutile.words.platforms.lookup import stand_in

if TYPE_CHECKING:
    from pytest_cutile.tile.interpreter.frames import Frame

SECTOR_BYTES = 32
"""What memory moves at least (CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory")."""
_MOST_BLOCKS = 2**20
"""Blocks that are looked at; of more, a sample."""
_MOST_PASSES = 2**22
"""Passes of a loop, of all blocks together, that are looked at; of more, a sample with some of each block, by
which blocks that walk backwards may seem to share less than they do."""
_SAMPLE = 32
"""Passes of blocks whose tiles of indices are computed."""
_MOST_INDICES = 2**22
"""Elements of these tiles together, above which one of them has to do, and none is computed."""
_EVEN = 1.01
"""By how much the busiest block may exceed the mean of all where blocks count as equal."""
_GUESSED = 2**20
"""Numbers that memory may hold, where they are indices."""
_GOLDEN = (math.sqrt(5) - 1) / 2
_STEPS_IN_DOUBLE = 30

# Operations of each pipe for one element; "special" is the special function unit. A function
# of float64 is a polynomial of about 30 steps instead.
_SPECIAL = {
    **{name: {"special": 1, "fp32": 1} for name in ("exp2", "log2", "rsqrt")},
    "tanh": {"special": 2, "fp32": 12},  # two ways of computing it, of which each element takes one
    **{name: {"special": 1, "fp32": 3} for name in ("exp", "log", "sin", "cos", "sqrt")},
    **{name: {"special": 2, "fp32": 8} for name in ("divf", "tan", "sinh", "cosh", "fpowf", "atan2", "remf")},
}
_APPROXIMATE = {"special": 1, "fp32": 2}
"""Instructions of an approximately rounded division or root (PTX ISA: div.approx, sqrt.approx)."""
_FLOAT = {"addf", "subf", "mulf", "fma", "maxf", "minf", "absf", "negf", "cmpf", "ceil", "floor", "fpowi"}
_INTEGER = {
    **dict.fromkeys(("addi", "subi", "andi", "ori", "xori", "shli", "shri", "maxi", "mini", "cmpi"), 1),
    **dict.fromkeys(("absi", "negi", "muli", "mulhii", "select"), 1),
    **dict.fromkeys(("divi", "remi"), 20),
    "offset": 2,  # an address has 64 bits
}
_CONVERSIONS = {"ftof", "ftoi", "itof"}
_MOVES = {"broadcast", "reshape", "permute", "constant", "iota", "cat", "extract", "insert", "bitcast"}
_LOADS = {"load_view_tko": "view", "load_ptr_tko": "source"}
_STORES = {
    "store_view_tko": "view",
    "atomic_red_view_tko": "view",
    "store_ptr_tko": "pointers",
    "atomic_rmw_tko": "pointers",
    "atomic_cas_tko": "pointers",
}


class _UnknownTrips(Exception):  # noqa: N818 - no error
    """How often a loop runs depends on data."""


def count_executed(job: CompileJob, launch: LaunchParameters) -> dict[str, int] | None:
    """Return what all blocks execute together.

    None where a loop depends on data, or the bytecode is not known.

    "fp32", "fp64", "special", "integer", "conversion": operations. "mma f16": what products multiply and
    add, by Tile IR's name of the operands' type. "products": tiles that are multiplied.
    "smaller_operand_bytes": the smaller of the two tiles of each product.
    "accesses": elements loaded and stored through pointers. "moved_bytes": 32-byte sectors loaded and stored,
    tile by tile. "touched_bytes": what of it comes from memory, not from the L2, and what else is in these
    sectors. "bytes_in_flight": that one block can load at the same time. "busiest fp32": what the block with
    most of it executes, where blocks differ.
    """
    if not (blocks := math.prod(launch.grid)):
        return {}
    counting = _walk_launch(job, launch)
    return None if counting is None else counting.totals(blocks)


def accesses_of(job: CompileJob, launch: LaunchParameters) -> list[CountedAccess]:
    """Return the loads and stores of a launch; nothing where a loop depends on data."""
    counting = _walk_launch(job, launch) if math.prod(launch.grid) else None
    return [] if counting is None else counting.accesses


def _walk_launch(job: CompileJob, launch: LaunchParameters) -> _Counting | None:
    """Walk a launch of some blocks; None where a loop depends on data, or the bytecode is not known."""
    try:
        program = read_program(job.bytecode)
    except UnknownBytecode:
        return None
    numbers = _spread(math.prod(launch.grid), _MOST_BLOCKS)
    machine = Machine(program.module, Memory(), launch.grid)
    counting = _Counting(machine, numbers, stand_in(job.arch), launch.array_bytes)
    scope = Scope(numbers)
    values = [torch.tensor([value], dtype=dtype) for value, dtype in launch.values]
    scope.given.update(zip(program.entry.body.parameters, values, strict=True))
    try:
        counting.walk(program.entry.body, scope, torch.ones(len(numbers), dtype=torch.float64))
    except _UnknownTrips:
        return None
    return counting


@dataclass(frozen=True)
class _End:
    """How a block of operations ends: "yield", "continue", "break" or "return", and with what."""

    kind: str
    values: tuple[Maker, ...]
    """Compute each value in the scope of that block."""

    def outside(self, inner: Scope) -> _End:
        """Return the same end for the scope around `inner`, which has the same rows."""
        return _End(self.kind, tuple(partial(computed_inside, inner, make) for make in self.values))


class _Counting:
    """Walks one kernel."""

    def __init__(
        self, machine: Machine, blocks: torch.Tensor, gpu: Platform, array_bytes: Sequence[int]
    ) -> None:
        self._machine = machine
        self._gpu = gpu
        self._blocks = blocks
        self._array_bytes = array_bytes
        self._asked: Counter[int] = Counter()
        self._accesses: defaultdict[int, list[CountedAccess]] = defaultdict(list)
        """Loads and stores of each array."""
        self._doubts = 0
        """Branches around, or returns before, of which only data says whether they are taken."""
        self._span: Span | None = None
        """The outermost loop that is walked."""
        self._counts: dict[str, torch.Tensor] = {}
        """By block."""
        self._in_flight = 0
        self._types: dict[int, Type] = {}

    @property
    def accesses(self) -> list[CountedAccess]:
        """All loads and stores."""
        return [access for accesses in self._accesses.values() for access in accesses]

    def totals(self, blocks: int) -> dict[str, int]:
        weight = blocks / len(self._blocks)  # blocks of the grid that each walked block stands for
        counts = {name: round(float(n.sum()) * weight) for name, n in self._counts.items()}
        for name, n in self._counts.items():
            if name != "touched_bytes" and float(n.max()) > _EVEN * float(n.mean()):
                counts[f"busiest {name}"] = round(float(n.max()))
        asked = {array: n * weight for array, n in self._asked.items()}
        counts["touched_bytes"] = counts.get("touched_bytes", 0) + round(self._from_memory(asked))
        counts["bytes_in_flight"] = self._in_flight
        return {name: n for name, n in sorted(counts.items()) if n}

    def _from_memory(self, asked: Mapping[int, float]) -> float:
        """Return the bytes of arrays that come from memory, where `asked` are asked for."""
        sizes = dict(enumerate(self._array_bytes, start=1))
        once = {array: min(n, sizes.get(array, n)) for array, n in asked.items()}
        l2_bytes = self._gpu.cuda_reports.l2_mib * 2**20 if self._gpu.cuda_reports else math.inf
        if sum(once.values()) <= l2_bytes:
            return sum(once.values())
        again, others = [], 0.0
        for array, n in once.items():
            accesses = self._accesses[array] if asked[array] > n else []
            tiles = [tiles_of(access, self._at(access.scope), self._moved) for access in accesses]
            of_partitions = [tile_set for tile_set in tiles if tile_set is not None]
            if of_partitions and len(of_partitions) == len(tiles):
                again.append((n, of_partitions))
            else:
                others += n
        return bytes_from_memory(again, others=others, l2_bytes=l2_bytes, at_a_time=self._gpu.sm_count)

    @property
    def _moved(self) -> torch.Tensor:
        """The bytes that each block has asked for so far: its clock."""
        return self._counts.get("moved_bytes", torch.zeros(len(self._blocks), dtype=torch.float64))

    def walk(self, block: Block, scope: Scope, weight: torch.Tensor) -> _End:
        """Count operations that each row of `scope` stands for `weight` times; return how they end."""
        self._types.update(zip(block.parameters, block.parameter_types, strict=True))
        loaded, counts = 0, defaultdict[str, float](float)
        for op in block.ops:
            self._types.update(zip(op.results, op.result_types, strict=True))
            match op.name:
                case "yield" | "continue" | "break" | "return":
                    self._in_flight = max(self._in_flight, loaded)
                    self._add(counts, scope, weight)
                    return _End(op.name, tuple(partial(get, value) for value in op.operands["values"]))
                case "for":
                    self._add(counts, scope, weight)
                    _define(op, scope, [unknown] * len(op.results))
                    self._loop(op, scope, weight)
                case "loop":
                    _define(op, scope, self._once(op, scope, weight).values)
                case "if":
                    end, staying = self._branch(op, scope, weight)
                    if staying is not weight:
                        self._add(counts, scope, weight)
                        weight = staying
                    if end.kind != "yield":
                        self._in_flight = max(self._in_flight, loaded)
                        return end
                    _define(op, scope, end.values)
                case "reduce" | "scan":
                    _define(op, scope, [unknown] * len(op.results))
                    elements = max(_elements(self._types.get(value)) for value in op.operands["operands"])
                    self.walk(op.regions[0], scope.inner(), weight * elements)
                case _:
                    _define(op, scope, [partial(self._compute, op, at) for at in range(len(op.results))])
                    loaded += self._count(op, scope, weight, counts)
            # Values inside of the operation may have had the numbers of its results.
            self._types.update(zip(op.results, op.result_types, strict=True))
        raise AssertionError("a block ends by an operation that says where to go on")

    def _add(self, counts: defaultdict[str, float], scope: Scope, weight: torch.Tensor) -> None:
        """Add what one pass executes, for the rows of a scope; forget it."""
        times = torch.bincount(self._at(scope), weight, len(self._blocks))
        for name, n in counts.items():
            self._counts[name] = self._counts.get(name, 0) + times * n
        counts.clear()

    def _at(self, scope: Scope) -> torch.Tensor:
        """Return the place of each row's block among the blocks."""
        all_of_them = len(self._blocks) == int(self._blocks[-1]) + 1
        return scope.blocks if all_of_them else torch.searchsorted(self._blocks, scope.blocks)

    def _compute(self, op: Op, at: int, scope: Scope) -> Any:
        """Compute a result of an operation that only the launch decides."""
        if op.name in _LOADS and scope.guesses and _is_index(op.result_types[at]):
            return _guess(op.result_types[at], scope.size)
        if op.name in _LOADS or op.name in _STORES or op.name not in OPS:
            raise Unknown
        if max(map(_elements, op.result_types)) * scope.size > _MOST_INDICES:
            raise Unknown
        if op.name == "assume":
            return scope[op.operands["value"]]
        result = OPS[op.name](self._machine, cast("Frame", scope), op)
        scope.computed.update(
            zip(op.results, result if isinstance(result, tuple) else (result,), strict=True)
        )
        return scope.computed[op.results[at]]

    def _once(self, op: Op, scope: Scope, weight: torch.Tensor) -> _End:
        """Count a loop without a counter that is left in its first pass: a function that returns early."""
        (body,) = op.regions
        if body.ops[-1].name != "break" or any(inner.name == "continue" for inner in every_op(body)):
            raise _UnknownTrips
        inside = scope.inner()
        carried = zip(body.parameters, op.operands["initial"], strict=True)
        inside.makers.update((value, partial(get_outer, initial)) for value, initial in carried)
        return self.walk(body, inside, weight).outside(inside)

    def _loop(self, op: Op, scope: Scope, weight: torch.Tensor) -> None:
        """Count a loop with a counter: its body once, for all passes of all blocks together."""
        bounds = [known(scope, op.operands[name]) for name in ("lower", "upper", "step")]
        if any(bound is None for bound in bounds):
            raise _UnknownTrips
        lower, upper, step = (bound.reshape(-1).long().expand(scope.size) for bound in bounds)
        trips = ((upper - lower + step - 1) // step).clamp(min=0) * (weight > 0)
        if not trips.any():
            return
        outermost = self._span is None
        self._span = span = self._span or Span(self._moved, self._moved)
        index, passes, multiplicity = _passes(trips)
        (body,) = op.regions
        counter, *parameters = body.parameters
        inside = scope.inner(index)
        inside.given[PASS] = passes
        inside.given[counter] = (lower[index] + passes * step[index]).to(bounds[0].dtype)
        inside.makers |= dict.fromkeys(parameters, unknown)
        numbers = [
            (at, *carried)
            for at, carried in enumerate(zip(parameters, op.operands["initial"], strict=True))
            if _is_index(body.parameter_types[at + 1])
        ]
        if numbers:
            first = scope.inner()
            first.makers |= dict.fromkeys(parameters, unknown)
            first.makers[counter] = partial(get_outer, op.operands["lower"])
            first.makers |= {value: partial(get_outer, initial) for _, value, initial in numbers}
            after = self.walk(body, first, torch.zeros_like(weight)).outside(first).values
            inside.makers |= {
                value: partial(in_line, initial, after[at], 0) for at, value, initial in numbers
            }
        end = self.walk(body, inside, weight[index] * multiplicity)
        if outermost:
            span.end, self._span = self._moved, None
        for at, value, initial in numbers:
            # Of a number that was asked for, the guess has to be right in all passes.
            if value in inside.computed:
                expected = in_line(initial, after[at], 1, inside)
                if (actual := computed(end.values[at], inside)) is None or (actual != expected).any():
                    raise _UnknownTrips

    def _branch(self, op: Op, scope: Scope, weight: torch.Tensor) -> tuple[_End, torch.Tensor]:
        """Count the branch that is taken, both where that depends on data; return the weight of who stays."""
        condition = known(scope, op.operands["condition"])
        taken = None if condition is None else condition.reshape(-1)
        ends, staying = [], weight
        for region, way in zip(op.regions, (taken, None if taken is None else ~taken), strict=True):
            if way is None or way.any():
                inner = scope.inner()
                self._doubts += way is None
                end = self.walk(region, inner, weight if way is None else weight * way).outside(inner)
                # What follows a return that only data decides runs for nobody knows which blocks.
                self._doubts -= way is None and end.kind == "yield"
                if end.kind != "yield" and way is not None:
                    staying = staying * ~way
                ends.append(end)
        if len(ends) == 1:
            return ends[0], staying
        going_on = [end for end in ends if end.kind == "yield"]
        if len(going_on) < len(ends):
            return (going_on or [_End(ends[0].kind, ())])[0], staying
        values = zip(ends[0].values, ends[1].values, strict=True)
        makers = (partial(choose, op.operands["condition"], one, other) for one, other in values)
        return _End("yield", tuple(makers)), staying

    def _count(self, op: Op, scope: Scope, weight: torch.Tensor, counts: defaultdict[str, float]) -> int:
        """Count an operation for one pass; return the bytes that it loads."""
        if op.name in _LOADS:
            loaded = self._types[op.results[0]]
            return self._access(op, _LOADS[op.name], loaded, scope, weight, counts)
        if op.name in _STORES:
            stored = self._types.get(op.operands["value"])
            self._access(op, _STORES[op.name], stored, scope, weight, counts)
            return 0
        if op.name in {"mmaf", "mmai", "mmaf_scaled"}:
            operand, other = (self._types[op.operands[name]] for name in ("lhs", "rhs"))
            assert isinstance(operand, Tile)
            counts[f"mma {operand.element}"] += 2 * _elements(op.result_types[0]) * operand.shape[-1]
            counts["products"] += 1
            smaller = min(_elements(operand), _elements(other))
            counts["smaller_operand_bytes"] += smaller * itemsize_of(operand.element)
            return 0
        if op.name in _MOVES or not op.results:
            return 0
        operands = [self._types.get(value) for value in op.operands.values() if isinstance(value, int)]
        types = [type_ for type_ in (*op.result_types, *operands) if isinstance(type_, Tile)]
        if not types:
            return 0
        double = any(str(type_.element) == "f64" for type_ in types)
        for pipe, n in _cost(op, double=double).items():
            counts[pipe] += n * max(map(_elements, types))
        return 0

    def _access(
        self,
        op: Op,
        operand: str,
        type_: Any,
        scope: Scope,
        weight: torch.Tensor,
        counts: defaultdict[str, float],
    ) -> int:
        """Count a load or store: the sectors of its tile, by the addresses that some of the rows have."""
        itemsize = itemsize_of(type_.element) if not isinstance(type_.element, Pointer) else 8
        size, array = _elements(type_) * itemsize, 0
        busy = weight.nonzero().reshape(-1)
        most = 1 if _elements(type_) > _MOST_INDICES // _SAMPLE else _SAMPLE
        few = scope.of(busy[_spread(len(busy), most)], guesses=True)
        where = known(few, op.operands[operand]) if len(busy) else None
        if isinstance(where, ViewValue):
            moved: float = _view_bytes(where, itemsize)
            array = int(where.array.base.reshape(-1)[0]) >> ARRAY_BITS
        else:
            counts["accesses"] += _elements(type_)
            moved = size
            if isinstance(where, torch.Tensor):
                sectors = where.reshape(where.shape[0], -1) // SECTOR_BYTES
                moved = SECTOR_BYTES * sum(len(row.unique()) for row in sectors) / len(sectors)
                array = int(where.reshape(-1)[0]) >> ARRAY_BITS
        if len(busy):
            span = self._span or Span(self._moved, self._moved)
            self._accesses[array].append(CountedAccess(op, operand, scope, weight, span, not self._doubts))
        self._asked[array] += round(size * float(weight.sum()))
        counts["moved_bytes"] += moved
        counts["touched_bytes"] += max(0, moved - size)  # of no use to this tile
        return size


def _guess(type_: Any, rows: int) -> torch.Tensor:
    """Return indices that memory may hold, for so many rows: far from each other, as a table's may be."""
    shape = (rows, *(type_.shape if isinstance(type_, Tile) else ()))
    numbers = torch.randint(_GUESSED, shape, generator=torch.Generator().manual_seed(0))
    return numbers.to(torch.int64 if str(type_.element) == "i64" else torch.int32)


def _define(op: Op, scope: Scope, makers: Iterable[Maker]) -> None:
    """Say what computes the results of an operation."""
    scope.makers.update(zip(op.results, makers, strict=False))


def _is_index(type_: Type) -> bool:
    return isinstance(type_, Tile) and (isinstance(type_.element, Pointer) or str(type_.element)[0] == "i")


def _spread(length: int, most: int) -> torch.Tensor:
    """Return up to `most` of the numbers below `length`, with the first and the last of them."""
    return torch.linspace(0, max(0, length - 1), min(most, length), dtype=torch.float64).round().long()


def _passes(trips: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rows for the passes of a loop: of which row, which pass, and for how many it stands.

    All passes, or, of very many, some: the same of each row, so that what blocks share is shared.
    """
    stride = max(1.0, float(trips.sum()) / _MOST_PASSES)
    steps = torch.arange(math.ceil(int(trips.max()) / stride), dtype=torch.float64)
    # Not evenly spaced: what every other pass does must not be all or none of it.
    taken = ((steps + steps * _GOLDEN % 1) * stride).long()
    chosen = torch.searchsorted(taken, trips).clamp(min=1) * (trips > 0)
    index = torch.arange(len(trips)).repeat_interleave(chosen)
    at = torch.arange(len(index)) - (chosen.cumsum(0) - chosen)[index]
    passes = torch.minimum(taken[at], trips[index] - 1)
    return index, passes, (trips.double() / chosen.clamp(min=1))[index]


def _elements(type_: object) -> int:
    return math.prod(type_.shape) if isinstance(type_, Tile) else 1


def _cost(op: Op, *, double: bool) -> Mapping[str, int]:
    name = op.name
    if name in _CONVERSIONS:
        return {"conversion64" if double else "conversion": 1}
    if name in _SPECIAL:
        if double:
            return {"fp64": _STEPS_IN_DOUBLE}
        return _APPROXIMATE if op.attributes.get("rounding") == "approx" else _SPECIAL[name]
    if name in _FLOAT:
        return {"fp64" if double else "fp32": 1}
    return {"integer": _INTEGER[name]} if name in _INTEGER else {}


def _view_bytes(view: ViewValue, itemsize: int) -> int:
    """Return the bytes of the sectors of one tile, by its length along the axis of stride 1."""
    shape = view.type.tile_shape
    runs = [
        shape[at]
        for at, axis in enumerate(view.type.axes)
        if int(torch.as_tensor(view.array.strides[axis]).reshape(-1)[0]) == 1
        and axis != view.type.sparse_axis
    ]
    run = max(runs, default=1)
    sectors = -(-run * itemsize // SECTOR_BYTES)
    return math.prod(shape) // max(1, run) * sectors * SECTOR_BYTES
