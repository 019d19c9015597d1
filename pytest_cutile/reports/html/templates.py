"""How pages are made: templates of Jinja2 beside this module, in which every text is escaped."""

from __future__ import annotations

from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from pytest_cutile.quantities import counted, format_change, format_commit, format_share, format_time
from pytest_cutile.reports.document import Paragraph, Section, Table, printable, shorten
from pytest_cutile.reports.html.plots import finite
from pytest_cutile.reports.report import Figures

NAME_CHARACTERS = 80
"""Of a name in a table; its details have the whole name."""


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
        name: lambda block, kind=kind: isinstance(block, kind)
        for name, kind in {"paragraph": Paragraph, "section": Section, "table": Table}.items()
    }
    environment.filters |= {
        "time": _time,
        "number": lambda value: f"{value:.6g}" if finite([value]) else "",
        "change": lambda value: format_change(value) if finite([value]) else "",
        "share": lambda value: format_share(value) if finite([value]) else "",
        "rate_in": _rate_in,
        "rate": lambda figures: f"{figures.rate:.4g} {figures.unit}" if finite([figures.rate]) else "",
        "counted": counted,
        "commit": format_commit,
        "shorten": lambda text: shorten(text, NAME_CHARACTERS),
    }
    return environment


def text_of(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _clean(value: Any) -> Any:
    return "\n".join(map(printable, value.split("\n"))) if isinstance(value, str) else value


def _rate_in(figures: Figures, unit: str) -> str:
    rate = figures.in_unit(unit)
    return f"{rate:.4g} {unit}" if rate is not None and finite([rate]) else ""


def _time(us: float | None) -> str:
    return format_time(us) if us is not None and finite([us]) else ""
