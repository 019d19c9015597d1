"""A variance as E[x^2] - E[x]^2 loses the digits of an input that is far from zero: "offset" shows it."""

import pytest

from pytest_cutile.correctness.check import check_kernel
from pytest_cutile.correctness.errors import KernelMismatch
from pytest_cutile.tensors.make_tensor import make_tensor


def standardized(x, variance):
    mean = x.mean(1, keepdim=True)
    return (x - mean) / (variance(x, mean) + 1e-5).sqrt()


def of_differences(x, mean):
    return (x - mean).square().mean(1, keepdim=True)


def of_squares(x, mean):
    return x.square().mean(1, keepdim=True) - mean.square()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
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


def test_an_offset_is_as_near_as_its_dtype_can_spare():
    deviations = {
        dtype: make_tensor((64, 256), dtype, device="cpu", seed=1, dist="offset").double().std().item()
        for dtype in ("float32", "float16", "bfloat16", "float8_e4m3fn")
    }
    assert deviations["float32"] == pytest.approx(1 / 32, rel=0.1)
    assert deviations["float16"] == pytest.approx(1 / 32, rel=0.1)
    assert deviations["bfloat16"] == pytest.approx(1 / 4, rel=0.1)
    assert deviations["float8_e4m3fn"] == pytest.approx(1, rel=0.2)
