"""Reads Tile IR bytecode, the public and versioned form in which cuda-tile hands kernels to tileiras."""

from __future__ import annotations

import struct
from typing import Any

from pytest_cutile.interpret.ir import (
    Block,
    Entry,
    Function,
    Global,
    Location,
    Module,
    Op,
    Pointer,
    Scalar,
    TensorView,
    Tile,
    TiledView,
    Type,
)
from pytest_cutile.interpret.opcodes import ENUMS, FORMATS

SUPPORTED_VERSIONS = ((13, 1), (13, 4))
"""The oldest and the newest version of the bytecode that is understood."""

_MAGIC = b"\x7fTileIR\x00"
_STRINGS, _FUNCTIONS, _DEBUG, _CONSTANTS, _TYPES, _GLOBALS = 1, 2, 3, 4, 5, 6
_SCALARS = {
    **dict(enumerate(("i1", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "tf32", "f64"))),

        10: "f8E4M3FN",
        11: "f8E5M2",
        17: "token",
        18: "f8E8M0FNU",
        19: "f4E2M1FN",
        22: "i4",
        130: "f8E5M3FNU"
    ,
}
_PADDINGS = ("zero", "neg_zero", "nan", "pos_inf", "neg_inf")
_ENTRY = 2


class UnknownBytecode(ValueError):  # noqa: N818 - reads as what happened
    """Bytecode that this version cannot read; the message says what it was."""


class _Reader:
    """Walks over bytes."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    def byte(self) -> int:
        value = self.data[self.position]
        self.position += 1
        return value

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004
                return value
            shift += 7

    def signed_varint(self) -> int:
        value = self.varint()
        return ~(value >> 1) if value & 1 else value >> 1

    def take(self, size: int) -> bytes:
        self.position += size
        return self.data[self.position - size : self.position]

    def integers(self, width: int) -> tuple[int, ...]:
        raw = self.take(self.varint() * width)
        return tuple(
            int.from_bytes(raw[at : at + width], "little", signed=True) for at in range(0, len(raw), width)
        )

    def align(self, size: int) -> None:
        self.position += -self.position % size

    def table(self, width: int) -> list[bytes]:
        """Read a table of byte strings, whose offsets come first."""
        count = self.varint()
        self.align(width)
        offsets = [int.from_bytes(self.take(width), "little") for _ in range(count)]
        rest = self.data[self.position :]
        ends = [*offsets[1:], len(rest)][:count]
        return [rest[start:end] for start, end in zip(offsets, ends, strict=True)]


def read_module(bytecode: bytes) -> Module:
    """Read a file of bytecode.

    Raises:
        UnknownBytecode: it is none, of an unknown version, or holds an operation that is not known.
    """
    if not bytecode.startswith(_MAGIC):
        raise UnknownBytecode("this is no Tile IR bytecode")
    version = (bytecode[8], bytecode[9])
    if not SUPPORTED_VERSIONS[0] <= version <= SUPPORTED_VERSIONS[1]:
        oldest, newest = (".".join(map(str, each)) for each in SUPPORTED_VERSIONS)
        raise UnknownBytecode(
            f"Tile IR bytecode {version[0]}.{version[1]} is not supported: {oldest} to {newest} are"
        )
    return _ModuleReader(version, _sections(bytecode)).read()


def _sections(bytecode: bytes) -> dict[int, bytes]:
    reader = _Reader(bytecode, 12)
    sections = {}
    while kind := reader.byte():
        size = reader.varint()
        if kind & 0x80:
            reader.align(reader.varint())
        sections[kind & 0x7F] = reader.take(size)
    return sections


class _ModuleReader:
    def __init__(self, version: tuple[int, int], sections: dict[int, bytes]) -> None:
        self.version = version
        self._sections = sections
        self.strings = [text.decode() for text in _Reader(sections[_STRINGS]).table(4)]
        self.constants = []
        for raw in _Reader(sections[_CONSTANTS]).table(8):
            reader = _Reader(raw)
            self.constants.append(reader.take(reader.varint()))
        self._raw_types = _Reader(sections[_TYPES]).table(4)
        self._types: dict[int, Type] = {}
        self._debug = _DebugInfo(sections[_DEBUG], self.strings)

    def read(self) -> Module:
        reader = _Reader(self._sections[_FUNCTIONS])
        entries = [self._function(reader) for _ in range(reader.varint())]
        return Module(
            version=self.version,
            entries={entry.name: entry for entry in entries},
            globals={each.name: each for each in self._globals()},
        )

    def _function(self, reader: _Reader) -> Entry:
        name = self.strings[reader.varint()]
        signature = self.type(reader.varint())
        assert isinstance(signature, Function)
        flags = reader.byte()
        if not flags & _ENTRY:
            raise UnknownBytecode(f"function {name} is no kernel")
        locations = self._debug.locations(reader.varint() - 1)
        if flags & ~_ENTRY:
            self.tagged(reader)  # hints
        size = reader.varint()
        body = _Reader(reader.data[: reader.position + size], reader.position)
        block = _BodyReader(self, body, locations[1:]).body(signature.parameters)
        reader.position += size
        return Entry(name=name, body=block, location=locations[0])

    def _globals(self) -> list[Global]:
        if _GLOBALS not in self._sections:
            return []
        reader = _Reader(self._sections[_GLOBALS])
        found = []
        for _ in range(reader.varint()):
            name, kind, data = self.strings[reader.varint()], self.type(reader.varint()), reader.varint()
            reader.varint()  # alignment
            if self.version >= (13, 3):
                reader.byte()  # visibility
                reader.varint()  # whether it is constant
            found.append(Global(name=name, type=kind, data=self.constants[data]))
        return found

    def type(self, number: int) -> Type:
        """Return the type with this number."""
        if number not in self._types:
            self._types[number] = self._read_type(_Reader(self._raw_types[number]))
        return self._types[number]

    def _read_type(self, reader: _Reader) -> Type:
        tag = reader.varint()
        if tag in _SCALARS:
            return Scalar(_SCALARS[tag])
        if tag == 12:  # noqa: PLR2004
            self._flags(reader, since=(13, 4))
            return Pointer(self._scalar(reader))
        if tag == 13:  # noqa: PLR2004
            element = self.type(reader.varint())
            assert isinstance(element, Scalar | Pointer)
            return Tile(element, reader.integers(8))
        if tag == 14:  # noqa: PLR2004
            self._flags(reader, since=(13, 4))
            return TensorView(self._scalar(reader), reader.integers(8), reader.integers(8))
        if tag in {15, 20, 21}:
            return self._read_tiled_view(reader, tag)
        if tag == 16:  # noqa: PLR2004
            parameters = tuple(self.type(reader.varint()) for _ in range(reader.varint()))
            return Function(parameters, tuple(self.type(reader.varint()) for _ in range(reader.varint())))
        raise UnknownBytecode(f"type {tag} is not known")

    def _read_tiled_view(self, reader: _Reader, tag: int) -> TiledView:
        padded = self._flags(reader, since=(13, 3)) & 1
        tile_shape = reader.integers(4)
        traversal = reader.integers(4) if tag == 21 else ()  # noqa: PLR2004
        array = self.type(reader.varint())
        assert isinstance(array, TensorView)
        if tag == 20:  # noqa: PLR2004
            axes, sparse_axis = tuple(range(len(tile_shape))), reader.varint()
        else:
            axes, sparse_axis = reader.integers(4), -1
        if self.version < (13, 3):
            padded = reader.varint()
        return TiledView(
            kind={15: "partition", 20: "gather_scatter", 21: "strided"}[tag],
            tile_shape=tile_shape,
            array=array,
            axes=axes,
            padding=_PADDINGS[reader.byte()] if padded else None,
            traversal=traversal,
            sparse_axis=sparse_axis,
        )

    def _flags(self, reader: _Reader, *, since: tuple[int, int]) -> int:
        return reader.varint() if self.version >= since else 0

    def _scalar(self, reader: _Reader) -> Scalar:
        element = self.type(reader.varint())
        assert isinstance(element, Scalar)
        return element

    # -- attributes -----------------------------------------------------------------------------------

    def tagged(self, reader: _Reader) -> Any:
        """Read an attribute that says what it is."""
        tag = reader.byte()
        if tag == 1:
            kind, bits = self.type(reader.varint()), reader.varint()
            return kind, bits
        if tag == 2:  # noqa: PLR2004
            kind = self.type(reader.varint())
            one_byte = str(kind).startswith(("f8", "f4"))
            return kind, reader.byte() if one_byte else reader.signed_varint()
        if tag == 3:  # noqa: PLR2004
            return bool(reader.byte())
        if tag == 4:  # noqa: PLR2004
            return self.type(reader.varint())
        if tag == 5:  # noqa: PLR2004
            return self.strings[reader.varint()]
        if tag == 6:  # noqa: PLR2004
            return [self.tagged(reader) for _ in range(reader.varint())]
        if tag == 8:  # noqa: PLR2004
            divisor, flags = reader.varint(), reader.byte()
            every = reader.signed_varint() if flags & 1 else None
            return "div_by", divisor, every, reader.signed_varint() if flags & 2 else None
        if tag in {10, 11}:
            return self.dictionary(reader)
        if tag == 12:  # noqa: PLR2004
            flags = reader.byte()
            lower = reader.signed_varint() if flags & 1 else None
            return "bounded", lower, reader.signed_varint() if flags & 2 else None
        raise UnknownBytecode(f"attribute {tag} is not known")

    def dictionary(self, reader: _Reader) -> dict[str, Any]:
        """Read names and attributes."""
        return {self.strings[reader.varint()]: self.tagged(reader) for _ in range(reader.varint())}


class _BodyReader:
    """Reads the operations of one function; numbers values as the writer did."""

    def __init__(self, module: _ModuleReader, reader: _Reader, locations: list[Location | None]) -> None:
        self._module = module
        self._reader = reader
        self._locations = iter(locations)
        self._next_value = 0

    def body(self, parameter_types: tuple[Type, ...]) -> Block:
        block = Block(parameters=self._new_values(len(parameter_types)), parameter_types=parameter_types)
        while self._reader.position < len(self._reader.data):
            block.ops.append(self._op())
        return block

    def _new_values(self, count: int) -> tuple[int, ...]:
        first = self._next_value
        self._next_value += count
        return tuple(range(first, self._next_value))

    def _block(self) -> Block:
        reader = self._reader
        if reader.byte() != 1:
            raise UnknownBytecode("a region of several blocks is not known")
        before = self._next_value
        types = tuple(self._module.type(reader.varint()) for _ in range(reader.varint()))
        block = Block(parameters=self._new_values(len(types)), parameter_types=types)
        block.ops.extend([self._op() for _ in range(reader.varint())])
        self._next_value = before
        return block

    def _op(self) -> Op:
        reader = self._reader
        opcode = reader.varint()
        if opcode not in FORMATS:
            raise UnknownBytecode(f"operation {opcode} is not known")
        name, fields = FORMATS[opcode]
        location = next(self._locations)
        types: list[Type] = []
        operands: dict[str, Any] = {}
        attributes: dict[str, Any] = {}
        regions: tuple[Block, ...] = ()
        flags: dict[str, bool] = {}
        count = 0
        skip = False
        for part in fields:
            if skip:
                skip = False
            elif part.startswith("@"):
                skip = self._module.version < tuple(int(each) for each in part[1:].split("."))
            elif part == "r":
                types.append(self._module.type(reader.varint()))
            elif part == "R":
                types += [self._module.type(reader.varint()) for _ in range(reader.varint())]
            elif part == "#":
                count = reader.varint()
            elif part.startswith("?"):
                bits = reader.varint()
                for index, flag in enumerate(part[1:].split(",")):
                    (flags if flag.endswith("?") else attributes)[flag.rstrip("?")] = bool(bits >> index & 1)
            elif part.startswith("~"):
                operands[part[1:]] = reader.varint() if reader.varint() else None
            elif part.startswith("%*"):
                operands[part[2:]] = tuple(reader.varint() for _ in range(reader.varint()))
            elif part.startswith("%+"):
                rest = count - sum(isinstance(each, int) for each in operands.values())
                operands[part[2:]] = tuple(reader.varint() for _ in range(rest))
            elif part.startswith("%"):
                key = part[1:].rstrip("?")
                there = not part.endswith("?") or flags.get(key, False)
                operands[key] = reader.varint() if there else None
            elif part.startswith("{"):
                blocks = reader.varint()
                if blocks != int(part[1:-1]):
                    raise UnknownBytecode(f"{name} with {blocks} blocks is not known")
                regions = tuple(self._block() for _ in range(blocks))
            elif part != "-":
                key, kind = part.split(":")
                if not key.endswith("?") or flags[key[:-1]]:
                    attributes[key.rstrip("?")] = self._attribute(kind)
        return Op(
            name=name,
            operands=operands,
            attributes=attributes,
            results=self._new_values(len(types)),
            result_types=tuple(types),
            regions=regions,
            location=location,
        )

    def _attribute(self, kind: str) -> Any:
        reader, module = self._reader, self._module
        if kind in ENUMS:
            return ENUMS[kind][reader.byte()]
        if kind == "int":
            return reader.varint()
        if kind == "bool":
            return bool(reader.byte())
        if kind == "bools":
            return tuple(bool(each) for each in reader.integers(1))
        if kind == "int32s":
            return reader.integers(4)
        if kind == "string":
            return module.strings[reader.varint()]
        if kind == "constant":
            return module.constants[reader.varint()]
        if kind == "hints":
            return module.dictionary(reader)
        if kind == "array":
            return [module.tagged(reader) for _ in range(reader.varint())]
        return module.tagged(reader)


class _DebugInfo:
    """Which place in the source each operation comes from."""

    def __init__(self, section: bytes, strings: list[str]) -> None:
        reader = _Reader(section)
        functions = reader.varint()
        reader.align(4)
        starts = [int.from_bytes(reader.take(4), "little") for _ in range(functions)]
        total = reader.varint()
        reader.align(8)
        numbers = [number for (number,) in struct.iter_unpack("<Q", reader.take(8 * total))]
        ends = [*starts[1:], total]
        self._numbers = [numbers[start:end] for start, end in zip(starts, ends, strict=True)]
        self._raw = reader.table(4)
        self._strings = strings
        self._cache: dict[int, Location | None] = {0: None}

    def locations(self, function: int) -> list[Location | None]:
        """Return the places of a function and of its operations, in the order they were written."""
        return [self._location(number) for number in self._numbers[function]]

    def _location(self, number: int) -> Location | None:
        if number not in self._cache:
            self._cache[number] = self._read(number)
        return self._cache[number]

    def _read(self, number: int) -> Location | None:
        reader = _Reader(self._raw[number - 1])
        tag = reader.byte()
        if tag == 4:  # noqa: PLR2004
            scope, file = reader.varint(), self._strings[reader.varint()]
            line, column = reader.varint(), reader.varint()
            return Location(file, line, column + 1, self._function(scope))
        if tag == 6:  # noqa: PLR2004
            callee, caller = self._location(reader.varint()), self._location(reader.varint())
            return callee and Location(callee.file, callee.line, callee.column, callee.function, caller)
        return None

    def _function(self, scope: int) -> str:
        while scope:
            reader = _Reader(self._raw[scope - 1])
            tag = reader.byte()
            if tag == 5:  # noqa: PLR2004
                reader.varint()
                reader.varint()
                return self._strings[reader.varint()]
            if tag != 3:  # noqa: PLR2004
                break
            scope = reader.varint()
        return ""
