"""Group GEMM: many independent matrix products of unequal sizes in one launch.

    C_g[m, n] = sum over k of A_g[m, k] * B_g[k, n]        for each group g

A_g is `[M_g, K_g]`, B_g `[K_g, N_g]`, C_g `[M_g, N_g]`. Operands are float16, bfloat16, float8_e4m3fn or
float8_e5m2; sums are kept in float32 and rounded once, to `out_dtype`. Groups may have any sizes, zero
included, and any strides.

Why not a loop of products: one of 1024 x 1024 has 64 tiles of 128 x 128, half of what an H200 computes at a
time, and each product ends with multiprocessors that wait for the last tile. Here the tiles of all groups
form one list, and blocks take them without regard to groups.

How it works: tiles are numbered through all groups; a block finds its group by comparing its number with
where each group ends, and then computes one tile as `kernels.matmul` does. What a GPU wants to know before it
moves tiles (where a matrix lies, how large it is: its TMA descriptor) decides the rest:

- few groups: the matrices are separate kernel arguments (a tuple), so the launch prepares their descriptors,
  and each group has a copy of the code that names them;
- many groups: the matrices are one argument (a list, that is, a table in memory) and share the code. Each
  block prepares the descriptors of its group itself, before its first load. All matrices of a list have to
  have the same alignment, or none is moved by TMA.

Groups with long sums come first, so that the last tiles to start are the short ones.

Source: the tiled product of `kernels.matmul`; one launch for all groups is that of CUTLASS' grouped GEMM
(https://github.com/NVIDIA/cutlass/tree/main/examples/24_gemm_grouped).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import cuda.tile as ct

from kernels._gemm import GemmConfig, count_blocks, for_each_tile, multiply_along_k, with_hints
from kernels._launch import check_tensors, count_sms, device_arch
from kernels._tiles import swizzle
from pytest_cutile import Case, KernelSpec, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

ConstInt: TypeAlias = ct.Constant[int]
ConstBool: TypeAlias = ct.Constant[bool]

FP8 = ("float8_e4m3fn", "float8_e5m2")
DTYPES = ("float16", "bfloat16", *FP8)
MAX_GROUPS = 512
"""Kernel arguments have 32764 bytes (CUDA C++ Programming Guide, "Function Parameters"); half is plenty."""


# -- configuration ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GroupGemmConfig(GemmConfig):
    """How the products are cut into tiles, and what the compiler is told."""

    max_copies: int = 16
    """Up to how many groups each get a copy of the code; 0 never makes copies."""


# For two-byte operands. Not measured: sm_90 is what `kernels.matmul` was measured with; the others follow the
# candidates that NVIDIA publishes for TileGym's group GEMM.
CONFIGS = {
    "sm_80": GroupGemmConfig(tile_m=128, tile_n=128, tile_k=32, occupancy=2),
    "sm_86": GroupGemmConfig(tile_m=128, tile_n=64, tile_k=32, occupancy=2),
    "sm_89": GroupGemmConfig(tile_m=128, tile_n=64, tile_k=32, occupancy=2),
    "sm_90": GroupGemmConfig(tile_m=128, tile_n=128, tile_k=64, latency=4, occupancy=2, group_m=16),
    # Fifth-generation tensor cores let two thread blocks share one 256x256 tile.
    "sm_100": GroupGemmConfig(tile_m=256, tile_n=256, tile_k=64, occupancy=1, num_ctas=2),
    "sm_103": GroupGemmConfig(tile_m=256, tile_n=256, tile_k=64, occupancy=1, num_ctas=2),
    "sm_110": GroupGemmConfig(tile_m=256, tile_n=256, tile_k=64, occupancy=1, num_ctas=2),
    "sm_120": GroupGemmConfig(tile_m=128, tile_n=128, tile_k=64, occupancy=1),
    "sm_121": GroupGemmConfig(tile_m=128, tile_n=128, tile_k=64, occupancy=1),
}
FP8_CONFIGS = {
    # Every 128 products Hopper's sums are added to float32 sums, which take as many registers again: see
    # `kernels.matmul`. With two blocks a multiprocessor they spill. Not measured.
    "sm_90": GroupGemmConfig(tile_m=128, tile_n=128, tile_k=128, latency=4, occupancy=1, num_worker_warps=8),
}
"""For 8-bit floats with `use_fast_acc=False`, where they want other tiles."""
FAST_FP8_CONFIGS = {
    # Twice the rate of 16 bits needs twice the work per byte that comes from the L2. Not measured.
    "sm_90": GroupGemmConfig(tile_m=128, tile_n=256, tile_k=128, latency=4, occupancy=1, num_worker_warps=8),
}
"""For 8-bit floats with `use_fast_acc=True`, likewise."""
DEFAULT_CONFIG = GroupGemmConfig(tile_m=64, tile_n=64, tile_k=32)
"""For architectures that are not in the table."""


def choose_config(arch: str, *, itemsize: int, use_fast_acc: bool = False) -> GroupGemmConfig:
    """Return the configuration for operands of `itemsize` bytes on `arch`."""
    config = CONFIGS.get(arch, DEFAULT_CONFIG)
    if itemsize == 2:  # noqa: PLR2004
        return config
    # One-byte operands at twice the depth: a step moves as many bytes, and as many fit in shared memory.
    table = FAST_FP8_CONFIGS if use_fast_acc else FP8_CONFIGS
    return table.get(arch) or replace(config, tile_k=config.tile_k * 2)


# -- kernels ----------------------------------------------------------------------------------------


def compute_tile(
    A: ct.Array,
    B: ct.Array,
    C: ct.Array,
    tile: int,
    TILE_M: int,
    TILE_N: int,
    TILE_K: int,
    GROUP_M: int,
    LATENCY: int,
    STORE_TMA: bool,
    FAST_ACC: bool,
) -> None:
    """Compute the `tile`-th `[TILE_M, TILE_N]` tile of one product; `LATENCY` 0 leaves it to the compiler."""
    row, col = swizzle(tile, ct.cdiv(C.shape[0], TILE_M), ct.cdiv(C.shape[1], TILE_N), GROUP_M)
    latency = ct.static_eval(LATENCY or None)

    def load_a(k: int) -> ct.Tile:  # [TILE_M, TILE_K]
        return ct.load(A, (row, k), (TILE_M, TILE_K), padding_mode=ct.PaddingMode.ZERO, latency=latency)

    def load_b(k: int) -> ct.Tile:  # [TILE_K, TILE_N]
        return ct.load(B, (k, col), (TILE_K, TILE_N), padding_mode=ct.PaddingMode.ZERO, latency=latency)

    acc = multiply_along_k(load_a, load_b, ct.cdiv(A.shape[1], TILE_K), TILE_M, TILE_N, FAST_ACC)
    # The store drops what sticks out past C's edges.
    ct.store(C, (row, col), acc.astype(C.dtype), allow_tma=STORE_TMA)


@ct.kernel
def few_groups_kernel(
    As: tuple[ct.Array, ...],
    Bs: tuple[ct.Array, ...],
    Cs: tuple[ct.Array, ...],
    ends: tuple[int, ...],
    TILE_M: ConstInt,
    TILE_N: ConstInt,
    TILE_K: ConstInt,
    GROUP_M: ConstInt,
    LATENCY: ConstInt,
    STORE_TMA: ConstBool,
    FAST_ACC: ConstBool,
    PERSISTENT: ConstBool,
) -> None:
    """Compute a tile of any group per block; the tiles of group `g` end before number `ends[g]`."""
    block, blocks = ct.bid(0), ct.num_blocks(0)

    def compute(g: int, tile: int) -> None:
        compute_tile(
            As[g], Bs[g], Cs[g], tile,
            TILE_M, TILE_N, TILE_K, GROUP_M, LATENCY, STORE_TMA, FAST_ACC,
        )  # fmt: skip

    first = 0
    # The loop is unrolled: one copy of the product for each group.
    for g in ct.static_iter(range(len(As))):
        if PERSISTENT:
            # Every n-th tile of n blocks, as if there were no groups.
            for tile in range(first + (block - first) % blocks, ends[g], blocks):
                compute(g, tile - first)
        elif block >= first and block < ends[g]:
            compute(g, block - first)
        first = ends[g]


@ct.kernel
def many_groups_kernel(
    As: list[ct.Array],
    Bs: list[ct.Array],
    Cs: list[ct.Array],
    ends: tuple[int, ...],
    TILE_M: ConstInt,
    TILE_N: ConstInt,
    TILE_K: ConstInt,
    GROUP_M: ConstInt,
    LATENCY: ConstInt,
    STORE_TMA: ConstBool,
    FAST_ACC: ConstBool,
    PERSISTENT: ConstBool,
) -> None:
    """Compute a tile of any group per block; the tiles of group `g` end before number `ends[g]`."""

    def compute(tile: int) -> None:
        group, first = 0, 0
        # Unrolled as well, but all that there is to it is a comparison with a kernel argument.
        for g in ct.static_iter(range(len(ends) - 1)):
            if tile >= ends[g]:
                group, first = g + 1, ends[g]
        compute_tile(
            As[group], Bs[group], Cs[group], tile - first,
            TILE_M, TILE_N, TILE_K, GROUP_M, LATENCY, STORE_TMA, FAST_ACC,
        )  # fmt: skip

    for_each_tile(compute, ends[len(ends) - 1], PERSISTENT)


# -- launcher ---------------------------------------------------------------------------------------


def group_gemm(
    a: Sequence[torch.Tensor],
    b: Sequence[torch.Tensor],
    *,
    transpose_b: bool = False,
    out_dtype: torch.dtype | None = None,
    use_fast_acc: bool = False,
    config: GroupGemmConfig | None = None,
) -> list[torch.Tensor]:
    """Multiply many pairs of matrices.

    Args:
        a: One `[M_g, K_g]` per group, all float16, bfloat16, float8_e4m3fn or float8_e5m2; any strides.
        b: One `[K_g, N_g]` per group, same dtype and device, any strides; 8-bit floats are fastest with the
            strides of a transposed matrix, because that is how tensor cores take them.
        transpose_b: Whether the matrices of `b` are `[N_g, K_g]` instead. They are read as they lie.
        out_dtype: float16, bfloat16, float32 or the operands' dtype. By default the operands' dtype, and of
            8-bit floats bfloat16.
        use_fast_acc: Whether sums of products of 8-bit floats may stay in Hopper's tensor cores, which keep
            fewer bits than float32 (`use_fast_accum` of `torch._scaled_mm`). No effect on other dtypes and
            GPUs.
        config: Instead of the one chosen for this GPU and dtype.

    Returns:
        One `[M_g, N_g]` per group, contiguous.

    Raises:
        TypeError: Not tensors, dtypes that differ or that are not supported.
        ValueError: Lists of different length or too many groups; not matrices, inner sizes or devices that
            differ.
    """
    import torch

    if len(a) != len(b):
        raise ValueError(f"group_gemm: a has {len(a)} matrices, but b has {len(b)}; a group is one of each")
    if not a:
        return []
    _check(a, b, transpose_b=transpose_b)
    dtype = a[0].dtype
    is_fp8 = str(dtype).removeprefix("torch.") in FP8
    out_dtype = out_dtype or (torch.bfloat16 if is_fp8 else dtype)
    if out_dtype not in (allowed := {torch.float16, torch.bfloat16, torch.float32, dtype}):
        raise TypeError(
            f"group_gemm: out_dtype is {out_dtype}; for operands of {dtype} supported are "
            f"{', '.join(sorted(map(str, allowed)))}"
        )
    b = [matrix.T for matrix in b] if transpose_b else b
    c = [
        torch.empty((left.shape[0], right.shape[1]), dtype=out_dtype, device=left.device)
        for left, right in zip(a, b, strict=True)
    ]
    for left, out in zip(a, c, strict=True):
        if left.shape[1] == 0:
            out.zero_()  # an empty sum

    config = config or choose_config(device_arch(), itemsize=dtype.itemsize, use_fast_acc=use_fast_acc)
    groups = [g for g, out in enumerate(c) if out.numel() and a[g].shape[1]]
    if not groups:
        return c
    if len(groups) > MAX_GROUPS:
        raise ValueError(
            f"group_gemm: a launch takes {MAX_GROUPS} groups that are not empty, got {len(groups)}"
        )
    # The longest tiles first: what starts last should end soon.
    groups.sort(key=lambda g: -a[g].shape[1])
    ends = tuple(
        accumulate(
            ct.cdiv(c[g].shape[0], config.tile_m) * ct.cdiv(c[g].shape[1], config.tile_n) for g in groups
        )
    )
    few = len(groups) <= config.max_copies
    kernel, container = (few_groups_kernel, tuple) if few else (many_groups_kernel, list)
    ct.launch(
        torch.cuda.current_stream(),
        (count_blocks(ends[-1], config, sms=count_sms()),),
        with_hints(kernel, config),
        (
            *(container(matrices[g] for g in groups) for matrices in (a, b, c)),
            ends,
            config.tile_m,
            config.tile_n,
            config.tile_k,
            config.group_m,
            config.latency or 0,
            config.store_tma,
            use_fast_acc and is_fp8,
            config.blocks_per_sm is not None,
        ),
    )
    return c


def _check(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], *, transpose_b: bool) -> None:
    named = {f"{name}[{g}]": matrix for name, each in (("a", a), ("b", b)) for g, matrix in enumerate(each)}
    check_tensors("group_gemm", named, dtypes=DTYPES)
    for name, matrix in named.items():
        if matrix.ndim != 2:  # noqa: PLR2004
            raise ValueError(f"group_gemm: {name} must be a matrix, got shape {list(matrix.shape)}")
    for g, (left, right) in enumerate(zip(a, b, strict=True)):
        k = left.shape[1]
        if right.shape[1 if transpose_b else 0] != k:
            raise ValueError(
                f"group_gemm: a[{g}] is [M, K] = {list(left.shape)}, so b[{g}] must have {k} "
                f"{'columns (it is transposed)' if transpose_b else 'rows'}, but is {list(right.shape)}"
            )


# -- what it is gated with --------------------------------------------------------------------------


def reference(
    a: Sequence[torch.Tensor],
    b: Sequence[torch.Tensor],
    *,
    transpose_b: bool = False,
    out_dtype: torch.dtype | None = None,
    use_fast_acc: bool = False,
) -> list[torch.Tensor]:
    """Multiply in float64, one pair after the other."""
    del out_dtype, use_fast_acc  # about rounding, and nothing is rounded here
    return [left @ (right.T if transpose_b else right) for left, right in zip(a, b, strict=True)]


def inputs(
    make_tensor: Callable[..., torch.Tensor],
    *,
    sizes: Sequence[tuple[int, int, int]],
    dtype: str,
    transpose_b: bool = False,
    views: str = "",
    out_dtype: str | None = None,
    use_fast_acc: bool = False,
) -> dict[str, object]:
    """Make A_g `[m, k]` and B_g `[k, n]`, with `transpose_b` `[n, k]`, for each (m, n, k) of `sizes`.

    Those named in `views` ("a", "b", "ab") are transposed views.
    """
    import torch

    def make(rows: int, columns: int, *, view: bool) -> torch.Tensor:
        return make_tensor((columns, rows), dtype).T if view else make_tensor((rows, columns), dtype)

    a = [make(m, k, view="a" in views) for m, _, k in sizes]
    b = [make(*((n, k) if transpose_b else (k, n)), view="b" in views) for _, n, k in sizes]
    made: dict[str, object] = {"a": a, "b": b, "transpose_b": transpose_b}
    if out_dtype is not None:
        made["out_dtype"] = getattr(torch, out_dtype)
    if use_fast_acc:
        made["use_fast_acc"] = True
    return made


def work(
    *,
    sizes: Sequence[tuple[int, int, int]],
    dtype: str,
    out_dtype: str | None = None,
    **_: object,
) -> Work:
    """Count a multiply and an add per product; each matrix is moved once."""
    out_dtype = out_dtype or ("bfloat16" if dtype in FP8 else dtype)
    itemsize, out_itemsize = (
        1 if name in FP8 else 4 if name == "float32" else 2 for name in (dtype, out_dtype)
    )
    return Work(
        flops=sum(2.0 * m * n * k for m, n, k in sizes),
        bytes=float(
            # Nobody reads the operands of an empty product.
            sum((m * k + k * n) * itemsize * bool(m and n) + m * n * out_itemsize for m, n, k in sizes)
        ),
        dtype=dtype,
    )


def longest_sum(*, sizes: Sequence[tuple[int, int, int]], **_: object) -> int:
    """Return how many products an element of the group with the longest sums adds up."""
    return max(k for _, _, k in sizes)


def _case(
    dtype: str, name: str, sizes: Sequence[tuple[int, int, int]], *, speed: bool = False, **options: Any
) -> Case:
    short = {"float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}[dtype]
    words = [short, name]
    if options.get("transpose_b"):
        words.append("transposed_b")
    if options.get("views"):
        words.append(f"views_{options['views']}")
    if options.get("use_fast_acc"):
        words.append("fast_acc")
    if options.get("out_dtype"):
        words.append(f"to_{options['out_dtype']}")
    return Case(
        name="-".join(words),
        params={"sizes": tuple(sizes), "dtype": dtype, **options},
        speed=speed,
        min_arch="sm_90" if dtype in FP8 else None,
    )


def _equal(groups: int, n: int) -> tuple[tuple[int, int, int], ...]:
    return ((n, n, n),) * groups


SPEC = KernelSpec(
    name="group_gemm",
    launch=group_gemm,
    reference=reference,
    inputs=inputs,
    work=work,
    reduction=longest_sum,
    cases=[
        # Equal groups, as TileGym's benchmark has them.
        _case("float16", "4x2048", _equal(4, 2048), speed=True),
        _case("float16", "16x1024", _equal(16, 1024), transpose_b=True, speed=True),
        _case(
            "float8_e5m2",
            "4x2048",
            _equal(4, 2048),
            transpose_b=True,
            use_fast_acc=True,
            out_dtype="float8_e5m2",
            speed=True,
        ),
        # As a mixture of experts has them: one weight shape, any number of tokens.
        _case(
            "bfloat16",
            "unequal",
            [(m, 4096, 2048) for m in (2000, 150, 900, 0, 64, 1100, 7, 2800)],
            transpose_b=True,
            speed=True,
        ),
        # No two sizes equal, so that swapped sizes or groups show; one to each side of a tile's edge.
        _case("float16", "odd", [(127, 129, 65), (64, 64, 64)]),
        _case("bfloat16", "odd", [(127, 129, 65), (64, 64, 64)], transpose_b=True),
        # Groups with nothing in them, first, last and between; a sum of nothing is zero.
        _case(
            "float16", "empty", [(0, 70, 40), (96, 80, 48), (30, 0, 8), (50, 60, 0), (33, 44, 55), (9, 9, 0)]
        ),
        # Sums of unlike length, the longest last.
        _case("bfloat16", "sums", [(64, 64, 16), (64, 64, 600), (130, 40, 1000)]),
        # Views, and views that are transposed again; strides that differ between groups are in the tests.
        _case("float16", "views", [(96, 200, 64), (40, 136, 72)], views="a"),
        _case("float16", "views", [(96, 200, 64), (40, 136, 72)], views="ab"),
        _case("bfloat16", "views", [(96, 200, 64), (40, 136, 72)], transpose_b=True, views="b"),
        # One group; and more than get a copy of the code, odd ones and an empty one among them.
        _case("float16", "one", [(200, 300, 77)]),
        _case("float16", "many", [(16 * g, 144 - 8 * g, 8 + 8 * g) for g in range(18)]),
        _case("bfloat16", "many", [(5 * g, 90 - 3 * g, 8 * g) for g in range(19)], transpose_b=True),
        # 8-bit floats: both layouts, every output.
        _case("float8_e4m3fn", "odd", [(33, 129, 65), (48, 64, 160)], transpose_b=True),
        _case("float8_e5m2", "odd", [(33, 129, 65)], out_dtype="float8_e5m2"),
        _case("float8_e4m3fn", "even", [(128, 192, 256), (64, 64, 128)], transpose_b=True, use_fast_acc=True),
        _case("float8_e5m2", "even", [(128, 192, 256), (64, 64, 128)], out_dtype="float16"),
        _case(
            "float8_e4m3fn", "even", [(128, 192, 256), (0, 64, 128)], transpose_b=True, out_dtype="float32"
        ),
        _case("float16", "even", [(128, 96, 64), (64, 64, 64)], out_dtype="float32"),
    ],
)
