"""What a kernel declares that it rounds or approximates, and what a failure says would have passed."""

import math

import pytest
import torch

from pytest_cutile.correctness.check import KernelMismatch, check_kernel
from pytest_cutile.correctness.error_model.tolerance import NumericsPolicy, sigmas_for
from pytest_cutile.correctness.explain.relaxation import EXP_ERROR, looser_policies, what_would_pass
from pytest_cutile.tile.tensors.rounding import round_to
from pytest_cutile.words.formats import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, TFLOAT32
from tests.correctness.checking import failure, tensor


def rms_norm(x, w):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * w


def eager(x, w):
    """What PyTorch computes operator by operator: every intermediate result is rounded to bfloat16."""
    return rms_norm(x, w)


def softmax(x):
    return torch.softmax(x, -1)


def approximate_softmax(x):
    """Its exponentials are off by up to 2^-12, each by its own amount."""
    powers = torch.exp(x.double() - x.double().amax(-1, keepdim=True))
    powers = powers * (1 + 2.0**-12 * torch.sin(1e6 * powers))
    return (powers / powers.sum(-1, keepdim=True)).float()


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(64, 512, generator=generator), torch.randn(512, generator=generator)


def test_eager_bfloat16_passes_with_its_policy_only_and_the_failure_says_so(rows):
    x, w = (each.bfloat16() for each in rows)
    text = failure(eager, x, w, reference=rms_norm, reduction=512)
    assert 'would pass with mid="bfloat16": say so if' in text
    report = check_kernel(eager, x, w, reference=rms_norm, reduction=512, mid="bfloat16")
    assert 'mid="bfloat16"' in report.bound
    assert report.reference_runs == 8


def test_a_policy_lets_no_bug_through_that_is_larger(rows):
    x, w = (each.bfloat16() for each in rows)
    text = failure(lambda x, w: eager(x, w) * 1.03, x, w, reference=rms_norm, reduction=512, mid="bfloat16")
    assert "neither a looser numerics policy nor" in text


def test_the_finest_format_that_passes_is_named(rows):
    x, w = (each.half() for each in rows)
    assert 'would pass with mid="float16"' in failure(eager, x, w, reference=rms_norm, reduction=512)
    check_kernel(eager, x, w, reference=rms_norm, reduction=512, mid=torch.float16)


def test_float64_kernels_that_compute_in_float32_are_told(rows):
    x, w = (each.double() for each in rows)
    text = failure(
        lambda x, w: rms_norm(x.float(), w.float()).double(), x, w, reference=rms_norm, reduction=9
    )
    assert 'would pass with mid="float32"' in text


def test_an_approximate_exponential(rows):
    x = rows[0]
    text = failure(approximate_softmax, x, reference=softmax, reduction=512)
    assert "would pass with" in text
    report = check_kernel(approximate_softmax, x, reference=softmax, reduction=512, exp_error=2.0**-12)
    assert "exp_error=0.000244141" in report.bound
    assert "would pass" in failure(
        approximate_softmax, x, reference=softmax, reduction=512, exp_error=2.0**-16
    )


def test_in_place_functions_are_approximate_too():
    def reference(x):
        x.exp_()
        return x

    x = torch.linspace(-2, 2, 1000)
    kernel = (lambda x: torch.exp(x) * (1 + 1e-4 * torch.cos(1e5 * x)),)[0]
    failure(kernel, x, reference=reference)
    check_kernel(kernel, x, reference=reference, exp_error=1e-4)


def test_what_only_a_plain_tolerance_passes_is_said(rows):
    x = rows[0].half()
    text = failure(lambda x: (x * 1.0005).half(), x, reference=lambda x: x)
    assert "no looser numerics policy explains it, but torch.testing.assert_close's defaults would" in text


def test_products_that_were_meant_for_tensor_cores_are_told_by_their_precision():
    a, b = tensor(48, 96, dtype="float32"), tensor(96, 40, dtype="float32", seed=2)

    def product(a, b):
        return (round_to(a.double(), TFLOAT32) @ round_to(b.double(), TFLOAT32)).float()

    text = failure(product, a, b, reference=torch.matmul, reduction=96)
    assert 'would pass with precision="tfloat32": say so if' in text
    check_kernel(product, a, b, reference=torch.matmul, reduction=96, precision="tfloat32")
    text = failure(lambda a, b: a.half().float() @ b.bfloat16().float(), a, b, reference=torch.matmul)
    assert "tfloat32" not in text.partition("would pass")[2]


def test_nothing_is_tried_for_a_wrong_pattern(rows):
    x = rows[0].half()
    text = failure(lambda x: x * math.nan, x, reference=lambda x: x)
    assert "failed: pattern of NaN and Inf" in text
    assert "would" not in text


def test_policies_get_looser():
    policies = looser_policies(NumericsPolicy(), FLOAT32, exponentials=True, short_sums=False)
    assert [str(each) for each in policies] == [
        'mid="float16"',
        'mid="bfloat16"',
        f"exp_error={EXP_ERROR:g}",
        f'mid="float16", exp_error={EXP_ERROR:g}',
        f'mid="bfloat16", exp_error={EXP_ERROR:g}',
    ]
    assert [
        each.mid for each in looser_policies(NumericsPolicy(), FLOAT64, exponentials=False, short_sums=False)
    ] == [
        FLOAT32,
        FLOAT16,
        BFLOAT16,
    ]
    assert not looser_policies(NumericsPolicy(mid=BFLOAT16), FLOAT32, exponentials=False, short_sums=False)


def test_sums_in_fewer_bits_are_the_first_relaxation_and_part_of_the_last_where_a_device_may_have_them():
    policies = looser_policies(NumericsPolicy(), FLOAT32, exponentials=False, short_sums=True)
    assert [str(each) for each in policies] == [
        "fast_acc=True",
        'mid="float16"',
        'mid="bfloat16"',
        'mid="bfloat16", fast_acc=True',
    ]
    stated = looser_policies(NumericsPolicy(fast_acc=True), FLOAT32, exponentials=True, short_sums=True)
    assert all(each.fast_acc for each in stated)
    assert len({*stated}) == len(stated) == 5


def test_sums_in_fewer_bits_are_no_noise_and_keep_exact_products_exact():
    ones = torch.ones(16, 16, dtype=torch.float16)
    report = check_kernel(lambda a: a @ a, ones, reference=lambda a: a @ a, reduction=16, fast_acc=True)
    assert report.reference_runs == 1
    assert report.bound.startswith("correctly rounded")


def test_the_first_relaxation_that_passes_is_named_and_most_bugs_cost_one_attempt():
    policies = looser_policies(NumericsPolicy(), FLOAT32, exponentials=True, short_sums=False)
    tried = []

    def passes(policy):
        tried.append(policy)
        return policy.mid is BFLOAT16

    assert what_would_pass(policies, passes, lambda: False).startswith('would pass with mid="bfloat16":')
    assert len(tried) == 3
    tried.clear()
    assert "neither" in what_would_pass(policies[:1], passes, lambda: False)
    assert len(tried) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mid": "int8"}, "mid must be a floating-point dtype"),
        ({"exp_error": -1e-3}, "exp_error is a relative error"),
        ({"exp_error": math.nan}, "exp_error is a relative error"),
        ({"exp_error": 1.0}, "exp_error is a relative error"),
    ],
)
def test_options_out_of_range(options, said):
    with pytest.raises(ValueError, match=said):
        check_kernel(torch.clone, torch.ones(3), reference=torch.clone, **options)


@pytest.mark.parametrize("elements", [1, 10_000, 1 << 28])
def test_more_elements_are_allowed_more_sigmas(elements):
    """The chance that any of them exceeds it stays what it is."""
    assert elements * math.erfc(sigmas_for(elements) / math.sqrt(2)) == pytest.approx(1e-7, rel=1e-6)


def test_complex_arguments_are_upcast_and_their_products_may_cancel():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(256, 256, dtype=torch.complex64, generator=generator) for _ in range(2))
    seen = []

    def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        seen.append(a.dtype)
        return torch.view_as_real(a * b)

    report = check_kernel(lambda a, b: torch.view_as_real(a * b), a, b, reference=reference)
    assert report.worst_error < 0.8
    assert {*seen} == {torch.complex128}
    with pytest.raises(KernelMismatch, match="interval"):
        check_kernel(lambda a, b: torch.view_as_real(a * b.conj()), a, b, reference=reference)


def test_products_of_complex_matrices():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 64, dtype=torch.complex64, generator=generator) for _ in range(2))

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(a @ b)

    assert check_kernel(product, a, b, reference=product, reduction=64).worst_error < 0.8


def test_a_reference_that_rounds_on_its_way_is_named():
    """It may be meant (8 bits and back), or hide a kernel that rounds as much."""

    def reference(q, k):
        return (q @ k.T).half().to(q.dtype).softmax(-1)

    def kernel(q, k):
        return (q.float() @ k.float().T).softmax(-1).half()

    q, k = tensor(64, 512), tensor(32, 512, seed=2)
    text = failure(kernel, q, k, reference=reference, reduction=512)
    assert "a reference that itself rounds to float16" in " ".join(text.split())
    exact = check_kernel(kernel, q, k, reference=lambda q, k: (q.float() @ k.T).softmax(-1), reduction=512)
    assert "rounds" not in exact.bound


def test_no_policy_is_suggested_for_elements_that_are_lost():
    # Of most draws, the three smallest sums cancel so much that float16 does explain them.
    x = torch.randn(6, 257, generator=torch.Generator().manual_seed(1))
    least = x.cumsum(1).abs().flatten().kthvalue(3).values

    def kernel(x):
        y = x.cumsum(1)
        return y.where(y.abs() > least, 0)

    text = failure(kernel, x, reference=lambda x: x.cumsum(1), reduction=257)
    assert "3 of 1,542 elements" in text
    assert (
        "elements are off by more than half of their value, which no looser numerics policy explains" in text
    )
    assert "would pass" not in text


def test_what_a_tolerance_allows_of_integers_is_said():
    x = torch.arange(100)
    report = check_kernel(lambda x: x + 3, x, reference=lambda x: x, atol=10)
    assert (report.looser, report.allowed) == (None, "any of 21 integers")
    assert report.bound == "integers within atol=10, as given: any of 21 integers"
    assert check_kernel(lambda x: x + 0, x, reference=lambda x: x, atol=0.5).allowed == ""


def test_what_a_tolerance_allows_of_exact_products_is_said():
    a, b = (tensor(48, 48, dtype="float32", dist="integers", seed=seed) for seed in (1, 2))
    report = check_kernel(torch.matmul, a, b, reference=torch.matmul, atol=100_000)
    assert report.looser is None
    assert report.allowed.endswith("e+10 ulp from values that are exact")
    assert report.allowed in report.bound


def test_tiny_values_do_not_make_a_tolerance_infinitely_loose():
    x = tensor(64, 64, dtype="float32", dist="tiny")
    report = check_kernel(lambda x: x * 2, x, reference=lambda x: x * 2, atol=100)
    assert report.looser is not None
    assert report.looser < torch.inf


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fast_acc": "yes"}, "fast_acc has to be True or False, got 'yes'"),
        ({"vary_layout": "yes"}, "vary_layout has to be True or False, got 'yes'"),
        ({"exp_error": "a"}, "exp_error is a relative error, a number; got 'a'"),
        ({"mutates": "x"}, "mutates is a list of arguments, by name or position; write ['x']"),
        ({"writes": 0}, "writes is a list of arguments, by name or position; write [0]"),
        ({"rtol": "1e-3"}, "rtol must be finite and not negative, got '1e-3'"),
        ({"mid": "float64"}, "mid is what intermediate results are rounded to, and nothing is to float64"),
        (
            {"reference": torch.ones(4)},
            "reference has to be a function of fn's arguments, got float32 [4]",
        ),
    ],
)
def test_options_that_make_no_sense_are_one_line(options, said):
    with pytest.raises((TypeError, ValueError)) as caught:
        check_kernel(lambda x: x * 2, torch.ones(4), **{"reference": lambda x: x * 2, **options})
    assert str(caught.value) == said


def test_a_length_of_sums_that_was_not_given_is_named():
    """And not a policy that lets more pass."""
    x = tensor(64, 8192, dtype="float32")

    def in_turn(x):
        total = torch.zeros(len(x))
        for column in x.T:
            total += column
        return total

    text = failure(in_turn, x, reference=lambda x: x.sum(1))
    assert "would pass with reduction=8192: say so if" in text
    check_kernel(in_turn, x, reference=lambda x: x.sum(1), reduction=8192)


@pytest.mark.parametrize("power", [lambda x: 2.0**x, lambda x: torch.pow(2.0, x)])
def test_a_power_whose_exponent_varies_is_an_exponential(power):
    x = tensor(64, 256, dtype="float32")

    def approximate(x):
        return 2.0**x * (1 + 2.0**-11)

    check_kernel(approximate, x, reference=power, exp_error=2.0**-10)
    failure(approximate, x, reference=power)
