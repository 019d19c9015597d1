"""Outputs of timed launches: those of a first launch on the same inputs, or what was timed is other work."""

import itertools
import weakref
from typing import Any

import pytest
import torch

from pytest_cutile import Block, Device, Sustained, Timer, TooLong, Work
from pytest_cutile.timing.measure import timed_outputs
from pytest_cutile.timing.measure.blocks import measure
from pytest_cutile.timing.measure.call import Call, MeasurementFailed
from pytest_cutile.timing.measure.timed_outputs import TimedLaunch
from pytest_cutile.words.verdicts import Reason

LATE = 3
"""Launches after which a launcher computes no more: those before the timing, and one."""


class Direct(Timer):
    """Calls each launch a few times, as a simple timer does."""

    device = Device(arch="sm_90", name="NVIDIA H200", torch_device="cpu")

    def time_block(self, launches):
        for launch in [*launches, *launches, launches[0]]:
            launch()
        return [[40.0] * 3 for _ in launches]


class Replaying(Direct):
    """Records what launches write, and plays that again, as a CUDA graph does."""

    def __init__(self, replayed):
        self.replayed = replayed
        self.replays = 0

    def time_block(self, launches):
        [launch] = launches
        output = launch()

        def replay():
            self.replays += 1
            self.replayed(output, launch.arguments)

        launch.repeat = replay
        for _ in range(3):
            replay()
        return [[40.0] * 3]


class Long(Direct):
    """Has launches that are too long for a burst."""

    def time_block(self, launches):
        raise TooLong(f"{len(launches)} are too long")

    def time_sustained(self, launches, *, always=False):
        assert always
        for lane in launches:
            for launch in lane:
                launch()
        return Sustained(blocks=(Block(current_us=(9000.0,) * 3),))


def inputs():
    torch.manual_seed(0)
    return (torch.randn(64, 8),)


def timed(launcher, *, timer=None, deterministic=True, args=None, **options):
    call = Call(launcher, inputs() if args is None else args, **options)
    return measure(timer or Direct(), "k[c]", Work(bytes=1e6), call, deterministic=deterministic)


def refused(launcher, **options):
    with pytest.raises(MeasurementFailed) as caught:
        timed(launcher, **options)
    assert caught.value.reason is Reason.OTHER_RESULT
    return str(caught.value)


def double(x):
    return x * 2


def keeping():
    """Return a launcher that returns the same tensor for ever."""
    kept: list[torch.Tensor] = []

    def launch(x):
        kept.append(x * 2)
        return kept[0]

    return launch


def test_outputs_of_a_right_launcher_are_compared():
    assert timed(double).outputs_uncompared == ""


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_output_that_is_kept_is_found_before_timing(deterministic):
    assert refused(keeping(), deterministic=deterministic).startswith(
        "k[c]: a later launch wrote none of 512 elements of output, which the first launch has written.\n"
    )


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_launcher_that_stops_computing_is_found_after_timing(deterministic):
    calls, kept = itertools.count(), {}

    def launch(x):
        if next(calls) < LATE:
            kept["y"] = x * 2
        return kept["y"]

    said = refused(launch, deterministic=deterministic)
    assert "the timed launches wrote none of 512 elements of output" in said


def test_an_argument_that_is_only_written_once_is_found():
    calls = itertools.count()

    def launch(x, out):
        if next(calls) < LATE:
            torch.mul(x, 2, out=out)

    args = (*inputs(), torch.empty(64, 8))
    for writes in ((1,), ("out",)):
        calls = itertools.count()
        assert "wrote none of 512 elements of" in refused(launch, args=args, writes=writes)


def test_a_replay_that_does_nothing_is_found():
    timer = Replaying(lambda *_: None)
    assert "the timed launches wrote none of 512" in refused(double, timer=timer)


def test_a_replay_that_computes_something_else_is_found():
    def replayed(output, arguments):
        torch.mul(arguments[0][0], 2, out=output)
        output[5, 3] += 1

    said = refused(double, timer=Replaying(replayed))
    assert "left other values in 1 of 512 elements of output than the first launch on the same inputs" in said
    # of a kernel that may not be deterministic, one number says nothing
    assert timed(double, timer=Replaying(replayed), deterministic=False).outputs_uncompared == ""


def test_much_that_is_far_off_is_found_whatever_the_kernel_is():
    def replayed(output, arguments):
        torch.mul(arguments[0][0], 3, out=output)

    assert "left other values in 512 of 512" in refused(
        double, timer=Replaying(replayed), deterministic=False
    )


def test_a_right_replay_passes_and_is_run_once_more():
    timer = Replaying(lambda output, arguments: torch.mul(arguments[0][0], 2, out=output))
    timed(double, timer=timer)
    blocks = timer.replays // 3
    assert timer.replays == 3 * blocks + 1


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_honest_launcher_that_varies_is_not_accused(deterministic):
    def rounding(x):
        return x * 2 + 1e-6 * torch.randn(())

    assert timed(rounding, deterministic=deterministic).outputs_uncompared == ""
    skipped = timed(torch.randn_like, deterministic=deterministic).outputs_uncompared
    assert skipped == timed_outputs.VARIES


def test_inputs_that_change_are_not_compared():
    def in_place(x):
        x += 1
        return x * 2

    assert timed(in_place).outputs_uncompared == timed_outputs.CHANGES_INPUTS
    assert timed(double, is_stateful=True).outputs_uncompared == timed_outputs.CHANGES_INPUTS

    calls = itertools.count()

    def later(x):
        x += next(calls) > 0
        return x.double()

    assert timed(later).outputs_uncompared == timed_outputs.CHANGES_INPUTS


@pytest.mark.parametrize("launcher", [lambda _: None, lambda _: 3.0, lambda x: x, lambda x: x[:0] * 2])
def test_without_an_output_nothing_is_compared(launcher):
    assert timed(launcher).outputs_uncompared == timed_outputs.NO_OUTPUTS


def test_a_workspace_that_is_rewritten_is_compared():
    out = torch.empty(64, 8)

    def launch(x):
        return torch.mul(x, 2, out=out)

    assert timed(launch).outputs_uncompared == ""
    assert torch.equal(out, inputs()[0] * 2)


def test_what_a_closure_changes_is_left_alone():
    """As in `perf(lambda: scale_(x))`: nobody knows whether the launch reads what it returns."""
    x = torch.rand(64, 8)
    before = x.clone()
    assert timed(x.relu_, args=()).outputs_uncompared == timed_outputs.KEEPS_STATE
    assert torch.equal(x, before)
    state = torch.zeros(64, 8)
    assert timed(state.add_).outputs_uncompared == timed_outputs.KEEPS_STATE
    assert not state.isnan().any()
    assert timed(lambda: x * 2, args=()).outputs_uncompared == ""


def test_a_table_that_a_launcher_keeps_is_left_as_it_is():
    table = torch.arange(8.0)
    assert timed(lambda x: (x * 2, table)).outputs_uncompared == ""
    assert torch.equal(table, torch.arange(8.0))


def test_inputs_are_what_they_were():
    args = (*inputs(), torch.full((64, 8), 7.0))
    before = args[0].clone()
    timed(lambda x, out: torch.mul(x, 2, out=out), args=args, writes=("out",))
    assert torch.equal(args[0], before)


def test_outputs_of_inference_mode_are_compared():
    table = torch.ones(8)
    launch = torch.inference_mode()(lambda x: (x * 2, table))
    assert timed(launch).outputs_uncompared == ""
    assert "wrote none" in refused(torch.inference_mode()(keeping()))


def test_another_shape_is_found():
    sizes = itertools.chain([64, 64], itertools.repeat(32))
    assert "a later launch returns {'output': float32 [32, 8]}" in refused(lambda x: x[: next(sizes)] * 2)


def test_short_memory_skips_the_comparison(monkeypatch):
    monkeypatch.setattr(timed_outputs, "room_bytes", lambda _: 100)
    assert timed(double).outputs_uncompared == timed_outputs.NO_MEMORY


def test_launches_too_long_for_bursts_are_compared_sustained():
    assert timed(double, timer=Long()).outputs_uncompared == ""
    calls, kept = itertools.count(), {}

    def launch(x):
        if next(calls) < LATE:
            kept["y"] = x * 2
        return kept["y"]

    assert "the timed launches wrote none" in refused(launch, timer=Long())


def test_one_output_at_a_time_is_alive_while_launches_are_timed():
    """So the next launch gets the memory of the one before, as where nobody looks at outputs."""
    alive: list[Any] = []

    class Output(torch.Tensor):
        pass

    def count(launch):
        output = launch()
        before = [one() is not None for one in alive]
        alive.append(weakref.ref(output))
        return before

    def make():
        return torch.zeros(4).as_subclass(Output)

    last = timed_outputs.LastOutputs()
    current = TimedLaunch(make, ((), {}), last, is_current=True)
    baseline = TimedLaunch(make, ((), {}), last, is_current=False)
    for launch in (current, current, baseline, baseline, current):
        assert not any(count(launch))
    assert last.outputs is not None
    baseline()
    assert last.outputs is None
    assert last.launch is None
