"""Follows what nothing determines: padding that no padding_mode chooses, memory that nothing has written.

Such an element carries the number of its origin from operation to operation. An operation that does not
depend on the element drops it, as `where` does with what its mask leaves out. What is stored, or decides a
branch, an index or a mask, may not depend on one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pytest_cutile.tile.interpreter.analysis import named_operands
from pytest_cutile.tile.interpreter.faults import FaultKind, KernelFault, user_location
from pytest_cutile.tile.interpreter.frames import Frame, first_block
from pytest_cutile.tile.interpreter.ir import Op
from pytest_cutile.tile.interpreter.values import mark_undetermined, origins_of, undetermined

_ANY_VALUE = 1 << 14
"""Bit of an origin's number: the element may be NaN or infinite, which a product with zero is not zero of."""
_MOST_ORIGINS = _ANY_VALUE - 1


@dataclass(frozen=True, kw_only=True)
class _Origin:
    """Where an undetermined value comes from."""

    kind: FaultKind
    """Kind of the fault that the value makes."""
    element: str
    """The first element that nothing has written, and its array; empty: it is padding."""
    op: Op | None

    def __str__(self) -> str:
        place = user_location(self.op.location) if self.op is not None else None
        at = f" at {place}" if place else ""
        if self.element:
            return f"{self.element}, which nothing has written" + (f" (loaded{at})" if at else "")
        return f"undetermined padding: the load{at} reaches beyond its array and has no padding_mode"


class Undetermined:
    """The origins of one launch; false while there is none."""

    def __init__(self) -> None:
        self._origins: dict[tuple[int, str], _Origin] = {}

    def __bool__(self) -> bool:
        return bool(self._origins)

    def padding(self, op: Op) -> int:
        """Return the number of the origin that is the padding of a load."""
        return self._number(_Origin(kind="undetermined", element="", op=op))

    def unwritten(self, op: Op | None, element: str) -> int:
        """Return the number of the origin that is memory, described by its first element."""
        return self._number(_Origin(kind="uninitialized", element=element, op=op))

    def _number(self, origin: _Origin) -> int:
        key = id(origin.op), origin.kind
        self._origins.setdefault(key, origin)
        return min([*self._origins].index(key) + 1, _MOST_ORIGINS) | _ANY_VALUE

    def forbid(
        self,
        frame: Frame,
        value: torch.Tensor,
        use: str | Callable[[torch.Tensor], str],
        lanes: torch.Tensor | None = None,
    ) -> None:
        """Check that a use does not depend on anything undetermined.

        Args:
            frame: the blocks.
            value: what is used, `[blocks, ...]`.
            use: words before "what depends on ...", or what makes them of the elements at fault.
            lanes: which elements are used; None: all.

        Raises:
            KernelFault: it does.
        """
        origins = undetermined(value)
        if origins is None:
            return
        if lanes is not None:
            origins = origins * lanes
        bad = origins > 0
        if not bad.any():
            return
        origin = [*self._origins.values()][(int(origins[bad][0]) & _MOST_ORIGINS) - 1]
        words = use if isinstance(use, str) else use(bad)
        raise KernelFault(origin.kind, f"{words} what depends on {origin}", block=first_block(frame, bad))


# -- through an operation -----------------------------------------------------------------------------

_OF_THEIR_OWN = {
    *("reshape", "broadcast", "permute", "cat", "extract", "insert", "assume", "reduce", "scan"),
    *("load_view_tko", "load_ptr_tko", "atomic_rmw_tko", "atomic_cas_tko"),
}
"""Operations that move elements with their origins, and those whose result has origins of its own."""
_PRODUCTS = {"mmaf", "mmai", "mmaf_scaled"}
_BYTES = {"pack", "unpack"}
_FINITE_OF_FINITE = {"select", "mulf", "negf", "absf", "maxf", "minf"}
"""Operations whose result is finite if their operands are: masks as floats are too small to overflow."""


def propagate(frame: Frame, op: Op, result: Any) -> None:
    """Mark what of an operation's result depends on undetermined elements of its operands."""
    if op.name in _OF_THEIR_OWN or not isinstance(result, torch.Tensor):
        return
    operands = {name: frame[value] for name, value in named_operands(op)}
    tiles = [tile for tile in operands.values() if isinstance(tile, torch.Tensor)]
    if all(undetermined(tile) is None for tile in tiles) or any(result is tile for tile in tiles):
        return
    if op.name == "select":
        _mark_selected(operands["condition"], operands["if_true"], operands["if_false"], result)
    elif op.name in _PRODUCTS:
        mark_undetermined(result, _through_product(operands, exact=op.name == "mmai"))
    elif op.name in _BYTES:
        mark_undetermined(result, _through_bytes(origins_of(tiles[0]), result.shape))
    else:
        origins = origins_of(tiles[0])
        for tile in tiles[1:]:
            origins = torch.maximum(origins, origins_of(tile))
        if op.name in _OF_TWICE_THE_SAME and tiles[0] is tiles[1]:
            return
        for tile, settles in zip(tiles, _settling(op, tiles[0].dtype), strict=False):
            if settles is not None:
                settled = (origins_of(tile) == 0) & (tile == settles)
                origins = origins * ~(settled & (op.name != "mulf" or origins < _ANY_VALUE))
        if op.name == "itof":
            origins = origins & _MOST_ORIGINS
        elif op.name not in _FINITE_OF_FINITE:
            origins = origins + (origins > 0) * (~origins & _ANY_VALUE)
        mark_undetermined(result, origins)


_OF_TWICE_THE_SAME = {"xori", "subi", "cmpi"}
"""Operations of integers whose result is the same for every operand, if both are the same one."""


def _settling(op: Op, dtype: torch.dtype) -> tuple[float | None, float | None]:
    """Return which left and which right operand determine a result whatever the other one is, if any does.

    Args:
        op: an operation.
        dtype: of its operands.
    """
    low, high = _range(dtype, signed=op.attributes.get("signed") == "signed")
    ones = 1 if dtype == torch.bool else -1
    by_name: dict[str, tuple[float | None, float | None]] = {
        **dict.fromkeys(("mulf", "muli", "mulhii", "andi"), (0, 0)),
        "ori": (ones, ones),
        **dict.fromkeys(("shli", "shri"), (0, None)),
        "remi": (None, 1),
        "maxi": (high, high),
        "mini": (low, low),
        **dict.fromkeys(("less", "greater_equal"), (high, low)),
        **dict.fromkeys(("greater", "less_equal"), (low, high)),
    }
    if not op.attributes.get("propagate_nan"):
        by_name |= {"maxf": (math.inf, math.inf), "minf": (-math.inf, -math.inf)}
    return by_name.get(op.attributes["predicate"] if op.name == "cmpi" else op.name, (None, None))


def _range(dtype: torch.dtype, *, signed: bool) -> tuple[int, int]:
    """Return the lowest and the highest integer, as its bits are read in a signed tensor."""
    if dtype == torch.bool:
        return (1, 0) if signed else (0, 1)
    if dtype.is_floating_point or not signed:
        return 0, -1
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


def _mark_selected(
    condition: torch.Tensor, yes: torch.Tensor, no: torch.Tensor, result: torch.Tensor
) -> None:
    """Add what the condition leaves open, unless both sides are the same; the sides' own are there."""
    open_ = origins_of(condition)
    open_ = open_.reshape(len(open_), *[1] * (result.dim() - 1)) if open_.dim() < result.dim() else open_
    same = (yes == no) & (origins_of(yes) == 0) & (origins_of(no) == 0)
    open_ = torch.where(yes.isfinite() & no.isfinite(), open_ & _MOST_ORIGINS, open_)
    mark_undetermined(result, torch.maximum(origins_of(result), open_ * ~same))


def _through_product(operands: dict[str, torch.Tensor], *, exact: bool) -> torch.Tensor:
    """Return the origins of a matrix product; of integers, what is multiplied by zero does not count."""
    lhs, rhs, acc = (operands[name] for name in ("lhs", "rhs", "acc"))
    left, right = (_scaled(operands, name) for name in ("lhs", "rhs"))
    counts = [
        ((tile != 0) | (origins > 0)).float() if exact else torch.ones(tile.shape)
        for tile, origins in ((lhs, left), (rhs, right))
    ]
    reached = (torch.matmul((left > 0).float(), counts[1]) + torch.matmul(counts[0], (right > 0).float())) > 0
    return torch.maximum(reached * torch.maximum(left.max(), right.max()), origins_of(acc))


def _scaled(operands: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """Return the origins of one side of a matrix product and of its scales, if it has any."""
    origins = origins_of(operands[name])
    if (scale := operands.get(f"{name}_scale")) is None:
        return origins
    axis = -1 if name == "lhs" else -2
    scales = origins_of(scale)
    return torch.maximum(
        origins, scales.repeat_interleave(origins.shape[axis] // scales.shape[axis], dim=axis)
    )


def _through_bytes(origins: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return the origins of elements that are made of others' bytes, in the same order."""
    many, few = origins.shape[-1], shape[-1]
    if many < few:
        return origins.repeat_interleave(few // many, dim=-1)
    return origins.reshape(*origins.shape[:-1], few, many // few).amax(dim=-1)
