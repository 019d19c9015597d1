"""Mixture of experts: DeepSeek-V2-Lite's shapes, from one token to a prefill step.

TileGym 1.5.1 has no benchmark script for it; its test (tests/ops/test_moe.py) calls the same `fused_moe`.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from kernels import moe
from kernels._gemm import GemmConfig
from kernels.moe import MoeConfig
from pytest_cutile import Case
from tools.suite._peers import COPIES, copies_of
from tools.suite._search_space import search_space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

MODULE = moe

DENSE_TOKENS = 256
"""Up to which a PyTorch user may send every token to every expert: ten times the work, but one product."""

GROUPED_MM_ROWS = 8
"""Rows, all groups together, that have to be a multiple of this for torch.compile to tune `_grouped_mm`."""


def _deepseek(dtype: str, tokens: int) -> Case:
    params = {"tokens": tokens, "hidden": 2048, "inner": 1408, "experts": 64, "top_k": 6, "dtype": dtype}
    return Case(name=f"{'bf16' if dtype == 'bfloat16' else 'fp16'}-{tokens}x2048x1408-64top6", params=params)


CASES: tuple[Case, ...] = (
    *(case for case in moe.SPEC.cases if case.speed),
    *(_deepseek("bfloat16", tokens) for tokens in (1, 4, 16, 32, 64, 128, 256, 1024, 4096)),
    *(_deepseek("float16", tokens) for tokens in (1, 16, 256, 2048)),
)
PEERS = ("torch", "compile", "torch-dense", *COPIES, "tilegym")


def configs(arch: str, *, tokens: int, experts: int, top_k: int, **_: Any) -> Iterator[MoeConfig]:
    """Yield the configurations worth trying for a case."""
    rows = tokens * top_k / experts
    yield moe.choose_config(arch, rows_per_expert=rows)
    if search_space(arch) != "sm_90":
        for tile_m, tile_n, tile_k in product((16, 64, 128), (64, 128), (32, 64)):
            config = GemmConfig(tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, occupancy=2)
            yield MoeConfig(gate_up=config, down=config)
        return
    if rows <= 64:
        yield from _for_few_rows(tokens * top_k)
    if rows >= 16:
        yield from _for_many_rows()


def _for_few_rows(pairs: int) -> Iterator[MoeConfig]:
    """Small tiles for weights that are read once: what counts is how many bytes are on their way."""
    for tile_m, tile_n, tile_k, occupancy in (
        (16, 16, 128, 4), (16, 16, 256, 4), (16, 32, 64, 4), (16, 32, 128, 2), (16, 32, 128, 4),
        (16, 32, 256, 2), (16, 64, 64, 4), (16, 64, 128, 2), (16, 64, 128, 3), (16, 128, 64, 2),
        (32, 32, 128, 4), (32, 64, 64, 4), (32, 64, 128, 2), (64, 32, 128, 2), (64, 64, 64, 2),
        (64, 64, 128, 2),
    ):  # fmt: skip
        make = partial(GemmConfig, tile_m=tile_m, tile_k=tile_k, occupancy=occupancy)
        yield MoeConfig(gate_up=make(tile_n=tile_n), down=make(tile_n=2 * tile_n))
        # Fewer tiles than multiprocessors: narrower ones, but products of 16 columns get no tensor cores.
        if pairs < 64 and tile_n > 16:
            yield MoeConfig(gate_up=make(tile_n=tile_n), down=make(tile_n=tile_n))
    for latency, blocks_per_sm in ((2, None), (6, None), (None, 4)):
        make = partial(
            GemmConfig, tile_m=16, tile_k=128, occupancy=4, latency=latency, blocks_per_sm=blocks_per_sm
        )
        yield MoeConfig(gate_up=make(tile_n=32), down=make(tile_n=64))
    make = partial(GemmConfig, tile_m=16, tile_k=128, occupancy=2, num_worker_warps=8)
    yield MoeConfig(gate_up=make(tile_n=64), down=make(tile_n=128))


def _for_many_rows() -> Iterator[MoeConfig]:
    """Large tiles; each product's best is looked for beside a fixed other one."""
    for tile_m in (64, 128):
        square = partial(GemmConfig, tile_m=tile_m, tile_n=128, tile_k=64, occupancy=2, latency=4)
        large = partial(GemmConfig, tile_m=tile_m, tile_n=128, tile_k=64, occupancy=1, num_worker_warps=8)
        downs = (
            square(),
            square(group_m=16),
            square(latency=None),
            square(tile_n=64),
            large(tile_n=256),
            large(tile_n=256, blocks_per_sm=1),
            large(tile_n=128, tile_k=128),
        )
        gate_ups = (
            large(),
            large(group_m=16),
            large(group_m=4),
            large(latency=2),
            large(latency=5),
            large(blocks_per_sm=1),
            large(tile_n=64),
            square(tile_n=64),
            square(tile_n=64, latency=2),
            square(tile_n=64, tile_k=32),
        )
        for down in downs:
            yield MoeConfig(gate_up=gate_ups[0], down=down)
        for gate_up in gate_ups[1:]:
            yield MoeConfig(gate_up=gate_up, down=downs[0])


def grouped_mm_experts(
    x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """Do it with `torch._grouped_mm`, which takes rows sorted by expert, and needs no word from the host."""
    import torch

    top_k, inner = ids.shape[1], w2.shape[2]
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    experts = torch.arange(len(w1), device=ids.device, dtype=ids.dtype)
    ends = (flat[:, None] == experts).sum(0).cumsum(0).to(torch.int32)
    gate_up = torch._grouped_mm(x[order // top_k], w1.transpose(1, 2), offs=ends)  # noqa: SLF001
    hidden = torch.nn.functional.silu(gate_up[:, :inner]) * gate_up[:, inner:]
    y = torch._grouped_mm(hidden, w2.transpose(1, 2), offs=ends)  # noqa: SLF001
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    return (y[back].view(*ids.shape, -1) * weights[..., None]).sum(1).to(x.dtype)


def dense_experts(
    x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """Send every token through every expert, and give those that were not chosen no weight."""
    import torch

    gate, up = torch.matmul(x, w1.transpose(1, 2)).chunk(2, dim=2)  # [E, T, I]
    y = torch.bmm(torch.nn.functional.silu(gate) * up, w2.transpose(1, 2))  # [E, T, H]
    share = torch.zeros(len(x), len(w1), dtype=x.dtype, device=x.device)
    share.scatter_(1, ids.long(), weights.to(x.dtype))
    return torch.einsum("be,ebh->bh", share, y)


def peers(args: Sequence[Any], params: Mapping[str, Any]) -> dict[str, Callable[[], object] | str]:
    """Return what else computes the same, and copies that move as many bytes."""
    import torch

    peer_launches: dict[str, Callable[[], object] | str] = {**copies_of(MODULE.work(**params))}
    if params["dtype"] != "bfloat16":
        peer_launches |= dict.fromkeys(
            ("torch", "compile"), "torch._grouped_mm multiplies bfloat16 alone in one launch"
        )
    else:
        # To tune `_grouped_mm`, torch.compile makes up ends of groups, all but the last rounded to 8 rows. Of
        # 6 rows, the last but one is beyond the last, which an assertion on the GPU refuses (torch 2.11).
        tuned = params["tokens"] * params["top_k"] % GROUPED_MM_ROWS == 0
        mode = "max-autotune-no-cudagraphs" if tuned else "default"
        compiled = torch.compile(grouped_mm_experts, mode=mode)
        peer_launches["torch"] = lambda: grouped_mm_experts(*args)
        peer_launches["compile"] = lambda: compiled(*args)
    if params["tokens"] <= DENSE_TOKENS:
        peer_launches["torch-dense"] = lambda: dense_experts(*args)
    else:
        peer_launches["torch-dense"] = "every token at every expert is ten times the work"

    try:
        import tilegym
    except ImportError:
        return peer_launches

    def call_tilegym() -> object:
        tilegym.set_backend("cutile")
        return tilegym.ops.fused_moe(*args)

    peer_launches["tilegym"] = call_tilegym
    return peer_launches
