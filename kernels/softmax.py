"""Softmax of the rows of a matrix, numerically safe.

    y[m, n] = exp(x[m, n] - max(x[m, :])) / sum over j of exp(x[m, j] - max(x[m, :]))

x and y are `[M, N]` in float16, bfloat16 or float32; everything in between is float32. Any N: a tile that
sticks out past the end of its rows is padded with -inf, which is never the maximum and whose exp is 0.

How it works: softmax does little arithmetic per byte, so its speed is that of the memory, and the aim is to
move each element once in each direction. A row that fits in a tile (`softmax_rows`) is read once and stays
in registers. A longer row (`softmax_chunks`) goes by twice: the first pass keeps a running maximum and a sum
that is rescaled whenever the maximum grows; the second writes the result, and finds part of the row still
in the L2.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018
(https://arxiv.org/abs/1805.02867).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import cuda.tile as ct

from kernels._launch import check_tensors, choose_by_width, choose_warps, device_arch, next_power_of_2
from kernels._tiles import load_tile
from pytest_cutile import Case, KernelSpec, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

ConstInt: TypeAlias = ct.Constant[int]
ConstBool: TypeAlias = ct.Constant[bool]

# exp(x) = 2^(x log2 e), and 2^x is one instruction.
LOG2_E = math.log2(math.e)


# -- configuration ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SoftmaxConfig:
    """How rows are cut into tiles, and what the compiler is told."""

    max_row: int = 16384
    """Longest row, padded to a power of two, that is held in one tile; longer ones go by in chunks."""
    chunk: int = 8192
    """Columns per chunk of a row that is longer."""
    tile_elements: int = 4096
    """Elements per tile to aim at: short rows are grouped until a tile has as many."""
    load_tma: bool = False
    """Whether loads may use TMA."""
    store_tma: bool = False
    """Whether stores may use TMA."""
    occupancy: int | None = None
    """Blocks that share a multiprocessor; None lets the compiler choose."""
    eight_warps_from: int = 8192
    """Elements per tile from which a block has 8 warps instead of 4, so that a tile fits in its registers."""


_BLOCKS_8 = SoftmaxConfig(occupancy=8)
_STORE_TMA = SoftmaxConfig(occupancy=4, store_tma=True)
_DEFAULTS = SoftmaxConfig()

# By architecture, by itemsize: (longest row, configuration).
CONFIGS = {
    # H200, 2026-11-21, cold L2, interleaved, 8 blocks an SM (which overlap loads and arithmetic) against the
    # defaults: fp16 32768x2048 70.5 us (94.7), bf16 16384x8192 172 us (189), bf16 2048x32768 93.8 us (116),
    # fp32 4096x8192 69.9 us (69.8); a copy of the same bytes takes 67 us, or 129 us for the second. With 4
    # blocks and stores by TMA, the second takes 0.77 of the time with 8 (docs/static.md). Rows of 16384 were
    # not measured: 8 blocks make float32 spill.
    # To be measured again: since then, tiles that fit are loaded without checks.
    "sm_90": {
        2: ((4096, _BLOCKS_8), (8192, _STORE_TMA), (16384, _DEFAULTS), (math.inf, _BLOCKS_8)),
        4: ((8192, _BLOCKS_8), (math.inf, _DEFAULTS)),
    },
}
# Not measured. One block per tile of rows needs no tuning to keep every multiprocessor busy.
DEFAULT_CONFIGS = dict.fromkeys((2, 4), ((math.inf, _DEFAULTS),))
"""For architectures that are not in the table."""


def choose_config(arch: str, *, width: int, itemsize: int) -> SoftmaxConfig:
    """Return the configuration for `arch`, rows of `width` elements and elements of `itemsize` bytes."""
    return choose_by_width(CONFIGS.get(arch, DEFAULT_CONFIGS)[itemsize], width)


# -- kernels ----------------------------------------------------------------------------------------


@ct.kernel
def softmax_rows(
    X: ct.Array,
    Y: ct.Array,
    TILE_M: ConstInt,
    TILE_N: ConstInt,
    INSIDE: ConstBool,
    LOAD_TMA: ConstBool,
    STORE_TMA: ConstBool,
) -> None:
    """Normalise whole rows, `TILE_M` at a time; `TILE_N` is at least their length.

    `INSIDE` says that both divide X's sides: then no load has to be checked.
    """
    x = load_tile(
        X, (ct.bid(0), 0), (TILE_M, TILE_N), INSIDE=INSIDE, PADDING=ct.PaddingMode.NEG_INF, ALLOW_TMA=LOAD_TMA
    )  # [TILE_M, TILE_N]
    x = x.astype(ct.float32)
    # Subtract before scaling: scaled first, large values would lose digits that the difference still needs.
    e = ct.exp2((x - ct.max(x, 1, keepdims=True)) * LOG2_E)
    # One division per row instead of one per element.
    scale = 1.0 / ct.sum(e, 1, keepdims=True)  # [TILE_M, 1]
    y = (e * scale).astype(Y.dtype)
    ct.store(Y, (ct.bid(0), 0), y, check_bounds=not INSIDE, allow_tma=STORE_TMA)


@ct.kernel
def softmax_chunks(
    X: ct.Array,
    Y: ct.Array,
    TILE_N: ConstInt,
    INSIDE: ConstBool,
    LOAD_TMA: ConstBool,
    STORE_TMA: ConstBool,
) -> None:
    """Normalise one row at a time in chunks of `TILE_N` columns, in two passes.

    `INSIDE` says that chunks fill the row: then no load has to be checked.
    """
    row = ct.bid(0)
    chunks = ct.cdiv(X.shape[1], TILE_N)
    row_max = ct.full((1, 1), -math.inf, dtype=ct.float32)
    row_sum = ct.zeros((1, 1), dtype=ct.float32)
    for j in range(chunks):
        x = load_tile(
            X, (row, j), (1, TILE_N), INSIDE=INSIDE, PADDING=ct.PaddingMode.NEG_INF, ALLOW_TMA=LOAD_TMA
        )  # [1, TILE_N]
        x = x.astype(ct.float32)
        new_max = ct.maximum(row_max, ct.max(x, 1, keepdims=True))
        # Until the first finite element the maximum is -inf, and -inf - -inf would be NaN.
        shift = ct.where(new_max == -math.inf, 0.0, new_max)
        e = ct.exp2((x - shift) * LOG2_E)
        row_sum = row_sum * ct.exp2((row_max - shift) * LOG2_E) + ct.sum(e, 1, keepdims=True)
        row_max = new_max
    scale = 1.0 / row_sum
    # Last chunk first: it is the one most likely to be in a cache still.
    for back in range(chunks):
        j = chunks - 1 - back
        x = load_tile(
            X, (row, j), (1, TILE_N), INSIDE=INSIDE, PADDING=ct.PaddingMode.NEG_INF, ALLOW_TMA=LOAD_TMA
        )  # [1, TILE_N]
        e = ct.exp2((x.astype(ct.float32) - row_max) * LOG2_E)
        ct.store(Y, (row, j), (e * scale).astype(Y.dtype), check_bounds=not INSIDE, allow_tma=STORE_TMA)


# -- launcher ---------------------------------------------------------------------------------------


@cache
def _kernel_for(kernel: Any, occupancy: int | None, warps: int) -> Any:
    """Return `kernel` with these compiler hints; cached, because each object has its own JIT cache."""
    return kernel.replace_hints(occupancy=occupancy, num_worker_warps=warps)


def softmax(x: torch.Tensor, *, config: SoftmaxConfig | None = None) -> torch.Tensor:
    """Normalise the rows of a matrix so that each sums to one.

    A row that holds NaN or +inf, or nothing but -inf, becomes NaN, as in PyTorch.

    Args:
        x: `[M, N]`, float16, bfloat16 or float32, any strides.
        config: Instead of the one chosen for this GPU.

    Returns:
        `[M, N]`, same dtype and device, contiguous.

    Raises:
        TypeError: Not a tensor, or a dtype that is not supported.
        ValueError: Not a matrix.
    """
    import torch

    check_tensors("softmax", {"x": x}, dtypes=("float16", "bfloat16", "float32"))
    if x.ndim != 2:  # noqa: PLR2004
        raise ValueError(
            f"softmax: x must be a matrix whose rows are normalised, got shape {list(x.shape)}; reshape it"
        )
    m, n = x.shape
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if 0 in (m, n):
        return y

    config = config or choose_config(device_arch(), width=n, itemsize=x.element_size())
    arguments: tuple[Any, ...]
    tile_n = next_power_of_2(n)
    if tile_n <= config.max_row:
        tile_m = max(1, config.tile_elements // tile_n)
        kernel, blocks = softmax_rows, ct.cdiv(m, tile_m)
        elements = tile_m * tile_n
        inside = m % tile_m == 0 and n == tile_n
        arguments = (x, y, tile_m, tile_n, inside, config.load_tma, config.store_tma)
    else:
        kernel, blocks = softmax_chunks, m
        elements = config.chunk
        inside = n % config.chunk == 0
        arguments = (x, y, config.chunk, inside, config.load_tma, config.store_tma)
    kernel = _kernel_for(kernel, config.occupancy, choose_warps(elements, config.eight_warps_from))
    ct.launch(torch.cuda.current_stream(), (blocks,), kernel, arguments)
    return y


# -- what it is gated with --------------------------------------------------------------------------


def reference(x: torch.Tensor) -> torch.Tensor:
    """Follow the formula in float64."""
    e = (x - x.amax(dim=1, keepdim=True)).exp()
    return e / e.sum(dim=1, keepdim=True)


def inputs(
    make_tensor: Callable[..., torch.Tensor], *, m: int, n: int, dtype: str, transposed: bool = False
) -> tuple[torch.Tensor, ...]:
    """Make x `[m, n]`; `transposed` makes it a view whose columns are contiguous."""
    return (make_tensor((n, m), dtype).T if transposed else make_tensor((m, n), dtype),)


def work(*, m: int, n: int, dtype: str, transposed: bool = False) -> Work:
    """Count bytes only: x read once, y written once, however often a kernel reads a long row."""
    del transposed  # the same work, whatever the layout
    itemsize = 4 if dtype == "float32" else 2
    return Work(bytes=2.0 * m * n * itemsize, dtype=dtype)


def longest_sum(*, m: int, n: int, dtype: str, transposed: bool = False) -> int:
    """Return how many exponentials each row adds up."""
    del m, dtype, transposed
    return n


def _case(dtype: str, m: int, n: int, *, transposed: bool = False, speed: bool = False) -> Case:
    short = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}[dtype]
    params = {"m": m, "n": n, "dtype": dtype, "transposed": transposed}
    return Case(name=f"{short}-{m}x{n}" + "-transposed" * transposed, params=params, speed=speed)


SPEC = KernelSpec(
    name="softmax",
    launch=softmax,
    reference=reference,
    inputs=inputs,
    work=work,
    reduction=longest_sum,
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
        # To each side of the longest row that is held in one tile, and a chunk that is almost all padding.
        _case("float16", 5, 16384),
        _case("float32", 3, 16383),
        _case("bfloat16", 7, 16385),
        _case("float32", 3, 40000),
        # One row, one column, one element, columns contiguous.
        _case("float32", 1, 5000),
        _case("bfloat16", 130, 1),
        _case("float16", 1, 1),
        _case("float16", 96, 200, transposed=True),
    ],
)
