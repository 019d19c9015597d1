"""Whether a GPU is fit to measure on: clocks held down, other processes on it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_cutile.timing.gpu.nvml import GpuState
from pytest_cutile.words.platforms.lookup import find_platform
from pytest_cutile.words.settings import RUN_VARIABLE, SHARERS_VARIABLE

_THROTTLED = {
    # A power cap is how a GPU normally runs a dense matrix product; heat and faults are not normal.
    "SwThermalSlowdown": "the driver has lowered the clocks because of heat",
    "HwThermalSlowdown": "the hardware has lowered the clocks because of heat",
    "HwPowerBrakeSlowdown": "an external power brake has lowered the clocks",
}
_THROTTLED_BY_HARDWARE = "the hardware has lowered the clocks (heat, a power brake, or power drawn too fast)"
"""`HwSlowdown`: set together with the hardware's reason, or alone on GPUs that do not report the reason."""
_NORMAL = frozenset({"SwPowerCap", "GpuIdle"})
"""Reasons for a low clock that need no explanation."""
LOW_CLOCK = 0.95
"""Share of the clock that a GPU reaches below which, for no normal reason, somebody holds the clock down."""
BUSY_PERCENT = 5
"""Share of the SMs' time from which a process with a graphics context is a disturbance. Below, too few of a
kernel's samples meet it to move their median. A choice: no desktop was measured."""


def clock_under_load(state: GpuState) -> int:
    """Return the SM clock in MHz; 0 where it is not known, or the GPU idles: that clock says nothing."""
    return 0 if "GpuIdle" in state.clock_reasons else state.sm_clock_mhz or 0


def problems(state: GpuState, highest_mhz: int) -> Sequence[str]:
    """Return why measurements on a GPU in this state are doubtful; nothing if they are not.

    Its highest `clock_under_load` so far is expected of a GPU that is not known to reach NVML's maximum.
    """
    low_clock = _low_clock(state, highest_mhz)
    lowered = [*_throttling(state), *_application_clock(state)]
    return [*(lowered or low_clock), *_other_processes(state)]


def unseen(state: GpuState) -> Sequence[str]:
    """Return which problems NVML cannot show on this GPU. Ask it in a process that uses the GPU."""
    missing = []
    if not state.compute_pids:
        missing.append("other processes on the GPU (NVML lists none, not even this one)")
    if state.graphics_pids and state.sm_percent_by_pid is None:
        missing.append("how busy the processes were that draw on the GPU (NVML does not say)")
    return missing


def _throttling(state: GpuState) -> list[str]:
    reasons = [text for name, text in _THROTTLED.items() if name in state.clock_reasons]
    if not reasons and "HwSlowdown" in state.clock_reasons:
        reasons = [_THROTTLED_BY_HARDWARE]
    if reasons:
        clocks = f"{state.sm_clock_mhz} of {state.max_sm_clock_mhz} MHz"
        reasons[-1] += f" ({state.celsius} degrees Celsius, {clocks})"
    return reasons


def _application_clock(state: GpuState) -> Iterator[str]:
    """Yield a problem if applications are given a low clock; this shows even while the GPU idles."""
    clock, default = state.application_clock_mhz, state.default_application_clock_mhz
    if clock is not None and default is not None and clock < default:
        yield f"its clock is held at {clock} MHz for applications, {default} MHz is usual"


def _low_clock(state: GpuState, expected: int) -> list[str]:
    """Return a problem if the clock is low for no normal reason."""
    clock = clock_under_load(state)
    if not clock:
        return []
    text = f"its clock has dropped to {clock} MHz, it was {expected} MHz before"
    platform = find_platform(state.name)
    if state.max_sm_clock_mhz and platform is not None and platform.reaches_max_clock:
        expected = state.max_sm_clock_mhz
        text = f"its clock is held at {clock} of {expected} MHz"
    return [text] if clock < LOW_CLOCK * expected and not state.clock_reasons & _NORMAL else []


def _other_processes(state: GpuState) -> Iterator[str]:
    # Looking for this run's processes takes milliseconds, and most often this one is alone.
    if not {*state.compute_pids} <= {os.getpid()}:
        sharers = int(os.environ.get(SHARERS_VARIABLE, "1"))
        others = count_others(state.compute_pids, own_processes(), sharers)
        if others:
            yield f"{others} other process{'es' if others > 1 else ''} on the GPU"
    # A desktop's processes hold a context all day and most often rest.
    percent = state.sm_percent_by_pid or {}
    busy = sum(percent.get(pid, 0) >= BUSY_PERCENT for pid in state.graphics_pids)
    if busy:
        yield f"{busy} process{'es' if busy > 1 else ''} drawing on the GPU"


def count_others(running: Sequence[int], own: frozenset[int], sharers: int) -> int:
    """Return how many of the processes `running` on a GPU do not belong to this run.

    In a container NVML may number processes as the host does: then as many of them belong to this run as
    share the GPU.
    """
    if os.getpid() in running or not own.isdisjoint(running):
        return len([pid for pid in running if pid not in own])
    return max(len(running) - sharers, 0)


def own_processes() -> frozenset[int]:
    """Return the processes of this run: pytest, its workers, and what measures for them."""
    root = int(os.environ.get(RUN_VARIABLE, os.getpid()))
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # "pid (name with anything) state ppid ...": the name may hold spaces and brackets.
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    processes = {root, os.getpid()}
    while children := {pid for pid, parent in parents.items() if parent in processes} - processes:
        processes |= children
    return frozenset(processes)
