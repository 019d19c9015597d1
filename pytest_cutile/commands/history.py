"""`pytest-cutile history NAME`: the recorded sessions of cases, as tables with a line of bars."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.baselines.store import read_all
from pytest_cutile.reports.history import history_document
from pytest_cutile.words.text import render_text

HELP = "print how the recorded times of a case moved over commits and GPUs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="a case, or a part of its name: softmax, bf16, softmax[bf16-4096x8192]")
    parser.add_argument(
        "--baselines",
        type=Path,
        default=Path("baselines"),
        metavar="PATH",
        help="a file or folder of baselines (default: baselines/)",
    )


def run(options: argparse.Namespace) -> tuple[int, list[str]]:
    files, _ = read_all(options.baselines)
    cases = [(key, file) for file in files for key in sorted(file.entries) if options.name in key]
    if not cases:
        kernels = sorted({key.partition("[")[0] for file in files for key in file.entries})
        hint = f"; it knows {', '.join(kernels)}" if kernels else ""
        raise BaselineError(f"{options.baselines}: no case has {options.name!r} in its name{hint}")
    documents = [render_text(history_document(key, file)) for key, file in cases]
    return 0, "\n\n".join(documents).splitlines()
