"""Two sources of noise may cancel in three runs: what fails near its bound is measured with more of them."""

import pytest
import torch

from pytest_cutile.correctness.check import KernelMismatch, check_kernel
from pytest_cutile.correctness.error_model import noise
from tests.correctness.checking import failure, tensor


def softmax_times(s, v):
    return (s.float().softmax(-1).half().float() @ v.float()).half()


def softmax_times_exact(s, v):
    return s.softmax(-1) @ v


def rope(x, cos, sin):
    """Rotate pairs; tables, products and results are rounded to bfloat16."""
    a, b = x.chunk(2, -1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def rotated(x):
    """Return x with the tables of its positions."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(half) / half)
    return x, angle.cos().float(), angle.sin().float()


@pytest.mark.parametrize("seed", [0, 13])
def test_probabilities_that_are_rounded_before_they_meet_values_with_an_offset(seed):
    s, v = tensor(64, 96, seed=seed), tensor(96, 32, seed=seed + 1000, dist="offset")
    check_kernel(softmax_times, s, v, reference=softmax_times_exact, reduction=96)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("heads", "length"), [(3, 37), (8, 256)])
def test_a_rotation_in_bfloat16_of_outliers(seed, heads, length):
    x = tensor(2, heads, length, 64, dtype="bfloat16", seed=seed, dist="outliers")
    check_kernel(rope, *rotated(x), reference=rope, mid="bfloat16", vary_layout=False)


def test_that_a_large_case_is_cut_into_parts_changes_nothing(monkeypatch):
    monkeypatch.setattr("pytest_cutile.correctness.error_model.parts.PART_ELEMENTS", 1 << 14)
    monkeypatch.setattr("pytest_cutile.correctness.guards.launch.SMALL_BYTES", 1)
    x = tensor(2, 8, 64, 64, dtype="bfloat16", dist="outliers")
    axes = {"x": ("batch", "head"), "output": ("batch", "head")}
    report = check_kernel(rope, *rotated(x), reference=rope, mid="bfloat16", independent=axes)
    assert report.parts > 1


def test_more_runs_are_made_only_near_the_bound():
    s, v = tensor(64, 96), tensor(96, 32, seed=2)
    report = check_kernel(softmax_times, s, v, reference=softmax_times_exact, reduction=96)
    assert report.reference_runs == 1 + 2 * noise.RUNS[0]
    runs = 0

    def counted(s, v):
        nonlocal runs
        runs += 1
        return softmax_times_exact(s, v)

    with pytest.raises(KernelMismatch):
        check_kernel(lambda s, v: softmax_times(s, v) * 2, s, v, reference=counted, reduction=96)
    assert runs < 4 * noise.RUNS[1]


@pytest.mark.parametrize("seed", range(6))
def test_what_is_wrong_near_its_bound_still_fails(seed):
    x = tensor(2, 3, 37, 64, dtype="bfloat16", seed=seed, dist="outliers")

    def coarse(x, cos, sin):
        out = rope(x, cos, sin)
        out[:, 1] *= 1.05
        return out

    assert "outside the bound" in failure(
        coarse, *rotated(x), reference=rope, mid="bfloat16", vary_layout=False
    )


@pytest.mark.parametrize("dist", ["offset", "negative", "normal"])
@pytest.mark.parametrize("rows", [16, 128])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_product_between_two_that_is_rounded_to_the_inputs_dtype(dist, rows, dtype):
    """Its values lie closer together than two numbers of the dtype, and all round in one direction."""
    shapes = ((rows, 64), (64, 128), (128, 32))
    operands = [tensor(*shape, dtype=dtype, seed=at, dist=dist) / 8 for at, shape in enumerate(shapes)]

    def chained(a, b, c):
        return ((a.float() @ b.float()).to(a.dtype).float() @ c.float()).to(a.dtype)

    check_kernel(chained, *operands, reference=lambda a, b, c: a @ b @ c, reduction=128, vary_layout=False)
    with pytest.raises(KernelMismatch):
        check_kernel(
            lambda a, b, c: chained(a, b, c) * (1 + 2.0**-5),
            *operands,
            reference=lambda a, b, c: a @ b @ c,
            reduction=128,
            vary_layout=False,
        )
