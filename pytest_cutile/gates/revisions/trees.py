"""A cache of extracted commits: a tree is as it was extracted or absent, and the latest few are kept."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pytest_cutile.gates.revisions.git import Repository, RevisionError
from pytest_cutile.words.locking import lock_descriptor
from pytest_cutile.words.temporary import temporary_folder

_TREES_KEPT = 4
_DIGESTS = ".pytest-cutile-digests"
"""File in the root of a tree: the digests of the tree's files as they were extracted, by path."""


@contextlib.contextmanager
def extracted_tree(repository: Repository, commit: str, cache_dir: Path | None) -> Iterator[Path]:
    """Yield a folder with the tree of `commit`, which stays in `cache_dir` if there is one.

    Several processes may share the cache: a tree is not removed while one uses it. A tree that was edited,
    as by a search and replace over the whole project, is restored.
    """
    with contextlib.ExitStack() as resources:
        try:
            if cache_dir is None:
                folder = Path(resources.enter_context(temporary_folder()))
            else:
                folder = cache_dir / "revisions"
                folder.mkdir(parents=True, exist_ok=True)
            tree = folder.resolve() / commit
            while not (_hold(tree, resources) and _is_as_extracted(tree)):
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


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _is_as_extracted(tree: Path) -> bool:
    """Say whether the extracted files are unchanged. Added files, such as bytecode, do not count."""
    try:
        digests = json.loads((tree / _DIGESTS).read_bytes())
        return all(_digest(tree / name) == digest for name, digest in digests.items())
    except (OSError, ValueError):
        return False


def _extract(repository: Repository, commit: str, tree: Path) -> None:
    with contextlib.ExitStack() as resources:
        temporary = Path(tempfile.mkdtemp(prefix=".extracting-", dir=tree.parent))
        resources.callback(shutil.rmtree, temporary, ignore_errors=True)
        _hold(temporary, resources)
        repository.extract(commit, temporary)
        files = [
            file for file in temporary.rglob("*") if file.is_file() and file.parent.name != "__pycache__"
        ]
        digests = {str(file.relative_to(temporary)): _digest(file) for file in files}
        (temporary / _DIGESTS).write_text(json.dumps(digests), encoding="utf-8")
        try:
            temporary.rename(tree)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            # The tree was edited, or another process was faster. Others may import from it, so files are
            # replaced one at a time. Bytecode may be of edited files.
            for folder, _, _ in os.walk(tree):
                if Path(folder).name == "__pycache__":
                    shutil.rmtree(folder, ignore_errors=True)
            for name in (*digests, _DIGESTS):
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                (temporary / name).replace(tree / name)


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
