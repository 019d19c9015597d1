"""What NVML says of the GPU: identity, clocks, throttling, other processes. Reads only; sets nothing."""

from __future__ import annotations

import atexit
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pytest_cutile.core.architectures import architecture_of_capability
from pytest_cutile.core.platforms import find_platform
from pytest_cutile.core.settings import RUN_VARIABLE, SHARERS_VARIABLE
from pytest_cutile.core.timing import Device


class NoGpuError(RuntimeError):
    """There is no usable GPU; the message says what is missing."""


@contextmanager
def _nvml() -> Iterator[Any]:
    """Yield the pynvml module with NVML initialised.

    Raises:
        NoGpuError: no NVML, no driver.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the deprecated package of the same name warns at import
            import pynvml
    except ImportError as error:
        raise NoGpuError("nvidia-ml-py is not installed, so GPUs cannot be found") from error
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError) as error:
        raise NoGpuError(f"no NVIDIA driver ({error})") from error
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise NoGpuError(f"NVML failed: {error}") from error
    finally:
        pynvml.nvmlShutdown()


def keep_loaded() -> None:
    """Keep NVML initialised until this process ends, so that not every look at the GPU begins anew.

    It counts who has initialised it.
    """
    with suppress(NoGpuError), _nvml() as pynvml:
        pynvml.nvmlInit()
        atexit.register(pynvml.nvmlShutdown)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _visible(pynvml: Any) -> list[Any]:
    """Return the handles of the GPUs that CUDA would show this process, in its order.

    Raises:
        NoGpuError: there is none.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    if visible is None:
        if not handles:
            raise NoGpuError("the driver sees no GPU")
        return handles
    found = []
    for part in visible.split(","):
        name = part.strip()
        if name.isdecimal():
            same = handles[int(name) : int(name) + 1]
        else:
            same = [
                each for each in handles if name and _text(pynvml.nvmlDeviceGetUUID(each)).startswith(name)
            ]
        if not same:  # CUDA, too, stops at the first name that is none
            break
        found += same[:1]
    if not found:
        hides = not visible.strip() or visible.strip() == "-1"
        raise NoGpuError(
            f"CUDA_VISIBLE_DEVICES={visible!r} "
            + ("hides every GPU" if hides else "names no GPU of this machine")
        )
    return found


def find_gpu() -> Device:
    """Return the first visible GPU, without torch.

    Raises:
        NoGpuError: there is none; the message says why.
    """
    with _nvml() as pynvml:
        handle = _visible(pynvml)[0]
        return Device(
            arch=architecture_of_capability(*pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
            name=_text(pynvml.nvmlDeviceGetName(handle)),
            uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
            max_sm_clock_mhz=_answer(
                pynvml, lambda: float(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM))
            ),
        )


def visible_uuids() -> list[str]:
    """Return the UUIDs of the visible GPUs, in CUDA's order; empty where there is none."""
    try:
        with _nvml() as pynvml:
            return [_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in _visible(pynvml)]
    except NoGpuError:
        return []


def choose_gpu(number: int, workers: int = 1) -> None:
    """Let CUDA show this process one of the visible GPUs: the one that is this worker's turn.

    Args:
        number: of this worker, from 0.
        workers: how many there are.
    """
    uuids = visible_uuids()
    gpus = max(len(uuids), 1)
    os.environ[SHARERS_VARIABLE] = str(max(len(range(number % gpus, workers, gpus)), 1))
    if len(uuids) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = uuids[number % len(uuids)]


def driver_environment() -> dict[str, str]:
    """Return driver version, CUDA version, power limit, MIG mode and a set clock of the first visible GPU."""
    with _nvml() as pynvml:
        handle = _visible(pynvml)[0]
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        environment = {
            "driver": _text(pynvml.nvmlSystemGetDriverVersion()),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        }
        # Integrated GPUs (GB10, Jetson) have no such limit, and most GPUs no MIG.
        limit = _answer(pynvml, lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        if limit is not None:
            environment["power_limit_w"] = str(round(limit / 1000))
        # A setting of somebody's; the default is no part of it, so that what was recorded before it was
        # asked for still compares.
        held = _application_clocks(pynvml, handle)
        if held is not None:
            environment["application_clock_mhz"] = str(held[0])
        mig = _answer(pynvml, lambda: pynvml.nvmlDeviceGetMigMode(handle)[0])
        if mig:
            environment["mig"] = "on"
        return environment


def _application_clocks(pynvml: Any, handle: Any) -> tuple[int, int] | None:
    """Return the clock that applications were given and the usual one; None where it is the usual one."""
    given = _answer(pynvml, lambda: pynvml.nvmlDeviceGetApplicationsClock(handle, pynvml.NVML_CLOCK_SM))
    usual = _answer(
        pynvml, lambda: pynvml.nvmlDeviceGetDefaultApplicationsClock(handle, pynvml.NVML_CLOCK_SM)
    )
    return (given, usual) if given and usual and given != usual else None


def sm_clock_mhz() -> float | None:
    """Return the clock of the first visible GPU's SMs now; None where it is not known."""
    with _nvml() as pynvml:
        handle = _visible(pynvml)[0]
        clock = _answer(pynvml, lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
        return None if clock is None else float(clock)


def _answer(pynvml: Any, ask: Callable[[], Any]) -> Any:
    """Return what NVML says, or None if it does not know such a thing on this GPU."""
    try:
        return ask()
    except (pynvml.NVMLError, AttributeError):
        return None


_SLOWED = (
    # A power cap is how a GPU normally runs a dense matrix product; heat and faults are not normal.
    ("nvmlClocksEventReasonSwThermalSlowdown", "the driver has lowered the clocks because of heat"),
    ("nvmlClocksEventReasonHwThermalSlowdown", "the hardware has lowered the clocks because of heat"),
    ("nvmlClocksEventReasonHwPowerBrakeSlowdown", "an external power brake has lowered the clocks"),
)
_SLOWED_SOMEHOW = (
    "nvmlClocksEventReasonHwSlowdown",
    "the hardware has lowered the clocks (heat, a power brake, or power drawn too fast)",
)
"""Set beside the reason where the hardware tells it, alone where it does not."""
_USUAL = ("nvmlClocksEventReasonSwPowerCap", "nvmlClocksEventReasonGpuIdle")
"""Reasons for a low clock that leave nothing to doubt, unless the stored runs had a higher one."""
LOW_CLOCK = 0.95
"""Share of the clock that a GPU reaches below which, for no usual reason, somebody holds the clock down."""


BUSY_PERCENT = 5
"""Share of the SMs' time from which a process that draws is a disturbance. Below, too few of a kernel's
samples meet it to move their median. A choice: no desktop was measured."""
LOOK_BACK_SECONDS = 1.0
"""How far back it is asked for: by NVML's documentation samples are a sixth of a second to a second apart."""


class SeenClocks:
    """The highest clock that each GPU was seen at under load, by UUID."""

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}

    def highest(self, uuid: str, clock: int) -> int:
        """Return the highest clock of a GPU so far, this one included."""
        self._highest[uuid] = max(clock, self._highest.get(uuid, 0))
        return self._highest[uuid]


def problems(seen: SeenClocks) -> Sequence[str]:
    """Return why figures taken now are doubtful: clocks held down, or other processes on the GPU.

    Args:
        seen: what a clock is held against on GPUs that are not known to reach NVML's maximum; takes this
            look along.
    """
    with _nvml() as pynvml:
        handle = _visible(pynvml)[0]
        reasons = _answer(pynvml, lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)) or 0
        clock = _answer(pynvml, lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
        highest = _answer(pynvml, lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM))
        found = [text for name, text in _SLOWED if reasons & getattr(pynvml, name, 0)]
        if not found and reasons & getattr(pynvml, _SLOWED_SOMEHOW[0], 0):
            found.append(_SLOWED_SOMEHOW[1])
        if found:
            celsius = _answer(
                pynvml, lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
            )
            found[-1] += f" ({celsius} degrees Celsius, {clock} of {highest} MHz)"
        held = _application_clocks(pynvml, handle)
        if held is not None and held[0] < held[1]:  # seen also while the GPU idles or its power is capped
            found.append(f"its clock is held at {held[0]} MHz for applications, {held[1]} MHz is usual")
        low = _low_clock(pynvml, handle, seen, clock, highest, reasons)
        if low and not found:
            found.append(low)
        pids = _running(pynvml, handle)
        # To look for this run's processes takes milliseconds; most often there is this one alone.
        sharers = int(os.environ.get(SHARERS_VARIABLE, "1"))
        others = 0 if {*pids} <= {os.getpid()} else count_others(pids, own_processes(), sharers)
        if others:
            found.append(f"{others} other process{'es' if others > 1 else ''} on the GPU")
        drawing = _drawing(pynvml, handle, pids)
        busy = len(drawing & (_busy(pynvml, handle) or set())) if drawing else 0
        if busy:
            found.append(f"{busy} process{'es' if busy > 1 else ''} drawing on the GPU")
        return found


def _low_clock(
    pynvml: Any, handle: Any, seen: SeenClocks, clock: int | None, highest: int | None, reasons: int
) -> str:
    """Say so if a clock is low for no usual reason; else nothing. An idle GPU's says nothing of a load."""
    if not clock or reasons & getattr(pynvml, "nvmlClocksEventReasonGpuIdle", 0):
        return ""
    reached = seen.highest(_text(pynvml.nvmlDeviceGetUUID(handle)), clock)
    said = f"its clock has dropped to {clock} MHz, it was {reached} MHz before"
    platform = find_platform(_text(pynvml.nvmlDeviceGetName(handle)))
    if highest and platform is not None and platform.reaches_max_clock:
        said, reached = f"its clock is held at {clock} of {highest} MHz", highest
    usual = any(reasons & getattr(pynvml, name, 0) for name in _USUAL)
    return said if clock < LOW_CLOCK * reached and not usual else ""


def unseen() -> Sequence[str]:
    """Return what NVML does not show of the GPU, asked by a process that uses it."""
    with _nvml() as pynvml:
        handle = _visible(pynvml)[0]
        pids = _running(pynvml, handle)
        found = [] if pids else ["other processes on the GPU (NVML lists none, not even this one)"]
        if _drawing(pynvml, handle, pids) and _busy(pynvml, handle) is None:
            found.append("how busy the processes were that draw on the GPU (NVML does not say)")
        return found


def _running(pynvml: Any, handle: Any) -> list[int]:
    """Return the numbers of the processes that compute on a GPU; none where NVML does not tell."""
    pids = _pids(pynvml, lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    clients = _pids(pynvml, lambda: pynvml.nvmlDeviceGetMPSComputeRunningProcesses(handle))
    if clients:  # what they launch, their server runs, which is no further one
        pids = [pid for pid in pids if not _name(pynvml, pid).endswith("nvidia-cuda-mps-server")]
    return pids + [pid for pid in clients if pid not in pids]


def _drawing(pynvml: Any, handle: Any, computing: Sequence[int]) -> set[int]:
    """Return the numbers of the processes that have a graphics context on a GPU, and do not compute."""
    drawing = _pids(pynvml, lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle))
    return {*drawing}.difference(computing)


def _name(pynvml: Any, pid: int) -> str:
    return _text(_answer(pynvml, lambda: pynvml.nvmlSystemGetProcessName(pid)) or "")


def _pids(pynvml: Any, ask: Callable[[], Any]) -> list[int]:
    return [process.pid for process in _answer(pynvml, ask) or []]


def _busy(pynvml: Any, handle: Any) -> set[int] | None:
    """Return the numbers of the processes that were busy on a GPU just now; None where NVML does not tell.

    A desktop's processes hold a context all day and most often rest: it takes this to tell.
    """
    since = int((time.time() - LOOK_BACK_SECONDS) * 1e6)
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since)
    except AttributeError:
        return None
    except pynvml.NVMLError as error:
        # Nothing ran: one of these, by driver and binding.
        nothing = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS)
        return set() if error.value in nothing else None
    return {sample.pid for sample in samples if sample.smUtil >= BUSY_PERCENT}


def count_others(running: Sequence[int], own: frozenset[int], sharers: int) -> int:
    """Return how many of the processes `running` on a GPU are none of this run's.

    In a container NVML may number processes as the host does: then as many of them are this run's as share
    the GPU.

    Args:
        running: their numbers.
        own: numbers of this run's processes, on whatever GPU.
        sharers: how many of those use this GPU.
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
    found = {root, os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return frozenset(found)
        found |= more
