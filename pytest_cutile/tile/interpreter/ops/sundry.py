"""Printing, assertions, and constants in memory."""

from __future__ import annotations

import math
import re
from typing import Any

import torch

from pytest_cutile.tile.interpreter.faults import KernelFault, NotInterpreted
from pytest_cutile.tile.interpreter.frames import Frame
from pytest_cutile.tile.interpreter.ir import Op, Tile
from pytest_cutile.tile.interpreter.machine import Machine, operation
from pytest_cutile.tile.interpreter.ops.shapes import constant_tile
from pytest_cutile.tile.interpreter.values import TOKEN, of_block

_CONVERSION = re.compile(r"%(?:%|([-+ #0]*)(\d*)((?:\.\d*)?)(hh|h|ll|l|)([diuoxXeEfFgGaA]))")
_WIDTHS = {"hh": 8, "h": 16, "": 32, "l": 64, "ll": 64}


@operation("print_tko")
def _print(machine: Machine, frame: Frame, op: Op) -> Any:
    values = [frame[value] for value in op.operands["values"]]
    for at, block in enumerate(frame.blocks.tolist()):
        own = [of_block(value, at) for value in values]
        machine.printed.setdefault(block, []).append(format_tiles(op.attributes["text"], own))
    return TOKEN if op.results else None


def format_tiles(text: str, tiles: list[torch.Tensor]) -> str:
    """Do what printf does with `text`; a tile is written as a list, of lists if it has several axes."""
    following = iter(tiles)

    def convert(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        return _nested(next(following), match)

    return _CONVERSION.sub(convert, text)


def _nested(tile: torch.Tensor, conversion: re.Match[str]) -> str:
    if tile.dim():
        return "[" + ", ".join(_nested(part, conversion) for part in tile) + "]"
    number = tile.item()
    flags, width, precision, _, letter = conversion.groups()
    if letter in "diuoxX":
        return _format_integer(int(number), tile.dtype, conversion)
    if letter in "aA":
        text = _hexadecimal(float(number), precision)
        text = "+" + text if "+" in flags and not text.startswith("-") else text
        text = text.ljust(int(width or 0)) if "-" in flags else text.rjust(int(width or 0))
        return text.upper() if letter == "A" else text
    if not math.isfinite(number):
        flags = flags.replace("0", "")  # C pads these with spaces
    return f"%{flags}{width}{precision}{letter}" % number


def _format_integer(number: int, dtype: torch.dtype, conversion: re.Match[str]) -> str:
    flags, width, precision, length, letter = conversion.groups()
    bits = 1 if dtype == torch.bool else dtype.itemsize * 8
    if letter in "uoxX" or bits == 1:
        number &= (1 << bits) - 1
    if bits > _WIDTHS[length]:  # as many bits as the format says
        bits = _WIDTHS[length]
        number &= (1 << bits) - 1
        if letter in "di" and number >> bits - 1:
            number -= 1 << bits
    if precision:
        flags = flags.replace("0", "")
    if letter == "o" and "#" in flags:  # Python writes 0o
        digits = f"{number:o}"
        digits = digits.zfill(int(precision[1:] or 0)) if precision else digits
        digits = digits if digits.startswith("0") else "0" + digits
        return digits.ljust(int(width or 0)) if "-" in flags else digits.rjust(int(width or 0))
    if letter in "xX" and number == 0:
        flags = flags.replace("#", "")
    return f"%{flags}{width}{precision}{'d' if letter == 'u' else letter}" % number


def _hexadecimal(number: float, precision: str) -> str:
    """Write a float as C's `%a` does."""
    if not math.isfinite(number):
        return str(number)
    text = number.hex()
    head, _, exponent = text.partition("p")
    whole, _, fraction = head.partition(".")
    fraction = fraction.rstrip("0")
    if precision:
        digits = int(precision[1:] or 0)
        mantissa, power = math.frexp(number)
        if number:
            scaled = round(abs(mantissa) * 2 * 16**digits)
            text = float.hex(math.copysign(math.ldexp(scaled / 16**digits, power - 1), number))
            head, _, exponent = text.partition("p")
            whole, _, fraction = head.partition(".")
        fraction = fraction[:digits].ljust(digits, "0")
    return f"{whole}.{fraction}p{exponent}" if fraction else f"{whole}p{exponent}"


@operation("assert")
def _assert(machine: Machine, frame: Frame, op: Op) -> None:
    condition = frame[op.operands["condition"]]
    machine.memory.undetermined.forbid(frame, condition, "asserts")
    holds = condition.reshape(len(condition), -1).all(dim=1)
    if holds.all():
        return
    message = op.attributes["message"]
    raise KernelFault(
        "assertion",
        f"assertion failed: {message}" if message else "assertion failed",
        block=(int(frame.blocks[int((~holds).nonzero()[0]) if len(holds) > 1 else 0]),),
    )


@operation("get_global")
def _get_global(machine: Machine, _frame: Frame, op: Op) -> torch.Tensor:
    name = op.attributes["name"]
    if name not in machine.globals:
        array = machine.module.globals[name]
        assert isinstance(array.type, Tile)
        data = constant_tile(array.type, array.data)[0].contiguous()
        machine.globals[name] = torch.tensor([machine.memory.add(name, data)])
    return machine.globals[name]


@operation("alloca")
def _alloca(_machine: Machine, _frame: Frame, op: Op) -> Any:
    raise NotInterpreted(f"the interpreter does not know the operation {op.name}")
