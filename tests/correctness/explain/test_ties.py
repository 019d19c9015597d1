"""Ties of argmax and top-k."""

import re

import pytest
import torch

from pytest_cutile.correctness.check import KernelMismatch, check_kernel

X = torch.tensor([[1.0, 3.0, 3.0, 0.0], [5.0, 5.0, 2.0, 1.0], [0.0, 1.0, 2.0, 4.0]])
NEAR = X + torch.tensor([0.0, 1e-4, 0.0, 0.0])


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


def test_values_that_are_equal_where_they_are_rounded_are_named():
    kernel = lambda x: last_max(x.bfloat16())  # noqa: E731 - a name for a message
    assert "values of x that differ by at most 0.0001: ties, where they are rounded" in message(
        kernel, lambda x: x.argmax(1), NEAR
    )


@pytest.mark.parametrize("kernel", [lambda x: x.argmin(1), lambda x: x.argmax(1) + 7])
def test_other_wrong_indices_are_no_ties(kernel):
    assert "ties" not in message(kernel, lambda x: x.argmax(1), X)
