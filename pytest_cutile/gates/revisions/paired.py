"""Launchers of a baseline revision, to be interleaved with those of the working tree."""

from __future__ import annotations

import builtins
import importlib
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cutile.tile.compiler.cutile import kernel_function
from pytest_cutile.tile.compiler.trace.patching import Replacements
from pytest_cutile.tile.compiler.traced import KernelFunction
from pytest_cutile.words.errors import ShownWithoutTraceback

if TYPE_CHECKING:
    from pytest_cutile.gates.revisions.modules import Revision


class BaselineLaunchFailed(ShownWithoutTraceback, RuntimeError):  # noqa: N818 - reads as what happened
    """A baseline launcher raised: it does not know the case. Or it computes something else."""


def with_own_imports(revision: Revision, launcher: Callable[..., Any]) -> Callable[..., Any]:
    """Return a launcher of the revision whose imports, while it runs, find the revision's modules.

    Swapping modules takes milliseconds, so a launcher whose first call imported nothing is called without.
    """
    imports_nothing = False

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal imports_nothing
        try:
            if imports_nothing:
                return launcher(*args, **kwargs)
            with revision.active(), _imports_seen() as imports:
                result = launcher(*args, **kwargs)
            imports_nothing = not any(map(revision.owns, imports))
        except pytest.exit.Exception:
            raise
        except Exception as error:
            raise BaselineLaunchFailed(
                f"the launcher of {revision} raised {type(error).__name__}: {error}"
            ) from error
        return result

    return call


class LaunchedKernels:
    """The kernels that each of several launchers launches, seen at its first call."""

    def __init__(self) -> None:
        self._seen: list[set[KernelFunction]] = []

    def watch(self, launcher: Callable[..., object]) -> Callable[..., object]:
        """Return `launcher` with its first call watched."""
        seen: set[KernelFunction] = set()
        self._seen.append(seen)
        was_called = False

        def call(*args: Any, **kwargs: Any) -> object:
            nonlocal was_called
            cutile = sys.modules.get("cuda.tile")
            if was_called or cutile is None:
                return launcher(*args, **kwargs)
            was_called, launch = True, cutile.launch

            def watched(stream: Any, grid: Any, kernel: Any, *more: Any, **options: Any) -> Any:
                seen.add(KernelFunction.of(kernel_function(kernel)))
                return launch(stream, grid, kernel, *more, **options)

            with Replacements([(cutile, "launch", watched)]):
                return launcher(*args, **kwargs)

        return call

    @property
    def shared(self) -> str:
        """The names of the project's kernels that all launchers share; "" if they launch others, too."""
        return shared_kernels(*self._seen)


def shared_kernels(first: set[KernelFunction], *others: set[KernelFunction]) -> str:
    """Return the names of the project's kernels in `first` if all sides launch just these; else "".

    Modules of two revisions define two functions. A kernel that is registered once in a process
    (`torch.library`) is one function for both. So is an installed one, but then it is no other one.
    """
    own = sorted(function.name for function in first if not _is_installed(function))
    return ", ".join(own) if all(other == first for other in others) else ""


def _is_installed(function: KernelFunction) -> bool:
    paths = sysconfig.get_paths()
    file = Path(function.file)
    return any(file.is_relative_to(paths[name]) for name in ("purelib", "platlib"))


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
