"""Finds where the first NaN and the first Inf of a run come from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from pytest_cutile.interpret.faults import excerpt, user_location
from pytest_cutile.interpret.ops.access import load_addresses
from pytest_cutile.interpret.show import show_number

if TYPE_CHECKING:
    from pytest_cutile.interpret.ir import Entry, Location, Op
    from pytest_cutile.interpret.machine import Frame, Machine

Kind: TypeAlias = Literal["computed", "loaded", "passed", "padding"]

_MOVES = {"constant", "reshape", "broadcast", "permute", "extract", "cat", "insert", "assume", "select"}
_FLOW = {"if", "for", "loop"}
_TESTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"NaN": torch.isnan, "Inf": torch.isinf}
_MAX_ORIGINS = 50


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a NaN or an Inf comes from that no operand had."""

    value: Literal["NaN", "Inf"]
    kind: Kind
    """Computed by an operation, loaded from an array, passed to the kernel, or what pads a tile if nobody says."""
    launch: int
    """Launches before this one."""
    kernel: str
    """Name of the kernel's function."""
    op: str = ""
    """Name of the operation in Tile IR."""
    block: tuple[int, int, int] | None = None
    """The first block that has it."""
    location: Location | None = None
    """Where, in the user's source."""
    index: tuple[int, ...] = ()
    """Of the first such element, in its tile."""
    operands: tuple[tuple[str, str], ...] = ()
    """Names of the operands, and what they were for that element, as far as that is known."""
    element: str = ""
    """Name of the element that was loaded: "X[3, 5]"."""

    def __str__(self) -> str:
        if self.kind == "passed":
            return f"{self.kernel}: {self.value} is passed to the kernel as a number"
        at = f"element {list(self.index)} of the tile, in block {self.block}"
        if self.kind == "loaded":
            text = f"loads {self.value} from {self.element or 'memory'} ({at})"
        elif self.kind == "padding":
            text = f"loads a tile that sticks out of its array, with no padding_mode: anything may be in {at}"
        else:
            found = ", ".join(f"{name} = {value}" for name, value in self.operands)
            text = f"{self.op} makes {self.value}{f' of {found}' if found else ''} ({at})"
        return f"{self.kernel}: {text}" + (excerpt(self.location) if self.location else "")


class NonfiniteFinder:
    """Looks for NaN and Inf in what each operation returns, and for operands that had none."""

    def __init__(self) -> None:
        self.origins: list[Origin] = []
        """One for each operation and value, in the order in which they were found."""
        self._seen: set[tuple[str, int]] = set()
        self._launch = -1

    def first(self, value: Literal["NaN", "Inf"]) -> Origin | None:
        """Return the first origin of a value: what pads tiles, or was passed, only if there is no other."""
        found = [origin for origin in self.origins if origin.value == value]
        kinds: tuple[Kind, ...]
        for kinds in (("computed", "loaded"), ("passed",), ("padding",)):
            for origin in found:
                if origin.kind in kinds:
                    return origin
        return None

    def begin_launch(self, machine: Machine, entry: Entry, arguments: Sequence[torch.Tensor]) -> None:
        """Look at the numbers that are passed to the kernel."""
        del entry
        self._launch += 1
        self._seen = set()
        for argument in arguments:
            if argument.dtype.is_floating_point and not math.isfinite(float(argument)):
                value: Literal["NaN", "Inf"] = "NaN" if math.isnan(float(argument)) else "Inf"
                self._add(Origin(value=value, kind="passed", launch=self._launch, kernel=machine.kernel))

    def ran(self, machine: Machine, frame: Frame, op: Op) -> None:
        """Look at what an operation returned."""
        if op.name in _MOVES or op.name in _FLOW or id(op) in machine.definitions.private:
            return
        for value in op.results:
            result = frame.values[value]
            if not isinstance(result, torch.Tensor) or not result.dtype.is_floating_point:
                continue
            if result.numel() == 0 or _is_finite(result):
                continue
            for name, test in _TESTS.items():
                if (name, id(op)) in self._seen:
                    continue
                bad = test(_wide(result))
                if bad.any():
                    self._find(machine, frame, op, bad, name)  # type: ignore[arg-type]

    def _find(
        self, machine: Machine, frame: Frame, op: Op, bad: torch.Tensor, value: Literal["NaN", "Inf"]
    ) -> None:
        kind: Kind = "computed"
        element = ""
        if op.name.startswith("load_"):
            addresses, inside, padded = load_addresses(machine, frame, op)
            shape = (max(len(bad), len(addresses)), *bad.shape[1:])
            bad = bad.expand(shape)
            read = bad if inside is None else bad & inside
            if read.any():
                kind, bad = "loaded", read
                address = int(addresses.expand(shape)[tuple(bad.nonzero()[0])])
                found = machine.memory.at(address)
                element = found[0].describe(found[1]) if found else ""
            elif padded:
                return
            else:
                kind = "padding"
        elif op.name.startswith("atomic_"):
            kind = "loaded"
        else:
            bad = bad & ~_had(frame, op, bad, _TESTS[value])
            if not bad.any():
                return
        row, *index = (int(each) for each in bad.nonzero()[0])
        number = int(frame.blocks[row if len(bad) > 1 else 0])
        self._seen.add((value, id(op)))
        self._add(
            Origin(
                value=value,
                kind=kind,
                launch=self._launch,
                kernel=machine.kernel,
                op=op.name,
                block=machine.block_of(number),
                location=user_location(op.location),
                index=tuple(index),
                operands=_operands(frame, op, bad, (row, *index)) if kind == "computed" else (),
                element=element,
            )
        )

    def _add(self, origin: Origin) -> None:
        if len(self.origins) < _MAX_ORIGINS:
            self.origins.append(origin)


def _wide(tile: torch.Tensor) -> torch.Tensor:
    return tile.float() if tile.element_size() == 1 else tile


def _is_finite(tile: torch.Tensor) -> bool:
    """Return whether all elements are finite, or at times False though they are."""
    dtype = torch.float32 if tile.element_size() < 4 else tile.dtype  # noqa: PLR2004
    return math.isfinite(float(_wide(tile).sum(dtype=dtype)))


def _tiles(frame: Frame, op: Op) -> list[tuple[str, torch.Tensor]]:
    """Return the operands that are tiles of floats, by name."""
    found = []
    for name, operand in op.operands.items():
        values = operand if isinstance(operand, tuple) else (operand,)
        for value in values:
            tile = None if value is None else frame[value]
            if isinstance(tile, torch.Tensor) and tile.dtype.is_floating_point:
                found.append((name, tile))
    return found


def _had(
    frame: Frame, op: Op, bad: torch.Tensor, test: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Return which elements of a result have such a value among what they were made of, `[blocks, ...]`."""
    had = torch.zeros_like(bad)
    for name, tile in _tiles(frame, op):
        found = test(_wide(tile))
        if not found.any():
            continue
        if op.name.startswith("mma") and name in {"lhs", "rhs"}:
            found = found.any(dim=-1 if name == "lhs" else -2, keepdim=True)
        elif op.name in {"reduce", "scan"}:
            found = found.any(dim=op.attributes["axis"] + 1, keepdim=op.name == "scan")
        elif found.shape[1:] != bad.shape[1:]:
            found = found.reshape(len(found), -1).any(dim=1).reshape(-1, *[1] * (bad.dim() - 1))
        had = had | found
    return had


def _operands(frame: Frame, op: Op, bad: torch.Tensor, lane: tuple[int, ...]) -> tuple[tuple[str, str], ...]:
    """Return what the operands of one element were, of operations that work element by element."""
    row, *index = lane
    return tuple(
        (name, show_number(tile[(row if len(tile) > 1 else 0, *index)]))
        for name, tile in _tiles(frame, op)
        if tile.shape[1:] == bad.shape[1:] and (op.name not in {"reduce", "scan", "mmaf"} or name == "acc")
    )
