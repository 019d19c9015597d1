"""pynvml with three GPUs and no driver."""

from types import SimpleNamespace

UUIDS = ["GPU-aa11", "GPU-bb22", "GPU-cc33"]
THERMAL, BRAKE, HARDWARE, POWER_CAP, IDLE, OTHER = 0x20, 0x80, 0x8, 0x4, 0x1, 0x100


class FakeNvml(SimpleNamespace):
    """As much of pynvml as is asked for, with three GPUs; change an attribute to change what it says."""

    class NVMLError(Exception):
        def __init__(self, text, value=999):
            super().__init__(text)
            self.value = value

    def __init__(self):
        super().__init__(
            open=0,
            NVML_SUCCESS=0,
            NVML_ERROR_NOT_FOUND=6,
            NVML_CLOCK_SM=1,
            NVML_TEMPERATURE_GPU=0,
            NVML_PERF_POLICY_POWER=0,
            nvmlClocksEventReasonSwThermalSlowdown=THERMAL,
            nvmlClocksEventReasonHwThermalSlowdown=0x40,
            nvmlClocksEventReasonHwPowerBrakeSlowdown=BRAKE,
            nvmlClocksEventReasonHwSlowdown=HARDWARE,
            nvmlClocksEventReasonSwPowerCap=POWER_CAP,
            nvmlClocksEventReasonGpuIdle=IDLE,
            nvmlDeviceGetCount=lambda: len(UUIDS),
            nvmlDeviceGetHandleByIndex=lambda index: index,
            nvmlDeviceGetUUID=lambda handle: UUIDS[handle],
            nvmlDeviceGetName=lambda _: b"NVIDIA H200",
            nvmlDeviceGetCudaComputeCapability=lambda _: (9, 0),
            nvmlDeviceGetMaxClockInfo=lambda *_: 1980,
            nvmlDeviceGetClockInfo=lambda *_: 1980,
            nvmlDeviceGetTemperature=lambda *_: 91,
            nvmlDeviceGetTotalEnergyConsumption=lambda _: 6_900_764,
            nvmlDeviceGetViolationStatus=lambda *_: SimpleNamespace(violationTime=4_973_812_192),
            nvmlDeviceGetCurrentClocksEventReasons=lambda _: 0,
            nvmlDeviceGetComputeRunningProcesses=lambda _: [],
            nvmlDeviceGetGraphicsRunningProcesses=lambda _: [],
            nvmlDeviceGetMPSComputeRunningProcesses=lambda _: [],
            nvmlDeviceGetProcessUtilization=self.nothing_ran,
            nvmlSystemGetProcessName=lambda pid: f"/usr/bin/process-{pid}",
            nvmlDeviceGetEnforcedPowerLimit=lambda _: 700_000,
            nvmlDeviceGetApplicationsClock=lambda *_: 1980,
            nvmlDeviceGetDefaultApplicationsClock=lambda *_: 1980,
            nvmlDeviceGetMigMode=lambda _: (0, 0),
            nvmlSystemGetCudaDriverVersion_v2=lambda: 13_020,
            nvmlSystemGetDriverVersion=lambda: b"580.159.04",
        )

    def nvmlInit(self):  # noqa: N802 - NVML's name
        self.open += 1

    def nvmlShutdown(self):  # noqa: N802
        self.open -= 1

    def nothing_ran(self, *_):
        raise self.NVMLError("Not Found", self.NVML_ERROR_NOT_FOUND)

    def cannot(self, *_):
        raise self.NVMLError("Not Supported")
