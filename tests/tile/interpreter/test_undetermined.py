"""What nothing determines, padding and memory that nothing has written, may not decide a result."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import cuda.tile as ct
import pytest
import torch

from pytest_cutile.interpreter import KernelFault, Options, interpret
from pytest_cutile.tile.interpreter.ops import access
from pytest_cutile.tile.tensors.make_tensor import make_tensor
from tests.tile.interpreter import kernels_undetermined as kernels

N = 100


@pytest.fixture(params=["rectangles", "element by element"], autouse=True)
def _path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "element by element":
        monkeypatch.setattr(access.IndexedTiles, "tiles", lambda *_: None)


def rows() -> torch.Tensor:
    return -1 - torch.arange(2.0 * N).reshape(2, N) % 7


def launch(function: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(2)
    ct.launch(0, (2,), kernels.kernel_of(function), (x, y, N))
    return y


def name_of(function: Callable[..., Any]) -> str:
    return function.__name__


@pytest.mark.parametrize("function", kernels.USES, ids=name_of)
def test_padding_that_nothing_determines_reaches_no_result(function: Callable[..., Any]) -> None:
    with (
        interpret("sm_90"),
        pytest.raises(KernelFault, match="what depends on undetermined padding") as caught,
    ):
        launch(function, rows())
    fault = caught.value
    assert (fault.kind, fault.block) == ("undetermined", (0, 0, 0))
    assert fault.location is not None
    assert fault.location.file == kernels.__file__
    assert ": the load at " in str(fault)


@pytest.mark.parametrize("function", kernels.USES, ids=name_of)
def test_memory_that_nothing_has_written_reaches_no_result(function: Callable[..., Any]) -> None:
    with interpret("sm_90"):
        x = torch.empty(2, kernels.TILE)
        x[:, :N] = rows()
        with pytest.raises(
            KernelFault, match=r"what depends on x\[0, 10[01]\] of \[2, 128\], which nothing has written"
        ) as caught:
            launch(function, x)
    assert caught.value.kind == "uninitialized"


@pytest.mark.parametrize("function", kernels.MASKED, ids=name_of)
def test_a_mask_removes_what_nothing_determines(function: Callable[..., Any]) -> None:
    whole = torch.zeros(2, kernels.TILE)
    whole[:, :N] = rows()
    with interpret("sm_90"):
        expected = launch(function, whole)
        assert torch.equal(launch(function, rows()), expected)
        partial = torch.empty(2, kernels.TILE)
        partial[:, :N] = rows()
        assert torch.equal(launch(function, partial), expected)


@pytest.mark.parametrize("function", [*kernels.USES, *kernels.MASKED], ids=name_of)
def test_on_request_padding_is_zero_and_determined(function: Callable[..., Any]) -> None:
    with interpret("sm_90", Options(poison_padding=False)):
        launch(function, rows())


@pytest.mark.parametrize("kernel", kernels.INDEXED, ids=lambda kernel: kernel._pyfunc.__name__)
def test_what_nothing_determines_is_no_index_and_no_mask(kernel: Any) -> None:
    x = torch.arange(float(kernels.TILE))
    with interpret("sm_90"):
        ct.launch(0, (1,), kernel, (x, torch.arange(kernels.TILE, dtype=torch.int32) * 0, x.clone()[:1]))
        with pytest.raises(KernelFault, match="what depends on undetermined padding"):
            ct.launch(0, (1,), kernel, (x, torch.zeros(N, dtype=torch.int32), x.clone()))


SHOWN_BY_DEFAULT = {
    kernels.take_max: lambda x: x.amax(1),
    kernels.take_min: lambda x: x.amin(1),
    kernels.take_argmax: lambda x: x.argmax(1),
    kernels.count_positive: lambda x: (x >= 0).sum(1),
    kernels.count_small: lambda x: (x.abs() < 0.5).sum(1),
    kernels.max_of_integers: lambda x: x.to(torch.int32).amax(1),
}


@pytest.mark.slow
@pytest.mark.parametrize("function", SHOWN_BY_DEFAULT, ids=name_of)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
@pytest.mark.parametrize("shape", [(3, N), (2, 5, N)])
def test_the_default_inputs_show_padding_by_zero(
    function: Callable[..., Any], dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    for seed in range(5):
        x = make_tensor(shape, dtype, device="cpu", seed=seed).reshape(-1, N)
        y = torch.zeros(len(x))
        with interpret("sm_90"):
            kernel = kernels.kernel_of(function, ct.PaddingMode.ZERO)
            ct.launch(0, (len(x),), kernel, (x, y, N))
        assert not torch.equal(y, SHOWN_BY_DEFAULT[function](x).float())


def test_a_store_drops_what_is_outside_of_its_array() -> None:
    y = torch.zeros(N)
    with interpret("sm_90"):
        ct.launch(0, (1,), kernels.copy_row, (torch.ones(N), y, N))
        with pytest.raises(KernelFault, match=r"stores into y\[100\] what depends on undetermined padding"):
            ct.launch(0, (1,), kernels.copy_row, (torch.ones(N), torch.zeros(N + 1), N))
    assert torch.equal(y, torch.full((N,), 2.0))


def test_the_fault_is_at_the_line_that_is_decided() -> None:
    with interpret("sm_90"), pytest.raises(KernelFault, match="takes a branch by what") as caught:
        launch(kernels.decided, rows())
    lines, first = inspect.getsourcelines(kernels.decided)
    assert caught.value.location is not None
    assert lines[caught.value.location.line - first].strip() == "if ct.max(x) > 2.0:"
