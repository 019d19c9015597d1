"""Matrix products."""

from __future__ import annotations

import torch

from pytest_cutile.tile.interpreter.frames import Frame
from pytest_cutile.tile.interpreter.ir import Op
from pytest_cutile.tile.interpreter.machine import Machine, operation
from pytest_cutile.tile.interpreter.ops.arithmetic import float_operation, unsigned


@float_operation("mmaf")
def _mmaf(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    lhs, rhs, acc = (frame[op.operands[name]] for name in ("lhs", "rhs", "acc"))
    # In float32, the order of the sums and with it the last bits would be the processor's.
    result: torch.Tensor = (torch.matmul(lhs.double(), rhs.double()) + acc).to(acc.dtype)
    return result


@float_operation("mmaf_scaled")
def _mmaf_scaled(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    lhs, rhs, acc, lhs_scale, rhs_scale = (
        frame[op.operands[name]].double() for name in ("lhs", "rhs", "acc", "lhs_scale", "rhs_scale")
    )
    # Each scale is for a run of elements along the axis that is summed over.
    run = lhs.shape[-1] // lhs_scale.shape[-1]
    lhs = lhs * lhs_scale.repeat_interleave(run, dim=-1)
    rhs = rhs * rhs_scale.repeat_interleave(run, dim=-2)
    result: torch.Tensor = (torch.matmul(lhs, rhs) + acc).to(frame[op.operands["acc"]].dtype)
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
