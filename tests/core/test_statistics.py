import math
import random
import statistics as reference

import pytest

from pytest_cutile.core.statistics import median, relative_spread, usable


def test_spread_of_one_value_is_zero():
    assert relative_spread([3.0]) == 0.0


def test_spread_estimates_the_normal_deviation():
    generator = random.Random(1)
    values = [generator.gauss(100, 2) for _ in range(20_000)]
    assert relative_spread(values) == pytest.approx(0.6745 * 2 / 100, rel=0.03)


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
