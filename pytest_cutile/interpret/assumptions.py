"""Checks what a kernel tells the compiler to take for granted: divisors and bounds of its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pytest_cutile.interpret.faults import KernelFault
from pytest_cutile.interpret.judge import first_block

if TYPE_CHECKING:
    from pytest_cutile.interpret.ir import Op
    from pytest_cutile.interpret.machine import Frame, Machine


def check_assumption(machine: Machine, frame: Frame, op: Op, value: torch.Tensor) -> None:
    """Check an assumption that is judged.

    Raises:
        KernelFault: it does not hold.
    """
    kind, *numbers = op.attributes["predicate"]
    if kind == "div_by":
        divisor, every, _ = numbers
        bad = value % divisor != 0 if every is None else torch.zeros_like(value, dtype=torch.bool)
        claim = f"divisible by {divisor}"
    elif kind == "bounded":
        lower, upper = numbers
        bad = torch.zeros_like(value, dtype=torch.bool)
        if lower is not None:
            bad |= value < lower
        if upper is not None:
            bad |= value > upper
        claim = f"between {'-inf' if lower is None else lower} and {'inf' if upper is None else upper}"
    else:
        return
    if not bad.any():
        return
    wrong = int(value[bad][0])
    subject = f"{wrong}"
    if machine.assumptions[id(op)] == "address":
        found = machine.memory.at(wrong)
        subject = "an address"
        if found is not None:
            subject = f"the address of {found[0].name}, byte {found[1]} of an aligned storage,"
    raise KernelFault(
        "assumption",
        f"{subject} is assumed to be {claim}, and is not: the compiler relies on it",
        block=first_block(frame, bad.reshape(len(bad), -1)),
    )
