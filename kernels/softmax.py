"""Softmax of the rows of a matrix, numerically safe.

    y[m, n] = exp(x[m, n] - max(x[m, :])) / sum over j of exp(x[m, j] - max(x[m, :]))

x and y are `[M, N]` in float16, bfloat16 or float32; everything in between is float32. N may be any number: a
tile that extends past the end of its rows is padded with -inf, which is never the maximum and whose exp is 0.

How it works: softmax does little arithmetic per byte, so memory bandwidth limits its speed. The aim is to
read and write each element once. A row that fits in registers (`softmax_rows`) is read once and stays there,
cut into pieces that need no padding if the row's length allows (`cut_row`). A longer row (`softmax_chunks`)
is read twice. The first pass keeps a running maximum, and a sum that is rescaled whenever the maximum grows.
The second pass writes the result; part of the row is still in the L2 by then.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018
(https://arxiv.org/abs/1805.02867).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import cuda.tile as ct

from kernels._cases import laid_out
from kernels._configs import check_fields
from kernels._dtypes import ITEMSIZE, SHORT
from kernels._launch import (
    ARCHITECTURES,
    check_config,
    check_grid,
    check_tensors,
    choose_by_width,
    cut_row,
    find_arch,
    next_power_of_2,
    on_its_gpu,
    with_hints,
)
from kernels._tiles import LOG2_E, is_full, load_rows, load_tile, reciprocal, store_rows
from pytest_cutile import Case, KernelSpec, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

ConstInt: TypeAlias = ct.Constant[int]
ConstBool: TypeAlias = ct.Constant[bool]


# -- configuration ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SoftmaxConfig:
    """How rows are cut into tiles, and the compiler's hints."""

    tile_elements: int = 1
    """Target size of a tile of whole rows: short rows are grouped until a tile has this many elements."""
    max_row: int = 32768
    """Longest row, padded to a power of two, that is held in registers; longer rows are read in chunks."""
    chunk: int = 8192
    """Columns per chunk of a longer row."""
    occupancy: int | None = None
    """Blocks that share a multiprocessor; None lets the compiler choose."""
    num_worker_warps: int | None = 4
    """Warps per block; None lets the compiler choose."""

    def __post_init__(self) -> None:
        check_fields(self, powers=("tile_elements", "chunk"), limits=("max_row",))


# H200, 2026-11-21, driver 580.159.04, cold L2, interleaved; in parentheses 4096 elements or one row per tile,
# 8 warps from 8192 elements on, mostly 8 blocks an SM, and chunks from 16384 on:
#
#     bf16  4096x1024   10.4 us (11.2)      fp32  4096x1024   13.5 us (15.0)
#     bf16  4096x2048   14.2 us (15.8)      fp32  4096x2048   21.9 us (22.5)
#     bf16  4096x8192   38.7 us (39.8)      fp32  4096x8192   70.4 us (70.8)
#     bf16  2048x32768  91.0 us (94.4)      fp32  4096x16384   136 us (137)
#
# One row per tile, held by 4 warps, is the rule; rows of up to 1024 go by four. Longer than 8192 (float32:
# 16384), a row takes 8 warps to stay in their registers. Few blocks an SM are asked for, which leaves each
# thread as many registers as it wants. Neither loads nor stores by TMA won anywhere.
#
# 2026-11-22, in parentheses as above: bf16 2048x32768 89.5 us (90.4) in two chunks; bf16 8193x1000, rows that
# a tile does not fill, 15.0 us (15.4) by eight with more blocks an SM. No other such width was measured: rows
# of 520 that start anywhere spill so.
_SHORT = SoftmaxConfig(occupancy=2, tile_elements=4096)
_CHUNKS = SoftmaxConfig(occupancy=4, num_worker_warps=8)
_TWO_CHUNKS = SoftmaxConfig(max_row=16384, chunk=16384, occupancy=2, num_worker_warps=8)
_LONG = SoftmaxConfig(occupancy=1, num_worker_warps=8)
# By itemsize: (longest row, configuration). Chunks were measured with rows of 32768 and 151936.
_MEASURED = {
    2: (
        (999, _SHORT),
        (1000, SoftmaxConfig(occupancy=16, tile_elements=8192)),
        (1024, _SHORT),
        (8192, SoftmaxConfig(occupancy=2)),
        (32767, _LONG),
        (32768, _TWO_CHUNKS),
        (math.inf, _CHUNKS),
    ),
    4: (
        (1024, SoftmaxConfig(tile_elements=4096)),
        (16384, SoftmaxConfig()),
        (32768, _LONG),
        (math.inf, _CHUNKS),
    ),
}
# Not measured, except on sm_90 and where an entry says so.
CONFIGS = dict.fromkeys(ARCHITECTURES, _MEASURED)
DEFAULT_CONFIGS = _MEASURED
"""For architectures that are not in the table."""


def choose_config(arch: str, *, width: int, itemsize: int) -> SoftmaxConfig:
    """Return the configuration for `arch`, rows of `width` elements and elements of `itemsize` bytes."""
    return choose_by_width(CONFIGS.get(arch, DEFAULT_CONFIGS)[itemsize], width)


# -- kernels ----------------------------------------------------------------------------------------


def normalise_rows(
    X: ct.Array,
    Y: ct.Array,
    TILE_M: ConstInt,
    TILE_N: ConstInt,
    PIECES: ConstInt,
    WIDTH: ConstInt,
    INSIDE: ConstBool,
) -> None:
    """Normalise the block's rows; `INSIDE` says that no piece of them is outside X."""
    i = ct.bid(0)
    x: tuple[ct.Tile, ...] = ()
    for j in ct.static_iter(range(PIECES)):
        piece = load_rows(X, (i, j), (TILE_M, TILE_N), WIDTH=WIDTH, INSIDE=INSIDE, PADDING=-math.inf)
        x += (piece.astype(ct.float32),)  # [TILE_M, TILE_N]
    # Pieces are combined element by element first, so that threads have to meet only once for a row.
    highest = x[0]
    for j in ct.static_iter(range(1, PIECES)):
        highest = ct.maximum(highest, x[j])
    row_max = ct.max(highest, 1, keepdims=True)  # [TILE_M, 1]
    e: tuple[ct.Tile, ...] = ()
    for j in ct.static_iter(range(PIECES)):
        # Subtract before scaling: scaled first, large values would lose digits that the difference needs.
        e += (ct.exp2((x[j] - row_max) * LOG2_E),)
    total = e[0]
    for j in ct.static_iter(range(1, PIECES)):
        total = total + e[j]
    # One division per row instead of one per element.
    scale = reciprocal(ct.sum(total, 1, keepdims=True))  # [TILE_M, 1]
    for j in ct.static_iter(range(PIECES)):
        store_rows(Y, (i, j), (e[j] * scale).astype(Y.dtype), WIDTH=WIDTH, INSIDE=INSIDE)


@ct.kernel
def softmax_rows(
    X: ct.Array,
    Y: ct.Array,
    TILE_M: ConstInt,
    TILE_N: ConstInt,
    PIECES: ConstInt,
    WIDTH: ConstInt,
    FULL_M: ConstBool,
) -> None:
    """Normalise whole rows, `TILE_M` at a time, each in `PIECES` pieces of `TILE_N` columns.

    Rows are `WIDTH` long. Loads are unchecked if pieces fill the rows and tiles fill the matrix (`FULL_M`).
    """
    if PIECES * TILE_N == WIDTH and (FULL_M or is_full(ct.bid(0), X.shape[0], TILE_M)):
        normalise_rows(X, Y, TILE_M, TILE_N, PIECES, WIDTH, True)
    else:
        normalise_rows(X, Y, TILE_M, TILE_N, PIECES, WIDTH, False)


def take_in(
    X: ct.Array, j: int, row_max: ct.Tile, row_sum: ct.Tile, TILE_N: ConstInt, INSIDE: ConstBool
) -> tuple[ct.Tile, ct.Tile]:
    """Return the running maximum and sum of the block's row after its `j`-th chunk."""
    x = load_tile(X, (ct.bid(0), j), (1, TILE_N), INSIDE=INSIDE, PADDING=ct.PaddingMode.NEG_INF)
    x = x.astype(ct.float32)  # [1, TILE_N]
    new_max = ct.maximum(row_max, ct.max(x, 1, keepdims=True))
    # Until the first finite element the maximum is -inf, and -inf - -inf would be NaN.
    shift = ct.where(new_max == -math.inf, 0.0, new_max)
    e = ct.exp2((x - shift) * LOG2_E)
    return new_max, row_sum * ct.exp2((row_max - shift) * LOG2_E) + ct.sum(e, 1, keepdims=True)


def write_out(
    X: ct.Array,
    Y: ct.Array,
    j: int,
    row_max: ct.Tile,
    scale: ct.Tile,
    TILE_N: ConstInt,
    INSIDE: ConstBool,
) -> None:
    """Write the `j`-th chunk of the block's row."""
    row = ct.bid(0)
    x = load_tile(X, (row, j), (1, TILE_N), INSIDE=INSIDE, PADDING=ct.PaddingMode.NEG_INF)
    e = ct.exp2((x.astype(ct.float32) - row_max) * LOG2_E)  # [1, TILE_N]
    ct.store(Y, (row, j), (e * scale).astype(Y.dtype), check_bounds=not INSIDE, allow_tma=False)


@ct.kernel
def softmax_chunks(X: ct.Array, Y: ct.Array, TILE_N: ConstInt, FULL_N: ConstBool) -> None:
    """Normalise one row at a time in chunks of `TILE_N` columns, in two passes.

    `FULL_N` says that chunks fill the row. Otherwise one more chunk extends past it, and only its load is
    checked.
    """
    chunks = X.shape[1] // TILE_N
    row_max = ct.full((1, 1), -math.inf, dtype=ct.float32)
    row_sum = ct.zeros((1, 1), dtype=ct.float32)
    for j in range(chunks):
        row_max, row_sum = take_in(X, j, row_max, row_sum, TILE_N, True)
    if not FULL_N:
        row_max, row_sum = take_in(X, chunks, row_max, row_sum, TILE_N, False)
    scale = reciprocal(row_sum)
    # Last chunk first: it is the most likely to be still in a cache.
    if not FULL_N:
        write_out(X, Y, chunks, row_max, scale, TILE_N, False)
    for back in range(chunks):
        write_out(X, Y, chunks - 1 - back, row_max, scale, TILE_N, True)


# -- launcher ---------------------------------------------------------------------------------------


@on_its_gpu
def softmax(x: torch.Tensor, *, config: SoftmaxConfig | None = None) -> torch.Tensor:
    """Normalise the rows of a matrix so that each sums to one.

    Forward only: no gradient flows through it.

    A row that holds NaN or +inf, or nothing but -inf, becomes NaN, as in PyTorch.

    Args:
        x: `[M, N]`, float16, bfloat16 or float32, any strides.
        config: Instead of the one chosen for this GPU.

    Returns:
        `[M, N]`, same dtype and device, contiguous.

    Raises:
        TypeError: Not a tensor, a dtype that is not supported, another kernel's configuration.
        ValueError: Not a matrix, or more rows than one launch takes.
    """
    import torch

    check_tensors("softmax", {"x": x}, dtypes=("float16", "bfloat16", "float32"))
    check_config("softmax", config, SoftmaxConfig)
    if x.ndim != 2:  # noqa: PLR2004
        raise ValueError(
            f"softmax: x must be a matrix whose rows are normalised, got shape {list(x.shape)}; reshape it"
        )
    m, n = x.shape
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if 0 in (m, n):
        return y

    arch = find_arch("softmax", x, CONFIGS)
    config = config or choose_config(arch, width=n, itemsize=x.element_size())
    arguments: tuple[Any, ...]
    row = next_power_of_2(n)
    if row <= config.max_row:
        tile_m = max(1, config.tile_elements // row)
        tile_n, pieces = cut_row(n)
        kernel, blocks = softmax_rows, ct.cdiv(m, tile_m)
        arguments = (x, y, tile_m, tile_n, pieces, n, m % tile_m == 0)
    else:
        kernel, blocks = softmax_chunks, m
        arguments = (x, y, config.chunk, n % config.chunk == 0)
    grid = check_grid("softmax", (blocks,), ("groups of rows", "split x"))
    ct.launch(torch.cuda.current_stream(), grid, with_hints(kernel, config), arguments)
    return y


# -- what it is gated with --------------------------------------------------------------------------


def reference(x: torch.Tensor) -> torch.Tensor:
    """Follow the formula in float64."""
    if not x.numel():
        return x  # a row without columns has no maximum
    e = (x - x.amax(dim=1, keepdim=True)).exp()
    return e / e.sum(dim=1, keepdim=True)


def inputs(
    make_tensor: Callable[..., torch.Tensor], *, m: int, n: int, dtype: str, transposed: bool = False
) -> tuple[torch.Tensor, ...]:
    """Make x `[m, n]`; `transposed` makes it a view whose columns are contiguous."""
    return (make_tensor((n, m), dtype).T if transposed else make_tensor((m, n), dtype),)


def work(*, m: int, n: int, dtype: str, transposed: bool = False) -> Work:
    """Count bytes: x read once, y written once, even where a kernel reads a long row twice."""
    del transposed  # the same work, whatever the layout
    return Work(bytes=2.0 * m * n * ITEMSIZE[dtype], dtype=dtype)


def longest_sum(*, m: int, n: int, dtype: str, transposed: bool = False) -> int:
    """Return how many exponentials each row adds up."""
    del m, dtype, transposed
    return n


def _case(dtype: str, m: int, n: int, *, transposed: bool = False, speed: bool = False) -> Case:
    short = SHORT[dtype]
    params = {"m": m, "n": n, "dtype": dtype, "transposed": transposed}
    return Case(name=f"{short}-{m}x{n}" + "-transposed" * transposed, params=params, speed=speed)


SPEC = KernelSpec(
    name="softmax",
    launch=softmax,
    reference=reference,
    inputs=inputs,
    work=work,
    reduction=longest_sum,
    independent={"x": ("rows",), "output": ("rows",)},
    cases=[
        # 134 MB each way or twice that, several times any L2. Short rows, long rows, rows in chunks.
        _case("float16", 32768, 2048, speed=True),
        _case("bfloat16", 16384, 8192, speed=True),
        _case("float32", 4096, 8192, speed=True),
        _case("bfloat16", 2048, 32768, speed=True),
        # To each side of a power of two; no two sizes equal.
        _case("float16", 37, 256),
        _case("bfloat16", 19, 255),
        _case("float32", 21, 257),
        _case("float16", 301, 1000),
        _case("bfloat16", 65, 1023),
        # Rows in three pieces: several a tile, of which the last sticks out; one a tile.
        _case("bfloat16", 7, 768),
        _case("float16", 3, 3072),
        # A row that takes all registers that 8 warps have.
        _case("float16", 5, 16001),
        # To each side of the longest row that is held in registers, and a chunk that is almost all padding.
        _case("float16", 3, 32768),
        _case("float32", 2, 32767),
        _case("bfloat16", 3, 32769),
        _case("float32", 2, 40000),
        # One row, one column, one element, columns contiguous.
        _case("float32", 1, 5000),
        _case("bfloat16", 130, 1),
        _case("float16", 1, 1),
        _case("float16", 96, 200, transposed=True),
        # Rows that lie apart, and tensors that begin anywhere.
        laid_out(_case("bfloat16", 23, 301), "padded"),
        laid_out(_case("float16", 29, 520), "shifted"),
    ],
)
