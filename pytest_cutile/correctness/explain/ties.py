"""Wrong indices that point at equal values: the kernel and its reference break a tie otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from pytest_cutile.tensors.trees import named_tensors

_NEAR = 1e-3
"""Of the largest value: values that are nearer may be equal where the kernel compares them."""


def find_ties(
    out: torch.Tensor, exact: torch.Tensor, wrong: torch.Tensor, arguments: Mapping[str, Any]
) -> list[str]:
    """Say that wrong indices, as of argmax and top-k, point at values that are equal, or nearly so.

    Args:
        out: An output of integers.
        exact: The reference's result.
        wrong: Which elements are wrong.
        arguments: Those of the launch, by name.
    """
    if out.is_floating_point() or out.is_complex() or out.dtype == torch.bool or not wrong.any():
        return []
    for argument, value in arguments.items():
        for name, values in named_tensors(value, argument):
            for dim in _indexed(values, out):
                found, expected, where = (
                    tensor if out.dim() == values.dim() else tensor.unsqueeze(dim)
                    for tensor in (out.long(), exact.long(), wrong)
                )
                if not all(
                    0 <= int(end) < values.shape[dim] for one in (found, expected) for end in one.aminmax()
                ):
                    continue
                of = values.double()
                off = float((of.gather(dim, found) - of.gather(dim, expected)).abs()[where].max())
                near = f"that differ by at most {off:.2g}: ties, where they are rounded"
                if off <= _NEAR * float(of.abs().max()):
                    how = near if off else "that are equal: the reference breaks ties otherwise"
                    return [f"the wrong indices point at values of {name} {how}"]
    return []


def _indexed(values: torch.Tensor, out: torch.Tensor) -> Iterator[int]:
    """Yield the dimensions of `values` that `out` may have indices of, all others being the same."""
    if not values.is_floating_point():
        return
    for dim in range(values.dim()):
        kept = out.shape if out.dim() < values.dim() else (*out.shape[:dim], *out.shape[dim + 1 :])
        if tuple(kept) == (*values.shape[:dim], *values.shape[dim + 1 :]):
            yield dim
