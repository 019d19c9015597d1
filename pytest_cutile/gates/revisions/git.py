"""The git checkout under test: its files, its commits, and their trees."""

from __future__ import annotations

import os
import posixpath
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import IO

from pytest_cutile.words.errors import ShownWithoutTraceback

_HOOK_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""What git sets for its hooks, about the repository of the hook."""

_COPIES = (":(exclude,glob)**/pytest/**", ":(exclude,glob)**/_pytest/**")
"""Copies of pytest that pytest-xdist puts into a worker's folder on another machine. git lists them as
untracked, and no kernel depends on them."""


class RevisionError(ShownWithoutTraceback):
    """A git revision cannot be used; the message says what is wrong and what to do."""


class Repository:
    """The git repository that a folder is checked out from. Its methods raise RevisionError where git fails.

    Raises:
        RevisionError: git is not installed, or the folder is in no checkout that git accepts.
    """

    def __init__(self, folder: Path) -> None:
        failure = f"{folder} is in no git checkout, so there are no revisions to compare with; git says"
        self.top = Path(git(folder, "rev-parse", "--show-toplevel", failure=failure)).resolve()
        """The root of the working tree."""
        self.prefix = Path(git(folder, "rev-parse", "--show-prefix", failure=failure))
        """Where the folder is inside."""

    def commit(self, name: str) -> str:
        """Return the full id of the commit that a branch, a tag, or any other expression of git's names."""
        if not name.strip() or name.startswith("-"):
            raise RevisionError(f"{name!r} names no git revision: give a branch, a tag or a commit")
        failure = (
            f"git finds no commit {name!r} in {self.top}. A shallow clone, as CI makes it, lacks older "
            "commits and other branches: fetch them first (git fetch --unshallow, or git fetch origin "
            "BRANCH and then origin/BRANCH)"
        )
        return git(self.top, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", failure=failure)

    def commit_that_added(self, text: str, folder: Path) -> str:
        """Return the full id of the commit that added `text` below `folder`; "" if there is none.

        The oldest commits of a shallow clone seem to add every file: they are not believed.
        """
        failure = f"git cannot search the history of {folder}"
        commits = git(
            self.top, "log", "--reverse", "--format=%H", f"-S{text}", "--", str(folder), failure=failure
        )
        commit = commits.partition("\n")[0]
        return "" if commit in self._oldest_of_shallow_clone else commit

    @property
    def _oldest_of_shallow_clone(self) -> list[str]:
        """The commits whose parents were not fetched; none in a whole clone."""
        failure = f"git cannot tell where the history of {self.top} ends"
        listed = self.top / git(self.top, "rev-parse", "--git-path", "shallow", failure=failure)
        return listed.read_text().split() if listed.exists() else []

    def is_changed(self, excluded: Path | None) -> bool:
        """Return whether modules, or files that git tracks, differ from the commit outside of `excluded`."""
        paths = [".", f":(exclude){excluded.relative_to(self.top)}"] if excluded is not None else ["."]
        failure = f"git cannot tell the state of {self.top}"
        tracked = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=none", "--", *paths)
        others = ("ls-files", "--others", "--exclude-standard", "--", "*.py", *_COPIES)
        return any(git(self.top, *arguments, failure=failure) for arguments in (tracked, others))

    def files(self) -> list[Path]:
        failure = f"git cannot list the files of {self.top}"
        sources = (
            ["--cached", "--recurse-submodules"],
            ["--others", "--exclude-standard", "--", ".", *_COPIES],
        )
        listed = [git(self.top, "ls-files", "-z", *options, failure=failure) for options in sources]
        return [self.top / name for name in "\0".join(listed).split("\0") if name]

    def extract(self, commit: str, folder: Path) -> None:
        """Write the tree of `commit` into `folder`, which exists, with the submodules that are checked out.

        Left out are what .gitattributes marks export-ignore, and links that lead out of the tree; files of
        git-lfs stay pointers.
        """
        _extract(self.top, commit, folder, failure=f"git cannot read the commit {commit}")


def _extract(top: Path, commit: str, folder: Path, *, failure: str) -> None:
    with tempfile.TemporaryFile(dir=folder.parent) as packed:
        git(top, "archive", "--format=tar", commit, failure=failure, output=packed)
        packed.seek(0)
        with tarfile.open(fileobj=packed) as archive:
            if hasattr(tarfile, "data_filter"):
                archive.extractall(folder, filter=_inside)  # noqa: S202 - the filter is the data filter
            else:  # before Python 3.11.4
                archive.extractall(folder, members=filter(_is_inside, archive))  # noqa: S202 - likewise
    for line in git(top, "ls-tree", "-r", "-z", commit, failure=failure).split("\0"):
        entry, _, path = line.partition("\t")
        if entry.startswith("160000 ") and (top / path / ".git").exists():
            own = entry.rpartition(" ")[2]
            missing = (
                f"the commit {own[:12]} of the submodule {path} is not here: fetch it (git -C {path} fetch)"
            )
            _extract(top / path, own, folder / path, failure=missing)


def git_environment() -> dict[str, str]:
    """Return this process's environment without what git tells its hooks."""
    return {name: value for name, value in os.environ.items() if name not in _HOOK_VARIABLES}


def git(folder: Path, *arguments: str, failure: str, output: IO[bytes] | None = None) -> str:
    """Return what git prints, or write it to `output`. `failure` is what to say if git fails."""
    try:
        answer = subprocess.run(  # noqa: S603 - no shell, and no argument that begins with a dash is a user's
            ["git", "-C", str(folder), *arguments],  # noqa: S607 - the git that the user has
            env={**git_environment(), "GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if output is None else output,
            stderr=subprocess.PIPE,
            check=True,
        )
    except FileNotFoundError as error:
        raise RevisionError("git is not installed, so no revision can be compared with") from error
    except subprocess.CalledProcessError as error:
        printed = os.fsdecode(error.stderr).strip().partition("\n")[0]
        raise RevisionError(f"{failure}: {printed}" if printed else failure) from error
    return "" if output is not None else os.fsdecode(answer.stdout).removesuffix("\n")


def _inside(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    try:
        return tarfile.data_filter(member, folder)
    except tarfile.FilterError:
        return None


def _is_inside(member: tarfile.TarInfo) -> bool:
    """Say whether a member of an archive, and its link's target, lie inside the folder it is written to."""
    paths = [member.name]
    if member.issym() or member.islnk():
        paths.append(posixpath.join(posixpath.dirname(member.name), member.linkname))
    return not any(path.startswith(("/", "../")) for path in map(posixpath.normpath, paths))
