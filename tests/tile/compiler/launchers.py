"""Kernels and launch code as users write them; a kernel's source must be in a file."""

# mypy: allow-untyped-decorators

from __future__ import annotations

import functools
from typing import Any

import cuda.tile as ct
import torch
from cuda.tile import launch as launch_by_name
from cuda.tile.tune import exhaustive_search


@ct.kernel
def add_kernel(x, y, out, n: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(out, (i,), ct.load(x, (i,), (n,)) + ct.load(y, (i,), (n,)))


@ct.kernel(occupancy=ct.ByTarget(sm_121=2, default=1), opt_level=2)
def matmul_kernel(a, b, out, tm: ct.Constant[int], tn: ct.Constant[int], tk: ct.Constant[int]):
    acc = ct.zeros((tm, tn), dtype=ct.float32)
    for k in range(ct.cdiv(a.shape[1], tk)):
        acc = ct.mma(ct.load(a, (ct.bid(0), k), (tm, tk)), ct.load(b, (k, ct.bid(1)), (tk, tn)), acc)
    ct.store(out, (ct.bid(0), ct.bid(1)), acc.astype(out.dtype))


@ct.kernel
def wrong_shape_kernel(x):
    a = ct.load(x, (0,), (16,))
    b = ct.load(x, (0,), (32,))
    ct.store(x, (0,), a + b)


@ct.kernel
def wrong_dtype_kernel(x):
    ct.store(x, (0,), ct.load(x, (0,), (16,)).astype(ct.float64))


def _helper(x):
    return ct.no_such_function(x)


@ct.kernel
def wrong_in_helper_kernel(x):
    ct.store(x, (0,), _helper(ct.load(x, (0,), (16,))))


@ct.kernel
def wrong_syntax_kernel(x):
    with x:
        pass


@ct.kernel
def huge_tile_kernel(x):
    a = ct.load(x, (0, 0), (16384, 16384))
    ct.store(x, (0, 0), a)


def add(x: torch.Tensor, y: torch.Tensor, tile: int = 128) -> torch.Tensor:
    if not (x.is_cuda and y.device.type == "cuda"):
        raise ValueError("on the GPU, please")
    out = torch.empty_like(x)
    ct.launch(torch.cuda.current_stream(), (ct.cdiv(x.numel(), tile),), add_kernel, (x, y, out, tile))
    return out


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    grid = (ct.cdiv(a.shape[0], 64), ct.cdiv(b.shape[1], 64), 1)
    ct.launch(torch.cuda.current_stream(), grid, matmul_kernel, (a, b, out, 64, 64, 32))
    return out


def add_by_name(x: torch.Tensor) -> None:
    launch_by_name(torch.cuda.current_stream(), (1,), add_kernel, (x, x, x, 16))


def add_with_hints(x: torch.Tensor) -> None:
    ct.launch(
        torch.cuda.current_stream(), (1,), add_kernel.replace_hints(num_ctas=2, opt_level=1), (x, x, x, 16)
    )


def add_positive(x: torch.Tensor) -> None:
    """Launch as many blocks as there are nonnegative elements: that needs values."""
    blocks = int((x >= 0).sum().item())
    ct.launch(torch.cuda.current_stream(), (blocks,), add_kernel, (x, x, x, 16))


def tuned_add(x: torch.Tensor) -> Any:
    result = exhaustive_search(
        [{"tile": 32}, {"tile": 64}],
        torch.cuda.current_stream(),
        lambda c: (ct.cdiv(x.numel(), c["tile"]),),
        add_kernel,
        lambda c: (x, x, x, c["tile"]),
        quiet=True,
    )
    tile = result.best.config["tile"]
    ct.launch(torch.cuda.current_stream(), (ct.cdiv(x.numel(), tile),), add_kernel, (x, x, x, tile))
    return result


@functools.cache
def count_sms() -> int:
    return torch.cuda.get_device_properties("cuda").multi_processor_count


def add_persistent(x: torch.Tensor) -> None:
    ct.launch(torch.cuda.current_stream(), (count_sms(),), add_kernel, (x, x, x, 16))


def run_kernel(kernel: Any, *shape: int, dtype: torch.dtype = torch.float32) -> None:
    x = torch.empty(shape, dtype=dtype, device="cuda")
    ct.launch(torch.cuda.current_stream(), (1,), kernel, (x,))


@ct.kernel
def copy_kernel(x):
    ct.store(x, (0,), ct.load(x, (0,), (16,)))
