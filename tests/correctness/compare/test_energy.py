"""Errors that no single element shows: the energy and the slope of the mismatch."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_cutile.correctness.check import CheckReport, KernelMismatch, check_kernel
from pytest_cutile.correctness.compare import elements
from pytest_cutile.correctness.compare.elements import Bound, ElementComparison, compare
from pytest_cutile.correctness.compare.energy import expected_jumps
from pytest_cutile.correctness.error_model.exactness import common_rounding
from pytest_cutile.correctness.error_model.injection import inexact_in
from pytest_cutile.correctness.error_model.spread import Spread, matrix_view
from pytest_cutile.correctness.error_model.tolerance import ErrorModel, sigmas_for
from pytest_cutile.tile.tensors.make_tensor import make_tensor
from pytest_cutile.tile.tensors.rounding import round_to, spacing
from pytest_cutile.words.formats import BFLOAT16, FLOAT8_E4M3FN, FLOAT16, FLOAT32, FORMATS, FloatFormat

SHAPE = (2, 3, 128, 64)
ULPS = 0.4
"""Standard deviation of the noise in these tests, in ulps of the output."""


def exact_values(seed: int, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    """Return values of both signs with magnitudes from 1 to 2, where the spacing is the same."""
    values = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (values - 0.5) * 2 + (values - 0.5).sign()


def noise_of(exact: torch.Tensor, target: FloatFormat = BFLOAT16, ulps: float = ULPS) -> torch.Tensor:
    return ulps * spacing(exact, target)


def judge(out: torch.Tensor, exact: torch.Tensor, sigma: torch.Tensor, **options: Any) -> ElementComparison:
    """Compare with a bound that is made of noise of standard deviation `sigma` alone."""
    model = ErrorModel(
        reduction=1,
        sigmas=sigmas_for(exact.numel()),
        unit=1e-30,  # nothing but the noise that is given
    )
    bound = Bound(
        target=options.pop("target", BFLOAT16),
        model=model,
        accumulation=Spread.none(exact),
        operands=Spread(matrix_view(sigma.square())),
        policy=None,
        common=0.0,
    )
    return compare(out, exact, bound)


def written(exact: torch.Tensor, noise: torch.Tensor, target: FloatFormat = BFLOAT16) -> torch.Tensor:
    return round_to(exact + noise, target)


def normal(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 10_000))


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.1, 0.3, 0.59, 0.61, 1.0, 3.0])
@pytest.mark.parametrize("distance", [0.0, 0.2, 0.45, 0.5, 0.8])
def test_the_expected_jumps_is_that_of_rounded_noise(distance, noise):
    """By integration over the noise; there must be no less, and little more below one ulp of bias."""
    z = torch.linspace(-8, 8, 400_001, dtype=torch.float64)
    weight = torch.exp(-z * z / 2)
    rounded = torch.floor(distance + noise * z + 0.5)
    true = float((rounded.square() * weight).sum() / weight.sum())
    given = float(expected_jumps(torch.tensor([distance]), torch.tensor([noise]))[1])
    if noise == 0 and distance == 0.5:
        true = 0.5  # a tie may go either way
    assert given == pytest.approx(true, rel=0.02, abs=2e-3)


@pytest.mark.parametrize("distance", [1.0, 1.49, 1.51, 2.4, 7.6])
def test_beyond_an_ulp_of_bias_the_energy_is_bounded_from_above(distance):
    given = float(expected_jumps(torch.tensor([distance]), torch.tensor([0.2]))[1])
    assert round(distance) ** 2 <= given <= 4 * distance**2


@pytest.mark.slow
@pytest.mark.parametrize("common", ["nothing", "rows", "columns"])
@pytest.mark.parametrize("target", [BFLOAT16, FLOAT32], ids=["bfloat16", "float32"])
def test_noise_as_large_as_allowed_passes_whatever_it_is_common_to(common, target):
    shapes = {"nothing": SHAPE, "rows": (*SHAPE[:3], 1), "columns": (SHAPE[3],)}
    for seed in range(40):
        exact = exact_values(seed)
        sigma = noise_of(exact, target)
        result = judge(
            written(exact, sigma * normal(shapes[common], seed), target), exact, sigma, target=target
        )
        assert not result.failed
        assert 0.1 < result.together.energy < 1


def test_rare_flips_pass():
    for seed in range(40):
        exact = exact_values(seed)
        sigma = noise_of(exact, ulps=1e-4)
        out = written(exact, sigma * normal(SHAPE, seed))
        assert not judge(out, exact, sigma).failed


def failures(out: torch.Tensor, exact: torch.Tensor, sigma: torch.Tensor) -> list[str]:
    result = judge(out, exact, sigma)
    assert result.outside is None  # what this is about: no element by itself shows it
    return list(result.failed)


def test_truncation_is_a_slope():
    exact = exact_values(1)
    sigma = noise_of(exact)
    unit = spacing(exact, BFLOAT16)
    out = ((exact + sigma * normal(SHAPE, 1)) / unit).trunc() * unit
    assert "slope in all of it" in failures(out, exact, sigma)


@pytest.mark.parametrize("factor", [1.001, 0.999])
def test_a_factor_far_below_an_ulp_is_a_slope(factor):
    exact = exact_values(1)
    sigma = noise_of(exact)
    out = written(exact * factor, sigma * normal(SHAPE, 1))
    assert failures(out, exact, sigma) == ["slope in all of it"]


def test_an_allowed_common_error_is_no_slope():
    exact = exact_values(1)
    sigma = noise_of(exact)
    out = written(exact * 1.001, sigma * normal(SHAPE, 1))
    bound = Bound(
        target=BFLOAT16,
        model=ErrorModel(reduction=1, sigmas=8.0, unit=1e-30),
        accumulation=Spread.none(exact),
        operands=Spread(matrix_view(sigma.square())),
        policy=None,
        common=0.002,
    )
    assert not compare(out, exact, bound).failed


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ((slice(None), slice(None), slice(None), slice(None)), "in all of it"),
        ((1, 2), "in [1, 2]"),
        ((0, 1, slice(32, 48)), "in rows 160 to 175"),
        ((slice(None), slice(None), slice(None), slice(16, 32)), "in columns 16 to 31"),
    ],
)
def test_more_noise_is_too_much_energy_and_located(where, said):
    exact = exact_values(2)
    sigma = noise_of(exact)
    noise = sigma * normal(SHAPE, 2)
    noise[where] *= 5
    noise.clamp_(-7 * sigma, 7 * sigma)
    assert f"energy {said}" in failures(written(exact, noise), exact, sigma)


def test_less_noise_than_allowed_is_fine():
    exact = exact_values(3)
    result = judge(written(exact, 0 * exact), exact, noise_of(exact))
    assert not result.failed
    assert result.together.energy < 0.1


def test_values_that_repeat_are_left_to_the_interval():
    """All elements are just below a tie, and one unlucky rounding is that of all."""
    exact = torch.full((64, 64), 1.0 + 0.48 * 2.0**-7, dtype=torch.float64)
    sigma = noise_of(exact, ulps=0.005)
    out = written(exact, 5 * sigma)
    assert bool((out != round_to(exact, BFLOAT16)).all())
    assert not judge(out, exact, sigma).failed
    distinct = exact + 1e-9 * torch.rand(64, 64, dtype=torch.float64)
    assert judge(out, distinct, sigma).failed


def test_chunks_change_nothing(monkeypatch):
    exact = exact_values(4, (48, 40))
    sigma = noise_of(exact)
    out = written(exact * 1.002, sigma * normal((48, 40), 4))
    results = []
    for chunk in (7, 64, 10_000):
        monkeypatch.setattr(elements, "CHUNK", chunk)
        results.append(judge(out, exact, sigma))
        assert results[-1].failed == results[0].failed
    assert results[0].together.energy == pytest.approx(results[2].together.energy)
    assert results[0].together.slope == pytest.approx(results[2].together.slope)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (), (1,), (5,), (1, 1, 7), (3, 0, 2)])
def test_outputs_too_small_to_say_anything(shape):
    exact = torch.ones(shape, dtype=torch.float64)
    assert not judge(exact, exact, 1e-3 * exact).failed


def test_special_and_huge_values_take_no_part():
    exact = exact_values(5, (64, 64))
    exact[3], exact[:, 5], exact[7, 7], exact[8] = torch.inf, torch.nan, 7e4, 0.0
    sigma = noise_of(exact.nan_to_num(1.0, 1.0, 1.0), FLOAT16)
    out = written(exact, 0.5 * sigma, FLOAT16)
    assert not judge(out, exact, sigma, target=FLOAT16).failed
    out[3, 0] = 1.0
    assert judge(out, exact, sigma, target=FLOAT16).failed == ("pattern of NaN and Inf",)


def _products_of_close_values(rounding: Callable[[torch.Tensor], torch.Tensor]) -> CheckReport:
    """Check a product whose left operand lies between 0.999 and 1, where bfloat16 has no number but 1."""
    p = 1 - 1e-3 * torch.rand(64, 128, generator=torch.Generator().manual_seed(0))
    v = torch.randn(128, 64, generator=torch.Generator().manual_seed(1))
    return check_kernel(
        lambda p, v: rounding(p) @ v,
        p,
        v.bfloat16().float(),
        reference=lambda p, v: p @ v,
        reduction=128,
        precision="bfloat16",
    )


def test_roundings_that_all_elements_share_are_no_slope(monkeypatch):
    def to_nearest(p: torch.Tensor) -> torch.Tensor:
        return p.bfloat16().float()

    assert _products_of_close_values(to_nearest).slope < 0.8
    monkeypatch.setattr("pytest_cutile.correctness.error_model.exactness.common_rounding", lambda *_: 0.0)
    with pytest.raises(KernelMismatch, match=r"slope in all of it: out - exact is \+0\.00049"):
        _products_of_close_values(to_nearest)


def test_truncated_operands_are_a_slope_where_roundings_are_shared_too():
    def truncated(p: torch.Tensor) -> torch.Tensor:
        return (p.view(torch.int32) & ~0xFFFF).view(torch.float32)

    with pytest.raises(KernelMismatch, match="slope"):
        _products_of_close_values(truncated)


def _check_silu_in_half(factor: float) -> CheckReport:
    """Check x sigmoid(x) of small x, whose sigmoids lie next to 0.5, all of them rounded to float16."""

    def silu(x: torch.Tensor) -> torch.Tensor:
        return (x.float() * torch.sigmoid(x.float()).half().float() * factor).half()

    x = make_tensor((67, 200), "float16", device="cpu", seed=0, dist="small")
    return check_kernel(silu, x, reference=lambda x: x * torch.sigmoid(x), mid="float16")


def _check_global_norm_in_half(factor: float) -> CheckReport:
    """Check x / |x| with a single norm, rounded to float16."""

    def normalize(x: torch.Tensor) -> torch.Tensor:
        norm = x.float().square().sum().half().float().sqrt().half().float()
        return (x.float() / norm * factor).half()

    x = make_tensor((67, 200), "float16", device="cpu", seed=0)
    return check_kernel(normalize, x, reference=lambda x: x / x.square().sum().sqrt(), mid="float16")


@pytest.mark.parametrize("check", [_check_silu_in_half, _check_global_norm_in_half])
def test_intermediate_results_that_are_rounded_alike_are_no_slope(check):
    check(1.0)
    with pytest.raises(KernelMismatch, match="slope"):
        check(1.002)


@pytest.mark.parametrize("target", [FLOAT16, BFLOAT16, FLOAT8_E4M3FN], ids=lambda target: target.name)
def test_roundings_of_scattered_values_have_nothing_in_common(target):
    assert common_rounding(normal((300, 200), seed=3).exp(), target) < target.unit_roundoff**2


def test_the_message_names_the_test():
    def truncated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        unit = spacing(product(x, w), BFLOAT16)
        return ((product(x, w) / unit).trunc() * unit).bfloat16()

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(x.double(), -1)
        return p.bfloat16().double() @ w.double()

    x = torch.randn(128, 256).bfloat16()
    w = torch.randn(256, 64).bfloat16()
    options: dict[str, Any] = {
        "reference": lambda x, w: torch.softmax(x, -1) @ w,
        "reduction": 256,
    }
    assert check_kernel(lambda x, w: product(x, w).bfloat16(), x, w, **options).slope < 1
    with pytest.raises(KernelMismatch, match=r"slope in all of it: out - exact is -0\.00"):
        check_kernel(truncated, x, w, **options)


@pytest.mark.parametrize("name", [*FORMATS])
def test_inexact_is_what_rounding_changes(name):
    """Over all exponents, values that are held among them, and what is beyond the largest."""
    target = FORMATS[name]
    generator = torch.Generator().manual_seed(1)
    scale = torch.randint(-170, 140, (20_000,), generator=generator)
    x = torch.ldexp(torch.randn(20_000, generator=generator).double(), scale)
    x = torch.cat([x, round_to(x, target), torch.tensor([0.0, -0.0, math.inf, math.nan, 5e-324]).double()])
    in_range = x.abs() <= target.max_finite
    assert torch.equal(inexact_in(x, target), in_range & (round_to(x, target) != x))


@pytest.mark.slow
@pytest.mark.parametrize("size", [20.0, 85.0])
def test_values_just_below_ties_are_no_slope(size):
    """silu(x) y is x y (16 bits, every 2^8th a tie) times a sigmoid that float32 rounds to 1."""
    x = make_tensor((64, 4098), "bfloat16", device="cpu", seed=1) * size

    def gated(x, lost=0.0):
        one, other = x.float().chunk(2, -1)
        return (one * torch.sigmoid(one) * other * (1 - lost)).to(x.dtype)

    def reference(x):
        one, other = x.chunk(2, -1)
        return torch.nn.functional.silu(one) * other

    check_kernel(gated, x, reference=reference)
    with pytest.raises(KernelMismatch, match="slope in all of it"):
        check_kernel(lambda x: gated(x, 2.0**-12), x, reference=reference)


def test_values_whose_squares_no_float_holds_are_compared():
    x = torch.full((16, 32), 1e-38) * torch.rand(16, 32, generator=torch.Generator().manual_seed(0))
    assert check_kernel(lambda x: x**4, x, reference=lambda x: x**4).slope == 0.0
