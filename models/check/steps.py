"""A model run over given tokens, prefill and then one token a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import DynamicCache, StaticCache

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import Cache, PreTrainedModel


@torch.no_grad()
def run_steps(model: PreTrainedModel, tokens: Tensor, prompt: int, *, static: bool = False) -> Tensor:
    """Return the logits of the last prompt token and of every token after, one step each.

    Args:
        model: A causal language model.
        tokens: `[B, prompt + steps]`: the prompt, and the tokens that follow, whatever the model makes of it.
        prompt: Tokens of the prompt.
        static: Whether the cache is static instead of dynamic.

    Returns:
        `[B, 1 + steps, vocabulary]`, float32.
    """
    cache = make_cache(model, tokens.shape[1], static=static)
    pieces = (tokens[:, :prompt], *tokens[:, prompt:].split(1, 1))
    steps = [model(piece, past_key_values=cache, logits_to_keep=1).logits for piece in pieces]
    return torch.cat(steps, 1).float()


def make_cache(model: PreTrainedModel, tokens: int, *, static: bool) -> Cache:
    """Make a cache; a static one has room for a few more than `tokens` tokens."""
    if static:
        return StaticCache(config=model.config, max_cache_len=tokens + 7)
    return DynamicCache(config=model.config)
