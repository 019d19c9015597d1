"""What other libraries offer for attention, from `tools/suite/fmha.py`, as contenders of a study."""

from __future__ import annotations

from typing import TYPE_CHECKING

from studies.running.study import Contender
from tools.suite import fmha
from tools.suite._peers import has_tilegym

if TYPE_CHECKING:
    import torch

TITLES = {"torch": "PyTorch SDPA", "tilegym": "TileGym"}


def causal_attention(peer: str) -> Contender:
    """Return a peer of `tools.suite.fmha` for causal self-attention of `[B, H, N, D]`."""

    def launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> object:
        _, h, n, d = q.shape
        params = {"dtype": str(q.dtype).removeprefix("torch."), "h": h, "h_kv": h, "m": n, "n": n, "d": d}
        return fmha.peers({"q": q, "k": k, "v": v, "causal": True}, params)[peer]()

    is_missing = peer == "tilegym" and not has_tilegym()
    return Contender(
        name=TITLES[peer], launch=launch, is_peer=True, missing="it is not installed" if is_missing else ""
    )
