"""Group GEMM: many independent matrix products of unequal sizes in one launch.

    C_g[m, n] = sum over k of A_g[m, k] * B_g[k, n]        for each group g

A_g is `[M_g, K_g]`, B_g `[K_g, N_g]`, C_g `[M_g, N_g]`. Operands are float16, bfloat16, float8_e4m3fn or
float8_e5m2; sums are kept in float32 and rounded once, to `out_dtype`. Groups may have any sizes, zero
included, and any strides.

Why not a loop of products: a product of 1024 x 1024 has 64 tiles of 128 x 128, half of what an H200 computes
at a time, and at the end of each product multiprocessors wait for the last tile. Here the tiles of all groups
form one list, and blocks take tiles from it whatever their group.

How it works: tiles are numbered through all groups. A block finds its group by comparing its number with the
end of each group, and then computes one tile as `kernels.matmul` does. Matrices are separate kernel arguments
(tuples), so that a launch carries the TMA descriptor of each: its address and its size. This has two
consequences:

- Each group has a copy of the code, which names its matrices. To keep the code small, a launch takes few
  groups. More groups become several launches, with groups of all sizes in each, that run side by side.
- What is compiled depends on each matrix: on its strides, and on which of its sizes are divisible by 16.

With one argument for all matrices (a list, or a table in memory) groups would share the code. But cuda-tile
1.7.0 captures no launch with a list into a CUDA graph ("List argument in CUDAGraph isn't supported yet"),
which is how inference servers, and the timer of pytest-cutile, launch kernels.

Each block computes one tile. Persistent blocks are faster in `kernels.matmul`, but not here: one loop per
group was 12 to 14 % slower than one block per tile (four groups of 2048^3 or 4096^3, fp16, H200), and one
loop around all groups slower still. A group that fills the GPU by itself for several rounds gets a launch of
its own, with persistent blocks.

Groups with long sums come first, so that the last tiles to start are short. Large tiles run in rounds, and
the last round takes as long as the others, however few tiles it has. So if the last round has few tiles, the
last rows of the last group are cut into smaller tiles, and computed by a launch of their own.

Launches run side by side on streams of their own: the blocks of one start where those before it leave
multiprocessors idle.

8-bit floats: what `kernels.matmul` says of their sums and of their layout holds here, too. Matrices that
Hopper's tensor cores cannot take as they lie are copied first, all of a launch at once.

Source: the tiled product of `kernels.matmul`; one launch for all groups is that of CUTLASS' grouped GEMM
(https://github.com/NVIDIA/cutlass/tree/main/examples/24_gemm_grouped).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from typing import TYPE_CHECKING, Any, TypeAlias

import cuda.tile as ct

from kernels._configs import check_fields, vary
from kernels._dtypes import FP8, FP8_ARCH, ITEMSIZE, MIN_ARCH, SHORT
from kernels._gemm import (
    COPY_FROM,
    GemmConfig,
    choose_fit,
    choose_product_dtype,
    copy_k_major,
    count_blocks,
    count_tiles,
    for_each_tile,
    in_steps_of,
    make_grid,
    may_store_tma,
    multiply_along_k,
)
from kernels._launch import (
    beside_current_stream,
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

    Group: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # A, B and C

ConstInt: TypeAlias = ct.Constant[int]
ConstBool: TypeAlias = ct.Constant[bool]

DTYPES = ("float16", "bfloat16", *FP8)
GROUPS_PER_LAUNCH = 16
"""Each has a copy of the code: with tiles of 256 x 256 for sm_90, 16 compile in 10 s to a file of 3.6 MB, and
4 in 2 s to one of 0.6 MB (tileiras 13.4.92)."""
CROWD, CUT = 8, 4
"""Groups that a launch takes without being slower for their number, and how many each of several takes.

H200, 2026-11-23, B transposed, interleaved (h200-2026-11-23-variants.jsonl), by the groups of each launch,
all side by side: the time for that of two launches one after the other, or of one, by what had fewer rounds.

                             8      4                                8      4
    16 of 2048^3, fp16     1.00   0.98       9 of 768^3, fp16      0.92   0.90
    16 of 1024^3, fp16     0.98   0.93      16 unequal, bf16       1.01   0.97
    12 of 1536^3, fp16     0.94   0.94      16 of 2048^3, e5m2     0.98   0.94
    10 of 1024^3, fp16     0.91   0.93      16 of 1024^3, e5m2     0.97   0.88

One launch of all 16 takes 1.07 and 1.11 (of 2048^3 and 1024^3, fp16). Up to 8 groups in two launches take as
long as in one, and less evenly: 0.94 to 1.01 of it.
"""
TAIL_FULL = 0.6
"""Share of a round of blocks up to which smaller tiles are taken for what is left over for the last one.

H200, 2026-11-23, bf16, B transposed, interleaved (h200-2026-11-23-variants.jsonl): the time for that of one
launch, by how many tiles of 128x256 are left over for 132 multiprocessors (whole rows of them are taken); of
eight unequal groups with K of 2048 or 4096 (102 and 116 in run 2, where they were taken, too), of four with K
of 128 and of 2048, and of one. In brackets: what is not chosen.

    groups          8       8       8       8       8       8       4       4       1
    left over      20      39      40      70     102     116      56      56      56
    64x128       0.940  [0.979] [0.968] [0.966] [1.005] [1.001] [0.986] [0.974] [0.969]
    64x256      [0.951]  0.968   0.957   0.952  [0.995] [0.996]  0.907   0.905   0.898

In the same launch, which would need no second stream, tiles of two shapes make all of it slower: 1.00 to 1.9
times the time, and 1.01 to 1.6 where 20 are left over. A programmatic dependent launch, whose blocks may
start as soon as all of the first have, takes 1.00 to 1.21 times the time.
"""
ALONE_ROUNDS, ALONE_FULL = 3, 0.94
"""Rounds of blocks from which a group is not slower alone, and what share of the last one it has to fill."""


# -- configuration ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GroupGemmConfig(GemmConfig):
    """How the products are cut into tiles, what is copied first, and the compiler's hints."""

    copy_tile: int | None = None
    """Side of the tiles in which operands are copied whose K is not contiguous; None copies none."""
    tails: tuple[GemmConfig, ...] = ()
    """Smaller tiles for what is left over for the last round of blocks, if that is little: the first of these
    whose blocks all run at once, or the last; none: it gets the same tiles."""

    def __post_init__(self) -> None:
        check_fields(self, powers=("tile_m", "tile_n", "tile_k", "copy_tile"), limits=("min_k",))

    @property
    def alone(self) -> bool:
        """Whether each group has a launch of its own: blocks take tiles in turn from one group only."""
        return self.blocks_per_sm is not None


# Largest tiles first: `choose_config` takes the first of which there are enough to fill the GPU.
#
# sm_90: H200, driver 580.159.04, CUDA 13.0, torch 2.11, cuda-tile 1.7.0, tileiras 13.4.92, 2026-11-22, cold
# L2; speed as a share of cuBLAS, interleaved, one product after the other (median of 8 placements).
#
#     fp16, 4 groups of                             2048^3   4096^3
#     128x256, one block per tile                     0.97     0.93
#     256x256 by two thread blocks, likewise          0.95     0.92
#     either, blocks that take tiles in turn          0.86     0.82
#     one launch of `kernels.matmul` for each group   0.98     1.00
#
# The smallest tiles are those of `kernels.bmm`, not measured with groups. Other architectures are not
# measured: they follow the candidates that NVIDIA publishes for TileGym's group GEMM
# (https://github.com/NVIDIA/TileGym, src/tilegym/ops/cutile/group_gemm.py).
_UNMEASURED: dict[str, tuple[GroupGemmConfig, ...]] = {
    "sm_80": (
        GroupGemmConfig(tile_m=128, tile_n=128, tile_k=32, occupancy=2),
        GroupGemmConfig(tile_m=64, tile_n=64, tile_k=32, occupancy=2),
    ),
    "sm_86": (
        GroupGemmConfig(tile_m=128, tile_n=64, tile_k=32, occupancy=2),
        GroupGemmConfig(tile_m=64, tile_n=64, tile_k=32, occupancy=2),
    ),
    "sm_89": (
        GroupGemmConfig(tile_m=128, tile_n=64, tile_k=32, occupancy=2),
        GroupGemmConfig(tile_m=64, tile_n=64, tile_k=32, occupancy=2),
    ),
    # Fifth-generation tensor cores let two thread blocks share one 256x256 tile.
    "sm_100": (
        GroupGemmConfig(tile_m=256, tile_n=256, tile_k=64, occupancy=1, num_ctas=2),
        GroupGemmConfig(tile_m=128, tile_n=128, tile_k=64, occupancy=1),
    ),
    "sm_103": (
        GroupGemmConfig(tile_m=256, tile_n=256, tile_k=64, occupancy=1, num_ctas=2),
        GroupGemmConfig(tile_m=128, tile_n=128, tile_k=64, occupancy=1),
    ),
    "sm_110": (
        GroupGemmConfig(tile_m=256, tile_n=256, tile_k=64, occupancy=1, num_ctas=2),
        GroupGemmConfig(tile_m=128, tile_n=128, tile_k=64, occupancy=1),
    ),
    "sm_120": (
        GroupGemmConfig(tile_m=128, tile_n=128, tile_k=64, occupancy=1),
        GroupGemmConfig(tile_m=64, tile_n=64, tile_k=64, occupancy=2),
    ),
    "sm_121": (
        GroupGemmConfig(tile_m=128, tile_n=128, tile_k=64, occupancy=1),
        GroupGemmConfig(tile_m=64, tile_n=64, tile_k=64, occupancy=2),
    ),
}


CONFIGS: dict[str, tuple[GroupGemmConfig, ...]] = {
    **_UNMEASURED,
    "sm_90": (
        GroupGemmConfig(
            tile_m=128,
            tile_n=256,
            tile_k=64,
            group_m=16,
            latency=4,
            occupancy=1,
            num_worker_warps=8,
            tails=(
                GemmConfig(tile_m=64, tile_n=128, tile_k=128, latency=4, occupancy=1),
                GemmConfig(tile_m=64, tile_n=256, tile_k=64, latency=4, occupancy=1),
            ),
        ),
        GroupGemmConfig(tile_m=64, tile_n=128, tile_k=64, group_m=4, latency=4, occupancy=2),
    ),
}
"""For operands of 16 bits."""
FP8_CONFIGS: dict[str, tuple[GroupGemmConfig, ...]] = {
    **in_steps_of(1, _UNMEASURED, since=FP8_ARCH),
    "sm_90": (
        GroupGemmConfig(tile_m=128, tile_n=128, tile_k=256, occupancy=1, num_worker_warps=8, copy_tile=64),
        GroupGemmConfig(tile_m=64, tile_n=128, tile_k=128, group_m=16, latency=6, occupancy=2, copy_tile=64),
    ),
}
"""For 8-bit floats with `use_fast_acc=False`."""
FAST_FP8_CONFIGS: dict[str, tuple[GroupGemmConfig, ...]] = {
    **in_steps_of(1, _UNMEASURED, since=FP8_ARCH),
    "sm_90": (
        GroupGemmConfig(
            tile_m=128,
            tile_n=256,
            tile_k=128,
            group_m=16,
            latency=4,
            occupancy=1,
            num_worker_warps=8,
            copy_tile=64,
        ),
        GroupGemmConfig(tile_m=64, tile_n=64, tile_k=128, group_m=16, latency=6, occupancy=2, copy_tile=64),
    ),
}
"""For 8-bit floats with `use_fast_acc=True`."""
DEFAULT_CONFIG = GroupGemmConfig(tile_m=64, tile_n=64, tile_k=32)
"""For architectures that are not in the tables, and 16 bits; for others in steps of as many bytes."""
ALONE: dict[str, GroupGemmConfig] = {
    "sm_90": GroupGemmConfig(
        tile_m=256,
        tile_n=256,
        tile_k=64,
        latency=4,
        blocks_per_sm=1,
        occupancy=1,
        num_ctas=2,
        num_worker_warps=8,
        min_k=4096,
    ),
}
"""For a group of operands of 16 bits that does not gain from the company of others: see `fills_alone`."""
FAST_FP8_ALONE: dict[str, GroupGemmConfig] = {
    # H200, 2026-11-22: e4m3, 4 groups of 4096^3 374.7 us (404.8 in company), B transposed.
    "sm_90": GroupGemmConfig(
        tile_m=128,
        tile_n=256,
        tile_k=128,
        group_m=8,
        latency=6,
        blocks_per_sm=1,
        occupancy=1,
        num_worker_warps=8,
        min_k=4096,
        copy_tile=64,
    ),
}
"""The same for 8-bit floats with `use_fast_acc=True`."""


def fills_alone(config: GroupGemmConfig, size: tuple[int, int, int], *, sms: int) -> bool:
    """Return whether a group of `size` (m, n, k) keeps a GPU of `sms` multiprocessors busy by itself.

    In company it would be 7 % slower (the table above), and alone it has to wait for its own last tiles: that
    is less if they fill nearly all of the last of at least three rounds.
    """
    m, n, k = size
    tiles = count_tiles(m, n, config)
    rounds = tiles / count_blocks(tiles, config, sms=sms)
    return k >= config.min_k and rounds > ALONE_ROUNDS - 1 and rounds / ceil(rounds) > ALONE_FULL


def choose_alone(
    arch: str, size: tuple[int, int, int], *, itemsize: int, use_fast_acc: bool, sms: int
) -> GroupGemmConfig | None:
    """Return the configuration of a launch for a group of `size` (m, n, k) alone, None if it wants company.

    A launcher asks this of each of its groups, so it costs little where the answer is None.
    """
    table = ALONE if itemsize == 2 else FAST_FP8_ALONE if use_fast_acc else {}  # noqa: PLR2004
    alone = table.get(arch)
    if alone is None or not fills_alone(alone, size, sms=sms):
        return None
    return vary(alone, min_k=0)


def choose_config(
    arch: str,
    *,
    sizes: Sequence[tuple[int, int, int]],
    itemsize: int,
    use_fast_acc: bool = False,
    sms: int,
) -> GroupGemmConfig:
    """Return the configuration for one launch.

    Args:
        arch: E.g. `"sm_90"`.
        sizes: (m, n, k) of its groups.
        itemsize: Bytes per element of the operands.
        use_fast_acc: As `group_gemm` takes it.
        sms: Multiprocessors of the GPU.
    """
    if len(sizes) == 1:
        alone = choose_alone(arch, sizes[0], itemsize=itemsize, use_fast_acc=use_fast_acc, sms=sms)
        if alone is not None:
            return alone
    table = CONFIGS if itemsize == 2 else FAST_FP8_CONFIGS if use_fast_acc else FP8_CONFIGS  # noqa: PLR2004
    candidates = table.get(arch)
    if candidates is None:
        candidates = (vary(DEFAULT_CONFIG, tile_k=DEFAULT_CONFIG.tile_k * 2 // itemsize),)
    return choose_fit(
        candidates,
        lambda config: sum(count_tiles(m, n, config) for m, n, _ in sizes),
        min(k for _, _, k in sizes),
        sms=sms,
    )


def launch_order(size: tuple[int, int, int]) -> tuple[int, int]:
    """Return by what groups of `size` (m, n, k) are sorted.

    The longest tiles first: what starts last should end soon. Of equal ones the largest group last, so that
    it has rows to spare for smaller tiles.
    """
    m, n, k = size
    return -k, m * n


def count_places(config: GemmConfig, *, sms: int) -> int:
    """Return how many blocks run at a time on a GPU of `sms` multiprocessors."""
    return max(1, sms * (config.occupancy or 1) // (config.num_ctas or 1))


def count_pieces(config: GemmConfig, sizes: Sequence[tuple[int, int, int]], *, sms: int) -> int:
    """Return into how many launches groups of `sizes` (m, n, k) are cut, which run side by side.

    A crowd is cut, unless all of its tiles run at once anyway.
    """
    tiles = sum(count_tiles(m, n, config) for m, n, _ in sizes)
    crowd = len(sizes) > CROWD and tiles > count_places(config, sms=sms)
    return ct.cdiv(len(sizes), CUT) if crowd else 1


def choose_tail(
    config: GroupGemmConfig, sizes: Sequence[tuple[int, int, int]], *, sms: int
) -> tuple[int, GemmConfig | None]:
    """Return how many rows at the end of the last group get other tiles, and which.

    0 if all rows get the same tiles: none is left over for the last round of blocks, or they are more than
    `TAIL_FULL` of a round, or more than the last group can spare (all, where there is but one round).

    Args:
        config: Of the launch.
        sizes: (m, n, k) of its groups.
        sms: Multiprocessors of the GPU.
    """
    if not config.tails or config.alone:
        return 0, None
    m, n, _ = sizes[-1]
    places = count_places(config, sms=sms)
    left = sum(count_tiles(m, n, config) for m, n, _ in sizes) % places
    columns = ct.cdiv(n, config.tile_n)
    taken = ct.cdiv(left, columns)  # rows of tiles
    kept = ct.cdiv(m, config.tile_m) - taken
    if not left or kept < 1 or taken * columns > TAIL_FULL * places:
        return 0, None
    rows = m - kept * config.tile_m
    at_once = (tail for tail in config.tails if count_tiles(rows, n, tail) <= count_places(tail, sms=sms))
    return rows, next(at_once, config.tails[-1])


# -- kernels ----------------------------------------------------------------------------------------


@ct.kernel
def group_gemm_kernel(
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
    """Compute a `[TILE_M, TILE_N]` tile of any group per block, or with `PERSISTENT` every n-th of one group.

    The tiles of group `g` end before number `ends[g]`. `LATENCY` 0 leaves it to the compiler.
    """
    latency = ct.static_eval(LATENCY or None)

    def compute(g: int, tile: int) -> None:
        A, B, C = As[g], Bs[g], Cs[g]
        row, col = swizzle(tile, ct.cdiv(C.shape[0], TILE_M), ct.cdiv(C.shape[1], TILE_N), GROUP_M)

        def load_a(k: int) -> ct.Tile:  # [TILE_M, TILE_K]
            return ct.load(A, (row, k), (TILE_M, TILE_K), padding_mode=ct.PaddingMode.ZERO, latency=latency)

        def load_b(k: int) -> ct.Tile:  # [TILE_K, TILE_N]
            return ct.load(B, (k, col), (TILE_K, TILE_N), padding_mode=ct.PaddingMode.ZERO, latency=latency)

        acc = multiply_along_k(load_a, load_b, ct.cdiv(A.shape[1], TILE_K), TILE_M, TILE_N, FAST_ACC)
        # The store drops what sticks out past C's edges.
        ct.store(C, (row, col), acc.astype(C.dtype), allow_tma=STORE_TMA)

    if len(As) == 1:
        for_each_tile(lambda tile: compute(0, tile), ends[0], PERSISTENT)
    else:
        block = ct.bid(0)
        first = 0
        # The loop is unrolled: one copy of the product for each group.
        for g in ct.static_iter(range(len(As))):
            if block >= first and block < ends[g]:
                compute(g, block - first)
            first = ends[g]


# -- launcher ---------------------------------------------------------------------------------------


@on_its_gpu
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

    Forward only: no gradient flows through it.

    Args:
        a: One `[M_g, K_g]` per group, all float16, bfloat16, float8_e4m3fn or float8_e5m2; any strides.
            cuTile has 8-bit floats on sm_90 and newer only.
        b: One `[K_g, N_g]` per group, same dtype and device, any strides; 8-bit floats are fastest with the
            strides of a transposed matrix, because that is how tensor cores take them.
        transpose_b: Whether the matrices of `b` are `[N_g, K_g]` instead. They are read as they lie.
        out_dtype: float16, bfloat16, float32 or the operands' dtype. By default the operands' dtype, and of
            8-bit floats bfloat16.
        use_fast_acc: Whether sums of products of 8-bit floats may stay in Hopper's tensor cores, which keep
            fewer bits than float32 (`use_fast_accum` of `torch._scaled_mm`). No effect on other dtypes and
            GPUs.
        config: Instead of those chosen for this GPU, dtype and sizes. With `blocks_per_sm` each group has a
            launch of its own.

    Returns:
        One `[M_g, N_g]` per group, contiguous.

    Raises:
        TypeError: Not lists of tensors, dtypes that differ or that are not supported, flags that are not
            bools, another kernel's configuration.
        ValueError: Lists of different length; not matrices, inner sizes or devices that differ; more tiles
            than one launch takes.
    """
    import torch

    for name, matrices in (("a", a), ("b", b)):
        if not isinstance(matrices, Sequence):
            raise TypeError(
                f"group_gemm: {name} must be a list of matrices, one per group, got {type(matrices).__name__}"
            )
    check_config("group_gemm", config, GroupGemmConfig)
    transpose_b = check_bool("group_gemm", "transpose_b", transpose_b)
    use_fast_acc = check_bool("group_gemm", "use_fast_acc", use_fast_acc)
    if len(a) != len(b):
        raise ValueError(f"group_gemm: a has {len(a)} matrices, but b has {len(b)}; a group is one of each")
    if not a:
        return []
    _check(a, b, transpose_b=transpose_b)
    dtype = a[0].dtype
    out_dtype = choose_product_dtype("group_gemm", dtype, out_dtype)
    b = [matrix.T for matrix in b] if transpose_b else b
    c = [
        torch.empty((left.shape[0], right.shape[1]), dtype=out_dtype, device=left.device)
        for left, right in zip(a, b, strict=True)
    ]
    for left, out in zip(a, c, strict=True):
        if left.shape[1] == 0:
            out.zero_()  # an empty sum

    groups = [
        (left, right, out) for left, right, out in zip(a, b, c, strict=True) if out.numel() and left.shape[1]
    ]
    if not groups:
        return c
    groups.sort(key=lambda group: launch_order(_size(group)))
    use_fast_acc = use_fast_acc and dtype.itemsize == 1
    arch, sms, itemsize = find_arch("group_gemm", groups[0][0], CONFIGS), count_sms(), dtype.itemsize

    together: list[Group] = []
    for group in groups:
        left, right, _ = group
        size = _size(group)
        # What has to be copied first is copied in one launch for all.
        free = config is None and (itemsize > 1 or left.stride(1) == right.stride(0) == 1)
        own = (
            choose_alone(arch, size, itemsize=itemsize, use_fast_acc=use_fast_acc, sms=sms) if free else None
        )
        if own is None:
            together.append(group)
        else:
            _launch([group], own, use_fast_acc, sms)
    launches = ct.cdiv(len(together), GROUPS_PER_LAUNCH)
    for first in range(launches):
        some = together[first::launches]
        shared = config or choose_config(
            arch, sizes=[*map(_size, some)], itemsize=itemsize, use_fast_acc=use_fast_acc, sms=sms
        )
        _launch(some, shared, use_fast_acc, sms)
    return c


def _size(group: Group) -> tuple[int, int, int]:
    """Return (m, n, k)."""
    left, _, out = group
    return (*out.shape, left.shape[1])


def _launch(groups: Sequence[Group], config: GroupGemmConfig, use_fast_acc: bool, sms: int) -> None:
    """Compute groups, none of them empty, in few launches that run side by side."""
    import torch

    if config.copy_tile is not None:
        groups = _k_major(groups, config.copy_tile)
    if config.alone:
        for group in groups:
            _launch_tiles([group], config, use_fast_acc, sms, torch.cuda.current_stream())
        return
    sizes = [*map(_size, groups)]
    rows, tail = choose_tail(config, sizes, sms=sms)
    *others, (a, b, c) = groups
    if tail is not None:
        groups = [*others, (a[:-rows], b, c[:-rows])]
    pieces = count_pieces(config, sizes, sms=sms)
    launches: list[tuple[Sequence[Group], GemmConfig]] = [(groups[i::pieces], config) for i in range(pieces)]
    if tail is not None:
        launches.append(([(a[-rows:], b, c[-rows:])], tail))
    with beside_current_stream(len(launches) - 1) as beside:
        streams = (torch.cuda.current_stream(), *beside)
        for (part, tiles), stream in zip(launches, streams, strict=True):
            _launch_tiles(part, tiles, use_fast_acc, sms, stream)


def _launch_tiles(
    groups: Sequence[Group],
    config: GemmConfig,
    use_fast_acc: bool,
    sms: int,
    stream: torch.cuda.Stream,
) -> None:
    """Compute groups, none of them empty, in one launch."""
    a, b, c = zip(*groups, strict=True)
    ends = tuple(accumulate(count_tiles(out.shape[0], out.shape[1], config) for out in c))
    grid = make_grid("group_gemm", ends[-1], config, sms=sms, remedy="pass fewer or smaller groups")
    ct.launch(
        stream,
        grid,
        with_hints(group_gemm_kernel, config),
        (
            *(a, b, c, ends),
            *(config.tile_m, config.tile_n, config.tile_k, config.group_m, config.latency or 0),
            *(
                config.store_tma and all(map(may_store_tma, c)),
                use_fast_acc,
                config.blocks_per_sm is not None,
            ),
        ),
    )


def _k_major(groups: Sequence[Group], tile: int) -> Sequence[Group]:
    """Return groups with copies of operands whose K is not contiguous, where they are used often enough."""
    operands = [*(left for left, _, _ in groups), *(right.T for _, right, _ in groups)]  # [rows, K]
    uses = [*(out.shape[1] for _, _, out in groups), *(out.shape[0] for _, _, out in groups)]
    wrong = [
        i
        for i, (operand, used) in enumerate(zip(operands, uses, strict=True))
        if operand.stride(1) != 1 and used >= COPY_FROM
    ]
    if not wrong:
        return groups
    copies = copy_k_major("group_gemm", [operands[i] for i in wrong], tile)
    for i, copy in zip(wrong, copies, strict=True):
        operands[i] = copy
    n = len(groups)
    return [
        (left, right.T, out)
        for left, right, (_, _, out) in zip(operands[:n], operands[n:], groups, strict=True)
    ]


def _check(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], *, transpose_b: bool) -> None:
    named = {f"{name}[{g}]": matrix for name, group in (("a", a), ("b", b)) for g, matrix in enumerate(group)}
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
    itemsize, out_itemsize = ITEMSIZE[dtype], ITEMSIZE[out_dtype]
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


def independent(*, transpose_b: bool = False, **_: object) -> dict[str, tuple[str | None, ...]]:
    """Return what the dimensions are called that all groups can be cut along, where their sizes allow it."""
    return {"a": ("m", None), "b": ("n", None) if transpose_b else (None, "n"), "output": ("m", "n")}


def precision(*, use_fast_acc: bool = False, **_: object) -> dict[str, Any]:
    """Return what the check has to know: where a launch sums with fewer bits than float32."""
    return {"fast_acc": use_fast_acc}


def _case(
    dtype: str, name: str, sizes: Sequence[tuple[int, int, int]], *, speed: bool = False, **options: Any
) -> Case:
    short = SHORT[dtype]
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
        min_arch=MIN_ARCH.get(dtype),
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
    check=precision,
    independent=independent,
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
        # A group that has a launch of its own.
        _case("float16", "1x4096", _equal(1, 4096)),
        _case("float8_e4m3fn", "1x4096", _equal(1, 4096), transpose_b=True, use_fast_acc=True),
        # No two sizes equal, so that swapped sizes or groups show; one to each side of a tile's edge. What
        # TMA cannot move takes long to compile, 8-bit floats most of all: few cases have it.
        _case("float16", "odd", [(127, 129, 65), (64, 64, 64)]),
        _case("float8_e4m3fn", "odd", [(33, 129, 80)], transpose_b=True),
        # Groups with nothing in them, first, last and between; a sum of nothing is zero.
        _case(
            "float16", "empty", [(0, 72, 40), (96, 80, 48), (30, 0, 8), (50, 64, 0), (33, 48, 56), (9, 9, 0)]
        ),
        # Sums of unlike length, the longest last.
        _case("bfloat16", "sums", [(64, 64, 16), (0, 64, 600), (130, 40, 1000)], transpose_b=True),
        # Views, and views that are transposed again; strides that differ between groups are in the tests. A
        # square B, whose layout its shape does not tell.
        _case("float16", "views", [(96, 200, 64)], views="ab"),
        _case("bfloat16", "views", [(96, 200, 64), (40, 72, 72)], transpose_b=True, views="b"),
        # More than a launch takes, and empty ones among them.
        _case("bfloat16", "many", [(16 * (g % 7), 32 + 16 * (g % 3), 48 + 16 * (g % 5)) for g in range(21)]),
        # 8-bit floats: enough columns to fill a GPU with large tiles; both layouts, every output.
        _case("float8_e4m3fn", "wide", [(3, 12000, 48), (5, 8000, 80)], transpose_b=True),
        _case("float8_e5m2", "even", [(128, 192, 256), (64, 64, 128)], out_dtype="float8_e5m2"),
        _case("float8_e4m3fn", "even", [(128, 192, 256), (64, 64, 128)], transpose_b=True, use_fast_acc=True),
        _case("float8_e5m2", "even", [(128, 192, 256), (0, 64, 64)], transpose_b=True, out_dtype="float16"),
        _case("float8_e4m3fn", "even", [(128, 192, 256), (0, 64, 128)], out_dtype="float32"),
        _case("float16", "even", [(128, 96, 64), (64, 64, 64)], out_dtype="float32"),
    ],
)
