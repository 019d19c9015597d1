"""Root-mean-square normalisation of the last axis, with a weight per column, optionally of a sum.

    y[..., n] = h[..., n] / sqrt(mean over j of h[..., j]^2 + eps) * w[n]
    h = x, or x + residual

x, residual, h and y are `[..., N]`, w is `[N]`, all of one dtype: float16, bfloat16 or float32. N is at most
16384. Everything between load and store is float32, the sum included: y is computed from h before h is
rounded. (Some models round x / rms to 16 bits before the weight; this kernel rounds once, at the end.)

How it works: as in softmax, memory bandwidth limits the speed, and the aim is to move each byte once. A block
holds whole rows, so x is read once and stays in registers until it is scaled. Rows are cut into pieces that
need no padding if the width allows (`cut_row`). The weight is the same for every row, so it comes from a
cache. A transformer adds to its residual stream before each normalisation. Adding here saves a pass over
memory: the sum is written for the next layer and not read again.

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019 (https://arxiv.org/abs/1910.07467).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, overload

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
    cut_row,
    find_arch,
    next_power_of_2,
    on_its_gpu,
    with_hints,
)
from kernels._tiles import is_full, load_rows, load_tile, store_rows
from pytest_cutile import Case, KernelSpec, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

ConstInt: TypeAlias = ct.Constant[int]
ConstBool: TypeAlias = ct.Constant[bool]

MAX_WIDTH = 16384
"""Longest row that is held in registers at once."""


# -- configuration ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RmsNormConfig:
    """How rows are cut into tiles, and the compiler's hints."""

    tile_elements: int = 1
    """Elements to aim at of a tile: short rows are grouped until a tile has as many."""
    occupancy: int | None = None
    """Blocks that share a multiprocessor; None lets the compiler choose."""
    num_worker_warps: int | None = 4
    """Warps per block; None lets the compiler choose."""

    def __post_init__(self) -> None:
        check_fields(self, powers=("tile_elements",))


# H200, 2026-11-21, driver 580.159.04, cold L2, interleaved; in parentheses two blocks an SM that loop over
# tiles of 4096 elements or one row, loaded by TMA:
#
#     fp16   4096x1024   9.9 us (10.8)      fp16   4096x8192  39.3 us (40.5)
#     fp16  32768x2048  70.2 us (76.4)      fp16  4096x16384  70.6 us (79.3)
#     fp16   4096x4096  22.9 us (23.8)      bf16  16384x4096 with a residual  133 us (138)
#
# One row per tile is the rule, held by 8 warps from 2049 on (3072: see below); up to 1024 they go by four.
# With rows of 4096 and a residual, 8 blocks an SM win 2 % against what the compiler chooses; with float32
# they lose 4 %, with 16384 elements 55 %. Loops and TMA won once only: fp16 4096x2048 took 14.3 us with four
# looping blocks an SM, 14.9 us with the configuration of that day.
#
# 2026-11-22: bf16 16384x3072 53.3 us with 4 warps and no hint, 56.0 us as 4096; with a residual, and with
# other widths between 2048 and 4096, it was not measured. 5120 and 7168 have no clear gain.
#
# 2026-11-23, the mean by a multiplication: 4096x1024 9.4 us in fp16 and 9.9 in bf16 with four rows per tile,
# 9.9 and 10.4 us with eight; bf16 8193x1024 14.5 us (14.9); 4096x2048 fp16 14.2 us with no hint, 14.3 us with
# two blocks an SM, bf16 14.0 us (14.5).
_WIDE = RmsNormConfig(num_worker_warps=8)
_FULL = RmsNormConfig(occupancy=8, num_worker_warps=8)
# By itemsize: (widest row, configuration). Of float32, only rows of 8192 were measured.
_NARROW = ((1024, RmsNormConfig(tile_elements=4096, occupancy=4)), (2048, RmsNormConfig()))
_MEASURED = {
    2: (*_NARROW, (3071, _FULL), (3072, RmsNormConfig()), (8192, _FULL), (math.inf, _WIDE)),
    4: (*_NARROW, (math.inf, _WIDE)),
}
# Not measured, except on sm_90 and where an entry says so.
CONFIGS = dict.fromkeys(ARCHITECTURES, _MEASURED)
DEFAULT_CONFIGS = _MEASURED
"""For architectures that are not in the table."""


def choose_config(arch: str, *, width: int, itemsize: int) -> RmsNormConfig:
    """Return the configuration for `arch`, rows of `width` elements and elements of `itemsize` bytes."""
    return choose_by_width(CONFIGS.get(arch, DEFAULT_CONFIGS)[itemsize], width)


# -- kernel -----------------------------------------------------------------------------------------


def normalise_rows(
    X: ct.Array,
    RESIDUAL: ct.Array,
    W: ct.Array,
    Y: ct.Array,
    H: ct.Array,
    eps: float,
    TILE_M: ConstInt,
    TILE_N: ConstInt,
    PIECES: ConstInt,
    WIDTH: ConstInt,
    ADD: ConstBool,
    INSIDE: ConstBool,
) -> None:
    """Normalise the block's rows; `INSIDE` says that no piece of them is outside X."""
    i = ct.bid(0)
    SHAPE = (TILE_M, TILE_N)
    h: tuple[ct.Tile, ...] = ()
    for j in ct.static_iter(range(PIECES)):
        x = load_rows(X, (i, j), SHAPE, WIDTH=WIDTH, INSIDE=INSIDE).astype(ct.float32)  # [TILE_M, TILE_N]
        if ADD:
            r = load_rows(RESIDUAL, (i, j), SHAPE, WIDTH=WIDTH, INSIDE=INSIDE)
            x = x + r.astype(ct.float32)
        h += (x,)
    if ADD:
        for j in ct.static_iter(range(PIECES)):
            store_rows(H, (i, j), h[j].astype(H.dtype), WIDTH=WIDTH, INSIDE=INSIDE)
    # Pieces are added element by element first, so that threads have to meet only once for a row.
    squares = h[0] * h[0]
    for j in ct.static_iter(range(1, PIECES)):
        squares = squares + h[j] * h[j]
    # The mean is over the row, not over the tile: the padding's zeros add nothing to the sum of squares.
    mean_square = ct.sum(squares, 1, keepdims=True) * ct.static_eval(1 / WIDTH)  # [TILE_M, 1]
    scale = ct.rsqrt(mean_square + eps)
    # All of the weight is asked for before the first store: no load is moved across one.
    w: tuple[ct.Tile, ...] = ()
    for j in ct.static_iter(range(PIECES)):
        if WIDTH == PIECES * TILE_N:
            piece = load_tile(W, (j,), (TILE_N,), INSIDE=True)  # [TILE_N]
        else:
            column = j * TILE_N + ct.arange(TILE_N, dtype=ct.int32)
            piece = ct.gather(W, column, mask=column < WIDTH, check_bounds=False)
        w += (piece.astype(ct.float32).reshape((1, TILE_N)),)
    for j in ct.static_iter(range(PIECES)):
        y = h[j] * scale * w[j]
        store_rows(Y, (i, j), y.astype(Y.dtype), WIDTH=WIDTH, INSIDE=INSIDE)


@ct.kernel
def rms_norm_kernel(
    X: ct.Array,
    RESIDUAL: ct.Array,
    W: ct.Array,
    Y: ct.Array,
    H: ct.Array,
    eps: float,
    TILE_M: ConstInt,
    TILE_N: ConstInt,
    PIECES: ConstInt,
    WIDTH: ConstInt,
    ADD: ConstBool,
    FULL_M: ConstBool,
) -> None:
    """Normalise whole rows, `TILE_M` at a time, each in `PIECES` pieces of `TILE_N` columns.

    `ADD` says whether there is a residual: without it, RESIDUAL and H are stand-ins. Rows are `WIDTH` long:
    if pieces fill them, and tiles all rows, which `FULL_M` says, no load is checked.
    """
    if PIECES * TILE_N == WIDTH and (FULL_M or is_full(ct.bid(0), X.shape[0], TILE_M)):
        normalise_rows(X, RESIDUAL, W, Y, H, eps, TILE_M, TILE_N, PIECES, WIDTH, ADD, True)
    else:
        normalise_rows(X, RESIDUAL, W, Y, H, eps, TILE_M, TILE_N, PIECES, WIDTH, ADD, False)


# -- launcher ---------------------------------------------------------------------------------------


@overload
def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float = ...,
    residual: None = ...,
    *,
    config: RmsNormConfig | None = ...,
) -> torch.Tensor: ...


@overload
def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor,
    *,
    config: RmsNormConfig | None = ...,
) -> tuple[torch.Tensor, torch.Tensor]: ...


@overload
def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float = ...,
    *,
    residual: torch.Tensor,
    config: RmsNormConfig | None = ...,
) -> tuple[torch.Tensor, torch.Tensor]: ...


@on_its_gpu
def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    residual: torch.Tensor | None = None,
    *,
    config: RmsNormConfig | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Divide each row of `x`, or of `x + residual`, by its root mean square and multiply it by `weight`.

    Forward only: no gradient flows through it.

    Squares are float32, in which a sum of them overflows above 3.4e38: from values of about 1e19 on, which
    bfloat16 and float32 hold, a row becomes zeros or NaN. With an `eps` of 0, values below about 1e-19, whose
    squares have few digits or none, become inexact, infinite or NaN.

    Args:
        x: `[..., N]`, float16, bfloat16 or float32. Copied only if its leading axes do not merge.
        weight: `[N]`, same dtype and device.
        eps: Added to the mean square, so that a row of zeros stays zero: a normal float32; or 0.
        residual: Added to `x` before; same shape, dtype and device, copied likewise.
        config: Instead of the one chosen for this GPU.

    Returns:
        `[..., N]`, same shape, dtype and device as `x`, contiguous; with `residual`, that and the sum.

    Raises:
        TypeError: Not tensors, dtypes that differ or that are not supported, an `eps` that is no number,
            another kernel's configuration.
        ValueError: `weight` does not fit the last axis or `residual` the shape, N above 16384, an `eps` that
            is neither 0 nor a normal float32, devices that differ, more rows than one launch takes.
    """
    import torch

    tensors = {"x": x, "weight": weight} | ({} if residual is None else {"residual": residual})
    check_tensors("rms_norm", tensors, dtypes=("float16", "bfloat16", "float32"))
    check_config("rms_norm", config, RmsNormConfig)
    if x.ndim == 0:
        raise ValueError("rms_norm: x must have at least one axis to normalise, got a scalar")
    n = x.shape[-1]
    if tuple(weight.shape) != (n,):
        raise ValueError(
            f"rms_norm: x is {list(x.shape)}, so weight must be [{n}], but is {list(weight.shape)}"
        )
    if residual is not None and residual.shape != x.shape:
        raise ValueError(
            f"rms_norm: residual must have x's shape {list(x.shape)}, but is {list(residual.shape)}"
        )
    if n > MAX_WIDTH:
        raise ValueError(
            f"rms_norm: rows of {n} are too wide; at most {MAX_WIDTH} fit into a block's registers"
        )
    if isinstance(eps, torch.Tensor):
        raise TypeError("rms_norm: eps must be a number, got Tensor; to add it to x, pass residual=")
    eps = check_number("rms_norm", "eps", eps)
    if eps != 0 and not SMALLEST_FLOAT32 <= eps <= LARGEST_FLOAT32:
        raise ValueError(
            f"rms_norm: eps must be 0, or {SMALLEST_FLOAT32:.3g} to {LARGEST_FLOAT32:.3g}, got {eps}: "
            "it has to be a normal float32"
        )
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    h = None if residual is None else torch.empty_like(y)
    if y.numel() > 0:
        arch = find_arch("rms_norm", x, CONFIGS)
        config = config or choose_config(arch, width=n, itemsize=x.element_size())
        _launch(x, residual, weight, y, h, eps, config)
    return y if h is None else (y, h)


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    y: torch.Tensor,
    h: torch.Tensor | None,
    eps: float,
    config: RmsNormConfig,
) -> None:
    """Launch the kernel on tensors that are sound and not empty."""
    import torch

    n = x.shape[-1]
    rows, out = x.reshape(-1, n), y.view(-1, n)
    m = rows.shape[0]
    tile_m = max(1, config.tile_elements // next_power_of_2(n))
    tile_n, pieces = cut_row(n)
    ct.launch(
        torch.cuda.current_stream(),
        check_grid("rms_norm", (ct.cdiv(m, tile_m),), ("groups of rows", "split x")),
        with_hints(rms_norm_kernel, config),
        (
            rows,
            rows if residual is None else residual.reshape(-1, n),
            weight,
            out,
            out if h is None else h.view(-1, n),
            eps,
            tile_m,
            tile_n,
            pieces,
            n,
            residual is not None,
            m % tile_m == 0,
        ),
    )


# -- what it is gated with --------------------------------------------------------------------------


def reference(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Follow the formula in float64."""
    h = x if residual is None else x + residual
    y = h / (h.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight
    return y if residual is None else (y, h)


def inputs(
    make_tensor: Callable[..., torch.Tensor],
    *,
    shape: tuple[int, ...],
    dtype: str,
    eps: float,
    transposed: bool = False,
    add: bool = False,
) -> tuple[torch.Tensor | float, ...]:
    """Make x of `shape`, the weight and, to `add`, a residual; `transposed` makes x's columns contiguous."""
    x = make_tensor(shape[::-1], dtype).T if transposed else make_tensor(shape, dtype)
    # Off zero, so that no column is lost, and not all alike, so that a shifted weight shows.
    weight = make_tensor((shape[-1],), dtype, dist="uniform", low=0.5, high=1.5)
    return (x, weight, eps, make_tensor(shape, dtype)) if add else (x, weight, eps)


def work(
    *, shape: tuple[int, ...], dtype: str, eps: float, transposed: bool = False, add: bool = False
) -> Work:
    """Count bytes only: x, the residual and the weight read once, y and the sum written once."""
    del eps, transposed  # the same work, whatever they are
    tensors = 4 if add else 2
    return Work(bytes=float((tensors * math.prod(shape) + shape[-1]) * ITEMSIZE[dtype]), dtype=dtype)


def longest_sum(
    *, shape: tuple[int, ...], dtype: str, eps: float, transposed: bool = False, add: bool = False
) -> int:
    """Return how many squares each row adds up."""
    del dtype, eps, transposed, add
    return shape[-1]


def _case(
    dtype: str,
    *shape: int,
    eps: float = 1e-6,
    transposed: bool = False,
    add: bool = False,
    speed: bool = False,
) -> Case:
    short = SHORT[dtype]
    name = f"{short}-{'x'.join(map(str, shape))}" + "-transposed" * transposed + "-add" * add
    if eps != 1e-6:  # noqa: PLR2004
        name += f"-eps{eps:g}"
    params = {"shape": shape, "dtype": dtype, "eps": eps, "transposed": transposed, "add": add}
    return Case(name=name, params=params, speed=speed)


SPEC = KernelSpec(
    name="rms_norm",
    launch=rms_norm,
    reference=reference,
    inputs=inputs,
    work=work,
    reduction=longest_sum,
    independent={"x": ("rows", None), "residual": ("rows", None), "output": ("rows", None)},
    cases=[
        # 134 MB each way or twice that, several times any L2. The hidden sizes of models from 1 B to 400 B.
        _case("float16", 32768, 2048, speed=True),
        _case("bfloat16", 32768, 4096, speed=True),
        _case("bfloat16", 4096, 16384, speed=True),
        _case("float32", 4096, 8192, speed=True),
        _case("bfloat16", 16384, 4096, add=True, speed=True),
        # To each side of a power of two; no two sizes equal.
        _case("float16", 37, 256),
        _case("bfloat16", 19, 255),
        _case("float32", 21, 257),
        _case("float16", 301, 1000),
        _case("bfloat16", 65, 1023),
        # Widths in three and five pieces, with several blocks on a multiprocessor.
        _case("float32", 9, 1536),
        _case("bfloat16", 7, 2560),
        # Leading axes, and a width in three pieces (Llama 3.2 3B).
        _case("bfloat16", 3, 5, 3072),
        _case("float32", 2, 3, 5, 130),
        # The widest row, one less, one row, one column, one element, columns contiguous.
        _case("float16", 5, 16384),
        _case("float32", 3, 16383),
        _case("float32", 1, 5000),
        _case("bfloat16", 130, 1),
        _case("float16", 77),
        _case("float16", 96, 200, transposed=True),
        # An eps that weighs as much as the values: wrong inside or outside the root, it shows.
        _case("float32", 33, 512, eps=0.5),
        # With a residual: tiles that fit and that do not, each dtype, leading axes, columns contiguous.
        _case("float16", 32, 512, add=True),
        _case("bfloat16", 19, 255, add=True),
        _case("float32", 2, 3, 130, add=True),
        _case("bfloat16", 3, 16384, add=True),
        _case("float16", 11, 768, add=True),
        _case("float16", 96, 200, transposed=True, add=True),
        # Rows that lie apart, and tensors that begin anywhere.
        laid_out(_case("bfloat16", 23, 301, add=True), "padded"),
        laid_out(_case("float16", 29, 520), "shifted"),
    ],
)
