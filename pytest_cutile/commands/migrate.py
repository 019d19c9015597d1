"""`pytest-cutile migrate [PATH...]`: rewrite baselines of an older version in the current format."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_cutile.baselines.store import migrate

HELP = "rewrite baselines of an older version in the current format"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        type=Path,
        nargs="*",
        default=[Path("baselines")],
        metavar="PATH",
        help="files or folders of baselines (default: baselines)",
    )


def run(options: argparse.Namespace) -> tuple[int, list[str]]:
    changed = {path: is_old for folder in options.paths for path, is_old in migrate(folder).items()}
    width = max(len(f"{path}") for path in changed) if changed else 0
    outcomes = {True: "rewritten in the current format", False: "is current"}
    lines = [f"{path!s:{width}}  {outcomes[is_old]}" for path, is_old in changed.items()]
    return 0, lines or ["no baselines found"]
