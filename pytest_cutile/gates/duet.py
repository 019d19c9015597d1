"""The other half of a duet: the kernels of another revision, to be called beside the working tree's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_cutile.core.spec import KernelSpec
from pytest_cutile.gates.revision import Revision


class BaseFailed(RuntimeError):
    """The launcher of the other revision raised: it does not know such a case."""


class Duet:
    """What a revision has in place of the launchers of the working tree."""

    def __init__(self, revision: Revision) -> None:
        self._revision = revision
        self._specs: dict[tuple[str, str], KernelSpec | None] = {}

    def __str__(self) -> str:
        return str(self._revision)

    def spec(self, module: str, name: str) -> KernelSpec | None:
        """Return a declared kernel as of the revision; None if it was not there.

        Raises:
            RevisionError: its module cannot be imported.
        """
        if (module, name) not in self._specs:
            self._specs[module, name] = self._revision.spec(module, name)
        return self._specs[module, name]

    def function(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """Return a launcher as of the revision, ready to be called at any time; None if it was not there.

        Raises:
            RevisionError: its module cannot be imported.
        """
        found = self._revision.counterpart(function)
        return None if found is None else self.ready(found)

    def ready(self, launcher: Callable[..., Any]) -> Callable[..., Any]:
        """Return a launcher of the revision so that what it imports while it runs is the revision's, too."""

        def call(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            with self._revision.active():
                try:
                    return launcher(*args, **kwargs)
                except Exception as error:
                    raise BaseFailed(
                        f"the launcher as of {self._revision} raised {type(error).__name__}: {error}"
                    ) from error

        return call
