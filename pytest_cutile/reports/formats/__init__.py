"""Report formats: files that a run writes when it ends, each with an option of its own.

A format is a module of this folder with a `FORMAT`: its option, the help and the writing follow from that.
These modules are imported whenever pytest starts, so they import what they render with when they render.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pytest_cutile.reports.cases import RunOutcome


class ReportFormat(NamedTuple):
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
    files = sorted(file for folder in __path__ for file in Path(folder).glob("[!_]*.py"))
    return tuple(importlib.import_module(f"{__name__}.{file.stem}").FORMAT for file in files)
