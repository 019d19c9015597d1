"""GELU, untuned: a kernel of `research.static_prediction` whose tile and tiles per block can be varied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import cuda.tile as ct
import torch

from pytest_cutile import Case, KernelSpec, Work

ConstInt: TypeAlias = ct.Constant[int]


@dataclass(frozen=True, kw_only=True)
class GeluConfig:
    """How the tensor is cut."""

    tile: int = 1024
    """Elements per tile."""
    tiles_per_block: int = 1
    """Tiles that a block computes, in an unrolled loop."""


def choose_config() -> GeluConfig:
    """Return the one configuration."""
    return GeluConfig()


@ct.kernel
def gelu_kernel(X: ct.Array, Y: ct.Array, TILE: ConstInt, TILES: ConstInt) -> None:
    """Compute `TILES` tiles of `TILE` elements."""
    for at in ct.static_iter(range(TILES)):
        index = (TILES * ct.bid(0) + at,)
        x = ct.load(X, index, (TILE,)).astype(ct.float32)
        y = 0.5 * x * (1.0 + ct.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))
        ct.store(Y, index, y.astype(Y.dtype))


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Return GELU (tanh) of `x`, `[N]`, N a multiple of a block's elements."""
    config = choose_config()
    y = torch.empty_like(x)
    grid = (x.numel() // (config.tile * config.tiles_per_block),)
    ct.launch(torch.cuda.current_stream(), grid, gelu_kernel, (x, y, config.tile, config.tiles_per_block))
    return y


def inputs(make_tensor: Callable[..., torch.Tensor], *, n: int) -> tuple[torch.Tensor]:
    """Make x, `[n]`."""
    return (make_tensor((n,), "float16"),)


SPEC = KernelSpec(
    name="gelu",
    launch=gelu,
    reference=lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    inputs=inputs,
    work=lambda n: Work(bytes=4.0 * n, dtype="float16"),
    cases=[Case(name="fp16-134217728", params={"n": 2**27}, speed=True)],
)
