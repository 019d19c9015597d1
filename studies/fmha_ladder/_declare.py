"""What all steps of the ladder share: inputs, reference, work and cases. A step adds kernel and launcher.

Causal self-attention of `[B, H, N, 128]` in float16, as in the published ladder; N is anything.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kernels import fmha
from kernels._attention import AttentionConfig
from kernels._cases import UNDEFINED
from kernels._launch import find_arch
from pytest_cutile import Case, KernelSpec, Work

if TYPE_CHECKING:
    import torch

B, H, D = 4, 32, 128
"""Batches, heads and dimensions of a head that are timed: those of the published figures."""


def sequence(n: int) -> Case:
    """Return the case that is timed, for sequences of `n`."""
    return Case(name=f"fp16-causal-{B}x{H}x{n}x{D}", params={"b": B, "h": H, "n": n}, speed=True)


CASES = [
    sequence(2048),
    # Interpreted without a GPU: several tiles of queries, the last one not full.
    Case(name="fp16-causal-1x2x150x128", params={"b": 1, "h": 2, "n": 150}, speed=False),
]


def inputs(make_tensor: Callable[..., torch.Tensor], *, b: int, h: int, n: int) -> dict[str, Any]:
    return {name: make_tensor((b, h, n, D), "float16") for name in ("q", "k", "v")}


def work(*, b: int, h: int, n: int) -> Work:
    return fmha.work(b=b, h=h, h_kv=h, m=n, n=n, d=D, dtype="float16", causal=True)


def choose_config(q: torch.Tensor) -> AttentionConfig:
    """Return the configuration that `kernels/fmha.py` has for this GPU."""
    arch = find_arch("fmha", q, fmha.CONFIGS, fmha.MASK_CONFIGS)
    return fmha.choose_config(arch, head_dim=D, causal=True, itemsize=2, keys=q.shape[2])


def tiles_of(config: AttentionConfig) -> tuple[int, ...]:
    """Return `TILE_M`, `TILE_N`, `LATENCY_K` and `LATENCY_V`; 0 leaves a latency to the compiler."""
    return config.tile_m, config.tile_n, config.latency_k or 0, config.latency_v or 0


def declare(name: str, launch: Callable[..., Any]) -> KernelSpec:
    """Return the declaration of a step: the reference is the one of `kernels/fmha.py`."""
    return KernelSpec(
        name=name,
        launch=launch,
        reference=partial(fmha.reference, causal=True),
        inputs=inputs,
        work=work,
        reduction=lambda b, h, n: max(D, n),  # noqa: ARG005 - the length of the longer sum
        undefined_inputs=UNDEFINED,
        independent=dict.fromkeys(("q", "k", "v", "output"), ("batch", "heads")),
        cases=CASES,
    )
