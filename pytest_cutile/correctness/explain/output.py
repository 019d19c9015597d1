"""The wrong output that is explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class WrongOutput:
    """An output that is wrong, or a part of it."""

    name: str
    out: torch.Tensor
    exact: torch.Tensor
    wrong: torch.Tensor
    """bool: elements outside the bound; where only all together fail, those not correctly rounded."""

    @cached_property
    def bad(self) -> int:
        return int(self.wrong.sum())

    @cached_property
    def values(self) -> torch.Tensor:
        """The output in a dtype that torch's operators take: float16 for 8-bit floats, int64 for integers."""
        if not self.out.dtype.is_floating_point:
            return self.out.long()
        return (self.out.half() if self.out.itemsize == 1 else self.out).detach()

    def part(self, box: Sequence[slice]) -> WrongOutput:
        box = tuple(box)
        return replace(self, out=self.out[box], exact=self.exact[box], wrong=self.wrong[box])

    def count(self, elements: torch.Tensor) -> int:
        """Return how many wrong elements are among these, a bool tensor."""
        return int((elements & self.wrong).sum())
