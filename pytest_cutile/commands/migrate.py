"""`pytest-cutile migrate [PATH...]`: rewrite baselines of an older version in the current format."""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

from pytest_cutile.baselines.store import migrate
from pytest_cutile.quantities import counted
from pytest_cutile.revisions.git import Repository, RevisionError

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


class _Commits:
    """Full hashes of the commits of the checkout that a file or folder is in."""

    def __init__(self, path: Path) -> None:
        self.unknown: set[str] = set()
        self._repository: Repository | None = None
        with suppress(RevisionError):  # outside of git every commit is unknown
            self._repository = Repository(path if path.is_dir() else path.parent)

    def resolve(self, commit: str) -> str:
        with suppress(RevisionError):
            if self._repository is not None:
                return self._repository.commit(commit)
        self.unknown.add(commit)
        return commit


def run(options: argparse.Namespace) -> tuple[int, list[str]]:
    changed: dict[Path, bool] = {}
    unknown: set[str] = set()
    for path in options.paths:
        commits = _Commits(path)
        changed.update(migrate(path, commits.resolve))
        unknown |= commits.unknown
    width = max(len(f"{path}") for path in changed) if changed else 0
    outcomes = {True: "rewritten in the current format", False: "is current"}
    lines = [f"{path!s:{width}}  {outcomes[is_old]}" for path, is_old in changed.items()]
    if unknown:
        lines.append(
            f"{counted(len(unknown), 'commit')} not in this checkout: {', '.join(sorted(unknown))}. "
            "Cases recorded there are compared with stored times alone."
        )
    return 0, lines or ["no baselines found"]
