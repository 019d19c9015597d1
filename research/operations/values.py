"""Values that reach the edges of a dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import torch

from research.operations.example import COUNT

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_EDGES = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.0, 0.1, math.pi, -math.pi / 2, 100.5),
    *(math.inf, -math.inf, math.nan, 65504.0, 65520.0, 448.0, 449.0, 464.0, 57344.0, 61440.0, 1e5, -1e5),
    *(127.0, 127.5, 128.0, -128.0, -128.5, -129.0, 255.0, 255.5, 256.0, 32767.0, 32768.0, -32769.0, 65535.5),
    *(2.0**31, -(2.0**31), 2.0**31 - 1, 2.0**32, 2.0**63, -(2.0**63), 2.0**64, 2.0**24 + 1, 1e30, -1e30),
    *(2.0**-14, 2.0**-15, 2.0**-24, 2.0**-25, 2.0**-126, 2.0**-127, 2.0**-149, 2.0**-150, 1e-30, 88.7, -88.7),
    *(11.0, -11.0, 0.9999999, 1.0000001, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 709.8),
)


@cache
def values(dtype: str, count: int = COUNT) -> torch.Tensor:
    """Return values of a dtype: all if there are no more than `count`, else the edges and random ones.

    Half of the random ones are random bits, half ordinary numbers.
    """
    kind: torch.dtype = getattr(torch, dtype)
    if kind == torch.bool:
        return torch.arange(count) % 3 == 0
    size = torch.empty(0, dtype=kind).element_size()
    bits = _BITS[size]
    if 256**size <= count:
        every = torch.arange(256**size).repeat(count // 256**size)
        signed: torch.Tensor = every - 2 ** (8 * size) * (every >= 2 ** (8 * size - 1))
        return signed.to(bits).view(kind)
    generator = torch.Generator().manual_seed(1)
    limits = torch.iinfo(bits)
    low, high = limits.min, limits.max
    random = torch.randint(low, high, (count,), generator=generator, dtype=bits).view(kind)
    if kind.is_floating_point:
        edges = torch.tensor(_EDGES, dtype=torch.float64)
        ordinary = (torch.randn(count // 2, generator=generator, dtype=torch.float64) * 4).to(kind)
        edges = edges.to(kind)
    else:
        powers = torch.tensor([1 << shift for shift in range(8 * size - 1)])
        edges = torch.cat([powers, -powers, powers - 1, 1 - powers, torch.tensor([low, high, low + 1])])
        edges = edges.to(bits).view(kind)
        ordinary = torch.randint(-20, 20, (count // 2,), generator=generator).to(bits).view(kind)
    patterns = random.view(bits).clone()
    patterns[-len(ordinary) :] = ordinary.view(bits)
    patterns[: len(edges)] = edges.view(bits)[:count]
    return patterns.view(kind)


@cache
def pairs(dtype: str, count: int = COUNT) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pairs of values: edges with edges, then random ones."""
    bits = _bits_of(values(dtype, count))
    few = _bits_of(_few(dtype))
    first, second = bits.clone(), bits.flip(0).roll(17)
    number = len(few) ** 2
    first[:number] = few.repeat_interleave(len(few))
    second[:number] = few.repeat(len(few))
    kind: torch.dtype = getattr(torch, dtype)
    return first.view(kind), second.view(kind)


def _few(dtype: str) -> torch.Tensor:
    """Return less than 200 values: edges and a few others."""
    kind: torch.dtype = getattr(torch, dtype)
    if kind == torch.bool:
        return torch.tensor([False, True])
    if kind.is_floating_point:
        return torch.tensor(_EDGES, dtype=torch.float64).to(kind)
    some = torch.tensor([0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 31, 32, 33, 63, 64, 65, 100])
    bits = _BITS[torch.empty(0, dtype=kind).element_size()]
    limits = torch.iinfo(bits)
    ends = torch.tensor([limits.min, limits.min + 1, limits.max, limits.max - 1, limits.max // 3])
    return torch.cat([some, -some, ends]).to(bits).view(kind)


def _bits_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(_BITS[tensor.element_size()]) if tensor.dtype != torch.bool else tensor


def small_numbers(dtype: str, shape: Sequence[int], seed: int = 1) -> torch.Tensor:
    """Return small whole numbers, of which sums of products are exact in any order."""
    generator = torch.Generator().manual_seed(seed)
    low = 0 if dtype.startswith("uint") else -2
    return torch.randint(low, 3, tuple(shape), generator=generator).to(getattr(torch, dtype))


def normal_numbers(dtype: str, shape: Sequence[int], seed: int = 1) -> torch.Tensor:
    """Return numbers from the normal distribution."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(getattr(torch, dtype))
