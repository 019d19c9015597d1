"""Render documents as plain text for a terminal, or for a log of 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_cutile.words.document import (
    Code,
    Document,
    DocumentBlock,
    Facts,
    Overflow,
    Paragraph,
    Section,
    Table,
    Tone,
    printable,
    shorten,
)

WIDTH = 100
_INDENT = "  "
_GAP = "  "
_LABEL_WIDTH = 12
_NARROWEST = 8
"""Characters that a shortened name keeps at least."""


@dataclass(frozen=True)
class Line:
    """One line of text."""

    text: str
    tone: Tone = Tone.PLAIN


def render_text(document: Document) -> str:
    lines = [Line(printable(document.title)), Line(""), *render_lines(document.blocks)]
    return "\n".join(line.text for line in lines).rstrip()


def render_lines(blocks: Iterable[DocumentBlock], *, width: int = WIDTH) -> list[Line]:
    """Return the lines of `blocks`, a blank line between two of them unless they belong together."""
    lines: list[Line] = []
    previous: DocumentBlock | None = None
    for block in blocks:
        if previous is not None and not _adjacent(previous, block):
            lines.append(Line(""))
        lines += [Line(line.text.rstrip(), line.tone) for line in _render(block, width)]
        previous = block
    return lines


def _adjacent(first: DocumentBlock, second: DocumentBlock) -> bool:
    return isinstance(first, Paragraph) and isinstance(second, Paragraph | Code)


def _render(block: DocumentBlock, width: int) -> Iterator[Line]:
    match block:
        case Paragraph():
            text = printable(f"{block.lead} {block.text}" if block.lead else block.text).rstrip()
            if block.overflow is Overflow.WRAP:
                yield from (Line(line, block.tone) for line in _wrapped(text, width, following=_INDENT))
            elif block.overflow is Overflow.CLIP and len(text) > width:
                yield Line(f"{text[: width - 4]} ...", block.tone)
            else:
                yield Line(text, block.tone)
        case Facts():
            for label, texts in block.items:
                first = f"{_INDENT}{printable(label).ljust(_LABEL_WIDTH)}"
                for text in texts:
                    following = " " * len(first)
                    yield from map(Line, _wrapped(printable(text), width, first=first, following=following))
                    first = following
        case Code():
            yield from (Line(_INDENT + printable(line)) for line in block.text.splitlines())
        case Table():
            yield from _table(block.without_empty_columns(), width)
        case Section():
            yield from map(Line, _wrapped(printable(block.title), width, following=_INDENT * 2))
            for line in render_lines(block.blocks, width=width - len(_INDENT)):
                yield Line(_INDENT + line.text, line.tone)


def _wrapped(text: str, width: int, *, first: str = "", following: str) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=following,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first]


def _table(table: Table, width: int) -> Iterator[Line]:
    """Align the columns; too wide a table is shortened or, without names to shorten, split into several."""
    header, *rows = (
        [printable(text) for text in texts]
        for texts in ([column.title for column in table.columns], *(row.cells for row in table.rows))
    )
    widths = [max(map(len, texts)) for texts in zip(header, *rows, strict=True)]
    names = [index for index, column in enumerate(table.columns) if column.shrinks]
    if not names and (parts := _split(widths, width)):
        for number, indices in enumerate(parts):
            yield from [Line("")] * bool(number)
            yield from _table(table.part(indices), width)
        return
    while sum(widths) + len(_GAP) * (len(widths) - 1) > width and names:
        widest = max(names, key=widths.__getitem__)
        if widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1

    def aligned(texts: Sequence[str]) -> str:
        return _GAP.join(
            text.rjust(size) if column.right else shorten(text, size).ljust(size)
            for text, size, column in zip(texts, widths, table.columns, strict=True)
        )

    yield Line(aligned(header))
    yield Line(_GAP.join("-" * size for size in widths))
    yield from (Line(aligned(texts), row.tone) for texts, row in zip(rows, table.rows, strict=True))


def _split(widths: Sequence[int], width: int) -> list[list[int]]:
    """Return the columns of several tables, the first column in every one; nothing if one table is enough."""
    parts = [[0]]
    used = widths[0]
    for index, size in enumerate(widths[1:], start=1):
        used += len(_GAP) + size
        if used > width and len(parts[-1]) > 1:
            parts.append([0])
            used = widths[0] + len(_GAP) + size
        parts[-1].append(index)
    return parts if len(parts) > 1 else []
