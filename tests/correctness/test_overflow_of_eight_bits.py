"""An 8-bit float may overflow to NaN or Inf, or saturate: the report says what was accepted."""

import pytest
import torch

from pytest_cutile.correctness.check import check_kernel


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("saturates", [True, False])
def test_what_overflowed_is_said(dtype, saturates):
    largest = torch.finfo(dtype).max
    x = torch.tensor([[1.0, 2.0, 3.0 * largest, -4.0 * largest]])

    def kernel(x):
        out = x.clamp(-largest, largest).to(dtype)  # some releases of torch saturate, and some do not
        special = x.sign() * torch.inf if dtype == torch.float8_e5m2 else torch.nan * x
        return out if saturates else torch.where(x.abs() > largest, special.to(dtype), out)

    report = check_kernel(kernel, x, reference=lambda x: x)
    said = ("2 of output overflowed to NaN or Inf, as conversions that do not saturate do",)
    assert report.overflowed == (() if saturates else said)
