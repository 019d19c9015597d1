"""Interprets kernels on the CPU: no GPU, no driver, and what a GPU hides is a fault with file and line.

    with interpret(arch="sm_121") as run:
        y = rms_norm(x, weight)  # unchanged launch code; x and weight are on the CPU, or on "cuda"

Needs neither pytest nor the rest of this plugin. The faults can be imported without torch; any other name
imports torch when it is first used.
"""

from typing import TYPE_CHECKING, Any

from pytest_cutile.tile.interpreter.faults import KernelFault, NoSuchBlock, NotInterpreted
from pytest_cutile.tile.interpreter.options import Options

if TYPE_CHECKING:
    from pytest_cutile.tile.interpreter.api import Run, interpret
    from pytest_cutile.tile.interpreter.block_order import check_order

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
    if name in {"Run", "interpret"}:
        from pytest_cutile.tile.interpreter import api

        return getattr(api, name)
    if name == "check_order":
        from pytest_cutile.tile.interpreter.block_order import check_order

        return check_order
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
