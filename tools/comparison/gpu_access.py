"""Share a GPU among processes that prepare cases: timing has exclusive access.

The other processes compile meanwhile, which takes most of a preparation; they launch only while none times.

Peers that tune themselves by timing get exclusive access, too: beside other work they would choose badly,
which would flatter us. They hold the GPU for the timing only: TileGym's candidates are all compiled before
its tuner begins, and torch.compile's between its timings.

No more processes than half the cores: TileGym gives the compiler 5 s for a candidate, and leaves out what
takes longer. The memory has to suffice for all of them: float64 references take several times the arguments.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any

from pytest_cutile.timing.gpu.lock import GpuLock

SHARED, EXCLUSIVE, RELEASED = "shared", "exclusive", ""


class GpuAccess:
    """This thread's access to a GPU. Contexts nest; nothing inside `exclusive` gives the GPU up."""

    def __init__(self, lock: GpuLock, synchronize: Callable[[], object]) -> None:
        """Hold nothing yet.

        Args:
            lock: of the GPU.
            synchronize: waits for all that was launched, before the GPU is left to others.
        """
        self._lock = lock
        self._synchronize = synchronize
        self._thread = threading.get_ident()
        self._held = RELEASED
        self._holding = ExitStack()

    def shared(self) -> AbstractContextManager[None]:
        """Launch inside, while no process times."""
        return self._as(SHARED)

    def exclusive(self) -> AbstractContextManager[None]:
        """Time inside, while no other process launches."""
        return self._as(EXCLUSIVE)

    def released(self) -> AbstractContextManager[None]:
        """Launch nothing inside: others may time."""
        return self._as(RELEASED)

    @contextmanager
    def _as(self, how: str) -> Iterator[None]:
        # A thread that a compiler started: whoever waits for it has said what it does.
        if self._held == EXCLUSIVE or threading.get_ident() != self._thread:
            yield
            return
        before = self._held
        try:
            self._take(how)
            yield
        finally:
            self._take(before)

    def _take(self, how: str) -> None:
        if how == self._held:
            return
        if self._held != RELEASED:
            # A GPU in an error raises at its next use, too; the lock has to go now.
            with suppress(Exception):
                self._synchronize()
        self._held = RELEASED
        self._holding.close()
        if how == RELEASED:
            return
        self._holding.enter_context(self._lock.alone() if how == EXCLUSIVE else self._lock.shared())
        self._held = how


# -- cuTile -----------------------------------------------------------------------------------------


class _Compiled(Exception):  # noqa: N818 - no error: it is raised in place of a launch
    """The kernel is compiled, and nothing more was wanted."""


class CutileAccess:
    """cuTile's compiler and its tuner, which TileGym uses, under `GpuAccess`."""

    def __init__(
        self, access: GpuAccess, compile_tile: Callable[..., Any], search: Callable[..., Any]
    ) -> None:
        """Wrap them.

        Args:
            access: of this process.
            compile_tile: `cuda.tile._compile.compile_tile`.
            search: `cuda.tile.tune.exhaustive_search`.
        """
        self._access = access
        self._compile_tile = compile_tile
        self._search = search
        self._ahead = False
        self._compiled: dict[Any, Any] | None = None

    def compile_tile(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Compile away from the GPU; in a search each kernel once, or fail again as it did."""
        key = (getattr(function, "pyfunc", function), repr(args[:3]))
        known = self._compiled
        if known is None or key not in known:
            try:
                with self._access.released():
                    result = self._compile_tile(function, *args, **kwargs)
            except Exception as error:
                if known is not None:
                    known[key] = error
                raise
            if known is None:
                return result
            known[key] = result
        if self._ahead:
            raise _Compiled
        if isinstance(known[key], Exception):
            raise known[key]
        return known[key]

    def search(
        self,
        space: Sequence[Any],
        stream: Any,
        grid_fn: Callable[[Any], Any],
        kernel: Any,
        args_fn: Callable[[Any], Any],
        hints_fn: Callable[[Any], dict[str, Any]] | None = None,
        **options: Any,
    ) -> Any:
        """Compile all candidates, then search as ever, alone: the compiler is not called again."""
        self._compiled = {}
        try:
            with self._access.shared():
                launches = [
                    (config, grid_fn(config), args_fn(config), hints_fn(config) if hints_fn else {})
                    for config in space
                ]
                with self._access.released():
                    self._compile(stream, kernel, launches)
                del launches
            with self._access.exclusive():
                return self._search(space, stream, grid_fn, kernel, args_fn, hints_fn, **options)
        finally:
            self._compiled = None

    def _compile(self, stream: Any, kernel: Any, launches: Sequence[tuple[Any, ...]]) -> None:
        import cuda.tile as ct

        self._ahead = True
        try:
            for config, grid, args, hints in launches:
                base = kernel if hasattr(kernel, "replace_hints") else kernel(config)
                with suppress(Exception):  # the search meets it again
                    ct.launch(stream, grid, base.replace_hints(**hints), args)
        finally:
            self._ahead = False


def guard_cutile(access: GpuAccess) -> None:
    """Guard cuTile's compiler and tuner; to be called before TileGym imports the tuner by name."""
    compiler: Any
    tuner: Any
    compiler, tuner = importlib.import_module("cuda.tile._compile"), importlib.import_module("cuda.tile.tune")
    wrapped = CutileAccess(access, compiler.compile_tile, tuner.exhaustive_search)
    compiler.compile_tile, tuner.exhaustive_search = wrapped.compile_tile, wrapped.search


# -- torch.compile ----------------------------------------------------------------------------------


def guard_inductor(access: GpuAccess) -> None:
    """Let torch.compile time alone, and compile away from the GPU.

    Without the first its choices would not be fair, so it has to be there. The others, of which versions of
    PyTorch may know nothing, save time: rounds of timing under one access, and what only compiles.
    """
    benchmarking = importlib.import_module("torch._inductor.runtime.benchmarking")
    _wrap(benchmarking.benchmarker, "benchmark_gpu", access.exclusive)
    heuristics = importlib.import_module("torch._inductor.runtime.triton_heuristics")
    _wrap(heuristics.CachingAutotuner, "benchmark_all_configs", access.exclusive, needed=False)
    for compiling in ("precompile", "_precompile_config"):
        _wrap(heuristics.CachingAutotuner, compiling, access.released, needed=False)
    algorithms = importlib.import_module("torch._inductor.select_algorithm").AlgorithmSelectorCache
    _wrap(algorithms, "autotune", access.exclusive, needed=False)
    _wrap_result(algorithms, "make_precompile_fn", access.released)
    _wrap(
        importlib.import_module("torch._inductor.async_compile").AsyncCompile,
        "wait",
        access.released,
        needed=False,
    )


def _wrap(
    owner: Any, name: str, hold: Callable[[], AbstractContextManager[None]], *, needed: bool = True
) -> None:
    """Let a function of `owner` run while `hold()` is entered."""
    if needed or hasattr(owner, name):
        setattr(owner, name, _inside(hold, getattr(owner, name)))


def _wrap_result(owner: Any, name: str, hold: Callable[[], AbstractContextManager[None]]) -> None:
    """Let the functions that one of `owner` returns run while `hold()` is entered."""
    made = getattr(owner, name, None)
    if made is None:
        return

    @functools.wraps(made)
    def make(*args: Any, **kwargs: Any) -> Any:
        return _inside(hold, made(*args, **kwargs))

    setattr(owner, name, make)


def _inside(
    hold: Callable[[], AbstractContextManager[None]], function: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with hold():
            return function(*args, **kwargs)

    return run
