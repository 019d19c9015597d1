"""Render documents as Markdown, in which users' texts are nothing but text."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_cutile.words.document import (
    Code,
    Document,
    DocumentBlock,
    Facts,
    Paragraph,
    Section,
    Table,
    printable,
)

CELL_WIDTH = 240
"""Characters of a user's text that are shown."""
_LEFT_OUT = "{} of {} are left out here: the page would be too long. The log and the JUnit file have them."
_RESERVED_BYTES = 2048
"""For the notes on what was left out, at most one for each block."""


@dataclass(frozen=True)
class _Piece:
    """A part of the page whose last rows may be left out."""

    head: str
    rows: Sequence[str] = ()
    tail: str = ""


def render_markdown(document: Document, *, level: int = 2, limit_bytes: int | None = None) -> str:
    """Return the page: as many rows of tables and lists as fit into `limit_bytes`, and a note on the rest.

    Its title is a heading of `level`: 1 in a file of its own, 2 among others in a job's summary.
    """
    pieces = [_Piece(f"{'#' * level} {_prose(document.title)}")] if document.title else []
    pieces += [piece for block in document.blocks for piece in _pieces(block, level + 1)]
    left = float("inf") if limit_bytes is None else limit_bytes - _RESERVED_BYTES
    page: list[str] = []
    for piece in pieces:
        left -= len(f"{piece.head}\n\n{piece.tail}\n\n".encode())
        shown = 0
        for row in piece.rows:
            left -= len(row.encode()) + 1
            if left < 0:
                break
            shown += 1
        if shown or not piece.rows:
            page.append("\n".join([piece.head, *piece.rows[:shown]]))
        if shown < len(piece.rows):
            page.append(_LEFT_OUT.format(len(piece.rows) - shown, len(piece.rows)))
        if piece.tail and shown:
            page.append(piece.tail)
    return "\n\n".join(page) + "\n"


def _pieces(block: DocumentBlock, level: int, head: str = "", tail: str = "") -> Iterator[_Piece]:
    """Yield the parts of a block; `head` goes before the first one and `tail` behind the last one."""
    start = f"{head}\n\n" if head else ""
    match block:
        case Paragraph():
            lead = f"**{_prose(block.lead)}** " if block.lead else ""
            yield _Piece(f"{start}{lead}{_prose(block.text)}", tail=tail)
        case Facts():
            rows = [f"- {_prose(label)}: {code(' '.join(texts))}" for label, texts in block.items if texts]
            yield _Piece(f"{head}\n", rows, tail)
        case Code():
            lines = "\n".join(map(printable, block.text.splitlines()))
            yield _Piece(f"{start}```\n{lines}\n```", tail=tail)
        case Table():
            table = block.without_empty_columns()
            columns = [_prose(column.title) for column in table.columns]
            rule = ["---:" if column.right else "---" for column in table.columns]
            rows = [
                _row(
                    code(text) if column.verbatim else _prose(text)
                    for text, column in zip(row.cells, table.columns, strict=True)
                )
                for row in table.rows
            ]
            yield _Piece(f"{start}{_row(columns)}\n{_row(rule)}", rows, tail)
        case Section():
            title, blocks = _prose(block.title), block.blocks
            head = f"<details><summary>{title}</summary>" if block.folded else f"{'#' * level} {title}"
            tail = "</details>" if block.folded else ""
            for number, inner in enumerate(blocks):
                is_last = number == len(blocks) - 1
                yield from _pieces(inner, level + 1, "" if number else head, tail if is_last else "")


def code(text: str) -> str:
    """Return `text` as a code span, in which Markdown, HTML, @names and :emoji: are nothing but text."""
    text = " ".join(printable(text).split())
    if not text:
        return ""
    if len(text) > CELL_WIDTH:
        text = f"{text[: CELL_WIDTH - 4]} ..."
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    # Tables are cut into cells before code spans are looked for.
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\|")


def _prose(text: str) -> str:
    """Return our own words, in which only what would be HTML or a cell's end is escaped."""
    return html.escape(" ".join(printable(text).split()), quote=False).replace("|", "\\|")


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
