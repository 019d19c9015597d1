"""Try the operator on a GPU under torch.compile: `python -m studies.attention_study.try_compile`."""

from __future__ import annotations

import sys

import torch

from kernels import fmha
from studies.attention_study.operator import sdpa


def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return sdpa(q * 2, k, v, causal=True).relu()


def main() -> int:
    """Compare a compiled function around the operator with the reference; return 1 if it is off.

    Raises:
        SystemExit: There is no GPU.
    """
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU to try the operator on")
    q, k, v = (torch.randn(2, 8, 333, 96, dtype=torch.float16, device="cuda") for _ in range(3))
    expected = fmha.reference(q.double() * 2, k.double(), v.double(), causal=True).relu()
    worst = 0.0
    for name, function in {"eager": layer, "compiled": torch.compile(layer, fullgraph=True)}.items():
        error = float((function(q, k, v).double() - expected).abs().max())
        print(f"{name}: largest difference {error:.2e}", flush=True)
        worst = max(worst, error)
    return int(worst > 4e-3)


if __name__ == "__main__":
    sys.exit(main())
