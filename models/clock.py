"""Times and memory of what runs on a device: a protocol, so that a benchmark can be driven without a GPU."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Clock(Protocol):
    """Marks points of a device's work; nothing waits for the device before `seconds`."""

    def mark(self) -> Any: ...

    def seconds(self, marks: list[Any]) -> list[float]:
        """Return the times between successive marks, when the device has done all work before the last."""
        ...

    def begin_peak(self) -> None:
        """Forget the largest use of memory so far."""
        ...

    def peak_bytes(self) -> int | None:
        """Return the largest use of the device's memory since `begin_peak`; None where it is not known."""
        ...


class GpuClock:
    """CUDA events, and the memory that torch's allocator has handed out."""

    def mark(self) -> torch.cuda.Event:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, marks: list[torch.cuda.Event]) -> list[float]:
        marks[-1].synchronize()
        return [start.elapsed_time(end) / 1000 for start, end in itertools.pairwise(marks)]

    def begin_peak(self) -> None:
        import torch

        torch.cuda.reset_peak_memory_stats()

    def peak_bytes(self) -> int:
        import torch

        return torch.cuda.max_memory_allocated()


class HostClock:
    """The host's own clock, for models on the CPU."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now

    def mark(self) -> float:
        return self._now()

    def seconds(self, marks: list[float]) -> list[float]:
        return [end - start for start, end in itertools.pairwise(marks)]

    def begin_peak(self) -> None:
        return None

    def peak_bytes(self) -> None:
        return None
