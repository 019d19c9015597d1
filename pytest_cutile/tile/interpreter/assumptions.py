"""Checks what a kernel tells the compiler to take for granted: divisors and bounds of its arguments."""

from __future__ import annotations

import torch

from pytest_cutile.tile.interpreter.faults import KernelFault
from pytest_cutile.tile.interpreter.frames import Frame, first_block
from pytest_cutile.tile.interpreter.ir import Op
from pytest_cutile.tile.interpreter.machine import Machine


def check_assumption(machine: Machine, frame: Frame, op: Op, value: torch.Tensor) -> None:
    """Check an assumption of `machine.assumptions`.

    Raises:
        KernelFault: it does not hold.
    """
    predicate, *numbers = op.attributes["predicate"]
    if predicate == "div_by":
        divisor, every, _ = numbers
        bad = value % divisor != 0 if every is None else torch.zeros_like(value, dtype=torch.bool)
        claim = f"divisible by {divisor}"
    elif predicate == "bounded":
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
        place = machine.memory.at(wrong)
        subject = "an address"
        if place is not None:
            subject = f"the address of {place[0].name}, byte {place[1]} of an aligned storage,"
    raise KernelFault(
        "assumption",
        f"{subject} is assumed to be {claim}, and is not: the compiler relies on it",
        block=first_block(frame, bad.reshape(len(bad), -1)),
    )
