"""Tables of text: aligned for a terminal, or as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "  ") -> str:
    """Return a table whose columns are aligned: those of numbers to the right."""
    widths = [max(len(row[at]) for row in (header, *rows)) for at in range(len(header))]
    numeric = [all(_is_number(row[at]) for row in rows) for at in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        return (indent + "  ".join(cells)).rstrip()

    return "\n".join(line(row) for row in (header, *rows))


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    numeric = [all(_is_number(row[at]) for row in rows) for at in range(len(header))]
    rule = ["---:" if right else "---" for right in numeric]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (header, rule, *rows)
    )


def _is_number(cell: str) -> bool:
    return cell.strip() in ("", "-") or re.match(r"[\d.]+($| [%(\[]| TFLOPS| GB)", cell.strip()) is not None
