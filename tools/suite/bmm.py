"""What is timed of the batched product, beside what, and which configurations may be fast."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from kernels import bmm as MODULE  # noqa: N812 - the name that every suite has
from kernels._gemm import GemmConfig
from pytest_cutile import Case
from tools.suite._search_space import search_space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# What TileGym's bench_bmm.py runs, but normal where its operands are uniform in [0, 1).
TILEGYM = tuple(
    MODULE._case("float16", batch, n, n, n, transposed=transposed, speed=True)  # noqa: SLF001 - it names cases
    for batch, transposed, n in product((2, 8), ("", "b", "a", "ab"), (1024, 2048, 4096))
)
CASES: tuple[Case, ...] = tuple(
    {case.name: case for case in (*MODULE.SPEC.cases, *TILEGYM) if case.speed}.values()
)
PEERS = ("torch", "tilegym", "tilegym-not_persistent")

# (tile_m, tile_n, occupancy, num_worker_warps, num_ctas): see tools/suite/matmul.py.
_LARGE = (
    (128, 128, 2, None, None),
    (128, 128, 2, None, 2),
    (128, 256, 1, 8, None),
    (128, 256, 1, 8, 2),
    (256, 128, 1, 8, None),
    (256, 128, 1, 8, 2),
    (256, 256, 1, 8, 2),
)
_SMALL = (
    (64, 64, 4, None, None),
    (64, 128, 1, None, None),
    (64, 128, 2, None, None),
    (128, 64, 2, None, None),
    (64, 256, 1, 8, None),
    (128, 128, 1, 8, None),
    (128, 128, 1, None, 2),
    (128, 128, 1, 8, 2),
    (128, 256, 1, 8, 2),
    (128, 256, 1, None, 4),
    (128, 256, 1, 8, 4),
    (256, 128, 1, 8, 4),
    (256, 256, 1, 8, 4),
)
# Two multiprocessors to a block, which share what they load, of tiles as small as above.
_SHARED = (
    (64, 64, 2, None, 2),
    (64, 128, 1, None, 2),
    (64, 128, 2, None, 2),
    (128, 64, 2, None, 2),
    (128, 128, 2, None, 2),
    (64, 256, 2, None, 2),
    (64, 256, 1, 8, 2),
)
# Little arithmetic for each byte. Blocks of 8 warps take 168 registers a thread (tileiras 13.4.92): no two of
# them share a multiprocessor.
_SHORT = (
    (64, 128, 2, None, None),
    (64, 256, 1, 8, None),
    (128, 128, 1, 8, None),
    (128, 256, 1, 8, None),
    (256, 128, 1, 8, None),
)


def configs(arch: str, *, batch: int, m: int, n: int, k: int, **params: Any) -> Iterator[GemmConfig]:
    """Yield the configurations worth trying for a case on `arch`."""
    del params
    if search_space(arch) == "sm_90":
        yield from dict.fromkeys(_hopper(batch, m, n, k))
        return
    wide = search_space(arch) == "sm_100"
    tiles = [(64, 64), (128, 64), (64, 128), (128, 128)] + [(128, 256), (256, 128), (256, 256)] * wide
    for (tile_m, tile_n), tile_k, occupancy, blocks_per_sm in product(tiles, (32, 64), (1, 2), (None, 1, 2)):
        for num_ctas in (1, 2) if wide else (None,):
            yield GemmConfig(
                tile_m=tile_m,
                tile_n=tile_n,
                tile_k=tile_k,
                occupancy=occupancy,
                blocks_per_sm=blocks_per_sm,
                num_ctas=num_ctas,
            )


def _hopper(batch: int, m: int, n: int, k: int) -> Iterator[GemmConfig]:
    small = batch * -(-m // 128) * -(-n // 128) < 132
    for tile_m, tile_n, occupancy, warps, ctas in _SMALL if small else _LARGE:
        config = GemmConfig(
            tile_m=tile_m,
            tile_n=tile_n,
            tile_k=64,
            group_m=16 if tile_m <= 128 else 8,
            latency=4,
            occupancy=occupancy,
            num_worker_warps=warps,
            num_ctas=ctas,
        )
        yield config
        yield replace(config, latency=8)
        yield replace(config, group_m=4)
        # One block a multiprocessor gains most: nobody else multiplies while it stores.
        yield replace(config, blocks_per_sm=occupancy)
        yield replace(config, blocks_per_sm=occupancy, latency=8)
        if small:
            yield replace(config, tile_k=128)
    for tile_m, tile_n, occupancy, warps, ctas in _SHARED if small else ():
        for latency, group_m in ((None, 4), (4, 4), (4, 16)):
            yield GemmConfig(
                tile_m=tile_m,
                tile_n=tile_n,
                tile_k=64,
                group_m=group_m,
                latency=latency,
                occupancy=occupancy,
                num_worker_warps=warps,
                num_ctas=ctas,
            )
    if k <= 256:
        for (tile_m, tile_n, occupancy, warps, _), tile_k in product(_SHORT, (64, 128)):
            config = GemmConfig(
                tile_m=tile_m,
                tile_n=tile_n,
                tile_k=tile_k,
                latency=4,
                blocks_per_sm=occupancy,
                occupancy=occupancy,
                num_worker_warps=warps,
            )
            yield config
            yield replace(config, latency=2)
            yield replace(config, store_tma=False)
    best = MODULE.choose_config("sm_90", batch=batch, m=m, n=n, k=k, sms=132)
    for latency in (None, 2, 3, 6):
        yield replace(best, latency=latency)
    for group_m in (1, 2, 4, 8, 16):
        yield replace(best, group_m=group_m)
    yield replace(best, store_tma=False)


def peers(args: tuple[Any, ...], params: Mapping[str, Any]) -> dict[str, Callable[[], object]]:
    """Return what else multiplies the same batches."""
    import torch

    a, b = args
    # `torch.bmm` takes no batch of one beside a larger one; `torch.matmul` does.
    peer_launches: dict[str, Callable[[], object]] = {"torch": lambda: torch.matmul(a, b)}
    try:
        import tilegym
    except ImportError:
        return peer_launches
    if a.shape[0] != b.shape[0]:
        return peer_launches
    transposed = params.get("transposed", "")
    left = a.transpose(1, 2) if "a" in transposed else a
    right = b.transpose(1, 2) if "b" in transposed else b

    def run(*, persistent: bool) -> Callable[[], object]:
        return lambda: tilegym.ops.bmm(
            left,
            right,
            transpose_a="a" in transposed,
            transpose_b="b" in transposed,
            static_persistent=persistent,
            backend="cutile",
        )

    peer_launches["tilegym"] = run(persistent=True)
    if not transposed:
        peer_launches["tilegym-not_persistent"] = run(persistent=False)
    return peer_launches
