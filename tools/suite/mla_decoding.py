"""What is timed of latent attention of one token, beside what, and which configurations may be fast."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from kernels import mla_decoding as MODULE  # noqa: N812 - the name that every suite has
from kernels.mla_decoding import MlaDecodingConfig
from pytest_cutile import Case
from tools.suite._peers import COPIES, copies_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def _case(dtype: str, b: int, h: int, n: int, d: int, cache_dtype: str | None = None) -> Case:
    return MODULE._case(  # noqa: SLF001 - it names cases
        dtype, b, h, n, d, cache_dtype=cache_dtype, speed=True
    )


# What TileGym's bench_mla_decoding.py runs: one sequence, 16 heads, the split-kv kernel.
TILEGYM = tuple(
    _case("float16", 1, 16, n, d)
    for d in (128, 512)
    for n in (256, 512, 1024, 2048, 4096, 8192, 16384, 11043)
)
# DeepSeek-V3: all heads on one GPU, or those of one of eight; a 16-bit cache, or one of either 8-bit format,
# and queries of 8 bits, too.
MODELS = tuple(
    _case(dtype, b, h, n, 512, cache_dtype)
    for h in (16, 128)
    for b, n in ((1, 4096), (1, 131072), (16, 4096), (64, 4096), (128, 5000))
    for dtype, cache_dtype in (
        ("bfloat16", "bfloat16"),
        ("bfloat16", "float8_e4m3fn"),
        ("bfloat16", "float8_e5m2"),
        ("float8_e4m3fn", "float8_e4m3fn"),
    )
)
CASES: tuple[Case, ...] = tuple(
    {case.name: case for case in (*MODULE.SPEC.cases, *TILEGYM, *MODELS) if case.speed}.values()
)
PEERS = ("torch", "compile", *COPIES, "sdpa", "tilegym")


# What compiles for sm_90 without spills, or nearly so: (tile_n, num_worker_warps, occupancy) for few heads,
# and (tile_h, tile_n, keys_first) for many.
FEW_HEADS = ((32, 4, 2), (64, 4, 2), (64, 8, 1), (64, 8, 2), (128, 4, 1), (128, 8, 1))
# Of 128 dimensions, a block takes less room.
FEW_HEADS_NARROW = (
    *((64, 4, 2), (64, 4, 3), (64, 8, 2), (128, 4, 1), (128, 4, 2), (128, 8, 1), (128, 8, 2)),
    (256, 8, 1),
)
FEW_HEADS_8BIT = ((32, 4, 2), (64, 4, 1), (64, 4, 2), (64, 8, 1), (64, 8, 2), (128, 8, 1))
# Sequences times heads below which what a part costs counts.
MANY_ROWS = 512
MANY_HEADS = ((64, 64, False), (64, 32, False), (64, 64, True), (32, 64, True))
MANY_HEADS_8BIT = (
    (64, 32, False),
    # Each element of the cache is written to shared memory once, but registers spill in the loop.
    (64, 64, True),
    (32, 64, True),
    (16, 64, True),
)


def configs(arch: str, *, b: int, h: int, d: int, cache_dtype: str, **_: Any) -> Iterator[MlaDecodingConfig]:
    """Yield the configurations worth trying for a case on `arch`.

    What a part costs, in tiles: 0.01 cuts nearly as finely as there is place, more leaves some of it empty
    when the cache is short, and 100 does not cut: one launch instead of two.
    """
    eight_bit = cache_dtype.startswith("float8")
    best = MODULE.choose_config(
        arch,
        heads=h,
        latent_dim=d,
        query_itemsize=2,
        cache_itemsize=1 if eight_bit else 2,
        keys_per_sm=0,
    )
    common: dict[str, Any] = {"dependent_merge": best.dependent_merge}
    if h < MODULE.MANY_HEADS:
        shapes = FEW_HEADS_8BIT if eight_bit else FEW_HEADS if d > 128 else FEW_HEADS_NARROW
        for tile_n, warps, occupancy in shapes:
            config = MlaDecodingConfig(
                tile_n=tile_n,
                num_worker_warps=warps,
                occupancy=occupancy,
                latency=4 if eight_bit else 8,
                **common,
            )
            yield config
            yield replace(config, late_sum=True)
            yield replace(config, part_cost=0.03)
            if not eight_bit and d > 128:
                yield replace(config, latency=4)
            if b * h < MANY_ROWS:
                yield replace(config, part_cost=0.003)
                yield replace(config, part_cost=100.0)
    else:
        for (tile_h, tile_n, keys_first), (part_cost, ahead) in product(
            MANY_HEADS_8BIT if eight_bit else MANY_HEADS,
            ((0.01, 4), (0.1, 4), (1.0, 4), (0.01, None), (0.01, 2)),
        ):
            yield MlaDecodingConfig(
                tile_h=tile_h,
                tile_n=tile_n,
                keys_first=keys_first,
                part_cost=part_cost,
                latency=ahead,
                **common,
            )
    yield replace(best, small_tma=False)
    if eight_bit:
        yield replace(best, cache_words=False)
    if best.dependent_merge:
        # What is it worth?
        yield replace(best, dependent_merge=False)


def peers(args: dict[str, Any], params: Mapping[str, Any]) -> dict[str, Callable[[], object]]:
    """Return what else computes the same, and a copy that moves as many bytes.

    PyTorch's kernels take no 8 bits: queries and cache are converted first, which is part of their time.
    TileGym's takes queries and cache of one dtype, to which it rounds its weights and its result, too.
    """
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    q, qpe, kv, kpe, scale = (args[name] for name in ("q", "qpe", "kv", "kpe", "scale"))
    dtype = torch.bfloat16 if q.itemsize == 1 else q.dtype

    def eager(q: Any, qpe: Any, kv: Any, kpe: Any) -> Any:
        q, qpe, values, positions = (tensor.to(dtype) for tensor in (q, qpe, kv, kpe))
        s = (
            torch.matmul(q, values.transpose(1, 2)).float()
            + torch.matmul(qpe, positions.transpose(1, 2)).float()
        )
        return torch.matmul(torch.softmax(s * scale, -1).to(dtype), values)

    compiled = torch.compile(eager, mode="max-autotune-no-cudagraphs", dynamic=False)
    peer_launches: dict[str, Callable[[], object]] = {
        "torch": lambda: eager(q, qpe, kv, kpe),
        "compile": lambda: compiled(q, qpe, kv, kpe),
        **copies_of(MODULE.work(**params)),
    }
    if kv.dtype == dtype:
        # Heads as the queries of one head, over a cache joined beforehand: what one does who knows.
        queries, keys = torch.cat([q, qpe], -1)[:, None], torch.cat([kv, kpe], -1)[:, None]
        peer_launches["sdpa"] = lambda: scaled_dot_product_attention(queries, keys, kv[:, None], scale=scale)
    if kv.dtype != q.dtype:
        return peer_launches
    try:
        import tilegym
    except ImportError:
        return peer_launches
    peer_launches["tilegym"] = lambda: tilegym.ops.mla_decoding_split_kv(
        q, qpe, kv, kpe, scale, backend="cutile"
    )
    return peer_launches
