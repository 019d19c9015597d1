import math

import pytest
import torch

from pytest_cutile.tile.tensors.rounding import round_to, spacing
from pytest_cutile.words.formats import FORMATS


def interesting_values(name):
    """Neighbours, halves and near-halves of random values of a format, in every binade and beyond."""
    fmt = FORMATS[name]
    generator = torch.Generator().manual_seed(0)
    lowest, highest = fmt.min_exponent - fmt.precision - 2, math.frexp(fmt.max_finite)[1] + 1
    exponents = torch.randint(lowest, highest + 1, (40_000,), generator=generator)
    values = torch.ldexp(torch.rand(40_000, dtype=torch.float64, generator=generator) + 1.0, exponents - 1)
    grid = round_to(values, fmt)
    grid = torch.where(grid.isfinite(), grid, fmt.max_finite)
    half = spacing(grid, fmt) / 2
    nudge = half * 2.0**-20
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e300, 5e-324], dtype=torch.float64)
    all_values = torch.cat([values, grid, grid + half, grid + half + nudge, grid + half - nudge, special])
    return torch.cat([all_values, -all_values])


def assert_same(left, right):
    same = (left == right) | (left.isnan() & right.isnan())
    assert bool(same.all()), (left[~same][:5], right[~same][:5])


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_agrees_with_the_casts_of_torch(name):
    values = interesting_values(name)
    if name != "float32":  # torch casts float64 to 16 bits by way of float32: round once only
        values = values[(values.float().double() == values) | values.isnan()]
    assert_same(round_to(values, FORMATS[name]), values.to(getattr(torch, name)).double())


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_agrees_with_a_search_of_every_fp8_value(name):
    fmt = FORMATS[name]
    table = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(getattr(torch, name)).double()
    table = table[table.isfinite() & ~((table == 0) & table.signbit())].sort().values
    assert table.max() == fmt.max_finite
    values = interesting_values(name)
    values = values[values.abs() <= fmt.max_finite]
    after = torch.searchsorted(table, values).clamp(1, len(table) - 1)
    below, above = table[after - 1], table[after]
    down, up = values - below, above - values
    # a tie goes to the even significand, which is an even multiple of the spacing
    even_below = (below / spacing(torch.minimum(below.abs(), above.abs()), fmt)) % 2 == 0
    expected = torch.where((down < up) | ((down == up) & even_below), below, above)
    assert_same(round_to(values, fmt), expected)


@pytest.mark.parametrize(
    ("name", "value", "plain", "saturated"),
    [
        ("float16", 65519.99, 65504.0, 65504.0),
        ("float16", 65520.0, math.inf, 65504.0),
        ("float8_e4m3fn", 464.0, 448.0, 448.0),
        ("float8_e4m3fn", -464.1, math.nan, -448.0),
        ("float8_e5m2", 61439.0, 57344.0, 57344.0),
        ("float8_e5m2", -61440.0, -math.inf, -57344.0),
        ("float8_e4m3fn", 2.0**-10, 0.0, 0.0),
        ("float8_e4m3fn", 2.0**-10 * 1.001, 2.0**-9, 2.0**-9),
    ],
)
def test_overflow_and_underflow(name, value, plain, saturated):
    values = torch.tensor([value], dtype=torch.float64)
    assert_same(round_to(values, FORMATS[name]), torch.tensor([plain], dtype=torch.float64))
    assert_same(
        round_to(values, FORMATS[name], saturate=True), torch.tensor([saturated], dtype=torch.float64)
    )


def test_tf32_keeps_ten_bits_of_the_fraction():
    values = torch.tensor([1 + 2.0**-10, 1 + 2.0**-11, 1 + 3 * 2.0**-11], dtype=torch.float64)
    assert round_to(values, FORMATS["tfloat32"]).tolist() == [1 + 2.0**-10, 1.0, 1 + 2.0**-9]


def test_float64_is_left_alone():
    values = torch.tensor([1 / 3, 5e-324, 1.7e308], dtype=torch.float64)
    assert torch.equal(round_to(values, FORMATS["float64"]), values)
    assert spacing(values, FORMATS["float64"]).tolist()[0] == math.ulp(1 / 3)
