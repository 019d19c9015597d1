"""Gradients of root-mean-square normalisation: what `kernels/rms_norm.py` computes, differentiated.

    y[m, n]  = x[m, n] r[m] w[n],    r[m] = 1 / sqrt(mean over j of x[m, j]^2 + eps)
    dx[m, n] = r[m] (g[m, n] - x[m, n] r[m]^2 mean over j of g[m, j] x[m, j]),    g[m, n] = dy[m, n] w[n]
    dw[n]    = sum over m of dy[m, n] x[m, n] r[m]

The second term of dx is there because r depends on all of a row of x. x, dy and dx are `[..., N]`, w and dw
are `[N]`, all of one dtype: float16, bfloat16 or float32. N is at most 16384. Everything between load and
store is float32.

How it works: memory bandwidth limits the speed, so x and dy are read once and dx is written once. r is
computed again: x is in registers, and to read a stored r would cost a launch that writes it. The weight is
read again for each row: it stays in the cache, and registers are what wide rows lack. dw is a sum over all
rows. A few blocks for each multiprocessor take tiles of rows in turn and keep their part of the sum in
registers; a second, small kernel adds the parts. The order of additions is fixed, so that two runs give the
same bits, which atomics would not.

`differentiable_rms_norm` ties both directions together for `torch.autograd`.

Source: the formula is the derivative of Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019
(https://arxiv.org/abs/1910.07467).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import cuda.tile as ct

from kernels._cases import laid_out
from kernels._configs import check_fields
from kernels._dtypes import ITEMSIZE, LARGEST_FLOAT32, SHORT, SMALLEST_FLOAT32
from kernels._launch import (
    ARCHITECTURES,
    check_config,
    check_grid,
    check_number,
    check_tensors,
    choose_by_width,
    count_sms,
    cut_row,
    find_arch,
    next_power_of_2,
    on_its_gpu,
    with_hints,
)
from kernels._tiles import load_rows, load_tile, store_rows
from kernels.rms_norm import MAX_WIDTH, rms_norm
from kernels.rms_norm import reference as forward_reference
from pytest_cutile import Case, KernelSpec, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

ConstInt: TypeAlias = ct.Constant[int]
ConstBool: TypeAlias = ct.Constant[bool]

SUM_TILE = (128, 32)
"""Parts and columns of the second kernel's tile: a row of it is 128 bytes, the least that is worth a load."""


# -- configuration ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RmsNormBackwardConfig:
    """How rows are cut into tiles, how many blocks take them, and the compiler's hints."""

    tile_elements: int = 1
    """Elements to aim at of a tile: short rows are grouped until a tile has as many."""
    occupancy: int = 3
    """Blocks that share a multiprocessor and take tiles in turn; each leaves a part of dw."""
    tile_columns: int = 2048
    """Columns of the longest piece of a row: shorter ones have fewer intermediate results at a time."""
    num_worker_warps: int | None = 4
    """Warps per block; None lets the compiler choose."""

    def __post_init__(self) -> None:
        check_fields(self, powers=("tile_elements", "tile_columns"))


# What tileiras 13.4.92 fits into registers without spilling on sm_90, sm_103 and sm_121: x, dy
# and the part of dw of a row. With the weight in registers, too, and rows in one piece, threads spilled 50 to
# 180 bytes from 4097 columns on. In tiles of 2048 columns, 12288 of bf16 spill 16 bytes; in tiles of 1024,
# 4095 spill 24. With six blocks a multiprocessor, 77 columns of fp16 spill 32.
_ROWS = (
    (1024, RmsNormBackwardConfig(tile_elements=2048, occupancy=5)),
    (2048, RmsNormBackwardConfig(occupancy=5)),
    (4096, RmsNormBackwardConfig(occupancy=3)),
    (8192, RmsNormBackwardConfig(occupancy=2)),
    (math.inf, RmsNormBackwardConfig(occupancy=1, tile_columns=1024, num_worker_warps=8)),
)
CONFIGS = {
    **dict.fromkeys(ARCHITECTURES, _ROWS),
    # H200, 2026-11-25, cold L2, interleaved, against the entries above (`tools.tune_kernels`, 19 to 91
    # configurations a case): bf16-16384x1024 41.6 us (43.7), fp16-32768x2048 108.9 (137.4), bf16-16384x4096
    # 112.6 (137.5), bf16-4096x4096 37.8 (45.3), bf16-8192x3584 58.5 (57.9), bf16-16384x5120 146.9 (152.1),
    # bf16-16384x7168 188.3 (236.2), bf16-8192x8192 111.3 (137.8), fp32-4096x8192 111.1 (114.5).
    "sm_90": (
        (1024, RmsNormBackwardConfig(tile_elements=1024, occupancy=8)),
        (2048, RmsNormBackwardConfig(tile_elements=2048, occupancy=6, tile_columns=1024)),
        (4096, RmsNormBackwardConfig(tile_elements=4096, num_worker_warps=8)),
        (8192, RmsNormBackwardConfig(tile_elements=8192, occupancy=2, tile_columns=1024, num_worker_warps=8)),
        _ROWS[-1],
    ),
}
DEFAULT_CONFIGS = _ROWS
"""For architectures that are not in the table."""


def choose_config(arch: str, *, width: int) -> RmsNormBackwardConfig:
    """Return the configuration for `arch` and rows of `width` elements."""
    return choose_by_width(CONFIGS.get(arch, DEFAULT_CONFIGS), width)


# -- kernels ----------------------------------------------------------------------------------------


def load_weight(W: ct.Array, j: int, TILE_N: ConstInt, WIDTH: ConstInt) -> ct.Tile:
    """Load the `j`-th piece of the weight as `[1, TILE_N]` float32 numbers."""
    if WIDTH % TILE_N == 0:
        piece = load_tile(W, (j,), (TILE_N,), INSIDE=True)
    else:
        column = j * TILE_N + ct.arange(TILE_N, dtype=ct.int32)
        piece = ct.gather(W, column, mask=column < WIDTH, check_bounds=False)
    return piece.astype(ct.float32).reshape((1, TILE_N))


@ct.kernel
def rms_norm_backward_kernel(
    DY: ct.Array,
    X: ct.Array,
    W: ct.Array,
    DX: ct.Array,
    PARTS: ct.Array,
    eps: float,
    tiles: int,
    TILE_M: ConstInt,
    TILE_N: ConstInt,
    PIECES: ConstInt,
    WIDTH: ConstInt,
    FULL_M: ConstBool,
) -> None:
    """Compute DX `TILE_M` rows at a time, and in PARTS the block's part of the sum over rows.

    Rows are `WIDTH` long, each in `PIECES` pieces of `TILE_N` columns. `FULL_M`: tiles fill all rows.
    """
    SHAPE = (TILE_M, TILE_N)
    INSIDE = FULL_M and WIDTH == PIECES * TILE_N
    dw: tuple[ct.Tile, ...] = ()
    for _ in ct.static_iter(range(PIECES)):
        dw += (ct.zeros(SHAPE, dtype=ct.float32),)
    for i in range(ct.bid(0), tiles, ct.num_blocks(0)):
        # 0, as the compiler does not see: else it loads the weight before the loop and keeps it in registers,
        # which wide rows need. Loaded for each tile, it comes from the cache.
        first = i // tiles
        x: tuple[ct.Tile, ...] = ()
        dy: tuple[ct.Tile, ...] = ()
        for j in ct.static_iter(range(PIECES)):
            x += (load_rows(X, (i, j), SHAPE, WIDTH=WIDTH, INSIDE=INSIDE),)
            dy += (load_rows(DY, (i, j), SHAPE, WIDTH=WIDTH, INSIDE=INSIDE),)
        # Pieces are added element by element first, so that threads have to meet only once for a row.
        squares = ct.zeros(SHAPE, dtype=ct.float32)
        products = ct.zeros(SHAPE, dtype=ct.float32)
        for j in ct.static_iter(range(PIECES)):
            x32 = x[j].astype(ct.float32)
            squares = squares + x32 * x32
            products = products + dy[j].astype(ct.float32) * load_weight(W, first + j, TILE_N, WIDTH) * x32
        mean_square = ct.sum(squares, 1, keepdims=True) * ct.static_eval(1 / WIDTH) + eps  # [TILE_M, 1]
        if not FULL_M:
            # A row beyond the last is all zeros: without an eps, 0 times its infinite r would be NaN in dw.
            row = ct.arange(TILE_M, dtype=ct.int32).reshape((TILE_M, 1))
            mean_square = ct.where(row < X.shape[0] - i * TILE_M, mean_square, 1.0)
        r = ct.rsqrt(mean_square)
        slope = ct.sum(products, 1, keepdims=True) * ct.static_eval(1 / WIDTH) * r * r
        added: tuple[ct.Tile, ...] = ()
        for j in ct.static_iter(range(PIECES)):
            x32, dy32 = x[j].astype(ct.float32), dy[j].astype(ct.float32)
            dx = (dy32 * load_weight(W, first + j, TILE_N, WIDTH) - x32 * slope) * r
            store_rows(DX, (i, j), dx.astype(DX.dtype), WIDTH=WIDTH, INSIDE=INSIDE)
            added += (dw[j] + dy32 * (x32 * r),)
        dw = added
    for j in ct.static_iter(range(PIECES)):
        part = ct.sum(dw[j], 0, keepdims=True)  # [1, TILE_N]
        store_rows(PARTS, (ct.bid(0), j), part, WIDTH=WIDTH, INSIDE=WIDTH == PIECES * TILE_N)


@ct.kernel
def sum_parts_kernel(PARTS: ct.Array, SUM: ct.Array, TILE_P: ConstInt, TILE_N: ConstInt) -> None:
    """Add all rows of `TILE_N` columns of PARTS."""
    j = ct.bid(0)
    acc = ct.zeros((TILE_P, TILE_N), dtype=ct.float32)
    for i in range(ct.cdiv(PARTS.shape[0], TILE_P)):
        acc += load_tile(PARTS, (i, j), (TILE_P, TILE_N), INSIDE=False)
    ct.store(SUM, (j,), ct.sum(acc, 0).astype(SUM.dtype), allow_tma=False)


# -- launchers --------------------------------------------------------------------------------------


@on_its_gpu
def rms_norm_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    config: RmsNormBackwardConfig | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of `x` and of `weight` for an upstream gradient `dy` of `rms_norm`.

    Forward only: no gradient flows through it.

    Squares and products are float32: the limits of `rms_norm` hold, and those of products of dy and x.

    Args:
        dy: `[..., N]`, float16, bfloat16 or float32. Copied only if its leading axes do not merge.
        x: Same shape, dtype and device; copied likewise.
        weight: `[N]`, same dtype and device.
        eps: Added to the mean square: a normal float32; or 0.
        config: Instead of the one chosen for this GPU.

    Returns:
        `[..., N]` and `[N]`, of the same dtype and device, contiguous.

    Raises:
        TypeError: Not tensors, dtypes that differ or that are not supported, an `eps` that is no number,
            another kernel's configuration.
        ValueError: Shapes that do not fit, N above 16384, an `eps` that is neither 0 nor a normal float32,
            devices that differ.
    """
    import torch

    name = "rms_norm_backward"
    check_tensors(name, {"dy": dy, "x": x, "weight": weight}, dtypes=("float16", "bfloat16", "float32"))
    check_config(name, config, RmsNormBackwardConfig)
    if dy.shape != x.shape or x.ndim == 0:
        raise ValueError(
            f"{name}: dy and x must have the same shape, of at least one axis, "
            f"got {list(dy.shape)} and {list(x.shape)}"
        )
    n = x.shape[-1]
    if tuple(weight.shape) != (n,):
        raise ValueError(
            f"{name}: x is {list(x.shape)}, so weight must be [{n}], but is {list(weight.shape)}"
        )
    if n > MAX_WIDTH:
        raise ValueError(
            f"{name}: rows of {n} are too wide; at most {MAX_WIDTH} fit into a block's registers"
        )
    eps = check_number(name, "eps", eps)
    if eps != 0 and not SMALLEST_FLOAT32 <= eps <= LARGEST_FLOAT32:
        raise ValueError(
            f"{name}: eps must be 0, or {SMALLEST_FLOAT32:.3g} to {LARGEST_FLOAT32:.3g}, got {eps}: "
            "it has to be a normal float32"
        )
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if dx.numel() == 0:
        return dx, torch.zeros_like(weight)
    config = config or choose_config(find_arch(name, x, CONFIGS), width=n)
    rows, upstream = x.reshape(-1, n), dy.reshape(-1, n)
    m = rows.shape[0]
    tile_m = max(1, config.tile_elements // next_power_of_2(n))
    tile_n = min(cut_row(n)[0], config.tile_columns)
    pieces = ct.cdiv(n, tile_n)
    tiles = ct.cdiv(m, tile_m)
    blocks = min(tiles, count_sms() * config.occupancy)
    dw = torch.empty(n, dtype=weight.dtype, device=x.device)
    parts = torch.empty((blocks, n), dtype=torch.float32, device=x.device)
    stream = torch.cuda.current_stream()
    ct.launch(
        stream,
        check_grid(name, (blocks,), ("blocks", "split x")),
        with_hints(rms_norm_backward_kernel, config),
        (
            *(upstream, rows, weight, dx.view(-1, n), parts, eps, tiles),
            *(tile_m, tile_n, pieces, n, m % tile_m == 0),
        ),
    )
    ct.launch(stream, (ct.cdiv(n, SUM_TILE[1]),), sum_parts_kernel, (parts, dw, *SUM_TILE))
    return dx, dw


@cache
def _autograd_function() -> Any:
    """Return the function that autograd knows; torch is imported when it is first asked for."""
    import torch

    class RmsNorm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
            ctx.save_for_backward(x, weight)
            ctx.eps = eps
            return rms_norm(x, weight, eps)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
            (dy,), (x, weight) = gradients, ctx.saved_tensors
            return (*rms_norm_backward(dy, x, weight, ctx.eps), None)

    return RmsNorm


def differentiable_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Return `rms_norm(x, weight, eps)`, through which gradients of `x` and `weight` flow, once.

    Args:
        x: `[..., N]`, float16, bfloat16 or float32.
        weight: `[N]`, same dtype and device.
        eps: Added to the mean square: a normal float32; or 0.

    Returns:
        `[..., N]`, same shape, dtype and device as `x`, contiguous.

    Raises:
        TypeError: What `rms_norm` raises.
        ValueError: Likewise.
    """
    y: torch.Tensor = _autograd_function().apply(x, weight, eps)
    return y


# -- what it is gated with --------------------------------------------------------------------------


def reference(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Follow the formula in float64."""
    r = 1 / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    g = dy * weight
    dx = r * (g - x * r.square() * (g * x).mean(dim=-1, keepdim=True))
    return dx, (dy * x * r).reshape(-1, x.shape[-1]).sum(dim=0)


def inputs(
    make_tensor: Callable[..., torch.Tensor], *, shape: tuple[int, ...], dtype: str, eps: float
) -> tuple[torch.Tensor | float, ...]:
    """Make dy and x of `shape`, and the weight."""
    return (make_tensor(shape, dtype), *forward_inputs(make_tensor, shape=shape, dtype=dtype, eps=eps))


def forward_inputs(
    make_tensor: Callable[..., torch.Tensor], *, shape: tuple[int, ...], dtype: str, eps: float
) -> tuple[torch.Tensor | float, ...]:
    """Make x of `shape`, and the weight: off zero and not all alike, so that a shifted one shows."""
    weight = make_tensor((shape[-1],), dtype, dist="uniform", low=0.5, high=1.5)
    return make_tensor(shape, dtype), weight, eps


def work(*, shape: tuple[int, ...], dtype: str, eps: float) -> Work:
    """Count bytes only: dy, x and the weight read once, dx and dw written once."""
    del eps  # the same work, whatever it is
    return Work(bytes=float((3 * math.prod(shape) + 2 * shape[-1]) * ITEMSIZE[dtype]), dtype=dtype)


def longest_sum(*, shape: tuple[int, ...], dtype: str, eps: float) -> int:
    """Return how many terms a sum over a row has, or over a column, whatever are more."""
    del dtype, eps
    return max(shape[-1], math.prod(shape[:-1]))


def _case(dtype: str, *shape: int, eps: float = 1e-6, speed: bool = False) -> Case:
    name = f"{SHORT[dtype]}-{'x'.join(map(str, shape))}" + (f"-eps{eps:g}" if eps != 1e-6 else "")  # noqa: PLR2004
    # With no eps, squares of tiny values are 0 in float32, and their rows NaN.
    named_inputs = () if eps == 0 else None
    params = {"shape": shape, "dtype": dtype, "eps": eps}
    return Case(name=name, params=params, speed=speed, named_inputs=named_inputs)


SPEC = KernelSpec(
    name="rms_norm_backward",
    launch=rms_norm_backward,
    reference=reference,
    inputs=inputs,
    work=work,
    reduction=longest_sum,
    cases=[
        # 400 MB in all, several times any L2. The hidden sizes of models from 1 B to 400 B.
        _case("float16", 32768, 2048, speed=True),
        _case("bfloat16", 16384, 4096, speed=True),
        _case("bfloat16", 4096, 16384, speed=True),
        _case("float32", 4096, 8192, speed=True),
        # To each side of a power of two; no two sizes equal. More tiles than blocks: many short rows.
        _case("float16", 37, 256),
        _case("bfloat16", 19, 255),
        _case("float32", 21, 257),
        _case("float16", 301, 1000),
        _case("bfloat16", 1100, 33),
        # Widths in three and five pieces, the widest row, one less, one row, one column, one element.
        _case("float32", 9, 1536),
        _case("bfloat16", 7, 2560),
        _case("float16", 5, 16384),
        _case("float32", 3, 16383),
        _case("float32", 1, 5000),
        _case("bfloat16", 130, 1),
        # Leading axes, or none.
        _case("bfloat16", 3, 5, 768),
        _case("float16", 77),
        # An eps that weighs as much as the values; none at all, with rows beyond the last in a tile.
        _case("float32", 33, 512, eps=0.5),
        _case("float32", 5, 130, eps=0.0),
        # Rows that lie apart, and tensors that begin anywhere.
        laid_out(_case("bfloat16", 23, 301), "padded"),
        laid_out(_case("float16", 29, 520), "shifted"),
    ],
)
DIFFERENTIABLE = KernelSpec(
    name="differentiable_rms_norm",
    launch=differentiable_rms_norm,
    reference=forward_reference,
    inputs=forward_inputs,
    reduction=longest_sum,
    grad=True,
    # The kernels behind it are timed on their own.
    cases=[
        _case("float16", 37, 256),
        _case("bfloat16", 19, 255),
        _case("float32", 3, 7, 320),
        _case("bfloat16", 67, 1000),
        _case("float32", 33, 130, eps=0.5),
    ],
)
SPECS = [SPEC, DIFFERENTIABLE]
