"""A policy allows roundings of intermediate results, in the elements that have any, and nothing else."""

import itertools
import math

import pytest
import torch

from pytest_cutile.correctness.check import check_kernel
from pytest_cutile.correctness.error_model.injection import OperandNoise, PolicyNoise
from pytest_cutile.correctness.error_model.tolerance import NumericsPolicy
from pytest_cutile.words.formats import BFLOAT16, FLOAT16
from tests.correctness.checking import failure, tensor


def rope(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def tables(length, half):
    angle = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(half) / half)
    return angle.cos().float(), angle.sin().float()


def one_later(table):
    return torch.cat([table[1:], table[-1:]])


def one_column_later(table):
    return table.roll(-1, 1)


def with_first_again(table):
    return torch.cat([table[:1], table[:-1]])


OFF_BY_ONE = {
    "both later": lambda cos, sin: (one_later(cos), one_later(sin)),
    "cos later": lambda cos, sin: (one_later(cos), sin),
    "sin later": lambda cos, sin: (cos, one_later(sin)),
    "another column": lambda cos, sin: (one_column_later(cos), one_column_later(sin)),
    "both earlier": lambda cos, sin: (with_first_again(cos), with_first_again(sin)),
}


@pytest.mark.slow
@pytest.mark.parametrize("off", OFF_BY_ONE)
@pytest.mark.parametrize("shape", [(1, 1, 2, 8), (1, 2, 3, 8), (1, 2, 8, 16)])
@pytest.mark.parametrize("dist", ["normal", "outliers", "integers", "one_hot"])
def test_no_policy_explains_a_table_that_is_off_by_one(dist, shape, off):
    def kernel(x, cos, sin):
        given = (table.to(x.dtype).float() for table in OFF_BY_ONE[off](cos, sin))
        return rope(x.float(), *given).to(x.dtype)

    for dtype, seed in itertools.product(("bfloat16", "float16"), range(2)):
        x = tensor(*shape, dtype=dtype, seed=seed, dist=dist)
        given = x, *tables(shape[2], shape[3] // 2)
        if bool((kernel(*given).double() - rope(*(each.double() for each in given))).abs().max() < 1e-2):
            continue  # these inputs do not show it
        assert "would pass with" not in failure(kernel, *given, reference=rope, vary_layout=False)
        failure(kernel, *given, reference=rope, mid="bfloat16", vary_layout=False)


def test_rows_that_a_policy_leaves_exact_have_to_be_exact():
    """The first position turns by no angle: there nothing is rounded."""

    def kernel(x, cos, sin):
        out = rope(x.float(), cos, sin).to(x.dtype)
        out[..., 0, 0] *= 1.1
        return out

    x, angles = tensor(2, 4, 16, 32, dtype="bfloat16"), tables(16, 16)
    check_kernel(
        lambda x, cos, sin: rope(x.float(), cos, sin).to(x.dtype), x, *angles, reference=rope, mid="bfloat16"
    )
    failure(kernel, x, *angles, reference=rope, mid="bfloat16")


HALF = {
    "rms_norm": (
        lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6),
        lambda x: (x.half() * (x.half().square().mean(-1, keepdim=True) + 1e-6).rsqrt()).half(),
        ["small", "outliers"],
    ),
    "silu": (
        torch.nn.functional.silu,
        lambda x: x.half() * (1 / (1 + (-x.half()).exp())),
        ["small", "outliers", "normal", "offset"],
    ),
}


@pytest.mark.parametrize(("name", "dist"), [(name, dist) for name in HALF for dist in HALF[name][2]])
@pytest.mark.parametrize("out", [torch.float16, torch.bfloat16, torch.float32])
def test_intermediates_in_half_precision_may_be_subnormal(name, dist, out):
    """The reference is a function of torch, in which a kernel rounds more than once."""
    reference, kernel, _ = HALF[name]
    for seed in range(3):
        x = tensor(37, 300, dtype="float16", seed=seed, dist=dist)
        check_kernel(
            lambda x: kernel(x).to(out),
            x,
            reference=reference,
            reduction=300,
            mid="float16",
            vary_layout=False,
        )
        failure(lambda x: (1.02 * kernel(x)).to(out), x, reference=reference, reduction=300, mid="float16")


@pytest.mark.parametrize("hidden", [1, 3])
def test_scores_that_a_mask_hides_have_no_noise(hidden):
    """They are -Inf, of which a rounding would be NaN."""
    policy = NumericsPolicy(mid=FLOAT16)
    scores = torch.randn(4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scores[:, :hidden] = -math.inf
    moved = PolicyNoise(0, policy).call(torch.ops.aten._softmax.default, (scores, -1, False), {})
    assert bool(moved.isfinite().all())
    assert not bool(moved[:, :hidden].any())
    assert not torch.equal(moved, scores.softmax(-1))


def test_what_close_operands_differ_by_is_lost_in_some_runs_and_kept_in_others():
    """As in attention of almost equal scores, whose probabilities all round to the same number."""
    close = torch.tensor([0.9993, 0.9995, 0.9991], dtype=torch.float64)
    lost = [len(OperandNoise(run, BFLOAT16)._rounded(close.clone()).unique()) == 1 for run in range(12)]
    assert any(lost)
    assert not all(lost)
