"""What one launch leaves for the next: kernels are exported once for one signature, and only then."""

from __future__ import annotations

import traceback

import cuda.tile as ct
import pytest
import torch

from pytest_cutile.interpreter import KernelFault, NotInterpreted, Options, interpret
from pytest_cutile.tile.interpreter.faults import InterpreterFailed
from pytest_cutile.tile.interpreter.machine import OPS


@ct.kernel
def scaled_kernel(x, factor: ct.Constant):
    ct.store(x, (0,), ct.load(x, (0,), (16,)) / factor)


def test_constants_that_are_equal_and_not_the_same_make_kernels_of_their_own() -> None:
    with interpret("sm_90"):
        for factor, infinity in ((2, False), (2.0, False), (2, False), (0.0, True), (-0.0, True)):
            x = torch.ones(16, device="cuda")
            ct.launch(torch.cuda.current_stream(), (1,), scaled_kernel, (x, factor))
            expected = (-1 if str(factor).startswith("-") else 1) * (float("inf") if infinity else 0.5)
            assert x[0].item() == expected, factor


@pytest.mark.parametrize("grid", [(2**24,), (1, 65536), (1, 1, 65536)])
def test_grids_that_no_gpu_takes_are_refused(grid) -> None:
    with interpret("sm_90"), pytest.raises(ValueError, match=r"^Grid sizes must be within 0 and \("):
        ct.launch(0, grid, scaled_kernel, (torch.ones(16, device="cuda"), 2))


def launch_scaled() -> None:
    ct.launch(0, (1,), scaled_kernel, (torch.ones(16), 2))


def test_what_goes_wrong_in_the_interpreter_is_not_the_kernels_fault(monkeypatch) -> None:
    error = RuntimeError("tensors are hard\nvery hard")

    def failing(*_: object) -> None:
        raise error

    monkeypatch.setitem(OPS, "divf", failing)
    with interpret("sm_90"), pytest.raises(InterpreterFailed) as caught:
        launch_scaled()
    assert isinstance(caught.value, NotInterpreted)
    assert caught.value.__cause__ is error
    first, place, *_ = str(caught.value).splitlines()
    assert first == (
        "scaled_kernel: the interpreter failed on divf: RuntimeError: tensors are hard; "
        "this is a fault of pytest-cutile, not of the kernel"
    )
    assert place.startswith(f"  {__file__}:")


def test_a_traceback_of_a_fault_shows_where_it_was_launched() -> None:
    with interpret("sm_90"), pytest.raises(KernelFault) as caught:
        ct.launch(0, (2,), scaled_kernel, (torch.ones(16), 2))
    frames = [entry.name for entry in traceback.extract_tb(caught.value.__traceback__)]
    assert "run_block" not in frames
    assert len(frames) <= 3


def test_one_block_alone_has_to_be_in_the_grid() -> None:
    options = Options(only_block=(9, 0, 0))
    expected = r"^block \(9, 0, 0\) is not in the grid \(1, 1, 1\) of scaled_kernel$"
    with interpret("sm_90", options), pytest.raises(ValueError, match=expected):
        launch_scaled()


def test_what_the_host_notices_has_no_kernel_to_name() -> None:
    with (
        interpret("sm_90") as interpreter,
        pytest.raises(KernelFault, match=r"^nothing has written 4 of 4"),
    ):
        interpreter.check_written([torch.empty(4, device="cuda")], ["out"])
