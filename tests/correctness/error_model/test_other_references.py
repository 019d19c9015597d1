"""References whose arithmetic lies inside one operator of PyTorch, or is complex: no kernel here has any."""

import pytest
import torch
from torch.nn import functional

from pytest_cutile.correctness.check import check_kernel
from tests.correctness.checking import failure, tensor


def log_softmax(x):
    return x.log_softmax(1)


def cross_entropy(x, target):
    return functional.cross_entropy(x, target, reduction="none")


@pytest.mark.parametrize("dist", ["normal", "outliers"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_logarithm_of_a_sum_has_the_sums_relative_error(dtype, dist, seed):
    x = tensor(19, 301, dtype=dtype, seed=seed, dist=dist)

    def kernel(x):
        return log_softmax(x.float()).to(x.dtype)

    check_kernel(kernel, x, reference=log_softmax, reduction=301)
    failure(lambda x: (log_softmax(x.float()) * 1.01).to(x.dtype), x, reference=log_softmax, reduction=301)


def test_the_loss_of_confident_logits_is_nearly_nothing():
    x, target = tensor(64, 200, dtype="float32"), torch.arange(64)
    x[target, target] += 25
    check_kernel(cross_entropy, x, target, reference=cross_entropy, reduction=200)
    failure(lambda x, target: cross_entropy(x, target) + 1e-5, x, target, reference=cross_entropy)


def resized(x, align_corners=False):
    return functional.interpolate(x, size=(31, 40), mode="bilinear", align_corners=align_corners)


def bilinear(x):
    """Compute `resized` in float32, in another order than PyTorch."""

    def taps(count, size):
        place = ((torch.arange(count) + 0.5) * (torch.tensor(size) / count) - 0.5).clamp_(min=0)
        low = place.floor().long()
        return low, (low + 1).clamp_(max=size - 1), place - low

    (top, bottom, down), (left, right, across) = (
        taps(*each) for each in zip((31, 40), x.shape[2:], strict=True)
    )
    x, down = x.float(), down[:, None]
    upper = x[..., top[:, None], left] * (1 - across) + x[..., top[:, None], right] * across
    lower = x[..., bottom[:, None], left] * (1 - across) + x[..., bottom[:, None], right] * across
    return upper * (1 - down) + lower * down


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kernel", [lambda x: resized(x.float()), bilinear])
def test_what_an_operator_rounds_inside_is_what_float32_rounds(kernel, seed):
    for dtype in (torch.float32, torch.float16):
        x = tensor(2, 3, 17, 19, dtype="float32", seed=seed).to(dtype)
        check_kernel(lambda x: kernel(x).to(x.dtype), x, reference=resized)
    failure(lambda x: resized(x, align_corners=True), x.float(), reference=resized)


def test_determinants_cancel():
    def kernel(x):
        return x[:, 0, 0] * x[:, 1, 1] - x[:, 0, 1] * x[:, 1, 0]

    x = tensor(20_000, 2, 2, dtype="float32")
    check_kernel(kernel, x, reference=torch.linalg.det)
    failure(lambda x: kernel(x) * 1.0001, x, reference=torch.linalg.det)


def square(z):
    return torch.view_as_real(z * z)


@pytest.mark.parametrize("seed", range(10))
def test_either_part_of_a_complex_product_may_cancel(seed):
    z = torch.complex(*(tensor(40, 50, dtype="float32", seed=each) for each in (seed, seed + 100)))
    check_kernel(square, z, reference=square)
    failure(lambda z: square(z) * 1.00001, z, reference=square)
    failure(lambda z: torch.view_as_real(z * z.conj()).clone(), z, reference=square)


def test_memory_at_an_odd_offset_is_no_complex_number():
    def kernel(x):
        return torch.view_as_real(torch.view_as_complex(x) * 2)

    report = check_kernel(kernel, tensor(20, 2, dtype="float32"), reference=lambda x: 2 * x)
    assert any("storage_offset" in said for said in report.layouts.values())
