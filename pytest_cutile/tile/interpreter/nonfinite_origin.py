"""Finds where the first NaN and the first Inf of a run come from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from pytest_cutile.tile.interpreter.analysis import FLOW, named_operands
from pytest_cutile.tile.interpreter.faults import Occurrence, excerpt, user_location
from pytest_cutile.tile.interpreter.formatting import plain_name, show_number
from pytest_cutile.tile.interpreter.frames import Frame
from pytest_cutile.tile.interpreter.ir import Op
from pytest_cutile.tile.interpreter.machine import Machine
from pytest_cutile.tile.interpreter.ops.access import accessed
from pytest_cutile.tile.interpreter.values import of_block

Nonfinite: TypeAlias = Literal["NaN", "Inf"]
OriginKind: TypeAlias = Literal["computed", "loaded", "passed"]

_MOVES = {"constant", "reshape", "broadcast", "permute", "extract", "cat", "insert", "assume", "select"}
_TESTS: dict[Nonfinite, Callable[[torch.Tensor], torch.Tensor]] = {"NaN": torch.isnan, "Inf": torch.isinf}
_MAX_CANDIDATES = 200
_MAX_STORES = 16


@dataclass(frozen=True, kw_only=True)
class Origin(Occurrence):
    """Where a NaN or an Inf comes from that no operand had, in the first block that has it."""

    value: Nonfinite
    kind: OriginKind
    """Computed by an operation, loaded from an array, or passed to the kernel."""
    index: tuple[int, ...] = ()
    """Index of the first such element in its tile."""
    operands: tuple[tuple[str, str], ...] = ()
    """Names of the operands, and what they were for that element, as far as that is known."""
    element: str = ""
    """Name of the element that was loaded: "X[3, 5]"."""
    infinity: str = ""
    """What a NaN was made of, if that was an Inf: "the padding of the load at file:line:column"."""

    def __str__(self) -> str:
        if self.kind == "passed":
            return f"{self.kernel}: {self.value} is passed to the kernel as a number"
        at = f"element {list(self.index)} of the tile, in block {self.block}"
        if self.kind == "loaded":
            text = f"loads {self.value} from {self.element or 'memory'} ({at})"
        else:
            operands = ", ".join(f"{name} = {value}" for name, value in self.operands)
            text = f"{plain_name(self.op)} makes {self.value}{f' of {operands}' if operands else ''} ({at})"
        text = f"{self.kernel}: {text}{excerpt(self.location)}"
        return text + (f"\n  its Inf comes from {self.infinity}" if self.infinity else "")


@dataclass(frozen=True, eq=False, kw_only=True)
class _Infinity:
    """An operation that returned the Inf that a NaN was made of, and had none itself."""

    op: Op | None
    """None: it is a parameter of the kernel or of a loop."""
    bad: torch.Tensor
    """Which elements, `[blocks, ...]`."""
    addresses: torch.Tensor | None = None
    inside: torch.Tensor | None = None

    def describe(self, machine: Machine, row: int) -> str:
        """Return what it is, and where, in one block; empty if that block has none."""
        bad = of_block(self.bad, row)
        if not bad.any():
            return ""
        if self.op is None:
            return "a parameter of the kernel or of a loop"
        place = user_location(self.op.location)
        text = plain_name(self.op.name)
        if self.addresses is not None:
            index = bad.nonzero()[0].tolist()
            if self.inside is not None and not bool(element_of(self.inside, row, index)):
                text = f"the padding of the {text}"
            elif element := machine.memory.describe(int(element_of(self.addresses, row, index))):
                text = f"{element}, loaded"
        return f"{text} at {place}" if place else text


@dataclass(frozen=True, eq=False, kw_only=True)
class _Candidate:
    """What an operation made, of several blocks, that no operand had."""

    value: Nonfinite
    kind: OriginKind
    launch: int
    machine: Machine
    op: Op | None = None
    blocks: list[int]
    """Their numbers."""
    bad: torch.Tensor
    """Which elements, `[blocks, ...]`."""
    operands: list[tuple[str, torch.Tensor]]
    addresses: torch.Tensor | None = None
    infinity: _Infinity | None = None

    def origin(self, row: int, lanes: torch.Tensor) -> Origin:
        """Return the origin of the first of these elements of a block."""
        if self.op is None:
            return Origin(value=self.value, kind=self.kind, launch=self.launch, kernel=self.machine.kernel)
        index = tuple(lanes.nonzero()[0].tolist())
        element = ""
        if self.kind == "loaded" and self.addresses is not None:
            element = self.machine.memory.describe(int(element_of(self.addresses, row, index)))
        return Origin(
            value=self.value,
            kind=self.kind,
            launch=self.launch,
            kernel=self.machine.kernel,
            op=self.op.name,
            block=self.machine.block_of(self.blocks[row]),
            location=user_location(self.op.location),
            index=index,
            operands=tuple(
                (name, show_number(element_of(tile, row, index)))
                for name, tile in self.operands
                if self.kind == "computed" and tile.shape[1:] == lanes.shape
            ),
            element=element,
            infinity=self.infinity.describe(self.machine, row) if self.infinity else "",
        )


class NonfiniteFinder:
    """Looks for NaN and Inf in what each operation returns, and for operands that had none."""

    def __init__(self) -> None:
        self._candidates: list[_Candidate] = []
        self._blocks: dict[tuple[Nonfinite, OriginKind, int], set[int]] = {}
        self._stored: dict[tuple[Nonfinite, int, int], list[torch.Tensor]] = {}
        """Which elements of a tile were stored, by value, launch and block."""
        self._launch = -1

    def first(self, value: Nonfinite) -> Origin | None:
        """Return where the first NaN or Inf that was stored comes from; None: none was.

        The most likely origin is an operation that made the value in an element that was stored. The next is
        a number that was passed to the kernel. The last is an operation that made the value in another
        element of a tile, from which a sum, say, may have spread it.
        """
        made = [one for one in self._candidates if one.value == value and one.kind != "passed"]
        passed = [one for one in self._candidates if one.value == value and one.kind == "passed"]
        likely = itertools.chain(
            self._origins_of_stored(made),
            self._origins_of_stored(passed),
            self._origins_of_stored(made, is_spread=True),
        )
        return next(likely, None)

    def _origins_of_stored(
        self, candidates: Sequence[_Candidate], *, is_spread: bool = False
    ) -> Iterator[Origin]:
        """Yield the origins in blocks that stored the value, in the same elements unless it `is_spread`.

        Elements of tiles of different shapes cannot be compared: then any element counts.
        """
        for candidate in candidates:
            for row, block in enumerate(candidate.blocks):
                lanes = of_block(candidate.bad, row)
                if not lanes.any():
                    continue
                for stored in self._stored.get((candidate.value, candidate.launch, block), ()):
                    if is_spread or stored.shape != lanes.shape:
                        yield candidate.origin(row, lanes)
                    elif (lanes & stored).any():
                        yield candidate.origin(row, lanes & stored)

    def origins(self, value: Nonfinite) -> list[Origin]:
        """Return an origin for each operation that made or loaded one, also if that was never stored."""
        origins = []
        for candidate in self._candidates:
            if candidate.value == value:
                row = int(candidate.bad.reshape(len(candidate.bad), -1).any(dim=1).nonzero()[0])
                origins.append(candidate.origin(row, candidate.bad[row]))
        return origins

    def begin_launch(self, machine: Machine, arguments: Sequence[torch.Tensor]) -> None:
        """Look at the numbers that are passed to the kernel."""
        self._launch += 1
        self._blocks = {}
        for argument in arguments:
            if argument.dtype.is_floating_point and not math.isfinite(float(argument)):
                self._candidates.append(
                    _Candidate(
                        value="NaN" if math.isnan(float(argument)) else "Inf",
                        kind="passed",
                        launch=self._launch,
                        machine=machine,
                        blocks=list(range(math.prod(machine.grid))),
                        bad=torch.ones(1, dtype=torch.bool),
                        operands=[],
                    )
                )

    def ran(self, machine: Machine, frame: Frame, op: Op) -> None:
        if op.name in _MOVES or op.name in FLOW or id(op) in machine.definitions.private:
            return
        if op.operands.get("value") is not None and op.name.startswith(("store_", "atomic_")):
            self._record_stored(machine, frame, op, frame[op.operands["value"]])
        for value in op.results:
            result = frame.values[value]
            if not isinstance(result, torch.Tensor) or not result.dtype.is_floating_point:
                continue
            if result.numel() == 0 or _is_finite(result):
                continue
            for name, test in _TESTS.items():
                bad = test(_wide(result))
                if bad.any() and len(self._candidates) < _MAX_CANDIDATES:
                    self._find(machine, frame, op, bad, name)

    def _record_stored(self, machine: Machine, frame: Frame, op: Op, tile: torch.Tensor) -> None:
        if not tile.dtype.is_floating_point or tile.numel() == 0 or _is_finite(tile):
            return
        inside = accessed(machine, frame, op)[1]
        for name, test in _TESTS.items():
            bad = test(_wide(tile))
            if inside is not None:
                bad = bad & inside
            if not bad.any():
                continue
            for row, block in enumerate(frame.blocks.tolist()):
                lanes = of_block(bad, row)
                if lanes.any():
                    stored = self._stored.setdefault((name, self._launch, block), [])
                    if len(stored) < _MAX_STORES:
                        stored.append(lanes)

    def _find(self, machine: Machine, frame: Frame, op: Op, bad: torch.Tensor, value: Nonfinite) -> None:
        if not op.name.startswith("load_"):
            if op.name.startswith("atomic_"):
                self._keep(machine, frame, op, bad, value, "loaded", None)
            else:
                made = bad & ~_had(frame, op, bad, _TESTS[value])
                infinity = _infinity(machine, frame, op, made) if value == "NaN" and made.any() else None
                self._keep(machine, frame, op, made, value, "computed", None, infinity)
            return
        addresses, inside = accessed(machine, frame, op)
        read = bad if inside is None else bad & inside
        self._keep(machine, frame, op, read, value, "loaded", addresses)

    def _keep(
        self,
        machine: Machine,
        frame: Frame,
        op: Op,
        bad: torch.Tensor,
        value: Nonfinite,
        kind: OriginKind,
        addresses: torch.Tensor | None,
        infinity: _Infinity | None = None,
    ) -> None:
        """Keep a candidate, if it has blocks that the operation has none of yet."""
        blocks = frame.blocks.tolist()
        rows = bad.reshape(len(bad), -1).any(dim=1).expand(len(blocks)).tolist()
        here = {block for block, row in zip(blocks, rows, strict=True) if row}
        known = self._blocks.setdefault((value, kind, id(op)), set())
        if here <= known:
            return
        known |= here
        self._candidates.append(
            _Candidate(
                value=value,
                kind=kind,
                launch=self._launch,
                machine=machine,
                op=op,
                blocks=blocks,
                bad=bad,
                operands=[(name, tile) for name, _, tile in _float_operands(frame, op)],
                addresses=addresses,
                infinity=infinity,
            )
        )


def element_of(tensor: torch.Tensor, row: int, index: Sequence[int]) -> torch.Tensor:
    """Return an element of a block from what broadcasts to a tile of blocks."""
    whole = (row, *index)
    return tensor[tuple(at if length > 1 else 0 for at, length in zip(whole, tensor.shape, strict=True))]


def _wide(tile: torch.Tensor) -> torch.Tensor:
    return tile.float() if tile.element_size() == 1 else tile


def _is_finite(tile: torch.Tensor) -> bool:
    """Return whether all elements are finite, or at times False though they are."""
    dtype = torch.float32 if tile.element_size() < 4 else tile.dtype  # noqa: PLR2004
    return math.isfinite(float(_wide(tile).sum(dtype=dtype)))


def _float_operands(frame: Frame, op: Op) -> Iterator[tuple[str, int, torch.Tensor]]:
    """Yield name, value and tile of the operands that are tiles of floats."""
    for name, value in named_operands(op):
        tile = frame[value]
        if isinstance(tile, torch.Tensor) and tile.dtype.is_floating_point:
            yield name, value, tile


def _infinity(machine: Machine, frame: Frame, op: Op, made: torch.Tensor) -> _Infinity | None:
    """Follow an Inf among the operands back to the operation that made it; None: no operand has an Inf.

    `made` says which elements of the result it went into. All blocks are followed together, along the first
    operand that has one there.
    """
    infinity: _Infinity | None = None
    bad = made
    while True:
        # Of operands of another shape, such as a sum's, any element may have gone into the result.
        tests = (
            (value, inf & bad if inf.shape[1:] == bad.shape[1:] else inf)
            for _, value, tile in _float_operands(frame, op)
            for inf in [torch.isinf(_wide(tile))]
        )
        value, bad = next(((value, inf) for value, inf in tests if inf.any()), (None, bad))
        if value is None:
            return infinity
        source = machine.definitions.made_by.get((id(op), value))
        infinity = _Infinity(op=source, bad=bad)
        if source is None or source.name in FLOW:
            return infinity
        if source.name.startswith("load_"):
            addresses, inside = accessed(machine, frame, source)
            return _Infinity(op=source, bad=bad, addresses=addresses, inside=inside)
        op = source


def _had(
    frame: Frame, op: Op, bad: torch.Tensor, test: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Return which elements of a result have such a value among what they were made of, `[blocks, ...]`."""
    had = torch.zeros_like(bad)
    for name, _, tile in _float_operands(frame, op):
        lanes = test(_wide(tile))
        if not lanes.any():
            continue
        if op.name.startswith("mma") and name in {"lhs", "rhs"}:
            lanes = lanes.any(dim=-1 if name == "lhs" else -2, keepdim=True)
        elif op.name in {"reduce", "scan"}:
            lanes = lanes.any(dim=op.attributes["axis"] + 1, keepdim=op.name == "scan")
        elif lanes.shape[1:] != bad.shape[1:]:
            lanes = lanes.reshape(len(lanes), -1).any(dim=1).reshape(-1, *[1] * (bad.dim() - 1))
        had = had | lanes
    return had
