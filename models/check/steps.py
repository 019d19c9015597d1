"""A model run over given tokens, prefill and then one token a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache, StaticCache

from models.generate import copy_cache

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import Cache, PreTrainedModel

POSITIONS = 256
"""Last tokens of a prompt whose logits are kept."""


@dataclass(frozen=True, kw_only=True)
class Logits:
    """What a model says of given tokens."""

    prefill: Tensor
    """`[B, positions, vocabulary]` float32, of the last tokens of the prompt."""
    decode: Tensor
    """`[B, steps, vocabulary]` float32, of the tokens behind the prompt, one a step."""


@torch.no_grad()
def run_steps(model: PreTrainedModel, tokens: Tensor, prompt: int, *, static: bool = True) -> Logits:
    """Return the logits of given tokens, whatever the model makes of them.

    Args:
        model: A causal language model.
        tokens: `[B, prompt + steps]`, at least one step.
        prompt: Tokens of the prompt.
        static: Whether steps have a static cache, filled by the prefill as `Generation` does, instead of the
            dynamic one of the prefill.
    """
    cache: Any = make_cache(model, tokens.shape[1], static=False)
    kept = min(prompt, POSITIONS)
    prefill = model(tokens[:, :prompt], past_key_values=cache, use_cache=True, logits_to_keep=kept).logits
    if static:
        filled, cache = cache, make_cache(model, tokens.shape[1], static=True)
        copy_cache(filled, cache)
    steps = [
        model(token, past_key_values=cache, use_cache=True).logits for token in tokens[:, prompt:].split(1, 1)
    ]
    return Logits(prefill=prefill.float(), decode=torch.cat(steps, 1).float())


def make_cache(model: PreTrainedModel, tokens: int, *, static: bool) -> Cache:
    """Make a cache; a static one has room for a few more than `tokens` tokens."""
    if static:
        return StaticCache(config=model.config, max_cache_len=tokens + 7)
    return DynamicCache(config=model.config)
