"""The whole model against implementations that are right.

Logits of 16 bits are off however they are computed. So transformers computes them in several ways that are
all right, and `check_whole` asks whether those of kernels are further from float32's. All get the same tokens
in every step: of its own tokens, a model with random weights would write another text after the first
difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from models.check.steps import run_steps

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

KL_FACTOR = 2.0
"""By how much the divergence of kernels may exceed the largest among honest implementations.

The Kullback-Leibler divergence grows with the square of differences of logits: the factor lets an error be
1.4 times as large. `tests/models/test_planted.py` shows where planted faults lie: far above.
"""
AGREEMENT_SIGMAS = 4.0
"""By how many standard deviations of its count tokens that differ may exceed what honest ones have."""


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """How far logits are from exact ones of the same tokens."""

    kl: float
    """Mean Kullback-Leibler divergence from the exact distribution of the next token, in nats."""
    worst_kl: float
    agreement: float
    """Share of positions where the most likely token is the same."""
    positions: int


def compare_logits(exact: Tensor, logits: Tensor) -> Divergence:
    """Compare logits `[..., vocabulary]`."""
    log_p, log_q = (torch.log_softmax(x.double(), -1).flatten(0, -2) for x in (exact, logits))
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    same = log_p.argmax(-1) == log_q.argmax(-1)
    return Divergence(
        kl=kl.mean().item(),
        worst_kl=kl.max().item(),
        agreement=same.double().mean().item(),
        positions=len(kl),
    )


@dataclass(frozen=True, kw_only=True)
class WholeCheck:
    """How far kernels and honest implementations are from the model in float32."""

    honest: dict[str, Divergence]
    kernels: Divergence

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, each in a line; empty if nothing is."""
        return tuple(self._find_problems())

    def _find_problems(self) -> Iterator[str]:
        largest = max(divergence.kl for divergence in self.honest.values())
        if not self.kernels.kl <= KL_FACTOR * largest:  # NaN is wrong, too
            yield (
                f"KL divergence from float32 is {self.kernels.kl:.3g}; allowed are "
                f"{KL_FACTOR * largest:.3g}, {KL_FACTOR:g} times the largest of honest implementations"
            )
        positions = self.kernels.positions
        honest = min(divergence.agreement for divergence in self.honest.values())
        spread = (max(honest * (1 - honest), 1 / positions) / positions) ** 0.5
        least = honest - AGREEMENT_SIGMAS * spread
        if not self.kernels.agreement >= least:
            yield (
                f"the most likely token is that of float32 in {self.kernels.agreement:.1%} of {positions} "
                f"positions; allowed are {least:.1%}, honest implementations have {honest:.1%}"
            )


def check_whole(exact: Tensor, honest: dict[str, Tensor], kernels: Tensor) -> WholeCheck:
    """Compare logits of a model with kernels.

    Args:
        exact: What `run_exactly` returns.
        honest: What `run_honestly` returns.
        kernels: What `run_steps` returns of the model with kernels.
    """
    return WholeCheck(
        honest={name: compare_logits(exact, logits) for name, logits in honest.items()},
        kernels=compare_logits(exact, kernels),
    )


def run_exactly(model: PreTrainedModel, tokens: Tensor, prompt: int) -> Tensor:
    """Return what `run_steps` returns, of `model` in float32.

    Args:
        model: Without kernels. Its weights become float32: pass a copy, or use the model no more.
        tokens: `[B, prompt + steps]`.
        prompt: Tokens of the prompt.
    """
    return run_steps(model.float(), tokens, prompt)


def run_honestly(model: PreTrainedModel, tokens: Tensor, prompt: int) -> dict[str, Tensor]:
    """Return what `run_steps` returns, of transformers alone, computed in ways that are all right.

    Args:
        model: Without kernels.
        tokens: `[B, prompt + steps]`.
        prompt: Tokens of the prompt.
    """
    runs = {}
    own = model.config._attn_implementation  # noqa: SLF001 - nothing public reads it
    try:
        for name in ("sdpa", "eager"):
            model.set_attn_implementation(name)
            runs[name] = run_steps(model, tokens, prompt)
        model.set_attn_implementation("sdpa")
        with reordered(model):
            runs["other order of sums"] = run_steps(model, tokens, prompt)
        with torch.no_grad():
            steps = tokens.shape[1] - prompt
            runs["no cache"] = model(tokens, use_cache=False, logits_to_keep=steps + 1).logits.float()
    finally:
        model.set_attn_implementation(own)
    return runs


@contextmanager
def reordered(model: PreTrainedModel, seed: int = 0) -> Iterator[None]:
    """Permute the inner columns of all feed-forward layers: the same model, which adds in another order."""
    permuted: list[tuple[Tensor, Tensor, Tensor]] = []
    module: Any
    for module in model.modules():
        if all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj")):
            permuted.append((module.gate_proj.weight, module.up_proj.weight, module.down_proj.weight))
        elif hasattr(module, "gate_up_proj") and hasattr(module, "down_proj"):
            gate, up = module.gate_up_proj.chunk(2, 1)
            permuted += [(gate[i], up[i], module.down_proj[i]) for i in range(len(gate))]
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(weights[0].shape[0], generator=generator) for weights in permuted]

    @torch.no_grad()
    def permute(orders: Sequence[Tensor]) -> None:
        for (gate, up, down), order in zip(permuted, orders, strict=True):
            index = order.to(gate.device)
            gate.copy_(gate[index])
            up.copy_(up[index])
            down.copy_(down[:, index])

    permute(orders)
    try:
        yield
    finally:
        permute([order.argsort() for order in orders])
