"""Does a baseline kernel still compute what the current one computes? Else its time is no evidence."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_cutile.timing.measure.call import Call
from pytest_cutile.timing.measure.placement import placed_anew

if TYPE_CHECKING:
    import torch

OFF = 0.1
"""A plain bound, since the current kernel has been checked: a tenth of the numbers is off by a tenth."""
MOST_NUMBERS = 1 << 16
"""Numbers of a tensor that are looked at."""


def computes_otherwise(call: Call, baseline: Callable[..., object]) -> bool:
    """Say whether a baseline launcher computes something else than `call`, on the same arguments.

    A kernel whose own results differ as much from launch to launch is not compared.
    """
    if "torch" not in sys.modules:  # nothing can be a tensor
        return False
    current = _result(call)
    other = _result(replace(call, function=baseline))
    return differ(current, other) and not differ(current, _result(call))


def _result(call: Call) -> list[torch.Tensor]:
    """Return numbers of the floating-point tensors that a launch returns, or else of its arguments.

    Not integers: indices of equal values may come in another order, and be right.
    """
    with placed_anew((call.args, call.kwargs)) as arguments:
        returned = call.on(arguments)()
        return numbers_of(returned) or numbers_of(arguments)


def numbers_of(value: Any) -> list[torch.Tensor]:
    """Return numbers of the floating-point tensors in a result, at most `MOST_NUMBERS` of each."""
    from pytest_cutile.tile.tensors.trees import tensors_in

    return [
        tensor.detach().reshape(-1)[:: tensor.numel() // MOST_NUMBERS + 1].cpu().double()
        for tensor in tensors_in(value)
        if tensor.is_floating_point() and "float4" not in str(tensor.dtype)
    ]


def differ(current: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Say whether more of the numbers than `OFF` are off by more than that."""
    if [len(numbers) for numbers in current] != [len(numbers) for numbers in other]:
        return True  # it computes more, or less
    return any(_share_off(*pair) > OFF for pair in zip(current, other, strict=True))


def _share_off(expected: torch.Tensor, actual: torch.Tensor) -> float:
    """Return the share of the finite expected numbers that the actual ones are far from."""
    is_finite = expected.isfinite()
    expected, actual = expected[is_finite], actual[is_finite]
    if not len(expected):
        return 0.0
    limit = OFF * (expected.abs() + expected.abs().mean())
    return 1 - float(((actual - expected).abs() <= limit).double().mean())  # NaN is far
