"""`pytest-cutile compare A.json B.json`: how two platforms compare, case by case."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_cutile.baselines.store import read_speed
from pytest_cutile.reports.markdown import render_markdown
from pytest_cutile.reports.platforms import platform_document
from pytest_cutile.reports.text import render_lines

HELP = "print how two platforms compare, case by case"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", type=Path, metavar="A.json")
    parser.add_argument("second", type=Path, metavar="B.json", help="ratios are B over A")
    parser.add_argument("--markdown", action="store_true", help="print tables of Markdown")


def run(options: argparse.Namespace) -> tuple[int, list[str]]:
    first, second = read_speed(options.first), read_speed(options.second)
    document = platform_document(first, second, (str(options.first), str(options.second)))
    if options.markdown:
        return 0, render_markdown(document).splitlines()
    return 0, [line.text for line in render_lines(document.blocks)]
