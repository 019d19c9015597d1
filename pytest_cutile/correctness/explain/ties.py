"""Wrong indices that point at equal values: the kernel and its reference break a tie otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from pytest_cutile.correctness.explain.output import WrongOutput
from pytest_cutile.tile.tensors.dtypes import format_of
from pytest_cutile.tile.tensors.trees import named_tensors
from pytest_cutile.words.formats import FLOAT32

_ROUNDINGS = 4.0
"""Values that are nearer may be equal: in roundings of their dtype, or of float32 if they are computed."""


def find_ties(
    output: WrongOutput, arguments: Mapping[str, Any], compared: Sequence[torch.Tensor]
) -> list[str]:
    """Say that wrong indices, as of argmax and top-k, point at values that are equal, or nearly so.

    `compared` is what the reference sorts or looks for the largest of.
    """
    out = output.out
    if out.is_floating_point() or out.dtype == torch.bool or not output.bad:
        return []
    known = [pair for argument, value in arguments.items() for pair in named_tensors(value, argument)]
    for name, whole in [*known, *(("what the reference compares", values) for values in compared)]:
        values = whole.flatten() if out.dim() == 0 else whole
        for dim in _indexed(values, out):
            off = _farthest(values, output.values, output.exact.long(), output.wrong, dim)
            at = f"the wrong indices point at values of {name} that are equal"
            if off == 0:
                return [f"{at}: the reference breaks ties otherwise"]
            if off is not None and off <= _ROUNDINGS:
                return [f"{at} but for {off:.2g} roundings: ties"]
    return []


def _farthest(
    values: torch.Tensor, indices: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor, dim: int
) -> float | None:
    """Return by how many roundings wrong values differ from the right ones at most; None: no values there."""
    if indices.dim() < values.dim():
        indices, expected, wrong = (tensor.unsqueeze(dim) for tensor in (indices, expected, wrong))
    if not all(0 <= int(end) < values.shape[dim] for one in (indices, expected) for end in one.aminmax()):
        return None
    of = values.double()
    got, right = of.gather(dim, indices), of.gather(dim, expected)
    target = format_of(values.dtype) if values.dtype != torch.float64 else FLOAT32
    unit = 0.0 if target is None else target.unit_roundoff  # integers are equal or not
    apart = torch.where(
        got == right, 0.0, (got - right).abs() / (unit * torch.maximum(got.abs(), right.abs()))
    )
    return float(apart[wrong].nan_to_num(nan=math.inf).max())


def _indexed(values: torch.Tensor, out: torch.Tensor) -> Iterator[int]:
    """Yield the dimensions of `values` that `out` may have indices of, all others being the same."""
    if values.dtype == torch.bool or values.is_complex():
        return
    for dim in range(values.dim()):
        kept = out.shape if out.dim() < values.dim() else (*out.shape[:dim], *out.shape[dim + 1 :])
        if tuple(kept) == (*values.shape[:dim], *values.shape[dim + 1 :]):
            yield dim
