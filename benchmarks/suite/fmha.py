"""What is timed of attention, beside what, and which configurations may be fast."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from kernels import fmha as MODULE  # noqa: N812 - the name that every suite has
from kernels.fmha import FmhaConfig, Overlap
from pytest_cutile import Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# What TileGym's bench_fused_attention.py runs.
TILEGYM = tuple(
    MODULE._case(dtype, 4, 32, length, 128, causal=causal, speed=True)  # noqa: SLF001 - it names cases
    for dtype, causal, length in product(
        ("float16", "float8_e5m2"), (True, False), (1024, 2048, 4096, 8192, 16384)
    )
)
CASES: tuple[Case, ...] = tuple(
    {case.name: case for case in (*MODULE.SPEC.cases, *TILEGYM) if case.speed}.values()
)

LATENCIES = ((None, None), (2, 4), (10, 10))


def configs(arch: str, *, d: int, dtype: str, causal: bool, **params: Any) -> Iterator[FmhaConfig]:
    """Yield the configurations worth trying for a case on `arch`."""
    del params
    if arch == "sm_90":
        yield from dict.fromkeys(hopper_configs(d, itemsize=MODULE.ITEMSIZE[dtype], causal=causal))
        return
    large = arch in ("sm_100", "sm_103", "sm_110")
    tiles = [(64, 32), (64, 64), (128, 64), (64, 128), (128, 128)] + [(256, 64), (256, 128)] * large
    for (tile_m, tile_n), overlap, occupancy in product(tiles, Overlap, (1, 2)):
        for heads_together in (1, 16) if causal else (1,):
            yield FmhaConfig(
                tile_m=tile_m,
                tile_n=tile_n,
                overlap=overlap,
                occupancy=occupancy,
                heads_together=heads_together,
            )


def hopper_configs(d: int, *, itemsize: int, causal: bool) -> Iterator[FmhaConfig]:
    """Yield the configurations worth trying on sm_90 for heads of `d` dimensions."""
    # (tile_m, tile_n, worker warps, blocks per multiprocessor, CTAs). What is left out here spills.
    shapes: list[tuple[int, int, int, int, int | None]] = [
        (128, 128, 8, 1, None),
        (64, 128, 4, 2, None),
        (128, 64, 8, 1, None),
        (64, 64, 4, 2, None),
    ]
    if d > 128:
        shapes = [(128, 64, 8, 1, None), (64, 64, 4, 1, None), (64, 64, 8, 1, None), (64, 128, 8, 1, None)]
        if itemsize == 1:
            shapes = shapes[2:]
    together = 16 if causal else 1
    base = [
        FmhaConfig(
            tile_m=tile_m,
            tile_n=tile_n,
            overlap=overlap,
            heads_together=together,
            transpose_v=itemsize == 1,
            occupancy=occupancy,
            num_worker_warps=warps,
            num_ctas=ctas,
            latency_k=None,
            latency_v=None,
        )
        for (tile_m, tile_n, warps, occupancy, ctas), overlap in product(shapes, Overlap)
    ]
    for config in base:
        yield config
        yield replace(config, persistent=True)
    for config in base[:6]:
        for latency_k, latency_v in LATENCIES[1:]:
            yield replace(config, latency_k=latency_k, latency_v=latency_v)
        if causal and config.overlap != Overlap.SCORES:
            for heads_together in (1, 4, 64):
                yield replace(config, heads_together=heads_together)
    # One load of K and V for two multiprocessors.
    if d <= 128:
        for overlap in (Overlap.NONE, Overlap.VALUES):
            yield replace(base[0], tile_m=256, num_ctas=2, overlap=overlap)
            yield replace(base[0], tile_m=128, num_ctas=2, num_worker_warps=4, occupancy=2, overlap=overlap)
    if itemsize == 1:
        yield replace(base[0], transpose_v=False)
        if d <= 128:
            yield replace(base[0], tile_n=256, overlap=Overlap.NONE)


def peers(args: dict[str, Any], params: Mapping[str, Any]) -> dict[str, Callable[[], object]]:
    """Return what else attends to the same keys. PyTorch has nothing for 8-bit floats."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v, causal = args["q"], args["k"], args["v"], args["causal"]
    found: dict[str, Callable[[], object]] = {}
    if MODULE.ITEMSIZE[params["dtype"]] > 1:

        def attend() -> object:
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=params["h"] != params["h_kv"]
            )

        def by(backend: SDPBackend) -> Callable[[], object]:
            def run() -> object:
                with sdpa_kernel(backend):
                    return attend()

            return run

        found |= {
            "torch": attend,
            "cudnn": by(SDPBackend.CUDNN_ATTENTION),
            "flash": by(SDPBackend.FLASH_ATTENTION),
        }
    try:
        import tilegym
    except ImportError:
        return found
    if args.get("out_dtype") is None and params["n"] == params["m"]:
        scale = params["d"] ** -0.5
        found["tilegym"] = lambda: tilegym.ops.fmha(
            q, k, v, scaling=scale, is_causal=causal, backend="cutile"
        )
    return found
