"""What makes a GPU unfit to measure on: clocks held down, other processes."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pytest_cutile.timing.gpu import condition, nvml
from pytest_cutile.timing.measure.timer import CudaGraphTimer
from pytest_cutile.words.settings import RUN_VARIABLE, SHARERS_VARIABLE
from tests.timing.gpu.fake_nvml import BRAKE, HARDWARE, IDLE, OTHER, POWER_CAP, THERMAL

pytestmark = pytest.mark.usefixtures("fake")


def problems():
    """What a first look finds."""
    state = nvml.read_state()
    return condition.problems(state, condition.clock_under_load(state))


@pytest.mark.parametrize(
    ("reasons", "clock", "found"),
    [
        (0, 1980, []),
        (0, 1900, []),
        (POWER_CAP, 1300, []),
        (IDLE, 345, []),
        (OTHER, 1980, []),
        (THERMAL, 1500, ["because of heat (91 degrees Celsius, 1500 of 1980 MHz)"]),
        (THERMAL | POWER_CAP, 1500, ["because of heat (91 degrees Celsius, 1500 of 1980 MHz)"]),
        (BRAKE, 1500, ["an external power brake has lowered the clocks (91 degrees"]),
        (THERMAL | BRAKE, 1500, ["because of heat", "power brake"]),
        (
            HARDWARE,
            990,
            ["the hardware has lowered the clocks (heat, a power brake, or power drawn too fast) ("],
        ),
        (HARDWARE | POWER_CAP, 990, ["the hardware has lowered the clocks (heat, a power brake"]),
        (HARDWARE | BRAKE, 990, ["an external power brake"]),
        (0, 1500, ["its clock is held at 1500 of 1980 MHz"]),
        (OTHER, 1500, ["its clock is held at 1500 of 1980 MHz"]),
        (0, None, []),
    ],
)
def test_a_gpu_that_is_slowed_down_is_noticed(fake, reasons, clock, found):
    fake.nvmlDeviceGetCurrentClocksEventReasons = lambda _: reasons
    fake.nvmlDeviceGetClockInfo = lambda *_: clock
    said = problems()
    assert len(said) == len(found)
    assert all(part in problem for part, problem in zip(found, said, strict=True))


def looks(fake, timer, *clocks, reasons=0):
    """Return what is found at each of some clocks, one look after the other."""
    fake.nvmlDeviceGetCurrentClocksEventReasons = lambda _: reasons
    found: list[str] = []
    for clock in clocks:
        fake.nvmlDeviceGetClockInfo = lambda *_, clock=clock: clock
        found += timer.problems()
    return found


@pytest.mark.parametrize(
    ("name", "clock", "highest", "found"),
    [
        ("NVIDIA GB10", 2411, 3003, []),
        ("NVIDIA GeForce RTX 4090", 2820, 3105, []),
        ("A GPU of next year", 1000, 3000, []),
        ("NVIDIA H200", 1680, 1980, ["its clock is held at 1680 of 1980 MHz"]),
        ("NVIDIA H100 80GB HBM3", 1680, 1980, ["its clock is held at 1680 of 1980 MHz"]),
    ],
)
def test_a_clock_is_held_against_the_maximum_only_where_that_is_reached(fake, name, clock, highest, found):
    fake.nvmlDeviceGetName = lambda _: name
    fake.nvmlDeviceGetMaxClockInfo = lambda *_: highest
    assert looks(fake, CudaGraphTimer(nvml.find_gpu()), clock, clock) == found * 2


DROPPED = ["its clock has dropped to 2200 MHz, it was 2411 MHz before"]


def test_a_clock_that_drops_is_noticed_where_the_maximum_is_never_reached(fake):
    fake.nvmlDeviceGetName = lambda _: "NVIDIA GB10"
    fake.nvmlDeviceGetMaxClockInfo = lambda *_: 3003
    timer = CudaGraphTimer(nvml.find_gpu())
    assert looks(fake, timer, 2300, 2411, 2300) == []
    assert looks(fake, timer, 2200, 2200) == DROPPED * 2
    assert looks(fake, timer, 2200, reasons=POWER_CAP) == []


def test_a_clock_without_load_is_no_yardstick(fake):
    fake.nvmlDeviceGetName = lambda _: "NVIDIA GB10"
    timer = CudaGraphTimer(nvml.find_gpu())
    assert looks(fake, timer, 3003, reasons=IDLE) == []
    assert looks(fake, timer, 2411) == []


@pytest.mark.parametrize("how", ["not supported", "not there"])
def test_what_nvml_cannot_tell_is_no_problem(fake, how):
    for name in (
        "CurrentClocksEventReasons",
        "ClockInfo",
        "MaxClockInfo",
        "Temperature",
        "ComputeRunningProcesses",
        "GraphicsRunningProcesses",
        "MPSComputeRunningProcesses",
        "ProcessUtilization",
    ):
        if how == "not there":
            delattr(fake, f"nvmlDeviceGet{name}")
        else:
            setattr(fake, f"nvmlDeviceGet{name}", fake.cannot)
    assert problems() == []


def test_heat_is_noticed_where_the_temperature_is_not_known(fake):
    fake.nvmlDeviceGetCurrentClocksEventReasons = lambda _: THERMAL
    fake.nvmlDeviceGetTemperature = fake.cannot
    assert len(problems()) == 1


# -- other processes ----------------------------------------------------------------------------------


def running(*pids):
    return lambda _: [SimpleNamespace(pid=pid) for pid in pids]


@pytest.mark.parametrize(
    ("others", "found"),
    [([], []), ([1], ["1 other process on the GPU"]), ([1, 2], ["2 other processes on the GPU"])],
)
def test_other_processes_are_noticed(fake, others, found):
    fake.nvmlDeviceGetComputeRunningProcesses = running(os.getpid(), *others)
    assert problems() == found


def test_the_processes_of_the_run_are_no_others(fake, monkeypatch):
    """pytest, its workers, and the fresh processes of any of them."""
    monkeypatch.setenv(RUN_VARIABLE, str(os.getppid()))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert {os.getppid(), os.getpid(), child.pid} <= condition.own_processes()
        fake.nvmlDeviceGetComputeRunningProcesses = running(os.getppid(), os.getpid(), child.pid)
        assert problems() == []
        monkeypatch.delenv(RUN_VARIABLE)
        assert problems() == ["1 other process on the GPU"]  # the parent is whoever started pytest
    finally:
        child.communicate(b"\n")


@pytest.mark.parametrize(
    ("pids", "others"), [([10], 0), ([10, 11], 0), ([10, 99], 1), ([11, 97, 98, 99], 3), ([], 0)]
)
def test_processes_are_told_by_their_numbers(pids, others):
    assert condition.count_others(pids, frozenset({10, 11}), 1) == others


@pytest.mark.parametrize(("pids", "others"), [([70001], 0), ([70001, 70002], 0), ([70001, 70002, 70003], 1)])
def test_in_a_container_as_many_as_share_the_gpu_are_taken_for_the_runs(pids, others):
    """Whatever other processes it has: a controller, workers on other GPUs, compilers."""
    assert condition.count_others(pids, frozenset({os.getpid(), 2, 3, 4, 5}), 2) == others


@pytest.mark.parametrize(
    ("workers", "number", "sharers"), [(1, 0, 1), (3, 2, 1), (4, 0, 2), (4, 3, 2), (4, 1, 1), (8, 2, 2)]
)
def test_workers_on_other_gpus_are_no_sharers(fake, workers, number, sharers, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")  # put back after the test
    nvml.choose_gpu(number, workers)
    fake.nvmlDeviceGetComputeRunningProcesses = running(*range(900_000, 900_000 + sharers))
    assert problems() == []
    fake.nvmlDeviceGetComputeRunningProcesses = running(*range(900_000, 900_001 + sharers))
    assert problems() == ["1 other process on the GPU"]


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("visible", ["0", ""])
def test_all_workers_share_a_gpu_that_is_alone(monkeypatch, visible, workers):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvml.choose_gpu(0, workers)
    assert os.environ[SHARERS_VARIABLE] == str(workers)


def test_a_list_without_even_this_process_shows_no_others(fake):
    assert len(condition.unseen(nvml.read_state())) == 1
    fake.nvmlDeviceGetComputeRunningProcesses = fake.cannot
    assert len(condition.unseen(nvml.read_state())) == 1
    fake.nvmlDeviceGetComputeRunningProcesses = running(70001)
    assert condition.unseen(nvml.read_state()) == []


@pytest.mark.parametrize("reasons", [0, POWER_CAP, IDLE])
def test_a_clock_that_somebody_set_is_seen_whatever_the_gpu_does(fake, reasons):
    fake.nvmlDeviceGetCurrentClocksEventReasons = lambda _: reasons
    assert "application_clock_mhz" not in nvml.driver_environment()
    fake.nvmlDeviceGetApplicationsClock = lambda *_: 1200
    assert problems() == ["its clock is held at 1200 MHz for applications, 1980 MHz is usual"]
    assert nvml.driver_environment()["application_clock_mhz"] == "1200"
    fake.nvmlDeviceGetApplicationsClock = fake.cannot
    assert problems() == []


def test_processes_are_not_looked_for_where_this_one_is_alone(fake, monkeypatch):
    monkeypatch.setattr(condition, "own_processes", lambda: pytest.fail("looked for"))
    fake.nvmlDeviceGetComputeRunningProcesses = lambda _: [SimpleNamespace(pid=os.getpid())]
    assert problems() == []


def used(**percent_by_pid):
    """Return what answers which share of the SMs processes had: `used(p7=30)`."""
    samples = [SimpleNamespace(pid=int(pid[1:]), smUtil=share) for pid, share in percent_by_pid.items()]
    return lambda *_: samples


def test_processes_under_mps_are_noticed(fake):
    """The server holds their contexts, and is none itself."""
    names = {7: "/usr/bin/nvidia-cuda-mps-server"}
    fake.nvmlSystemGetProcessName = lambda pid: names.get(pid, "python")
    fake.nvmlDeviceGetComputeRunningProcesses = running(7)
    fake.nvmlDeviceGetMPSComputeRunningProcesses = running(os.getpid(), 8, 9)
    assert problems() == ["2 other processes on the GPU"]
    assert condition.unseen(nvml.read_state()) == []
    fake.nvmlDeviceGetMPSComputeRunningProcesses = running(os.getpid())
    assert problems() == []


def test_a_process_in_several_lists_is_one(fake):
    for context in ("Compute", "MPSCompute", "Graphics"):
        setattr(fake, f"nvmlDeviceGet{context}RunningProcesses", running(os.getpid(), 8))
    fake.nvmlDeviceGetProcessUtilization = used(p8=50)
    assert problems() == ["1 other process on the GPU"]


@pytest.mark.parametrize(
    ("ask", "found"),
    [
        (used(p8=30), ["1 process drawing on the GPU"]),
        (used(p8=0, p9=5), ["1 process drawing on the GPU"]),
        (used(p8=30, p9=30), ["2 processes drawing on the GPU"]),
        (used(p8=4, p9=0), []),
        (used(p1=30), []),  # no process that draws
    ],
)
def test_processes_that_draw_count_if_they_are_busy(fake, ask, found):
    """A desktop's always hold a context, and most often rest."""
    fake.nvmlDeviceGetComputeRunningProcesses = running(os.getpid())
    fake.nvmlDeviceGetGraphicsRunningProcesses = running(8, 9)
    fake.nvmlDeviceGetProcessUtilization = ask
    assert problems() == found
    assert condition.unseen(nvml.read_state()) == []


@pytest.mark.parametrize("value", [0, 6])
def test_no_process_that_used_the_gpu_is_an_answer(fake, value):
    def ask(*_):
        raise fake.NVMLError("nothing", value)

    fake.nvmlDeviceGetComputeRunningProcesses = running(os.getpid())
    fake.nvmlDeviceGetGraphicsRunningProcesses = running(8)
    fake.nvmlDeviceGetProcessUtilization = ask
    assert problems() == []
    assert condition.unseen(nvml.read_state()) == []


@pytest.mark.parametrize("how", ["not supported", "not there"])
def test_processes_that_draw_and_may_be_busy_are_unseen(fake, how):
    fake.nvmlDeviceGetComputeRunningProcesses = running(os.getpid())
    if how == "not there":
        del fake.nvmlDeviceGetProcessUtilization
    else:
        fake.nvmlDeviceGetProcessUtilization = fake.cannot
    assert condition.unseen(nvml.read_state()) == []
    fake.nvmlDeviceGetGraphicsRunningProcesses = running(8)
    assert problems() == []
    assert condition.unseen(nvml.read_state()) == [
        "how busy the processes were that draw on the GPU (NVML does not say)"
    ]
