"""`pytest-cutile report [BASELINES...] -o DIR|FILE`: a page of what is stored, with no GPU and no run."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_cutile.baselines.store import read_all
from pytest_cutile.commands.output import require_pages, write
from pytest_cutile.quantities import counted
from pytest_cutile.reports.report import report_of_baselines, to_json

HELP = "write a page of what is stored: figures, rooflines, history, compiled code"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "baselines",
        type=Path,
        nargs="*",
        default=[Path("baselines")],
        metavar="BASELINES",
        help="files or folders of baselines (default: baselines/)",
    )
    parser.add_argument(
        "-o",
        dest="output",
        type=Path,
        required=True,
        metavar="DIR|FILE",
        help="a folder, which gets index.html; or a file .html or .json",
    )


def run(options: argparse.Namespace) -> tuple[int, list[str]]:
    output: Path = options.output
    if output.suffix not in (".html", ".json") or output.is_dir():
        output /= "index.html"
    speed, static = [], []
    for path in options.baselines:
        of_path = read_all(path)
        speed += of_path[0]
        static += of_path[1]
    report = report_of_baselines(speed, static, {"baselines": ", ".join(map(str, options.baselines))})
    if output.suffix == ".json":
        text = to_json(report)
    else:
        require_pages()
        from pytest_cutile.reports.html import render_html

        text = render_html(report)
    write(output, text)
    return 0, [f"{output}: {counted(len(report.cases), 'case')}"]
