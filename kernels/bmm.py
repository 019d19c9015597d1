"""Batched matrix product: C = A @ B, for each of a batch of matrices.

    C[b, m, n] = sum over k of A[b, m, k] * B[b, k, n]

A is `[batch, M, K]`, B is `[batch, K, N]`, C is `[batch, M, N]`; all three in float16 or bfloat16. Sums are
kept in float32. A or B may have a batch of one: the same matrix for the whole batch.

Sizes and strides may be anything: tiles that extend past an edge are padded with zeros, and a transposed view
(`b.transpose(1, 2)`) is read through its strides, never copied. Rows that do not start at multiples of 16
bytes (N or K not divisible by 8) cannot be fetched by TMA, and are read element by element.

How it works: as `matmul`, with the same loop along K. Tiles are ordered matrix by matrix, so that blocks that
run together work on few matrices and find their operands in the L2.

Source: as `matmul`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import cuda.tile as ct

from kernels._cases import laid_out
from kernels._division import Divisor, divide, divisor
from kernels._dtypes import SHORT
from kernels._gemm import (
    GemmConfig,
    choose_tiles,
    count_tiles,
    for_each_tile,
    make_grid,
    may_store_tma,
    multiply_along_k,
)
from kernels._launch import (
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


# -- configuration ----------------------------------------------------------------------------------

# Largest tiles first: `choose_config` takes the first of which there are enough to fill the GPU. Only sm_90
# is measured; the others follow the candidates that NVIDIA publishes for TileGym's bmm
# (https://github.com/NVIDIA/TileGym, src/tilegym/ops/cutile/bmm.py).
CONFIGS: dict[str, tuple[GemmConfig, ...]] = {
    "sm_80": (
        GemmConfig(tile_m=128, tile_n=128, tile_k=32, occupancy=2),
        GemmConfig(tile_m=64, tile_n=64, tile_k=32, occupancy=2),
    ),
    "sm_86": (
        GemmConfig(tile_m=128, tile_n=64, tile_k=32, occupancy=2),
        GemmConfig(tile_m=64, tile_n=64, tile_k=32, occupancy=2),
    ),
    "sm_89": (
        GemmConfig(tile_m=128, tile_n=64, tile_k=32, occupancy=2),
        GemmConfig(tile_m=64, tile_n=64, tile_k=32, occupancy=2),
    ),
    # H200, 2026-11-21, driver 580.159.04, cold L2, interleaved, fp16 unless named.
    "sm_90": (
        # 2 x 4096^3 391 us, 703 TFLOPS, 8 x 4096^3 1657 us, against 404 and 1716 us of the next one with a
        # latency of 4. With sums of 2048 it is as fast as that, with sums of 1024 (8 x 1024^3) 3 to 6 %
        # slower.
        GemmConfig(
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
        ),
        # 2026-11-22, in parentheses with a latency of 4: 8 x 1024^3 31.4 us (33.3), B transposed 31.2 us
        # (33.6), A 31.7 us (33.0), both 31.6 us (33.6); 2 x 2048^3 51.8 us (53.2), whatever is transposed;
        # 8 x 2048^3 197.1 us (199.9), B transposed 191.7 us (194.3), A 197.2 us (199.3), both 192.5 us
        # (195.1), bf16 with A transposed 185.2 us (188.1). Sums between 128 and 1024 were not measured.
        GemmConfig(
            tile_m=128,
            tile_n=256,
            tile_k=64,
            group_m=16,
            latency=6,
            blocks_per_sm=1,
            occupancy=1,
            num_worker_warps=8,
            min_k=257,
        ),
        # Sums of at most four steps, fewer than a latency of 6 looks ahead. 2026-11-22: bf16 128 x
        # 1024x512x128, which is limited by memory, 57.2 us, 3227 GB/s, against 59.2 us of the one before;
        # with a block for each tile it had 87 us.
        GemmConfig(
            tile_m=128,
            tile_n=256,
            tile_k=64,
            group_m=16,
            latency=3,
            blocks_per_sm=1,
            occupancy=1,
            num_worker_warps=8,
        ),
        # As matmul, where 2048^3 takes 29.6 us.
        GemmConfig(tile_m=128, tile_n=128, tile_k=64, group_m=16, latency=4, occupancy=2),
        # 2 x 1024^3 13.4 us, 320 TFLOPS, against 15.5 us of the one before.
        GemmConfig(tile_m=64, tile_n=128, tile_k=64, group_m=4, latency=4, occupancy=2),
    ),
    "sm_100": (
        GemmConfig(tile_m=256, tile_n=256, tile_k=64, occupancy=1, num_ctas=2),
        GemmConfig(tile_m=128, tile_n=256, tile_k=64, occupancy=1, num_ctas=2),
    ),
    "sm_103": (
        GemmConfig(tile_m=256, tile_n=256, tile_k=64, occupancy=1, num_ctas=2),
        GemmConfig(tile_m=128, tile_n=256, tile_k=64, occupancy=1, num_ctas=2),
    ),
    "sm_110": (
        GemmConfig(tile_m=256, tile_n=256, tile_k=64, occupancy=1, num_ctas=2),
        GemmConfig(tile_m=128, tile_n=256, tile_k=64, occupancy=1, num_ctas=2),
    ),
    "sm_120": (
        GemmConfig(tile_m=128, tile_n=64, tile_k=64, occupancy=1),
        GemmConfig(tile_m=64, tile_n=64, tile_k=64, occupancy=2),
    ),
    "sm_121": (
        GemmConfig(tile_m=128, tile_n=64, tile_k=64, occupancy=1),
        GemmConfig(tile_m=64, tile_n=64, tile_k=64, occupancy=2),
    ),
}
DEFAULT_CONFIG = GemmConfig(tile_m=64, tile_n=64, tile_k=32)
"""For architectures that are not in the table."""


def choose_config(arch: str, *, batch: int, m: int, n: int, k: int, sms: int) -> GemmConfig:
    """Return the configuration for `batch` products of `[m, k]` and `[k, n]` on `sms` multiprocessors."""
    return choose_tiles(CONFIGS.get(arch, (DEFAULT_CONFIG,)), m, n, k, batch=batch, sms=sms)


# -- kernel -----------------------------------------------------------------------------------------


@ct.kernel
def bmm_kernel(
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
    band_size: Divisor,
    matrix_size: Divisor,
) -> None:
    """Compute `[TILE_M, TILE_N]` tiles of C, one per block, or with `PERSISTENT` every n-th of n blocks.

    `LATENCY` 0 leaves it to the compiler. `band_size` is `swizzle`'s, and `matrix_size` is
    `divisor` of a matrix' tiles.
    """
    tiles_m = ct.cdiv(C.shape[1], TILE_M)
    tiles_n = ct.cdiv(C.shape[2], TILE_N)
    latency = ct.static_eval(LATENCY or None)

    def compute(tile: int) -> None:
        batch = divide(tile, matrix_size)
        row, col = swizzle(tile - batch * tiles_m * tiles_n, tiles_m, tiles_n, GROUP_M, band_size)
        # A matrix that is shared by the batch is the last of its batch of one.
        batch_a = min(batch, A.shape[0] - 1)
        batch_b = min(batch, B.shape[0] - 1)

        def load_a(k: int) -> ct.Tile:
            return ct.load(
                A, (batch_a, row, k), (1, TILE_M, TILE_K), padding_mode=ct.PaddingMode.ZERO, latency=latency
            ).reshape((TILE_M, TILE_K))

        def load_b(k: int) -> ct.Tile:
            return ct.load(
                B, (batch_b, k, col), (1, TILE_K, TILE_N), padding_mode=ct.PaddingMode.ZERO, latency=latency
            ).reshape((TILE_K, TILE_N))

        acc = multiply_along_k(load_a, load_b, ct.cdiv(A.shape[2], TILE_K), TILE_M, TILE_N)
        # The store drops what sticks out past C's edges.
        c = acc.astype(C.dtype).reshape((1, TILE_M, TILE_N))
        ct.store(C, (batch, row, col), c, allow_tma=STORE_TMA)

    for_each_tile(compute, C.shape[0] * tiles_m * tiles_n, PERSISTENT)


# -- launcher ---------------------------------------------------------------------------------------


@on_its_gpu
def bmm(a: torch.Tensor, b: torch.Tensor, *, config: GemmConfig | None = None) -> torch.Tensor:
    """Multiply a batch of matrices with another, one by one.

    Forward only: no gradient flows through it.

    Args:
        a: `[batch, M, K]` or `[1, M, K]`, float16 or bfloat16, any strides.
        b: `[batch, K, N]` or `[1, K, N]`, same dtype and device, any strides: transposed views are as good.
        config: Instead of the one chosen for this GPU and size.

    Returns:
        `[batch, M, N]`, same dtype and device, contiguous.

    Raises:
        TypeError: Not tensors, dtypes that differ or that are not supported, another kernel's configuration.
        ValueError: Not batches of matrices; batches, inner sizes or devices that differ; more tiles than one
            launch takes.
    """
    import torch

    check_tensors("bmm", {"a": a, "b": b}, dtypes=("float16", "bfloat16"))
    check_config("bmm", config, GemmConfig)
    for name, operand in (("a", a), ("b", b)):
        if operand.ndim != 3:  # noqa: PLR2004
            raise ValueError(f"bmm: {name} must be a batch of matrices, got shape {list(operand.shape)}")
    _, m, k = a.shape
    n = b.shape[2]
    if b.shape[1] != k:
        raise ValueError(
            f"bmm: a is [batch, M, K] = {list(a.shape)}, so b must be [batch, {k}, N], but is {list(b.shape)}"
        )
    if a.shape[0] != b.shape[0] and 1 not in (a.shape[0], b.shape[0]):
        raise ValueError(
            f"bmm: a is a batch of {a.shape[0]}, so b must be one of {a.shape[0]} or 1, "
            f"but is {list(b.shape)}"
        )
    batch = b.shape[0] if a.shape[0] == 1 else a.shape[0]
    c = torch.empty((batch, m, n), dtype=a.dtype, device=a.device)
    if 0 in (batch, m, n):
        return c
    if k == 0:
        return c.zero_()

    # What `expand` has made is one matrix, too.
    a, b = (operand[:1] if operand.stride(0) == 0 else operand for operand in (a, b))
    arch = find_arch("bmm", a, CONFIGS)
    sms = count_sms()
    config = config or choose_config(arch, batch=batch, m=m, n=n, k=k, sms=sms)
    ct.launch(
        torch.cuda.current_stream(),
        make_grid("bmm", batch * count_tiles(m, n, config), config, sms=sms, remedy="split the batch"),
        with_hints(bmm_kernel, config),
        (
            *(a, b, c, config.tile_m, config.tile_n, config.tile_k, config.group_m, config.latency or 0),
            *(config.store_tma and may_store_tma(c), config.blocks_per_sm is not None),
            divisor(config.group_m * ct.cdiv(n, config.tile_n)),
            divisor(count_tiles(m, n, config)),
        ),
    )
    return c


# -- what it is gated with --------------------------------------------------------------------------


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply in float64, one matrix at a time."""
    import torch

    batch = 0 if 0 in (a.shape[0], b.shape[0]) else max(a.shape[0], b.shape[0])
    if not batch:
        return a @ b
    return torch.stack(
        [left @ right for left, right in zip(a.expand(batch, -1, -1), b.expand(batch, -1, -1), strict=True)]
    )


def inputs(
    make_tensor: Callable[..., torch.Tensor],
    *,
    batch: int,
    m: int,
    n: int,
    k: int,
    dtype: str,
    transposed: str = "",
    shared: str = "",
) -> tuple[torch.Tensor, ...]:
    """Make A `[batch, m, k]` and B `[batch, k, n]`.

    Those named in `transposed` ("a", "b", "ab") are transposed views; the one in `shared` is a batch of one.
    """

    def make(name: str, rows: int, columns: int) -> torch.Tensor:
        size = 1 if name in shared else batch
        if name in transposed:
            return make_tensor((size, columns, rows), dtype).transpose(1, 2)
        return make_tensor((size, rows, columns), dtype)

    return make("a", m, k), make("b", k, n)


def work(*, batch: int, m: int, n: int, k: int, dtype: str, transposed: str = "", shared: str = "") -> Work:
    """Count a multiply and an add per product; each matrix is moved once, one that is shared once in all."""
    del transposed  # the same work, whatever the layout
    a, b = (1 if name in shared else batch for name in "ab")
    return Work(
        flops=2.0 * batch * m * n * k, bytes=2.0 * (a * m * k + b * k * n + batch * m * n), dtype=dtype
    )


def longest_sum(*, k: int, **others: Any) -> int:
    """Return how many products each element of C adds up."""
    del others
    return k


def _case(
    dtype: str,
    batch: int,
    m: int,
    n: int,
    k: int,
    *,
    transposed: str = "",
    shared: str = "",
    speed: bool = False,
) -> Case:
    short = SHORT[dtype]
    name = f"{short}-{batch}x{m}x{n}x{k}"
    name += f"-transposed_{transposed}" * bool(transposed) + f"-shared_{shared}" * bool(shared)
    sizes = {"batch": batch, "m": m, "n": n, "k": k}
    return Case(
        name=name,
        params={**sizes, "dtype": dtype, "transposed": transposed, "shared": shared},
        speed=speed,
    )


SPEC = KernelSpec(
    name="bmm",
    launch=bmm,
    reference=reference,
    inputs=inputs,
    work=work,
    reduction=longest_sum,
    independent={"a": ("batch", "m"), "b": ("batch", None, "n"), "output": ("batch", "m", "n")},
    cases=[
        # Two of the sizes that NVIDIA publishes figures for; then projections per head, as in latent
        # attention (DeepSeek-V2: 128 heads, 128 dimensions each, latent vectors of 512).
        _case("float16", 2, 4096, 4096, 4096, speed=True),
        _case("float16", 8, 2048, 2048, 2048, transposed="b", speed=True),
        _case("bfloat16", 8, 2048, 2048, 2048, transposed="a", speed=True),
        _case("bfloat16", 128, 1024, 512, 128, speed=True),
        # No two sizes equal, so that swapped sizes show; one to each side of a tile's edge.
        _case("float16", 3, 256, 192, 128),
        _case("float16", 2, 127, 129, 65),
        _case("bfloat16", 3, 65, 255, 63),
        # Rows that no 16-byte load is aligned to; matrices that start anywhere.
        _case("bfloat16", 5, 33, 77, 123),
        _case("float16", 4, 90, 50, 331, transposed="b"),
        # Every layout.
        _case("float16", 2, 192, 136, 320, transposed="a"),
        _case("float16", 2, 192, 136, 320, transposed="b"),
        _case("bfloat16", 2, 192, 136, 320, transposed="ab"),
        # Enough columns to fill a GPU with tiles of a middle size.
        _case("float16", 2, 5, 15304, 24),
        # One matrix for the whole batch.
        _case("float16", 3, 130, 72, 96, shared="a"),
        _case("bfloat16", 3, 72, 130, 96, transposed="b", shared="b"),
        # A batch of one; one row, one column, one product.
        _case("bfloat16", 1, 100, 200, 300),
        _case("float16", 7, 1, 200, 96),
        _case("bfloat16", 5, 70, 1, 40),
        _case("float16", 4, 1, 1, 1),
        # Rows that lie apart.
        laid_out(_case("float16", 3, 70, 50, 91), "padded"),
    ],
)
