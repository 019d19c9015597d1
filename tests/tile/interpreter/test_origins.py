"""Who made a launcher's outputs: its cuTile launches, or torch. No honest launcher may be accused."""

from __future__ import annotations

import contextlib

import cuda.tile as ct
import pytest
import torch

from pytest_cutile.interpreter import KernelFault, interpret
from tests.tile.interpreter.kernels_origins import (
    add_atomically_kernel,
    add_low_rank_kernel,
    add_one_kernel,
    keep_kernel,
    nothing_kernel,
    out_of_bounds_kernel,
    relu_kernel,
    scale_kernel,
    times_one_kernel,
)

ROWS, COLUMNS = 16, 128


def launch(kernel, *args, blocks=ROWS):
    ct.launch(torch.cuda.current_stream(), (blocks,), kernel, args)


def add_one(x):
    y = torch.empty_like(x)
    launch(add_one_kernel, x, y, COLUMNS)
    return y


def kept(y, blocks=ROWS):
    launch(keep_kernel, y, COLUMNS, blocks=blocks)
    return y


def contribution_of(launcher, *make):
    """Return what launches contribute to the outputs of a launcher, given functions that make its inputs."""
    torch.manual_seed(0)
    with interpret("sm_90") as run:
        args = [one() for one in make] or [torch.randn(ROWS, COLUMNS, device="cuda")]
        with run.following(args) as origins:
            outputs = launcher(*args)
        return origins.contribution(outputs)


def overwritten_by(write):
    def launcher(x):
        y = add_one(x)
        write(y, x)
        return y

    return launcher


def fallback(x):
    y = torch.empty_like(x)
    with contextlib.suppress(KernelFault):
        launch(out_of_bounds_kernel, x, y, COLUMNS)
        return y
    return torch.softmax(x, 1)


def beside(x, after=lambda y: y):
    add_one(x)
    return after(torch.softmax(x, 1))


def times_one(x):
    y = x.softmax(1)
    launch(times_one_kernel, y, COLUMNS)
    return y


def empty_kernel(x):
    y = x.softmax(1)
    launch(nothing_kernel, y)
    return y


def set_item(y, x):
    y[...] = x.softmax(1)


PRETEXTS = {
    "one row of torch's result is stored onto itself": lambda x: kept(x.softmax(1), blocks=1),
    "all of torch's result is stored onto itself": lambda x: kept(x.softmax(1)),
    "all of it is multiplied by one": times_one,
    "the kernel is empty": empty_kernel,
    "it writes memory that nobody reads": beside,
    "and the result is converted": lambda x: beside(x, torch.Tensor.half),
    "and the result is copied": lambda x: beside(x, torch.clone),
    "what is touched is converted": lambda x: kept(x.softmax(1), blocks=1).to(torch.float16),
    "torch overwrites what the kernel wrote": overwritten_by(lambda y, x: y.copy_(x.softmax(1))),
    "with []": overwritten_by(set_item),
    "with out=": overwritten_by(lambda y, x: torch.softmax(x, 1, out=y)),
    "by pieces": overwritten_by(lambda y, x: [y[i].copy_(x[i].softmax(0)) for i in range(ROWS)]),
    "the kernel fails, and nobody hears of it": fallback,
}


@pytest.mark.parametrize("launcher", PRETEXTS.values(), ids=PRETEXTS.keys())
def test_a_launch_that_contributes_nothing_is_known(launcher):
    contribution = contribution_of(launcher)
    assert contribution.is_nothing
    assert contribution.from_launches == 0
    assert contribution.by_torch == contribution.elements == ROWS * COLUMNS
    assert contribution.functions == ("softmax",)


def test_a_few_elements_of_torchs_result_are_next_to_nothing():
    def one_row(x):
        y = x.softmax(1)
        launch(add_one_kernel, x, y, COLUMNS, blocks=1)
        return y

    few = contribution_of(one_row, lambda: torch.randn(2000, COLUMNS, device="cuda"))
    assert (few.from_launches, few.is_nothing) == (COLUMNS, True)
    more = contribution_of(one_row, lambda: torch.randn(500, COLUMNS, device="cuda"))
    assert (more.from_launches, more.is_nothing) == (COLUMNS, False)


def in_place(kernel, *others):
    def launcher(x):
        launch(kernel, x, *(other(x) for other in others), COLUMNS)
        return x

    return launcher


def after_torch(kernel, *others, torch_part=lambda x: x @ x.T @ x):
    def launcher(x):
        y = torch_part(x)
        launch(kernel, y, *(other(y) for other in others), COLUMNS)
        return y

    return launcher


def split(x):
    parts = torch.empty(2, *x.shape, device=x.device)
    for part in parts:
        launch(add_one_kernel, x, part, COLUMNS)
    return parts.sum(0)


def summed(x):
    sums = torch.zeros(COLUMNS, device=x.device)
    launch(add_atomically_kernel, x, sums, COLUMNS)
    return sums / len(x)


def scaled_by_host(x):
    return x * (1 / add_one(x).amax().item())


def branch_of_host(x):
    return x.softmax(1) if add_one(x).amax() > 0 else x.exp()


def cache_of(x):
    """Append a row to what is kept, and let torch read all of that."""
    cache = torch.zeros(4096, COLUMNS, device=x.device)
    launch(add_one_kernel, x, cache[17:], COLUMNS, blocks=1)
    return cache.sum(0)


def set_some(x):
    y = x.softmax(1)
    y[:4] = add_one(x)[:4]
    return y


class AddOne(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return add_one(x)

    @staticmethod
    def backward(_, grad):
        return grad * 1  # by torch


def with_gradient(x):
    x = x.requires_grad_()
    y = AddOne.apply(x)
    return y.detach(), torch.autograd.grad(y.exp(), x, torch.ones_like(y))[0]


HONEST = {
    "all of it": add_one,
    "converted": lambda x: add_one(x).half(),
    "in another shape": lambda x: add_one(x).reshape(-1, 2).t().contiguous(),
    "of torch's preparation": lambda x: add_one(x.softmax(1)),
    "partial sums, added by torch": split,
    "atomically, divided by torch": summed,
    "indices by topk": lambda x: add_one(x).topk(4).indices,
    "the largest one alone": lambda x: add_one(x).amax(),
    "a residual": lambda x: x @ x.T @ x + add_one(x),
    "where": lambda x: torch.where(x > 0, x.exp(), add_one(x)),
    "set by []": set_some,
    "concatenated": lambda x: torch.cat([x.exp(), add_one(x)]),
    "beside an output of torch's": lambda x: (add_one(x)[:1, :1], x.logsumexp(1), x.exp()),
    "a scale that the host reads": scaled_by_host,
    "a branch of the host": branch_of_host,
    "in place": in_place(add_low_rank_kernel, torch.ones_like),
    "in place, and nothing changes": in_place(keep_kernel),
    "in place after torch": after_torch(relu_kernel),
    "in place after torch, by another array of zeros": after_torch(add_low_rank_kernel, torch.zeros_like),
    "in place after torch, by a factor of one": after_torch(scale_kernel, lambda _: 1.0),
    "in place on a copy, and nothing changes": after_torch(keep_kernel, torch_part=torch.clone),
    "one row of what is kept": cache_of,
    "with a gradient by torch": with_gradient,
}


@pytest.mark.parametrize("launcher", HONEST.values(), ids=HONEST.keys())
def test_an_honest_launcher_is_not_accused(launcher):
    contribution = contribution_of(launcher)
    assert contribution is None or not contribution.is_nothing


@pytest.mark.parametrize(
    ("launcher", "share"),
    [(add_one, 1.0), (split, 1.0), (set_some, 4 / ROWS), (HONEST["concatenated"], 0.5), (cache_of, 1.0)],
)
def test_the_share_of_the_launches(launcher, share):
    assert contribution_of(launcher).share == share


@pytest.mark.parametrize(
    "launcher", [lambda x: x.softmax(1), scaled_by_host, branch_of_host], ids=["nothing", "item", "bool"]
)
def test_what_cannot_be_followed_is_not_known(launcher):
    assert contribution_of(launcher) is None


def test_an_output_without_elements_accuses_nobody():
    def launcher(x):
        return kept(x.softmax(1), blocks=0)

    contribution = contribution_of(launcher, lambda: torch.randn(0, COLUMNS, device="cuda"))
    assert not contribution.is_nothing
    assert contribution.share is None


def test_what_an_argument_was_before_does_not_count():
    """An argument that another kernel has made says nothing of the launcher that gets it."""
    with interpret("sm_90") as run:
        x = torch.randn(ROWS, COLUMNS, device="cuda")
        with run.following([x]):
            y = add_one(x)
        with run.following([y]) as origins:
            z = beside(y)
        contribution = origins.contribution(z)
        assert contribution is not None
        assert contribution.is_nothing


def test_an_argument_that_a_launch_changes_is_an_output():
    """As of an optimizer's step, which returns a norm that torch has computed."""

    def step(x):
        norm = x.norm()
        launch(add_low_rank_kernel, x, torch.ones_like(x), COLUMNS)
        return norm

    assert not contribution_of(step).is_nothing
