"""A cache of extracted commits: a tree is complete or absent, and the latest few are kept."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pytest_cutile.locking import lock_descriptor
from pytest_cutile.revisions.git import Repository, RevisionError
from pytest_cutile.temporary import temporary_folder

_TREES_KEPT = 4


@contextlib.contextmanager
def extracted_tree(repository: Repository, commit: str, cache_dir: Path | None) -> Iterator[Path]:
    """Yield a folder with the tree of `commit`, which stays in `cache_dir` if there is one.

    Several processes may share the cache: a tree is not removed while one uses it.
    """
    with contextlib.ExitStack() as resources:
        try:
            if cache_dir is None:
                folder = Path(resources.enter_context(temporary_folder()))
            else:
                folder = cache_dir / "revisions"
                folder.mkdir(parents=True, exist_ok=True)
            tree = folder.resolve() / commit
            while not _hold(tree, resources):
                _extract(repository, commit, tree)
            os.utime(tree)
        except OSError as error:
            raise RevisionError(f"the tree of {commit} cannot be written: {error}") from error
        _remove_old(folder)
        yield tree


def _hold(tree: Path, resources: contextlib.ExitStack) -> bool:
    """Lock `tree` against removal until the process ends; return whether it exists."""
    try:
        descriptor = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return False
    resources.callback(os.close, descriptor)
    with contextlib.suppress(OSError):  # file systems without locks
        lock_descriptor(descriptor, shared=True)
    try:
        return os.path.samestat(tree.stat(), os.fstat(descriptor))
    except FileNotFoundError:  # removed before it was locked
        return False


def _extract(repository: Repository, commit: str, tree: Path) -> None:
    with contextlib.ExitStack() as resources:
        temporary = Path(tempfile.mkdtemp(prefix=".extracting-", dir=tree.parent))
        resources.callback(shutil.rmtree, temporary, ignore_errors=True)
        _hold(temporary, resources)
        repository.extract(commit, temporary)
        try:
            temporary.rename(tree)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            # Another process was faster: its tree is the same.


def _remove_old(folder: Path) -> None:
    with contextlib.suppress(OSError):
        trees = sorted(folder.iterdir(), key=lambda tree: tree.stat().st_mtime, reverse=True)
        for tree in trees[_TREES_KEPT:]:
            _remove(tree)


def _remove(tree: Path) -> None:
    descriptor = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not lock_descriptor(descriptor, wait=False):
            return
        doomed = Path(tempfile.mkdtemp(prefix=".removing-", dir=tree.parent))
        tree.rename(doomed)
    finally:
        os.close(descriptor)
    shutil.rmtree(doomed, ignore_errors=True)
