"""What launchers that tune choose on the GPU that is there: their searches run, and are remembered."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pytest_cutile.tile.compiler.trace.launches import Launch
from pytest_cutile.tile.compiler.trace.patching import Replacements
from pytest_cutile.tile.compiler.trace.timed_loops import TimedLoops
from pytest_cutile.tile.compiler.trace.tuning import Search, Tuning, result_of, texts_of


@contextmanager
def observed(arch: str, choice: str = "") -> Iterator[Tuning]:
    """Remember the searches of launchers that run on a GPU of `arch`.

    A search that has `choice` ends with that configuration instead of the fastest.
    """
    tuning = Tuning(choice=choice)
    if "cuda.tile" not in sys.modules:  # nothing can be launched
        yield tuning
        return
    import torch
    from cuda import tile
    from cuda.tile import tune

    launches: list[Launch] = []
    tuning.loops = TimedLoops(launches, tuning, arch)
    replaced = [
        (tile, "launch", _remembering(tile.launch, launches)),
        (tune, "exhaustive_search", _watched(tune.exhaustive_search, tuning)),
        (torch.cuda, "Event", _watched_event(torch.cuda.Event, tuning.loops)),
    ]
    # What a launcher has cached, such as its choice, is what it would use without this.
    with Replacements(replaced, keeps_caches=True):
        yield tuning


def said(tuning: Tuning) -> str:
    """Return in words what was chosen by timing; "" where nothing was searched."""
    return "; ".join(f"{replace(search, timed=True)}" for search in tuning.found())


def watch_first_call(
    function: Callable[..., object], arch: str, on_choice: Callable[[str], None]
) -> Callable[..., object]:
    """Return a launcher whose first call tells `on_choice` what it has chosen."""
    was_called = False

    def call(*args: Any, **kwargs: Any) -> object:
        nonlocal was_called
        if was_called:
            return function(*args, **kwargs)
        was_called = True
        with observed(arch) as tuning:
            result = function(*args, **kwargs)
        on_choice(said(tuning))
        return result

    return call


def _remembering(launch: Callable[..., Any], launches: list[Launch]) -> Callable[..., Any]:
    def remember(stream: Any, grid: Any, kernel: Any, args: Any, /, **options: Any) -> Any:
        result = launch(stream, grid, kernel, args, **options)
        constants = tuple(None if hasattr(value, "shape") else value for value in args)  # keeps no memory
        launches.append(Launch(kernel=kernel, grid=tuple(grid), args=constants))
        return result

    return remember


def _watched(search: Callable[..., Any], tuning: Tuning) -> Callable[..., Any]:
    def watched(search_space: Any, *args: Any, **kwargs: Any) -> Any:
        space = [*search_space] if hasattr(search_space, "__len__") else []
        texts = texts_of(space)
        if tuning.choice and tuning.choice in texts:
            tuning.searches.append(Search(configurations=tuple(texts), chosen=tuning.choice))
            return result_of(space[texts.index(tuning.choice)])
        result = search(search_space, *args, **kwargs)
        names = {id(configuration): text for configuration, text in zip(space, texts, strict=True)}
        chosen = names.get(id(result.best.config), texts_of([result.best.config])[0])
        failed = [names[id(failure[0])] for failure in result.failures if id(failure[0]) in names]
        tuning.searches.append(
            Search(configurations=tuple(texts), chosen=chosen, timed=True, failed=tuple(failed))
        )
        return result

    return watched


def _watched_event(event: type, loops: TimedLoops) -> type:
    """Return a class of events that tell `loops` which launches they time."""

    def record(self: Any, *args: Any, **kwargs: Any) -> None:
        self.place = loops.now
        event.record(self, *args, **kwargs)  # type: ignore[attr-defined]

    def elapsed_time(self: Any, end: Any) -> float:
        milliseconds: float = event.elapsed_time(self, end)  # type: ignore[attr-defined]
        return 0.0 if loops.is_chosen(self.place, getattr(end, "place", 0)) else milliseconds

    return type(event.__name__, (event,), {"place": 0, "record": record, "elapsed_time": elapsed_time})
