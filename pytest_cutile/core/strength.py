"""How strong a check is: what it would have caught, as data, and what of that makes a case weak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """What became of one alteration."""

    CAUGHT = "caught"
    """The check would have failed."""
    MISSED = "missed"
    """The result changed and the check would have passed."""
    UNCHANGED = "changes nothing"
    """This case's result is the same with the alteration: its inputs or sizes hide it."""


class Matters(StrEnum):
    """What it says if an alteration is not caught."""

    CASE = "case"
    """The case is weak."""
    KERNEL = "kernel"
    """The kernel's cases are weak together if none of them catches it."""
    NOT = "not"
    """Nothing: a kernel may do this. It is worth knowing."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One alteration of a right result, or of an input, and what the check made of it."""

    alteration: str
    """What was done, the same words in every case: "two indices exchanged"."""
    where: str
    """To what: "output, dim 1"."""
    of_input: bool = False
    """Whether an input was altered, not an output."""
    outcome: str
    """A value of `Outcome`."""
    matters: str = Matters.CASE
    """A value of `Matters`."""
    detail: str = ""
    """Why it was not caught."""

    def __str__(self) -> str:
        """Return what passed: "two indices exchanged (output, dim 1): they hold the same values"."""
        return f"{self.alteration} ({self.where})" + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True, kw_only=True)
class Strength:
    """What the check of one case would have caught."""

    probes: tuple[Probe, ...]
    """All alterations that this case's shapes and dtypes allow."""
    left_out: int = 0
    """Alterations of inputs that were not tried, because each costs a run of the reference."""

    @property
    def caught(self) -> int:
        """How many were caught."""
        return sum(probe.outcome == Outcome.CAUGHT for probe in self.probes)

    @property
    def passed(self) -> tuple[Probe, ...]:
        """Those that were not caught, the weaknesses first."""
        found = [probe for probe in self.probes if probe.outcome != Outcome.CAUGHT]
        return tuple(sorted(found, key=lambda probe: [*Matters].index(Matters(probe.matters))))

    @property
    def weaknesses(self) -> tuple[Probe, ...]:
        """What makes the case weak."""
        return tuple(probe for probe in self.passed if probe.matters == Matters.CASE)

    def to_dict(self) -> dict[str, Any]:
        """Return a form of plain built-in types."""
        return {"probes": [asdict(probe) for probe in self.probes], "left_out": self.left_out}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Strength:
        """Rebuild from `to_dict`'s form."""
        return cls(probes=tuple(Probe(**each) for each in data["probes"]), left_out=data["left_out"])


def never_caught(cases: Sequence[Strength]) -> list[Probe]:
    """Return the first probe of each alteration that no case of a kernel catches, where that matters.

    Cases need not see everything: one of one row cannot see rows exchanged. One of the others has to.
    Alterations of an input are told apart by the input and its dimension.
    """
    probes = [probe for each in cases for probe in each.probes if probe.matters != Matters.NOT]
    caught = {_kind(probe) for probe in probes if probe.outcome == Outcome.CAUGHT}
    return [*{_kind(probe): probe for probe in reversed(probes) if _kind(probe) not in caught}.values()][::-1]


def _kind(probe: Probe) -> tuple[str, str]:
    return probe.alteration, probe.where if probe.of_input else ""
