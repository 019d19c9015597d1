"""Group GEMM: TileGym's sizes, and what a PyTorch user would call instead.

TileGym's benchmark (tests/benchmark/bench_group_gemm.py, 1.5.1) multiplies 4 and 16 groups of equal squares
in float16 and float8_e5m2, with the results in the dtype of the operands; so do these cases. It asks
for no fast accumulation of 8-bit floats; these cases do, as those who call `_scaled_mm` for speed, and some
stand beside them that do not.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, product
from typing import TYPE_CHECKING, Any

from kernels import group_gemm
from kernels._dtypes import MIN_ARCH
from kernels.group_gemm import GroupGemmConfig
from pytest_cutile import Case
from tools.suite._search_space import search_space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

MODULE = group_gemm


def _tilegym_case(dtype: str, groups: int, n: int, *, transpose_b: bool, fast: bool = True) -> Case:
    short = {"float16": "fp16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}[dtype]
    params: dict[str, Any] = {"sizes": ((n, n, n),) * groups, "dtype": dtype, "transpose_b": transpose_b}
    if dtype in group_gemm.FP8:
        params |= {"use_fast_acc": fast, "out_dtype": dtype}
    name = f"{short}-{groups}x{n}" + "-transposed_b" * transpose_b + "-precise" * (not fast)
    return Case(name=f"tilegym-{name}", params=params, min_arch=MIN_ARCH.get(dtype))


CASES: tuple[Case, ...] = (
    *(case for case in group_gemm.SPEC.cases if case.speed),
    *(
        _tilegym_case(dtype, groups, n, transpose_b=transpose_b)
        for dtype, groups, transpose_b, n in product(
            ("float16", "float8_e5m2"), (4, 16), (False, True), (1024, 2048, 4096)
        )
    ),
    *(
        _tilegym_case("float8_e5m2", 4, n, transpose_b=transpose_b, fast=False)
        for transpose_b, n in product((False, True), (1024, 2048, 4096))
    ),
    # cuBLAS multiplies no two e5m2 matrices; these are what it can be compared with.
    *(_tilegym_case("float8_e4m3fn", 4, n, transpose_b=True) for n in (1024, 2048, 4096)),
)
PEERS = ("torch", "_scaled_mm", "_grouped_mm", "tilegym")


# (tile_m, tile_n, occupancy, num_worker_warps, num_ctas): see tools/suite/matmul.py.
_LARGE = (
    (128, 128, 2, None, None),
    (128, 256, 1, 8, None),
    (256, 128, 1, 8, None),
    (256, 128, 1, 8, 2),
    (256, 256, 1, 8, 2),
)
# Tiles that fill a GPU more evenly where there are few of them.
_SMALL = (
    (64, 64, 2, None, None),
    (64, 128, 2, None, None),
    (128, 64, 2, None, None),
    (64, 256, 1, 8, None),
    (128, 128, 1, 8, None),
)
# Sums in float32 beside those of the tensor cores: twice the registers.
_PRECISE = (
    (64, 128, 2, None, None),
    (64, 256, 1, 8, None),
    (128, 128, 1, 8, None),
    (256, 128, 1, 8, 2),
)


def configs(
    arch: str, *, sizes: Sequence[tuple[int, int, int]], dtype: str, use_fast_acc: bool = False, **_: Any
) -> Iterator[GroupGemmConfig]:
    """Yield the configurations worth trying for a case on `arch`."""
    itemsize = 1 if dtype in group_gemm.FP8 else 2
    if search_space(arch) == "sm_90":
        yield from dict.fromkeys(_hopper(sizes, itemsize, use_fast_acc=use_fast_acc))
        return
    wide = search_space(arch) == "sm_100"
    tiles = [(64, 64), (64, 128), (128, 64), (128, 128)] + [(128, 256), (256, 128), (256, 256)] * wide
    for (tile_m, tile_n), step_bytes, occupancy, blocks_per_sm in product(
        tiles, (64, 128), (1, 2), (None, 1)
    ):
        for num_ctas in (1, 2) if wide and tile_m == 256 else (None,):
            yield GroupGemmConfig(
                tile_m=tile_m,
                tile_n=tile_n,
                tile_k=step_bytes // itemsize,
                occupancy=occupancy,
                blocks_per_sm=blocks_per_sm,
                num_ctas=num_ctas,
            )


def _hopper(
    sizes: Sequence[tuple[int, int, int]], itemsize: int, *, use_fast_acc: bool
) -> Iterator[GroupGemmConfig]:
    sizes = sorted((size for size in sizes if all(size)), key=group_gemm.launch_order)
    best = group_gemm.choose_config(
        "sm_90", sizes=sizes, itemsize=itemsize, use_fast_acc=use_fast_acc, sms=132
    )
    yield best
    if group_gemm.choose_tail(best, sizes, sms=132)[0]:
        yield replace(best, tails=())
        for tail in best.tails:
            yield replace(best, tails=(tail,))
    precise = itemsize == 1 and not use_fast_acc
    few = sum(-(-m // 128) * -(-n // 128) for m, n, _ in sizes) <= 2 * 132
    step = 128 // itemsize
    for tile_m, tile_n, occupancy, warps, ctas in (
        _PRECISE if precise else (*_LARGE, *(_SMALL if few else ()))
    ):
        config = GroupGemmConfig(
            tile_m=tile_m,
            tile_n=tile_n,
            tile_k=step,
            group_m=16 if tile_m <= 128 else 8,
            latency=4,
            occupancy=occupancy,
            num_worker_warps=warps,
            num_ctas=ctas,
            copy_tile=best.copy_tile,
            tails=tuple(tail for tail in best.tails if tail.tile_m * tail.tile_n < tile_m * tile_n),
        )
        yield config
        # Each group alone: a launch for each.
        yield replace(config, blocks_per_sm=occupancy)
        if few or precise:
            yield replace(config, tile_k=2 * step)
        if itemsize == 1 and not few and not precise:
            for latency, group_m, alone in product((None, 6), (4, 8, 32), (None, occupancy)):
                yield replace(config, latency=latency, group_m=group_m, blocks_per_sm=alone)
    for latency in (None, 2, 6, 8):
        yield replace(best, latency=latency)
    for group_m in (4, 8, 16):
        yield replace(best, group_m=group_m)
    yield replace(best, store_tma=False)
    if best.copy_tile:
        yield replace(best, copy_tile=128)
        yield replace(best, copy_tile=None)


def peers(args: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Callable[[], object]]:
    """Return what else computes the same products."""
    import torch

    a, transpose_b = args["a"], args["transpose_b"]
    b = [matrix.T for matrix in args["b"]] if transpose_b else args["b"]
    pairs = list(zip(a, b, strict=True))
    peer_launches: dict[str, Callable[[], object]] = {}

    if params["dtype"] not in group_gemm.FP8:
        peer_launches["torch"] = lambda: [torch.matmul(left, right) for left, right in pairs]
    elif params["dtype"] == "float8_e4m3fn" and transpose_b:
        one, out_dtype = torch.ones((), device=a[0].device), args["out_dtype"]
        fast = args.get("use_fast_acc", False)
        peer_launches["_scaled_mm"] = lambda: [
            torch._scaled_mm(  # noqa: SLF001
                left, right, scale_a=one, scale_b=one, out_dtype=out_dtype, use_fast_accum=fast
            )
            for left, right in pairs
        ]
    if params["dtype"] == "bfloat16" and len({right.shape for right in b}) == 1:
        rows = torch.cat(list(a))
        # One array of all weights, transposed like the single ones.
        weights = torch.stack(list(args["b"]))
        weights = weights.transpose(1, 2) if transpose_b else weights
        ends = torch.tensor(list(accumulate(len(left) for left in a)), dtype=torch.int32, device=rows.device)
        counts = [len(left) for left in a]
        peer_launches["_grouped_mm"] = lambda: list(
            torch._grouped_mm(rows, weights, offs=ends).split(counts)  # noqa: SLF001
        )

    try:
        import tilegym
    except ImportError:
        return peer_launches
    theirs = args["b"]
    peer_launches["tilegym"] = lambda: tilegym.ops.group_gemm(
        a, theirs, transpose_b=transpose_b, backend="cutile"
    )
    return peer_launches
