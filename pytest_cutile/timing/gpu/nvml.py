"""What NVML says of the GPU: name, clocks, throttling, processes. It reads, and neither sets nor judges.

`gpu/condition.py` says which readings make measurements doubtful. Where there is no GPU, functions raise
NoGpuError, whose message says why.
"""

from __future__ import annotations

import atexit
import functools
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from pytest_cutile.words.platforms.architectures import architecture_of_capability
from pytest_cutile.words.settings import SHARERS_VARIABLE
from pytest_cutile.words.timing import Device

CLOCK_REASONS = (
    "GpuIdle",
    "SwPowerCap",
    "HwSlowdown",
    "SwThermalSlowdown",
    "HwThermalSlowdown",
    "HwPowerBrakeSlowdown",
)
"""NVML's reasons for a low clock that are read: `nvmlClocksEventReason...`."""
_LOOK_BACK_SECONDS = 1.0
"""How far back utilization is asked for. NVML's documentation: samples are 1/6 s to 1 s apart."""


class NoGpuError(RuntimeError):
    """There is no usable GPU; the message says what is missing."""


@contextmanager
def _nvml() -> Iterator[Any]:
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


@functools.cache
def keep_loaded() -> None:
    """Keep NVML initialised until this process ends, so that readings are fast: NVML counts its users."""
    with suppress(NoGpuError), _nvml() as pynvml:
        pynvml.nvmlInit()
        atexit.register(pynvml.nvmlShutdown)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _visible(pynvml: Any) -> list[Any]:
    """Return the handles of the GPUs that CUDA would show this process, in its order."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    if visible is None:
        if not handles:
            raise NoGpuError("the driver sees no GPU")
        return handles
    named = []
    for part in visible.split(","):
        name = part.strip()
        if name.isdecimal():
            matches = handles[int(name) : int(name) + 1]
        else:
            matches = [
                handle
                for handle in handles
                if name and _text(pynvml.nvmlDeviceGetUUID(handle)).startswith(name)
            ]
        if not matches:  # CUDA ignores everything after the first name that matches nothing
            break
        named += matches[:1]
    if not named:
        hides = not visible.strip() or visible.strip() == "-1"
        raise NoGpuError(
            f"CUDA_VISIBLE_DEVICES={visible!r} "
            + ("hides every GPU" if hides else "names no GPU of this machine")
        )
    return named


class _Gpu:
    """A GPU, as long as NVML is initialised."""

    def __init__(self, pynvml: Any, handle: Any) -> None:
        self.pynvml = pynvml
        self.handle = handle

    def ask(self, fact: str, *constants: str) -> Any:
        """Return what `nvmlDeviceGet<fact>` answers; None if the GPU, or this pynvml, has no such fact."""
        try:
            arguments = [getattr(self.pynvml, name) for name in constants]
            return getattr(self.pynvml, f"nvmlDeviceGet{fact}")(self.handle, *arguments)
        except (self.pynvml.NVMLError, AttributeError):
            return None

    def clock(self, name: str) -> int | None:
        """Return an SM clock in MHz; `name` is "ClockInfo", "MaxClockInfo" and the like."""
        clock: int | None = self.ask(name, "NVML_CLOCK_SM")
        return clock

    def mhz(self, name: str) -> float | None:
        clock = self.clock(name)
        return None if clock is None else float(clock)

    def application_clocks(self) -> tuple[int | None, int | None]:
        """Return the SM clock of applications and its default; None for both if one is unknown."""
        clock, default = self.clock("ApplicationsClock"), self.clock("DefaultApplicationsClock")
        return (clock, default) if clock and default else (None, None)

    def pids(self, context_type: str) -> list[int]:
        return [process.pid for process in self.ask(f"{context_type}RunningProcesses") or []]

    def compute_pids(self) -> list[int]:
        pids, clients = self.pids("Compute"), self.pids("MPSCompute")
        if clients:  # the MPS server runs what its clients launch, and is no further process
            pids = [pid for pid in pids if not self._process_name(pid).endswith("nvidia-cuda-mps-server")]
        return pids + [pid for pid in clients if pid not in pids]

    def _process_name(self, pid: int) -> str:
        try:
            return _text(self.pynvml.nvmlSystemGetProcessName(pid))
        except (self.pynvml.NVMLError, AttributeError):
            return ""

    def sm_percent_by_pid(self) -> Mapping[int, int] | None:
        since = int((time.time() - _LOOK_BACK_SECONDS) * 1e6)
        try:
            samples = self.pynvml.nvmlDeviceGetProcessUtilization(self.handle, since)
        except AttributeError:
            return None
        except self.pynvml.NVMLError as error:
            # Nothing ran: one of these, by driver and binding.
            nothing = (self.pynvml.NVML_ERROR_NOT_FOUND, self.pynvml.NVML_SUCCESS)
            return {} if error.value in nothing else None
        percent: dict[int, int] = {}
        for sample in samples:
            percent[sample.pid] = max(sample.smUtil, percent.get(sample.pid, 0))
        return percent


@contextmanager
def _first_gpu() -> Iterator[_Gpu]:
    with _nvml() as pynvml:
        yield _Gpu(pynvml, _visible(pynvml)[0])


def find_gpu() -> Device:
    """Return the first visible GPU, without torch."""
    with _first_gpu() as gpu:
        pynvml, handle = gpu.pynvml, gpu.handle
        return Device(
            arch=architecture_of_capability(*pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
            name=_text(pynvml.nvmlDeviceGetName(handle)),
            uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
            max_sm_clock_mhz=gpu.mhz("MaxClockInfo"),
        )


def visible_uuids() -> list[str]:
    """Return the UUIDs of the visible GPUs, in CUDA's order; empty where there is none."""
    try:
        with _nvml() as pynvml:
            return [_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in _visible(pynvml)]
    except NoGpuError:
        return []


def choose_gpu(number: int, workers: int = 1) -> None:
    """Let CUDA show this process one of the visible GPUs; workers take the GPUs in turn."""
    uuids = visible_uuids()
    gpus = max(len(uuids), 1)
    os.environ[SHARERS_VARIABLE] = str(max(len(range(number % gpus, workers, gpus)), 1))
    if len(uuids) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = uuids[number % len(uuids)]


def driver_environment() -> dict[str, str]:
    """Return driver version, CUDA version, power limit, MIG mode and a set clock of the first visible GPU."""
    with _first_gpu() as gpu:
        cuda = gpu.pynvml.nvmlSystemGetCudaDriverVersion_v2()
        environment = {
            "driver": _text(gpu.pynvml.nvmlSystemGetDriverVersion()),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        }
        # Integrated GPUs (GB10, Jetson) have no power limit, and most GPUs no MIG.
        if (limit := gpu.ask("EnforcedPowerLimit")) is not None:
            environment["power_limit_w"] = str(round(limit / 1000))
        # Only a clock that somebody set: the default is left out, so that older recordings still compare.
        clock, default = gpu.application_clocks()
        if clock != default:
            environment["application_clock_mhz"] = str(clock)
        if (gpu.ask("MigMode") or (0,))[0]:
            environment["mig"] = "on"
        return environment


def sm_clock_mhz() -> float | None:
    with _first_gpu() as gpu:
        return gpu.mhz("ClockInfo")


@dataclass(frozen=True, kw_only=True)
class Load:
    """Clock and counters of the GPU at one moment. None where NVML does not say."""

    sm_clock_mhz: float | None
    energy_mj: int | None
    """Energy since the driver was loaded, in mJ; it moves about every 100 ms."""
    power_limited_ns: int | None
    """Time for which power has held the clocks down, in ns, since some beginning."""


def read_load() -> Load:
    with _first_gpu() as gpu:
        status = gpu.ask("ViolationStatus", "NVML_PERF_POLICY_POWER")
        return Load(
            sm_clock_mhz=gpu.mhz("ClockInfo"),
            energy_mj=gpu.ask("TotalEnergyConsumption"),
            power_limited_ns=None if status is None else status.violationTime,
        )


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """What NVML says of one GPU at one moment. None, or nothing, where it does not say."""

    name: str
    sm_clock_mhz: int | None
    max_sm_clock_mhz: int | None
    application_clock_mhz: int | None
    """SM clock that applications are given."""
    default_application_clock_mhz: int | None
    """SM clock of applications unless somebody sets another one. None for both where NVML says only one."""
    clock_reasons: frozenset[str]
    """Why the clocks are not higher, by NVML's names without their prefix: "SwPowerCap", "GpuIdle"."""
    celsius: int | None
    compute_pids: tuple[int, ...]
    """Processes that compute on it, those under MPS in place of their server."""
    graphics_pids: frozenset[int]
    """Processes that have a graphics context on it, and do not compute."""
    sm_percent_by_pid: Mapping[int, int] | None
    """Share of the SMs' time that processes just had; empty where none has a graphics context."""


def read_state() -> GpuState:
    with _first_gpu() as gpu:
        application_clock, default_clock = gpu.application_clocks()
        reasons = gpu.ask("CurrentClocksEventReasons") or 0
        compute_pids = gpu.compute_pids()
        graphics_pids = frozenset(gpu.pids("Graphics")).difference(compute_pids)
        return GpuState(
            name=_text(gpu.pynvml.nvmlDeviceGetName(gpu.handle)),
            sm_clock_mhz=gpu.clock("ClockInfo"),
            max_sm_clock_mhz=gpu.clock("MaxClockInfo"),
            application_clock_mhz=application_clock,
            default_application_clock_mhz=default_clock,
            clock_reasons=frozenset(
                name
                for name in CLOCK_REASONS
                if reasons & getattr(gpu.pynvml, f"nvmlClocksEventReason{name}", 0)
            ),
            celsius=gpu.ask("Temperature", "NVML_TEMPERATURE_GPU"),
            compute_pids=tuple(compute_pids),
            graphics_pids=graphics_pids,
            sm_percent_by_pid=gpu.sm_percent_by_pid() if graphics_pids else {},
        )
