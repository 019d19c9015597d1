"""What NVML says of the GPU: identity, clocks, throttling, other processes. Reads only; sets nothing."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pytest_cutile.core.architectures import architecture_of_capability
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


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _first_visible(pynvml: Any) -> Any:
    """Return the handle of the first GPU that CUDA would show this process."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        if not pynvml.nvmlDeviceGetCount():
            raise NoGpuError("the driver sees no GPU")
        return pynvml.nvmlDeviceGetHandleByIndex(0)
    first = visible.split(",")[0].strip()
    if not first or first == "-1":
        raise NoGpuError(f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU")
    if first.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(first))
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        if _text(pynvml.nvmlDeviceGetUUID(handle)).startswith(first):
            return handle
    raise NoGpuError(f"CUDA_VISIBLE_DEVICES={visible!r} names no GPU of this machine")


def find_gpu() -> Device:
    """Return the first visible GPU, without torch.

    Raises:
        NoGpuError: there is none; the message says why.
    """
    with _nvml() as pynvml:
        handle = _first_visible(pynvml)
        return Device(
            arch=architecture_of_capability(*pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
            name=_text(pynvml.nvmlDeviceGetName(handle)),
            uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
            max_sm_clock_mhz=_max_sm_clock_mhz(pynvml, handle),
        )


def driver_environment() -> dict[str, str]:
    """Return driver version, CUDA version and power limit of the first visible GPU."""
    with _nvml() as pynvml:
        handle = _first_visible(pynvml)
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        environment = {
            "driver": _text(pynvml.nvmlSystemGetDriverVersion()),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        }
        try:
            limit = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)
            environment["power_limit_w"] = str(round(limit / 1000))
        except pynvml.NVMLError:  # integrated GPUs (GB10, Jetson) have no such limit
            pass
        return environment


def _max_sm_clock_mhz(pynvml: Any, handle: Any) -> float | None:
    try:
        return float(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM))
    except pynvml.NVMLError:
        return None


def recording_problems() -> Sequence[str]:
    """Return why figures taken now must not become baselines: throttled, or busy with other processes."""
    problems = []
    with _nvml() as pynvml:
        handle = _first_visible(pynvml)
        try:
            reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        except (pynvml.NVMLError, AttributeError):
            reasons = 0
        # A power cap is how a GPU normally runs a dense matrix product; heat and faults are not normal.
        for name, text in (
            ("nvmlClocksEventReasonSwThermalSlowdown", "the driver has lowered the clocks because of heat"),
            (
                "nvmlClocksThrottleReasonHwThermalSlowdown",
                "the hardware has lowered the clocks because of heat",
            ),
            (
                "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
                "an external power brake has lowered the clocks",
            ),
        ):
            if reasons & getattr(pynvml, name, 0):
                problems.append(text)
        try:
            pids = [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        except pynvml.NVMLError:
            pids = []
        # In a container NVML may report the host's numbers for processes: then one of them is this one.
        others = len(pids) - 1 if os.getpid() not in pids else len([p for p in pids if p != os.getpid()])
        if others > 0:
            problems.append(f"{others} other process{'es' if others > 1 else ''} on the GPU")
    return problems
