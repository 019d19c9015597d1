"""Routing: logits of one token to a large prefill step, beside PyTorch's top-k of a softmax.

`align` is not timed here but in the suite of `moe`, which cannot do without it: PyTorch has nothing that
makes the same table. TileGym 1.5.1 has no router.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from kernels import moe_routing as MODULE  # noqa: N812 - the name that every suite has
from kernels.moe_routing import RoutingConfig
from tools.suite._peers import COPIES, compiled, copies_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pytest_cutile import Case

CASES: tuple[Case, ...] = (
    *(case for case in MODULE.SPEC.cases if case.speed),
    *(MODULE._case("float32", tokens, 64, 6, speed=True) for tokens in (1, 64, 4096)),  # noqa: SLF001
    *(MODULE._case("bfloat16", tokens, 128, 8, renormalize=True, speed=True) for tokens in (64, 4096)),  # noqa: SLF001
)
PEERS = ("torch", "compile", *COPIES)


def configs(arch: str, **params: Any) -> Iterator[RoutingConfig]:
    """Yield one to 32 tokens of 64 experts a block, held by 4 or 8 warps."""
    del arch, params
    yield RoutingConfig()
    for elements, warps in product((64, 256, 512, 1024, 2048), (None, 4, 8)):
        yield RoutingConfig(route_elements=elements, num_worker_warps=warps)


def eager(logits: torch.Tensor, top_k: int, *, renormalize: bool) -> torch.Tensor:
    """Choose experts as PyTorch code does; which of equal logits are chosen, `torch.topk` leaves open."""
    weights, _ = logits.softmax(dim=1, dtype=torch.float32).topk(top_k, dim=1)
    return weights / weights.sum(1, keepdim=True) if renormalize else weights


def peers(args: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Callable[[], object]]:
    """Return what does the same, and a copy of the same bytes."""
    fused = compiled(eager)
    return {
        "torch": lambda: eager(**args),
        "compile": lambda: fused(**args),
        **copies_of(MODULE.work(**params)),
    }
