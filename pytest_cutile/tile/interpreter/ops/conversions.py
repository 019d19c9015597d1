"""From one element type to another."""

from __future__ import annotations

import torch

from pytest_cutile.tile.interpreter.frames import Frame
from pytest_cutile.tile.interpreter.ir import Op, Tile
from pytest_cutile.tile.interpreter.machine import Machine, operation
from pytest_cutile.tile.interpreter.ops.arithmetic import bits_of, float_operation, unsigned, wrap
from pytest_cutile.tile.interpreter.ops.rounding import NEAREST, round_to, round_to_tf32
from pytest_cutile.tile.interpreter.values import DTYPES, dtype_of, moved
from pytest_cutile.words.formats import BY_TILE_IR, FLOAT4_E2M1FN, FLOAT8_E8M0FNU, TFLOAT32

_F64_EXACT_INTEGERS = 2**53


def _target(op: Op) -> tuple[str, torch.dtype]:
    (type_,) = op.result_types
    assert isinstance(type_, Tile)
    return str(type_.element), dtype_of(type_.element)


def convert_float(source: torch.Tensor, name: str, mode: str) -> torch.Tensor:
    """Round floats to the element type `name`; what is too large for a small one becomes its largest."""
    dtype, target = DTYPES[name], BY_TILE_IR[name]
    if mode in NEAREST and source.dtype != torch.float64 and target not in {FLOAT4_E2M1FN, FLOAT8_E8M0FNU}:
        if target is TFLOAT32:
            return round_to_tf32(source.float())
        if target.saturates:
            source = source.float().clamp(-target.max_finite, target.max_finite)
        return source.to(dtype)
    wide = source.double()
    if target is FLOAT4_E2M1FN:
        # It has no NaN: PTX makes it the largest value.
        wide = torch.where(wide.isnan(), torch.full_like(wide, target.max_finite), wide)
    elif target is FLOAT8_E8M0FNU:
        # It has neither zero nor sign: the least value stands for zero.
        wide = wide.abs().clamp(min=2.0**target.min_exponent)
    return round_to(wide, target, mode).to(dtype)


@float_operation("ftof")
def _ftof(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    return convert_float(frame[op.operands["source"]], _target(op)[0], op.attributes["rounding"])


@operation("ftoi")
def _ftoi(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    source = frame[op.operands["source"]]
    _, dtype = _target(op)
    if dtype == torch.bool:
        return source.double() != 0  # cuda-tile's own tests expect that of a GPU
    # Measured on an H200: to 8 bits it goes through 16, which saturate, and the upper half is dropped.
    bits = max(16, torch.iinfo(dtype).bits)
    is_unsigned = op.attributes["signed"] == "unsigned"
    low, high = (0.0, 2.0**bits) if is_unsigned else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1))
    whole = source.double().trunc()
    inside = (whole >= low) & (whole < high)
    number = torch.where(inside, whole, torch.zeros_like(whole))
    if high > 2.0**63:  # the upper half of their range is negative here
        number = torch.where(number >= 2.0**63, number - 2.0**64, number)
    result = wrap(number.to(torch.int64), dtype)
    info = torch.iinfo(dtype)
    narrowed = info.bits < bits
    least, largest = (0, -1) if is_unsigned or narrowed else (info.min, info.max)
    result = torch.where(whole < low, torch.full_like(result, least), result)
    result = torch.where(whole >= high, torch.full_like(result, largest), result)
    if not op.attributes.get("saturating", False) and 64 in {bits, source.dtype.itemsize * 8}:  # noqa: PLR2004
        # PTX, `cvt`: of 64 bits on either side, NaN becomes the number with the highest bit alone; else 0.
        result = torch.where(source.isnan(), torch.full_like(result, 0 if narrowed else info.min), result)
    return result


@operation("itof")
def _itof(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    source = frame[op.operands["source"]]
    name, dtype = _target(op)
    mode = op.attributes["rounding"]
    is_unsigned = op.attributes["signed"] == "unsigned"
    if bits_of(source) == 64:  # noqa: PLR2004
        if mode in NEAREST and dtype in {torch.float32, torch.float64} and name != "tf32" and not is_unsigned:
            return source.to(dtype)
        return _from_64_bits(source, name, mode, is_unsigned=is_unsigned)
    through_half = name == "f8E5M2" and bits_of(source) == 16  # noqa: PLR2004
    if is_unsigned:
        source = unsigned(source)
    elif source.dtype == torch.bool:
        source = -source.to(torch.int8)
    if through_half:  # measured on an H200: it is rounded twice
        source = source.to(torch.float16)
    return convert_float(source.double(), name, mode)


def _from_64_bits(source: torch.Tensor, name: str, mode: str, *, is_unsigned: bool) -> torch.Tensor:
    upper = is_unsigned & (source < 0)
    if name == "f64":
        # Halved with its last bit kept, a number beyond the signed range rounds as the whole would.
        half = ((source >> 1) & (2**63 - 1)) | (source & 1)
        return torch.where(upper, half.double() * 2, source.double())
    # What float64 does not hold is cut off, and the last bit set: rounded to odd, as narrower formats need.
    bits = 12
    kept = source >> bits
    kept = torch.where(upper, kept & ((1 << 64 - bits) - 1), kept)
    sticky = ((source & ((1 << bits) - 1)) != 0).to(torch.int64)
    odd = (kept | sticky).double() * 2.0**bits
    small = ~upper & (source.abs() < _F64_EXACT_INTEGERS) & (source != torch.iinfo(torch.int64).min)
    return convert_float(torch.where(small, source.double(), odd), name, mode)


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
