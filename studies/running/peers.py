"""What other libraries offer for attention, as contenders of a study: PyTorch's back ends, and TileGym."""

from __future__ import annotations

import importlib.util
import math
from typing import TYPE_CHECKING, Any

from studies.running.attention import case, declare
from studies.running.study import Contender
from tools.suite._peers import has_tilegym

if TYPE_CHECKING:
    import torch

BACKENDS = {
    "FLASH_ATTENTION": "SDPA flash",
    "CUDNN_ATTENTION": "SDPA cuDNN",
    "EFFICIENT_ATTENTION": "SDPA efficient",
    "MATH": "SDPA math",
}
"""PyTorch's back ends of `scaled_dot_product_attention`, by their names in `SDPBackend`."""


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


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attend causally by the back end that PyTorch chooses."""
    return torch_attention(q, k, v, causal=True)


def tilegym_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> object:
    """Attend causally by TileGym's kernel, which its first call for a length tunes."""
    import tilegym

    return tilegym.ops.fmha(q, k, v, scaling=q.shape[-1] ** -0.5, is_causal=True, backend="cutile")


def import_tilegym() -> None:
    """Import TileGym, where it is installed: that takes seconds, and has to be done before any trace."""
    has_tilegym()


def missing(library: str) -> str:
    """Return why a library cannot be timed; empty if it is installed."""
    return "" if importlib.util.find_spec(library) else "it is not installed"


SDPA = Contender(name="SDPA auto", launch=torch_attention, is_peer=True)
UNFUSED = Contender(
    name="unfused",
    launch=unfused_attention,
    is_peer=True,
    spec=declare("unfused", unfused_attention, [case(130, h=2), case(130, h=2, causal=True)], mid="float16"),
)
"""For float16: scores are rounded to it in memory."""
CAUSAL_SDPA = Contender(name="PyTorch SDPA", launch=causal_attention, is_peer=True)
TILEGYM = Contender(
    name="TileGym",
    launch=tilegym_attention,
    is_peer=True,
    missing=missing("tilegym"),
)
