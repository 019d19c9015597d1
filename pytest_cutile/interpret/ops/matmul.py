"""Matrix products."""

from __future__ import annotations

import torch

from pytest_cutile.interpret.ir import Op
from pytest_cutile.interpret.machine import Frame, Machine, operation
from pytest_cutile.interpret.ops.arithmetic import unsigned


@operation("mmaf")
def _mmaf(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    lhs, rhs, acc = (frame[op.operands[name]] for name in ("lhs", "rhs", "acc"))
    wide = torch.float64 if acc.dtype == torch.float64 else torch.float32
    product = torch.matmul(lhs.to(wide), rhs.to(wide))
    result: torch.Tensor = (product + acc.to(wide)).to(acc.dtype)
    return result


@operation("mmai")
def _mmai(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    sides = []
    for name in ("lhs", "rhs"):
        value = frame[op.operands[name]]
        sides.append((unsigned(value) if op.attributes[f"{name}_signed"] == "unsigned" else value).double())
    # Products of bytes are exact in float64, and so are their sums.
    product = torch.matmul(*sides).to(torch.int64)
    result: torch.Tensor = (product + frame[op.operands["acc"]]).to(torch.int32)
    return result
