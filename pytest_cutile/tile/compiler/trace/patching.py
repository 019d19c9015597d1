"""Replaces objects for a while, in every loaded module that holds them."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

# These hold neither launchers nor what launchers import by name; there are thousands of them.
_NOT_LAUNCH_CODE = frozenset(sys.stdlib_module_names) | {
    *("torch", "torchgen", "functorch", "triton", "numpy", "scipy", "sympy", "mpmath", "networkx", "jinja2"),
    *("cuda", "cutile_cache", "nvidia", "pynvml", "pytest", "_pytest", "pluggy", "pytest_cutile", "xdist"),
    *("elftools", "yaml", "msgspec", "pytest_benchmark", "execnet", "platformdirs", "typing_extensions"),
    *("hypothesis", "pygments", "rich", "setuptools", "pkg_resources", "pip", "matplotlib", "pandas"),
    *("transformers", "huggingface_hub", "httpx", "httpcore", "anyio", "trio", "click", "filelock"),
}
_CachingFunction = functools._lru_cache_wrapper  # noqa: SLF001


class Replacements(contextlib.AbstractContextManager["Replacements"]):
    """While entered, each (owner, name) is its replacement; at the end all is as before, whatever happens.

    Names that launch code took with `from ... import` are replaced too. A function there that caches its
    results (`functools.cache`) starts with an empty cache, and gets its own back: "how many
    multiprocessors?" has another answer while a GPU is pretended.

    A module that is imported meanwhile runs without the replacements: it stays loaded, and must not keep
    one (torch imports a lot of itself when it is first needed). Python's own modules hold none: they are
    imported as they are, for other threads import them, too, while launch code runs in this one.
    """

    def __init__(
        self,
        replacements: Sequence[tuple[Any, str, Any]],
        *,
        while_paused: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
        keeps_caches: bool = False,
    ) -> None:
        """Take (owner, attribute, replacement), and a context to enter while a module is imported.

        With `keeps_caches`, functions that cache their results keep them.
        """
        self._emptied: tuple[type, ...] = () if keeps_caches else (_CachingFunction,)
        # All imports come by this function, those of loaded modules only by `importlib.import_module`.
        bootstrap: Any = importlib._bootstrap  # noqa: SLF001
        self._find_and_load = bootstrap._find_and_load  # noqa: SLF001
        self._replacements = [*replacements, (bootstrap, "_find_and_load", self._import)]
        self._while_paused = while_paused
        self._thread = threading.get_ident()
        self._applied: list[tuple[Any, str, Any]] = []  # with the original, in the order of replacing
        # Keyed by identity: what is replaced need not be hashable. The original is kept alive beside it.
        self._by_id: dict[int, tuple[Any, Any]] = {}

    def __enter__(self) -> Replacements:  # noqa: PYI034  # not to be subclassed
        try:
            self._apply()
        except BaseException:
            self._undo()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._undo()

    def _import(self, name: str, how: Any) -> Any:
        """Import a module that is not loaded yet as it is imported without replacements."""
        if name in sys.modules or name.partition(".")[0] in sys.stdlib_module_names:
            return self._find_and_load(name, how)
        if threading.get_ident() != self._thread:  # launch code goes on meanwhile
            return self._find_and_load(name, how)
        self._undo()
        try:
            with self._while_paused():
                return self._find_and_load(name, how)
        finally:
            self._apply()

    def _apply(self) -> None:
        for owner, name, new in self._replacements:
            self._by_id[id(getattr(owner, name))] = (getattr(owner, name), new)
            self._set(owner, name, new)
        by_id = self._by_id
        for module in _launch_modules():
            held = [
                (name, value)
                for name, value in vars(module).items()
                if id(value) in by_id or type(value) in self._emptied
            ]
            for name, value in held:
                if id(value) not in by_id:
                    by_id[id(value)] = (value, _with_empty_cache(value))
                self._set(module, name, by_id[id(value)][1])

    def _set(self, owner: Any, name: str, new: Any) -> None:
        self._applied.append((owner, name, getattr(owner, name)))
        setattr(owner, name, new)

    def _undo(self) -> None:
        while self._applied:
            setattr(*self._applied.pop())


def _launch_modules() -> list[ModuleType]:
    return [
        module
        for name, module in list(sys.modules.items())
        if may_be_launch_code(name) and type(module) is type(sys)
    ]


@functools.cache  # asked of thousands of names for each launcher that is traced
def may_be_launch_code(module: str) -> bool:
    """Say whether a module may hold launchers, or what launchers import by name; libraries hold neither."""
    return module.partition(".")[0] not in _NOT_LAUNCH_CODE


def _with_empty_cache(function: Any) -> Any:
    fresh = functools.lru_cache(**function.cache_parameters())(function.__wrapped__)
    return functools.update_wrapper(fresh, function.__wrapped__)
