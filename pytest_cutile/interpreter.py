"""Interprets kernels on the CPU: the public names of `pytest_cutile.tile.interpreter`, which says how.

from pytest_cutile.interpreter import interpret

with interpret(arch="sm_121") as run:
y = rms_norm(x, weight)  # unchanged launch code
"""

from typing import TYPE_CHECKING, Any

from pytest_cutile.tile import interpreter as _interpreter
from pytest_cutile.tile.interpreter import KernelFault, NoSuchBlock, NotInterpreted, Options

if TYPE_CHECKING:
    from pytest_cutile.tile.interpreter import Run, check_order, interpret

__all__ = [
    "KernelFault",
    "NoSuchBlock",
    "NotInterpreted",
    "Options",
    "Run",
    "check_order",
    "interpret",
]


def __getattr__(name: str) -> Any:
    """Look up a public name that imports torch when it is first used."""
    if name in __all__:
        return getattr(_interpreter, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
