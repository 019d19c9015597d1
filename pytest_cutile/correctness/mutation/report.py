"""What mutation testing of a check has shown, as data, and what of that makes a case weak. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """The outcome of one mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    """The result changed and the check would have passed."""
    EQUIVALENT = "equivalent"
    """The mutant's result is the right one: the case's inputs or sizes hide the mutation."""


class Weakness(StrEnum):
    """What is weak if a mutant is not killed."""

    CASE = "case"
    KERNEL = "kernel"
    """The kernel's cases together, if none of them kills the mutant."""
    NONE = "none"
    """Nothing: a kernel may do this. It is worth knowing."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A right result, or an input, with one mutation, and whether the check kills it."""

    mutation: str
    """Words for the mutation, equal in every case: "two indices exchanged"."""
    where: str
    """What was mutated: "output, dim 1"."""
    of_input: bool = False
    outcome: str = Outcome.KILLED
    weakness: str = Weakness.CASE
    detail: str = ""
    """Why it was not killed."""

    def __str__(self) -> str:
        """Return what survived: "two indices exchanged (output, dim 1): they hold the same values"."""
        return f"{self.mutation} ({self.where})" + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True, kw_only=True)
class MutationReport:
    """The mutants of the check of one case."""

    mutants: tuple[Mutant, ...]
    skipped: int = 0
    """Mutants of inputs that were not run, because each costs a run of the reference."""

    @property
    def killed(self) -> int:
        return sum(mutant.outcome == Outcome.KILLED for mutant in self.mutants)

    @property
    def survivors(self) -> tuple[Mutant, ...]:
        """Those that were not killed, the weaknesses first."""
        left = [mutant for mutant in self.mutants if mutant.outcome != Outcome.KILLED]
        return tuple(sorted(left, key=lambda mutant: [*Weakness].index(Weakness(mutant.weakness))))

    @property
    def weaknesses(self) -> tuple[Mutant, ...]:
        return tuple(mutant for mutant in self.survivors if mutant.weakness == Weakness.CASE)

    def to_dict(self) -> dict[str, Any]:
        return {"mutants": [asdict(mutant) for mutant in self.mutants], "skipped": self.skipped}


def never_killed(cases: Sequence[MutationReport]) -> list[Mutant]:
    """Return the first mutant of each mutation that no case of a kernel kills, where that is a weakness.

    Cases need not see everything: one of one row cannot see rows exchanged. One of the others has to.
    Mutations of an input are told apart by the input and its dimension.
    """
    mutants = [mutant for case in cases for mutant in case.mutants if mutant.weakness != Weakness.NONE]
    killed = {_group(mutant) for mutant in mutants if mutant.outcome == Outcome.KILLED}
    first = {_group(mutant): mutant for mutant in reversed(mutants) if _group(mutant) not in killed}
    return [*first.values()][::-1]


def _group(mutant: Mutant) -> tuple[str, str]:
    return mutant.mutation, mutant.where if mutant.of_input else ""
