"""Step 13, the kernel in use: `kernels/fmha.py`, launched as on the steps before.

Step 10 for every dtype, mask, head dimension, layout and length, with grouped queries. Generality is
decided when a launch is compiled, so it should cost nothing; overlap and persistent blocks (steps 11 and
12) are in it, and on for the cases of its tables in which they were measured to pay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels import fmha
from studies.fmha_ladder._declare import declare

if TYPE_CHECKING:
    import torch


def launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return the causal attention of `[B, H, N, D]`."""
    return fmha.fmha(q, k, v, causal=True)


SPEC = declare("fmha_13_general", launch)
