"""Which GPU is found, and what NVML says of it."""

import os
import sys

import pytest

from pytest_cutile.timing.gpu import nvml
from tests.timing.gpu.fake_nvml import UUIDS

pytestmark = pytest.mark.usefixtures("fake")


# -- which GPU ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, "abc"),
        ("0", "a"),
        ("1,0", "ba"),
        (" 2 , 1", "cb"),
        ("GPU-bb22", "b"),
        ("GPU-b", "b"),
        ("GPU-cc33,0", "ca"),
        ("0,7,1", "a"),  # as CUDA: what comes after a name that is none is not seen
        ("2,-1,0", "c"),
        ("0,,1", "a"),
        ("-1", ""),
        ("", ""),
        ("7", ""),
        ("GPU-zz", ""),
        ("none", ""),
    ],
)
def test_the_visible_gpus_are_those_of_cuda(monkeypatch, visible, found):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert nvml.visible_uuids() == [uuid for letter in found for uuid in UUIDS if letter in uuid]


@pytest.mark.parametrize(
    ("visible", "why"),
    [
        ("", "hides every GPU"),
        ("-1", "hides every GPU"),
        (" ", "hides every GPU"),
        ("7", "names no GPU of this"),
    ],
)
def test_no_gpu_says_why(monkeypatch, visible, why):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(nvml.NoGpuError, match=rf"CUDA_VISIBLE_DEVICES='{visible}' {why}"):
        nvml.find_gpu()


def test_a_machine_without_gpus_says_so(fake):
    fake.nvmlDeviceGetCount = lambda: 0
    with pytest.raises(nvml.NoGpuError, match="the driver sees no GPU"):
        nvml.find_gpu()
    assert nvml.visible_uuids() == []


def test_no_driver_says_so(fake):
    fake.nvmlInit = fake.cannot
    with pytest.raises(nvml.NoGpuError, match=r"no NVIDIA driver \(Not Supported\)"):
        nvml.find_gpu()
    assert nvml.visible_uuids() == []


def test_no_nvml_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(nvml.NoGpuError, match="nvidia-ml-py is not installed"):
        nvml.find_gpu()


def test_the_first_visible_gpu_is_described(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    device = nvml.find_gpu()
    assert (device.arch, device.name, device.uuid) == ("sm_90", "NVIDIA H200", "GPU-cc33")
    assert device.max_sm_clock_mhz == 1980.0
    assert nvml.sm_clock_mhz() == 1980.0


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [(None, ["GPU-aa11", "GPU-bb22", "GPU-cc33", "GPU-aa11"]), ("2,0", ["GPU-cc33", "GPU-aa11"] * 2)],
)
def test_workers_are_spread_over_the_gpus(monkeypatch, visible, chosen):
    devices = []
    for worker in range(4):
        with monkeypatch.context() as patch:
            patch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
            if visible is None:
                del os.environ["CUDA_VISIBLE_DEVICES"]
            nvml.choose_gpu(worker)
            devices.append(os.environ["CUDA_VISIBLE_DEVICES"])
    assert devices == chosen


@pytest.mark.parametrize("visible", ["1", "", "-1"])
def test_one_gpu_or_none_leaves_no_choice(monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvml.choose_gpu(3)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible


def test_clock_and_counters_are_read(fake):
    load = nvml.read_load()
    assert (load.sm_clock_mhz, load.energy_mj, load.power_limited_ns) == (1980.0, 6_900_764, 4_973_812_192)
    for name in ("ClockInfo", "TotalEnergyConsumption", "ViolationStatus"):
        setattr(fake, f"nvmlDeviceGet{name}", fake.cannot)
    assert nvml.read_load() == nvml.Load(sm_clock_mhz=None, energy_mj=None, power_limited_ns=None)
    del fake.NVML_PERF_POLICY_POWER  # an older binding
    assert nvml.read_load().power_limited_ns is None


# -- what figures depend on ---------------------------------------------------------------------------


def test_the_environment_is_what_figures_depend_on(fake):
    assert nvml.driver_environment() == {"driver": "580.159.04", "cuda": "13.2", "power_limit_w": "700"}
    fake.nvmlDeviceGetMigMode = lambda _: (1, 1)
    assert nvml.driver_environment()["mig"] == "on"


def test_what_a_gpu_does_not_know_is_left_out(fake):
    for name in ("EnforcedPowerLimit", "MigMode", "MaxClockInfo", "ClockInfo"):
        setattr(fake, f"nvmlDeviceGet{name}", fake.cannot)
    assert nvml.driver_environment() == {"driver": "580.159.04", "cuda": "13.2"}
    assert nvml.find_gpu().max_sm_clock_mhz is None
    assert nvml.sm_clock_mhz() is None
