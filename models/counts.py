"""What one prefill, or one decode step, has to do: counted from a model's configuration."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from models.weights import make_config
from pytest_cutile import Work

SIZE = 2
"""Bytes of a bfloat16."""


class Parameters(NamedTuple):
    """Numbers of a model's parameters, without the embedding, of which a token reads one row."""

    dense: int
    """Those that every token uses."""
    experts: int
    """Those of all routed experts."""
    head: int
    """Those of the last projection, to the vocabulary."""


@cache
def parameters(model: str) -> Parameters:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    with torch.device("meta"), no_init_weights():
        built = AutoModelForCausalLM.from_config(make_config(model), dtype=torch.bfloat16)
    sizes = {name: parameter.numel() for name, parameter in built.named_parameters()}
    head = sizes.pop("lm_head.weight")
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    embedding = sizes["model.embed_tokens.weight"]
    return Parameters(dense=sum(sizes.values()) - experts - embedding, experts=experts, head=head)


def prefill_work(model: str, *, batch: int, prompt: int) -> Work:
    """Return the work of taking in prompts; only the last token's logits are made."""
    config: Any = make_config(model)
    dense, experts, head = parameters(model)
    tokens, active = batch * prompt, dense + experts * _share(config, 1)
    pairs = batch * config.num_hidden_layers * config.num_attention_heads * prompt * (prompt + 1) / 2
    return Work(
        flops=2 * (tokens * active + batch * head) + 2 * pairs * _dimensions(config),
        bytes=SIZE * (dense + experts * _share(config, tokens) + head) + tokens * cache_bytes(config),
        tokens=tokens,
        dtype="bfloat16",
    )


def decode_work(model: str, *, batch: int, prompt: int) -> Work:
    """Return the work of one further token of each prompt, with `prompt` tokens in the cache."""
    config: Any = make_config(model)
    dense, experts, head = parameters(model)
    return Work(
        bytes=SIZE * (dense + experts * _share(config, batch) + head) + batch * prompt * cache_bytes(config),
        tokens=batch,
        dtype="bfloat16",
    )


def cache_bytes(config: Any, size: int = SIZE) -> int:
    """Return the bytes of one token in the cache, of numbers of `size` bytes: keys and values, or latents."""
    if latent := getattr(config, "kv_lora_rank", None):
        numbers = latent + config.qk_rope_head_dim
    else:
        numbers = 2 * config.num_key_value_heads * _head_dim(config)
    return int(config.num_hidden_layers * numbers * size)


def _share(config: Any, tokens: int) -> float:
    """Return the share of the experts that so many tokens use at least once, if each chooses at random."""
    if not (total := getattr(config, "n_routed_experts", None)):
        return 0.0
    return float(1 - (1 - config.num_experts_per_tok / total) ** tokens)


def _dimensions(config: Any) -> int:
    """Return the multiply-adds of one query with one key and value."""
    if getattr(config, "kv_lora_rank", None):
        return int(config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim)
    return 2 * _head_dim(config)


def _head_dim(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
