"""SwiGLU's gate: the SiLU of one tensor times another, element by element.

    y = silu(a) * b,    silu(a) = a * sigmoid(a) = a / (1 + exp(-a))

a, b and y share any shape and one dtype: float16, bfloat16 or float32. Everything between load and store is
float32.

How it works: there is little arithmetic per byte, so memory bandwidth limits the speed. The aim is to keep
enough loads in flight. A tile is a few 16-byte loads per thread. All tiles but the last lie inside the
tensors and are loaded without bounds checks (`load_tile` says what checks cost). A dense tensor is treated as
one long row, whatever its shape; other tensors are treated as matrices of rows.

Source: Shazeer, "GLU Variants Improve Transformer", 2020 (https://arxiv.org/abs/2002.05202); SiLU: Elfwing,
Uchibe and Doya, 2017 (https://arxiv.org/abs/1702.03118).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import cuda.tile as ct

from kernels._cases import laid_out
from kernels._configs import check_fields
from kernels._dtypes import ITEMSIZE, SHORT
from kernels._launch import (
    ARCHITECTURES,
    MIN_PIECE,
    check_config,
    check_grid,
    check_power_of_2,
    check_tensors,
    find_arch,
    next_power_of_2,
    on_its_gpu,
    with_hints,
)
from kernels._tiles import LOG2_E, is_full, load_tile, reciprocal
from pytest_cutile import Case, KernelSpec, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

ConstInt: TypeAlias = ct.Constant[int]
ConstBool: TypeAlias = ct.Constant[bool]

MAX_INDEX = 2**31
"""Arrays are indexed with 32 bits, axis by axis: a dense tensor of more elements stays a matrix."""


# -- configuration ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SwigluConfig:
    """How the tensors are cut into tiles, and the compiler's hints."""

    tile_bytes: int = 4096
    """Bytes per tile of each tensor."""
    occupancy: int | None = 8
    """Blocks that share a multiprocessor; None lets the compiler choose."""
    num_worker_warps: int | None = 4
    """Warps per block; None lets the compiler choose."""

    def __post_init__(self) -> None:
        check_fields(self, powers=("tile_bytes",))
        check_power_of_2("SwigluConfig", "tile_bytes", self.tile_bytes, least=4)  # of float32, one element


# H200, 2026-11-21, driver 580.159.04, cold L2, interleaved: 32 bytes a thread are two 16-byte loads of each
# tensor, and with 8 blocks of 128 threads with 64 registers each, an SM's registers are full. Half
# the elements of before win with float32: 4096x2048 30.5 us (31.1), 4x128x16384 30.4 us (30.8), 4096x16384
# 189 us (191), 8x4096x16384 1466 us (1477). With 16 bits, nothing was better than what was there: fp16
# 4x4096x4096 98.8 us, bf16 8192x14336 167 us. Blocks that loop over several tiles were slower.
_MEASURED = SwigluConfig()
# Not measured, except on sm_90 and where an entry says so.
CONFIGS = dict.fromkeys(ARCHITECTURES, _MEASURED)
DEFAULT_CONFIG = _MEASURED
"""For architectures that are not in the table."""


def choose_config(arch: str) -> SwigluConfig:
    """Return the configuration for `arch`."""
    return CONFIGS.get(arch, DEFAULT_CONFIG)


# -- kernel -----------------------------------------------------------------------------------------


def silu(x: ct.Tile) -> ct.Tile:
    """Return x / (1 + exp(-x)) of float32, in a form in which nothing overflows.

    With t = exp(-|x|), which is at most 1, it is x / (1 + t) for x >= 0 and x t / (1 + t) for x < 0. Digits
    are lost only where t is subnormal, below x = -87.
    """
    t = ct.exp2(-ct.abs(x) * LOG2_E)
    return x * ct.where(x < 0.0, t, 1.0) * reciprocal(1.0 + t)


def multiply_gated(
    A: ct.Array,
    B: ct.Array,
    Y: ct.Array,
    index: tuple[int, int],
    TILE_M: ConstInt,
    TILE_N: ConstInt,
    INSIDE: ConstBool,
) -> None:
    """Compute the tile of Y at `index`; `INSIDE` says that none of it is outside the arrays."""
    a = load_tile(A, index, (TILE_M, TILE_N), INSIDE=INSIDE).astype(ct.float32)  # [TILE_M, TILE_N]
    b = load_tile(B, index, (TILE_M, TILE_N), INSIDE=INSIDE).astype(ct.float32)
    ct.store(Y, index, (silu(a) * b).astype(Y.dtype), check_bounds=not INSIDE, allow_tma=False)


@ct.kernel
def swiglu_kernel(
    A: ct.Array,
    B: ct.Array,
    Y: ct.Array,
    TILE_M: ConstInt,
    TILE_N: ConstInt,
    TILES_N: ConstInt,
    EVEN: ConstBool,
) -> None:
    """Compute one tile of Y; blocks count tiles row by row.

    `TILES_N` is the number of tiles in a row, or 0 if there is one row of any length; `EVEN` says that no
    tile sticks out, as far as it is known before.
    """
    m, n = Y.shape
    # Nothing is divided but by a constant: a block would wait for it before it can load.
    i, j = (0, ct.bid(0)) if TILES_N == 0 else (ct.bid(0) // TILES_N, ct.bid(0) % TILES_N)
    if EVEN or (is_full(i, m, TILE_M) and is_full(j, n, TILE_N)):
        multiply_gated(A, B, Y, (i, j), TILE_M, TILE_N, True)
    else:
        multiply_gated(A, B, Y, (i, j), TILE_M, TILE_N, False)


# -- launcher ---------------------------------------------------------------------------------------


def choose_tile(m: int, n: int, elements: int) -> tuple[int, int]:
    """Return the sides of a tile of at most `elements` for a matrix `[m, n]`.

    A tile that divides the row wastes nothing and is never checked, and most models' widths are multiples of
    256 or more. Where only a very narrow tile would, the last tile of each row sticks out. A single row,
    which is what dense tensors are, has only one last tile: it always takes the longest.
    """
    divisor = n & -n  # the largest power of two that divides n
    tile_n = min(elements, divisor if m > 1 and divisor >= MIN_PIECE else next_power_of_2(n))
    return min(elements // tile_n, next_power_of_2(m)), tile_n


def launch_swiglu(
    kernel: str, a: torch.Tensor, b: torch.Tensor, y: torch.Tensor, config: SwigluConfig
) -> None:
    """Write swiglu(a, b) into y; all are matrices `[m, n]`, not empty, of one dtype and any strides.

    For rows that are apart, of which a model has few lengths, the kernel is compiled for their number of
    tiles: blocks do not divide before they can load. H200, 2026-11-22, `silu_and_mul`, fp16: 32768x4096 99.8
    us (102.8), 8192x4096 30.9 us (31.4), 2048x4096 12.5 us (12.6). A dense tensor is one row, of any length.

    Raises:
        ValueError: `kernel`, as its user calls it, would have too many tiles for one launch.
    """
    import torch

    if all(matrix.is_contiguous() for matrix in (a, b, y)) and y.numel() < MAX_INDEX:
        a, b, y = (matrix.view(1, -1) for matrix in (a, b, y))
    m, n = y.shape
    tile_m, tile_n = choose_tile(m, n, config.tile_bytes // y.element_size())
    tiles_n = ct.cdiv(n, tile_n)
    apart = m > 1
    ct.launch(
        torch.cuda.current_stream(),
        check_grid(kernel, (ct.cdiv(m, tile_m) * tiles_n,), ("tiles of the result", "split the rows")),
        with_hints(swiglu_kernel, config),
        (
            *(a, b, y, tile_m, tile_n, tiles_n if apart else 0),
            apart and m % tile_m == 0 and n % tile_n == 0,
        ),
    )


@on_its_gpu
def swiglu(a: torch.Tensor, b: torch.Tensor, *, config: SwigluConfig | None = None) -> torch.Tensor:
    """Multiply the SiLU of `a` by `b`, element by element.

    Forward only: no gradient flows through it.

    Args:
        a: The gate, `[..., N]`, float16, bfloat16 or float32. Copied only if its leading axes do not merge.
        b: Same shape, dtype and device; copied likewise.
        config: Instead of the one chosen for this GPU.

    Returns:
        Same shape, dtype and device, contiguous.

    Raises:
        TypeError: Not tensors, dtypes that differ or that are not supported, another kernel's configuration.
        ValueError: Shapes or devices that differ, more rows than one launch takes.
    """
    import torch

    check_tensors("swiglu", {"a": a, "b": b}, dtypes=("float16", "bfloat16", "float32"))
    check_config("swiglu", config, SwigluConfig)
    if b.shape != a.shape:
        raise ValueError(f"swiglu: b must have a's shape {list(a.shape)}, but is {list(b.shape)}")
    y = torch.empty(a.shape, dtype=a.dtype, device=a.device)
    if y.numel() == 0:
        return y
    n = a.shape[-1] if a.ndim else 1
    arch = find_arch("swiglu", a, CONFIGS)
    config = config or choose_config(arch)
    launch_swiglu("swiglu", a.reshape(-1, n), b.reshape(-1, n), y.view(-1, n), config)
    return y


# -- what it is gated with --------------------------------------------------------------------------


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Follow the formula in float64."""
    return a / (1 + (-a).exp()) * b


def inputs(
    make_tensor: Callable[..., torch.Tensor],
    *,
    shape: tuple[int, ...],
    dtype: str,
    transposed: str = "",
    spread: float = 1.0,
) -> tuple[torch.Tensor, ...]:
    """Make a and b of `shape`, the ones named in `transposed` as matrices whose columns are contiguous.

    With `spread`, the gate is uniform in [-spread, spread] instead of normal.
    """
    made = []
    for name in "ab":
        size = shape[::-1] if name in transposed else shape
        gate = name == "a" and spread != 1.0
        tensor = (
            make_tensor(size, dtype, dist="uniform", low=-spread, high=spread)
            if gate
            else make_tensor(size, dtype)
        )
        made.append(tensor.T if name in transposed else tensor)
    return tuple(made)


def work(*, shape: tuple[int, ...], dtype: str, transposed: str = "", spread: float = 1.0) -> Work:
    """Count bytes only: a and b read once, y written once."""
    del transposed, spread  # the same work, whatever they are
    return Work(bytes=3.0 * math.prod(shape) * ITEMSIZE[dtype], dtype=dtype)


def _case(dtype: str, *shape: int, transposed: str = "", spread: float = 1.0, speed: bool = False) -> Case:
    short = SHORT[dtype]
    name = f"{short}-{'x'.join(map(str, shape))}"
    if transposed:
        name += f"-transposed_{transposed}"
    if spread != 1.0:
        name += f"-spread{spread:g}"
    params = {"shape": shape, "dtype": dtype, "transposed": transposed, "spread": spread}
    return Case(name=name, params=params, speed=speed)


SPEC = KernelSpec(
    name="swiglu",
    launch=swiglu,
    reference=reference,
    inputs=inputs,
    work=work,
    undefined_inputs={
        "outliers": "of the SiLU of a gate below -87, a subnormal number, float32 keeps few digits"
    },
    independent={"a": ("rows",), "b": ("rows",), "output": ("rows",)},
    cases=[
        # 400 to 930 MB: TileGym's batch of 4, and the gates of Llama 3 8B and of Qwen 2.5 7B.
        _case("float16", 4, 4096, 4096, speed=True),
        _case("bfloat16", 8192, 14336, speed=True),
        _case("bfloat16", 8192, 18944, speed=True),
        _case("float32", 4, 4096, 2048, speed=True),
        # Dense tensors are one row: to each side of one tile and of several, and of any rank.
        _case("float16", 2048),
        _case("bfloat16", 2047),
        _case("float32", 2049),
        _case("float16", 3, 5, 7),
        _case("bfloat16", 37, 257),
        _case("float32", 2, 3, 5, 130),
        _case("float16", 1),
        # Rows whose columns are contiguous: tiles over several rows, inside, sticking out to either side.
        _case("float16", 40, 512, transposed="a"),
        _case("bfloat16", 37, 300, transposed="b"),
        _case("float32", 130, 33, transposed="ab"),
        _case("float16", 5, 2056, transposed="b"),
        # Gates whose exponential overflows, or whose SiLU is subnormal in 16 bits.
        _case("float32", 3, 1000, spread=85.0),
        _case("bfloat16", 3, 1000, spread=85.0),
        _case("float16", 3, 1000, spread=12.0),
        # Rows that lie apart, and tensors that begin anywhere.
        laid_out(_case("bfloat16", 23, 301), "padded"),
        laid_out(_case("float16", 29, 520), "shifted"),
    ],
)
