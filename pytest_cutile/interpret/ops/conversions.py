"""From one element type to another."""

from __future__ import annotations

import torch

from pytest_cutile.interpret.ir import Op, Tile
from pytest_cutile.interpret.machine import Frame, Machine, operation
from pytest_cutile.interpret.ops.arithmetic import bits_of, unsigned, wrap
from pytest_cutile.interpret.ops.rounding import round_from_f64, round_to_tf32
from pytest_cutile.interpret.values import dtype_of, moved

_FINITE_ONLY = {torch.float8_e4m3fn, torch.float8_e5m2}


def _target(op: Op) -> tuple[str, torch.dtype]:
    (kind,) = op.result_types
    assert isinstance(kind, Tile)
    return str(kind.element), dtype_of(kind.element)


def convert_float(source: torch.Tensor, name: str, dtype: torch.dtype, mode: str) -> torch.Tensor:
    """Round to the element type `name`; what is too large for a one-byte float becomes its largest value."""
    if name == "tf32":
        return round_to_tf32(source.float())
    if dtype in _FINITE_ONLY:
        limit = torch.finfo(dtype).max
        wide = source if source.dtype in {torch.float32, torch.float64} else source.float()
        return wide.clamp(-limit, limit).float().to(dtype)
    if mode != "nearest_even" and torch.finfo(dtype).bits < torch.finfo(source.dtype).bits:
        return round_from_f64(source.double(), None, dtype, mode)
    return source.to(dtype)


@operation("ftof")
def _ftof(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    return convert_float(frame[op.operands["source"]], *_target(op), op.attributes["rounding"])


@operation("ftoi")
def _ftoi(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    source = frame[op.operands["source"]]
    _, dtype = _target(op)
    whole = source.double().trunc()
    if dtype == torch.bool:
        return whole != 0
    bits = torch.iinfo(dtype).bits
    low, high = (
        (0.0, 2.0**bits)
        if op.attributes["signed"] == "unsigned"
        else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1))
    )
    whole = whole.nan_to_num(0.0, high, low)
    top = int(high) - 1
    inside = whole.clamp(low, high)
    beyond = inside >= high
    inside = torch.where(beyond, torch.zeros_like(inside), inside)
    if high > 2.0**63:  # uint64: the upper half of its range is negative here
        upper = inside >= 2.0**63
        number = torch.where(upper, inside - 2.0**64, inside).to(torch.int64)
    else:
        number = inside.to(torch.int64)
    top = top - 2**bits if top > torch.iinfo(torch.int64).max else top
    return wrap(torch.where(beyond, torch.full_like(number, top), number), dtype)


@operation("itof")
def _itof(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    source = frame[op.operands["source"]]
    name, dtype = _target(op)
    if op.attributes["signed"] == "unsigned":
        if bits_of(source) < 64:  # noqa: PLR2004
            source = unsigned(source)
        else:
            # Halved with its last bit kept, a number beyond the signed range rounds as the whole would.
            half = ((source >> 1) & (2**63 - 1)) | (source & 1)
            wide = dtype if dtype in {torch.float32, torch.float64} else torch.float32
            found = torch.where(source < 0, half.to(wide) * 2, source.to(wide))
            return convert_float(found, name, dtype, "nearest_even")
    elif source.dtype == torch.bool:
        source = -source.to(torch.int8)
    if dtype in _FINITE_ONLY or name == "tf32":
        return convert_float(source.double(), name, dtype, "nearest_even")
    return source.to(dtype)


@operation("exti")
def _exti(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    source = frame[op.operands["source"]]
    _, dtype = _target(op)
    if op.attributes["signed"] == "unsigned":
        return unsigned(source).to(dtype)
    return -source.to(dtype) if source.dtype == torch.bool else source.to(dtype)


@operation("trunci")
def _trunci(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    return wrap(frame[op.operands["source"]], _target(op)[1])


@operation("bitcast")
def _bitcast(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    source = frame[op.operands["source"]]
    dtype = _target(op)[1]
    return source if source.dtype == dtype else moved(torch.Tensor.contiguous, source).view(dtype)


@operation("ptr_to_int", "int_to_ptr", "ptr_to_ptr")
def _pointer(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    source: torch.Tensor = frame[op.operands["source"]]
    return source
