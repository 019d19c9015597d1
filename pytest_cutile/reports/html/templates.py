"""How pages are made: templates of Jinja2 beside this module, in which every text is escaped."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from pytest_cutile.reports.html.plots import is_finite
from pytest_cutile.words.document import Paragraph, Section, Table, printable, shorten
from pytest_cutile.words.quantities import counted, format_change, format_commit, format_share, format_time

NAME_CHARACTERS = 80
"""Characters of a name that a table shows; the details have the whole name."""


def pages() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(text_of),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # What is no text in a page: characters that control a terminal, or turn the direction of text.
        finalize=lambda value: value if isinstance(value, Markup) else _clean(value),
    )
    environment.globals["style"] = Markup(text_of("page.css"))  # noqa: S704 - ours
    environment.tests |= {
        name: lambda block, block_type=block_type: isinstance(block, block_type)
        for name, block_type in {"paragraph": Paragraph, "section": Section, "table": Table}.items()
    }
    environment.filters |= {
        "time": _if_finite(format_time),
        "number": _if_finite("{:.6g}".format),
        "change": _if_finite(format_change),
        "share": _if_finite(format_share),
        "rate_in": lambda figures, unit: _rate(figures.in_unit(unit), unit),
        "rate": lambda figures: _rate(figures.rate, figures.unit),
        "counted": counted,
        "commit": format_commit,
        "shorten": lambda text: shorten(text, NAME_CHARACTERS),
    }
    return environment


def text_of(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _clean(value: Any) -> Any:
    return "\n".join(map(printable, value.split("\n"))) if isinstance(value, str) else value


def _rate(rate: float | None, unit: str) -> str:
    return f"{rate:.4g} {unit}" if is_finite(rate) else ""


def _if_finite(form: Callable[[float], str]) -> Callable[[float | None], str]:
    """Return a filter that shows nothing of what is no number."""
    return lambda value: form(value) if is_finite(value) else ""
