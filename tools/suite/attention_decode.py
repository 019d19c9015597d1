"""What is timed of the attention of one token, beside what, and which configurations may be fast."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from kernels import attention_decode as MODULE  # noqa: N812 - the name that every suite has
from kernels.attention_decode import AttentionDecodeConfig
from pytest_cutile import Case
from tools.suite._peers import COPIES, copies_of
from tools.suite._search_space import search_space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def _case(dtype: str, b: int, h: int, h_kv: int, n: int, d: int) -> Case:
    return MODULE._case(dtype, b, h, h_kv, n, d, speed=True)  # noqa: SLF001 - it names cases


# What `test_perf` of TileGym's tests/ops/test_flash_decode.py runs: there is no benchmark script for it.
TILEGYM = tuple(
    _case("float16", 1, 32, 32 // group, n, 128)
    for group in (1, 4, 8)
    for n in (512, 1024, 2048, 4096, 8192, 16384, 31079)
)
# Llama 3 8B and 70B, from one sequence to a full batch, at most 2 GiB of cache.
MODELS = tuple(
    _case("bfloat16", b, h, 8, n, 128)
    for h in (32, 64)
    for b, n in ((1, 1024), (1, 8192), (1, 131072), (4, 8192), (8, 32768), (16, 2048), (64, 1024), (64, 8000))
)
# The other head dimensions.
DIMS = (_case("bfloat16", 8, 32, 8, 8192, 64), _case("bfloat16", 8, 16, 8, 8192, 256))
CASES: tuple[Case, ...] = tuple(
    {case.name: case for case in (*MODULE.SPEC.cases, *TILEGYM, *MODELS, *DIMS) if case.speed}.values()
)
PEERS = ("torch", "cudnn", "flash", "torch-rows", "flash-rows", *COPIES, "tilegym")


# Sequences times heads below which what a part costs counts.
MANY_ROWS = 512


def configs(arch: str, *, b: int, h: int, d: int, **_: Any) -> Iterator[AttentionDecodeConfig]:
    """Yield the configurations worth trying for a case on `arch`.

    More blocks and longer latencies are more bytes under way; fewer and longer parts are less to merge. What
    a part costs, in tiles: 0.01 cuts nearly as finely as there is place, 0.1 leaves some of it empty when the
    cache is short, and 100 does not cut: one launch instead of two.
    """
    chosen = MODULE.choose_config(arch, keys=0, heads_per_sm=0, head_dim=d)
    common = {"dependent_merge": chosen.dependent_merge}
    tiles = (64, 128, 256)
    if d > 128:
        # On sm_90, tiles of 32 keys spill a KiB.
        tiles = (64, 128) if search_space(arch) == "sm_90" else (32, 64)
    places = ((1, 1), (1, 2), (2, 2), (2, 3), (2, 4), (3, 3), (4, 4))
    for tile_n, (blocks_per_sm, occupancy) in product(tiles, places):
        if tile_n * d > 128 * 128 and occupancy > 3:
            continue
        config = AttentionDecodeConfig(
            tile_n=tile_n, blocks_per_sm=blocks_per_sm, occupancy=occupancy, **common
        )
        yield config
        if b * h < MANY_ROWS:
            yield replace(config, part_cost=0.1)
        if occupancy == 1:
            # The others have no room to load further ahead.
            yield replace(config, latency=8)
            yield replace(config, latency=None)
    for config in (
        AttentionDecodeConfig(tile_n=tiles[0], occupancy=4, **common),
        AttentionDecodeConfig(tile_n=tiles[1], occupancy=3, **common),
    ):
        # What are they worth?
        yield replace(config, small_tma=False)
        yield replace(config, part_cost=100.0)
        yield replace(config, dependent_merge=False)
        yield replace(config, keys_first=False)
        yield replace(config, num_worker_warps=8)


def peers(args: dict[str, Any], params: Mapping[str, Any]) -> dict[str, Callable[[], object]]:
    """Return what else computes the same, and a copy that moves as many bytes."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    b, h, h_kv, d = (params[name] for name in ("b", "h", "h_kv", "d"))
    k, v = args["k"], args["v"]
    q = args["q"].reshape(b, h, 1, d)
    # The queries of a group as rows, which plain attention takes: what one does who knows.
    rows = q.reshape(b, h_kv, h // h_kv, d)

    def torch_with(backend: SDPBackend | None, queries: Any) -> Callable[[], object]:
        gqa = queries is q and h != h_kv

        def run() -> object:
            if backend is None:
                return scaled_dot_product_attention(queries, k, v, enable_gqa=gqa)
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(queries, k, v, enable_gqa=gqa)

        return run

    peer_launches = {
        "torch": torch_with(None, q),
        "cudnn": torch_with(SDPBackend.CUDNN_ATTENTION, q),
        "flash": torch_with(SDPBackend.FLASH_ATTENTION, q),
        "torch-rows": torch_with(None, rows),
        "flash-rows": torch_with(SDPBackend.FLASH_ATTENTION, rows),
        **copies_of(MODULE.work(**params)),
    }
    try:
        import tilegym
    except ImportError:
        return peer_launches
    scale = d**-0.5
    peer_launches["tilegym"] = lambda: tilegym.ops.fmha_decode(q, k, v, sm_scale=scale, backend="cutile")
    return peer_launches
