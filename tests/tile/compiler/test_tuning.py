"""What a launcher that tunes chooses from, where nothing can be timed."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_cutile.tile.compiler import export
from pytest_cutile.tile.compiler.trace.launches import Launch, Recorder, pretend_gpu, record
from pytest_cutile.tile.compiler.trace.tuning import Search, Tuning, texts_of
from tests.tile.compiler import tuned_launchers
from tests.tile.compiler.tuned_launchers import SPACE, add_and_time, add_timed, add_tuned

ARCH = "sm_90"


def traced(launcher: Any, *args: Any, choice: str = "", **options: Any) -> Recorder:
    def run() -> None:
        launcher(torch.ones(1000, device="cuda"), *args, **options)

    return record(run, ARCH, accepts=partial(export, arch=ARCH), choice=choice)


def tiles(launches: list[Launch]) -> list[tuple[str, int]]:
    return [(launch.candidate, launch.args[3]) for launch in launches]


def test_every_configuration_is_recorded_beside_the_launch() -> None:
    recorder = traced(add_tuned)
    first, second, third = "tile=64, occupancy=1", "tile=48, occupancy=1", "tile=32"
    assert tiles(recorder.launches) == [(first, 64), (second, 48), (third, 32), ("", 64)]
    [search] = recorder.tuning.found()
    assert search == Search(configurations=(first, second, third), chosen=first, failed=(second,))
    assert search.others == (third,)
    assert f"{search}" == "not tuned without a GPU: tile=64, occupancy=1, first of 3 configurations"
    candidate = recorder.launches[0]
    assert (candidate.grid, candidate.kernel._compiler_options.occupancy) == ((16,), 1)


def test_what_trying_computes_is_no_work_of_the_launcher() -> None:
    assert not any("clone" in text for text in traced(add_tuned).operations.texts)


def test_a_choice_is_followed_where_a_search_has_it() -> None:
    assert tiles(traced(add_tuned, choice="tile=32").launches)[-1] == ("", 32)
    assert tiles(traced(add_tuned, choice="of another search").launches)[-1] == ("", 64)


def test_a_search_ends_with_the_first_configuration_that_works() -> None:
    recorder = traced(add_tuned, SPACE[1:])
    assert tiles(recorder.launches)[-1] == ("", 32)
    assert f"{recorder.tuning.found()[0]}" == "not tuned without a GPU: tile=32, no. 2 of 2 configurations"


def test_a_search_without_any_that_works_raises_as_the_real_one() -> None:
    why = r"No valid config .*: 1 configuration\.\nConfig: tile=48, occupancy=1\nCompileError: .*48"
    with pytest.raises(ValueError, match=why):
        traced(add_tuned, SPACE[1:2])
    with pytest.raises(ValueError, match="Search space is empty"):
        traced(add_tuned, [])


def test_arguments_that_cannot_be_made_leave_a_configuration_out() -> None:
    def args(configuration: Any) -> Any:
        raise MemoryError("too much for " + configuration["tile"])

    with pytest.raises(ValueError, match="No valid config found"):
        traced(add_tuned, [{"tile": 64}], args=args)


def test_a_configuration_may_need_values() -> None:
    def args(configuration: Any) -> Any:
        there = torch.ones(64, device="cuda")
        return there, there, there, configuration["tile"] * int(there[0].item())

    assert tiles(traced(add_tuned, [{"tile": 64}], args=args).launches)[0] == ("tile=64", 64)


def test_a_kernel_may_depend_on_the_configuration() -> None:
    recorder = traced(add_tuned, [{"tile": 64}], kernel=lambda _: tuned_launchers.tuned_kernel)
    assert tiles(recorder.launches) == [("tile=64", 64), ("", 64)]


def test_nothing_is_tried_where_nobody_asks() -> None:
    with pretend_gpu(ARCH) as recorder:
        add_tuned(torch.ones(1000, device="cuda"), SPACE[1:], args=lambda _: pytest.fail("tried"))
    assert tiles(recorder.launches) == [("", 48)]


# -- loops with events --------------------------------------------------------------------------------


def test_a_loop_with_events_is_a_search() -> None:
    recorder = traced(add_timed)
    first, second, third = (f"tuned_kernel(tile={tile}), grid {1024 // tile}" for tile in (64, 128, 32))
    assert tiles(recorder.launches) == [(first, 64), (second, 128), (third, 32), ("", 64)]
    assert recorder.tuning.found() == (Search(configurations=(first, second, third), chosen=first),)


def test_a_loop_chooses_what_it_is_to_choose() -> None:
    recorder = traced(add_timed, choice="tuned_kernel(tile=32), grid 32")
    assert tiles(recorder.launches)[-1] == ("", 32)
    assert recorder.tuning.found()[0].chosen == "tuned_kernel(tile=32), grid 32"


def test_a_launcher_that_only_says_how_long_it_took_does_not_tune() -> None:
    recorder = traced(add_and_time)
    assert tiles(recorder.launches) == [("", 64)]
    assert recorder.tuning.found() == ()


def test_without_candidates_all_launches_of_a_loop_are_there() -> None:
    with pretend_gpu(ARCH, tuning=Tuning()) as recorder:
        add_timed(torch.ones(1000, device="cuda"), (64, 32))
    assert len(recorder.launches) == 9


# -- words --------------------------------------------------------------------------------------------


@dataclass
class Typed:
    tile: int


class Plain:
    def __init__(self) -> None:
        self.tile, self.num_ctas = 64, None


class Said:
    def __str__(self) -> str:
        return "Config(tile=64)"


Named = namedtuple("Named", "tile stages")  # noqa: PYI024  # projects have such


@pytest.mark.parametrize(
    ("configuration", "text"),
    [
        (64, "64"),
        ((64, 128), "(64, 128)"),
        ({"tile": 64, "occupancy": 2}, "tile=64, occupancy=2"),
        (SimpleNamespace(tile=64), "tile=64"),
        (Typed(64), "tile=64"),
        (Plain(), "tile=64"),
        (Said(), "Config(tile=64)"),
        (Named(64, 2), "tile=64, stages=2"),
    ],
)
def test_configurations_in_words(configuration, text) -> None:
    assert texts_of([configuration]) == [text]


def test_equal_words_are_numbered() -> None:
    assert texts_of([64, 32, 64]) == ["64", "32", "64 (2)"]


def test_a_timed_search_says_what_it_chose() -> None:
    search = Search(configurations=("64", "32"), chosen="32", timed=True)
    assert f"{search}" == "chose 32 of 2 configurations"
