"""Reads Tile IR bytecode, the public and versioned form in which cuda-tile hands kernels to tileiras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from pytest_cutile.tile.interpreter.attributes import tagged
from pytest_cutile.tile.interpreter.fields import Draft, Version
from pytest_cutile.tile.interpreter.ir import (
    Block,
    EntryPoint,
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
from pytest_cutile.tile.interpreter.opcodes import FORMATS, UNREAD
from pytest_cutile.tile.interpreter.reader import Reader, UnknownBytecode, pick, pieces

__all__ = ["SUPPORTED_VERSIONS", "UnknownBytecode", "read_module"]

SUPPORTED_VERSIONS = ((13, 1), (13, 4))
"""The oldest and the newest version of the bytecode that is understood."""

_MAGIC = b"\x7fTileIR\x00"
_STRINGS, _FUNCTIONS, _DEBUG, _CONSTANTS, _TYPES, _GLOBALS = range(1, 7)
_ENTRY = 0x02
_ENTRY_WITH_HINTS = 0x06

_ANY = TypeVar("_ANY")


def read_module(bytecode: bytes) -> Module:
    """Read a file of bytecode.

    Raises:
        UnknownBytecode: it is none, of an unknown version, cut short, or holds what is not known.
    """
    if not bytecode.startswith(_MAGIC):
        raise UnknownBytecode("this is no Tile IR bytecode")
    reader = Reader(bytecode, len(_MAGIC))
    version, tag = (reader.byte(), reader.byte()), reader.word(2)
    oldest, newest = (".".join(map(str, supported)) for supported in SUPPORTED_VERSIONS)
    if tag or not SUPPORTED_VERSIONS[0] <= version <= SUPPORTED_VERSIONS[1]:
        given = ".".join(map(str, version)) + (f" (preview {tag})" if tag else "")
        raise UnknownBytecode(
            f"Tile IR bytecode {given} is not supported: the releases {oldest} to {newest} are"
        )
    try:
        return _ModuleReader(version, _sections(reader)).read()
    except (RecursionError, UnicodeDecodeError) as error:
        raise UnknownBytecode(f"this Tile IR bytecode is corrupt: {error}") from None


def _sections(reader: Reader) -> dict[int, bytes]:
    sections: dict[int, bytes] = {}
    while section := reader.byte():
        size = reader.varint()
        if section & 0x80:
            reader.align(reader.varint())
        section &= 0x7F
        if not _STRINGS <= section <= _GLOBALS or section in sections:
            raise UnknownBytecode(f"section {section} is not known, or there twice")
        sections[section] = reader.take(size)
    return sections


class _ModuleReader:
    """Reads what functions share, then each function."""

    def __init__(self, version: Version, sections: dict[int, bytes]) -> None:
        self.version = version
        self._sections = sections
        self.strings: Sequence[str] = [text.decode() for text in self._section(_STRINGS).table(4)]
        self.constants: Sequence[bytes] = [_sized(raw) for raw in self._section(_CONSTANTS).table(8)]
        self._raw_types = self._section(_TYPES).table(4)
        self._types: dict[int, Type] = {}
        self._places = _Places(self._section(_DEBUG), self.strings)

    def _section(self, section: int) -> Reader:
        if section not in self._sections:
            raise UnknownBytecode(f"there is no section {section}")
        return Reader(self._sections[section])

    def read(self) -> Module:
        reader = self._section(_FUNCTIONS)
        entries = [self._entry(reader) for _ in range(reader.varint())]
        reader.finish("the section of functions")
        return Module(
            version=self.version,
            entries={entry.name: entry for entry in entries},
            globals={array.name: array for array in self._globals()},
        )

    def _entry(self, reader: Reader) -> EntryPoint:
        name = self._string(reader)
        signature = self._typed(reader.varint(), Function)
        flags = reader.byte()
        if flags not in {_ENTRY, _ENTRY_WITH_HINTS}:
            raise UnknownBytecode(f"function {name} is no kernel (flags {flags})")
        first, *places = self._places.of_function(reader.varint())
        if flags == _ENTRY_WITH_HINTS:
            tagged(self, reader)
        size = reader.varint()
        start = reader.position
        reader.take(size)
        body = Reader(self._sections[_FUNCTIONS], start, start + size)
        block = _BodyReader(self, body, places).read(name, signature.parameters)
        return EntryPoint(name=name, body=block, location=first)

    def _globals(self) -> list[Global]:
        if _GLOBALS not in self._sections:
            return []
        reader = self._section(_GLOBALS)
        arrays = []
        for _ in range(reader.varint()):
            name, type_ = self._string(reader), self.type_at(reader.varint())
            data = pick(self.constants, reader.varint(), "constant")
            reader.varint()  # alignment
            if self.version >= (13, 3):
                reader.byte()  # visibility
                reader.varint()  # whether it is constant
            arrays.append(Global(name=name, type=type_, data=data))
        reader.finish("the section of globals")
        return arrays

    def _string(self, reader: Reader) -> str:
        return pick(self.strings, reader.varint(), "string")

    def type_at(self, number: int) -> Type:
        if number not in self._types:
            reader = Reader(pick(self._raw_types, number, "type"))
            self._types[number] = self._read_type(reader)
            reader.finish(f"type {number}")
        return self._types[number]

    def _typed(self, number: int, wanted: type[_ANY]) -> _ANY:
        type_ = self.type_at(number)
        if not isinstance(type_, wanted):
            raise UnknownBytecode(f"type {number} is {type_}, and should be a {wanted.__name__}")
        return type_

    def _read_type(self, reader: Reader) -> Type:
        tag = reader.varint()
        if tag in _SCALARS:
            return Scalar(_SCALARS[tag])
        if tag not in _COMPOSITES:
            raise UnknownBytecode(f"type {tag} is not known")
        return _COMPOSITES[tag](self, reader)

    def _pointer(self, reader: Reader) -> Pointer:
        flags = self._flags(reader, since=(13, 4))
        pointer = Pointer(self._typed(reader.varint(), Scalar))
        _skip_space(reader, flags)
        return pointer

    def _tile(self, reader: Reader) -> Tile:
        number = reader.varint()
        element = self.type_at(number)
        if not isinstance(element, Scalar | Pointer):
            raise UnknownBytecode(f"type {number} is {element}, and no tile holds that")
        return Tile(element, reader.integers(8))

    def _tensor_view(self, reader: Reader) -> TensorView:
        flags = self._flags(reader, since=(13, 4))
        element = self._typed(reader.varint(), Scalar)
        view = TensorView(element, shape=reader.integers(8), strides=reader.integers(8))
        _skip_space(reader, flags)
        return view

    def _function(self, reader: Reader) -> Function:
        parameters = tuple(self.type_at(reader.varint()) for _ in range(reader.varint()))
        return Function(parameters, tuple(self.type_at(reader.varint()) for _ in range(reader.varint())))

    def _tiled_view(self, reader: Reader, *, kind: str) -> TiledView:
        padded = self._flags(reader, since=(13, 3))
        tile_shape = reader.integers(4)
        traversal = reader.integers(4) if kind == "strided" else ()
        array = self._typed(reader.varint(), TensorView)
        if kind == "gather_scatter":
            axes, sparse_axis = tuple(range(len(tile_shape))), reader.varint()
        else:
            axes, sparse_axis = reader.integers(4), -1
        if self.version < (13, 3):
            padded = reader.varint()
        return TiledView(
            kind=kind,
            tile_shape=tile_shape,
            array=array,
            axes=axes,
            padding=pick(_PADDINGS, reader.byte(), "padding") if padded else None,
            traversal=traversal,
            sparse_axis=sparse_axis,
        )

    def _flags(self, reader: Reader, *, since: Version) -> int:
        """Read whether the optional part of a type is there."""
        flags = reader.varint() if self.version >= since else 0
        return pick((0, 1), flags, "flag of a type")


def _sized(raw: bytes) -> bytes:
    reader = Reader(raw)
    data = reader.take(reader.varint())
    reader.finish("a constant")
    return data


def _skip_space(reader: Reader, flags: int) -> None:
    """Read the attribute of a pointer, of which there is one, and which means nothing here."""
    if flags:
        pick(("default",), reader.byte(), "attribute of a pointer")


_SCALARS = MappingProxyType(
    {
        **dict(enumerate(("i1", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "tf32", "f64"))),
        10: "f8E4M3FN",
        11: "f8E5M2",
        17: "token",
        18: "f8E8M0FNU",
        19: "f4E2M1FN",
        22: "i4",
        130: "f8E5M3FNU",
    }
)
_PADDINGS = ("zero", "neg_zero", "nan", "pos_inf", "neg_inf")
_COMPOSITES: MappingProxyType[int, Callable[[_ModuleReader, Reader], Type]] = MappingProxyType(
    {
        12: _ModuleReader._pointer,  # noqa: SLF001
        13: _ModuleReader._tile,  # noqa: SLF001
        14: _ModuleReader._tensor_view,  # noqa: SLF001
        15: partial(_ModuleReader._tiled_view, kind="partition"),  # noqa: SLF001
        16: _ModuleReader._function,  # noqa: SLF001
        20: partial(_ModuleReader._tiled_view, kind="gather_scatter"),  # noqa: SLF001
        21: partial(_ModuleReader._tiled_view, kind="strided"),  # noqa: SLF001
    }
)


class _BodyReader:
    """Reads the operations of one function; numbers values as the writer did."""

    def __init__(
        self, module: _ModuleReader, reader: Reader, places: Sequence[Location | None] | None
    ) -> None:
        self.reader = reader
        self.version = module.version
        self.strings: Sequence[str] = module.strings
        self.constants: Sequence[bytes] = module.constants
        self.type_at = module.type_at
        self._places = places
        self._ops = 0
        self._next_value = 0

    def read(self, name: str, parameter_types: tuple[Type, ...]) -> Block:
        block = Block(parameters=self._new_values(len(parameter_types)), parameter_types=parameter_types)
        while not self.reader.at_end:
            block.ops.append(self._op())
        if self._places and len(self._places) != self._ops:
            raise UnknownBytecode(f"{name} has {self._ops} operations, but {len(self._places)} places")
        return block

    def value(self) -> int:
        """Read the number of a value that is defined here."""
        number = self.reader.varint()
        if number >= self._next_value:
            raise UnknownBytecode(f"value {number} is not defined")
        return number

    def block(self) -> Block:
        reader = self.reader
        if reader.byte() != 1:
            raise UnknownBytecode("a region of several blocks is not known")
        before = self._next_value
        types = tuple(self.type_at(reader.varint()) for _ in range(reader.varint()))
        block = Block(parameters=self._new_values(len(types)), parameter_types=types)
        block.ops.extend([self._op() for _ in range(reader.varint())])
        self._next_value = before
        return block

    def _new_values(self, count: int) -> tuple[int, ...]:
        first = self._next_value
        self._next_value += count
        return tuple(range(first, self._next_value))

    def _op(self) -> Op:
        opcode = self.reader.varint()
        if opcode not in FORMATS:
            name, reason = UNREAD.get(opcode, (str(opcode), "it is not known"))
            raise UnknownBytecode(f"operation {name} is not supported: {reason}")
        place = pick(self._places, self._ops, "place") if self._places else None
        self._ops += 1
        draft = Draft()
        written = FORMATS[opcode]
        try:
            for field in written.fields:
                field.read(self, draft)
        except UnknownBytecode as error:
            if "(in operation " in str(error):
                raise
            raise UnknownBytecode(f"{error} (in operation {written.name})") from None
        return Op(
            name=written.name,
            operands=draft.operands,
            attributes=draft.attributes,
            results=self._new_values(len(draft.types)),
            result_types=tuple(draft.types),
            regions=draft.regions,
            location=place,
        )


_LEXICAL_BLOCK, _PLACE, _SUBPROGRAM, _CALL_SITE = 3, 4, 5, 6


class _Places:
    """Which place in the source each operation comes from."""

    def __init__(self, reader: Reader, strings: Sequence[str]) -> None:
        functions = reader.varint()
        reader.align(4)
        starts = [reader.word(4) for _ in range(functions)]
        total = reader.varint()
        reader.align(8)
        numbers = [reader.word(8) for _ in range(total)]
        self._by_function = [numbers[start:end] for start, end in pieces(starts, total)]
        self._raw = reader.table(4)
        self._strings = strings
        self._known: dict[int, Location | None] = {0: None}

    def of_function(self, number: int) -> list[Location | None]:
        """Return the place of a function, counted from 1, then those of its operations in order."""
        if number == 0:
            return [None]
        return [self._place(place) for place in pick(self._by_function, number - 1, "function")] or [None]

    def _place(self, number: int) -> Location | None:
        if number not in self._known:
            self._known[number] = self._read(number)
        return self._known[number]

    def _read(self, number: int) -> Location | None:
        reader = Reader(pick(self._raw, number - 1, "place"))
        tag = reader.byte()
        if tag == _PLACE:
            scope, file = reader.varint(), pick(self._strings, reader.varint(), "string")
            line, column = reader.varint(), reader.varint()
            return Location(file, line, column + 1, self._function(scope))
        if tag == _CALL_SITE:
            callee, caller = self._place(reader.varint()), self._place(reader.varint())
            return callee and Location(callee.file, callee.line, callee.column, callee.function, caller)
        return None

    def _function(self, scope: int) -> str:
        """Return the name of the function that a scope is in."""
        while scope:
            reader = Reader(pick(self._raw, scope - 1, "scope"))
            tag, around = reader.byte(), reader.varint()
            if tag == _SUBPROGRAM:
                reader.varint()  # line; `around` was the file
                return pick(self._strings, reader.varint(), "string")
            if tag != _LEXICAL_BLOCK or around >= scope:
                break
            scope = around
        return ""
