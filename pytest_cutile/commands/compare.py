"""`pytest-cutile compare A.json B.json [-o FILE]`: how platforms compare, case by case, in words or drawn."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.baselines.store import read_speed
from pytest_cutile.commands.output import require_pages, write
from pytest_cutile.reports.markdown import render_markdown
from pytest_cutile.reports.platforms import PlatformComparison, compare_platforms, platform_document
from pytest_cutile.words.quantities import counted
from pytest_cutile.words.text import render_lines

HELP = "show how platforms compare, case by case"
_SUFFIXES = (".html", ".svg", ".md", ".txt")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", type=Path, metavar="A.json")
    parser.add_argument("others", type=Path, nargs="+", metavar="B.json", help="ratios are over A")
    parser.add_argument("--markdown", action="store_true", help="print tables of Markdown")
    parser.add_argument(
        "-o",
        dest="output",
        type=Path,
        metavar="FILE",
        help="write a page (.html), its plots (.svg), Markdown (.md) or text (.txt) instead of printing",
    )


def run(options: argparse.Namespace) -> tuple[int, list[str]]:
    paths = [options.first, *options.others]
    output: Path | None = options.output
    if output is not None and output.suffix not in _SUFFIXES:
        raise BaselineError(f"{output}: the name of the output ends in {', '.join(_SUFFIXES)}")
    comparison = compare_platforms([read_speed(path) for path in paths], [*map(str, paths)])
    if output is None:
        return 0, _render(comparison, ".md" if options.markdown else ".txt").splitlines()
    write(output, _render(comparison, output.suffix))
    platforms = counted(len(paths), "platform")
    return 0, [f"{output}: {platforms}, {counted(len(comparison.cases), 'case')}"]


def _render(comparison: PlatformComparison, suffix: str) -> str:
    if suffix in (".html", ".svg"):
        require_pages()
        from pytest_cutile.reports.html.platforms import render_page, render_svg

        return render_page(comparison) if suffix == ".html" else render_svg(comparison)
    document = platform_document(comparison)
    if suffix == ".md":
        return render_markdown(document)
    return "".join(f"{line.text}\n" for line in render_lines(document.blocks))
