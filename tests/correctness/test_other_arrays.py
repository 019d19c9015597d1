"""Launchers that take and return arrays of another library: guarded and compared as tensors are."""

from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from pytest_cutile.correctness.check import KernelMismatch, UncheckableOutput, check_kernel
from pytest_cutile.tile.compiler.trace.launches import pretend_gpu
from pytest_cutile.tile.tensors import other_arrays


class Array:
    """An array of a library of its own, on NumPy's memory."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.data.__dlpack_device__()

    @classmethod
    def from_dlpack(cls, tensor: torch.Tensor) -> "Array":
        return cls(np.from_dlpack(tensor))


class NoWayBack:
    def __init__(self, data):
        self.data = data

    def __dlpack__(self, **options):
        return self.data.__dlpack__(**options)


@pytest.fixture(autouse=True)
def in_gpu_memory(monkeypatch):
    """Arrays are taken for those of a GPU."""
    monkeypatch.setattr(other_arrays, "_is_on_host", lambda _: False)


@pytest.fixture
def x():
    return Array(np.random.default_rng(0).standard_normal((7, 33)).astype(np.float32))


def double(x):
    assert type(x) is Array
    return Array(x.data * 2)


def double_into(x, out):
    assert type(out) is Array
    out.data[...] = x.data * 2
    return out


def by_two(x, *_, **__):
    assert x.dtype == torch.float64
    return x * 2


def test_a_launcher_gets_and_returns_its_own_kind(x):
    report = check_kernel(double, x, reference=by_two)
    assert report.elements == 7 * 33
    assert report.deterministic
    assert report.unguarded == ()
    assert report.layouts == {"padded rows": "right", "an offset of one element": "right"}


def test_arrays_in_lists_and_by_name_are_converted(x):
    def total(parts, *, bias):
        return {"sum": Array(parts[0].data + parts[1].data + bias.data)}

    def exact(parts, *, bias):
        return {"sum": parts[0] + parts[1] + bias}

    check_kernel(total, [x, x], bias=x, reference=exact)


def test_a_wrong_result_is_found(x):
    def double_and_more(x):
        result = x.data * 2
        result[3, 4] += 1
        return Array(result)

    with pytest.raises(KernelMismatch, match="double_and_more differs from its reference"):
        check_kernel(double_and_more, x, reference=by_two)


def test_a_read_out_of_bounds_is_found(x):
    def reads_the_neighbour(x):
        wider = np.lib.stride_tricks.as_strided(x.data, (7, 34), x.data.strides)
        return Array(x.data * 2 + 0 * wider[-1, -1])

    with pytest.raises(KernelMismatch, match="out of bounds"):
        check_kernel(reads_the_neighbour, x, reference=by_two)


def test_a_write_past_the_end_is_found(x):
    def writes_the_neighbour(x):
        wider = np.lib.stride_tricks.as_strided(x.data, (7, 34), x.data.strides)
        wider[-1, -1] = 3
        return double(x)

    with pytest.raises(KernelMismatch, match="wrote 1 element past the end of input x"):
        check_kernel(writes_the_neighbour, x, reference=by_two)


def test_a_changed_input_is_found(x):
    def spoil(x):
        result = double(x)
        x.data[0] = 0
        return result

    with pytest.raises(KernelMismatch, match="changed its input x"):
        check_kernel(spoil, x, reference=by_two)


def test_an_array_that_is_written_is_known_again_and_has_the_result(x):
    out = Array(np.zeros((7, 33), np.float32))
    check_kernel(double_into, x, out, reference=by_two, writes=["out"])
    assert np.array_equal(out.data, x.data * 2)
    with pytest.raises(KernelMismatch, match="changed its input out"):
        check_kernel(double_into, x, Array(np.zeros((7, 33), np.float32)), reference=by_two)


def test_a_view_of_an_argument_is_known_again(x):
    with pytest.raises(UncheckableOutput, match="returned its input x as it was"):
        check_kernel(lambda x: Array(x.data[2:]), x, reference=by_two)


def test_what_is_returned_for_nothing_is_an_argument(x):
    out = Array(np.zeros((7, 33), np.float32))
    check_kernel(
        lambda x, out: double_into(x, out) and None, x, out, reference=lambda x, _: x * 2, writes=["out"]
    )


def test_a_launcher_of_tensors_may_return_arrays():
    x = torch.randn(7, 33)
    assert check_kernel(lambda x: Array(x.numpy() * 2), x, reference=by_two).elements == 7 * 33


def test_numpys_arrays_beside_tensors_are_the_hosts():
    def scaled(x, factors):
        assert type(factors) is np.ndarray
        return x * float(factors[1])

    with pretend_gpu("sm_90", "cpu"):
        x = torch.randn(7, 33, device="cuda")
        check_kernel(scaled, x, np.array([1.0, 2.0]), reference=scaled)


def test_an_array_that_no_tensor_becomes_is_told(x):
    said = (
        "a tests.NoWayBack cannot be made of a torch tensor, as a check has to: neither its class nor its "
        "library has a function from_dlpack"
    )
    with pytest.raises(TypeError, match=said):
        check_kernel(double, NoWayBack(x.data), reference=by_two)


def test_an_array_that_torch_cannot_see_is_told():
    with pytest.raises(TypeError, match=r"torch cannot see a tests\.Array as a tensor: "):
        check_kernel(double, Array(np.array(["a"])), reference=by_two)


def test_the_cuda_array_interface_is_enough(monkeypatch, x):
    """As of Numba's device arrays, and of CuPy before DLPack."""
    asked = []

    def as_tensor(array, *, device):
        asked.append(device)
        return torch.from_numpy(array.data)

    class Older:
        __cuda_array_interface__: ClassVar[dict[str, int]] = {"version": 3}
        from_dlpack = classmethod(lambda cls, tensor: cls(np.from_dlpack(tensor)))

        def __init__(self, data):
            self.data = data

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    check_kernel(lambda x: Older(x.data * 2), Older(x.data), reference=by_two)
    assert set(asked) == {"cuda"}


def test_a_library_with_a_namespace_makes_its_arrays(x):
    array = SimpleNamespace(
        __dlpack__=None, __array_namespace__=lambda: SimpleNamespace(from_dlpack=Array.from_dlpack)
    )
    assert other_arrays.maker_of(array) == Array.from_dlpack
    assert other_arrays.maker_of(x.data) is np.from_dlpack


def test_without_a_pretended_gpu_numpys_arrays_are_no_arrays(monkeypatch):
    monkeypatch.undo()
    assert not other_arrays.is_array(np.ones(3))
    assert not other_arrays.is_array(torch.ones(3))
    assert not other_arrays.is_array(np.ndarray)
    assert not other_arrays.is_array([1.0])
    with pretend_gpu("sm_90", "cpu"):
        assert other_arrays.is_array(np.ones(3))
        assert not other_arrays.is_array(np.ones(3), beside_tensors=True)
        assert other_arrays.as_tensor(np.ones(3)).is_cuda
