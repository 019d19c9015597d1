import functools
import itertools
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch

from pytest_cutile.speed.measure import reference_workload
from pytest_cutile.speed.measure.placement import placed_anew
from pytest_cutile.tensors.trees import map_tensors

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


@pytest.fixture
def gpu(monkeypatch):
    """Let torch make tensors on the CPU where they are asked for on a GPU."""
    for name in ("randn", "empty"):
        make = getattr(torch, name)

        def on_cpu(*shape, make=make, device=None, **options):
            assert device == "cuda"
            return make(*shape, **options)

        monkeypatch.setattr(torch, name, on_cpu)
    monkeypatch.setattr(reference_workload, "PRODUCT", (4, 3, 5))
    monkeypatch.setattr(reference_workload, "COPY_BYTES", 3 << 20)
    found = SimpleNamespace(free=1 << 40, l2=1 << 40)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (found.free, found.free))
    properties = lambda _: SimpleNamespace(L2_cache_size=found.l2)  # noqa: E731
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    return found


def test_a_reference_workload_goes_round_its_places():
    made = itertools.count()
    launch = reference_workload._cycle(lambda: functools.partial(int, next(made)))
    assert [launch() for _ in range(9)] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert next(made) == reference_workload.PLACES


@pytest.mark.parametrize(
    ("bound", "name"),
    [
        ("TFLOPS", f"torch {torch.__version__} mm bf16 4x3x5"),
        ("GB/s", f"torch {torch.__version__} copy of 3 MiB"),
    ],
)
def test_a_reference_workload_names_what_it_is(gpu, bound, name):
    workload = reference_workload.REFERENCE_WORKLOADS[bound]()
    assert workload is not None
    assert workload.name == name
    results = [workload.launch() for _ in range(2 * reference_workload.PLACES)]
    places = [result.data_ptr() for result in results if isinstance(result, torch.Tensor)]
    assert len(set(places)) == reference_workload.PLACES
    assert places[: reference_workload.PLACES] == places[reference_workload.PLACES :]
    del gpu


@pytest.mark.parametrize("bound", ["TFLOPS", "GB/s"])
def test_a_gpu_that_is_short_of_memory_has_no_reference_workload(gpu, bound):
    gpu.free = 1000
    assert reference_workload.REFERENCE_WORKLOADS[bound]() is None


def test_a_copy_is_no_larger_than_the_cache_asks_for(gpu):
    gpu.l2 = 1 << 20
    workload = reference_workload.copy()
    assert workload is not None
    assert workload.name.endswith("copy of 2 MiB")
