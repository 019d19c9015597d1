"""Runs a kernel's Tile IR on the CPU, many blocks at once.

Blocks that take the same way run each operation together; at a branch or a loop they part, each group sees
only its own values, and what the groups computed is put together where they meet again.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch

from pytest_cutile.tile.interpreter.analysis import (
    NOTHING_DEFINED,
    Definitions,
    checked_assumptions,
    every_op,
    written_parameters,
)
from pytest_cutile.tile.interpreter.faults import (
    InterpreterFailed,
    KernelFault,
    NotInterpreted,
    user_location,
)
from pytest_cutile.tile.interpreter.frames import Frame
from pytest_cutile.tile.interpreter.ir import Block, EntryPoint, Module, Op, Pointer, Tile
from pytest_cutile.tile.interpreter.memory import Memory
from pytest_cutile.tile.interpreter.undetermined import propagate
from pytest_cutile.tile.interpreter.values import block_of, merge_blocks, select_blocks

Handler: TypeAlias = Callable[["Machine", "Frame", Op], Any]


class Observer(Protocol):
    """Looks on while a kernel runs."""

    def ran(self, machine: Machine, frame: Frame, op: Op) -> None:
        """Look at the results of an operation, which the frame has."""


OPS: dict[str, Handler] = {}
"""What runs each operation: returns its value, a tuple of values, or None."""

BATCH_ELEMENTS = 2**20
"""Elements of the largest tile, all blocks of a batch together, to aim at: what caches hold."""


def operation(*names: str) -> Callable[[Handler], Handler]:
    """Register what runs an operation of Tile IR."""

    def register(handler: Handler) -> Handler:
        for name in names:
            OPS[name] = handler
        return handler

    return register


@dataclass(frozen=True)
class Exit:
    """How some blocks left a block of operations: "yield", "continue", "break" or "return", and with what."""

    kind: str
    index: torch.Tensor | None
    """Which blocks of the frame; None: all."""
    values: tuple[Any, ...]


MAX_ITERATIONS = 2**20
"""Iterations of one loop without a counter after which it counts as endless."""

MAX_SECONDS = 10.0
"""Seconds after which a loop counts as endless, if it has made `MIN_ITERATIONS`: few long ones are work."""
MIN_ITERATIONS = 1000
MAX_IDLE = 64
"""Iterations without a change of memory after which a loop without a counter lets other blocks run."""

_EXITS = {"yield", "continue", "break", "return"}


class Machine:
    """Runs one launch."""

    def __init__(self, module: Module, memory: Memory, grid: Sequence[int]) -> None:
        self.module = module
        self.memory = memory
        self.grid = (*grid, 1, 1, 1)[:3]
        self.kernel = ""
        self.poison_padding = True
        """Whether padding that no padding_mode chooses is undetermined, or zero."""
        self.constants: dict[int, Any] = {}
        """Values of constants, by the identity of their operation."""
        self.definitions = NOTHING_DEFINED
        """Which operation makes each value."""
        self.assumptions: Mapping[int, str] = {}
        """What each checked assumption is about, by the identity of its operation."""
        self.last_uses: Mapping[int, Sequence[int]] = {}
        """Values to drop after each operation, by its identity."""
        self.observers: Sequence[Observer] = ()
        """Called after each operation."""
        self.wait: Callable[[], bool] = bool
        """Called by a loop in which nothing changes; lets other blocks run and returns whether they did."""
        self.iterations: list[int] = []
        """How often each loop around the operation that runs has begun anew."""
        self.globals: dict[str, torch.Tensor] = {}
        """Addresses of the module's arrays that the kernel has asked for."""
        self.printed: dict[int, list[str]] = {}
        """What blocks have printed and nobody has seen yet, by their numbers."""

    def begin_launch(self, entry: EntryPoint, arguments: Sequence[torch.Tensor]) -> None:
        """Derive what a kernel's operations say about its arguments, the values of all parameters."""
        self.definitions = Definitions.of(entry)
        value_of = dict(zip(entry.body.parameters, arguments, strict=True))
        written = written_parameters(entry, self.definitions)
        addresses = None if written is None else [int(value_of[parameter]) for parameter in written]
        self.memory.begin_launch(addresses)
        shapes = {}
        for parameter, type_ in zip(entry.body.parameters, entry.body.parameter_types, strict=True):
            if isinstance(type_, Tile) and isinstance(type_.element, Pointer):
                place = self.memory.at(int(value_of[parameter]))
                if place is not None:
                    shapes[parameter] = place[0].shape
        self.assumptions = checked_assumptions(entry, self.definitions, shapes)

    def make_constants(self, ops: Sequence[Op]) -> None:
        """Make the values of constants before anything else.

        Made among the tiles, these small things that stay would keep the memory of tiles that go, all
        around them, from being used again.
        """
        nowhere = Frame.of_blocks(torch.arange(0))
        for op in ops:
            with contextlib.suppress(Exception):  # said where it is reached
                OPS[op.name](self, nowhere, op)

    def run(self, entry: EntryPoint, arguments: Sequence[Any], blocks: torch.Tensor) -> None:
        """Run these blocks, given by their numbers, together; `arguments` are the values of all parameters.

        Raises:
            KernelFault: the kernel did something wrong, or something that is not known.
        """
        frame = Frame.of_blocks(blocks)
        frame.values.update(zip(entry.body.parameters, arguments, strict=True))
        try:
            self.run_block(entry.body, frame)
        finally:
            self._show_printed()

    def _show_printed(self) -> None:
        """Write what the blocks have printed, block by block."""
        for block in sorted(self.printed):
            sys.stdout.write("".join(self.printed[block]))
        if self.printed:
            sys.stdout.flush()
            self.printed.clear()

    def run_block(self, block: Block, frame: Frame) -> list[Exit]:
        exits: list[Exit] = []
        outermost = frame
        position: torch.Tensor | None = None  # of the blocks still here, in the outermost frame
        for op in block.ops:
            if op.name in _EXITS:
                values = tuple(frame[value] for value in op.operands["values"])
                return [*exits, Exit(op.name, position, values)]
            flow = _FLOW.get(op.name)
            if flow is None:
                self._run_op(op, frame)
                if id(op) in self.last_uses:
                    frame.forget(self.last_uses[id(op)], outermost)
                continue
            try:
                left = flow(self, op, frame)
            except KernelFault as fault:
                self._place(fault, op)
                raise
            except Exception as error:
                raise self._failed(error, op) from error
            exits += [
                Exit(exit_.kind, _compose(position, exit_.index), exit_.values)
                for exit_ in left
                if exit_.kind != "yield"
            ]
            stay = [exit_ for exit_ in left if exit_.kind == "yield"]
            if not stay:
                return exits
            frame, kept, results = _gather(stay, frame)
            position = _compose(position, kept)
            frame.values.update(zip(op.results, results, strict=True))
            for observer in self.observers:
                observer.ran(self, frame, op)
            if id(op) in self.last_uses:
                del left, stay, results
                frame.forget(self.last_uses[id(op)], outermost)
        return exits

    def _run_op(self, op: Op, frame: Frame) -> None:
        self.memory.races.op = op
        try:
            handler = OPS.get(op.name)
            if handler is None:
                raise NotInterpreted(f"the interpreter does not know the operation {op.name}")
            result = handler(self, frame, op)
            if self.memory.undetermined:
                propagate(frame, op, result)
        except KernelFault as fault:
            self._place(fault, op)
            raise
        except Exception as error:
            raise self._failed(error, op) from error
        if len(op.results) == 1:
            frame.values[op.results[0]] = result[0] if isinstance(result, tuple) else result
        elif op.results:
            frame.values.update(zip(op.results, result, strict=True))
        for observer in self.observers:
            observer.ran(self, frame, op)

    def _place(self, fault: KernelFault, op: Op) -> None:
        """Say where a fault was, if an operation inside of this one has not said so."""
        fault.kernel = fault.kernel or self.kernel
        if fault.location is None:
            fault.location = user_location(op.location)
        if fault.block is not None and len(fault.block) == 1:
            fault.block = self.block_of(*fault.block)

    def _failed(self, error: Exception, op: Op) -> InterpreterFailed:
        failure = InterpreterFailed(op.name, error)
        self._place(failure, op)
        return failure

    def block_of(self, number: int) -> tuple[int, int, int]:
        return block_of(number, self.grid)

    # -- control flow ---------------------------------------------------------------------------------

    def _if(self, op: Op, frame: Frame) -> list[Exit]:
        condition = frame[op.operands["condition"]]
        self.memory.undetermined.forbid(frame, condition, "takes a branch by")
        condition = condition.reshape(-1)
        then, otherwise = op.regions
        if condition.all():
            return self.run_block(then, frame.inner())
        if not condition.any():
            return self.run_block(otherwise, frame.inner())
        exits = []
        for region, chosen in ((then, condition), (otherwise, ~condition)):
            index = chosen.nonzero().reshape(-1)
            exits += [
                Exit(exit_.kind, _compose(index, exit_.index), exit_.values)
                for exit_ in self.run_block(region, frame.inner(index))
            ]
        return exits

    def _loop(self, op: Op, frame: Frame) -> list[Exit]:
        carried = tuple(frame[value] for value in op.operands["initial"])
        return self._iterate(op, frame, carried, None)

    def _for(self, op: Op, frame: Frame) -> list[Exit]:
        carried = tuple(frame[value] for value in op.operands["initial"])
        bounds = [frame[op.operands[name]] for name in ("lower", "upper", "step")]
        for bound in bounds:
            self.memory.undetermined.forbid(frame, bound, "bounds a loop by")
        lower, upper, step = (bound.reshape(-1) for bound in bounds)
        if (step <= 0).any():
            blocks = frame.blocks.expand(frame.size)[(step <= 0).expand(frame.size)]
            raise KernelFault(
                "endless-loop",
                f"steps by {int(step.min())}: a loop over a range goes up, by 1 or more",
                block=(int(blocks[0]),),
            )
        if op.attributes.get("unsigned") and bool((lower < 0).any() | (upper < 0).any()):
            raise NotInterpreted("a loop over unsigned numbers beyond the signed range is not interpreted")
        if lower.numel() == upper.numel() == step.numel() == 1:
            counter = _Counter(lower, upper, step)
        else:
            counter = _Counter(*(bound.expand(frame.size) for bound in (lower, upper, step)))
        return self._iterate(op, frame, carried, counter)

    def _iterate(
        self, op: Op, frame: Frame, carried: tuple[Any, ...], counter: _Counter | None
    ) -> list[Exit]:
        """Run a loop's body until no block is left in it; a block that leaves yields its values."""
        self.iterations.append(-1)
        try:
            return self._repeat(op, frame, carried, counter)
        finally:
            self.iterations.pop()

    def _repeat(self, op: Op, frame: Frame, carried: tuple[Any, ...], counter: _Counter | None) -> list[Exit]:
        (body,) = op.regions
        exits: list[Exit] = []
        around = frame
        position: torch.Tensor | None = None
        patience = _Patience()
        while True:
            before, changes = carried, self.memory.changes
            if counter is not None:
                running = counter.running()
                if not running.all():
                    done = (~running).nonzero().reshape(-1)
                    if not running.any():
                        return [*exits, Exit("yield", position, carried)]
                    left = tuple(select_blocks(value, done) for value in carried)
                    exits.append(Exit("yield", _compose(position, done), left))
                    keep = running.nonzero().reshape(-1)
                    carried = tuple(select_blocks(value, keep) for value in carried)
                    counter = counter.select(keep)
                    position = _compose(position, keep)
                    around = frame.inner(position)
            self.iterations[-1] += 1
            inside = around.inner()
            first = () if counter is None else (counter.value,)
            inside.values.update(zip(body.parameters, (*first, *carried), strict=True))
            again = []
            for exit_ in self.run_block(body, inside):
                if exit_.kind in {"continue", "yield"}:
                    again.append(exit_)
                else:
                    way = "yield" if exit_.kind == "break" else exit_.kind
                    exits.append(Exit(way, _compose(position, exit_.index), exit_.values))
            if not again:
                return exits
            kept, carried = _collect(again, around.size)
            if counter is not None:
                counter = counter.next()
            else:
                changed = changes != self.memory.changes
                stuck = kept is None and not changed and _same(before, carried)
                if why := patience.after_iteration(self.wait, changed=changed, stuck=stuck):
                    raise self._endless(op, around, why)
            if kept is not None:
                position = _compose(position, kept)
                around = frame.inner(position)
                counter = counter and counter.select(kept)

    def _endless(self, op: Op, frame: Frame, why: str) -> KernelFault:
        if waits_for_others(op):
            why += ". It may wait for another block, and no block does what it waits for"
        return KernelFault(
            "endless-loop",
            why,
            kernel=self.kernel,
            block=self.block_of(int(frame.blocks[0])),
            location=user_location(op.location),
        )


@dataclass(frozen=True)
class _Counter:
    """The loop variable of each block, or of all."""

    value: torch.Tensor
    upper: torch.Tensor
    step: torch.Tensor

    def running(self) -> torch.Tensor:
        return self.value < self.upper

    def next(self) -> _Counter:
        value = self.value + self.step
        # A sum that wraps is beyond any bound.
        return _Counter(torch.where(value < self.value, self.upper, value), self.upper, self.step)

    def select(self, index: torch.Tensor) -> _Counter:
        return _Counter(*(select_blocks(tensor, index) for tensor in (self.value, self.upper, self.step)))


class _Patience:
    """Counts the iterations of a loop without a counter, until it counts as endless."""

    def __init__(self) -> None:
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._iterations = self._idle = 0
        self._begin = time.monotonic()

    def after_iteration(self, wait: Callable[[], bool], *, changed: bool, stuck: bool) -> str:
        """Return why the loop counts as endless, or nothing; other blocks may run before that."""
        self._iterations += 1
        self._idle = 0 if changed else self._idle + 1
        if (stuck or self._idle == MAX_IDLE) and wait():
            self._begin_anew()
            return ""
        if stuck:
            return "a loop does not end: nothing changes from one iteration to the next"
        if self._iterations >= MAX_ITERATIONS:
            return f"a loop has not ended after {self._iterations} iterations"
        if self._iterations >= MIN_ITERATIONS and time.monotonic() - self._begin > MAX_SECONDS:
            return f"a loop has not ended after {self._iterations} iterations, in {MAX_SECONDS:g} seconds"
        return ""


_FLOW: Mapping[str, Callable[[Machine, Op, Frame], list[Exit]]] = {
    "if": Machine._if,  # noqa: SLF001
    "loop": Machine._loop,  # noqa: SLF001
    "for": Machine._for,  # noqa: SLF001
}


def _compose(outer: torch.Tensor | None, inner: torch.Tensor | None) -> torch.Tensor | None:
    """Return where blocks are in an outer frame, by where they are in an inner one."""
    if outer is None or inner is None:
        return inner if outer is None else outer
    return outer[inner]


def _collect(exits: Sequence[Exit], size: int) -> tuple[torch.Tensor | None, tuple[Any, ...]]:
    """Return which of `size` blocks are among these exits (None: all), and their values in that order."""
    if len(exits) == 1:
        return exits[0].index, exits[0].values
    indices = [exit_.index for exit_ in exits if exit_.index is not None]
    kept, order = torch.cat(indices).sort()
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    places = place.split([len(index) for index in indices])
    values = tuple(
        merge_blocks(list(zip(places, column, strict=True)), len(kept))
        for column in zip(*(exit_.values for exit_ in exits), strict=True)
    )
    return (None if len(kept) == size else kept), values


def _gather(exits: Sequence[Exit], frame: Frame) -> tuple[Frame, torch.Tensor | None, tuple[Any, ...]]:
    """Return the frame of the blocks that go on, which of `frame` they are, and their values."""
    kept, values = _collect(exits, frame.size)
    return (frame if kept is None else frame.inner(kept)), kept, values


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Return whether a loop carries the same values as before; views and the like are taken to differ."""
    return all(
        a is b
        or (
            isinstance(a, torch.Tensor)
            and isinstance(b, torch.Tensor)
            and a.shape == b.shape
            and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
        )
        for a, b in zip(one, other, strict=True)
    )


_ATOMIC = {"atomic_cas_tko", "atomic_rmw_tko", "atomic_red_view_tko"}


def is_ordered(op: Op) -> bool:
    """Return whether an operation is an atomic, or acquires or releases."""
    return op.name in _ATOMIC or op.attributes.get("ordering", "weak") != "weak"


def waits_for_others(loop: Op) -> bool:
    """Return whether a loop without a counter may wait for what other blocks do."""
    return loop.name == "loop" and any(is_ordered(op) for region in loop.regions for op in every_op(region))


def batch_size(entry: EntryPoint) -> int:
    """Return how many blocks to run together, by the size of their tiles."""
    largest = 1
    for op in every_op(entry.body):
        for result_type in op.result_types:
            if isinstance(result_type, Tile):
                largest = max(largest, math.prod(result_type.shape))
    return max(1, BATCH_ELEMENTS // largest)
