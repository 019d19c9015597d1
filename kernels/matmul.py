"""Matrix product: C = A @ B.

    C[m, n] = scale * sum over k of A[m, k] * B[k, n]

A is `[M, K]`, B is `[K, N]`, C is `[M, N]`. A and B are float16, bfloat16, float32, float8_e4m3fn or
float8_e5m2. Sums are kept in float32 (8-bit floats: see below) and rounded once, to `out_dtype`. float32
operands are multiplied as tfloat32 (10 mantissa bits instead of 23), because tensor cores take no float32;
use another kernel where float32's precision is needed. The scale is for quantised operands, and 1 unless
given.

Sizes and strides may be anything: tiles that extend past an edge are padded with zeros, which add nothing to
a sum, and a transposed view (`B = W.T`) is read through its strides.

How it works: each block owns one tile of C. It walks along K, multiplies a tile of A by a tile of B on the
tensor cores, and adds the product to a float32 accumulator (`_gemm.multiply_along_k`). Three things decide
the speed: tiles large enough that tensor cores do not wait for memory, loads issued several steps ahead of
their use (`latency`), and a block order in which the blocks that run together share operands in the L2
(`swizzle`). A product with fewer tiles than the GPU has multiprocessors leaves some of them idle, so it is
cut into smaller tiles (`choose_config`).

Two requirements of the hardware, and their cost:

- The TMA unit fetches whole tiles, but only from rows that start at multiples of 16 bytes: a row-major
  float16 matrix needs a number of columns divisible by 8. Other matrices are read element by element.
- Hopper's tensor cores take operands of 8 and of 32 bits only with K contiguous: A row-major, B the
  transpose of a row-major matrix. Tiles of other operands are transposed on the chip, in every block again.

In both cases a copy in the right layout costs one pass over the operand. The copy is made first where the
product is large enough to pay for it (`copy_tile`).

8-bit floats: Hopper's tensor cores sum products of 8-bit floats in about 14 bits (DeepSeek-AI, "DeepSeek-V3
Technical Report", section 3.3.2, https://arxiv.org/abs/2412.19437). With `use_fast_acc=False` the compiler
moves these sums into float32 every 128 products (tileiras 13.4.92, in its machine code), which takes time and
a second set of registers. With `use_fast_acc=True` the sums stay in the tensor cores along all of K. Other
architectures ignore the option. PyTorch's `torch._scaled_mm` has the same switch, also off by default.

Source: the tiled product of any GPU textbook; the block order is that of Triton's matmul tutorial
(https://triton-lang.org/main/getting-started/tutorials/03-matrix-multiplication.html).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import cuda.tile as ct

from kernels._cases import laid_out
from kernels._configs import check_fields, vary
from kernels._division import Divisor, divisor
from kernels._dtypes import FP8, FP8_ARCH, ITEMSIZE, MIN_ARCH, SHORT
from kernels._gemm import (
    COPY_FROM,
    TMA_ALIGNMENT,
    GemmConfig,
    choose_product_dtype,
    choose_tiles,
    copy_k_major,
    count_tiles,
    for_each_tile,
    in_steps_of,
    make_grid,
    may_store_tma,
    multiply_along_k,
)
from kernels._launch import (
    check_bool,
    check_config,
    check_tensors,
    count_sms,
    find_arch,
    on_its_gpu,
    with_hints,
)
from kernels._tiles import swizzle
from pytest_cutile import Case, KernelSpec, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

ConstInt: TypeAlias = ct.Constant[int]
ConstBool: TypeAlias = ct.Constant[bool]

DTYPES = ("float16", "bfloat16", "float32", *FP8)


# -- configuration ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MatmulConfig(GemmConfig):
    """How a product is cut into tiles, what is copied first, and the compiler's hints."""

    k_major: bool = False
    """Whether the tensor cores take these operands only with K contiguous."""
    copy_tile: int | None = None
    """Side of the tiles in which operands of a wrong layout are copied; None multiplies them as they are."""

    def __post_init__(self) -> None:
        check_fields(self, powers=("tile_m", "tile_n", "tile_k", "copy_tile"), limits=("min_k",))


# Largest tiles first: `choose_config` takes the first of which there are enough to fill the GPU.
# "Not measured" entries follow the candidates that NVIDIA publishes for TileGym's matmul
# (https://github.com/NVIDIA/TileGym, src/tilegym/ops/cutile/matmul.py); they compile, and nobody here has
# timed them.
_UNMEASURED: dict[str, tuple[MatmulConfig, ...]] = {
    # Ampere and Ada have no TMA: shallow steps, and two blocks to hide each other's latency. Not measured.
    # Nothing spills where rows are whole 16 elements, of others the larger tiles 48 to 320 bytes a thread
    # (tileiras 13.4.92).
    "sm_80": (
        MatmulConfig(tile_m=128, tile_n=128, tile_k=32, occupancy=2),
        MatmulConfig(tile_m=64, tile_n=64, tile_k=32, occupancy=2),
    ),
    "sm_86": (
        MatmulConfig(tile_m=128, tile_n=64, tile_k=32, occupancy=2),
        MatmulConfig(tile_m=64, tile_n=64, tile_k=32, occupancy=2),
    ),
    "sm_89": (
        MatmulConfig(tile_m=128, tile_n=64, tile_k=32, occupancy=2),
        MatmulConfig(tile_m=64, tile_n=64, tile_k=32, occupancy=2),
    ),
    # Fifth-generation tensor cores let two thread blocks share one 256x256 tile. Not measured.
    "sm_100": (
        MatmulConfig(tile_m=256, tile_n=256, tile_k=64, occupancy=1, num_ctas=2),
        MatmulConfig(tile_m=128, tile_n=128, tile_k=64, occupancy=1),
    ),
    "sm_103": (
        MatmulConfig(tile_m=256, tile_n=256, tile_k=64, occupancy=1, num_ctas=2),
        MatmulConfig(tile_m=128, tile_n=128, tile_k=64, occupancy=1),
    ),
    "sm_110": (
        MatmulConfig(tile_m=256, tile_n=256, tile_k=64, occupancy=1, num_ctas=2),
        MatmulConfig(tile_m=128, tile_n=128, tile_k=64, occupancy=1),
    ),
    # Consumer Blackwell multiplies from registers, and has few multiprocessors to fill. Not measured.
    "sm_120": (
        MatmulConfig(tile_m=128, tile_n=64, tile_k=64, occupancy=1),
        MatmulConfig(tile_m=64, tile_n=64, tile_k=64, occupancy=2),
    ),
    "sm_121": (
        MatmulConfig(tile_m=128, tile_n=64, tile_k=64, occupancy=1),
        MatmulConfig(tile_m=64, tile_n=64, tile_k=64, occupancy=2),
    ),
}


CONFIGS: dict[str, tuple[MatmulConfig, ...]] = {
    **_UNMEASURED,
    # H200, 2026-11-21, driver 580.159.04, cold L2, interleaved; "against" is the next best of 37 candidates
    # that differs in more than an order of blocks.
    "sm_90": (
        # fp16 4096^3 188 us, 730 TFLOPS, bf16 2048x8192x4096 178 us, 772 TFLOPS, against 194 and 183 us of
        # 128x256 with a block for each tile. At 16384^3 (13.3 to 13.8 ms) figures move by 4 % from sample to
        # sample, and say nothing.
        MatmulConfig(
            tile_m=256,
            tile_n=256,
            tile_k=64,
            group_m=8,
            latency=4,
            blocks_per_sm=1,
            occupancy=1,
            num_ctas=2,
            num_worker_warps=8,
            min_k=4096,
            copy_tile=64,
        ),
        # As bmm (`kernels.bmm`), where it is measured with shorter sums; here 4096^3 192 us.
        MatmulConfig(
            tile_m=128,
            tile_n=256,
            tile_k=64,
            group_m=8,
            latency=4,
            blocks_per_sm=1,
            occupancy=1,
            num_worker_warps=8,
            copy_tile=64,
        ),
        # fp16 2048^3 29.6 us, 580 TFLOPS, as 128x256. Two blocks a multiprocessor: one multiplies while the
        # other stores.
        MatmulConfig(tile_m=128, tile_n=128, tile_k=64, group_m=16, latency=4, occupancy=2, copy_tile=64),
        # fp16 1024^3 10.5 us, 205 TFLOPS, against 11.1 us with latency 6 and 10.6 us with half the step
        # (2026-11-22). Most of it is no arithmetic: what bmm takes for 2 and for 8 such products, 13.4 and
        # 33.5 us, is 6.7 us and 3.35 us for each.
        MatmulConfig(tile_m=64, tile_n=128, tile_k=128, group_m=16, latency=4, occupancy=1, copy_tile=64),
    ),
}
"""For operands of 16 bits."""
TF32_CONFIGS: dict[str, tuple[MatmulConfig, ...]] = {
    **in_steps_of(4, _UNMEASURED),
    "sm_90": (
        # H200, 2026-11-23, tf32 4096x4096x2048, transposed B, the best of 49: 179 us, 384 TFLOPS; with a
        # latency of 4 182 us.
        MatmulConfig(
            tile_m=256,
            tile_n=256,
            tile_k=32,
            group_m=8,
            latency=6,
            blocks_per_sm=1,
            occupancy=1,
            num_ctas=2,
            num_worker_warps=8,
            min_k=2048,
            k_major=True,
            copy_tile=64,
        ),
        # The same product 184 us, with a latency of 4 191 us.
        MatmulConfig(
            tile_m=128,
            tile_n=256,
            tile_k=32,
            group_m=16,
            latency=8,
            occupancy=1,
            num_worker_warps=8,
            k_major=True,
            copy_tile=64,
        ),
        # Not measured: what those of 16 bits were before they were tuned.
        MatmulConfig(
            tile_m=64,
            tile_n=128,
            tile_k=64,
            group_m=16,
            latency=6,
            occupancy=1,
            k_major=True,
            copy_tile=64,
        ),
    ),
}
"""For float32 operands."""
FP8_CONFIGS: dict[str, tuple[MatmulConfig, ...]] = {
    **in_steps_of(1, _UNMEASURED, since=FP8_ARCH),
    # H200, 2026-11-21, as above. Every 128 products the sums move to float32: 64 registers a thread for
    # those, 64 for these. With 256 products a step the compiler has another 64 to multiply into while it
    # adds.
    "sm_90": (
        # e4m3, transposed B, 8192^3 922 us, 1193 TFLOPS, 2048^3 22.5 us, 764 TFLOPS; e5m2 4096x4096x8192
        # 241 us, against 257 us with 128 products a step, and 342 us of blocks that take several tiles. Bands
        # of 4 tiles gain 1 to 2 % at 4096^3, and lose 2 to 4 % in larger products.
        MatmulConfig(
            tile_m=128,
            tile_n=128,
            tile_k=256,
            group_m=8,
            occupancy=1,
            num_worker_warps=8,
            k_major=True,
            copy_tile=64,
        ),
        # 1024^3: e5m2 11.6 us, 185 TFLOPS, of which 2 us are the copy of B; e4m3, transposed B, 9.8 us.
        MatmulConfig(
            tile_m=64,
            tile_n=128,
            tile_k=128,
            group_m=16,
            latency=6,
            occupancy=2,
            k_major=True,
            copy_tile=64,
        ),
    ),
}
"""For 8-bit floats with `use_fast_acc=False`."""
FAST_FP8_CONFIGS: dict[str, tuple[MatmulConfig, ...]] = {
    **in_steps_of(1, _UNMEASURED, since=FP8_ARCH),
    # H200, 2026-11-21, as above. Twice the rate of 16 bits needs twice the work per byte from the L2.
    "sm_90": (
        # e4m3, transposed B, 4096x4096x8192 186 us, 1477 TFLOPS, 8192^3 768 us, 1432 TFLOPS, against 191 and
        # 794 us of the next.
        MatmulConfig(
            tile_m=256,
            tile_n=256,
            tile_k=128,
            group_m=8,
            latency=4,
            blocks_per_sm=1,
            occupancy=1,
            num_ctas=2,
            num_worker_warps=8,
            min_k=4096,
            k_major=True,
            copy_tile=64,
        ),
        # e4m3 4096^3 99.4 us, 1382 TFLOPS (the one above 99.9 us), against 107 us with a block for each tile.
        MatmulConfig(
            tile_m=128,
            tile_n=256,
            tile_k=128,
            group_m=8,
            latency=4,
            blocks_per_sm=1,
            occupancy=1,
            num_worker_warps=8,
            k_major=True,
            copy_tile=64,
        ),
        # 2048^3, one round of blocks: e4m3 19.1 us, 899 TFLOPS.
        MatmulConfig(
            tile_m=256,
            tile_n=128,
            tile_k=128,
            group_m=8,
            latency=6,
            occupancy=1,
            num_worker_warps=8,
            k_major=True,
            copy_tile=64,
        ),
        # 1024^3: e4m3 9.2 us, 233 TFLOPS, against 9.8 us of 64x128.
        MatmulConfig(
            tile_m=64,
            tile_n=64,
            tile_k=128,
            group_m=16,
            latency=6,
            occupancy=2,
            k_major=True,
            copy_tile=64,
        ),
    ),
}
"""For 8-bit floats with `use_fast_acc=True`."""
DEFAULT_CONFIG = MatmulConfig(tile_m=64, tile_n=64, tile_k=32)
"""For architectures that are not in the tables, and 16 bits; for others in steps of as many bytes."""


def choose_config(
    arch: str, *, m: int, n: int, k: int, itemsize: int, use_fast_acc: bool = False, sms: int
) -> MatmulConfig:
    """Return the configuration for an `[m, n]` product on `arch`.

    Args:
        arch: E.g. `"sm_90"`.
        m: Rows of C.
        n: Columns of C.
        k: Length of the sums.
        itemsize: Bytes per element of A and B.
        use_fast_acc: As `matmul` takes it.
        sms: Multiprocessors of the GPU.
    """
    table = {1: FAST_FP8_CONFIGS if use_fast_acc else FP8_CONFIGS, 4: TF32_CONFIGS}.get(itemsize, CONFIGS)
    candidates = table.get(arch)
    if candidates is None:
        candidates = (vary(DEFAULT_CONFIG, tile_k=DEFAULT_CONFIG.tile_k * 2 // itemsize),)
    config = choose_tiles(candidates, m, n, k, sms=sms)
    return config if min(m, n) >= COPY_FROM else vary(config, copy_tile=None)


# -- kernels ----------------------------------------------------------------------------------------


@ct.kernel
def matmul_kernel(
    A: ct.Array,
    B: ct.Array,
    C: ct.Array,
    scales: tuple[ct.Array, ...],
    TILE_M: ConstInt,
    TILE_N: ConstInt,
    TILE_K: ConstInt,
    GROUP_M: ConstInt,
    LATENCY: ConstInt,
    STORE_TMA: ConstBool,
    PERSISTENT: ConstBool,
    FAST_ACC: ConstBool,
    band_size: Divisor,
) -> None:
    """Compute `[TILE_M, TILE_N]` tiles of C, one per block, or with `PERSISTENT` every n-th of n blocks.

    `scales` are factors of C, each `[1]`. `LATENCY` 0 leaves it to the compiler. `band_size` is `swizzle`'s.
    """
    tiles_m = ct.cdiv(C.shape[0], TILE_M)
    tiles_n = ct.cdiv(C.shape[1], TILE_N)
    latency = ct.static_eval(LATENCY or None)

    def compute(tile: int) -> None:
        row, col = swizzle(tile, tiles_m, tiles_n, GROUP_M, band_size)

        def load_a(k: int) -> ct.Tile:  # [TILE_M, TILE_K]
            return ct.load(A, (row, k), (TILE_M, TILE_K), padding_mode=ct.PaddingMode.ZERO, latency=latency)

        def load_b(k: int) -> ct.Tile:  # [TILE_K, TILE_N]
            return ct.load(B, (k, col), (TILE_K, TILE_N), padding_mode=ct.PaddingMode.ZERO, latency=latency)

        acc = multiply_along_k(load_a, load_b, ct.cdiv(A.shape[1], TILE_K), TILE_M, TILE_N, FAST_ACC)
        for scale in ct.static_iter(scales):
            acc = acc * ct.load(scale, (0,), (1,)).reshape((1, 1))
        # The store drops what sticks out past C's edges.
        ct.store(C, (row, col), acc.astype(C.dtype), allow_tma=STORE_TMA)

    for_each_tile(compute, tiles_m * tiles_n, PERSISTENT)


# -- launcher ---------------------------------------------------------------------------------------


def _ready(operand: torch.Tensor, config: MatmulConfig) -> torch.Tensor:
    """Return `operand`, `[rows, K]`, or a copy that tensor cores and TMA can take, if `config` says so."""
    if config.copy_tile is None:
        return operand
    row_stride, k_stride = operand.stride()
    if k_stride == 1:
        fits, stride = True, row_stride
    else:
        fits, stride = row_stride == 1 and not config.k_major, k_stride
    if fits and stride * operand.element_size() % TMA_ALIGNMENT == 0:
        return operand
    return copy_k_major("matmul", [operand], config.copy_tile)[0]


@on_its_gpu
def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_acc: bool = False,
    config: MatmulConfig | None = None,
) -> torch.Tensor:
    """Multiply two matrices.

    Forward only: no gradient flows through it.

    Args:
        a: `[M, K]`, float16, bfloat16, float32, float8_e4m3fn or float8_e5m2, any strides. cuTile has 8-bit
            floats on sm_90 and newer only.
        b: `[K, N]`, same dtype and device, any strides: a transposed view is as good as a matrix, and for
            8-bit floats and float32 on Hopper better.
        scale_a: One float32 on the same device that `a` is multiplied by, e.g. what its quantisation divided
            it by; None for 1. It is applied to the sums.
        scale_b: The same of `b`.
        out_dtype: float16, bfloat16, float32 or the operands' dtype. By default the operands' dtype, and of
            8-bit floats bfloat16, because a sum needs more than their 2 or 3 mantissa bits.
        use_fast_acc: Whether 8-bit floats are added up in the tensor cores of Hopper, with about 14 bits:
            faster, and less exact the longer K is. It changes nothing for other dtypes, nor elsewhere.
        config: Instead of the one chosen for this GPU, dtype and size.

    Returns:
        `[M, N]`, `out_dtype`, same device, contiguous.

    Raises:
        TypeError: Not tensors, dtypes that differ or that are not supported, a `use_fast_acc` that is not a
            bool, another kernel's configuration.
        ValueError: Not matrices, inner sizes or devices that differ, scales that are not one number, more
            tiles than one launch takes.
    """
    import torch

    check_tensors("matmul", {"a": a, "b": b}, dtypes=DTYPES)
    check_config("matmul", config, MatmulConfig)
    use_fast_acc = check_bool("matmul", "use_fast_acc", use_fast_acc)
    for name, operand in (("a", a), ("b", b)):
        if operand.ndim != 2:  # noqa: PLR2004
            raise ValueError(f"matmul: {name} must be a matrix, got shape {list(operand.shape)}")
    m, k = a.shape
    if b.shape[0] != k:
        raise ValueError(
            f"matmul: a is [M, K] = {list(a.shape)}, so b must have {k} rows, but is {list(b.shape)}"
        )
    n = b.shape[1]
    scales = {
        name: scale for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)) if scale is not None
    }
    for name, scale in scales.items():
        check_tensors("matmul", {name: scale}, dtypes=("float32",))
        if scale.numel() != 1:
            raise ValueError(f"matmul: {name} must be one number, got shape {list(scale.shape)}")
        if scale.device != a.device:
            raise ValueError(f"matmul: {name} is on {scale.device}, but a is on {a.device}; move one")
    c = torch.empty((m, n), dtype=choose_product_dtype("matmul", a.dtype, out_dtype), device=a.device)
    if 0 in (m, n):
        return c
    if k == 0:
        return c.zero_()

    arch = find_arch("matmul", a, CONFIGS)
    sms = count_sms()
    config = config or choose_config(
        arch,
        m=m,
        n=n,
        k=k,
        itemsize=a.element_size(),
        use_fast_acc=use_fast_acc,
        sms=sms,
    )
    grid = make_grid("matmul", count_tiles(m, n, config), config, sms=sms, remedy="split a or b")
    a, b = _ready(a, config), _ready(b.T, config).T
    ct.launch(
        torch.cuda.current_stream(),
        grid,
        with_hints(matmul_kernel, config),
        (
            *(a, b, c, tuple(scale.reshape(1) for scale in scales.values())),
            *(config.tile_m, config.tile_n, config.tile_k, config.group_m, config.latency or 0),
            *(
                config.store_tma and may_store_tma(c),
                config.blocks_per_sm is not None,
                use_fast_acc and a.element_size() == 1,
                divisor(config.group_m * ct.cdiv(n, config.tile_n)),
            ),
        ),
    )
    return c


# -- what it is gated with --------------------------------------------------------------------------


def reference(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """Multiply in float64; `options` say how it is computed and rounded, and change nothing here."""
    del options
    c = a @ b
    for scale in (scale_a, scale_b):
        if scale is not None:
            c = c * scale
    return c


def inputs(
    make_tensor: Callable[..., torch.Tensor],
    *,
    m: int,
    n: int,
    k: int,
    dtype: str,
    transposed: str = "",
    out_dtype: str | None = None,
    use_fast_acc: bool = False,
    scaled: bool = False,
) -> dict[str, Any]:
    """Make A `[m, k]` and B `[k, n]`; those named in `transposed` ("a", "b", "ab") are transposed views.

    float32 values are tfloat32 values: their last 13 bits are zero. How a float32 becomes a tfloat32 is up to
    the compiler (operands that TMA hands straight to Hopper's tensor cores are truncated, those that pass
    through registers are rounded), so any other input would test that choice and not this kernel.
    """
    import torch

    a = make_tensor((k, m), dtype).T if "a" in transposed else make_tensor((m, k), dtype)
    b = make_tensor((n, k), dtype).T if "b" in transposed else make_tensor((k, n), dtype)
    if dtype == "float32":
        for operand in (a, b):
            operand.view(torch.int32).bitwise_and_(~0x1FFF)
    made: dict[str, Any] = {"a": a, "b": b}
    if out_dtype is not None:
        made["out_dtype"] = getattr(torch, out_dtype)
    if use_fast_acc:
        made["use_fast_acc"] = True
    if scaled:
        for name in ("scale_a", "scale_b"):
            made[name] = make_tensor((1,), "float32", dist="uniform", low=0.5, high=2.0)
    return made


def work(*, m: int, n: int, k: int, dtype: str, out_dtype: str | None = None, **layout: Any) -> Work:
    """Count a multiply and an add per product; each matrix is moved once, in whatever `layout`."""
    del layout
    out_dtype = out_dtype or ("bfloat16" if dtype in FP8 else dtype)
    return Work(
        flops=2.0 * m * n * k,
        bytes=float((m * k + k * n) * ITEMSIZE[dtype] + m * n * ITEMSIZE[out_dtype]),
        dtype="tfloat32" if dtype == "float32" else dtype,
    )


def longest_sum(*, k: int, **others: Any) -> int:
    """Return how many products each element of C adds up."""
    del others
    return k


def precision(*, use_fast_acc: bool = False, **_: object) -> dict[str, Any]:
    """Return what the check has to know: where a launch sums with fewer bits than float32."""
    return {"fast_acc": use_fast_acc}


def _case(
    dtype: str,
    m: int,
    n: int,
    k: int,
    *,
    transposed: str = "",
    out_dtype: str | None = None,
    use_fast_acc: bool = False,
    scaled: bool = False,
    speed: bool = False,
) -> Case:
    params: dict[str, Any] = {"m": m, "n": n, "k": k, "dtype": dtype, "transposed": transposed}
    multiplied = "tf32" if dtype == "float32" else SHORT[dtype]
    name = f"{multiplied}-{m}x{n}x{k}" + (f"-transposed_{transposed}" if transposed else "")
    if out_dtype is not None:
        params["out_dtype"] = out_dtype
        name += f"-to_{SHORT[out_dtype]}"
    if use_fast_acc:
        params["use_fast_acc"] = True
        name += "-fast_acc"
    if scaled:
        params["scaled"] = True
        name += "-scaled"
    return Case(name=name, params=params, speed=speed, min_arch=MIN_ARCH.get(dtype))


SPEC = KernelSpec(
    name="matmul",
    launch=matmul,
    reference=reference,
    inputs=inputs,
    work=work,
    reduction=longest_sum,
    check=precision,
    independent={"a": ("m", None), "b": (None, "n"), "output": ("m", "n")},
    cases=[
        # Large enough for a steady clock; a linear layer reads its weight transposed.
        _case("float16", 4096, 4096, 4096, speed=True),
        _case("bfloat16", 4096, 4096, 4096, transposed="b", speed=True),
        _case("bfloat16", 2048, 8192, 4096, speed=True),
        _case("float32", 4096, 4096, 2048, transposed="b", speed=True),
        # Quantised layers, which store their weight as tensor cores take it; and a B that is turned around.
        _case("float8_e4m3fn", 4096, 4096, 8192, transposed="b", use_fast_acc=True, speed=True),
        _case("float8_e5m2", 4096, 4096, 8192, speed=True),
        # No two sizes equal, so that swapped sizes show; one to each side of a tile's edge.
        _case("float16", 384, 256, 512),
        _case("float16", 127, 129, 65),
        _case("bfloat16", 257, 255, 63),
        # Rows that no 16-byte load is aligned to.
        _case("float16", 200, 504, 519),
        _case("bfloat16", 511, 313, 1023, transposed="b"),
        # A few tokens and a vocabulary: enough columns to fill a GPU with tiles of every size, but sums too
        # short for the largest.
        _case("float16", 3, 60904, 24),
        _case("bfloat16", 5, 30408, 16),
        _case("float32", 3, 30404, 20),
        _case("float8_e4m3fn", 5, 60912, 32, transposed="b", use_fast_acc=True),
        _case("float8_e5m2", 3, 15216, 48, transposed="b", use_fast_acc=True),
        # Every layout.
        _case("float16", 192, 320, 448, transposed="a"),
        _case("bfloat16", 192, 320, 448, transposed="ab"),
        # One row, one column, one product.
        _case("float16", 1, 1000, 512),
        _case("bfloat16", 300, 1, 77),
        _case("float16", 1, 1, 1),
        # tfloat32, with a tail along every axis.
        _case("float32", 130, 258, 1023),
        _case("float32", 192, 320, 448, transposed="b"),
        _case("float32", 192, 320, 448, transposed="a"),
        # Operands that are copied first: unaligned rows, and layouts that tensor cores do not take.
        _case("float16", 520, 600, 63),
        _case("bfloat16", 600, 521, 72, transposed="a"),
        _case("float32", 520, 600, 44),
        _case("float8_e4m3fn", 520, 513, 80),
        _case("float8_e5m2", 513, 520, 49, transposed="a"),
        # 8-bit floats, in every layout and to every dtype.
        _case("float8_e4m3fn", 192, 320, 448, transposed="b"),
        _case("float8_e4m3fn", 127, 129, 65, use_fast_acc=True),
        _case("float8_e5m2", 130, 200, 272, transposed="ab", out_dtype="float8_e5m2"),
        _case("float8_e4m3fn", 64, 300, 320, transposed="a", out_dtype="float8_e4m3fn"),
        _case("float8_e5m2", 257, 65, 144, transposed="b", out_dtype="float16", use_fast_acc=True),
        _case("float8_e4m3fn", 65, 127, 288, transposed="b", out_dtype="float32", scaled=True),
        # 16 bits to more of them, and scaled.
        _case("bfloat16", 129, 64, 200, out_dtype="float32", scaled=True),
        # Rows that lie apart, and tensors that begin anywhere.
        laid_out(_case("float16", 70, 150, 91), "padded"),
        laid_out(_case("bfloat16", 150, 70, 96), "shifted"),
    ],
)
