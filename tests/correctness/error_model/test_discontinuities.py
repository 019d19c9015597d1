"""Floats beyond a discontinuity of the reference: what rounding explains passes, and nothing else."""

import pytest
import torch

from pytest_cutile.correctness.check import check_kernel
from pytest_cutile.tile.tensors.make_tensor import make_tensor
from tests.correctness.checking import failure, tensor


def scale_of(x):
    return x.abs().amax(1, keepdim=True) / 127


def quantise(x):
    scale = scale_of(x)
    return (x / scale).round() * scale


def quantising(x, step=torch.round):
    """Compute in float32 as a kernel may: by the reciprocal of the scale."""
    scale = scale_of(x.float())
    return (step(x.float() * (1 / scale)) * scale).to(x.dtype)


@pytest.mark.parametrize(("dtype", "seed"), [("float16", 6), ("bfloat16", 4), ("bfloat16", 5)])
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
    off[at] *= 1 + 200 * 2.0**-24
    return off


@pytest.mark.slow
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


# -- decisions that no rounding changes -------------------------------------------------------------------

EIGHT = torch.float8_e4m3fn


def to_eight_bits(x, w):
    return x.to(EIGHT).to(x.dtype) @ w


def to_quarters(x, w):
    return (x / 0.25).round() * 0.25 @ w


def to_blocks(x, w):
    """Quantise blocks of 32 with scales that are powers of two, as MXFP8 does."""
    blocks = x.reshape(len(x), -1, 32)
    scale = torch.exp2(torch.floor(torch.log2(blocks.abs().amax(2, keepdim=True))) - 8)
    values = (blocks / scale).clamp(-448, 448).to(EIGHT).to(x.dtype)
    return (values * scale).reshape(x.shape) @ w


def in_float32(function):
    return lambda *given: function(*(each.float() for each in given)).to(given[0].dtype)


def without_the_last(function):
    def run(x, w):
        x = x.clone()
        x[:, -1] = 0
        return in_float32(function)(x, w)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("reference", [to_eight_bits, to_quarters, to_blocks])
def test_inputs_are_quantised_one_way(reference):
    """A sixteenth of all bfloat16 numbers are ties of e4m3: noise on them would explain anything."""
    x, w = tensor(32, 1024, dtype="bfloat16", seed=1), tensor(1024, 64, dtype="bfloat16", seed=2)
    options = {"reference": reference, "reduction": 1024, "vary_layout": False}
    assert check_kernel(in_float32(reference), x, w, **options).worst_error < 0.5
    failure(in_float32(torch.matmul), x, w, **options)
    failure(without_the_last(reference), x, w, **options)
    failure(lambda x, w: in_float32(reference)(x, w) * 1.01, x, w, **options)


@pytest.mark.parametrize(
    ("dtype", "dist", "right", "wrong"),
    [
        ("bfloat16", "normal", lambda x: (x > 0.5).double().mean(1), lambda x: (x >= 0.5).double().mean(1)),
        ("bfloat16", "integers", lambda x: x.sum(1) >= 0, lambda x: x.sum(1) > 0),
        ("bfloat16", "integers", lambda x: (x @ x.T) == 0, lambda x: (x @ x.T) > 1e9),
        (
            "bfloat16",
            "integers",
            lambda x: (x @ x.T).argmax(1),
            lambda x: 255 - (x @ x.T).flip(1).argmax(1),
        ),
        ("bfloat16", "integers", lambda x: (x > 0).double().sum(1) >= 8, lambda x: (x > 0).sum(1) > 8),
        (
            "bfloat16",
            "integers",
            lambda x: x.mean(1).round().int(),
            lambda x: (x.mean(1).abs() + 0.5).floor().mul(x.mean(1).sign()).int(),
        ),
        (
            "bfloat16",
            "integers",
            lambda x: x.where(x.sum(1, keepdim=True) > 0, -x),
            lambda x: x.where(x.sum(1, keepdim=True) >= 0, -x),
        ),
        ("bfloat16", "integers", lambda x: x.sum(1).sign(), lambda x: x.sum(1).add(0.5).sign()),
    ],
    ids=["input", "sum", "product", "argmax", "count", "mean", "where", "sign"],
)
def test_steps_of_exact_numbers_go_one_way(dtype, dist, right, wrong):
    x = make_tensor((256, 16), dtype, device="cpu", seed=1, dist=dist)
    options = {"reference": right, "reduction": 256}

    def kernel(function):
        def launch(x):
            out = function(x.float())
            return out.float() if out.dtype == torch.float64 else out

        return launch

    check_kernel(kernel(right), x, **options)
    failure(kernel(wrong), x, **options)


def test_equal_keys_are_sorted_as_they_come():
    keys = make_tensor((16, 1024), "float8_e4m3fn", device="cpu", seed=3)
    values = tensor(16, 1024, dtype="bfloat16", seed=4)

    def by_key(k, v):
        return v.gather(1, k.float().argsort(dim=1, stable=True))

    check_kernel(by_key, keys, values, reference=by_key)
    failure(lambda k, v: by_key(k, v).flip(0), keys, values, reference=by_key)


def test_steps_of_computed_numbers_may_go_either_way():
    """Equal sums in float64 are not in float32, and a quantised quotient may lie at a tie."""
    x = tensor(64, 1000, dtype="float32", seed=1)
    total = x.double().sum(1)
    x[:, 0] -= total.float()  # nearly 0 now

    def sign(x):
        return x.flip(1).cumsum(1)[:, -1].sign()

    check_kernel(sign, x, reference=lambda x: x.sum(1).sign(), reduction=1000, vary_layout=False)


def test_every_run_of_the_reference_is_counted():
    runs = []

    def reference(x):
        runs.append(x)
        return quantise(x)

    report = check_kernel(quantising, tensor(64, 1000), reference=reference, vary_layout=False)
    assert report.reference_runs == len(runs) == 7  # exact, three times deciding and moved


@pytest.mark.parametrize(
    ("reference", "wrong"),
    [
        (
            lambda x: torch.where(torch.arange(100, dtype=x.dtype) / 100 < 0.75, x, 0),
            lambda x: torch.where(torch.arange(100) <= 75, x, 0),
        ),
        (
            lambda x: x * (torch.arange(100, dtype=x.dtype) / 10).floor(),
            lambda x: x * ((torch.arange(100) - (torch.arange(100) == 30).long()) // 10),
        ),
    ],
)
def test_positions_that_are_divided_are_where_they_are(reference, wrong):
    x = tensor(6, 100, dtype="float32")
    check_kernel(reference, x, reference=reference)
    assert "6 of 600 elements" in failure(wrong, x, reference=reference)


def test_elements_behind_a_step_are_counted_over_all_parts(monkeypatch):
    monkeypatch.setattr("pytest_cutile.correctness.guards.launch.SMALL_BYTES", 0)
    monkeypatch.setattr("pytest_cutile.correctness.error_model.parts.PART_ELEMENTS", 1 << 10)
    x = tensor(512, 100, dtype="bfloat16", seed=4)
    axes = {"x": ("rows", None), "output": ("rows", None)}
    report = check_kernel(quantising, x, reference=quantise, independent=axes)
    assert report.parts > 1
    assert report.bound.count("of them as rounding makes them") == 1
