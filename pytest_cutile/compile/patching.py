"""Replacing objects for a while, wherever loaded modules have taken them to."""

from __future__ import annotations

import functools
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# These hold neither launchers nor what launchers import by name; there are thousands of them.
_NOT_LAUNCH_CODE = frozenset(sys.stdlib_module_names) | {
    *("torch", "torchgen", "functorch", "triton", "numpy", "scipy", "sympy", "mpmath", "networkx", "jinja2"),
    *("cuda", "cutile_cache", "nvidia", "pynvml", "pytest", "_pytest", "pluggy", "pytest_cutile", "xdist"),
    *("hypothesis", "pygments", "rich", "setuptools", "pkg_resources", "pip", "matplotlib", "pandas"),
}


@contextmanager
def replaced(replacements: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Set each (owner, name) to its replacement, and undo it all at the end, whatever happens.

    Names that other modules took with `from ... import` are replaced too. A function there that caches its
    results (`functools.cache`) starts with an empty cache, and gets its own back: "how many
    multiprocessors?" has another answer while a GPU is pretended.
    """
    undo: list[tuple[Any, str, Any]] = []
    # Keyed by identity: replaced objects need not be hashable. The original is kept alive beside it.
    by_identity: dict[int, tuple[Any, Any]] = {}
    try:
        for owner, name, new in replacements:
            old = getattr(owner, name)
            by_identity[id(old)] = (old, new)
            undo.append((owner, name, old))
            setattr(owner, name, new)
        for module in _launch_modules():
            for name, value in list(vars(module).items()):
                if isinstance(value, functools._lru_cache_wrapper):  # noqa: SLF001
                    by_identity.setdefault(id(value), (value, _with_empty_cache(value)))
                found = by_identity.get(id(value))
                if found is not None:
                    undo.append((module, name, value))
                    setattr(module, name, found[1])
        yield
    finally:
        for owner, name, old in reversed(undo):
            setattr(owner, name, old)


def _launch_modules() -> list[Any]:
    return [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] not in _NOT_LAUNCH_CODE and type(module) is type(sys)
    ]


def _with_empty_cache(function: Any) -> Any:
    fresh = functools.lru_cache(**function.cache_parameters())(function.__wrapped__)
    return functools.update_wrapper(fresh, function.__wrapped__)
