"""How the attributes of operations are written in bytecode, one parser for each sort."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from pytest_cutile.tile.interpreter.ir import Type
from pytest_cutile.tile.interpreter.reader import Reader, UnknownBytecode, pick


class Tables(Protocol):
    """What attributes name by number."""

    strings: Sequence[str]
    constants: Sequence[bytes]

    def type_at(self, number: int) -> Type:
        """Return the type with this number."""


AttributeParser: TypeAlias = Callable[[Tables, Reader], Any]


def one_of(what: str, *names: str) -> AttributeParser:
    """Make the parser of an attribute that is one of these names."""
    return lambda _tables, reader: pick(names, reader.byte(), what)


def integer(_tables: Tables, reader: Reader) -> int:
    """Read a number that is not negative."""
    return reader.varint()


def boolean(_tables: Tables, reader: Reader) -> bool:
    """Read a byte as a truth value."""
    return bool(reader.byte())


def booleans(_tables: Tables, reader: Reader) -> tuple[bool, ...]:
    return tuple(bool(number) for number in reader.integers(1))


def int32s(_tables: Tables, reader: Reader) -> tuple[int, ...]:
    return reader.integers(4)


def string(tables: Tables, reader: Reader) -> str:
    """Read the number of a string."""
    return pick(tables.strings, reader.varint(), "string")


def constant(tables: Tables, reader: Reader) -> bytes:
    """Read the number of a constant."""
    return pick(tables.constants, reader.varint(), "constant")


def array(tables: Tables, reader: Reader) -> list[Any]:
    """Read a list of attributes that say what they are."""
    return [tagged(tables, reader) for _ in range(reader.varint())]


def dictionary(tables: Tables, reader: Reader) -> dict[str, Any]:
    return {string(tables, reader): tagged(tables, reader) for _ in range(reader.varint())}


def tagged(tables: Tables, reader: Reader) -> Any:
    """Read an attribute that says what it is."""
    tag = reader.byte()
    if tag not in _TAGGED:
        raise UnknownBytecode(f"attribute {tag} is not known")
    return _TAGGED[tag](tables, reader)


def _type(tables: Tables, reader: Reader) -> Type:
    return tables.type_at(reader.varint())


def _integer(tables: Tables, reader: Reader) -> tuple[Type, int]:
    return _type(tables, reader), reader.varint()


def _float(tables: Tables, reader: Reader) -> tuple[Type, int]:
    type_ = _type(tables, reader)
    one_byte = str(type_).startswith(("f8", "f4"))
    return type_, reader.byte() if one_byte else reader.signed_varint()


def _two(reader: Reader) -> tuple[int | None, int | None]:
    flags = reader.byte()
    first = reader.signed_varint() if flags & 1 else None
    return first, reader.signed_varint() if flags & 2 else None


def _divisible(_tables: Tables, reader: Reader) -> tuple[str, int, int | None, int | None]:
    divisor = reader.varint()
    return "div_by", divisor, *_two(reader)


def _bounded(_tables: Tables, reader: Reader) -> tuple[str, int | None, int | None]:
    return "bounded", *_two(reader)


_TAGGED = MappingProxyType(
    {
        1: _integer,
        2: _float,
        3: boolean,
        4: _type,
        5: string,
        6: array,
        8: _divisible,
        10: dictionary,
        11: dictionary,  # hints by architecture
        12: _bounded,
    }
)
