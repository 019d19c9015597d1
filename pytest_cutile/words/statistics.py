"""The few statistics that the speed gate needs. Pure Python: a quantile is no reason to install scipy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

SHORTEST_US, LONGEST_US = 1e-4, 1e9
"""What a time in microseconds is between: else the unit is wrong."""


def median(values: Sequence[float]) -> float:
    import statistics  # it takes 10 ms to import, and most runs of pytest measure nothing

    return statistics.median(values)


def median_of_known(values: Iterable[float | None]) -> float | None:
    """Return the median of those values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


TRIMMED_FROM = 5
"""Number of values from which the lowest and the highest are left out of a trimmed mean."""


def trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean of `values` without the lowest and the highest of five or more."""
    return mean(sorted(values)[1:-1] if len(values) >= TRIMMED_FROM else values)


def standard_error_of_mean(values: Sequence[float]) -> float:
    """Return the standard error of the mean of two or more values, none of them trimmed."""
    return math.sqrt(sum_of_squares(values) / (len(values) - 1) / len(values))


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the trimmed mean of two or more values.

    With trimming it follows from the winsorized variance, in which the lowest and the highest value are
    replaced by their neighbours (Tukey and McLaughlin 1963, Sankhya A 25, 331).
    """
    count = len(values)
    if count < TRIMMED_FROM:
        return standard_error_of_mean(values)
    inner = sorted(values)[1:-1]
    return standard_error_of_mean([inner[0], *inner, inner[-1]]) / (1 - 2 / count)


def relative_spread(values: Sequence[float]) -> float:
    """Return half the range of the middle 90 % of `values`, over their median (0 for a single value).

    A host hiccup in one sample of twenty does not move it; a kernel that is slow in one launch of five does.
    For a normal distribution it is 1.645 standard deviations.
    """
    if len(values) < 2:  # noqa: PLR2004 - a spread needs two values
        return 0.0
    import statistics

    twentieths = statistics.quantiles(values, n=20, method="inclusive")
    return (twentieths[-1] - twentieths[0]) / 2 / median(values)


def usable(values: Sequence[float]) -> bool:
    """Say whether `values` are times in microseconds: at least one, all between 0.1 ns and 1000 s."""
    return bool(values) and all(SHORTEST_US < value < LONGEST_US for value in values)


def sum_of_squares(values: Sequence[float]) -> float:
    """Return the sum of the squared deviations of `values` from their mean."""
    if not values:
        return 0.0
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values)


@lru_cache(maxsize=1024)
def t_quantile(probability: float, dof: float) -> float:
    """Return the quantile of Student's t distribution with `dof` degrees of freedom, a whole number or not.

    The distribution function is inverted by bisection; accurate to 1e-8 for probabilities down to 1e-12 and
    a million degrees of freedom. Of infinitely many it is the normal distribution's.
    """
    if not (0 < probability < 1 and dof > 0):
        raise ValueError(f"no quantile of t for probability {probability} and {dof} degrees of freedom")
    if math.isinf(dof):
        import statistics

        return statistics.NormalDist().inv_cdf(probability)
    tail = min(probability, 1 - probability)
    high = 1.0
    while t_tail(high, dof) > tail:
        high *= 2
    low = 0.0
    while high - low > 1e-10 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, dof) > tail else (low, middle)
    return math.copysign((low + high) / 2, probability - 0.5)


def t_tail(t: float, dof: float) -> float:
    """Return the probability that a variable of Student's t distribution exceeds `t`, which is at least 0."""
    return _incomplete_beta(dof / 2, 0.5, dof / (dof + t * t)) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function, by its continued fraction.

    Source: NIST Digital Library of Mathematical Functions, 8.17.22 (https://dlmf.nist.gov/8.17#v).
    """
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly, its mirror image does not
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    # Lentz's method, from the front: 1 / (1 + d1 / (1 + d2 / (1 + ...))).
    tiny = 1e-300
    value, c, d = 1.0, 1.0, 0.0
    for n in range(1, 1000):
        m = n // 2
        if n % 2:
            factor = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            factor = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + factor * d or tiny)
        c = 1 + factor / c or tiny
        value *= c * d
        if abs(c * d - 1) < 1e-15:  # noqa: PLR2004
            break
    return front / a / value
