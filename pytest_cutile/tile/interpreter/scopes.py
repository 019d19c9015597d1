"""Values of many passes of many blocks, computed when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch

from pytest_cutile.tile.interpreter.values import select_blocks

Maker: TypeAlias = Callable[["Scope"], Any]
"""Computes a value in a scope."""

PASS = -1
"""In a loop's body, the number of the pass, from 0: a name that no value of Tile IR has."""


class Unknown(Exception):  # noqa: N818 - no error
    """A value depends on data in memory."""


class Scope:
    """What a block of operations sees. A row is one pass of one block; operations take it for a `Frame`."""

    def __init__(
        self,
        blocks: torch.Tensor,
        outer: Scope | None = None,
        index: torch.Tensor | None = None,
        makers: dict[int, Maker] | None = None,
        *,
        guesses: bool = False,
    ) -> None:
        self.blocks = blocks
        """The number of the block, by row."""
        self.outer = outer
        self._index = index
        self.guesses = guesses
        """Whether indices that memory holds are guessed, rather than unknown."""
        self.makers = {} if makers is None else makers
        self.given: dict[int, torch.Tensor] = {}
        """Values by row that nothing computes."""
        self.computed: dict[int, Any] = {}

    @property
    def size(self) -> int:
        return len(self.blocks)

    def __getitem__(self, value: int) -> Any:
        if value in self.given:
            return self.given[value]
        if value not in self.computed:
            make = self.makers.get(value)
            self.computed[value] = self.from_outer(value) if make is None else make(self)
        return self.computed[value]

    def from_outer(self, value: int) -> Any:
        """Return a value of the scope around this one, for the rows of this one."""
        if self.outer is None:
            raise Unknown
        return self.select(self.outer[value])

    def select(self, outer: Any) -> Any:
        """Return a value that the scope around this one has by row, for the rows of this one."""
        return outer if self._index is None else select_blocks(outer, self._index)

    def inner(self, index: torch.Tensor | None = None) -> Scope:
        """Make a scope inside of this one; `index` says of which row each of its rows is."""
        return Scope(self.blocks if index is None else self.blocks[index], self, index, guesses=self.guesses)

    def of(self, rows: torch.Tensor, *, guesses: bool = False) -> Scope:
        """Return this scope for some of its rows; what has been computed is computed anew for these."""
        index = rows if self._index is None else self._index[rows]
        outer = None if self.outer is None else self.outer.of(index, guesses=guesses)
        few = Scope(self.blocks[rows], outer, None, self.makers, guesses=guesses)
        few.given = {value: select_blocks(data, rows) for value, data in self.given.items()}
        return few

    def under(self, outer: Scope) -> Scope:
        """Return this scope, which has a row for each of `outer`, inside of `outer`."""
        return Scope(outer.blocks, outer, None, self.makers, guesses=outer.guesses)


# -- makers, but for their first arguments --------------------------------------------------------------


def unknown(_: Scope) -> Any:
    """Compute nothing: the value depends on data."""
    raise Unknown


def get(value: int, scope: Scope) -> Any:
    """Return a value of the scope."""
    return scope[value]


def get_outer(value: int, scope: Scope) -> Any:
    """Return a value of the scope around this one."""
    return scope.from_outer(value)


def computed_inside(inner: Scope, make: Maker, scope: Scope) -> Any:
    """Return a value of the scope `inner`, which has a row for each of this one."""
    return make(inner.under(scope))


def choose(condition: int, one: Maker, other: Maker, scope: Scope) -> Any:
    """Return what the branch ends with that each row takes."""
    values = one(scope), other(scope)
    if not all(isinstance(value, torch.Tensor) for value in values):
        raise Unknown
    taken = scope[condition].reshape(-1, *[1] * (values[0].dim() - 1))
    return torch.where(taken, *values)


def in_line(initial: int, after_first: Maker, ahead: int, scope: Scope) -> torch.Tensor:
    """Return what a loop carries into a pass, or one `ahead`, if each pass changes it as the first does."""
    assert scope.outer is not None
    start = scope.from_outer(initial)
    step = scope.select(after_first(scope.outer)) - start
    passes = (scope[PASS] + ahead).reshape(-1, *[1] * (start.dim() - 1))
    return torch.as_tensor(start + passes * step).to(start.dtype)


def known(scope: Scope, value: int) -> Any:
    """Return a value; None where it depends on data, or nothing here computes it."""
    return computed(partial(get, value), scope)


def computed(make: Maker, scope: Scope) -> Any:
    """Return what is made in a scope; None where that is unknown."""
    try:
        return make(scope)
    except Exception:  # noqa: BLE001 - what operations raise that lack an operand is many things
        return None
