"""What tileiras is to compile, and the error where a kernel does not compile."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import ClassVar

from pytest_cutile.words.errors import ShownWithoutTraceback
from pytest_cutile.words.verdicts import Reason


class CompileError(ShownWithoutTraceback):
    """The compiler rejects a kernel, or took too long; `str()` is all that the kernel's author needs."""

    reason: ClassVar[Reason] = Reason.COMPILE_ERROR

    def __init__(
        self,
        message: str,
        *,
        kernel: str,
        arch: str,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
        excerpt: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        """What the compiler said, without the place."""
        self.kernel = kernel
        self.arch = arch
        self.file = file
        """The user's source file, if the compiler named one."""
        self.line = line
        """Counted from 1."""
        self.column = column
        """Counted from 1."""
        self.excerpt = excerpt or (source_line(file, line, column) if file and line else "")
        """The source around the place, or the compiler's own account of how it got there."""

    @property
    def headline(self) -> str:
        return f"{self.kernel} does not compile for {self.arch}: {self.message}"

    def __str__(self) -> str:
        if self.file is None:
            return self.headline
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        return "\n".join(part for part in (self.headline, f"  {place}", self.excerpt) if part)


class CompileTimeout(CompileError):  # noqa: N818 - reads as a state in reports
    """The compiler took longer than it may."""


def source_line(file: str, line: int, column: int | None) -> str:
    """Return a line of source, indented, with a mark under the column; empty if there is none."""
    source = linecache.getline(file, line).rstrip()
    stripped = source.lstrip()
    if not stripped or column is None:
        return f"    {stripped}".rstrip()
    before = max(0, column - 1 - (len(source) - len(stripped)))
    return f"    {stripped}\n    {' ' * before}^"


@dataclass(frozen=True, kw_only=True)
class CompileJob:
    """All that tileiras needs, detached from the launch."""

    bytecode: bytes
    """Tile IR. The kernel's hints (occupancy, CTAs, warps) and its source lines are inside."""
    arch: str
    opt_level: int
    """0 to 3, as the kernel asks."""
    kernel: str
    symbol: str
    """Name of the compiled kernel in the cubin; the signature is encoded in it."""
    file: str
    line: int
    """Line of the kernel's definition, counted from 1."""

    def stopped(self, message: str) -> CompileTimeout:
        """Return the error of a compiler whose time was over."""
        return CompileTimeout(message, kernel=self.kernel, arch=self.arch, file=self.file, line=self.line)

    def rejected(
        self, message: str, file: str | None = None, line: int | None = None, column: int | None = None
    ) -> CompileError:
        """Return the error of a compiler that names a place, or else is about the kernel's definition."""
        if file is None:
            file, line, column = self.file, self.line, None
        return CompileError(message, kernel=self.kernel, arch=self.arch, file=file, line=line, column=column)
