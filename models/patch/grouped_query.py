"""Llama, Qwen2 and Qwen3: attention with grouped queries and half-split rotary pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernels.fmha import HEAD_DIMS
from models import operators
from models.errors import Unsupported
from models.masks import as_bounds
from models.patch.common import (
    Choices,
    Forward,
    Replacement,
    append_to_cache,
    attend_as_before,
    library_function,
    replace_forward,
    replace_norms_and_gates,
    replace_projections,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn
    from transformers import Cache, PreTrainedModel


def rotate(self: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Turn queries and keys; tables hold each angle twice."""
    del self
    half = cos.shape[-1] // 2
    return operators.rope(q, k, cos[..., :half], sin[..., :half], False)


def rotate_as_before(self: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    turned: tuple[Tensor, Tensor] = library_function(self, "apply_rotary_pos_emb")(q, k, cos, sin)
    return turned


def attend(
    self: Any, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None, **_: Any
) -> tuple[Tensor, None]:
    """Attend by kernels; return `[B, M, H, D]`."""
    bounds = as_bounds(attention_mask)
    operator = operators.attention_decode if q.shape[2] == 1 else operators.attention_prefill
    return operator(q, k, v, bounds, self.scaling), None


def make_forward(choices: Choices) -> Forward:
    """Return the forward function of an attention module."""
    turn = rotate if choices.rope else rotate_as_before
    attention = attend if choices.attention else attend_as_before

    def forward(
        self: Any,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q, k, v = (x.view(shape) for x in self.project(hidden_states))
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        q, k = turn(self, q, k, *position_embeddings)
        if past_key_values is not None:
            k, v = append_to_cache(past_key_values, k, v, self.layer_idx)
        o, weights = attention(self, q, k, v, attention_mask, **kwargs)
        return self.o_proj(o.reshape(*hidden_states.shape[:-1], -1)), weights

    return forward


def replacements(model: PreTrainedModel, choices: Choices) -> Iterator[Replacement]:
    """Yield what is to be replaced.

    Raises:
        Unsupported: Sizes, activations or sliding windows that the kernels do not support.
    """
    modules = dict(model.named_modules())
    yield from replace_norms_and_gates(model, modules, choices)
    called = [*(("rope",) if choices.rope else ())]
    if choices.attention:
        called += ["attention_prefill", "attention_decode"]
    if not called:
        return
    for name, module in modules.items():
        if not type(module).__name__.endswith("Attention"):
            continue
        if choices.attention:
            _check(name, module)
        yield replace_projections(module, name, ("q_proj", "k_proj", "v_proj"), choices)
        yield replace_forward(module, name, make_forward(choices), *called)


def _check(name: str, module: nn.Module) -> None:
    if module.head_dim not in HEAD_DIMS:
        raise Unsupported(
            f"attention: heads of {name} have {module.head_dim} dimensions; "
            f"supported are {', '.join(map(str, HEAD_DIMS))}"
        )
    if getattr(module, "sliding_window", None) is not None:
        raise Unsupported(f"attention: {name} has a sliding window, of {module.sliding_window} tokens")
