"""The other half of a duet: the kernels of another revision, to be called beside the working tree's."""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_cutile.core.spec import KernelSpec
from pytest_cutile.gates.revision import Revision


class BaseFailed(RuntimeError):  # noqa: N818 - reads as what happened
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
        """Return a launcher of the revision so that what it imports while it runs is the revision's, too.

        To swap the modules takes 40 ms: a launcher that imported nothing when it was called first is called
        without from then on.
        """
        imports_nothing = False

        def call(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            nonlocal imports_nothing
            try:
                if imports_nothing:
                    return launcher(*args, **kwargs)
                with self._revision.active(), _imports_seen() as imports:
                    result = launcher(*args, **kwargs)
                imports_nothing = not any(map(self._revision.owns, imports))
            except Exception as error:
                raise BaseFailed(
                    f"the launcher as of {self._revision} raised {type(error).__name__}: {error}"
                ) from error
            return result

        return call


@contextmanager
def _imports_seen() -> Iterator[list[str]]:
    """Collect the names that are imported meanwhile; a relative import counts by its package."""
    seen: list[str] = []
    statement, function = builtins.__import__, importlib.import_module

    def watched(name: str, globals: Any = None, *rest: Any, **options: Any) -> Any:  # noqa: A002
        seen.append(name)
        seen.append((globals or {}).get("__package__") or name)
        return statement(name, globals, *rest, **options)

    def watched_function(name: str, package: str | None = None) -> Any:
        seen.append(package or name)
        return function(name, package)

    builtins.__import__, importlib.import_module = watched, watched_function
    try:
        yield seen
    finally:
        builtins.__import__, importlib.import_module = statement, function
