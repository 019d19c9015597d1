"""Faults of tileiras that are known: `known_faults.toml` has them, with the sources."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from importlib import resources

import msgspec


@dataclass(frozen=True, kw_only=True)
class PastTheEnd:
    """A tile that sticks out of an array is stored in pieces, and the array ends within a piece."""

    stores: str
    """The first word of the instruction that a store becomes, in the compiler's remarks."""
    atomics: str
    """The mnemonic of an atomic store."""
    piece_bytes: int


@dataclass(frozen=True, kw_only=True)
class KnownFault:
    """A fault, and how a launch that has it is recognized."""

    name: str
    since: str
    """The first release of tileiras that has the fault, as far as is known."""
    before: str
    """The first release that does not have it, or that nobody has looked at."""
    consequence: str
    remedy: str
    sources: tuple[str, ...]
    past_the_end: PastTheEnd

    def is_in(self, release: str) -> bool:
        """Say whether a release of tileiras, "13.4.92", has the fault."""
        return _numbers(self.since) <= _numbers(release) < _numbers(self.before)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", release)))


_FILE = tomllib.loads(resources.files(__package__).joinpath("known_faults.toml").read_text(encoding="utf-8"))
KNOWN_FAULTS = msgspec.convert(_FILE["faults"], tuple[KnownFault, ...])
