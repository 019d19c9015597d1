"""Floats behind a step of the reference: what rounding explains passes, and nothing else."""

import pytest
import torch

from pytest_cutile.check.run import check_kernel
from tests.check.checking import failure, tensor


def scale_of(x):
    return x.abs().amax(1, keepdim=True) / 127


def quantise(x):
    scale = scale_of(x)
    return (x / scale).round() * scale


def quantising(x, step=torch.round):
    """Compute in float32 as a kernel may: by the reciprocal of the scale."""
    scale = scale_of(x.float())
    return (step(x.float() * (1 / scale)) * scale).to(x.dtype)


@pytest.mark.parametrize(("dtype", "seed"), [("float16", 6), ("bfloat16", 3), ("bfloat16", 5)])
def test_values_that_are_quantised_and_scaled_again_may_fall_to_either_side(dtype, seed):
    x = tensor(64, 1000, dtype=dtype, seed=seed)
    report = check_kernel(quantising, x, reference=quantise, vary_layout=False)
    assert "of them as rounding makes them" in report.bound


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: quantising(x, torch.floor),
        lambda x: quantising(x).where(torch.arange(1000) != 500, 0),
        lambda x: quantising(x) * 1.01,
        lambda x: quantising(x) + scale_of(x.float()) * (torch.rand(x.shape) < 0.001),
    ],
    ids=["floor", "column", "scale", "steps"],
)
def test_what_rounding_does_not_explain_fails(wrong):
    x = tensor(64, 1000, dtype="bfloat16", seed=5)
    failure(lambda x: wrong(x).to(x.dtype), x, reference=quantise, vary_layout=False)


def test_a_conversion_to_eight_bits_is_a_step():
    x = tensor(64, 1000, dtype="float32")
    eight = torch.float8_e4m3fn

    def kernel(x):
        return (x * (1 / 3)).to(eight).float() * 3

    x[:, 1] = 3 * 1.0625  # a tie
    report = check_kernel(kernel, x, reference=lambda x: (x / 3).to(eight).to(x.dtype) * 3)
    assert report.elements == 64000


def test_a_function_that_jumps():
    x = tensor(64, 1000, dtype="float32")
    check_kernel(lambda x: (x * 10).remainder(1.0), x, reference=lambda x: (x / 0.1).remainder(1.0))


def slightly_off(y, at):
    off = y.clone()
    off[at] *= 1 + 100 * 2.0**-24
    return off


@pytest.mark.parametrize(
    "reference",
    [
        lambda x: torch.where(x > 0, x.exp(), 1 + x),
        lambda x: x.exp().sort(1).values,
        lambda x: x.exp() / x.exp().max(1, keepdim=True).values,
    ],
    ids=["where", "sort", "max"],
)
def test_nothing_is_more_lenient_where_values_do_not_jump(reference):
    x = tensor(64, 1000, dtype="float32").abs()
    at = torch.rand(64, 1000, generator=torch.Generator().manual_seed(1)) < 0.0005
    failure(lambda x: slightly_off(reference(x), at), x, reference=reference, vary_layout=False)
