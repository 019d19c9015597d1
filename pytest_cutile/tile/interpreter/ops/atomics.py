"""Atomic operations: lanes that mean one address act one after another, by block and by lane."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import torch

from pytest_cutile.tile.interpreter.frames import Frame
from pytest_cutile.tile.interpreter.ir import Op
from pytest_cutile.tile.interpreter.machine import Machine, operation
from pytest_cutile.tile.interpreter.ops.access import IndexedTiles
from pytest_cutile.tile.interpreter.ops.arithmetic import ordered_unsigned
from pytest_cutile.tile.interpreter.ops.rounding import canonical_nan, flush
from pytest_cutile.tile.interpreter.values import TOKEN

Combine: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_FEW = 16
"""Lanes on one address that are cheaper to let act in turn than to scan."""
_INTEGERS = MappingProxyType({2: torch.int16, 4: torch.int32, 8: torch.int64})


def _add_floats(old: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    # PTX, `atom`: "atom.add.f32 on global memory flushes subnormal inputs and results".
    return canonical_nan(flush(flush(old, ftz=True) + flush(value, ftz=True), ftz=True))


def _unsigned(choose: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Combine:
    return lambda old, value: torch.where(choose(ordered_unsigned(value), ordered_unsigned(old)), value, old)


_COMBINE: dict[str, Combine] = {
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "add": torch.add,
    "addf": _add_floats,
    "max": torch.maximum,
    "min": torch.minimum,
    "umax": _unsigned(torch.gt),
    "umin": _unsigned(torch.lt),
    "xchg": lambda _, value: value,
}


class _Lanes:
    """Lanes sorted by the element that they mean; those of one element stay in their order."""

    def __init__(self, elements: torch.Tensor) -> None:
        self.order = elements.argsort(stable=True)
        self.elements = elements[self.order]
        count = len(elements)
        number = torch.arange(count)
        self.first = torch.ones(count, dtype=torch.bool)
        self.first[1:] = self.elements[1:] != self.elements[:-1]
        self.start = torch.where(self.first, number, torch.zeros_like(number)).cummax(0).values
        self.turn = number - self.start
        """How many lanes act on the element before this one."""
        self.last = torch.ones(count, dtype=torch.bool)
        self.last[:-1] = self.first[1:]
        self.turns = int(self.turn.max()) + 1

    def back(self, values: torch.Tensor) -> torch.Tensor:
        """Return values, one for each lane, in the order in which the lanes were given."""
        result = torch.empty_like(values)
        result[self.order] = values
        return result


def _in_turn(
    row: torch.Tensor,
    lanes: _Lanes,
    act: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Let lanes act in turn: `act(old, which)` is what lanes `which` leave; return what they saw."""
    seen = torch.empty(len(lanes.elements), dtype=row.dtype)
    by_turn = lanes.turn.argsort(stable=True)
    for which in by_turn.split(torch.bincount(lanes.turn).tolist()):
        at = lanes.elements[which]
        old = row[at]
        seen[which] = old
        row[at] = act(old, which)
    return seen


def _scanned(row: torch.Tensor, lanes: _Lanes, values: torch.Tensor, combine: Combine) -> torch.Tensor:
    """Do what `_in_turn` does where the order of combining makes no difference."""
    total = values
    step = 1
    while step < lanes.turns:
        inside = lanes.turn[step:] >= step
        total = torch.cat(
            [total[:step], torch.where(inside, combine(total[:-step], total[step:]), total[step:])]
        )
        step *= 2
    old = row[lanes.elements]
    after = combine(old, total)
    seen = old.clone()
    seen[1:] = torch.where(lanes.first[1:], old[1:], after[:-1])
    row[lanes.elements[lanes.last]] = after[lanes.last]
    return seen


def _summed(row: torch.Tensor, lanes: _Lanes, values: torch.Tensor) -> torch.Tensor:
    """Add floats where many lanes mean few elements: sums of each element, rounded at every step."""
    seen = torch.empty_like(values)
    lengths = torch.bincount(lanes.first.cumsum(0) - 1).tolist()
    for start, length in zip(lanes.first.nonzero().reshape(-1).tolist(), lengths, strict=True):
        element = lanes.elements[start]
        terms = torch.cat([row[element].reshape(1), values[start : start + length]])
        sums = canonical_nan(torch.from_numpy(np.add.accumulate(flush(terms, ftz=True).numpy())))
        seen[start : start + length] = sums[:-1]
        seen[start] = row[element]
        row[element] = sums[-1]
    return seen


def read_modify_write(
    mode: str, row: torch.Tensor, elements: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """Combine `values` with elements of `row`, one after another; return what each lane saw.

    Args:
        mode: Tile IR's name: "add", "addf", "umax", "xchg" ...
        row: all elements of a storage.
        elements: [n], which element each lane means, in the order in which the lanes act.
        values: [n], of the type of `row`.
    """
    lanes = _Lanes(elements)
    values = values[lanes.order]
    combine = _COMBINE[mode]
    few = lanes.turns <= _FEW
    if mode == "xchg" and not few:
        seen = row[lanes.elements]
        seen[1:] = torch.where(lanes.first[1:], seen[1:], values[:-1])
        row[lanes.elements[lanes.last]] = values[lanes.last]
    elif mode == "addf" and not few and row.dtype in {torch.float32, torch.float64}:
        seen = _summed(row, lanes, values)
    elif mode == "addf" or few:
        seen = _in_turn(row, lanes, lambda old, which: combine(old, values[which]))
    else:
        seen = _scanned(row, lanes, values, combine)
    return lanes.back(seen)


def compare_and_swap(
    row: torch.Tensor, elements: torch.Tensor, expected: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """Put `values` where the bits of an element are those of `expected`; return what each lane saw."""
    lanes = _Lanes(elements)
    expected, values = expected[lanes.order], values[lanes.order]
    bits = _INTEGERS[row.element_size()]

    def act(old: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        return torch.where(old.view(bits) == expected[which].view(bits), values[which], old)

    return lanes.back(_in_turn(row, lanes, act))


def _lanes(machine: Machine, frame: Frame, op: Op) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the address of each lane, and which of them act (None: all)."""
    pointers = frame[op.operands["pointers"]]
    mask = None if op.operands["mask"] is None else frame[op.operands["mask"]]
    machine.memory.forbid_access(frame, pointers, mask)
    return pointers, mask


@operation("atomic_rmw_tko")
def _atomic_rmw(machine: Machine, frame: Frame, op: Op) -> tuple[torch.Tensor, Any]:
    mode, value = op.attributes["mode"], frame[op.operands["value"]]
    seen = machine.memory.update(
        frame,
        *_lanes(machine, frame, op),
        (value,),
        lambda row, elements, values: read_modify_write(mode, row, elements, values),
        reads=mode != "xchg",
    )
    return seen, TOKEN


@operation("atomic_cas_tko")
def _atomic_cas(machine: Machine, frame: Frame, op: Op) -> tuple[torch.Tensor, Any]:
    expected, value = frame[op.operands["compare"]], frame[op.operands["value"]]
    return (
        machine.memory.update(frame, *_lanes(machine, frame, op), (expected, value), compare_and_swap),
        TOKEN,
    )


@operation("atomic_red_view_tko")
def _atomic_red_view(machine: Machine, frame: Frame, op: Op) -> Any:
    mode = op.attributes["mode"]
    target = IndexedTiles(machine, frame, frame[op.operands["view"]], op.operands["index"])
    addresses, inside = target.addresses(machine, op, "updates")
    machine.memory.update(
        frame,
        addresses,
        inside,
        (frame[op.operands["value"]],),
        lambda row, elements, values: read_modify_write(mode, row, elements, values),
    )
    return TOKEN
