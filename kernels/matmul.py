"""Matrix product: C = A @ B.

    C[m, n] = sum over k of A[m, k] * B[k, n]

A is `[M, K]`, B is `[K, N]`, C is `[M, N]`; all three in float16, bfloat16 or float32. Sums are kept in
float32. float32 operands are multiplied as tfloat32 (10 mantissa bits instead of 23), because that is what
tensor cores take; who needs float32's precision needs another kernel.

Any size and any strides: tiles that stick out past an edge are padded with zeros, which add nothing to a
sum, and a transposed view (`B = W.T`) is read through its strides, never copied.

How it works: each block owns one tile of C. It walks along K, multiplies a tile of A by a tile of B on the
tensor cores, and adds the product to a float32 accumulator. Three things decide the speed: tiles large
enough that tensor cores do not wait for memory, loads issued several steps ahead of their use (`latency`),
and a block order in which the blocks that run together share operands in the L2 (`swizzle`).

Source: the tiled product of any GPU textbook; the block order is that of Triton's matmul tutorial
(https://triton-lang.org/main/getting-started/tutorials/03-matrix-multiplication.html).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import cuda.tile as ct

from kernels._gemm import GemmConfig, count_blocks, for_each_tile, multiply_along_k, with_hints
from kernels._launch import check_tensors, count_sms, device_arch
from kernels._tiles import swizzle
from pytest_cutile import Case, KernelSpec, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

ConstInt: TypeAlias = ct.Constant[int]
ConstBool: TypeAlias = ct.Constant[bool]


# -- configuration ----------------------------------------------------------------------------------


# For two-byte operands. "Not measured" entries follow the candidates that NVIDIA publishes for TileGym's
# matmul; they compile, and nobody here has timed them.
CONFIGS = {
    # Ampere and Ada have no TMA: shallow steps, and two blocks to hide each other's latency. Not measured.
    "sm_80": GemmConfig(tile_m=128, tile_n=128, tile_k=32, occupancy=2),
    "sm_86": GemmConfig(tile_m=128, tile_n=64, tile_k=32, occupancy=2),
    "sm_89": GemmConfig(tile_m=128, tile_n=64, tile_k=32, occupancy=2),
    # H200, 2026-11-21, cold L2, interleaved: fp16 4096^3 207 us, 663 TFLOPS (cuBLAS 198 us); bf16 with a
    # transposed B 196 us (187 us). Two blocks a multiprocessor: one multiplies while the other stores.
    "sm_90": GemmConfig(tile_m=128, tile_n=128, tile_k=64, latency=4, occupancy=2, group_m=16),
    # Fifth-generation tensor cores let two thread blocks share one 256x256 tile. Not measured.
    "sm_100": GemmConfig(tile_m=256, tile_n=256, tile_k=64, occupancy=1, num_ctas=2),
    "sm_103": GemmConfig(tile_m=256, tile_n=256, tile_k=64, occupancy=1, num_ctas=2),
    "sm_110": GemmConfig(tile_m=256, tile_n=256, tile_k=64, occupancy=1, num_ctas=2),
    # Consumer Blackwell multiplies from registers, and has few multiprocessors to fill. Not measured.
    "sm_120": GemmConfig(tile_m=128, tile_n=64, tile_k=64, occupancy=1),
    "sm_121": GemmConfig(tile_m=128, tile_n=64, tile_k=64, occupancy=1),
}
FOUR_BYTE_CONFIGS = {
    # H200, 2026-11-21: tf32 4096x4096x2048, transposed B, 193 us, 356 TFLOPS (cuBLAS 190 us); 128x128x32 with
    # two blocks a multiprocessor 210 us.
    "sm_90": GemmConfig(tile_m=128, tile_n=256, tile_k=32, latency=4, occupancy=1, num_worker_warps=8),
}
"""For float32 operands, where they were measured apart."""
DEFAULT_CONFIG = GemmConfig(tile_m=64, tile_n=64, tile_k=32)
"""For architectures that are not in the table."""


def choose_config(arch: str, *, itemsize: int) -> GemmConfig:
    """Return the configuration for operands of `itemsize` bytes on `arch`."""
    config = CONFIGS.get(arch, DEFAULT_CONFIG)
    if itemsize != 4:  # noqa: PLR2004
        return config
    # Four-byte operands at half the depth: a step moves as many bytes, and as many fit in shared memory.
    return FOUR_BYTE_CONFIGS.get(arch) or replace(config, tile_k=config.tile_k // 2)


# -- kernel -----------------------------------------------------------------------------------------


@ct.kernel
def matmul_kernel(
    A: ct.Array,
    B: ct.Array,
    C: ct.Array,
    TILE_M: ConstInt,
    TILE_N: ConstInt,
    TILE_K: ConstInt,
    GROUP_M: ConstInt,
    LATENCY: ConstInt,
    STORE_TMA: ConstBool,
    PERSISTENT: ConstBool,
    FAST_ACC: ConstBool,
) -> None:
    """Compute one `[TILE_M, TILE_N]` tile of C per block; `LATENCY` 0 leaves it to the compiler."""
    tiles_m = ct.cdiv(C.shape[0], TILE_M)
    tiles_n = ct.cdiv(C.shape[1], TILE_N)
    latency = ct.static_eval(LATENCY or None)

    def compute(tile: int) -> None:
        row, col = swizzle(tile, tiles_m, tiles_n, GROUP_M)

        def load_a(k: int) -> ct.Tile:  # [TILE_M, TILE_K]
            return ct.load(A, (row, k), (TILE_M, TILE_K), padding_mode=ct.PaddingMode.ZERO, latency=latency)

        def load_b(k: int) -> ct.Tile:  # [TILE_K, TILE_N]
            return ct.load(B, (k, col), (TILE_K, TILE_N), padding_mode=ct.PaddingMode.ZERO, latency=latency)

        acc = multiply_along_k(load_a, load_b, ct.cdiv(A.shape[1], TILE_K), TILE_M, TILE_N, FAST_ACC)
        # The store drops what sticks out past C's edges.
        ct.store(C, (row, col), acc.astype(C.dtype), allow_tma=STORE_TMA)

    for_each_tile(compute, tiles_m * tiles_n, PERSISTENT)


# -- launcher ---------------------------------------------------------------------------------------


def matmul(a: torch.Tensor, b: torch.Tensor, *, config: GemmConfig | None = None) -> torch.Tensor:
    """Multiply two matrices.

    Args:
        a: `[M, K]`, float16, bfloat16 or float32, any strides.
        b: `[K, N]`, same dtype and device, any strides: a transposed view is as good as a matrix.
        config: Instead of the one chosen for this GPU and dtype.

    Returns:
        `[M, N]`, same dtype and device, contiguous.

    Raises:
        TypeError: Not tensors, dtypes that differ or that are not supported.
        ValueError: Not matrices, inner sizes or devices that differ.
    """
    import torch

    check_tensors("matmul", {"a": a, "b": b}, dtypes=("float16", "bfloat16", "float32"))
    for name, operand in (("a", a), ("b", b)):
        if operand.ndim != 2:  # noqa: PLR2004
            raise ValueError(f"matmul: {name} must be a matrix, got shape {list(operand.shape)}")
    m, k = a.shape
    if b.shape[0] != k:
        raise ValueError(
            f"matmul: a is [M, K] = {list(a.shape)}, so b must have {k} rows, but is {list(b.shape)}"
        )
    n = b.shape[1]
    if 0 in (m, n, k):
        return torch.zeros((m, n), dtype=a.dtype, device=a.device)

    config = config or choose_config(device_arch(), itemsize=a.element_size())
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    tiles = ct.cdiv(m, config.tile_m) * ct.cdiv(n, config.tile_n)
    ct.launch(
        torch.cuda.current_stream(),
        (count_blocks(tiles, config, sms=count_sms()),),
        with_hints(matmul_kernel, config),
        (
            a,
            b,
            c,
            config.tile_m,
            config.tile_n,
            config.tile_k,
            config.group_m,
            config.latency or 0,
            config.store_tma,
            config.blocks_per_sm is not None,
            False,
        ),
    )
    return c


# -- what it is gated with --------------------------------------------------------------------------


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply in float64."""
    return a @ b


def inputs(
    make_tensor: Callable[..., torch.Tensor],
    *,
    m: int,
    n: int,
    k: int,
    dtype: str,
    transposed: str = "",
) -> tuple[torch.Tensor, ...]:
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
    return a, b


def work(*, m: int, n: int, k: int, dtype: str, transposed: str = "") -> Work:
    """Count a multiply and an add per product; each matrix is moved once."""
    del transposed  # the same work, whatever the layout
    itemsize = 4 if dtype == "float32" else 2
    return Work(
        flops=2.0 * m * n * k,
        bytes=float((m * k + k * n + m * n) * itemsize),
        dtype="tfloat32" if dtype == "float32" else dtype,
    )


def longest_sum(*, m: int, n: int, k: int, dtype: str, transposed: str = "") -> int:
    """Return how many products each element of C adds up."""
    del m, n, dtype, transposed
    return k


def _case(dtype: str, m: int, n: int, k: int, *, transposed: str = "", speed: bool = False) -> Case:
    short = {"float16": "fp16", "bfloat16": "bf16", "float32": "tf32"}[dtype]
    name = f"{short}-{m}x{n}x{k}" + (f"-transposed_{transposed}" if transposed else "")
    params = {"m": m, "n": n, "k": k, "dtype": dtype, "transposed": transposed}
    return Case(name=name, params=params, speed=speed)


SPEC = KernelSpec(
    name="matmul",
    launch=matmul,
    reference=reference,
    inputs=inputs,
    work=work,
    reduction=longest_sum,
    cases=[
        # Large enough for a steady clock; a linear layer reads its weight transposed.
        _case("float16", 4096, 4096, 4096, speed=True),
        _case("bfloat16", 4096, 4096, 4096, transposed="b", speed=True),
        _case("bfloat16", 2048, 8192, 4096, speed=True),
        _case("float32", 4096, 4096, 2048, transposed="b", speed=True),
        # No two sizes equal, so that swapped sizes show; one to each side of a tile's edge.
        _case("float16", 384, 256, 512),
        _case("float16", 127, 129, 65),
        _case("bfloat16", 257, 255, 63),
        # Rows that no 16-byte load is aligned to.
        _case("float16", 200, 1000, 1023),
        _case("bfloat16", 511, 313, 1023, transposed="b"),
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
    ],
)
