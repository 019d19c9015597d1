"""Makes kernels of one operation each."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import cuda.tile as ct
import torch

TILE = 256


def unary(function: Callable[..., Any]) -> Any:
    """Return a kernel of `function(x)`."""

    @ct.kernel
    def kernel(x, out, TILE: ct.Constant[int]):
        block = ct.bid(0)
        ct.store(out, (block,), function(ct.load(x, (block,), (TILE,))))

    return kernel


def binary(function: Callable[..., Any]) -> Any:
    """Return a kernel of `function(x, y)`."""

    @ct.kernel
    def kernel(x, y, out, TILE: ct.Constant[int]):
        block = ct.bid(0)
        a, b = ct.load(x, (block,), (TILE,)), ct.load(y, (block,), (TILE,))
        ct.store(out, (block,), function(a, b))

    return kernel


def ternary(function: Callable[..., Any]) -> Any:
    """Return a kernel of `function(x, y, z)`."""

    @ct.kernel
    def kernel(x, y, z, out, TILE: ct.Constant[int]):
        block = ct.bid(0)
        a, b, c = (
            ct.load(x, (block,), (TILE,)),
            ct.load(y, (block,), (TILE,)),
            ct.load(z, (block,), (TILE,)),
        )
        ct.store(out, (block,), function(a, b, c))

    return kernel


def cast(dtype: Any, mode: ct.RoundingMode | None = None) -> Any:
    """Return a kernel that converts to `dtype`, and from there to what `out` has, if that is another."""

    @ct.kernel
    def kernel(x, out, TILE: ct.Constant[int]):
        block = ct.bid(0)
        there = ct.astype(ct.load(x, (block,), (TILE,)), dtype, rounding_mode=mode)
        ct.store(out, (block,), ct.astype(there, out.dtype))

    return kernel


def bitcast(dtype: Any) -> Any:
    """Return a kernel that reads the bits of `x` as `dtype`."""

    @ct.kernel
    def kernel(x, out, TILE: ct.Constant[int]):
        block = ct.bid(0)
        ct.store(out, (block,), ct.bitcast(ct.load(x, (block,), (TILE,)), dtype))

    return kernel


def in_mode(function: Callable[..., Any], mode: ct.RoundingMode, operands: int) -> Any:
    """Return `function` of one to three operands with a rounding mode."""

    def one(a):
        return function(a, rounding_mode=mode)

    def two(a, b):
        return function(a, b, rounding_mode=mode)

    def three(a, b, c):
        return function(a, b, c, rounding_mode=mode)

    return (one, two, three)[operands - 1]


def run(kernel: Any, inputs: list[torch.Tensor], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Run a kernel on vectors of one length."""
    inputs = [tensor.cuda() for tensor in inputs]
    out = torch.empty(inputs[0].shape, dtype=dtype or inputs[0].dtype, device="cuda")
    blocks = -(-out.numel() // TILE)
    ct.launch(torch.cuda.current_stream(), (blocks,), kernel, (*inputs, out, TILE))
    return out.cpu()


OPERATORS = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "shl": operator.lshift,
    "shr": operator.rshift,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}


@ct.kernel
def product(x: ct.Array, out: ct.Array, n: ct.Constant[int]) -> None:
    tile = ct.load(x, (0, 0), (n, n))
    ct.store(out, (0, 0), ct.mma(tile, tile, ct.zeros((n, n), ct.float32)))
