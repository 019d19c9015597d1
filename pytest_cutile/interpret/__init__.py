"""Interprets kernels on the CPU: no GPU, no driver, and what a GPU hides is a fault with file and line.

    with interpreting("sm_121"):
        y = rms_norm(x, weight)  # launches as ever; x and weight are on the CPU, or on "cuda"

Importing this package imports torch, and cuda.tile when something is launched.
"""

from pytest_cutile.interpret.faults import KernelFault, NotInterpreted
from pytest_cutile.interpret.launch import Interpreter, Options, interpreting
from pytest_cutile.interpret.order import check_order

__all__ = ["Interpreter", "KernelFault", "NotInterpreted", "Options", "check_order", "interpreting"]
