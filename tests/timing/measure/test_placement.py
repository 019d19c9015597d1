import ctypes
import functools
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pytest_cutile.tile.tensors.trees import map_tensors
from pytest_cutile.timing.measure import placement, reference_kernels, reference_workload
from pytest_cutile.timing.measure.placement import placed_anew, placed_in_rotation
from pytest_cutile.timing.measure.reference_kernels import DriverError

Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024 - its fields have no types to speak of


@pytest.mark.parametrize(
    "arguments", [(), ((3, "x"), {"n": 4}), None, ((torch.ones(4),), {"out": torch.ones(2)})]
)
def test_without_tensors_on_a_gpu_the_arguments_stay(arguments):
    with placed_anew(arguments) as placed:
        assert placed is arguments


def test_a_tree_keeps_its_shape_and_all_that_is_no_tensor():
    one, two = torch.ones(2), torch.zeros(3)
    tree = ((one, [two, "x"], Pair(one, 3)), {"a": None, "b": (two,)})
    same = map_tensors(lambda tensor: tensor, tree)
    assert isinstance(same[0][2], Pair)
    assert same[0][0] is one
    assert same[1]["b"][0] is two
    moved = map_tensors(lambda tensor: tensor + 1, tree)
    assert moved[0][2].left.tolist() == [2.0, 2.0]
    assert (moved[0][1][1], moved[0][2].right, moved[1]["a"]) == ("x", 3, None)


# -- several places -----------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch):
    """Let torch make tensors on the CPU where they are asked for on a GPU."""
    empty = torch.empty

    def on_cpu(*shape, device=None, **options):
        assert device == "cuda"
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", on_cpu)
    monkeypatch.setattr(reference_workload, "COPY_BYTES", 3 << 20)
    found = SimpleNamespace(free=1 << 40, l2=1 << 40, launches=[], refuses="")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (found.free, found.free))
    properties = lambda _: SimpleNamespace(L2_cache_size=found.l2, multi_processor_count=3)  # noqa: E731
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    stream = SimpleNamespace(synchronize=lambda: None, cuda_stream=77)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)

    class Kernel:
        def __init__(self, source, name):
            assert f".visible .entry {name}(" in source
            if found.refuses == "load":
                raise DriverError("cuModuleLoadData failed with CUresult 222")

        def launch(self, blocks, arguments, stream):
            if found.refuses == "launch":
                raise DriverError("cuLaunchKernel failed with CUresult 200")
            found.launches.append((blocks, [argument.value for argument in arguments], stream))

    monkeypatch.setattr(reference_workload, "Kernel", Kernel)
    return found


@pytest.mark.parametrize(
    ("size", "l2", "free", "copies"),
    [
        (1 << 20, 8 << 20, 1 << 40, 16),  # enough are 32
        (8 << 20, 10 << 20, 1 << 40, 5),
        (1 << 30, 8 << 20, 1 << 40, 1),
        (8 << 20, 10 << 20, 64 << 20, 2),
        (8 << 20, 10 << 20, 1 << 20, 1),  # not even one: the arguments stay where they are
        (0, 8 << 20, 1 << 40, 1),
    ],
)
def test_as_many_copies_rotate_as_fill_the_cache_several_times(gpu, monkeypatch, size, l2, free, copies):
    gpu.l2, gpu.free = l2, free
    storages = {1: SimpleNamespace(nbytes=lambda: size)} if size else {}
    monkeypatch.setattr(placement, "_storages", lambda _: storages)
    assert placement._copies(((), {})) == copies


def test_without_tensors_on_a_gpu_one_set_of_arguments_rotates():
    arguments = ((torch.ones(3),), {"n": 3})
    with placed_in_rotation(arguments) as copies:
        assert copies == [arguments]


# -- reference workloads ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "name"), [("TFLOPS", "ptx mma v1, 4096 steps"), ("GB/s", "ptx copy v1, 3 MiB")]
)
def test_a_reference_workload_goes_round_its_places(gpu, bound, name):
    workload = reference_workload.REFERENCE_WORKLOADS[bound]()
    assert workload is not None
    assert workload.name == name
    tried = len(gpu.launches)
    for _ in range(2 * reference_workload.PLACES):
        workload.launch()
    launches = gpu.launches[tried:]
    addresses = [arguments[0] for _, arguments, _ in launches]
    assert len(set(addresses)) == reference_workload.PLACES
    assert addresses[: reference_workload.PLACES] == addresses[reference_workload.PLACES :]
    assert {stream for _, _, stream in launches} == {77}
    assert {blocks for blocks, _, _ in launches} == {3 if bound == "TFLOPS" else 24}
    assert {arguments[-1] for _, arguments, _ in launches} == {4096 if bound == "TFLOPS" else (3 << 20) // 16}


@pytest.mark.parametrize("bound", ["TFLOPS", "GB/s"])
@pytest.mark.parametrize("refuses", ["load", "launch", "memory"])
def test_a_gpu_that_cannot_run_it_has_no_reference_workload(gpu, bound, refuses):
    gpu.refuses = refuses
    if refuses == "memory":
        gpu.free = 1000
    assert reference_workload.REFERENCE_WORKLOADS[bound]() is None


def test_a_copy_is_no_larger_than_the_cache_asks_for(gpu):
    gpu.l2 = 1 << 20
    workload = reference_workload.copy()
    assert workload is not None
    assert workload.name.endswith("copy v1, 2 MiB")


def test_without_a_driver_the_error_says_so(monkeypatch):
    def missing():
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(reference_kernels, "_driver", missing)
    with pytest.raises(DriverError, match="cuModuleLoadData: libcuda"):
        reference_kernels.Kernel(reference_kernels.COPY, "copy_words")


@pytest.fixture
def driver(monkeypatch):
    """A driver that remembers its calls, and fails with `code`."""
    driver = SimpleNamespace(calls=[], code=0)

    def call(name, *arguments):
        driver.calls.append((name, arguments))
        return driver.code

    for name in ("cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel"):
        setattr(driver, name, functools.partial(call, name))
    monkeypatch.setattr(reference_kernels, "_driver", lambda: driver)
    return driver


def test_a_kernel_is_launched_through_the_driver(driver):
    kernel = reference_kernels.Kernel(reference_kernels.COPY, "copy_words")
    kernel.launch(24, [ctypes.c_uint64(1 << 40), ctypes.c_uint32(7)], 0)
    assert [name for name, _ in driver.calls] == ["cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel"]
    _, *sizes, stream, pointers, extra = driver.calls[-1][1]
    assert [size.value for size in sizes] == [24, 1, 1, reference_kernels.THREADS, 1, 1, 0]
    assert (stream.value, extra) == (None, None)
    assert ctypes.c_uint64.from_address(pointers[0]).value == 1 << 40
    assert ctypes.c_uint32.from_address(pointers[1]).value == 7


def test_a_call_that_fails_says_which(driver):
    driver.code = 209
    with pytest.raises(DriverError, match="cuModuleLoadData failed with CUresult 209"):
        reference_kernels.Kernel(reference_kernels.COPY, "copy_words")


@pytest.mark.parametrize("source", [reference_kernels.COPY, reference_kernels.mma_ptx()], ids=["copy", "mma"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_121"])
def test_the_ptx_is_accepted_by_the_assembler(tmp_path, source, arch):
    places = [Path(folder) / "nvidia/cu13/bin/ptxas" for folder in sys.path]
    ptxas = shutil.which("ptxas") or next((str(place) for place in places if place.is_file()), None)
    if ptxas is None:
        pytest.skip("no ptxas here")
    (tmp_path / "kernel.ptx").write_text(source, encoding="ascii")
    command = [ptxas, "-arch", arch, tmp_path / "kernel.ptx", "-o", tmp_path / "kernel.cubin"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
