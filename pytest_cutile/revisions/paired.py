"""Launchers of a baseline revision, to be interleaved with those of the working tree."""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_cutile.revisions.modules import Revision
from pytest_cutile.spec import KernelSpec


class BaselineLaunchFailed(RuntimeError):  # noqa: N818 - reads as what happened
    """A baseline launcher raised: it does not know the case."""


class RevisionKernels:
    """The kernels and launchers of a revision, by those of the working tree."""

    def __init__(self, revision: Revision) -> None:
        self._revision = revision
        self._specs: dict[tuple[str, str], KernelSpec | None] = {}

    def __str__(self) -> str:
        return str(self._revision)

    def spec(self, module: str, name: str) -> KernelSpec | None:
        if (module, name) not in self._specs:
            self._specs[module, name] = self._revision.spec(module, name)
        return self._specs[module, name]

    def counterpart(self, launcher: Callable[..., Any]) -> Callable[..., Any] | None:
        """Return the revision's launcher of the same name, to be called at any time; None if it has none."""
        counterpart = self._revision.counterpart(launcher)
        return None if counterpart is None else self.with_own_imports(counterpart)

    def with_own_imports(self, launcher: Callable[..., Any]) -> Callable[..., Any]:
        """Return a launcher of the revision whose imports, while it runs, find the revision's modules.

        Swapping modules takes 40 ms, so a launcher whose first call imported nothing is called without.
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
                raise BaselineLaunchFailed(
                    f"the launcher of {self._revision} raised {type(error).__name__}: {error}"
                ) from error
            return result

        return call


@contextmanager
def _imports_seen() -> Iterator[list[str]]:
    """Yield a list that collects imported names; a relative import counts by its package."""
    seen: list[str] = []
    statement, function = builtins.__import__, importlib.import_module

    def watched(
        name: str,
        globals: Any = None,  # noqa: A002
        locals: Any = None,  # noqa: A002
        fromlist: Any = (),
        level: int = 0,
    ) -> Any:
        seen.append((globals or {}).get("__package__") or name if level else name)
        return statement(name, globals, locals, fromlist, level)

    def watched_function(name: str, package: str | None = None) -> Any:
        seen.append(package or name)
        return function(name, package)

    builtins.__import__, importlib.import_module = watched, watched_function
    try:
        yield seen
    finally:
        builtins.__import__, importlib.import_module = statement, function
