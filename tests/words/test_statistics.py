import math
import random
import statistics as reference

import pytest
from scipy import stats

from pytest_cutile.words.statistics import (
    median,
    relative_spread,
    standard_error,
    sum_of_squares,
    t_quantile,
    trimmed_mean,
    usable,
)


def test_spread_of_one_value_is_zero():
    assert relative_spread([3.0]) == 0.0


def test_spread_estimates_the_normal_deviation():
    generator = random.Random(1)
    values = [generator.gauss(100, 2) for _ in range(20_000)]
    assert relative_spread(values) == pytest.approx(1.645 * 2 / 100, rel=0.03)


def test_one_slow_value_in_five_spreads():
    assert relative_spread([37.5, 37.5, 37.5, 37.5, 50.0] * 8) == pytest.approx(12.5 / 2 / 37.5)


def test_a_host_hiccup_does_not_move_it():
    values = [100.0, 101.0, 99.0, 100.5, 99.5] * 10
    assert relative_spread([*values, 9000.0]) < 1.2 * relative_spread(values)


def test_median_is_the_median():
    assert median([3.0, 1.0, 2.0]) == reference.median([3.0, 1.0, 2.0])


@pytest.mark.parametrize("values", [[], [math.nan], [1.0, math.inf], [0.0], [-1.0, 2.0]])
def test_what_is_no_time_is_not_usable(values):
    assert not usable(values)


def test_times_are_usable():
    assert usable([1.0, 2.5])


@pytest.mark.parametrize(("values", "expected"), [([], 0.0), ([3.0], 0.0), ([1.0, 3.0], 2.0)])
def test_squares_are_of_deviations_from_the_mean(values, expected):
    assert sum_of_squares(values) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [([3.0], 3.0), ([1.0, 2.0, 3.0, 10.0], 4.0), ([-9.0, 1.0, 2.0, 3.0, 99.0], 2.0), ([1.0] * 8, 1.0)],
)
def test_the_extremes_of_five_or_more_values_are_left_out(values, expected):
    assert trimmed_mean(values) == pytest.approx(expected)


@pytest.mark.parametrize("count", [2, 4, 5, 8])
def test_the_standard_error_is_that_of_the_trimmed_mean(count):
    generator = random.Random(count)
    samples = [[generator.gauss(0, 1) for _ in range(count)] for _ in range(8000)]
    true = reference.stdev(map(trimmed_mean, samples))
    estimated = math.sqrt(reference.fmean(standard_error(sample) ** 2 for sample in samples))
    assert estimated == pytest.approx(true, rel=0.1)


@pytest.mark.parametrize(
    ("probability", "dof", "expected"),
    [  # by scipy 1.17.1
        (0.5, 3.0, 0.0),
        (0.95, 1.0, 6.313751514675037),
        (0.975, 10.0, 2.228138851986274),
        (0.05, 2.5, -2.5582186141359364),
        (0.9975, 20.0, 3.1534005329064625),
        (1 - 0.005 / 600, 30.5, 5.103245082617059),
        (1e-9, 8.0, -29.289321118225654),
        (0.95, math.inf, 1.6448536269514722),
    ],
)
def test_quantiles_of_t(probability, dof, expected):
    assert t_quantile(probability, dof) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("dof", [0.5, 1, 2, 3.7, 8, 20, 120, 1e4, 1e6])
def test_quantiles_of_t_are_those_of_scipy(dof):
    for probability in (1e-12, 1e-6, 0.001, 0.3, 0.6, 0.95, 0.995, 1 - 1e-6, 1 - 1e-12):
        expected = stats.t.ppf(probability, dof)
        assert t_quantile(probability, dof) == pytest.approx(expected, rel=1e-8), probability


@pytest.mark.parametrize(("probability", "dof"), [(0.0, 5), (1.0, 5), (0.5, 0), (0.5, -1), (0.5, math.nan)])
def test_there_is_no_such_quantile(probability, dof):
    with pytest.raises(ValueError, match="no quantile of t"):
        t_quantile(probability, dof)
