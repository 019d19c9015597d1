"""Every operation that bytecode may hold is run, or refused by name; and those that no kernel reaches."""

from __future__ import annotations

import itertools

import pytest
import torch

from pytest_cutile.tile.interpreter import ops  # noqa: F401 - registers the operations
from pytest_cutile.tile.interpreter.faults import NotInterpreted
from pytest_cutile.tile.interpreter.frames import Frame
from pytest_cutile.tile.interpreter.ir import Module, Op, Pointer, Scalar, Tile
from pytest_cutile.tile.interpreter.machine import OPS, Machine
from pytest_cutile.tile.interpreter.memory import Memory
from pytest_cutile.tile.interpreter.opcodes import FORMATS
from pytest_cutile.tile.interpreter.ops.shapes import constant_tile

FLOW = {"if", "loop", "for", "yield", "continue", "break", "return"}


def test_every_operation_is_known() -> None:
    assert {operation_format.name for operation_format in FORMATS.values()} - FLOW - set(OPS) == set()


def run(op: Op, *values: torch.Tensor) -> torch.Tensor:
    machine = Machine(Module(version=(13, 4), entries={}, globals={}), Memory(), (1,))
    frame = Frame.of_blocks(torch.arange(1))
    frame.values.update(enumerate(values))
    result: torch.Tensor = OPS[op.name](machine, frame, op)
    return result


def operation(name: str, kind: Tile, *operands: str) -> Op:
    numbers = {operand: number for number, operand in enumerate(operands)}
    return Op(name=name, operands=numbers, attributes={}, results=(9,), result_types=(kind,))


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_the_high_half_of_a_product(bits: int) -> None:
    dtype = getattr(torch, f"int{bits}")
    numbers = [0, 1, 2, 3, 2 ** (bits - 1), 2**bits - 1, 2**bits // 3, 2 ** (bits // 2), 2 ** (bits // 2) - 1]
    pairs = list(itertools.product(numbers, repeat=2))
    sides = [
        torch.tensor([[number - 2**bits if number >> (bits - 1) else number for number in side]], dtype=dtype)
        for side in zip(*pairs, strict=True)
    ]
    result = run(operation("mulhii", Tile(Scalar(f"i{bits}"), (len(pairs),)), "lhs", "rhs"), *sides)
    assert [number % 2**bits for number in result.reshape(-1).tolist()] == [a * b >> bits for a, b in pairs]


def test_what_is_not_interpreted_is_named() -> None:
    with pytest.raises(NotInterpreted, match="alloca"):
        run(operation("alloca", Tile(Pointer(Scalar("f32")), ())))


@pytest.mark.parametrize(
    ("data", "length", "expected"),
    [
        (b"\xff", 8, [True] * 8),
        (b"\x00", 4, [False] * 4),
        (b"\x05", 4, [True, False, True, False]),
        (b"\x01", 1, [True]),
        (b"\x81\x01", 16, [True, *[False] * 6, True, True, *[False] * 7]),
    ],
)
def test_constants_of_bool_are_one_for_all_or_packed(data: bytes, length: int, expected: list[bool]) -> None:
    assert constant_tile(Tile(Scalar("i1"), (length,)), data)[0].tolist() == expected


def test_constants_of_tf32_take_three_bytes() -> None:
    bits = int(torch.tensor(1.5).view(torch.int32)) >> 13
    data = bits.to_bytes(3, "little") + (bits | 1 << 18).to_bytes(3, "little")
    assert constant_tile(Tile(Scalar("tf32"), (2,)), data)[0].tolist() == [1.5, -1.5]
