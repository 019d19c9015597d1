"""The document model: what every report and every failure message is built of, before it is rendered.

A builder, such as `gates.messages` or `reports.terminal_summary`, makes a `Document` from results; a renderer
(`text`, `reports.markdown`) lays it out. Texts may come from users: only the renderers escape.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum
from typing import TypeAlias


class Tone(StrEnum):
    """What a line means for the reader: its colour, where there are colours."""

    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"
    WARNING = "warning"


class Overflow(StrEnum):
    """What becomes of a line that is longer than a page of limited width."""

    WRAP = "wrap"
    CLIP = "clip"
    KEEP = "keep"
    """The line stays whole: people search logs for such lines."""


@dataclass(frozen=True)
class Paragraph:
    """A sentence or two."""

    text: str
    _: KW_ONLY
    lead: str = ""
    """A first sentence that stands out."""
    tone: Tone = Tone.PLAIN
    overflow: Overflow = Overflow.WRAP


@dataclass(frozen=True)
class Facts:
    """Labelled facts: a label, and the lines of text that it introduces. Without lines it is not shown."""

    items: Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True)
class Code:
    """Lines to copy, such as a command."""

    text: str


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    right: bool = False
    """Whether its cells are figures, aligned right."""
    shrinks: bool = False
    """Whether its cells are names that may lose their middle where the page is too narrow."""
    verbatim: bool = False
    """Whether its cells are not our words (names, messages): Markdown shows them as code."""


@dataclass(frozen=True)
class Row:
    """A row of a table: a cell for each column."""

    cells: tuple[str, ...]
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True)
class Table:
    """A table with a header. Renderers leave out columns that are empty in every row."""

    columns: Sequence[Column]
    rows: Sequence[Row]

    def part(self, indices: Sequence[int]) -> Table:
        rows = [replace(row, cells=tuple(row.cells[index] for index in indices)) for row in self.rows]
        return Table([self.columns[index] for index in indices], rows)

    def without_empty_columns(self) -> Table:
        """Return the columns that have a cell with text."""
        return self.part([i for i in range(len(self.columns)) if any(row.cells[i] for row in self.rows)])


@dataclass(frozen=True)
class Section:
    """Blocks under a title."""

    title: str
    blocks: Sequence[DocumentBlock]
    _: KW_ONLY
    folded: bool = False
    """Whether a page that can fold shows only the title at first."""


DocumentBlock: TypeAlias = Paragraph | Facts | Code | Table | Section


@dataclass(frozen=True)
class Document:
    """A report or a message."""

    title: str
    """What it is, or what it says in one line."""
    blocks: Sequence[DocumentBlock]


# What GitHub, Azure and TeamCity obey in a log: "::command" where a line begins, "##[command" anywhere.
_LOG_COMMAND = re.compile(r"(?<!\S)(?=::)|(?<=#)(?=#\w*\[)")


def printable(text: str) -> str:
    """Return `text` on one line, with nothing in it that a terminal or the log of a CI service would obey.

    All that this package prints of others' words goes through here.
    """
    if not text.isprintable():
        text = "".join(
            char if char.isprintable() else " " if char.isspace() else ascii(char)[1:-1] for char in text
        )
    return _LOG_COMMAND.sub(r"\\", text)


def shorten(text: str, width: int) -> str:
    """Cut the middle of `text`: names differ at their ends."""
    if len(text) <= width:
        return text
    tail = (width - 2) // 2
    return f"{text[: width - 2 - tail]}..{text[-tail:]}"
