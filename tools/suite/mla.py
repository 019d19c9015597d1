"""What is timed of latent attention, prefill, beside what, and which configurations may be fast."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from kernels import mla as MODULE  # noqa: N812 - the name that every suite has
from kernels._attention import AttentionConfig
from kernels._dtypes import ITEMSIZE
from pytest_cutile import Case
from tools.suite._search_space import search_space
from tools.suite.fmha import hopper_configs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# What TileGym's bench_mla.py runs, but normal with deviation 1 where its operands have 0.3.
TILEGYM = tuple(
    MODULE._case("bfloat16", 4, 16, length, causal=True, speed=True)  # noqa: SLF001 - it names cases
    for length in (1024, 2048, 4096, 8192)
)
CASES: tuple[Case, ...] = tuple(
    {case.name: case for case in (*MODULE.SPEC.cases, *TILEGYM) if case.speed}.values()
)
PEERS = ("torch", "cudnn", "tilegym")


def configs(arch: str, *, dtype: str, causal: bool, **params: Any) -> Iterator[AttentionConfig]:
    """Yield the configurations worth trying for a case on `arch`."""
    del params
    if search_space(arch) == "sm_90":
        yield from hopper_configs(MODULE.HEAD_DIM, itemsize=ITEMSIZE[dtype], causal=causal)
        return
    large = search_space(arch) == "sm_100"
    tiles = [(64, 32), (64, 64), (128, 64), (64, 128), (128, 128)] + [(256, 64), (256, 128)] * large
    for (tile_m, tile_n), overlap, occupancy in product(tiles, (False, True), (1, 2)):
        yield AttentionConfig(
            tile_m=tile_m, tile_n=tile_n, overlap=overlap, occupancy=occupancy, latency_k=2, latency_v=4
        )


def peers(args: dict[str, Any], params: Mapping[str, Any]) -> dict[str, Callable[[], object]]:
    """Return what else computes the same; PyTorch gets its operands concatenated, outside what is timed."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, q_pe, k, k_pe, v = (args[name] for name in ("q", "q_pe", "k", "k_pe", "v"))
    causal = args["causal"]
    peer_launches: dict[str, Callable[[], object]] = {}
    if ITEMSIZE[params["dtype"]] > 1:
        whole_q = torch.cat((q, q_pe), -1)
        whole_k = torch.cat((k, k_pe.expand(-1, params["h"], -1, -1)), -1)

        def attend() -> object:
            return torch.nn.functional.scaled_dot_product_attention(whole_q, whole_k, v, is_causal=causal)

        def by_cudnn() -> object:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return attend()

        peer_launches |= {"torch": attend, "cudnn": by_cudnn}
    try:
        import tilegym
    except ImportError:
        return peer_launches
    # TileGym's has a causal mask always, and no other dtype of the result.
    if causal and args.get("out_dtype") is None and params["n"] == params["m"]:
        scale = (MODULE.HEAD_DIM + MODULE.ROPE_DIM) ** -0.5
        peer_launches["tilegym"] = lambda: tilegym.ops.mla(q, k, v, q_pe, k_pe, True, scale, backend="cutile")
    return peer_launches
