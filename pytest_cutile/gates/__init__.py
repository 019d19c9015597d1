"""The gates: each asks one question of a case. A new gate is a module here and a row of `REGISTRY`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pytest_cutile.gates.base import Gate
    from pytest_cutile.session import Session


class Registration(NamedTuple):
    """Where a gate is. Its module is imported when a test needs it, not by pytest's start."""

    name: str
    """In test ids, markers and reports: "compile", `-m cutile_compile`."""
    question: str
    """What it does, for the list of markers."""
    place: str
    """Module and class: "pytest_cutile.gates.compile:CompileGate"."""

    def build(self, session: Session) -> Gate:
        """Return the gate of one run."""
        module, _, name = self.place.partition(":")
        gate: Gate = getattr(importlib.import_module(module), name)(session, self.name)
        return gate


REGISTRY = (
    Registration(
        "compile", "compiles a kernel for an architecture", "pytest_cutile.gates.compile:CompileGate"
    ),
    Registration(
        "static",
        "compares what a kernel was compiled to with its baseline",
        "pytest_cutile.gates.static:StaticGate",
    ),
    Registration(
        "correct", "compares a kernel with its reference", "pytest_cutile.gates.correct:CorrectGate"
    ),
    Registration(
        "speed", "times a kernel and compares it with its baseline", "pytest_cutile.gates.speed:SpeedGate"
    ),
)
"""All gates, in the order in which a case meets them."""


class Gates(Mapping[str, "Gate"]):
    """The gates of one run, by name."""

    def __init__(self, session: Session) -> None:
        self._gates = {entry.name: entry.build(session) for entry in REGISTRY}

    def __getitem__(self, name: str) -> Gate:
        return self._gates[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._gates)

    def __len__(self) -> int:
        return len(self._gates)


def load_all() -> None:
    """Import the module of every gate: what reads results from other processes needs their types."""
    for entry in REGISTRY:
        importlib.import_module(entry.place.partition(":")[0])
