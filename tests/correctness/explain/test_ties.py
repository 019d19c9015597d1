"""Ties of argmax and top-k."""

import re

import pytest
import torch

from pytest_cutile.correctness.check import KernelMismatch, check_kernel

X = torch.tensor([[1.0, 3.0, 3.0, 0.0], [5.0, 5.0, 2.0, 1.0], [0.0, 1.0, 2.0, 4.0]])


def last_max(x: torch.Tensor) -> torch.Tensor:
    return x.shape[1] - 1 - x.flip(1).argmax(1)


def top(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, order = x.sort(dim=1, descending=True, stable=True)
    return values[:, :2], order[:, :2]


def swapped(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, order = top(x)
    return values, torch.where(values[:, :1] == values[:, 1:], order.flip(1), order)


def message(kernel, reference, x) -> str:
    with pytest.raises(KernelMismatch) as caught:
        check_kernel(kernel, x, reference=reference)
    return " ".join(re.sub(r"\s+", " ", str(caught.value)).split())


@pytest.mark.parametrize(("kernel", "reference"), [(last_max, lambda x: x.argmax(1)), (swapped, top)])
def test_indices_of_equal_values_are_named(kernel, reference):
    said = "the wrong indices point at values of x that are equal: the reference breaks ties otherwise"
    assert said in message(kernel, reference, X)


def test_values_that_are_equal_but_for_roundings_are_named():
    near = X + torch.tensor([0.0, 2.0**-22, 0.0, 0.0])
    said = "values of x that are equal but for 1.3 roundings: ties"
    assert said in message(lambda x: last_max(x.bfloat16()), lambda x: x.argmax(1), near)


@pytest.mark.parametrize(
    ("kernel", "reference"),
    [
        (lambda x: last_max(x.abs()), lambda x: x.abs().argmax(1)),
        (lambda x: x.numel() - 1 - x.flatten().flip(0).argmax(), lambda x: x.argmax()),
        (lambda x: last_max(x.int()), lambda x: x.int().argmax(1)),
    ],
    ids=["abs", "flat", "integers"],
)
def test_ties_of_what_is_computed_are_named(kernel, reference):
    x = torch.tensor([[2.0, -2.0, 1.0], [1.0, 1.0, 0.0], [-2.0, 2.0, -1.0]])
    assert "that are equal: the reference breaks ties otherwise" in message(kernel, reference, x)


def test_the_second_largest_is_no_tie():
    """Of values that are alike, and beside a large one."""
    x = 2000.0 + torch.randn(20, 200, generator=torch.Generator().manual_seed(0))
    x[0, 0] = 1e4
    assert "ties" not in message(lambda x: x.topk(2, 1).indices[:, 1], lambda x: x.argmax(1), x)


@pytest.mark.parametrize("kernel", [lambda x: x.argmin(1), lambda x: x.argmax(1) + 7])
def test_other_wrong_indices_are_no_ties(kernel):
    assert "ties" not in message(kernel, lambda x: x.argmax(1), X)
