"""The commit that a run tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from pytest_cutile.gates.revisions.git import Repository, RevisionError


class Checkout:
    """The checkout under test. Outside of git no commit is known, and nothing raises."""

    def __init__(self, folder: Path, *, baselines: Path | None) -> None:
        self._folder = folder
        self._baselines_folder = baselines
        self._known_commits: dict[str, str] = {}
        self._adding_commits: dict[str, str] = {}

    @cached_property
    def _repository(self) -> Repository | None:
        try:
            return Repository(self._folder)
        except RevisionError:
            return None

    @cached_property
    def _baselines(self) -> Path | None:
        """The baselines, if they are in the checkout."""
        path, repository = self._baselines_folder, self._repository
        is_inside = path is not None and repository is not None and path.is_relative_to(repository.top)
        return path if is_inside else None

    def _ask(self, question: Callable[[Repository], str]) -> str:
        """Return what git answers; "" outside of git, or where it does not know."""
        if self._repository is None:
            return ""
        try:
            return question(self._repository)
        except RevisionError:
            return ""

    def has_commit(self, name: str) -> bool:
        """Return whether git has this commit here, so that its kernels can be measured."""
        return bool(self._commit_of(name))

    def is_at(self, name: str) -> bool:
        """Return whether the checkout under test is this commit, without changes."""
        return self.has_commit(name) and self._commit_of(name) == self.commit

    def _commit_of(self, name: str) -> str:
        """Return the full id of what git calls `name`; "" if git has no such commit."""
        if name not in self._known_commits:
            self._known_commits[name] = self._ask(lambda repository: repository.commit(name))
        return self._known_commits[name]

    def commit_that_added(self, text: str) -> str:
        """Return the commit that added `text` to the baselines; "" where git knows none.

        After a squash merge, the commit that a session was recorded at is gone; this one has the same
        kernels.
        """
        folder = self._baselines
        if folder is None:
            return ""
        if text not in self._adding_commits:  # the search reads the whole history of the baselines
            self._adding_commits[text] = self._ask(
                lambda repository: repository.commit_that_added(text, folder)
            )
        return self._adding_commits[text]

    @cached_property
    def commit(self) -> str:
        """The commit of the checkout under test, with "+" when it has changes; "" outside of git.

        Changed baselines are no change: to record several sessions from one commit is what they are for.
        """

        def commit_and_state(repository: Repository) -> str:
            return repository.commit("HEAD") + ("+" if repository.is_changed(self._baselines) else "")

        return self._ask(commit_and_state)
