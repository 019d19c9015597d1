"""Gradients of SwiGLU's gate: what `kernels/swiglu.py` computes, differentiated.

    y  = silu(a) b,    silu(a) = a s,    s = 1 / (1 + exp(-a))
    da = dy b s (1 + a (1 - s))
    db = dy silu(a)

a, b, dy, da and db share any shape and one dtype: float16, bfloat16 or float32. Everything between load and
store is float32.

How it works: as forward, memory bandwidth limits the speed. dy, a and b are read once, da and db are written
once, and s is computed again. Tiles are those of `kernels/swiglu.py`, of half the size: five tensors instead
of three share a thread's registers.

`differentiable_swiglu` ties both directions together for `torch.autograd`.

Source: the derivative of the formula in Shazeer, "GLU Variants Improve Transformer", 2020
(https://arxiv.org/abs/2002.05202).
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import cuda.tile as ct

from kernels._cases import laid_out
from kernels._dtypes import ITEMSIZE, SHORT
from kernels._launch import (
    ARCHITECTURES,
    check_config,
    check_grid,
    check_tensors,
    find_arch,
    on_its_gpu,
    with_hints,
)
from kernels._tiles import LOG2_E, is_full, load_tile, reciprocal
from kernels.swiglu import MAX_INDEX, SwigluConfig, choose_tile, swiglu
from kernels.swiglu import inputs as forward_inputs
from kernels.swiglu import reference as forward_reference
from pytest_cutile import Case, KernelSpec, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

ConstInt: TypeAlias = ct.Constant[int]
ConstBool: TypeAlias = ct.Constant[bool]


# -- configuration ----------------------------------------------------------------------------------

# Half of a forward tile: one 16-byte load a thread of each of three tensors.
_UNMEASURED = SwigluConfig(tile_bytes=2048)
CONFIGS = dict.fromkeys(ARCHITECTURES, _UNMEASURED)
DEFAULT_CONFIG = _UNMEASURED
"""For architectures that are not in the table."""


def choose_config(arch: str) -> SwigluConfig:
    """Return the configuration for `arch`."""
    return CONFIGS.get(arch, DEFAULT_CONFIG)


# -- kernel -----------------------------------------------------------------------------------------


def differentiate_gated(
    DY: ct.Array,
    A: ct.Array,
    B: ct.Array,
    DA: ct.Array,
    DB: ct.Array,
    index: tuple[int, int],
    TILE_M: ConstInt,
    TILE_N: ConstInt,
    INSIDE: ConstBool,
) -> None:
    """Compute the tiles of DA and DB at `index`; `INSIDE` says that none of them is outside the arrays."""
    SHAPE = (TILE_M, TILE_N)
    dy = load_tile(DY, index, SHAPE, INSIDE=INSIDE).astype(ct.float32)  # [TILE_M, TILE_N]
    a = load_tile(A, index, SHAPE, INSIDE=INSIDE).astype(ct.float32)
    b = load_tile(B, index, SHAPE, INSIDE=INSIDE).astype(ct.float32)
    # With t = exp(-|a|), which is at most 1, nothing overflows; s and 1 - s are 1 / (1 + t) and t / (1 + t).
    t = ct.exp2(-ct.abs(a) * LOG2_E)
    scale = reciprocal(1.0 + t)
    s = ct.where(a < 0.0, t, 1.0) * scale
    rest = ct.where(a < 0.0, 1.0, t) * scale
    da = dy * b * (s * (1.0 + a * rest))
    ct.store(DA, index, da.astype(DA.dtype), check_bounds=not INSIDE, allow_tma=False)
    db = dy * (a * s)
    ct.store(DB, index, db.astype(DB.dtype), check_bounds=not INSIDE, allow_tma=False)


@ct.kernel
def swiglu_backward_kernel(
    DY: ct.Array,
    A: ct.Array,
    B: ct.Array,
    DA: ct.Array,
    DB: ct.Array,
    TILE_M: ConstInt,
    TILE_N: ConstInt,
    TILES_N: ConstInt,
) -> None:
    """Compute one tile of DA and DB; blocks count tiles row by row.

    `TILES_N` is the number of tiles in a row, or 0 if there is one row of any length.
    """
    m, n = DA.shape
    # Nothing is divided but by a constant: a block would wait for it before it can load.
    i, j = (0, ct.bid(0)) if TILES_N == 0 else (ct.bid(0) // TILES_N, ct.bid(0) % TILES_N)
    if is_full(i, m, TILE_M) and is_full(j, n, TILE_N):
        differentiate_gated(DY, A, B, DA, DB, (i, j), TILE_M, TILE_N, True)
    else:
        differentiate_gated(DY, A, B, DA, DB, (i, j), TILE_M, TILE_N, False)


# -- launchers --------------------------------------------------------------------------------------


@on_its_gpu
def swiglu_backward(
    dy: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, config: SwigluConfig | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of `a` and of `b` for an upstream gradient `dy` of `swiglu(a, b)`.

    Forward only: no gradient flows through it.

    Args:
        dy: `[..., N]`, float16, bfloat16 or float32. Copied only if its leading axes do not merge.
        a: The gate: same shape, dtype and device; copied likewise.
        b: Likewise.
        config: Instead of the one chosen for this GPU.

    Returns:
        Two tensors of the same shape, dtype and device, contiguous.

    Raises:
        TypeError: Not tensors, dtypes that differ or that are not supported, another kernel's configuration.
        ValueError: Shapes or devices that differ, more rows than one launch takes.
    """
    import torch

    name = "swiglu_backward"
    check_tensors(name, {"dy": dy, "a": a, "b": b}, dtypes=("float16", "bfloat16", "float32"))
    check_config(name, config, SwigluConfig)
    for other, tensor in (("a", a), ("b", b)):
        if tensor.shape != dy.shape:
            raise ValueError(
                f"{name}: {other} must have dy's shape {list(dy.shape)}, but is {list(tensor.shape)}"
            )
    da, db = (torch.empty(a.shape, dtype=a.dtype, device=a.device) for _ in range(2))
    if da.numel() == 0:
        return da, db
    config = config or choose_config(find_arch(name, a, CONFIGS))
    width = a.shape[-1] if a.ndim else 1
    matrices = [tensor.reshape(-1, width) for tensor in (dy, a, b)] + [da.view(-1, width), db.view(-1, width)]
    if all(matrix.is_contiguous() for matrix in matrices) and da.numel() < MAX_INDEX:
        matrices = [matrix.view(1, -1) for matrix in matrices]
    m, n = matrices[0].shape
    tile_m, tile_n = choose_tile(m, n, config.tile_bytes // a.element_size())
    tiles_n = ct.cdiv(n, tile_n)
    ct.launch(
        torch.cuda.current_stream(),
        check_grid(name, (ct.cdiv(m, tile_m) * tiles_n,), ("tiles of the result", "split the rows")),
        with_hints(swiglu_backward_kernel, config),
        (*matrices, tile_m, tile_n, tiles_n if m > 1 else 0),
    )
    return da, db


@cache
def _autograd_function() -> Any:
    """Return the function that autograd knows; torch is imported when it is first asked for."""
    import torch

    class Swiglu(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(a, b)
            return swiglu(a, b)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return swiglu_backward(*gradients, *ctx.saved_tensors)

    return Swiglu


def differentiable_swiglu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return `swiglu(a, b)`, through which gradients of `a` and `b` flow, once.

    Args:
        a: The gate, `[..., N]`, float16, bfloat16 or float32.
        b: Same shape, dtype and device.

    Returns:
        Same shape, dtype and device, contiguous.

    Raises:
        TypeError: What `swiglu` raises.
        ValueError: Likewise.
    """
    y: torch.Tensor = _autograd_function().apply(a, b)
    return y


# -- what it is gated with --------------------------------------------------------------------------


def reference(dy: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Follow the formula in float64."""
    s = 1 / (1 + (-a).exp())
    return dy * b * s * (1 + a * (1 - s)), dy * a * s


def inputs(
    make_tensor: Callable[..., torch.Tensor], *, shape: tuple[int, ...], dtype: str, transposed: str = ""
) -> tuple[torch.Tensor, ...]:
    """Make dy, a and b of `shape`, the last two as the forward kernel's inputs."""
    return (
        make_tensor(shape, dtype),
        *forward_inputs(make_tensor, shape=shape, dtype=dtype, transposed=transposed),
    )


def work(*, shape: tuple[int, ...], dtype: str, transposed: str = "") -> Work:
    """Count bytes only: dy, a and b read once, da and db written once."""
    del transposed  # the same work
    return Work(bytes=5.0 * math.prod(shape) * ITEMSIZE[dtype], dtype=dtype)


def _case(dtype: str, *shape: int, transposed: str = "", speed: bool = False) -> Case:
    name = f"{SHORT[dtype]}-{'x'.join(map(str, shape))}" + (f"-transposed_{transposed}" if transposed else "")
    return Case(name=name, params={"shape": shape, "dtype": dtype, "transposed": transposed}, speed=speed)


_UNDEFINED = {"outliers": "of the SiLU of a gate below -87, a subnormal number, float32 keeps few digits"}
SPEC = KernelSpec(
    name="swiglu_backward",
    launch=swiglu_backward,
    reference=reference,
    inputs=inputs,
    work=work,
    undefined_inputs=_UNDEFINED,
    independent={"dy": ("rows",), "a": ("rows",), "b": ("rows",), "output": ("rows",)},
    cases=[
        # 590 MB to 1.2 GB: TileGym's batch of 4, the gates of Llama 3 8B, and rows of float32.
        _case("float16", 4, 4096, 4096, speed=True),
        _case("bfloat16", 8192, 14336, speed=True),
        _case("float32", 4, 4096, 2048, speed=True),
        # Dense tensors are one row: to each side of one tile and of several, and of any rank.
        _case("float16", 1024),
        _case("bfloat16", 1023),
        _case("float32", 1025),
        _case("bfloat16", 37, 257),
        _case("float32", 2, 3, 5, 130),
        _case("float16", 1),
        # Rows whose columns are contiguous: tiles over several rows, inside, sticking out to either side.
        _case("float16", 40, 512, transposed="a"),
        _case("bfloat16", 37, 300, transposed="b"),
        _case("float32", 130, 33, transposed="ab"),
        # Rows that lie apart, and tensors that begin anywhere.
        laid_out(_case("bfloat16", 23, 301), "padded"),
        laid_out(_case("float16", 29, 520), "shifted"),
    ],
)
DIFFERENTIABLE = KernelSpec(
    name="differentiable_swiglu",
    launch=differentiable_swiglu,
    reference=forward_reference,
    inputs=forward_inputs,
    undefined_inputs={
        **_UNDEFINED,
        "inf": "autograd makes Inf * 0 of an infinite gate, the derivative's formula does not",
    },
    grad=True,
    # The kernels behind it are timed on their own.
    cases=[
        _case("float16", 37, 256),
        _case("bfloat16", 3, 5, 301),
        _case("float32", 19, 255),
        _case("bfloat16", 40, 96, transposed="a"),
    ],
)
SPECS = [SPEC, DIFFERENTIABLE]
