"""What a launcher that tunes may launch, compiled: each of its configurations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_cutile.tile.compiler.fingerprint import digest_code
from pytest_cutile.tile.compiler.job import CompileError

if TYPE_CHECKING:
    from pytest_cutile.tile.compiler.compilations import Compilation


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One of the configurations that a launcher chooses from."""

    name: str
    """The configuration in words: "TILE=64, occupancy=2"."""
    described: tuple[str, ...]
    """Grid and arguments of each launch, as a fingerprint counts them."""
    compilations: tuple[Compilation, ...] = ()
    """The launches, under way; none if cuda-tile rejects one."""
    rejected: str = ""
    """Why it does not compile, as far as that is known."""

    def awaited(self) -> Configuration:
        """Wait for tileiras; return the configuration with what that says.

        Raises:
            Exception: what says nothing about the kernel, such as CompilerMissing.
        """
        try:
            for compilation in self.compilations:
                compilation.compiling.result()
        except CompileError as error:
            return replace(self, rejected=error.message)
        return self

    def codes(self) -> list[tuple[str, str]]:
        """Wait for each launch; return the digest of its code, "" if it does not compile, and the launch."""
        if self.rejected:
            return [("", described) for described in self.described]
        compiled = (compilation.compiling.result() for compilation in self.compilations)
        digests = [digest_code(kernel.cubin, kernel.symbol) for kernel in compiled]
        return [*zip(digests, self.described, strict=True)]


def first_that_compiles(configurations: Sequence[Configuration]) -> str:
    """Return the name of the first configuration that compiles, as far as is known; "" if none does."""
    return next((one.name for one in configurations if not one.rejected), "")
