"""What moves elements and makes tiles: constants, ranges, shapes, parts of tiles."""

from __future__ import annotations

import torch

from pytest_cutile.tile.interpreter.assumptions import check_assumption
from pytest_cutile.tile.interpreter.frames import Frame
from pytest_cutile.tile.interpreter.ir import Op, Tile
from pytest_cutile.tile.interpreter.machine import Machine, operation
from pytest_cutile.tile.interpreter.values import DTYPES, block_of, dtype_of, known, moved


def _tile(op: Op) -> Tile:
    type_ = op.result_types[0]
    assert isinstance(type_, Tile)
    return type_


@operation("constant")
def _constant(machine: Machine, _frame: Frame, op: Op) -> torch.Tensor:
    tile = machine.constants.get(id(op))
    if tile is None:
        tile = machine.constants[id(op)] = constant_tile(_tile(op), op.attributes["value"])
    return tile


def constant_tile(type_: Tile, data: bytes) -> torch.Tensor:
    """Return a constant from its bytes: of one element for all, or of each."""
    dtype = dtype_of(type_.element)
    name = str(type_.element)
    shape = (1, *type_.shape)
    if name == "tf32":  # its 19 bits take three bytes
        words = [int.from_bytes(data[at : at + 3], "little") << 13 for at in range(0, len(data), 3)]
        data = b"".join(word.to_bytes(4, "little") for word in words)
    if dtype == torch.bool:
        # One for all is 0xff or 0; a list is packed, eight to a byte.
        count = torch.Size(shape).numel()
        flat = (
            torch.tensor([True])
            if data == b"\xff"
            else torch.tensor([bool(data[at // 8] >> at % 8 & 1) for at in range(count)])
            if any(data)
            else torch.tensor([False])
        )
    elif name == "f4E2M1FN":
        flat = four_bit_floats(torch.tensor(list(data)))
    else:
        flat = torch.frombuffer(bytearray(data), dtype=dtype)
    if flat.numel() == 1:
        return moved(lambda tensor: tensor.reshape([1] * len(shape)).expand(shape), flat)
    return moved(lambda tensor: tensor.reshape(shape), flat)


def four_bit_floats(codes: torch.Tensor) -> torch.Tensor:
    """Return the values of f4E2M1FN with these codes, 0 to 15, whose highest bit is the sign."""
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    return torch.cat([values, -values])[codes.to(torch.int64)].to(DTYPES["f4E2M1FN"])


def four_bit_codes(values: torch.Tensor) -> torch.Tensor:
    """Return the codes of tiles of f4E2M1FN, 0 to 15, as uint8."""
    wide = values.float()
    steps = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    return (torch.bucketize(wide.abs(), steps) + 8 * wide.signbit()).to(torch.uint8)


# -- bytes --------------------------------------------------------------------------------------------


@operation("pack")
def _pack(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    source = frame[op.operands["source"]]
    if source.dtype == DTYPES["f4E2M1FN"]:  # of one byte each, elements need no packing
        codes = four_bit_codes(source)
        return (codes[:, 0::2] | codes[:, 1::2] << 4).view(torch.int8)
    return source.contiguous().view(torch.int8)


@operation("unpack")
def _unpack(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    source = frame[op.operands["source"]]
    element = _tile(op).element
    if str(element) == "f4E2M1FN":
        data = source.view(torch.uint8)
        codes = torch.stack([data & 0xF, data >> 4], dim=-1).reshape(len(data), -1)
        return four_bit_floats(codes)
    return source.contiguous().view(dtype_of(element))


# -- shapes -------------------------------------------------------------------------------------------


@operation("iota")
def _iota(_machine: Machine, _frame: Frame, op: Op) -> torch.Tensor:
    type_ = _tile(op)
    return torch.arange(type_.shape[0]).to(dtype_of(type_.element))[None]


@operation("reshape")
def _reshape(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    shape = _tile(op).shape
    return moved(lambda tensor: tensor.reshape(tensor.shape[0], *shape), frame[op.operands["source"]])


@operation("broadcast")
def _broadcast(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    shape = _tile(op).shape
    return moved(lambda tensor: tensor.expand(tensor.shape[0], *shape), frame[op.operands["source"]])


@operation("permute")
def _permute(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    order = [axis + 1 for axis in op.attributes["permutation"]]
    return moved(lambda tensor: tensor.permute(0, *order), frame[op.operands["source"]])


@operation("cat")
def _cat(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    pair = [frame[op.operands[name]] for name in ("lhs", "rhs")]
    blocks = max(tensor.shape[0] for tensor in pair)
    axis = op.attributes["axis"] + 1

    def join(*tensors: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor.expand(blocks, *tensor.shape[1:]) for tensor in tensors], dim=axis)

    return moved(join, *pair)


def _part(frame: Frame, op: Op, whole: torch.Tensor, part: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Return indices into `whole` of the part that the operation's indices name, in steps of its own size."""
    starts = [frame[value].reshape(-1).to(torch.int64) for value in op.operands["indices"]]
    blocks = max([whole.shape[0], *(len(start) for start in starts)])
    dims = len(part)
    indices = [torch.arange(blocks if whole.shape[0] > 1 else 1).reshape(-1, *[1] * dims)]
    for axis, (start, length) in enumerate(zip(starts, part, strict=True)):
        at = (start * length)[:, None] + torch.arange(length)
        indices.append(at.reshape(len(start), *[1] * axis, length, *[1] * (dims - axis - 1)))
    return tuple(indices)


@operation("extract")
def _extract(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    source = frame[op.operands["source"]]
    indices = _part(frame, op, source, _tile(op).shape)
    return moved(lambda tensor: tensor[indices], source)


@operation("insert")
def _insert(_machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    part, whole = frame[op.operands["source"]], frame[op.operands["destination"]]

    def put(into: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        blocks = max(
            [len(into), len(source), *(len(frame[value].reshape(-1)) for value in op.operands["indices"])]
        )
        result = into.expand(blocks, *into.shape[1:]).clone()
        result[_part(frame, op, result, tuple(source.shape[1:]))] = source
        return result

    return moved(put, whole, part)


@operation("get_tile_block_id")
def _block_id(machine: Machine, frame: Frame, _op: Op) -> tuple[torch.Tensor, ...]:
    ids = block_of(frame.blocks, machine.grid)
    # Along an axis of length 1 all blocks agree.
    return tuple(
        index.to(torch.int32) if length > 1 else torch.zeros(1, dtype=torch.int32)
        for index, length in zip(ids, machine.grid, strict=True)
    )


@operation("get_num_tile_blocks")
def _num_blocks(machine: Machine, _frame: Frame, _op: Op) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([length], dtype=torch.int32) for length in machine.grid)


@operation("assume")
def _assume(machine: Machine, frame: Frame, op: Op) -> torch.Tensor:
    value: torch.Tensor = frame[op.operands["value"]]
    if id(op) in machine.assumptions:
        check_assumption(machine, frame, op, value)
    return value


def numbers(frame: Frame, values: tuple[int, ...]) -> tuple[int | torch.Tensor, ...]:
    """Return scalar tiles as numbers where all blocks agree."""
    return tuple(known(frame[value].reshape(-1)) for value in values)
