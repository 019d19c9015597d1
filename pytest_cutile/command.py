"""The command `pytest-cutile`: what is done with files of baselines, without pytest and without a GPU."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_cutile.core.baseline_files import BaselineError
from pytest_cutile.core.baselines import BaselineFile, Entry, read_baselines, record_entries
from pytest_cutile.core.merging import Merged, merge_entries
from pytest_cutile.core.platform_comparison import compare_platforms
from pytest_cutile.core.platform_report import platform_report
from pytest_cutile.core.static_baselines import is_static

REFUSED = 1
"""Exit status when a case was not merged, because it would have become worse."""
BAD_FILE = 2
"""Exit status for files that cannot be used; also that of argparse for a wrong command line."""
CLOSED_PIPE = 128 + signal.SIGPIPE
"""Exit status when nobody reads what is printed, as of any program that the closed pipe ends."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        status, lines = (0, _compare(options)) if options.command == "compare" else _merge(options)
    except BaselineError as error:
        print("pytest-cutile:", " ".join(str(error).split()), file=sys.stderr)  # noqa: T201
        return BAD_FILE
    try:
        for line in lines:
            print(line)  # noqa: T201
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough; what is still buffered has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pytest-cutile", description="Work with files of speed baselines.")
    commands = parser.add_subparsers(dest="command", required=True)
    compare = commands.add_parser("compare", help="print how two platforms compare, case by case")
    compare.add_argument("first", type=Path, metavar="A.json")
    compare.add_argument("second", type=Path, metavar="B.json", help="ratios are B over A")
    compare.add_argument("--markdown", action="store_true", help="print tables of Markdown")
    merge = commands.add_parser("merge", help="put together what several runners recorded of one platform")
    merge.add_argument("files", type=Path, nargs="+", metavar="FILE")
    merge.add_argument("--into", type=Path, required=True, metavar="FILE", help="made if it is not there")
    merge.add_argument("--reason", type=_reason, metavar="TEXT", help="why worse figures are accepted")
    return parser


def _reason(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: say why the slower figures are accepted")
    return text


def _read(path: Path) -> BaselineFile:
    _refuse_folder(path)
    _refuse_static(path)
    file = read_baselines(path)
    if file is None:
        raise BaselineError(f"{path}: there is no such file")
    return file


def _refuse_folder(path: Path) -> None:
    if path.is_dir():
        raise BaselineError(f"{path} is a folder: give a file in it, <arch>-<gpu>.json")


def _refuse_static(path: Path) -> None:
    if is_static(path):
        raise BaselineError(
            f"{path} holds static baselines, of code and not of speed: give a file <arch>-<gpu>.json"
        )


def _compare(options: argparse.Namespace) -> list[str]:
    first, second = _read(options.first), _read(options.second)
    labels = (str(options.first), str(options.second))
    return platform_report(compare_platforms(first, second), labels, markdown=options.markdown)


def _merge(options: argparse.Namespace) -> tuple[int, list[str]]:
    into: Path = options.into
    _refuse_folder(into)
    _refuse_static(into)
    if into.suffix != ".json":
        raise BaselineError(f"--into {into}: baselines are read from files whose names end in .json")
    files = {path: _read(path) for path in options.files}
    existing = read_baselines(into)
    of_path, of = (into, existing) if existing is not None else next(iter(files.items()))
    for path, file in files.items():
        if (file.arch, file.gpu) != (of.arch, of.gpu):
            raise BaselineError(
                f"{path} is about {file.gpu} ({file.arch}), and {of_path} about {of.gpu} ({of.arch}): "
                "only files of one platform can be merged; nothing was written"
            )
    merged: dict[str, Merged] = {}

    def renew(on_disk: Mapping[str, Entry]) -> dict[str, Entry]:
        found = [file.entries for file in files.values()]
        merged.update(merge_entries(on_disk, found, reason=options.reason))
        return {key: each.entry for key, each in merged.items() if each.changed and each.entry is not None}

    record_entries(into, arch=of.arch, gpu=of.gpu, renew=renew)
    refused = any(each.refused for each in merged.values())
    return REFUSED if refused else 0, _said(into, merged)


def _said(into: Path, merged: Mapping[str, Merged]) -> list[str]:
    width = max((len(key) for key, each in merged.items() if each.note), default=0)
    lines = [f"{key.ljust(width)}  {each.note}" for key, each in merged.items() if each.note]
    changed = sum(each.changed for each in merged.values())
    total = f"{len(merged)} case{'s' if len(merged) != 1 else ''} merged"
    refused = sum(each.refused for each in merged.values())
    return [*lines, f"{into}: {total}, {changed} changed" + (f", {refused} refused" if refused else "")]
