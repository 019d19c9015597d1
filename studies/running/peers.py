"""What other libraries offer for attention, as contenders of a study: PyTorch's back ends, and TileGym."""

from __future__ import annotations

import importlib.util
import math
from typing import TYPE_CHECKING, Any

from studies.running.study import Contender
from tools.suite import fmha
from tools.suite._peers import has_tilegym

if TYPE_CHECKING:
    import torch

TITLES = {"torch": "PyTorch SDPA", "tilegym": "TileGym"}
BACKENDS = {
    "FLASH_ATTENTION": "SDPA flash",
    "CUDNN_ATTENTION": "SDPA cuDNN",
    "EFFICIENT_ATTENTION": "SDPA efficient",
    "MATH": "SDPA math",
}
"""PyTorch's back ends of `scaled_dot_product_attention`, by their names in `SDPBackend`."""


def causal_attention(peer: str) -> Contender:
    """Return a peer of `tools.suite.fmha` for causal self-attention of `[B, H, N, D]`."""

    def launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> object:
        if peer == "tilegym":
            has_tilegym()  # imports it, which takes seconds, and undoes what the import replaces
        _, h, n, d = q.shape
        params = {"dtype": str(q.dtype).removeprefix("torch."), "h": h, "h_kv": h, "m": n, "n": n, "d": d}
        return fmha.peers({"q": q, "k": k, "v": v, "causal": True}, params)[peer]()

    is_missing = peer == "tilegym" and importlib.util.find_spec("tilegym") is None
    return Contender(
        name=TITLES[peer], launch=launch, is_peer=True, missing="it is not installed" if is_missing else ""
    )


def backend_attention(backend: str) -> Contender:
    """Return PyTorch's attention by one back end of `BACKENDS`; its launch raises where that does not run."""

    def launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, **_: Any) -> torch.Tensor:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        with sdpa_kernel(getattr(SDPBackend, backend)):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    return Contender(name=BACKENDS[backend], launch=launch, is_peer=True)


def torch_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, **_: Any
) -> torch.Tensor:
    """Attend by the back end that PyTorch chooses."""
    from torch.nn.functional import scaled_dot_product_attention

    return scaled_dot_product_attention(q, k, v, is_causal=causal)


def unfused_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, **_: Any
) -> torch.Tensor:
    """Attend operation by operation: all scores are in memory, the softmax is computed in float32."""
    import torch

    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    return torch.softmax(scores, -1, dtype=torch.float32).to(v.dtype) @ v


SDPA = Contender(name="SDPA auto", launch=torch_attention, is_peer=True)
UNFUSED = Contender(name="unfused", launch=unfused_attention, is_peer=True)
