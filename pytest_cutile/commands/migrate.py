"""`pytest-cutile migrate [PATH...]`: rewrite baselines of an older version in the current format."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_cutile.baselines.store import migrate
from pytest_cutile.gates.revisions.git import Repository, RevisionError
from pytest_cutile.words.quantities import counted

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
    changed: dict[Path, bool] = {}
    unknown: set[str] = set()

    def full_hash(commit: str) -> str:
        """Return the full hash of a commit of the checkout that `path` is in, if there is such a commit."""
        try:
            return Repository(path if path.is_dir() else path.parent).commit(commit)
        except RevisionError:
            unknown.add(commit)
            return commit

    for path in options.paths:
        changed.update(migrate(path, full_hash))
    width = max(len(f"{path}") for path in changed) if changed else 0
    outcomes = {True: "rewritten in the current format", False: "is current"}
    lines = [f"{path!s:{width}}  {outcomes[is_old]}" for path, is_old in changed.items()]
    if unknown:
        lines.append(
            f"{counted(len(unknown), 'commit')} not in this checkout: {', '.join(sorted(unknown))}. "
            "Cases recorded there are compared with stored times alone."
        )
    return 0, lines or ["no baselines found"]
