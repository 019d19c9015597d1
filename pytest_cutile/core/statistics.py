"""The few statistics that the speed gate needs, on times in microseconds."""

from __future__ import annotations

import math
from collections.abc import Sequence


def median(values: Sequence[float]) -> float:
    """Return the median of `values`."""
    import statistics  # it takes 10 ms to import, and most runs of pytest measure nothing

    return statistics.median(values)


def relative_spread(values: Sequence[float]) -> float:
    """Return the half interquartile range of `values` over their median (0 for a single value).

    It is robust: a host hiccup in a few samples does not move it. For a normal distribution it is
    0.6745 standard deviations.
    """
    if len(values) < 2:  # noqa: PLR2004 - a spread needs two values
        return 0.0
    import statistics

    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return (third - first) / 2 / median(values)


def usable(values: Sequence[float]) -> bool:
    """Say whether `values` are times at all: at least one, all finite and positive."""
    return bool(values) and all(math.isfinite(value) and value > 0 for value in values)
