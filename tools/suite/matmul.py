"""What is timed of the matrix product, beside what, and which configurations may be fast."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from kernels import matmul as MODULE  # noqa: N812 - the name that every suite has
from kernels._dtypes import ITEMSIZE
from kernels.matmul import MatmulConfig
from pytest_cutile import Case
from tools.suite._search_space import search_space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

SIZES = (1024, 2048, 4096, 8192, 16384)


def _square(n: int, dtype: str, **options: Any) -> Case:
    return MODULE._case(dtype, n, n, n, speed=True, **options)  # noqa: SLF001 - it names cases


# What TileGym's bench_matrix_multiplication.py and bench_persistent_matmul.py run: operands row-major, of 8
# bits only e5m2, with a result of e5m2. The second script also runs 32768, over 70 ms a launch of fp16.
# TileGym sums with full precision; the same with fast accumulation stands beside it.
TILEGYM = tuple(
    case
    for n in SIZES
    for case in (
        _square(n, "float16"),
        _square(n, "float8_e5m2", out_dtype="float8_e5m2"),
        _square(n, "float8_e5m2", out_dtype="float8_e5m2", use_fast_acc=True),
    )
)
# What `torch._scaled_mm` takes: B column-major. Both ways of summing.
SCALED_MM = tuple(
    _square(n, "float8_e4m3fn", transposed="b", use_fast_acc=fast) for n in SIZES for fast in (False, True)
)
CASES: tuple[Case, ...] = tuple(
    {case.name: case for case in (*MODULE.SPEC.cases, *TILEGYM, *SCALED_MM) if case.speed}.values()
)
PEERS = ("torch", "_scaled_mm", "_scaled_mm-precise", "tilegym", "tilegym-persistent")


def configs(arch: str, *, m: int, n: int, k: int, dtype: str, **params: Any) -> Iterator[MatmulConfig]:
    """Yield the configurations worth trying for a case on `arch`."""
    if search_space(arch) == "sm_90":
        yield from dict.fromkeys(_hopper(m, n, k, dtype, **params))
        return
    itemsize = ITEMSIZE[dtype]
    wide = search_space(arch) == "sm_100"
    tiles = [(64, 64), (128, 64), (64, 128), (128, 128)] + [(128, 256), (256, 128), (256, 256)] * wide
    for (tile_m, tile_n), step_bytes, occupancy, blocks_per_sm in product(
        tiles, (64, 128), (1, 2), (None, 1, 2)
    ):
        for num_ctas in (1, 2, 4) if wide and tile_m == 256 else (None,):
            yield MatmulConfig(
                tile_m=tile_m,
                tile_n=tile_n,
                tile_k=step_bytes // itemsize,
                occupancy=occupancy,
                blocks_per_sm=blocks_per_sm,
                num_ctas=num_ctas,
            )


SHARED = 227 * 1024
"""Bytes of shared memory that a multiprocessor of sm_90 has for its blocks (CUDA C++ Programming Guide)."""

# (tile_m, tile_n, occupancy, num_worker_warps, num_ctas). The accumulator of 128 x 128 takes 128 registers of
# each of 4 warps' threads, or 64 of 8; two blocks of 128 x 128 or one of 128 x 256 fill a multiprocessor.
_LARGE = (
    (128, 128, 2, None, None),
    (128, 128, 2, None, 2),
    (128, 128, 1, 8, None),
    (128, 256, 1, 8, None),
    (128, 256, 1, 8, 2),
    (256, 128, 1, 8, None),
    (256, 128, 1, 8, 2),
    (256, 256, 1, 8, 2),
)
# Fewer tiles of 128 x 128 than multiprocessors. Thread blocks that compute a tile together fetch what they
# share once (TMA's multicast: tileiras 13.4.92, in its machine code): four that compute 128 x 256 fetch half
# of what four of 64 x 128 do. K is not split: that needs a second launch, to add up the parts, and of the
# 11 us that fp16 1024^3 takes about 7 do not depend on the work (see `kernels.matmul`).
_SMALL = (
    (64, 64, 2, None, None),
    (64, 64, 4, None, None),
    (64, 128, 1, None, None),
    (64, 128, 2, None, None),
    (128, 64, 1, None, None),
    (128, 64, 2, None, None),
    (64, 256, 1, 8, None),
    (128, 128, 1, None, 2),
    (128, 128, 1, 8, 2),
    (128, 128, 1, None, 4),
    (128, 256, 1, None, 4),
    (128, 256, 1, 8, 4),
    (256, 128, 1, None, 4),
    (256, 128, 1, 8, 4),
    (256, 256, 1, 8, 4),
)
# Sums in float32 beside those of the tensor cores: twice the registers.
_PRECISE = (
    (64, 128, 2, None, None),
    (64, 128, 1, None, None),
    (128, 64, 2, None, None),
    (64, 256, 1, 8, None),
    (128, 128, 1, 8, None),
    (256, 128, 1, 8, 2),
    (128, 256, 1, 8, 2),
)


def _hopper(
    m: int, n: int, k: int, dtype: str, *, use_fast_acc: bool = False, **_: Any
) -> Iterator[MatmulConfig]:
    tiles = -(-m // 128) * -(-n // 128)
    small, few = tiles < 132, tiles < 2 * 132
    itemsize = ITEMSIZE[dtype]
    step = 128 // itemsize
    layouts: dict[str, Any] = {"k_major": itemsize != 2, "copy_tile": 64}
    precise = itemsize == 1 and not use_fast_acc
    shapes = _SMALL if small else _PRECISE if precise else _LARGE
    steps = (step, 2 * step, 4 * step) if small else (step, 2 * step) if precise else (step,)
    for (tile_m, tile_n, occupancy, warps, ctas), tile_k in product(shapes, steps):
        # Shared memory holds two steps of each block, or loads do not overlap with products.
        if 2 * (tile_m + tile_n) // (ctas or 1) * tile_k * itemsize * occupancy > SHARED:
            continue
        common: dict[str, Any] = {
            "tile_m": tile_m,
            "tile_n": tile_n,
            "tile_k": tile_k,
            "occupancy": occupancy,
            "num_worker_warps": warps,
            "num_ctas": ctas,
            **layouts,
        }
        for latency in (4, 10) if small else (4, 6) if few else (4, 8):
            yield MatmulConfig(**common, latency=latency, group_m=16 if tile_m <= 128 else 8)
        if not small and tile_k == steps[-1]:
            # One block of 8 warps a multiprocessor gains most: nobody else multiplies while it stores.
            for latency in (4, 8):
                yield MatmulConfig(**common, latency=latency, blocks_per_sm=occupancy)
        if not few and tile_k == steps[-1]:
            yield MatmulConfig(**common, latency=4, group_m=4)
    best = MODULE.choose_config("sm_90", m=m, n=n, k=k, itemsize=itemsize, use_fast_acc=use_fast_acc, sms=132)
    for latency in (None, 2, 3, 6):
        yield replace(best, latency=latency)
    for group_m in (4, 8, 16):
        yield replace(best, group_m=group_m)
    yield replace(best, store_tma=False)
    # What does the copy of an operand cost, and with larger tiles, and without it?
    yield replace(best, copy_tile=128)
    yield replace(best, copy_tile=None)


def peers(args: dict[str, Any], params: Mapping[str, Any]) -> dict[str, Callable[[], object]]:
    """Return what else multiplies the same matrices, to a result of the same dtype."""
    import torch

    a, b = args["a"], args["b"]
    if "scale_a" in args:
        return {}
    eight_bit = a.element_size() == 1
    out_dtype = args.get("out_dtype", torch.bfloat16 if eight_bit else a.dtype)
    peer_launches: dict[str, Callable[[], object]] = {}
    if not eight_bit and out_dtype == a.dtype:
        torch.backends.cuda.matmul.allow_tf32 = True
        peer_launches["torch"] = lambda: torch.matmul(a, b)
    # cuBLAS multiplies 8-bit floats with K contiguous only, and not e5m2 with e5m2.
    if a.dtype == torch.float8_e4m3fn and a.stride(1) == 1 and b.stride(0) == 1:
        one = torch.ones((), device=a.device)

        def scaled_mm(*, fast: bool) -> Callable[[], object]:
            return lambda: torch._scaled_mm(  # noqa: SLF001 - the only name it has
                a, b, scale_a=one, scale_b=one, out_dtype=out_dtype, use_fast_accum=fast
            )

        fast = args.get("use_fast_acc", False)
        peer_launches["_scaled_mm"] = scaled_mm(fast=fast)
        if fast:
            peer_launches["_scaled_mm-precise"] = scaled_mm(fast=False)
    if out_dtype == a.dtype:
        peer_launches |= _tilegym(a, b, params.get("transposed", ""))
    return peer_launches


def _tilegym(a: Any, b: Any, transposed: str) -> dict[str, Callable[[], object]]:
    """Return TileGym's variants: one block per tile, and persistent blocks, which alone take transposes.

    Its result has the operands' dtype, and its sums full precision.
    """
    try:
        import tilegym
    except ImportError:
        return {}
    left = a.T if "a" in transposed else a
    right = b.T if "b" in transposed else b

    def run(*, persistent: bool) -> Callable[[], object]:
        return lambda: tilegym.ops.matmul(
            left,
            right,
            trans_a="a" in transposed,
            trans_b="b" in transposed,
            static_persistent=persistent,
            use_tma=True,
            backend="cutile",
        )

    if transposed:
        return {"tilegym": run(persistent=True)}
    return {"tilegym": run(persistent=False), "tilegym-persistent": run(persistent=True)}
