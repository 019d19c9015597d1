"""Report formats: files that a run writes when it ends, each with an option of its own.

A format is a module of this folder with a `FORMAT`: its option, the help and the writing follow from that.
These modules are imported whenever pytest starts, so they import what they render with when they render.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_cutile.reports.cases import RunOutcome


@dataclass(frozen=True, kw_only=True)
class ReportFormat:
    """A file that a run can write when it ends."""

    option: str
    """The command-line option that takes the file's path: "--kernel-csv"."""
    help: str
    render: Callable[[RunOutcome], str]
    appends: bool = False
    """Whether the text goes behind what the file has already."""

    @property
    def dest(self) -> str:
        """The option's name among pytest's options: "kernel_csv"."""
        return self.option.removeprefix("--").replace("-", "_")


@cache
def report_formats() -> tuple[ReportFormat, ...]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(importlib.import_module(f"{__name__}.{name}").FORMAT for name in names)
