"""Counts what a launch would execute: operations, weighted by how often loops run them.

Scalars and index tiles that follow from the launch (block numbers, shapes, constants) are computed by the
interpreter's own operations, for a sample of the blocks; a loop's body is looked at once, in its middle
iteration. What depends on data in memory is unknown, and so is the count of a kernel with such a loop.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pytest_cutile.compiler.job import CompileJob
from pytest_cutile.compiler.trace.launches import Launch
from pytest_cutile.interpreter.analysis import every_op
from pytest_cutile.interpreter.frames import Frame
from pytest_cutile.interpreter.ir import Block, Op, Pointer, Tile, Type
from pytest_cutile.interpreter.launch import flatten, read_program
from pytest_cutile.interpreter.machine import OPS, Machine
from pytest_cutile.interpreter.memory import Memory
from pytest_cutile.interpreter.reader import UnknownBytecode
from pytest_cutile.interpreter.values import ViewValue, itemsize_of

SECTOR_BYTES = 32
"""What memory moves at least (CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory")."""
_SAMPLE = 32
_MOST_INDICES = 2**22
"""Elements of an index tile, of all sampled blocks, above which it is not computed."""
_STEPS_IN_DOUBLE = 30
_ARRAY_BITS = 44
"""Pretended addresses: each array has as many bits for itself."""

# Operations of each pipe for one element; "special" is the special function unit. A function
# of float64 is a polynomial of about 30 steps instead.
_SPECIAL = {
    **{name: {"special": 1, "fp32": 1} for name in ("exp2", "log2", "rsqrt", "tanh")},
    **{name: {"special": 1, "fp32": 3} for name in ("exp", "log", "sin", "cos", "sqrt")},
    **{name: {"special": 2, "fp32": 8} for name in ("divf", "tan", "sinh", "cosh", "fpowf", "atan2", "remf")},
}
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


def count_executed(job: CompileJob, launch: Launch) -> dict[str, int] | None:
    """Return what all blocks execute together.

    None where a loop depends on data, or the bytecode is not known.

    "fp32", "fp64", "special", "integer", "conversion": operations. "mma f16": what products multiply and
    add, by Tile IR's name of the operands' type. "products": tiles that are multiplied.
    "accesses": elements loaded and stored through pointers. "moved_bytes": 32-byte sectors loaded and stored,
    tile by tile. "touched_bytes": at most the size of each array, and what else is in these sectors.
    "bytes_in_flight": that one block can load at the same time. "steps": passes of loops that load with a
    hint how far ahead. "latencies": of those, how many wait for a load, as none of the block is under way.
    """
    try:
        program = read_program(job.bytecode)
    except UnknownBytecode:
        return None
    blocks = math.prod(launch.grid)
    sample = torch.linspace(0, max(0, blocks - 1), min(_SAMPLE, blocks), dtype=torch.float64).long()
    counting = _Counting(Machine(program.module, Memory(), launch.grid))
    frame = Frame.of_blocks(sample)
    try:
        arguments = list(flatten(counting, launch.args, launch.kernel))
        values = [torch.tensor([value], dtype=dtype) for value, dtype in arguments]
        frame.values.update(zip(program.entry.body.parameters, values, strict=True))
        counting.walk(program.entry.body, frame, torch.ones(len(sample), dtype=torch.float64))
    except _UnknownTrips:
        return None
    return counting.totals(blocks / max(1, len(sample)))


@dataclass(frozen=True)
class _End:
    """How a block of operations ends: "yield", "continue", "break" or "return", and with what."""

    kind: str
    values: tuple[Any, ...]
    """None where a value is unknown."""


class _Counting:
    """Walks one kernel; pretends a memory that only knows where arrays are and how large."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._array_bytes: list[int] = []
        self._asked: Counter[int] = Counter()
        self._counts: Counter[str] = Counter()
        self._in_flight = 0
        self._ahead = math.inf
        """How many passes ahead the loads of this loop run at least; infinite without a hint."""
        self._types: dict[int, Type] = {}

    def add(self, _name: str, tensor: torch.Tensor, *_: object) -> int:
        """Return a pretended address."""
        self._array_bytes.append(tensor.numel() * tensor.element_size())
        return len(self._array_bytes) << _ARRAY_BITS

    def totals(self, blocks_per_sample: float) -> dict[str, int]:
        counts = {name: round(n * blocks_per_sample) for name, n in self._counts.items()}
        counts.setdefault("touched_bytes", 0)
        for array, n in self._asked.items():
            asked = n * blocks_per_sample
            counts["touched_bytes"] += round(min(asked, self._size(array, asked)))
        counts["bytes_in_flight"] = self._in_flight
        return {name: n for name, n in sorted(counts.items()) if n}

    def _size(self, array: int, otherwise: float) -> float:
        return self._array_bytes[array - 1] if 1 <= array <= len(self._array_bytes) else otherwise

    def walk(self, block: Block, frame: Frame, weight: torch.Tensor) -> _End:
        """Count operations that each sampled block runs `weight` times; return how they end."""
        self._types.update(zip(block.parameters, block.parameter_types, strict=True))
        loaded = 0
        for op in block.ops:
            self._types.update(zip(op.results, op.result_types, strict=True))
            match op.name:
                case "yield" | "continue" | "break" | "return":
                    self._in_flight = max(self._in_flight, loaded)
                    return _End(op.name, tuple(_known(frame, value) for value in op.operands["values"]))
                case "for":
                    self._loop(op, frame, weight)
                case "loop":
                    self._define(op, frame, self._once(op, frame, weight))
                case "if":
                    end = self._branch(op, frame, weight)
                    if end.kind != "yield":
                        return end
                    self._define(op, frame, end)
                case "reduce" | "scan":
                    elements = max(_elements(self._types.get(value)) for value in op.operands["operands"])
                    self.walk(op.regions[0], frame.inner(), weight * elements)
                case _:
                    self._evaluate(op, frame)
                    loaded += self._count(op, frame, float(weight.sum()))
            # Values inside of the operation may have had the numbers of its results.
            self._types.update(zip(op.results, op.result_types, strict=True))
        raise AssertionError("a block ends by an operation that says where to go on")

    @staticmethod
    def _define(op: Op, frame: Frame, end: _End) -> None:
        """Give an operation the values that the block inside of it ended with."""
        known = zip(op.results, end.values, strict=False)
        frame.values.update((value, data) for value, data in known if data is not None)

    def _once(self, op: Op, frame: Frame, weight: torch.Tensor) -> _End:
        """Count a loop without a counter that is left in its first pass: a function that returns early."""
        (body,) = op.regions
        if body.ops[-1].name != "break" or any(inner.name == "continue" for inner in every_op(body)):
            raise _UnknownTrips
        inside = frame.inner()
        carried = (_known(frame, value) for value in op.operands["initial"])
        known = zip(body.parameters, carried, strict=True)
        inside.values.update((value, data) for value, data in known if data is not None)
        return self.walk(body, inside, weight)

    def _loop(self, op: Op, frame: Frame, weight: torch.Tensor) -> None:
        bounds = [_known(frame, op.operands[name]) for name in ("lower", "upper", "step")]
        if any(bound is None for bound in bounds):
            raise _UnknownTrips
        lower, upper, step = (bound.reshape(-1).long() for bound in bounds)
        trips = ((upper - lower + step - 1) // step).clamp(min=0)
        (body,) = op.regions
        inside = frame.inner()
        middle = lower + trips // 2 * step
        inside.values[body.parameters[0]] = middle.to(bounds[0].dtype)
        around, self._ahead = self._ahead, math.inf
        self.walk(body, inside, weight * trips)
        if math.isfinite(self._ahead):
            passes = float((weight * trips).sum())
            self._counts["steps"] += round(passes)
            # A hint of 1 compiles to what 2 does: one tile is used while the next one is loaded.
            self._counts["latencies"] += round(passes / max(2, self._ahead))
        self._ahead = around

    def _branch(self, op: Op, frame: Frame, weight: torch.Tensor) -> _End:
        """Count the branch that is taken, both where blocks differ or that depends on data."""
        condition = _known(frame, op.operands["condition"])
        taken = None if condition is None else condition.reshape(-1)
        ends = []
        for region, way in zip(op.regions, (taken, None if taken is None else ~taken), strict=True):
            if way is None or way.any():
                ends.append(self.walk(region, frame.inner(), weight if way is None else weight * way))
        if len(ends) == 1:
            return ends[0]
        going_on = [end for end in ends if end.kind == "yield"]
        if len(going_on) < len(ends):
            return going_on[0] if going_on else _End(ends[0].kind, ())
        values = zip(ends[0].values, ends[1].values, strict=True)
        return _End("yield", tuple(_choose(taken, one, other) for one, other in values))

    def _evaluate(self, op: Op, frame: Frame) -> None:
        """Compute what follows from the launch: integers, addresses and views; anything else is unknown."""
        if op.name in _LOADS or op.name in _STORES or op.name not in OPS or not op.results:
            return
        if op.name == "assume":
            if (value := _known(frame, op.operands["value"])) is not None:
                frame.values[op.results[0]] = value
            return
        (type_, *_) = op.result_types
        if isinstance(type_, Tile) and (
            "f" in str(type_.element).partition("<")[0] or _elements(type_) * frame.size > _MOST_INDICES
        ):
            return
        with contextlib.suppress(Exception):  # an operand is unknown
            result = OPS[op.name](self._machine, frame, op)
            results = result if isinstance(result, tuple) else (result,)
            frame.values.update(zip(op.results, results, strict=True))

    def _count(self, op: Op, frame: Frame, times: float) -> int:
        """Count an operation that the sampled blocks run `times`; return the bytes that one of them loads."""
        if op.name in _LOADS:
            return self._access(op, frame, times, op.operands[_LOADS[op.name]], self._types[op.results[0]])
        if op.name in _STORES:
            stored = self._types.get(op.operands["value"])
            self._access(op, frame, times, op.operands[_STORES[op.name]], stored)
            return 0
        if op.name in {"mmaf", "mmai", "mmaf_scaled"}:
            operand, product = self._types[op.operands["lhs"]], op.result_types[0]
            assert isinstance(operand, Tile)
            flops = 2 * _elements(product) * operand.shape[-1]
            self._counts[f"mma {operand.element}"] += round(flops * times)
            self._counts["products"] += round(times)
            return 0
        if op.name in _MOVES or not op.results:
            return 0
        operands = [self._types.get(value) for value in op.operands.values() if isinstance(value, int)]
        types = [type_ for type_ in (*op.result_types, *operands) if isinstance(type_, Tile)]
        if not types:
            return 0
        elements = max(map(_elements, types)) * times
        double = any(str(type_.element) == "f64" for type_ in types)
        for pipe, n in _cost(op.name, double=double).items():
            self._counts[pipe] += round(n * elements)
        return 0

    def _access(self, op: Op, frame: Frame, times: float, value: int, type_: Any) -> int:
        """Count a load or store: the sectors that its tile has in each sampled block."""
        itemsize = itemsize_of(type_.element) if not isinstance(type_.element, Pointer) else 8
        size, array = _elements(type_) * itemsize, 0
        where = _known(frame, value)
        if isinstance(where, ViewValue):
            moved: float = _view_bytes(where, itemsize)
            array = int(where.array.base.reshape(-1)[0]) >> _ARRAY_BITS
        else:
            self._counts["accesses"] += round(_elements(type_) * times)
            moved = size
            if isinstance(where, torch.Tensor):
                sectors = where.reshape(where.shape[0], -1) // SECTOR_BYTES
                moved = SECTOR_BYTES * sum(len(row.unique()) for row in sectors) / len(sectors)
                array = int(where.reshape(-1)[0]) >> _ARRAY_BITS
        self._asked[array] += round(size * times)
        self._counts["moved_bytes"] += round(moved * times)
        self._counts["touched_bytes"] += round(max(0, moved - size) * times)  # of no use to this tile
        if op.name in _LOADS:
            unhinted = math.inf if isinstance(where, ViewValue) else 1  # as far as memory lasts; by registers
            self._ahead = min(self._ahead, _latency(op) or unhinted)
        return size


def _choose(taken: torch.Tensor | None, one: Any, other: Any) -> Any:
    """Return the scalar of each block's branch; None where that is unknown."""
    if taken is None or not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return None
    return torch.where(taken, one, other) if one.dim() == other.dim() == 1 else None


def _known(frame: Frame, value: int) -> Any:
    try:
        return frame[value]
    except AssertionError:
        return None


def _elements(type_: object) -> int:
    return math.prod(type_.shape) if isinstance(type_, Tile) else 1


def _cost(name: str, *, double: bool) -> Mapping[str, int]:
    if name in _CONVERSIONS:
        return {"conversion64" if double else "conversion": 1}
    if name in _SPECIAL:
        return {"fp64": _STEPS_IN_DOUBLE} if double else _SPECIAL[name]
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


def _latency(op: Op) -> int | None:
    """Return the hint how far ahead a load may run: 1 is not at all."""
    for hints in (op.attributes.get("hints") or {}).values():
        if "latency" in hints:
            return int(hints["latency"][-1])
    return None
