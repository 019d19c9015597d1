"""Where the GPU's time goes: kernels by name, their launches and times, and the share that is ours."""

from __future__ import annotations

import inspect
import math
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple


class KernelRun(NamedTuple):
    """One execution of a kernel, a copy or a fill on the GPU."""

    name: str
    start_us: float
    end_us: float


@dataclass(frozen=True, kw_only=True)
class KernelTime:
    """All executions of one kernel in a profile."""

    name: str
    calls: float
    """Per prefill or per token."""
    ms: float
    """Likewise."""
    share: float
    """Of the time of all kernels."""
    is_ours: bool


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Kernels of one prefill, or of one token, the slowest first."""

    kernels: tuple[KernelTime, ...]

    @property
    def ms(self) -> float:
        """GPU time of all kernels; gaps between them are not in it."""
        return sum(kernel.ms for kernel in self.kernels)

    @property
    def calls(self) -> float:
        return sum(kernel.calls for kernel in self.kernels)

    @property
    def coverage(self) -> tuple[float, float]:
        """Shares of the GPU's time and of launches that this project's kernels have."""
        ours = [kernel for kernel in self.kernels if kernel.is_ours]
        calls = self.calls
        return sum(kernel.share for kernel in ours), sum(
            kernel.calls for kernel in ours
        ) / calls if calls else 0.0


def break_down(runs: Iterable[KernelRun], *, repeats: int = 1, names: Iterable[str] = ()) -> Breakdown:
    """Add executions up by kernel.

    Where two overlap, the time is that of the one that began first: a dependent launch waits beside the
    kernel before it. So all times together are those in which the GPU was busy.

    Args:
        runs: Of a profile.
        repeats: Tokens, or prefills, that the profile has: figures are per one.
        names: Names of this project's kernels; a compiled kernel's name begins with that of its function.
    """
    ours = tuple(names)
    times: dict[str, list[float]] = defaultdict(list)
    busy_until = -math.inf
    for run in sorted(runs, key=lambda run: run.start_us):
        times[run.name].append(max(0.0, run.end_us - max(run.start_us, busy_until)))
        busy_until = max(busy_until, run.end_us)
    total = sum(map(sum, times.values()))
    kernels = (
        KernelTime(
            name=name,
            calls=len(us) / repeats,
            ms=sum(us) / repeats / 1000,
            share=sum(us) / total if total else 0.0,
            is_ours=name.startswith(ours) if ours else False,
        )
        for name, us in times.items()
    )
    return Breakdown(kernels=tuple(sorted(kernels, key=lambda kernel: -kernel.ms)))


def profile(work: Callable[[], object], *, repeats: int = 1) -> list[KernelRun]:
    """Run `work` so many times under torch's profiler; return what the GPU executed."""
    import torch

    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
    return [
        KernelRun(event.name, event.time_range.start, event.time_range.end)
        for event in profiled.events()
        if event.device_type.name == "CUDA" and not getattr(event, "is_user_annotation", False)
    ]


@cache
def kernel_names() -> tuple[str, ...]:
    """Return the names of all kernels' functions in `kernels/`."""
    import kernels

    modules = [import_module(f"kernels.{module.name}") for module in pkgutil.iter_modules(kernels.__path__)]
    return tuple(sorted({name for module in modules for name, _ in inspect.getmembers(module, _is_kernel)}))


def _is_kernel(value: Any) -> bool:
    import cuda.tile as ct

    return isinstance(value, ct.kernel)
