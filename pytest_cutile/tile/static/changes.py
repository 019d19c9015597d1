"""What a comparison of compiled code consists of: changes, each worse, better or only different."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Effect(StrEnum):
    """What a change means."""

    WORSE = "worse"
    BETTER = "better"
    DIFFERENT = "different"


@dataclass(frozen=True, kw_only=True)
class Change:
    """One difference between the baseline and the current code of a case."""

    effect: Effect
    quantity: str
    """What changed: "registers per thread", "load"."""
    baseline: str
    current: str
    place: str = ""
    """File and line in the kernel's source, where the change has one."""
    detail: str = ""
    """Why, as far as that is known."""
    needs_reason: bool = False
    """Whether it is no improvement, and going back would be worse: alone it is not recorded unasked."""

    @property
    def text(self) -> str:
        place = f"{self.place}: " if self.place else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{place}{self.quantity}: {self.baseline} -> {self.current}{detail}"


@dataclass(frozen=True, kw_only=True)
class StaticComparison:
    """All differences of a case."""

    changes: tuple[Change, ...]
    """Worse ones first, then better ones; within an effect in the order of the rules."""
    unknown: tuple[str, ...]
    """What the baseline has and the current facts lack, because a tool is missing."""

    def of(self, effect: Effect) -> list[Change]:
        return [change for change in self.changes if change.effect is effect]
