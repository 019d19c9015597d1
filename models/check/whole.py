"""The whole model against implementations that are right.

Logits of 16 bits are off however they are computed. So transformers computes them in several ways that are
all right, and the check asks how much further those of kernels are from the model in float32. All get the
same tokens in every step (teacher forcing): with random weights, free text differs after the first close
decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from models.check.layers import LayerCheck, check_layers, first_wrong, record
from models.check.steps import Logits, run_steps
from models.contenders import Active, pytorch

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

FACTOR = 2.5
"""Allowed divergence over the largest of the honest implementations.

Of tiny-qwen2 and tiny-deepseek-v2 with 30 seeds each, an honest implementation diverges by at most 1.4 times
the largest of the others over 32 positions of a prefill, and 2.3 times over 4 decoded ones. Scores scaled by
1.1 in one of two layers make at least 3.7 times the largest in the prefill, and 3.6 times in decoding (20
seeds each; on a CPU, 2026-11-26)."""
QUANTILE = 2 / 3
"""Position whose divergence counts, in the order of divergences. Where two experts are nearly as good,
rounding chooses the other one: a few positions then differ by far more."""
WORST_FACTOR = 300
"""Allowed divergence of the worst position, over that of honest implementations at the `QUANTILE`.

Of an honest implementation it is at most 3 times as much without experts, and 150 times where rounding
chooses another expert. Attention that is zero at one position, in the last layer, makes 670 times as much, or
more (tiny-qwen2, tiny-deepseek-v2, 12 and 20 seeds; on a CPU, 2026-11-26)."""
TOP1_SIGMAS = 4.0
"""Standard deviations of its count by which differing tokens may exceed those of honest implementations."""
SHORT = 64
"""Tokens over which the parts of a wrong model are compared."""
EXPERTS = "eager"
"""transformers' plain loop over experts: its others depend on the kind of the device."""


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """How far logits are from those of the model in float32."""

    kl: float
    """Kullback-Leibler divergence in nats, the `QUANTILE` of all positions."""
    worst_kl: float
    top1: float
    """Share of positions with the same likeliest token."""
    positions: int


def compare_logits(exact: Tensor, logits: Tensor) -> Divergence:
    """Return how far logits `[..., vocabulary]` are from the exact ones."""
    log_p, log_q = (x.double().log_softmax(-1).flatten(0, -2) for x in (exact, logits))
    kl = (log_p.exp() * (log_p - log_q)).sum(-1).sort().values  # NaN is last
    same = log_p.argmax(-1) == log_q.argmax(-1)
    return Divergence(
        kl=float(kl[int(QUANTILE * (len(kl) - 1))]),
        worst_kl=float(kl[-1]),
        top1=float(same.double().mean()),
        positions=len(kl),
    )


@dataclass(frozen=True, kw_only=True)
class PhaseCheck:
    """How far kernels and honest implementations are from the model in float32, in one phase."""

    phase: str
    """ "prefill" or "decode"."""
    honest: dict[str, Divergence]
    kernels: Divergence

    @property
    def allowed_kl(self) -> float:
        return FACTOR * max(divergence.kl for divergence in self.honest.values())

    @property
    def allowed_worst_kl(self) -> float:
        return WORST_FACTOR * max(divergence.kl for divergence in self.honest.values())

    @property
    def least_top1(self) -> float:
        share, count = min(divergence.top1 for divergence in self.honest.values()), self.kernels.positions
        spread = (max(share * (1 - share), 1 / count) / count) ** 0.5
        return max(0.0, share - TOP1_SIGMAS * spread)

    @property
    def is_right(self) -> bool:
        kernels = self.kernels  # NaN is within no bound
        within = kernels.kl <= self.allowed_kl and kernels.worst_kl <= self.allowed_worst_kl
        return within and kernels.top1 >= self.least_top1

    def __str__(self) -> str:
        kernels = self.kernels
        return (
            f"{self.phase}: KL divergence {kernels.kl:.3g} nats of {self.allowed_kl:.3g} allowed, "
            f"{kernels.worst_kl:.3g} of {self.allowed_worst_kl:.3g} at the worst position, "
            f"top-1 agreement {kernels.top1:.0%} of at least {self.least_top1:.0%}"
        )


def check_whole(exact: Logits, honest: Mapping[str, Logits], kernels: Logits) -> list[PhaseCheck]:
    """Compare logits of a model with kernels: those of the prefill, and those of steps.

    Args:
        exact: What `run_exactly` returns.
        honest: What `run_honestly` returns.
        kernels: What `run_steps` returns of the model with kernels.
    """

    def check(phase: str) -> PhaseCheck:
        right = getattr(exact, phase)
        return PhaseCheck(
            phase=phase,
            honest={name: compare_logits(right, getattr(logits, phase)) for name, logits in honest.items()},
            kernels=compare_logits(right, getattr(kernels, phase)),
        )

    return [check("prefill"), check("decode")]


def verify(model: PreTrainedModel, tokens: Tensor, prompt: int, *, active: Active) -> str:
    """Compare a patched model with the model in float32, by the spread of honest implementations.

    Args:
        model: As PyTorch runs it.
        tokens: `[B, prompt + steps]` int64.
        prompt: Tokens of the prompt.
        active: Patches the model, and undoes that.

    Returns:
        What was compared and allowed.

    Raises:
        AssertionError: The patched model is wrong: in the prefill, or in decoding alone.
    """
    exact, honest = run_exactly(model, tokens, prompt), run_honestly(model, tokens, prompt)
    with active(model) as patched:
        kernels = run_steps(patched, tokens, prompt)
    checks = check_whole(exact, honest, kernels)
    for check in checks:
        if not check.is_right:
            raise AssertionError(
                f"the patched model's logits differ by more than rounding from the model in float32: {check} "
                f"({', '.join(honest)}); {_where(model, tokens, prompt, active=active)}"
            )
    wrong = _check_steps(model, tokens, prompt, active=active)
    if wrong is not None:
        raise AssertionError(
            f"decoding behind {prompt} tokens: {wrong.name} is wrong in step {wrong.step}, where the first "
            f"and the last keys have large values: {(wrong.problem or '').partition(chr(10))[0]}"
        )
    return f"{'; '.join(map(str, checks))} (by {', '.join(honest)})"


def _check_steps(model: PreTrainedModel, tokens: Tensor, prompt: int, *, active: Active) -> LayerCheck | None:
    """Return which attention of the first and the last layer is wrong in two steps behind the prompt."""
    ends = {0, len(model.model.layers) - 1}
    with active(model) as patched, record(patched, ends, loud_ends=True) as calls:
        run_steps(patched, tokens[:1, : prompt + 2], prompt)
    steps = [call for call in calls if call.step and call.name.endswith("self_attn")]
    with pytorch(model, experts=EXPERTS):
        return first_wrong(check_layers(model, steps))


def _where(model: PreTrainedModel, tokens: Tensor, prompt: int, *, active: Active) -> str:
    """Return which part of a patched model is the first that differs from float64."""
    short = tokens[:, -(min(tokens.shape[1], SHORT)) :]
    with active(model) as patched, record(patched) as calls:
        run_steps(patched, short, short.shape[1] - (tokens.shape[1] - prompt))
    with pytorch(model, experts=EXPERTS):
        wrong = first_wrong(check_layers(model, calls))
    if wrong is None:
        return f"no layer differs from float64 over {short.shape[1]} tokens"
    phase = "the prefill" if wrong.step == 0 else f"decode step {wrong.step}"
    return f"the first wrong part is {wrong.name}, in {phase}: {(wrong.problem or '').partition(chr(10))[0]}"


# -- what is right ----------------------------------------------------------------------------------


def run_exactly(model: PreTrainedModel, tokens: Tensor, prompt: int) -> Logits:
    """Return what `run_steps` returns, of `model`, which must be without kernels, in float32."""
    with pytorch(model, attention="eager", experts=EXPERTS), in_float32(model):
        return run_steps(model, tokens, prompt)


def run_honestly(model: PreTrainedModel, tokens: Tensor, prompt: int) -> dict[str, Logits]:
    """Return what `run_steps` returns, of transformers alone, computed in ways that are all right.

    Args:
        model: Without kernels.
        tokens: `[B, prompt + steps]`.
        prompt: Tokens of the prompt.
    """
    runs = {}
    for name in ("sdpa", "eager"):
        with pytorch(model, attention=name, experts=EXPERTS):
            runs[name] = run_steps(model, tokens, prompt)
    with pytorch(model, experts=EXPERTS):
        with reordered(model):
            runs["sums in another order"] = run_steps(model, tokens, prompt)
        with torch.no_grad():
            kept = runs["sdpa"].prefill.shape[1], tokens.shape[1] - prompt
            together = model(tokens, use_cache=False, logits_to_keep=sum(kept)).logits.float()
        prefill, decode = together.split(kept, 1)
        runs["no cache"] = Logits(prefill=prefill, decode=decode)
    return runs


@contextmanager
def in_float32(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """Run a model in float32: each module's parameters are upcast while it runs, without a second model."""
    owners = [module for module in model.modules() if module._parameters]  # noqa: SLF001 - for the swap
    hooks = [owner.register_forward_pre_hook(_upcast) for owner in owners]
    hooks += [owner.register_forward_hook(_restore) for owner in owners]
    try:
        yield model
    finally:
        for hook in hooks:
            hook.remove()
        for owner in owners:
            _restore(owner)


def _upcast(module: nn.Module, _: Any) -> None:
    kept: Mapping[str, Any] = dict(module._parameters)  # noqa: SLF001
    module.__dict__["_kept_parameters"] = kept
    for name, parameter in kept.items():
        if parameter is not None:
            module._parameters[name] = type(parameter)(parameter.data.float(), requires_grad=False)  # noqa: SLF001


def _restore(module: nn.Module, *_: Any) -> None:
    module._parameters.update(module.__dict__.pop("_kept_parameters", {}))  # noqa: SLF001


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
