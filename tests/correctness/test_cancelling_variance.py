"""A variance or a distance made of squares loses the digits of inputs that are far from zero."""

import pytest

from pytest_cutile.correctness.check import check_kernel
from pytest_cutile.correctness.errors import KernelMismatch
from pytest_cutile.correctness.explain.relaxation import CANCELS, WOULD
from pytest_cutile.tile.tensors.make_tensor import make_tensor
from tests.correctness.checking import failure


def standardized(x, variance):
    mean = x.mean(1, keepdim=True)
    return (x - mean) / (variance(x, mean) + 1e-5).sqrt()


def of_differences(x, mean):
    return (x - mean).square().mean(1, keepdim=True)


def of_squares(x, mean):
    return x.square().mean(1, keepdim=True) - mean.square()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("seed", range(3))
def test_a_variance_that_cancels_is_seen(dtype, seed):
    x = make_tensor((64, 1024), dtype, device="cpu", seed=seed, dist="offset")

    def check(variance):
        check_kernel(
            lambda x: standardized(x.float(), variance).to(x.dtype),
            x,
            reference=lambda x: standardized(x, of_differences),
            reduction=1024,
        )

    check(of_differences)
    with pytest.raises(KernelMismatch):
        check(of_squares)


def of_differences_rounded(x, mean):
    return (x - mean).bfloat16().to(x.dtype).square().mean(1, keepdim=True)


@pytest.mark.parametrize("dist", ["offset", "negative"])
def test_no_precision_of_intermediates_is_offered_for_digits_that_cancel(dist):
    x = make_tensor((32, 200), "float32", device="cpu", seed=1, dist=dist)

    def message(variance):
        return failure(
            lambda x: standardized(x, variance),
            x,
            reference=lambda x: standardized(x, of_differences),
            reduction=200,
        )

    cancelling = message(of_squares)
    assert f"\n  {CANCELS}" in cancelling
    assert WOULD not in cancelling
    rounded = message(of_differences_rounded)
    assert f"\n  {WOULD} mid=" in rounded
    assert CANCELS not in rounded


def distances(a, b):
    return (a[:, None] - b[None]).square().sum(-1)


def distances_of_squares(a, b):
    return a.square().sum(1)[:, None] + b.square().sum(1)[None] - 2 * a @ b.T


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("depth", [3, 64])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_distance_that_cancels_is_seen(dtype, depth, seed):
    a, b = (
        make_tensor((length, depth), dtype, device="cpu", seed=2 * seed + length, dist="offset")
        for length in (33, 40)
    )

    def in_float32(function):
        return lambda a, b: function(a.float(), b.float()).to(a.dtype)

    check_kernel(in_float32(distances), a, b, reference=distances, reduction=depth)
    text = failure(in_float32(distances_of_squares), a, b, reference=distances, reduction=depth)
    assert WOULD not in text


def test_an_offset_is_as_near_as_its_dtype_can_spare():
    deviations = {
        dtype: make_tensor((64, 256), dtype, device="cpu", seed=1, dist="offset").double().std().item()
        for dtype in ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
    }
    assert deviations["float32"] == pytest.approx(1 / 32, rel=0.1)
    assert deviations["float16"] == pytest.approx(1 / 32, rel=0.1)
    assert deviations["bfloat16"] == pytest.approx(1 / 32, rel=0.1)
    assert deviations["float8_e4m3fn"] == pytest.approx(1 / 2, rel=0.2)
    assert deviations["float8_e5m2"] == pytest.approx(1, rel=0.2)
