"""Reads numbers, strings of bytes and tables from bytecode; what is not there is an error, never a guess."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

_Item = TypeVar("_Item")

_VARINT_BYTES = 10
_LAST_OF_VARINT = 0x80


class UnknownBytecode(ValueError):  # noqa: N818 - reads as what happened
    """Bytecode that this version cannot read; the message says what it was."""


class Reader:
    """Walks over bytes."""

    def __init__(self, data: bytes, position: int = 0, end: int | None = None) -> None:
        self._data = data
        self.position = position
        self.end = len(data) if end is None else end

    @property
    def at_end(self) -> bool:
        return self.position >= self.end

    def take(self, size: int) -> bytes:
        start, self.position = self.position, self.position + size
        if self.position > self.end:
            raise UnknownBytecode(f"the bytecode is cut short: {self.position - self.end} bytes are missing")
        return self._data[start : self.position]

    def byte(self) -> int:
        at = self.position
        if at >= self.end:
            raise UnknownBytecode("the bytecode is cut short: 1 byte is missing")
        self.position = at + 1
        return self._data[at]

    def varint(self) -> int:
        """Read a number of any length, seven bits a byte, low ones first."""
        value = self.byte()
        if value < _LAST_OF_VARINT:
            return value
        value &= 0x7F
        for shift in range(7, 7 * _VARINT_BYTES, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < _LAST_OF_VARINT:
                return value
        raise UnknownBytecode("a number has more than 64 bits")

    def signed_varint(self) -> int:
        """Read a number whose sign is in its lowest bit."""
        value = self.varint()
        return ~(value >> 1) if value & 1 else value >> 1

    def word(self, width: int) -> int:
        """Read an unsigned number of this many bytes."""
        return int.from_bytes(self.take(width), "little")

    def integers(self, width: int) -> tuple[int, ...]:
        """Read a list of signed numbers of `width` bytes each, after their count."""
        raw = self.take(self.varint() * width)
        return tuple(
            int.from_bytes(raw[at : at + width], "little", signed=True) for at in range(0, len(raw), width)
        )

    def align(self, size: int) -> None:
        """Skip what pads to a multiple of `size`."""
        if size < 1:
            raise UnknownBytecode("an alignment of 0")
        self.take(-self.position % size)

    def table(self, width: int) -> list[bytes]:
        """Read strings of bytes up to the end, after their count and their offsets."""
        count = self.varint()
        self.align(width)
        offsets = [self.word(width) for _ in range(count)]
        rest = self.take(self.end - self.position)
        return [rest[start:end] for start, end in pieces(offsets, len(rest))]

    def finish(self, what: str) -> None:
        """Check that everything was read: what is left over means that it was misread."""
        if not self.at_end:
            raise UnknownBytecode(f"{self.end - self.position} bytes too many in {what}")


def pieces(starts: Sequence[int], end: int) -> list[tuple[int, int]]:
    """Return where the pieces of a whole start and end; together they are all of it."""
    bounds = [*starts, end]
    if bounds[0] != 0 or any(start > stop for start, stop in itertools.pairwise(bounds)):
        raise UnknownBytecode("the entries of a table are not in order")
    return list(itertools.pairwise(bounds))


def pick(items: Sequence[_Item], index: int, what: str) -> _Item:
    if not 0 <= index < len(items):
        raise UnknownBytecode(f"{what} {index} is not known")
    return items[index]
