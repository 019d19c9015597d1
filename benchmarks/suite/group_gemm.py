"""Group GEMM: TileGym's sizes, and what a PyTorch user would call instead.

TileGym's benchmark (tests/benchmark/bench_group_gemm.py, 1.5.1) multiplies 4 and 16 groups of equal squares
in float16 and float8_e5m2, with the results in the dtype of the operands; so do these cases. It asks
for no fast accumulation of 8-bit floats; these cases do, as those who call `_scaled_mm` for speed.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate, product
from typing import TYPE_CHECKING, Any

from kernels import group_gemm
from pytest_cutile import Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kernels.group_gemm import GroupGemmConfig

MODULE = group_gemm


def _tilegym_case(dtype: str, groups: int, n: int, *, transpose_b: bool) -> Case:
    short = {"float16": "fp16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}[dtype]
    params: dict[str, Any] = {"sizes": ((n, n, n),) * groups, "dtype": dtype, "transpose_b": transpose_b}
    if dtype in group_gemm.FP8:
        params |= {"use_fast_acc": True, "out_dtype": dtype}
    name = f"{short}-{groups}x{n}" + ("-transposed_b" if transpose_b else "")
    return Case(name=f"tilegym-{name}", params=params, min_arch="sm_90" if dtype in group_gemm.FP8 else None)


CASES: tuple[Case, ...] = (
    *(case for case in group_gemm.SPEC.cases if case.speed),
    *(
        _tilegym_case(dtype, groups, n, transpose_b=transpose_b)
        for dtype, groups, transpose_b, n in product(
            ("float16", "float8_e5m2"), (4, 16), (False, True), (1024, 2048, 4096)
        )
    ),
    # cuBLAS multiplies no two e5m2 matrices; these are what it can be compared with.
    *(_tilegym_case("float8_e4m3fn", 4, n, transpose_b=True) for n in (1024, 2048, 4096)),
)


def configs(arch: str, **params: Any) -> Iterator[GroupGemmConfig]:
    """Yield the configurations worth trying for a case."""
    is_fp8 = params["dtype"] in group_gemm.FP8
    depth = 2 if is_fp8 else 1
    yield group_gemm.choose_config(
        arch, itemsize=1 if is_fp8 else 2, use_fast_acc=params.get("use_fast_acc", False)
    )
    make = group_gemm.GroupGemmConfig
    if arch != "sm_90":
        for tile_m, tile_n, occupancy in ((64, 128, 1), (128, 128, 1), (128, 128, 2), (256, 128, 1)):
            yield make(tile_m=tile_m, tile_n=tile_n, tile_k=64 * depth, occupancy=occupancy)
        if arch in {"sm_100", "sm_103", "sm_110"}:
            yield make(tile_m=256, tile_n=256, tile_k=64 * depth, occupancy=1, num_ctas=2, blocks_per_sm=1)
        return
    for max_copies in (16, 0):
        square = partial(
            make, tile_m=128, tile_n=128, tile_k=64 * depth, latency=4, occupancy=2, max_copies=max_copies
        )
        large = partial(make, tile_k=64 * depth, occupancy=1, num_worker_warps=8, max_copies=max_copies)
        # A block per tile, two a multiprocessor: one multiplies while the other prepares or stores.
        for latency, group_m in product((2, 4, 6), (8, 16)):
            yield square(latency=latency, group_m=group_m)
        yield square(tile_k=32 * depth)
        yield square(num_worker_warps=8)
        yield square(store_tma=False)
        # Smaller tiles fill the GPU more evenly where there are few of them.
        for tile_m, tile_n in ((64, 128), (64, 256), (128, 64)):
            yield square(tile_m=tile_m, tile_n=tile_n)
        # One large tile a multiprocessor; the next tile's loads run while one is stored.
        for (tile_m, tile_n), latency, blocks_per_sm in product(
            ((128, 256), (256, 128)), (None, 3, 5), (1, None)
        ):
            yield large(tile_m=tile_m, tile_n=tile_n, latency=latency, blocks_per_sm=blocks_per_sm)
        if max_copies:  # the compiler refuses pairs of thread blocks where matrices come from a list
            yield large(tile_m=256, tile_n=128, num_ctas=2, blocks_per_sm=1)


def peers(args: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Callable[[], object]]:
    """Return what else computes the same products."""
    import torch

    a, transpose_b = args["a"], args["transpose_b"]
    b = [matrix.T for matrix in args["b"]] if transpose_b else args["b"]
    pairs = list(zip(a, b, strict=True))
    found: dict[str, Callable[[], object]] = {}

    if params["dtype"] not in group_gemm.FP8:
        found["torch"] = lambda: [torch.matmul(left, right) for left, right in pairs]
    elif params["dtype"] == "float8_e4m3fn" and transpose_b:
        one, out_dtype = torch.ones((), device=a[0].device), args["out_dtype"]
        found["_scaled_mm"] = lambda: [
            torch._scaled_mm(  # noqa: SLF001
                left, right, scale_a=one, scale_b=one, out_dtype=out_dtype, use_fast_accum=True
            )
            for left, right in pairs
        ]
    if params["dtype"] == "bfloat16" and len({right.shape for right in b}) == 1:
        rows = torch.cat(list(a))
        # One array of all weights, transposed like the single ones.
        weights = torch.stack(list(args["b"]))
        weights = weights.transpose(1, 2) if transpose_b else weights
        ends = torch.tensor(list(accumulate(len(left) for left in a)), dtype=torch.int32, device=rows.device)
        found["_grouped_mm"] = lambda: torch._grouped_mm(rows, weights, offs=ends)  # noqa: SLF001

    try:
        import tilegym
    except ImportError:
        return found
    theirs = args["b"]
    found["tilegym"] = lambda: tilegym.ops.group_gemm(a, theirs, transpose_b=transpose_b, backend="cutile")
    return found
