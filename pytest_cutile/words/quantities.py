"""How quantities and lists are written: times, changes, shares and ratios with their units."""

from __future__ import annotations

import re
from collections.abc import Sequence


def format_time(us: float) -> str:
    """Return a time with three to four digits and its unit: "38.81 us", "1.203 ms"."""
    return f"{us:.4g} us" if us < 1000 else f"{us / 1000:.4g} ms"  # noqa: PLR2004


def format_change(change: float) -> str:
    """Return a relative change with its sign: "+6.2 %"."""
    return f"{change:+.1%}".replace("%", " %")


def format_commit(commit: str, digits: int = 12) -> str:
    """Return an abbreviated hash, with "+" where the checkout had changes that are not in the commit."""
    return f"{commit[:digits]}{'+' * commit.endswith('+')}"


def format_share(share: float) -> str:
    """Return a share as whole percents: "72 %"."""
    return f"{share:.0%}".replace("%", " %")


def format_ratio(ratio: float) -> str:
    """Return a ratio with three digits: "13.7x", "0.0731x"."""
    return f"{ratio:#.3g}x"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 case", "2 cases"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def abridged(names: Sequence[str], shown: int) -> str:
    """Return the first names and the number of all others: "a, b and 3 more"."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")


def natural_order(text: str) -> list[tuple[int, str]]:
    """Return a key that sorts 8192 before 16384."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", text)]
