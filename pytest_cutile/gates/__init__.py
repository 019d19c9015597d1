"""The gates: each asks one question of a case.

`base.py` has `Task` and `Gate`. `compile.py` is the shortest gate; then come `static.py`, `correct.py` and
the folder `speed/`. `declared.py` makes calls of a declared case, `session.py` has the services of a run,
`outcome.py` makes outcomes of tests. A new gate is a module here, a row of `REGISTRY`, a type of result and
its reasons (`words/`).
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from pytest_cutile.gates.base import Gate


class Registration(NamedTuple):
    """Where a gate is. Its module is imported when a test needs it, not by pytest's start."""

    name: str
    """In test ids, markers and reports: "compile", `-m cutile_compile`."""
    question: str
    """What it does, for the list of markers."""
    target: str
    """Module and class: "pytest_cutile.gates.compile:CompileGate"."""
    needs: tuple[str, ...] = ("compiler",)
    """What it cannot do without, for `pytest-cutile doctor`, which knows their names."""
    without_gpu: str = ""
    """What it does on a machine without a GPU, if it would use one."""


REGISTRY = (
    Registration("compile", "compiles a kernel for an architecture", f"{__name__}.compile:CompileGate"),
    Registration(
        "correct",
        "compares a kernel with its reference",
        f"{__name__}.correct:CorrectGate",
        without_gpu="kernels are interpreted on the CPU",
    ),
    Registration(
        "static",
        "compares what a kernel was compiled to with its baseline",
        f"{__name__}.static:StaticGate",
        needs=("compiler", "tools"),
    ),
    Registration(
        "speed",
        "times a kernel and compares it with its baseline",
        f"{__name__}.speed.gate:SpeedGate",
        needs=("GPU", "compiler", "lock"),
    ),
)
"""All gates, in the order in which a case meets them: of a wrong kernel, neither code nor speed is judged."""


Gates: TypeAlias = "Mapping[str, Gate]"
"""The gates of one run, by name."""

_DECLARED_TEST = re.compile(rf"::({'|'.join(gate.name for gate in REGISTRY)}|search)\[")


def gate_of(nodeid: str) -> str:
    """Return the gate of a test of a declared kernel, or "search", by its id; "" of any other test."""
    match = _DECLARED_TEST.search(nodeid)
    return match[1] if match else ""


def load_gates() -> dict[str, type[Gate]]:
    return {entry.name: pkgutil.resolve_name(entry.target) for entry in REGISTRY}
