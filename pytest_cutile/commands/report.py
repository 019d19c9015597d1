"""`pytest-cutile report [BASELINES...|--run FILE] -o DIR|FILE`: a page of what is stored, with no GPU."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pytest_cutile.baselines.entries import SpeedBaselines, StaticBaselines
from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.baselines.select import merge
from pytest_cutile.baselines.store import read_all
from pytest_cutile.commands.output import require_pages, write
from pytest_cutile.reports.report import Report, from_json, report_of_baselines, to_json
from pytest_cutile.words.quantities import counted

HELP = "write a page of what is stored: figures, rooflines, history, compiled code"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "baselines",
        type=Path,
        nargs="*",
        default=[Path("baselines")],
        metavar="BASELINES",
        help="files or folders of baselines (default: baselines/)",
    )
    what.add_argument(
        "--run",
        dest="of_run",
        type=Path,
        metavar="FILE",
        help="show the run that --kernel-json wrote to this file, instead of baselines",
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
    if not output.suffix or output.is_dir():
        output /= "index.html"
    if output.suffix not in (".html", ".json"):
        raise BaselineError(
            f"{output}: give a file .html or .json, a folder that exists, or one without a dot"
        )
    report = _of_baselines(options.baselines) if options.of_run is None else _of_run(options.of_run)
    if output.suffix == ".json":
        text = to_json(report)
    else:
        require_pages()
        from pytest_cutile.reports.html import render_html

        text = render_html(report)
    write(output, text)
    return 0, [f"{output}: {counted(len(report.cases), 'case')}"]


def _of_run(path: Path) -> Report:
    try:
        return from_json(path.read_bytes())
    except OSError as error:
        raise BaselineError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise BaselineError(f"{path} is no report that --kernel-json wrote: {error}") from error


def _of_baselines(paths: Sequence[Path]) -> Report:
    speed: dict[tuple[str, str], list[SpeedBaselines]] = defaultdict(list)
    static: list[StaticBaselines] = []
    for path in paths:
        of_path = read_all(path)
        for one in of_path[0]:
            speed[one.arch, one.gpu].append(one)
        static += of_path[1]
    merged = [merge(files) for files in speed.values()]
    return report_of_baselines(merged, static, {"baselines": ", ".join(map(str, paths))})
