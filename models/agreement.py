"""Does a patched model compute what the model computes? Measured by what honest rounding does to its logits.

Right is the model in float32. PyTorch's own ways to run it in its dtype (SDPA, eager attention) are honest,
and differ from it by rounding; so may the patched model, by at most `FACTOR` times as much. Tokens are given
(teacher forcing): with random weights, free text differs after the first close decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from models.contenders import Active, pytorch
from models.generate import copy_cache

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

FACTOR = 2.5
"""Allowed divergence over the largest of the honest implementations.

Of tiny-qwen2 and tiny-deepseek-v2 with 30 seeds each, SDPA and eager attention diverge by at most 1.3 times
one another over 32 positions of a prefill, and 2.3 times over 4 decoded ones. Scores scaled by 1.1 in one of
two layers make at least 4.0 times the larger of both in the prefill (20 seeds each; on a CPU, 2026-11-25)."""
QUANTILE = 2 / 3
"""Position whose divergence counts, in the order of divergences. Where two experts are nearly as good,
rounding chooses the other one: a few positions then differ by far more. A fault is at most positions."""
SHORT = 64
"""Tokens over which the parts of a wrong model are compared."""
POSITIONS = 256
"""Last tokens of a prompt whose logits are compared."""
HONEST = ("sdpa", "eager")
EXPERTS = "eager"
"""transformers' plain loop over experts: its others depend on the kind of the device."""


@dataclass(frozen=True, kw_only=True)
class Logits:
    """What a model says of given tokens."""

    prefill: torch.Tensor
    """`[B, positions, vocab]` float32, of the last tokens of the prompt."""
    decode: torch.Tensor
    """`[B, decoded, vocab]` float32, of tokens that were taken in one by one."""


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """How far logits are from the right ones."""

    kl: float
    """Kullback-Leibler divergence in nats, the `QUANTILE` of all positions."""
    top1: float
    """Share of positions with the same likeliest token."""


def forced_logits(model: PreTrainedModel, tokens: torch.Tensor, *, decoded: int) -> Logits:
    """Return the logits of given tokens `[B, P + decoded]`: the last ones are taken in one by one."""
    import torch
    from transformers import DynamicCache, StaticCache

    length = tokens.shape[1] - decoded
    with torch.no_grad():
        filled = DynamicCache(config=model.config)
        prefill = model(
            input_ids=tokens[:, :length],
            past_key_values=filled,
            use_cache=True,
            logits_to_keep=min(length, POSITIONS),
        ).logits
        cache = StaticCache(config=model.config, max_cache_len=tokens.shape[1])
        copy_cache(filled, cache)
        steps = [
            model(input_ids=tokens[:, place : place + 1], past_key_values=cache, use_cache=True).logits
            for place in range(length, tokens.shape[1])
        ]
    return Logits(prefill=prefill.float(), decode=torch.cat(steps, dim=1).float())


@contextmanager
def in_float32(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """Run a model in float32: each module's parameters are upcast while it runs, without a second model."""
    owners = [module for module in model.modules() if module._parameters]  # noqa: SLF001 - for the swap
    hooks = [owner.register_forward_pre_hook(_Upcast()) for owner in owners]
    hooks += [owner.register_forward_hook(_restore) for owner in owners]
    try:
        yield model
    finally:
        for hook in hooks:
            hook.remove()
        for owner in owners:
            _restore(owner)


class _Upcast:
    def __call__(self, module: nn.Module, _: Any) -> None:
        kept: Mapping[str, Any] = dict(module._parameters)  # noqa: SLF001
        module.__dict__["_kept_parameters"] = kept
        for name, parameter in kept.items():
            if parameter is not None:
                module._parameters[name] = type(parameter)(parameter.data.float(), requires_grad=False)  # noqa: SLF001


def _restore(module: nn.Module, *_: Any) -> None:
    module._parameters.update(module.__dict__.pop("_kept_parameters", {}))  # noqa: SLF001


def _where(model: PreTrainedModel, tokens: torch.Tensor, *, decoded: int, active: Active) -> str:
    """Return which part of a patched model is the first that differs from float64."""
    from models.check import check_layers, first_wrong, record

    short = tokens[:, -(min(tokens.shape[1], SHORT)) :]
    with active(model) as patched, record(patched) as calls:
        forced_logits(patched, short, decoded=decoded)
    with pytorch(model, experts=EXPERTS):
        wrong = first_wrong(check_layers(model, calls))
    if wrong is None:
        return f"no layer differs from float64 over {short.shape[1]} tokens"
    phase = "the prefill" if wrong.step == 0 else f"decode step {wrong.step}"
    return f"the first wrong part is {wrong.name}, in {phase}: {(wrong.problem or '').partition(chr(10))[0]}"


def divergence(right: torch.Tensor, logits: torch.Tensor) -> Divergence:
    """Return how far logits `[..., vocab]` are from the right ones."""
    expected, found = right.double().log_softmax(-1), logits.double().log_softmax(-1)
    kl = (expected.exp() * (expected - found)).sum(-1)
    same = right.argmax(-1) == logits.argmax(-1)
    ordered = kl.flatten().sort().values
    return Divergence(kl=float(ordered[int(QUANTILE * (len(ordered) - 1))]), top1=float(same.double().mean()))


def verify(model: PreTrainedModel, tokens: torch.Tensor, *, decoded: int, active: Active) -> str:
    """Compare a patched model with the model in float32, by the spread of honest implementations.

    Args:
        model: As PyTorch runs it.
        tokens: `[B, P + decoded]` int64.
        decoded: How many are taken in one by one.
        active: Patches the model, and undoes that.

    Returns:
        What was compared and allowed.

    Raises:
        AssertionError: It is wrong: in the prefill, or in decoding alone.
    """
    with pytorch(model, attention="eager", experts=EXPERTS), in_float32(model):
        right = forced_logits(model, tokens, decoded=decoded)
    honest = {}
    for name in HONEST:
        with pytorch(model, attention=name, experts=EXPERTS):
            honest[name] = forced_logits(model, tokens, decoded=decoded)
    with active(model) as patched:
        found = forced_logits(patched, tokens, decoded=decoded)
    told = []
    for phase in ("prefill", "decode"):
        own = divergence(getattr(right, phase), getattr(found, phase))
        others = [divergence(getattr(right, phase), getattr(each, phase)) for each in honest.values()]
        allowed, top1 = FACTOR * max(each.kl for each in others), min(each.top1 for each in others)
        text = (
            f"{phase}: KL divergence {own.kl:.3g} nats of {allowed:.3g} allowed, top-1 agreement "
            f"{own.top1:.0%} ({', '.join(HONEST)}: at least {top1:.0%})"
        )
        if not own.kl <= allowed:  # NaN is wrong
            raise AssertionError(
                f"the patched model's logits differ by more than rounding from the model in float32: {text}; "
                f"{_where(model, tokens, decoded=decoded, active=active)}"
            )
        told.append(text)
    return "; ".join(told)
