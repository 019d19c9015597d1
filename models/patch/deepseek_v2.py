"""DeepSeek-V2: multi-head latent attention, interleaved rotary pairs, and a mixture of experts.

Its cache holds latent vectors. Prefill expands them to keys and values of every head. A step of one token
does not: the projection from latent vectors to keys is applied to the query instead, and that to values to
what comes out ("absorbed", DeepSeek-V2, https://arxiv.org/abs/2405.04434, section 2.1.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from kernels.mla import HEAD_DIM, ROPE_DIM
from kernels.mla_decoding import LATENT_DIMS
from models import operators
from models.errors import Unsupported
from models.masks import as_bounds
from models.patch.common import (
    Choices,
    Forward,
    Replacement,
    append_to_cache,
    attend_as_before,
    check_activation,
    library_function,
    replace_forward,
    replace_norms_and_gates,
    replace_projections,
)
from pytest_cutile.tile.compiler import pretended_backing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor
    from transformers import Cache, PreTrainedModel


# -- attention --------------------------------------------------------------------------------------


def make_angles(original: Forward) -> Forward:
    """Return the forward function of the rotary embedding: cosines and sines in place of complex numbers."""

    def forward(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        del self
        turns = original(x, position_ids)
        return turns.real.contiguous(), turns.imag.contiguous()

    return forward


def rotate(self: Any, q: Tensor, k: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    del self
    return operators.rope(q, k, *angles, True)


def rotate_as_before(self: Any, q: Tensor, k: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
    turned: tuple[Tensor, Tensor] = library_function(self, "apply_rotary_emb")(q, k, angles.to(q.device))
    return turned


def attend_latent_as_before(
    self: Any,
    q: Tensor,
    q_pe: Tensor,
    latent: Tensor,
    k_pe: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    keys, values = self.expand_kv(latent, k_pe)
    return attend_as_before(self, torch.cat((q, q_pe), -1), keys, values, attention_mask, **kwargs)


def attend_latent(
    self: Any,
    q: Tensor,
    q_pe: Tensor,
    latent: Tensor,
    k_pe: Tensor,
    attention_mask: Tensor | None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend by kernels; return `[B, M, H, 128]`."""
    bounds = as_bounds(attention_mask)
    if q.shape[2] == 1:
        return absorb_and_attend(self, q[:, :, 0], q_pe[:, :, 0], latent[:, 0], k_pe[:, 0], bounds), None
    if bounds is not None:
        # What is behind the last key of a static cache need not be expanded.
        end = int(bounds[0, 1])
        latent, k_pe = latent[:, :, :end], k_pe[:, :, :end]
    batch, _heads, tokens, _latent = latent.shape
    expanded = self.kv_b_proj(latent[:, 0]).view(batch, tokens, -1, 2 * HEAD_DIM).transpose(1, 2)
    k, v = expanded.split(HEAD_DIM, -1)
    return operators.mla_prefill(q, q_pe, k, k_pe, v, bounds, self.scaling), None


def absorb_and_attend(
    self: Any, q: Tensor, q_pe: Tensor, latent: Tensor, k_pe: Tensor, bounds: Tensor | None
) -> Tensor:
    """Attend from `q`, `[B, H, 128]`, to `latent`, `[B, N, D]`; return `[B, 1, H, 128]`."""
    to_keys, to_values = self.kv_b_proj.weight.view(-1, 2, HEAD_DIM, latent.shape[-1]).unbind(
        1
    )  # [H, 128, D]
    absorbed = torch.bmm(q.transpose(0, 1), to_keys).transpose(0, 1)  # [B, H, D]
    o = operators.mla_decode(absorbed, q_pe, latent, k_pe, bounds, self.scaling)
    return torch.bmm(o.transpose(0, 1), to_values.mT).transpose(0, 1)[:, None]


def make_forward(choices: Choices) -> Forward:
    """Return the forward function of an attention module."""
    turn = rotate if choices.rope else rotate_as_before
    attention = attend_latent if choices.attention else attend_latent_as_before

    def forward(
        self: Any,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        position_embeddings: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        batch, tokens = hidden_states.shape[:-1]
        queries, compressed = self.project(hidden_states)
        if self.q_lora_rank is not None:
            queries = self.q_b_proj(self.q_a_layernorm(queries))
        queries = queries.view(batch, tokens, -1, self.qk_head_dim).transpose(1, 2)
        q, q_pe = queries.split([self.qk_nope_head_dim, self.qk_rope_head_dim], -1)
        latent, k_pe = compressed[:, None].split(  # [B, 1, M, D + 64]
            [self.kv_lora_rank, self.qk_rope_head_dim], -1
        )
        latent = self.kv_a_layernorm(latent)
        q_pe, k_pe = turn(self, q_pe, k_pe, position_embeddings)
        if past_key_values is not None:
            latent, k_pe = append_to_cache(past_key_values, latent, k_pe, self.layer_idx)
        o, weights = attention(self, q, q_pe, latent, k_pe, attention_mask, **kwargs)
        return self.o_proj(o.reshape(batch, tokens, -1)), weights

    return forward


# -- experts ----------------------------------------------------------------------------------------


def multiply_in_float32(x: Tensor, weight: Tensor) -> Tensor:
    """Return `x @ weight.mT` in float32, as if both were converted first: products of 16 bits are exact."""
    on_gpu = x.is_cuda and pretended_backing() is None  # PyTorch has no such product on the CPU
    if on_gpu and x.dtype == weight.dtype != torch.float32:
        return torch.mm(x, weight.mT, out_dtype=torch.float32)
    return functional.linear(x.float(), weight.float())


def route(self: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logits = multiply_in_float32(hidden_states.view(-1, self.hidden_dim), self.weight)
    weights, ids = operators.moe_route(logits, self.top_k)
    return logits, weights if self.routed_scaling_factor == 1 else weights * self.routed_scaling_factor, ids


def send_to_experts(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    return operators.moe_experts(hidden_states, self.gate_up_proj, self.down_proj, top_k_weights, top_k_index)


# -- all of it --------------------------------------------------------------------------------------


def replacements(model: PreTrainedModel, choices: Choices) -> Iterator[Replacement]:
    """Yield what is to be replaced.

    Raises:
        Unsupported: Sizes, activations or ways to choose experts that the kernels do not support.
    """
    modules = dict(model.named_modules())
    yield from replace_norms_and_gates(model, modules, choices)
    if choices.moe:
        check_activation(model, "moe")
        if model.config.topk_method != "greedy":
            raise Unsupported(
                f"moe: experts are chosen by {model.config.topk_method!r}; only greedy is supported"
            )
    called = [*(("rope",) if choices.rope else ())]
    if choices.attention:
        _check(model)
        called += ["mla_prefill", "mla_decode"]
    for name, module in modules.items():
        kind = type(module).__name__
        if kind.endswith("Attention") and called:
            queries = "q_proj" if module.q_lora_rank is None else "q_a_proj"
            yield replace_projections(module, name, (queries, "kv_a_proj_with_mqa"), choices)
            yield replace_forward(module, name, make_forward(choices), *called)
        elif kind.endswith("RotaryEmbedding") and choices.rope:
            yield replace_forward(module, name, make_angles(module.forward))
        elif kind.endswith("TopkRouter") and choices.moe:
            yield replace_forward(module, name, route, "moe_route")
        elif kind.endswith("Experts") and choices.moe:
            yield replace_forward(module, name, send_to_experts, "moe_experts")


def _check(model: PreTrainedModel) -> None:
    config = model.config
    sizes = {
        "qk_nope_head_dim": (HEAD_DIM,),
        "v_head_dim": (HEAD_DIM,),
        "qk_rope_head_dim": (ROPE_DIM,),
        "kv_lora_rank": LATENT_DIMS,
    }
    for name, supported in sizes.items():
        if getattr(config, name) not in supported:
            raise Unsupported(
                f"attention: {name} is {getattr(config, name)}; "
                f"supported are {', '.join(map(str, supported))}"
            )
