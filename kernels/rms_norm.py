"""Root-mean-square normalisation of the last axis, with a weight per column.

    y[..., n] = x[..., n] / sqrt(mean over j of x[..., j]^2 + eps) * w[n]

x and y are `[..., N]`, w is `[N]`, all in the same one of float16, bfloat16 or float32; N is at most 16384.
Everything between load and store is float32. (Some models round x / rms to 16 bits before the weight; this
kernel rounds once, at the end.)

How it works: like softmax, it moves far more bytes than it computes, and the aim is to move each once. A
tile holds whole rows, so x is read once and stays in registers until it is scaled. The weight is the same
for every row, so it comes from a cache, or stays in the registers of a block that loops over rows.

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019 (https://arxiv.org/abs/1910.07467).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import cuda.tile as ct

from kernels._launch import check_tensors, choose_warps, count_sms, device_arch, next_power_of_2
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
    """How rows are cut into tiles, and what the compiler is told."""

    tile_elements: int = 4096
    """Elements per tile to aim at: short rows are grouped until a tile has as many."""
    blocks_per_sm: int = 0
    """Blocks launched per multiprocessor, each looping over rows; 0 launches one block per tile of rows."""
    load_tma: bool = False
    """Whether loads may use TMA."""
    store_tma: bool = False
    """Whether stores may use TMA."""
    occupancy: int | None = None
    """Blocks that share a multiprocessor; None lets the compiler choose."""
    eight_warps_from: int = 8192
    """Elements per tile from which a block has 8 warps instead of 4, so that a tile fits in its registers."""


CONFIGS = {
    # H200, 2026-11-21, cold L2, interleaved, against the defaults: fp16 32768x2048 76.2 us (96.2), bf16
    # 32768x4096 142 us (208), bf16 4096x16384 79.7 us (118), fp32 4096x8192 73.4 us (70.2); a copy of
    # the same bytes takes 67 us, or 129 us for the second. Two blocks an SM, each prefetching its next rows.
    "sm_90": RmsNormConfig(load_tma=True, blocks_per_sm=2, occupancy=2),
}
# Not measured. Stores stay off TMA because NVIDIA's RMSNorm in TileGym gains from that.
DEFAULT_CONFIG = RmsNormConfig()
"""For architectures that are not in the table."""


def choose_config(arch: str) -> RmsNormConfig:
    """Return the configuration for `arch`."""
    return CONFIGS.get(arch, DEFAULT_CONFIG)


# -- kernel -----------------------------------------------------------------------------------------


def normalise(
    X: ct.Array,
    W: ct.Array,
    Y: ct.Array,
    i: int,
    eps: float,
    TILE_M: ConstInt,
    TILE_N: ConstInt,
    LOAD_TMA: ConstBool,
    STORE_TMA: ConstBool,
) -> None:
    """Normalise the `i`-th group of `TILE_M` rows."""
    x = ct.load(
        X, (i, 0), (TILE_M, TILE_N), padding_mode=ct.PaddingMode.ZERO, allow_tma=LOAD_TMA
    )  # [TILE_M, TILE_N]
    x = x.astype(ct.float32)
    # The mean is over the row, not over the tile: the padding's zeros add nothing to the sum of squares.
    mean_square = ct.sum(x * x, 1, keepdims=True) / X.shape[1]  # [TILE_M, 1]
    w = ct.load(W, (0,), (TILE_N,), padding_mode=ct.PaddingMode.ZERO, allow_tma=LOAD_TMA)  # [TILE_N]
    y = x * ct.rsqrt(mean_square + eps) * w.astype(ct.float32).reshape((1, TILE_N))
    ct.store(Y, (i, 0), y.astype(Y.dtype), allow_tma=STORE_TMA)


@ct.kernel
def rms_norm_kernel(
    X: ct.Array,
    W: ct.Array,
    Y: ct.Array,
    eps: float,
    TILE_M: ConstInt,
    TILE_N: ConstInt,
    LOOP: ConstBool,
    LOAD_TMA: ConstBool,
    STORE_TMA: ConstBool,
) -> None:
    """Normalise whole rows, `TILE_M` at a time; `TILE_N` is at least their length."""
    # A loop keeps the weight, which is the same in every turn, in registers. One group of rows per block
    # leaves those registers to more blocks.
    if LOOP:
        for i in range(ct.bid(0), ct.cdiv(X.shape[0], TILE_M), ct.num_blocks(0)):
            normalise(X, W, Y, i, eps, TILE_M, TILE_N, LOAD_TMA, STORE_TMA)
    else:
        normalise(X, W, Y, ct.bid(0), eps, TILE_M, TILE_N, LOAD_TMA, STORE_TMA)


# -- launcher ---------------------------------------------------------------------------------------


@cache
def _kernel_for(occupancy: int | None, warps: int) -> Any:
    """Return the kernel with these compiler hints; cached, because each object has its own JIT cache."""
    return rms_norm_kernel.replace_hints(occupancy=occupancy, num_worker_warps=warps)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, *, config: RmsNormConfig | None = None
) -> torch.Tensor:
    """Divide each row by its root mean square and multiply it by `weight`.

    Args:
        x: `[..., N]`, float16, bfloat16 or float32. Copied only if its leading axes do not merge.
        weight: `[N]`, same dtype and device.
        eps: Added to the mean square, so that a row of zeros stays zero.
        config: Instead of the one chosen for this GPU.

    Returns:
        `[..., N]`, same shape, dtype and device as `x`, contiguous.

    Raises:
        TypeError: Not tensors, dtypes that differ or that are not supported.
        ValueError: `weight` does not fit the last axis, N above 16384, negative `eps`, devices that differ.
    """
    import torch

    check_tensors("rms_norm", {"x": x, "weight": weight}, dtypes=("float16", "bfloat16", "float32"))
    if x.ndim == 0:
        raise ValueError("rms_norm: x must have at least one axis to normalise, got a scalar")
    n = x.shape[-1]
    if tuple(weight.shape) != (n,):
        raise ValueError(
            f"rms_norm: x is {list(x.shape)}, so weight must be [{n}], but is {list(weight.shape)}"
        )
    if n > MAX_WIDTH:
        raise ValueError(f"rms_norm: rows of {n} are too wide; at most {MAX_WIDTH} fit in one tile")
    if not eps >= 0:
        raise ValueError(f"rms_norm: eps must not be negative, got {eps}")
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y

    config = config or choose_config(device_arch())
    rows = x.reshape(-1, n)
    tile_n = next_power_of_2(n)
    tile_m = max(1, config.tile_elements // tile_n)
    row_tiles = ct.cdiv(rows.shape[0], tile_m)
    blocks = min(row_tiles, count_sms() * config.blocks_per_sm) if config.blocks_per_sm else row_tiles
    ct.launch(
        torch.cuda.current_stream(),
        (blocks,),
        _kernel_for(config.occupancy, choose_warps(tile_m * tile_n, config.eight_warps_from)),
        (
            rows,
            weight,
            y.view(-1, n),
            float(eps),
            tile_m,
            tile_n,
            config.blocks_per_sm > 0,
            config.load_tma,
            config.store_tma,
        ),
    )
    return y


# -- what it is gated with --------------------------------------------------------------------------


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Follow the formula in float64."""
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight


def inputs(
    make_tensor: Callable[..., torch.Tensor],
    *,
    shape: tuple[int, ...],
    dtype: str,
    eps: float,
    transposed: bool = False,
) -> tuple[torch.Tensor | float, ...]:
    """Make x of `shape` and the weight; `transposed` makes x a matrix whose columns are contiguous."""
    x = make_tensor(shape[::-1], dtype).T if transposed else make_tensor(shape, dtype)
    # Off zero, so that no column is lost, and not all alike, so that a shifted weight shows.
    weight = make_tensor((shape[-1],), dtype, dist="uniform", low=0.5, high=1.5)
    return x, weight, eps


def work(*, shape: tuple[int, ...], dtype: str, eps: float, transposed: bool = False) -> Work:
    """Count bytes only: x and the weight read once, y written once."""
    del eps, transposed  # the same work, whatever they are
    itemsize = 4 if dtype == "float32" else 2
    elements = 1
    for length in shape:
        elements *= length
    return Work(bytes=float((2 * elements + shape[-1]) * itemsize), dtype=dtype)


def longest_sum(*, shape: tuple[int, ...], dtype: str, eps: float, transposed: bool = False) -> int:
    """Return how many squares each row adds up."""
    del dtype, eps, transposed
    return shape[-1]


def _case(
    dtype: str,
    *shape: int,
    eps: float = 1e-6,
    transposed: bool = False,
    speed: bool = False,
) -> Case:
    short = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}[dtype]
    name = f"{short}-{'x'.join(map(str, shape))}" + "-transposed" * transposed
    if eps != 1e-6:  # noqa: PLR2004
        name += f"-eps{eps:g}"
    params = {"shape": shape, "dtype": dtype, "eps": eps, "transposed": transposed}
    return Case(name=name, params=params, speed=speed)


SPEC = KernelSpec(
    name="rms_norm",
    launch=rms_norm,
    reference=reference,
    inputs=inputs,
    work=work,
    reduction=longest_sum,
    cases=[
        # 134 MB each way or twice that, several times any L2. The hidden sizes of models from 1 B to 400 B.
        _case("float16", 32768, 2048, speed=True),
        _case("bfloat16", 32768, 4096, speed=True),
        _case("bfloat16", 4096, 16384, speed=True),
        _case("float32", 4096, 8192, speed=True),
        # To each side of a power of two; no two sizes equal.
        _case("float16", 37, 256),
        _case("bfloat16", 19, 255),
        _case("float32", 21, 257),
        _case("float16", 301, 1000),
        _case("bfloat16", 65, 1023),
        # Leading axes, and a width that is no power of two (Llama 3.2 3B).
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
    ],
)
