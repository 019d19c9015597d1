"""Integers that are computed from floats: what rounding explains passes, and nothing else."""

from typing import Any

import pytest
import torch

from pytest_cutile.correctness.check import check_kernel
from tests.correctness.checking import failure


def normal(*shape, dtype="float32", seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(getattr(torch, dtype))


def scale_of(x):
    return x.abs().amax(1, keepdim=True) / 127


def quantise(x):
    scale = scale_of(x)
    return (x / scale).round().clamp(-127, 127).to(torch.int8), scale


def quantising(x, *, scaled=1.0, step=torch.round):
    """Compute in float32 as a kernel may: by the reciprocal of the scale."""
    scale = scale_of(x.float())
    return step(x.float() * (1 / scale)).clamp(-127, 127).to(torch.int8), scale * scaled


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("seed", range(3))
def test_quantised_values_at_ties_may_fall_to_either_side(dtype, seed):
    x = normal(256, 1000, dtype=dtype, seed=seed)
    x[:, 1] = x.abs().amax(1) / 2  # 63.5 times the scale
    assert not torch.equal(quantise(x.double())[0], quantising(x)[0])
    report = check_kernel(quantising, x, reference=quantise, vary_layout=False)
    assert "as rounding makes them" in report.bound


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integers_of_any_dtype_may_fall_to_either_side(dtype):
    x = normal(200, 100, dtype="bfloat16").abs()

    def kernel(x):
        ties = (x.float() * (1 / scale_of(x.float()))).round()
        return (ties > 63 if dtype == "bool" else ties).to(getattr(torch, dtype))

    def reference(x):
        ties = (x / scale_of(x)).round()
        return (ties > 63 if dtype == "bool" else ties).to(getattr(torch, dtype))

    x[:, 1] = x.amax(1) / 2
    check_kernel(kernel, x, reference=reference, vary_layout=False)
    failure(lambda x: kernel(2 * x[:, :1] - x), x, reference=reference, vary_layout=False)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: quantising(x, scaled=0.0),
        lambda x: quantising(x, step=torch.trunc),
        lambda x: quantising(x, step=torch.floor),
        lambda x: quantising(x, step=lambda each: (1.001 * each).round()),
        lambda x: (quantising(x)[0] + (torch.arange(1000) == 7), quantising(x)[1]),
        lambda x: (quantising(x)[0].index_fill(1, torch.tensor([999]), 0), quantising(x)[1]),
    ],
)
def test_other_quantised_values_are_wrong(wrong):
    x = normal(64, 1000, dtype="bfloat16")
    assert "differs from its reference" in failure(wrong, x, reference=quantise, vary_layout=False)


def test_one_wrong_value_is_seen_among_those_that_rounding_explains():
    x = normal(64, 1000, dtype="bfloat16")
    x[:, 1] = x.abs().amax(1) / 2

    def wrong(x):
        q, scale = quantising(x)
        q[3, 4] += 1
        return q, scale

    assert "output[0] (int8 [64, 1000]): 1 of 64,000" in failure(wrong, x, reference=quantise)


def scores(x, w):
    return torch.softmax(x @ w, 1).topk(2).indices


def scoring(x, w):
    return scores(x.float(), w.float())


@pytest.mark.parametrize("seed", range(3))
def test_indices_of_almost_equal_values_may_be_exchanged(seed):
    x, w = normal(200, 256, seed=seed), normal(256, 32, seed=seed + 100)
    w[:, 6] = w[:, 7] * (1 + 2.0**-23)
    assert not torch.equal(scores(x.double(), w.double()), scoring(x, w))
    check_kernel(scoring, x, w, reference=scores, reduction=256)


def test_other_indices_are_wrong():
    x, w = normal(200, 64), normal(64, 32, seed=1)
    options: dict[str, Any] = {"reference": scores, "reduction": 64}
    check_kernel(scoring, x, w, **options)
    failure(lambda x, w: scoring(x, w).flip(1), x, w, **options)
    failure(lambda x, w: scoring(x[:, :-1], w[:-1]), x, w, **options)

    def one_wrong(x, w):
        found = scoring(x, w)
        found[17, 1] = (found[17, 1] + 1) % 32
        return found

    assert "1 of 400 elements" in failure(one_wrong, x, w, **options)


def test_ties_among_inputs_are_no_matter_of_rounding():
    x = normal(50, 600, dtype="bfloat16").abs().clamp(max=1.0)
    check_kernel(lambda x: x.argmax(1), x, reference=lambda x: x.argmax(1))
    failure(lambda x: 599 - x.flip(1).argmax(1), x, reference=lambda x: x.argmax(1))
    failure(lambda x: x >= 0.5, x, reference=lambda x: x > 0.5)


def test_what_is_computed_alike_of_equal_values_stays_equal():
    x = normal(50, 600, dtype="bfloat16")
    x[:, [100, 400]] = 5.0

    def largest(x):
        return torch.softmax(x / 3, 1).argmax(1)

    def last(x):
        return 599 - largest(x.float().flip(1))

    options: dict[str, Any] = {"reference": largest, "reduction": 600, "vary_layout": False}
    check_kernel(lambda x: largest(x.float()), x, **options)
    failure(last, x, **options)
    failure(last, x, mid="bfloat16", **options)


def test_integers_of_integers_are_equal():
    x = torch.arange(1000)
    failure(lambda x: (x / 7.0).round().int(), x, reference=lambda x: (x / 7.0).floor().int())
    runs = []

    def reference(x):
        runs.append(x)
        return x * 2

    failure(lambda x: x * 2 + 1, x, reference=reference)
    assert len(runs) < 10


def test_a_policy_says_how_far_integers_may_be_off():
    x = normal(64, 1000, dtype="bfloat16")

    def rounding(x):
        scale = scale_of(x.float()).bfloat16().float()
        return (x.float() / scale).bfloat16().float().round().clamp(-127, 127).to(torch.int8)

    def exact(x):
        return quantise(x)[0]

    failure(rounding, x, reference=exact, vary_layout=False)
    check_kernel(rounding, x, reference=exact, mid="bfloat16", vary_layout=False)
    failure(lambda x: rounding(x) // 2, x, reference=exact, mid="bfloat16", vary_layout=False)


def test_a_reference_whose_shapes_depend_on_values_is_no_excuse():
    x = normal(100)
    failure(lambda x: (x / 3 > 0.1).nonzero() + 1, x, reference=lambda x: (x / 3 > 0.1).nonzero())
