"""What happened to a reduced dimension: the reference is run without a tile of it, or with its padding.

If its result is what the kernel returned, that is the bug: a loop that ends early, padding in a sum.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch

from pytest_cutile.correctness.error_model.parts import OUTPUT
from pytest_cutile.correctness.error_model.running import ReferenceCall
from pytest_cutile.correctness.errors import ReferenceFailed
from pytest_cutile.correctness.explain.output import WrongOutput
from pytest_cutile.correctness.on_cpu import SECONDS, OnCpu, on_cpu
from pytest_cutile.tile.tensors.trees import map_tensors, named_tensors, tensors_in

DimensionChange: TypeAlias = Callable[[torch.Tensor, int], torch.Tensor]
"""Changes a dimension of a tensor."""
_CHOICES = 8
"""Ways to choose one of several dimensions of that size in each argument, that are tried."""
_TILES = (16, 32, 64, 128, 256)
_LEAST = 16
"""Wrong elements from which an agreement is no chance."""
_SAME = 1e-3
"""Share of the errors' energy that rounding may leave where an explanation is right."""


def find_reduced(output: WrongOutput, call: ReferenceCall, size: int) -> list[str]:
    """Say that terms of each sum are missing or count twice, or that padding is among them.

    `size` is the length of the dimension that is reduced. The reference runs on the CPU: indices among its
    arguments may reach beyond what is left of another one.
    """
    on_the_cpu = on_cpu(call)
    if size < 2 or on_the_cpu is None:  # noqa: PLR2004 - nothing is reduced
        return []
    end = time.monotonic() + SECONDS
    out, exact = output.out.double(), output.exact.double()
    usable = output.wrong & out.isfinite() & exact.isfinite()
    got, y = out[usable], exact[usable]
    errors = float((got - y).square().sum())
    if int(usable.sum()) < _LEAST or not errors:
        return []
    for text, twice, change in _changes(size):
        for changed in _changed(on_the_cpu, size, change):
            if time.monotonic() > end:
                return []
            try:
                result = dict(named_tensors(changed.run(OnCpu()), OUTPUT)).get(output.name)
            except ReferenceFailed:  # its shapes do not go together
                continue
            if result is None or result.dim() != out.dim():
                continue
            other = result.to(out.device)[tuple(slice(0, length) for length in out.shape)]
            if other.shape != out.shape:
                continue
            candidates = {text: other[usable].double()}
            if twice:
                candidates[twice] = 2 * y - candidates[text]
            for said, expected in candidates.items():
                if float((got - expected).square().sum()) < _SAME * errors:
                    return [said]
    return []


def _changes(size: int) -> Iterator[tuple[str, str, DimensionChange]]:
    """Yield what may have happened, in words, how it reads the other way round, and inputs changed so."""
    seen = set()
    for tile in _TILES:
        last = size - (size - 1) // tile * tile
        for kept, which, count in ((slice(0, -last), "last", last), (slice(tile, None), "first", tile)):
            if tile < size and (which, count) not in seen:
                seen.add((which, count))
                terms = f"the {which} {count} of the {size:,} terms of each sum"
                yield f"{terms} are missing", f"{terms} are counted twice", functools.partial(_cut, kept)
    for longer in sorted({-(-size // tile) * tile for tile in _TILES} | {1 << (size - 1).bit_length()}):
        if longer > size:
            padding = (
                f"as if each sum of {size:,} terms went over {longer - size:,} more inputs, all of them 0"
            )
            yield f"{padding}: is the padding masked?", "", functools.partial(_pad, longer)


def _cut(kept: slice, tensor: torch.Tensor, dim: int) -> torch.Tensor:
    return tensor[(*[slice(None)] * dim, kept)]


def _pad(longer: int, tensor: torch.Tensor, dim: int) -> torch.Tensor:
    more = [longer - length if at == dim else length for at, length in enumerate(tensor.shape)]
    return torch.cat((tensor, tensor.new_zeros(more)), dim)


def _changed(call: ReferenceCall, size: int, change: DimensionChange) -> Iterator[ReferenceCall]:
    """Yield the call with a dimension of that size changed in each argument; which one is tried."""
    arguments = tensors_in((call.args, call.kwargs))
    dims: list[list[int | None]] = [
        [dim for dim, length in enumerate(tensor.shape) if length == size] or [None] for tensor in arguments
    ]
    for chosen in itertools.islice(itertools.product(*dims), _CHOICES):
        order = iter(chosen)

        def apply(tensor: torch.Tensor, order: Iterator[int | None] = order) -> torch.Tensor:
            dim = next(order)
            return tensor if dim is None else change(tensor, dim)

        args, kwargs = map_tensors(apply, (dict(call.args), dict(call.kwargs)))
        yield dataclasses.replace(call, args=args, kwargs=kwargs)
