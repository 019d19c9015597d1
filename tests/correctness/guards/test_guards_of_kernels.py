"""Guards around real kernels: on a GPU, and interpreted, where the interpreter sees such faults by itself."""

from contextlib import nullcontext

import pytest
import torch

import cuda.tile  # noqa: F401  isort: skip

from pytest_cutile.correctness.check import KernelMismatch, run_check
from pytest_cutile.correctness.guards.launching import ON_GPU, Interpreted
from pytest_cutile.correctness.guards.memory import Allocations, Inputs
from pytest_cutile.interpreter import KernelFault, interpret
from pytest_cutile.tile.tensors.poison import poisoned_allocations
from pytest_cutile.words.spec import CheckOptions
from tests.correctness.guards import guarded_kernels

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(params=["interpreted", pytest.param("gpu", marks=needs_gpu)])
def check(request):
    """Check a launcher that copies; with nothing else that would find its fault."""
    launching = ON_GPU if request.param == "gpu" else Interpreted()
    with interpret("sm_90") if launching.is_interpreted else nullcontext():
        x = torch.randn(300, device="cuda")
        yield lambda fn: run_check(
            fn, (x,), {}, reference=lambda x: x, launching=launching, options=CheckOptions(vary_layout=True)
        )


def test_a_right_kernel(check):
    assert check(guarded_kernels.copied).layouts == {"an offset of one element": "right"}


def test_writing_past_the_end(check):
    with pytest.raises((KernelMismatch, KernelFault)) as caught:
        check(guarded_kernels.copied_too_far)
    said = str(caught.value)
    interpreted = "stores element 300 of y, which is [300], counted from its start" in said
    assert interpreted or said.endswith("wrote 3 elements past the end of output (first at offset +0)")


def test_reading_past_the_end(check):
    with pytest.raises((KernelMismatch, KernelFault)) as caught:
        check(guarded_kernels.read_too_far)
    said = str(caught.value)
    interpreted = "loads element 300 of x, which is [300], counted from its start" in said
    assert interpreted or "what lies around input x reached the outputs" in said


@needs_gpu
def test_on_a_gpu_guarded_tensors_are_aligned_as_torch_aligns_its_own():
    x = torch.randn(300, 7, device="cuda")
    given = Inputs({"x": x, "y": x[:, 1]}).given.values()
    assert [each.data_ptr() % 512 for each in given] == [0, 4]
    assert [each.stride() for each in given] == [(7, 1), (7,)]
    with poisoned_allocations(Allocations().enclose):
        out = torch.empty_like(x)
    assert out.data_ptr() % 512 == 0


@needs_gpu
def test_on_a_gpu_guards_take_little_memory():
    x = torch.zeros(1 << 26, dtype=torch.float32, device="cuda")  # 256 MiB
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    inputs = Inputs({"x": x})
    with poisoned_allocations(Allocations().enclose):
        out = torch.empty_like(x)
    assert torch.cuda.memory_allocated() - before <= 2 * x.nbytes + (5 << 20)
    list(inputs.violations())
    assert torch.cuda.max_memory_allocated() - before <= 2 * x.nbytes + (8 << 20)
    del out
