"""RoPE: TileGym's bench_rope.py (16 heads of 64, 4096 to 32768 tokens) and its peers.

TileGym's works in place: it is given copies that were made before, and turns them further with each call.
That moves the same bytes, unless only a part of each head turns: it leaves the rest where it is. (Its own
benchmark script times the copies, too.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kernels import rope as MODULE  # noqa: N812
from kernels.rope import RopeConfig, _case
from tools.suite._peers import COPIES, InPlace, compiled, copies_of, has_tilegym

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_cutile import Case

TILEGYM = [_case("float16", 1, 16, tokens, 64, speed=True) for tokens in (4096, 8192, 16384, 32768)]
_TIMED = [case for case in MODULE.SPEC.cases if case.speed]
CASES: tuple[Case, ...] = tuple({case.name: case for case in (*_TIMED, *TILEGYM)}.values())
PEERS = ("torch", "compile", *COPIES, "tilegym")


def configs(arch: str, **params: Any) -> Iterator[RopeConfig]:
    """Yield tiles of 8 to 64 elements a thread over 1 to 16 heads, with as many blocks as registers hold."""
    del arch
    heads = max(params["heads"], params["heads_kv"])
    for warps in (4, 8):
        for per_thread in (16, 32, 64) if warps == 4 else (16, 32):
            most = min(2048 // (warps * 32), max(1, 65536 // (warps * 32 * max(32, 2 * per_thread))))
            for tile_h in (1, 2, 4, 8):
                if tile_h > heads or tile_h > 2 * per_thread:
                    continue
                for occupancy in {most, max(1, most // 2)}:
                    yield RopeConfig(
                        tile_elements=per_thread * warps * 32,
                        tile_h=tile_h,
                        occupancy=occupancy,
                        num_worker_warps=warps,
                    )


def embed(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Do it as a PyTorch user would, for one of q and k; cos and sin are `[S, R / 2]`."""
    half = cos.shape[-1]
    turning, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        first, second = turning[..., ::2], turning[..., 1::2]
        turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
    else:
        first, second = turning.chunk(2, dim=-1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat((turned.to(x.dtype), rest), dim=-1)


def eager(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do it as a PyTorch user would."""
    return embed(q, cos, sin, interleaved), embed(k, cos, sin, interleaved)


def peers(args: dict[str, Any], params: dict[str, Any]) -> dict[str, Callable[[], object] | str]:
    """Return what does the same, and a copy of the same bytes."""
    q, k, interleaved = args["q"], args["k"], args["interleaved"]
    end = args["offset"] + q.shape[2]
    cos, sin = (args[name][args["offset"] : end] for name in ("cos", "sin"))
    fused = compiled(eager)
    peer_launches: dict[str, Callable[[], object] | str] = {
        "torch": lambda: eager(q, k, cos, sin, interleaved),
        "compile": lambda: fused(q, k, cos, sin, interleaved),
        **copies_of(MODULE.work(**params)),
    }
    if has_tilegym() and params["rotary"] < params["width"]:
        peer_launches["tilegym"] = "computes something else: in place, it does not move what does not turn"
    elif has_tilegym() and not interleaved:
        import tilegym

        # It wants each angle twice, and a batch axis.
        tables = [torch.cat((table, table), dim=-1)[None].contiguous() for table in (cos, sin)]
        peer_launches["tilegym"] = InPlace(
            lambda *mine: tilegym.ops.apply_rope_base(*mine, *tables, None, backend="cutile"), q, k
        )
    return peer_launches
