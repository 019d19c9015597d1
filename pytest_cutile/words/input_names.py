"""Names of what inputs hold and how they lie in memory, as `make_tensor`, cases and test ids spell them."""

from __future__ import annotations

NORMAL = "normal"
"""Inputs as they are where nothing else is asked for."""
DISTRIBUTIONS = (
    *("normal", "uniform", "integers", "zeros", "ones"),
    *("outliers", "offset", "negative", "small", "tiny", "one_hot", "nan", "inf"),
)
"""What values a tensor holds; `pytest_cutile.tile.tensors.make_tensor.make_tensor` says what each means."""

REVEALING = ("integers", "outliers", "offset", "negative", "small", "tiny", "one_hot", "nan", "inf")
"""Distributions that reveal what normal values hide; small cases of declared kernels are checked with each.

"integers": a wrong index is no rounding error, and exact sums must come out exact. "outliers": a lost
element, a wrong maximum, an overflow. "offset", "negative": padding that is taken for values, sums that
cancel. "small", "tiny": an eps in the wrong place, flushed subnormals. "one_hot": rows and columns that are
mixed up. "nan", "inf": elements that leak into results that are none of theirs.
"""

LAYOUTS = ("contiguous", "padded", "transposed", "shifted")
"""How a tensor lies in memory.

"padded": rows lie a few elements apart. "transposed": the last two axes are swapped in memory. Vectors are
every second element in both. "shifted": contiguous, but for the address of the first element, which is
aligned to one element only.
"""
