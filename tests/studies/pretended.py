"""A GPU that is pretended: launches run on the CPU, and a timer knows how long each would have taken."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from pytest_cutile.words.timing import Block, Device, Skipped, Sustained, Timer, TooLong
from studies.running.study import Contender, Study


class PretendedTimer(Timer):
    """Runs each launch once, and returns the time that its name has in `times_us`."""

    device = Device(arch="sm_90", name="NVIDIA H200", torch_device="cpu")

    def __init__(self, times_us: Mapping[str, float], *, sustained: float = 1.25, longest_us: float = 5000.0):
        self._times_us = times_us
        self._sustained = sustained
        self._longest_us = longest_us
        self.state: list[str] = []
        """What `problems` returns."""
        self.timed: list[str] = []
        """Names of what was timed, in order."""

    def time_block(self, launches: Sequence[Any]) -> Sequence[Sequence[float]]:
        us = [self._time(launch) for launch in launches]
        if max(us) > self._longest_us:
            raise TooLong("too long for a burst")
        return [[each, each] for each in us]

    def _time(self, launch: Any) -> float:
        name = launch.launch.func.__name__
        self.timed.append(name)
        return self._times_us[name]

    def time_sustained(
        self, launches: Sequence[Sequence[Any]], *, always: bool = False
    ) -> Sustained | Skipped:
        del always
        times = [(self._time(copies[0]) * self._sustained,) for copies in launches]
        block = Block(current_us=times[0], baseline_us=times[1] if len(times) > 1 else ())
        return Sustained(blocks=(block,), current_clock_mhz=1500.0, current_watts=690.0)

    def environment(self) -> Mapping[str, str]:
        return {"driver": "1.2"}

    def problems(self) -> Sequence[str]:
        return tuple(self.state)


def on_the_cpu(study: Study) -> Study:
    """Return a study of attention whose contenders all compute by PyTorch, under their own names."""

    def pretend(contender: Contender) -> Contender:
        def launch(
            q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = True, **_: Any
        ) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        launch.__name__ = contender.name
        return replace(contender, launch=launch)

    def rows(quick: bool) -> Any:
        return [
            replace(row, contender=pretend(row.contender), beside=row.beside and pretend(row.beside))
            for row in study.rows(quick)
        ]

    return replace(study, rows=rows)
