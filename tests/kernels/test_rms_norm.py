"""RMSNorm with a residual, on a CPU; tests/kernels/test_launchers.py has what is common to all kernels."""

import pytest

from kernels import rms_norm
from pytest_cutile import Work
from pytest_cutile.interpreter import interpret

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("residual", "error", "message"),
    [
        ([[1.0]], TypeError, "residual must be a torch.Tensor, got list"),
        (torch.ones(2, 3).half(), TypeError, "residual has dtype torch.float16, but x has torch.float32"),
        (torch.ones(3), ValueError, r"residual must have x's shape \[2, 3\], but is \[3\]"),
        (torch.ones(2, 3, device="meta"), ValueError, "residual is on meta, but x is on cpu"),
    ],
)
def test_it_says_what_is_wrong_with_the_residual(residual, error, message):
    with pytest.raises(error, match="^rms_norm: " + message):
        rms_norm.rms_norm(torch.ones(2, 3), torch.ones(3), 1e-6, residual)


def test_nothing_is_launched_for_nothing():
    y, h = rms_norm.rms_norm(torch.ones(2, 0, 3), torch.ones(3), 1e-6, torch.ones(2, 0, 3))
    assert y.shape == h.shape == (2, 0, 3)


def test_the_reference_is_torchs_of_the_sum():
    torch.manual_seed(0)
    x, residual = (torch.randn(5, 33, dtype=torch.float64) for _ in range(2))
    w = torch.rand(33, dtype=torch.float64)
    y, h = rms_norm.reference(x, w, 1e-2, residual)
    torch.testing.assert_close(h, x + residual)
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x + residual, (33,), w, 1e-2))


def test_the_sum_is_rounded_only_where_it_is_written():
    with interpret("sm_90"):
        # Just short of half the spacing of float16 at 1: rounded, the sum would be 1 in every column.
        x = torch.ones(1, 256, dtype=torch.float16, device="cuda")
        residual = torch.zeros_like(x)
        residual[:, ::4] = 2.0**-11 * 0.999
        # Where numbers are 2^-10 apart, 2000 units less 1/4 and 2000 units plus 3/4.
        weight = torch.full_like(x[0], 2000 * 2.0**-10)
        y, h = rms_norm.rms_norm(x, weight, 0.0, residual)
        assert torch.equal(h, x)
        units = (y * 2**10).view(-1, 4)
        assert units.unique(dim=0).tolist() == [[2001.0, 2000.0, 2000.0, 2000.0]]


def test_work_counts_the_residual_and_the_sum():
    case = next(case for case in rms_norm.SPEC.cases if case.name == "bf16-19x255-add")
    # (4 * 19*255 + 255) * 2
    assert rms_norm.SPEC.work_of(case) == Work(bytes=39270, dtype="bfloat16")
