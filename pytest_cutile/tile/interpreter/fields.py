"""What an operation of Tile IR is made of in bytecode: one small class for each kind of field."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from pytest_cutile.tile.interpreter.attributes import AttributeParser, Tables
from pytest_cutile.tile.interpreter.ir import Block, Type
from pytest_cutile.tile.interpreter.reader import Reader, UnknownBytecode

Version = tuple[int, int]


class Source(Tables, Protocol):
    """What fields are read from: the body of a function."""

    reader: Reader
    version: Version

    def value(self) -> int:
        """Read the number of a value that is defined here."""

    def block(self) -> Block:
        """Read a block of operations."""


@dataclass(kw_only=True)
class Draft:
    """An operation of which some fields are read."""

    types: list[Type] = field(default_factory=list)
    operands: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    regions: tuple[Block, ...] = ()
    announced: set[str] = field(default_factory=set)
    """Optional parts that are there."""
    count: int = 0
    """Number of all operands, where that was written."""


class Field(Protocol):
    """A part of an operation."""

    def read(self, source: Source, draft: Draft) -> None:
        """Read it."""

    def leave_out(self, draft: Draft) -> None:
        """Put what its absence means in bytecode that is older than it."""


class _Required:
    def leave_out(self, draft: Draft) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Since:
    """A field that older bytecode does not have."""

    version: Version
    field: Field

    def read(self, source: Source, draft: Draft) -> None:
        if source.version >= self.version:
            self.field.read(source, draft)
        else:
            self.field.leave_out(draft)

    def leave_out(self, draft: Draft) -> None:
        self.field.leave_out(draft)


class ResultType(_Required):
    """The type of one result."""

    def read(self, source: Source, draft: Draft) -> None:
        draft.types.append(source.type_at(source.reader.varint()))


class ResultTypes(_Required):
    """The types of some results, after their number."""

    def read(self, source: Source, draft: Draft) -> None:
        draft.types += [source.type_at(source.reader.varint()) for _ in range(source.reader.varint())]


class Flags:
    """Attributes of one bit each."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def read(self, source: Source, draft: Draft) -> None:
        bits = _bits(source.reader, len(self.names))
        draft.attributes.update(zip(self.names, bits, strict=True))

    def leave_out(self, draft: Draft) -> None:
        draft.attributes.update(dict.fromkeys(self.names, False))


class Announced:
    """A bit for each optional part: whether it is there."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def read(self, source: Source, draft: Draft) -> None:
        bits = _bits(source.reader, len(self.names))
        draft.announced.update(name for name, there in zip(self.names, bits, strict=True) if there)

    def leave_out(self, draft: Draft) -> None:
        """Announce nothing."""


def _bits(reader: Reader, count: int) -> list[bool]:
    bits = reader.varint()
    if bits >> count:
        raise UnknownBytecode(f"flags {bits:#b} of an operation that has {count}")
    return [bool(bits >> index & 1) for index in range(count)]


@dataclass(frozen=True)
class Attribute:
    """An attribute with a name."""

    name: str
    parse: AttributeParser
    absent: Any = None
    """Its value where older bytecode lacks it, or the optional part is not there."""
    optional: bool = False
    """Whether it is there only if announced."""

    def read(self, source: Source, draft: Draft) -> None:
        if self.optional and self.name not in draft.announced:
            self.leave_out(draft)
        else:
            draft.attributes[self.name] = self.parse(source, source.reader)

    def leave_out(self, draft: Draft) -> None:
        draft.attributes[self.name] = self.absent


@dataclass(frozen=True)
class Operand(_Required):
    """One value."""

    name: str

    def read(self, source: Source, draft: Draft) -> None:
        draft.operands[self.name] = source.value()


@dataclass(frozen=True)
class Optional(_Required):
    """A value that is there if it was announced; None if not."""

    name: str

    def read(self, source: Source, draft: Draft) -> None:
        draft.operands[self.name] = source.value() if self.name in draft.announced else None


@dataclass(frozen=True)
class Listed(_Required):
    """Some values, after their number."""

    name: str

    def read(self, source: Source, draft: Draft) -> None:
        draft.operands[self.name] = tuple(source.value() for _ in range(source.reader.varint()))


class Count(_Required):
    """How many operands there are in all."""

    def read(self, source: Source, draft: Draft) -> None:
        draft.count = source.reader.varint()


@dataclass(frozen=True)
class Rest(_Required):
    """All operands after the first, of those that `Count` counted."""

    name: str

    def read(self, source: Source, draft: Draft) -> None:
        rest = draft.count - len(draft.operands)
        if rest < 0:
            raise UnknownBytecode(f"{draft.count} operands are too few")
        draft.operands[self.name] = tuple(source.value() for _ in range(rest))


@dataclass(frozen=True)
class Blocks(_Required):
    """Blocks of operations."""

    count: int

    def read(self, source: Source, draft: Draft) -> None:
        count = source.reader.varint()
        if count != self.count:
            raise UnknownBytecode(f"{count} blocks instead of {self.count}")
        draft.regions = tuple(source.block() for _ in range(count))
