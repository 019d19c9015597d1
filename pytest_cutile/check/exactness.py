"""Whether all that a reference computes is exact in a kernel's arithmetic, too: then no error is excused.

Products and sums of small integers are: each partial sum, in whatever order it is formed, is an integer that
the accumulator holds. A kernel then has to return the correctly rounded result, bit by bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_cutile.core.tolerance import FLOAT32
from pytest_cutile.gpu.rounding import round_to
from pytest_cutile.gpu.trees import map_tensors, named_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from pytest_cutile.core.tolerance import FloatFormat

EIGHT_BIT_SUM = 2.0**13
"""Largest partial sum of 8-bit products that is exact: Hopper's tensor cores keep 13 fraction bits of it
(DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 3.3.2, says about 14 bits)."""
_PRODUCTS = frozenset({"mm", "bmm", "mv", "dot"})
_SUMS = frozenset({"sum", "add"})
_KEEPS_VALUES = frozenset(
    {
        *("clone", "_to_copy", "copy", "cat", "stack", "index", "index_select", "gather", "repeat", "flip"),
        *("_unsafe_view", "lift_fresh", "zeros", "zeros_like", "new_zeros", "neg", "abs", "relu", "roll"),
        *("maximum", "minimum", "amax", "amin", "tril", "triu", "constant_pad_nd"),
    }
)


class Exactness:
    """Follows a reference, operator by operator, for as long as all of it is exact.

    Args:
        operands: what tensor cores round the operands of matrix products to.
    """

    def __init__(self, operands: FloatFormat) -> None:
        self.holds = True
        """Whether every operator so far was."""
        self._has_products = False
        self._operands = operands
        self._largest = EIGHT_BIT_SUM if operands.eight_bit else 2.0**FLOAT32.precision

    def see(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Judge one aten operator that is no view, called `name`, with these arguments."""
        self._has_products |= name in _PRODUCTS
        if self.holds and name not in _KEEPS_VALUES:
            self.holds = name in _PRODUCTS | _SUMS and self._is_exact(name in _PRODUCTS, func, args, kwargs)

    def covers(self, outputs: Any) -> bool:
        """Return whether these outputs are exact.

        Only where matrices are multiplied: a reference that computes outside of torch shows no operators.
        """
        tensors = [each for _, each in named_tensors(outputs, "output") if each.dtype.is_floating_point]
        return self.holds and self._has_products and all(map(_is_whole, tensors))

    def _is_exact(
        self, product: bool, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        import torch

        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        if kwargs.get("alpha", 1) != 1 or any(each.is_complex() for each in tensors):
            return False
        if not all(map(_is_whole, tensors)):
            return False
        if product and not all(bool((round_to(each, self._operands) == each).all()) for each in tensors):
            return False
        # No partial sum, in whatever order, is larger than the sum of the magnitudes.
        bound = func(*map_tensors(torch.Tensor.abs, args), **kwargs)
        return bound.numel() == 0 or bool(bound.max() <= self._largest)


def _is_whole(tensor: torch.Tensor) -> bool:
    return bool((tensor == tensor.round()).all())
