"""What a subcommand is."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Command:
    """A subcommand of `pytest-cutile`."""

    name: str
    help: str
    """One line for `pytest-cutile --help`."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], tuple[int, Sequence[str]]]
    """Does the work; returns the exit status and the lines to print, or raises `BaselineError`."""
