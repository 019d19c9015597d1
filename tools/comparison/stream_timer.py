"""A timer for launches that cannot be captured into a CUDA graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from pytest_cutile.words.timing import Device, LaunchFunction, Timer

FLUSH_BYTES = 256 << 20
"""Several times any L2 cache."""
LEAD_CYCLES = 2_000_000
"""For about a millisecond the GPU does nothing, so that the host, which is slower, is ahead of it."""
WARM_UP_ROUNDS = 5
ROUNDS = 30


class StreamTimer(Timer):
    """Times launches on the current stream with events, interleaved, each with a cold L2.

    A graph does not wait for its host. Here the GPU waits first, until the host has enqueued the whole
    launch. Events beside a launch read some us more than in a graph: only ratios of such times count.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer

    @property
    def device(self) -> Device:
        """The GPU that is measured."""
        return self._timer.device

    def environment(self) -> Mapping[str, str]:
        """Return what the other timer does."""
        return self._timer.environment()

    def problems(self) -> Sequence[str]:
        """Return what the other timer does."""
        return self._timer.problems()

    @cached_property
    def _flush(self) -> Any:
        import torch

        return torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")

    def time_block(self, launches: Sequence[LaunchFunction]) -> Sequence[Sequence[float]]:
        """Return the times of each launch in microseconds."""
        import torch

        samples: list[list[float]] = [[] for _ in launches]
        for number in range(WARM_UP_ROUNDS + ROUNDS):
            for lane, launch in enumerate(launches):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda._sleep(LEAD_CYCLES)  # noqa: SLF001 - the only way to let the GPU wait
                self._flush.zero_()
                begin.record()
                launch()
                end.record()
                torch.cuda.synchronize()
                if number >= WARM_UP_ROUNDS:
                    samples[lane].append(begin.elapsed_time(end) * 1e3)
        return samples
