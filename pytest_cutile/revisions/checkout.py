"""The commit that a run tests."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from pytest_cutile.revisions.git import Repository, RevisionError


class Checkout:
    """The checkout under test. Outside of git no commit is known, and nothing raises."""

    def __init__(self, folder: Path, *, baselines: Path | None) -> None:
        self._folder = folder
        self._baselines = baselines
        self._known_commits: dict[str, str] = {}
        self._adding_commits: dict[str, str] = {}

    @cached_property
    def _repository(self) -> Repository | None:
        try:
            return Repository(self._folder)
        except RevisionError:
            return None

    def has_commit(self, name: str) -> bool:
        """Return whether git has this commit here, so that its kernels can be measured."""
        return bool(self._commit_of(name))

    def is_at(self, name: str) -> bool:
        """Return whether the checkout under test is this commit, without changes."""
        return self.has_commit(name) and self._commit_of(name) == self.commit

    def _commit_of(self, name: str) -> str:
        """Return the full id of what git calls `name`; "" if git has no such commit."""
        if name not in self._known_commits:
            try:
                commit = self._repository.commit(name) if self._repository is not None else ""
            except RevisionError:
                commit = ""
            self._known_commits[name] = commit
        return self._known_commits[name]

    def commit_that_added(self, text: str) -> str:
        """Return the commit that added `text` to the baselines; "" where git knows none.

        After a squash merge, the commit that a session was recorded at is gone; this one has the same
        kernels.
        """
        if text not in self._adding_commits:  # the search reads the whole history of the baselines
            self._adding_commits[text] = self._find_commit_that_added(text)
        return self._adding_commits[text]

    def _find_commit_that_added(self, text: str) -> str:
        repository = self._repository
        folder = self._baselines_of(repository) if repository is not None else None
        if repository is None or folder is None:
            return ""
        try:
            return repository.commit_that_added(text, folder)
        except RevisionError:
            return ""

    @cached_property
    def commit(self) -> str:
        """The commit of the checkout under test, with "+" when it has changes; "" outside of git.

        Changed baselines are no change: to record several sessions from one commit is what they are for.
        """
        repository = self._repository
        if repository is None:
            return ""
        try:
            changed = repository.is_changed(self._baselines_of(repository))
            return repository.commit("HEAD") + ("+" if changed else "")
        except RevisionError:
            return ""

    def _baselines_of(self, repository: Repository) -> Path | None:
        path = self._baselines
        return path if path is not None and path.is_relative_to(repository.top) else None
