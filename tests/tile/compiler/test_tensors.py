# ruff: noqa: ARG004, ARG005  # what makes a tensor is given one, whether it needs it or not

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch

from pytest_cutile.tile.compiler import pretend_gpu
from pytest_cutile.tile.compiler.trace.launches import launcher_begins

BACKINGS = pytest.mark.parametrize("backing", ["meta", "cpu"])


def on_gpu(tensor: torch.Tensor) -> bool:
    says = {tensor.is_cuda, tensor.device.type == "cuda", not tensor.is_cpu, tensor.get_device() == 0}
    assert len(says) == 1, says
    assert not tensor.is_meta
    return says.pop()


def test_sanity_of_the_helper() -> None:
    assert not on_gpu(torch.ones(3))


@BACKINGS
@pytest.mark.parametrize(
    "make",
    [
        lambda c: torch.empty(3, device="cuda"),
        lambda c: torch.empty(3, device="cuda:0"),
        lambda c: torch.empty(3, device=0),
        lambda c: torch.zeros((3, 4), device=torch.device("cuda"), dtype=torch.bfloat16),
        lambda c: torch.tensor([1, 2, 3], device="cuda"),
        lambda c: torch.as_tensor(np.ones(3), device="cuda"),
        lambda c: torch.asarray([1.0], device="cuda"),
        lambda c: torch.arange(3, device="cuda"),
        lambda c: torch.randn(3, device="cuda", generator=torch.Generator(device="cuda")),
        lambda c: torch.randn(3, device="cuda", generator=torch.Generator("cuda").manual_seed(1)),
        lambda c: torch.testing.make_tensor((3,), dtype=torch.float16, device="cuda"),
        lambda c: torch.empty_strided((3, 4), (1, 3), device="cuda"),
        lambda c: torch.empty_like(c, device="cuda"),
        lambda c: torch.full((2,), 1.5, device="cuda", pin_memory=False),
        lambda c: c.cuda(),
        lambda c: c.cuda(0),
        lambda c: c.cuda(non_blocking=True),
        lambda c: c.pin_memory().cuda(device="cuda", non_blocking=True),
        lambda c: c.to("cuda"),
        lambda c: c.to(device="cuda"),
        lambda c: c.to(0),
        lambda c: c.to(torch.device("cuda", 0), torch.float16),
        lambda c: c.to("cuda", torch.float16, non_blocking=True, copy=True),
        lambda c: c.to(dtype=torch.float16, device="cuda"),
        lambda c: c.to(torch.ones(2, device="cuda")),
        lambda c: c.to(tensor=torch.ones(2, device="cuda")),
        lambda c: c.cuda().to(torch.float64),
        lambda c: c.cuda().half().contiguous().view(-1)[1:],
        lambda c: c.cuda() + 1,
        lambda c: 2 * c.cuda() + c.cuda(),
        lambda c: c.cuda().new_empty(3),
        lambda c: torch.zeros_like(c.cuda()),
        lambda c: torch.cat([c.cuda(), c.cuda()]),
        lambda c: c.cuda().chunk(2)[1],
        lambda c: torch.empty(3, device=c.cuda().device),
        lambda c: c.cuda().copy_(c),
        lambda c: torch.nn.Parameter(c.cuda()),
        lambda c: torch.nn.Linear(3, 3, device="cuda").weight,
        lambda c: torch.nn.Linear(3, 3).cuda().weight,
        lambda c: torch.nn.functional.pad(c.cuda(), (0, 1)),
        lambda c: torch.empty(3, dtype=torch.float32, device="cuda").to(torch.float8_e4m3fn),
    ],
)
def test_is_on_the_gpu(backing, make) -> None:
    cpu = torch.ones(4)
    with pretend_gpu("sm_90", backing):
        made = make(cpu)
        assert on_gpu(made)
        assert made.device == torch.device("cuda:0")
        assert not on_gpu(cpu)
        assert on_gpu(made.to(made.device))


@BACKINGS
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3),
        lambda: torch.ones(3) + 1,
        lambda: torch.ones(3, device="cpu"),
        lambda: torch.ones(3).to("cpu"),
        lambda: torch.ones(3).to(torch.float16),
        lambda: torch.empty(3, pin_memory=True),
        lambda: torch.empty_like(torch.ones(3, device="cuda"), device="cpu"),
    ],
)
def test_is_on_the_cpu(backing, make) -> None:
    with pretend_gpu("sm_90", backing):
        assert not on_gpu(make())


def test_what_comes_back_to_the_cpu_is_there() -> None:
    with pretend_gpu("sm_90", "cpu"):
        gpu = torch.arange(3, device="cuda")
        for back in (gpu.cpu(), gpu.to("cpu"), gpu.to(torch.ones(1)), torch.ones(3).copy_(gpu)):
            assert not on_gpu(back)
            assert back.tolist() == [0, 1, 2]
        assert on_gpu(gpu)
        assert on_gpu(gpu.add_(1))


@BACKINGS
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_default_devices(backing, device) -> None:
    with pretend_gpu("sm_90", backing):
        with torch.device(device):
            assert on_gpu(torch.ones(3))
            assert on_gpu(torch.empty(3))
        assert not on_gpu(torch.ones(3))
        torch.set_default_device(device)
        with contextlib.ExitStack() as stack:
            stack.callback(torch.set_default_device, None)
            assert on_gpu(torch.randn(3))
            assert torch.get_default_device() == torch.device("cuda:0")
            assert not on_gpu(torch.randn(3, device="cpu"))


@BACKINGS
def test_addresses_tell_alignment_and_identity(backing) -> None:
    with pretend_gpu("sm_90", backing):
        x, y = (torch.empty(64, dtype=torch.float16, device="cuda") for _ in range(2))
        assert x.data_ptr() % 256 == 0
        assert x[3:].data_ptr() == x.data_ptr() + 6
        assert x.data_ptr() != y.data_ptr()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        assert x.is_cuda
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        assert grad.is_cuda
        return torch.empty(grad.shape, device="cuda").copy_(grad) * 2


@BACKINGS
@pytest.mark.parametrize(
    ("operate", "moved"),
    [
        (lambda x: x[1:].T.reshape(-1, 1, 1)[0].expand(4, -1, 2).detach(), 0),
        (lambda x: (x.contiguous(), torch.empty_like(x), x.new_empty(5), x.shape, x.data_ptr()), 0),
        (lambda x: x.T.contiguous(), 2 * 24),
        (lambda x: x.half(), 24 + 12),
        (lambda x: x.zero_(), 2 * 24),
        (lambda x: torch.zeros(10, device="cuda"), 40),
        (lambda x: x + x, 3 * 24),
    ],
    ids=["views", "nothing", "copied", "converted", "in place", "made", "added"],
)
def test_what_torch_operations_move_is_counted(backing, operate, moved) -> None:
    with pretend_gpu("sm_90", backing) as recorder:
        x = torch.randn(2, 3, device="cuda")
        assert recorder.operations.moved_bytes == 24
        launcher_begins()
        operate(x)
    assert recorder.operations.moved_bytes == moved


@BACKINGS
def test_a_users_backward_runs_on_the_gpu_too(backing) -> None:
    with pretend_gpu("sm_90", backing):
        x = torch.ones(3, device="cuda", requires_grad=True)
        doubled = Doubled.apply(x)
        assert on_gpu(doubled)
        doubled.sum().backward()
        assert x.grad is not None
        assert on_gpu(x.grad)


@BACKINGS
def test_gradients_can_be_taken(backing) -> None:
    with pretend_gpu("sm_90", backing):
        x = torch.ones(3, device="cuda", requires_grad=True)
        (x * 2).sum().backward()
        assert x.grad is not None
        assert x.grad.shape == (3,)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x.cumsum(1), lambda x: x.cumsum(0)),
        (lambda x: torch.zeros(16, device="cuda"), lambda x: torch.zeros(1 << 20, device="cuda")),
        (lambda x: x.repeat(1, 1), lambda x: x.repeat(64, 64)),
        (lambda x: x.contiguous(), lambda x: x.T.contiguous()),
        (lambda x: x.sum(), lambda x: x.sum(dtype=torch.float64)),
        (lambda x: x * 2, lambda x: x * 3.5),
    ],
    ids=["axis", "size", "repeats", "strides", "dtype", "number"],
)
def test_operations_that_may_take_another_time_have_another_text(one, other):
    texts = []
    for operate in (one, one, other):
        with pretend_gpu("sm_90") as recorder:
            operate(torch.randn(4, 4, device="cuda"))
        texts.append(recorder.operations.texts)
    assert texts[0] == texts[1] != texts[2]
