"""What a launcher that tunes chose on a GPU: its own search runs, and is remembered."""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace
from typing import Any

import cuda.tile as ct
import pytest
import torch
from cuda.tile import tune

from pytest_cutile.tile.compiler.trace import observing
from pytest_cutile.tile.compiler.trace.observing import observed, said, watch_first_call
from tests.tile.compiler import tuned_launchers
from tests.tile.compiler.tuned_launchers import add_timed, add_tuned


class Event:
    """An event of a GPU on which the second region is the fastest."""

    times = iter(())

    def __init__(self, **_: Any) -> None: ...

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Any) -> float:
        del end
        return next(Event.times)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU on which the last configuration that works is the fastest."""

    def search(search_space: Any, *_: Any, **__: Any) -> Any:
        best = SimpleNamespace(config=search_space[-1])
        return SimpleNamespace(best=best, failures=((search_space[1], ValueError, "48"),))

    def launch(_stream: Any, _grid: Any, _kernel: Any, args: Any) -> None:
        launched.append(args[3])

    launched: list[int] = []
    monkeypatch.setattr(tune, "exhaustive_search", search)
    monkeypatch.setattr(tuned_launchers, "exhaustive_search", search)
    monkeypatch.setattr(ct, "launch", launch)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(Event, "times", iter([3.0, 1.0, 2.0, 3.0, 1.0, 2.0]))
    monkeypatch.setattr(tuned_launchers, "launched", launched, raising=False)


def test_the_choice_of_a_search_is_remembered() -> None:
    with observed("sm_90") as tuning:
        add_tuned(torch.ones(100))
    [search] = tuning.found()
    assert (search.chosen, search.failed, search.timed) == ("tile=32", ("tile=48, occupancy=1",), True)
    assert search.others == ("tile=64, occupancy=1",)
    assert said(tuning) == "chose tile=32 of 3 configurations"
    assert vars(tuned_launchers)["exhaustive_search"] is tune.exhaustive_search


def test_a_search_ends_with_what_it_is_to_choose() -> None:
    with observed("sm_90", choice="tile=64, occupancy=1"):
        add_tuned(torch.ones(100))
    assert vars(tuned_launchers)["launched"] == [64]


def test_the_choice_of_a_loop_with_events_is_remembered() -> None:
    with observed("sm_90") as tuning:
        add_timed(torch.ones(1000))
    assert said(tuning) == "chose tuned_kernel(tile=128), grid 8 of 3 configurations"
    with observed("sm_90", choice="tuned_kernel(tile=32), grid 32"):
        add_timed(torch.ones(1000))
    assert vars(tuned_launchers)["launched"][-1] == 32


def test_what_a_launcher_has_cached_stays(monkeypatch) -> None:
    calls: list[None] = []

    @functools.cache
    def tile() -> int:
        calls.append(None)
        return 64

    monkeypatch.setattr(tuned_launchers, "tile", tile, raising=False)
    vars(tuned_launchers)["tile"]()
    with observed("sm_90"):
        vars(tuned_launchers)["tile"]()
    assert len(calls) == 1


def test_only_the_first_call_is_watched() -> None:
    told: list[str] = []
    launch = watch_first_call(add_tuned, "sm_90", told.append)
    for _ in range(2):
        launch(torch.ones(100))
    assert told == ["chose tile=32 of 3 configurations"]
    silent: list[str] = []
    watch_first_call(lambda: None, "sm_90", silent.append)()
    assert silent == [""]


def test_without_cutile_nothing_is_watched(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "cuda.tile")
    monkeypatch.setattr(observing, "Replacements", lambda *_, **__: pytest.fail("replaced"))
    with observed("sm_90") as tuning:
        pass
    assert tuning.found() == ()
