"""A kernel for tests of the tuner and the comparison: torch on the CPU, as fast as its configuration says."""

import os
from dataclasses import dataclass

from pytest_cutile import Case, KernelSpec, Work
from pytest_cutile.words.timing import Device, Timer, TooLong, Uncapturable


@dataclass(frozen=True, kw_only=True)
class ToyConfig:
    """How fast, and what goes wrong."""

    us: float = 100.0
    fault: str = ""


CONFIGS = {
    # Not measured: slow.
    "sm_80": ToyConfig(us=300.0),
    # Guessed.
    "sm_90": ToyConfig(us=120.0),
}

LAST = {"us": 0.0, "captured": True}
"""What the fake timer reads after a launch."""


LONGEST_US = 5000.0


def choose_config(arch, *, itemsize):
    del itemsize
    return CONFIGS[arch]


def double(x, *, config=None):
    config = config or choose_config("sm_90", itemsize=x.element_size())
    if config.fault == "raises":
        raise RuntimeError("does not compile\nwith a second line")
    if config.fault == "dies":
        os._exit(3)
    LAST["us"] = config.us
    return x * (3 if config.fault == "wrong" else 2.001 if config.fault == "imprecise" else 2)


def reference(x):
    return 2 * x


def inputs(make_tensor, *, n):
    return {"x": make_tensor((n,), "float16")}


def work(*, n):
    return Work(flops=1e6 * n, bytes=4.0 * n, dtype="float16")


SPEC = KernelSpec(
    name="toy",
    launch=double,
    reference=reference,
    inputs=inputs,
    work=work,
    cases=[Case(name="fp16-64", params={"n": 64})],
)


class FakeTimer(Timer):
    """Launches once, and believes what the launch says of its time."""

    device = Device(arch="sm_90", name="NVIDIA H200", torch_device="cpu")

    def time_block(self, launches):
        return [[self._time(launch, noise) for noise in (0.99, 1.0, 1.01)] for launch in launches]

    def _time(self, launch, noise):
        LAST["captured"] = True
        launch()
        if not LAST["captured"]:
            raise Uncapturable("the launch cannot be captured into a CUDA graph")
        if LAST["us"] > LONGEST_US:
            raise TooLong("too long for a burst")
        return LAST["us"] * noise

    def environment(self):
        return {"driver": "1.2"}


class FakeStreamTimer(FakeTimer):
    """Captures nothing; every launch takes 10 us more than in a graph."""

    def __init__(self, timer):
        del timer

    def _time(self, launch, noise):
        launch()
        return (LAST["us"] + 10) * noise


make_timer = FakeTimer
make_stream_timer = FakeStreamTimer
