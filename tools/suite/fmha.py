"""What is timed of attention, beside what, and which configurations may be fast."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from kernels import fmha as MODULE  # noqa: N812 - the name that every suite has
from kernels._attention import AttentionConfig
from kernels._dtypes import ITEMSIZE
from pytest_cutile import Case
from tools.suite._search_space import search_space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# What TileGym's bench_fused_attention.py runs.
TILEGYM = tuple(
    MODULE._case(dtype, 4, 32, length, 128, causal=causal, speed=True)  # noqa: SLF001 - it names cases
    for dtype, causal, length in product(
        ("float16", "float8_e5m2"), (True, False), (1024, 2048, 4096, 8192, 16384)
    )
)
# The other head dimensions.
DIMS = (
    MODULE._case("float16", 4, 32, 4096, 64, causal=True, speed=True),  # noqa: SLF001
    MODULE._case("float16", 4, 32, 2048, 64, speed=True),  # noqa: SLF001
    MODULE._case("float16", 4, 16, 4096, 256, causal=True, speed=True),  # noqa: SLF001
    MODULE._case("float16", 4, 16, 4096, 256, speed=True),  # noqa: SLF001
)
# One prompt: few heads, or few keys.
SMALL = tuple(
    MODULE._case("float16", 1, heads, 1024, d, causal=causal, speed=True)  # noqa: SLF001
    for heads, d, causal in product((8, 32), MODULE.HEAD_DIMS, (False, True))
)
CASES: tuple[Case, ...] = tuple(
    {case.name: case for case in (*MODULE.SPEC.cases, *TILEGYM, *DIMS, *SMALL) if case.speed}.values()
)
PEERS = ("torch", "cudnn", "flash", "tilegym")


def configs(arch: str, *, d: int, dtype: str, causal: bool, **params: Any) -> Iterator[AttentionConfig]:
    """Yield the configurations worth trying for a case on `arch`."""
    del params
    if search_space(arch) == "sm_90":
        yield from hopper_configs(d, itemsize=ITEMSIZE[dtype], causal=causal)
        return
    large = search_space(arch) == "sm_100"
    tiles = [(64, 32), (64, 64), (128, 64), (64, 128), (128, 128)] + [(256, 64), (256, 128)] * large
    for (tile_m, tile_n), overlap, occupancy in product(tiles, (False, True), (1, 2)):
        for heads_together in (1, 16) if causal else (1,):
            yield AttentionConfig(
                tile_m=tile_m,
                tile_n=tile_n,
                overlap=overlap,
                occupancy=occupancy,
                heads_together=heads_together,
                latency_k=2,
                latency_v=4,
            )


def hopper_configs(d: int, *, itemsize: int, causal: bool) -> Iterator[AttentionConfig]:
    """Yield the configurations worth trying on sm_90 for heads of `d` dimensions.

    Not here: what spills, and what an H200 has measured to be 5 % slower everywhere or no faster than what
    is simpler (2026-11-21): the scores of the next tile instead of the values of the last during the
    exponentials, two multiprocessors to a block, other latencies in 16 bits (the compiler makes the same
    machine code of them), 128x64, 64x64 and 128x256 tiles. A third block per
    multiprocessor does not fit: the compiler takes 128 registers for each of 256 threads.
    """
    two_blocks, two_groups = MODULE.TWO_BLOCKS, MODULE.TWO_GROUPS
    shapes = [two_blocks, two_groups]
    if d > 128:
        wide = [replace(two_groups, tile_m=64, tile_n=64), replace(two_groups, tile_m=64)]
        sixteen = [replace(two_groups, tile_n=64), AttentionConfig(tile_m=64, tile_n=64, num_worker_warps=4)]
        shapes = wide if itemsize == 1 else sixteen + wide + [two_groups, replace(two_groups, tile_n=32)]
    elif d <= 64 and itemsize > 1:
        # Half the accumulator, and twice as many exponentials for each product.
        shapes += [
            replace(two_blocks, tile_n=64, occupancy=3),
            replace(two_blocks, tile_m=128, tile_n=64),
            replace(two_blocks, tile_m=128, occupancy=1),
            replace(two_groups, tile_n=64, occupancy=2),
            replace(two_groups, tile_n=256),
        ]
    if itemsize > 1:
        shapes.append(replace(two_blocks, occupancy=1))  # where there is a tile for each multiprocessor
    for shape, overlap in product(shapes, (False, True)):
        config = replace(shape, overlap=overlap, transpose_v=itemsize == 1)
        if not causal:
            yield config
            yield replace(config, persistent=True)
            continue
        # The K and V of the heads in flight should stay in the L2: 8 MiB a head for 16384 keys in 16 bits.
        for heads_together in (2, 4, 8, 16, 32, 64) if shape in (two_blocks, shapes[0]) else (4, 16):
            yield replace(config, heads_together=heads_together)
    if itemsize == 1 and d <= 128:
        # Many stages, where the compiler's own choice is few.
        base = replace(two_blocks, transpose_v=True, heads_together=16 if causal else 1)
        yield replace(base, latency_k=10, latency_v=10)
        yield replace(base, latency_k=10, latency_v=10, persistent=True)


def peers(args: dict[str, Any], params: Mapping[str, Any]) -> dict[str, Callable[[], object]]:
    """Return what else attends to the same keys. PyTorch has nothing for 8-bit floats."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v, causal = args["q"], args["k"], args["v"], args["causal"]
    peer_launches: dict[str, Callable[[], object]] = {}
    if ITEMSIZE[params["dtype"]] > 1:

        def attend() -> object:
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=params["h"] != params["h_kv"]
            )

        def by(backend: SDPBackend) -> Callable[[], object]:
            def run() -> object:
                with sdpa_kernel(backend):
                    return attend()

            return run

        peer_launches |= {
            "torch": attend,
            "cudnn": by(SDPBackend.CUDNN_ATTENTION),
            "flash": by(SDPBackend.FLASH_ATTENTION),
        }
    try:
        import tilegym
    except ImportError:
        return peer_launches
    if args.get("out_dtype") is None and params["n"] == params["m"]:
        scale = params["d"] ** -0.5
        peer_launches["tilegym"] = lambda: tilegym.ops.fmha(
            q, k, v, scaling=scale, is_causal=causal, backend="cutile"
        )
    return peer_launches
