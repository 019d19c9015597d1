"""Launchers of `kernels/` as operators of PyTorch: `torch.compile` and CUDA graphs take each as one step.

Operators are in the namespace `cutile_models`. A paired measurement imports this module of another git
revision into the same process: its operators are in a namespace of their own. None waits for the GPU, and
none has a gradient. Those of prefill read `bounds` on the CPU, those of decoding on the GPU.
"""

# Without `from __future__ import annotations`: torch reads the schema from the annotations.

from collections.abc import Callable, Sequence
from zlib import crc32

import torch
from torch import Tensor
from torch.library import custom_op
from torch.nn import functional

from kernels import (
    attention_decode as attention_decode_kernels,
)
from kernels import (
    fmha,
    mla,
    mla_decoding,
    moe,
    moe_routing,
)
from kernels import (
    rms_norm as rms_norm_kernels,
)
from kernels import (
    rope as rope_kernels,
)
from kernels import (
    swiglu as swiglu_kernels,
)

NAMESPACE = "cutile_models"
if hasattr(torch.ops.cutile_models, "rope"):  # today's are registered
    NAMESPACE = f"{NAMESPACE}_{crc32(__file__.encode()):08x}"


# -- rotary embedding, norm, gate -------------------------------------------------------------------


@custom_op(f"{NAMESPACE}::rope", mutates_args=())
def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """Turn queries and keys by the angles of their positions.

    Args:
        q: `[B, H, S, D]`.
        k: `[B, H_kv, S, D]`.
        cos: `[1, S, R / 2]`, or `[B, S, R / 2]` where positions differ between sequences.
        sin: In the shape of `cos`.
        interleaved: Whether neighbouring dimensions make a pair, instead of dimensions R / 2 apart.

    Returns:
        Both, in their shapes.
    """
    if cos.shape[0] == 1:
        return rope_kernels.rope(q, k, cos[0], sin[0], interleaved=interleaved)
    # The kernel's angles are the same in all sequences: here all tokens are one sequence.
    all_q, all_k = (x.transpose(1, 2).flatten(0, 1).transpose(0, 1)[None] for x in (q, k))
    turned = rope_kernels.rope(all_q, all_k, cos.flatten(0, 1), sin.flatten(0, 1), interleaved=interleaved)
    q, k = (x[0].transpose(0, 1).unflatten(0, cos.shape[:2]).transpose(1, 2) for x in turned)
    return q, k


@rope.register_fake
def _(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    del sin, interleaved
    if cos.shape[0] == 1:
        return torch.empty_like(q), torch.empty_like(k)
    q, k = (x.new_empty([x.shape[i] for i in (0, 2, 1, 3)]).transpose(1, 2) for x in (q, k))
    return q, k


@custom_op(f"{NAMESPACE}::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide each row of `x`, `[..., N]`, by its root mean square, and multiply it by `weight`, `[N]`."""
    return rms_norm_kernels.rms_norm(x, weight, eps)


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    del weight, eps
    return x.new_empty(x.shape)


@custom_op(f"{NAMESPACE}::add_rms_norm", mutates_args=())
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the norm of `x + residual` as `rms_norm` has it, and the sum."""
    return rms_norm_kernels.rms_norm(x, weight, eps, residual)


@add_rms_norm.register_fake
def _(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    del residual, weight, eps
    return x.new_empty(x.shape), x.new_empty(x.shape)


@custom_op(f"{NAMESPACE}::swiglu", mutates_args=())
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return `silu(gate) * up`, of tensors of one shape."""
    return swiglu_kernels.swiglu(gate, up)


@swiglu.register_fake
def _(gate: Tensor, up: Tensor) -> Tensor:
    del up
    return gate.new_empty(gate.shape)


# -- prefill ----------------------------------------------------------------------------------------


@custom_op(f"{NAMESPACE}::attention_prefill", mutates_args=())
def attention_prefill(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor | None, scale: float) -> Tensor:
    """Attend from the last M tokens of each sequence to all tokens up to their own.

    Args:
        q: `[B, H, M, D]`.
        k: `[B, H_kv, N, D]`.
        v: `[B, H_kv, N, D]`.
        bounds: `[B, 2]`, integers on the CPU: the first key that a sequence sees, and the one behind its
            last, the key of the last query. By default 0 and N.
        scale: Factor of the scores.

    Returns:
        `[B, M, H, D]`, contiguous. Zeros for queries before the first visible key.
    """

    def launch(queries: Sequence[Tensor], keys: Sequence[Tensor]) -> Tensor:
        return fmha.fmha(*queries, *keys, causal=True, scale=scale)

    return _attend_causally(launch, (q,), (k, v), bounds)


@attention_prefill.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor | None, scale: float) -> Tensor:
    del k, v, bounds, scale
    return q.new_empty([q.shape[i] for i in (0, 2, 1, 3)])


@custom_op(f"{NAMESPACE}::mla_prefill", mutates_args=())
def mla_prefill(
    q: Tensor, q_pe: Tensor, k: Tensor, k_pe: Tensor, v: Tensor, bounds: Tensor | None, scale: float
) -> Tensor:
    """Do the same with heads of 128 dimensions, and 64 that carry the position, of which keys have one head.

    Args:
        q: `[B, H, M, 128]`.
        q_pe: `[B, H, M, 64]`.
        k: `[B, H, N, 128]`.
        k_pe: `[B, 1, N, 64]`.
        v: `[B, H, N, 128]`.
        bounds: As those of `attention_prefill`.
        scale: Factor of the scores.

    Returns:
        `[B, M, H, 128]`, contiguous.
    """

    def launch(queries: Sequence[Tensor], keys: Sequence[Tensor]) -> Tensor:
        return mla.mla(*queries, *keys, causal=True, scale=scale)

    return _attend_causally(launch, (q, q_pe), (k, k_pe, v), bounds)


@mla_prefill.register_fake
def _(
    q: Tensor, q_pe: Tensor, k: Tensor, k_pe: Tensor, v: Tensor, bounds: Tensor | None, scale: float
) -> Tensor:
    del q_pe, k, k_pe, v, bounds, scale
    return q.new_empty([q.shape[i] for i in (0, 2, 1, 3)])


Launch = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]


def _attend_causally(
    launch: Launch, queries: Sequence[Tensor], keys: Sequence[Tensor], bounds: Tensor | None
) -> Tensor:
    """Launch for all sequences together, or one by one where their bounds differ; return `[B, M, H, D]`."""
    pairs = [(0, keys[0].shape[2])] if bounds is None else bounds.tolist()
    if all(pair == pairs[0] for pair in pairs):
        o = _attend_within(launch, queries, keys, *pairs[0])
    else:
        o = torch.cat(
            [
                _attend_within(launch, [q[i : i + 1] for q in queries], [k[i : i + 1] for k in keys], *pair)
                for i, pair in enumerate(pairs)
            ]
        )
    return o.transpose(1, 2).contiguous()  # no copy of what projections leave: heads inside tokens


def _attend_within(
    launch: Launch, queries: Sequence[Tensor], keys: Sequence[Tensor], first: int, end: int
) -> Tensor:
    """Launch with the keys from `first` to `end`, the last of which is the last query's."""
    past = end - queries[0].shape[2]
    hidden = max(0, first - past)  # queries before the first visible key
    seen = past + hidden - first  # keys that all other queries see
    # The kernel's first query sees the first key alone: queries of past tokens, which nobody asked for, make
    # up for what is seen before.
    if hidden or seen:
        queries = [functional.pad(q[:, :, hidden:], (0, 0, seen, 0)) for q in queries]
    o = launch(queries, [k[:, :, first:end] for k in keys])
    return functional.pad(o[:, :, seen:], (0, 0, hidden, 0)) if hidden or seen else o


# -- decoding ---------------------------------------------------------------------------------------


@custom_op(f"{NAMESPACE}::attention_decode", mutates_args=())
def attention_decode(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor | None, scale: float) -> Tensor:
    """Attend from one token of each sequence to its keys.

    Args:
        q: `[B, H, 1, D]`.
        k: `[B, H_kv, N, D]`.
        v: `[B, H_kv, N, D]`.
        bounds: `[B, 2]`, int32 on the GPU: the first key that a sequence sees, and the one behind the last.
            By default 0 and N.
        scale: Factor of the scores.

    Returns:
        `[B, 1, H, D]`, contiguous.
    """
    o = attention_decode_kernels.attention_decode(q, k, v, bounds=bounds, scale=scale)
    return o.view(len(o), 1, *o.shape[1::2])


@attention_decode.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor | None, scale: float) -> Tensor:
    del k, v, bounds, scale
    return q.new_empty([q.shape[i] for i in (0, 2, 1, 3)])


@custom_op(f"{NAMESPACE}::mla_decode", mutates_args=())
def mla_decode(
    q: Tensor, q_pe: Tensor, kv: Tensor, k_pe: Tensor, bounds: Tensor | None, scale: float
) -> Tensor:
    """Do the same with queries that are absorbed, and a cache of latent vectors.

    Args:
        q: `[B, H, D]`.
        q_pe: `[B, H, 64]`.
        kv: `[B, N, D]`.
        k_pe: `[B, N, 64]`.
        bounds: As those of `attention_decode`.
        scale: Factor of the scores.

    Returns:
        `[B, H, D]`, contiguous: latent vectors.
    """
    return mla_decoding.mla_decoding(q, q_pe, kv, k_pe, bounds=bounds, scale=scale)


@mla_decode.register_fake
def _(q: Tensor, q_pe: Tensor, kv: Tensor, k_pe: Tensor, bounds: Tensor | None, scale: float) -> Tensor:
    del q_pe, kv, k_pe, bounds, scale
    return q.new_empty(q.shape)


# -- experts ----------------------------------------------------------------------------------------


@custom_op(f"{NAMESPACE}::moe_route", mutates_args=())
def moe_route(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Choose experts by their logits, `[T, E]`.

    Returns:
        weights: `[T, top_k]`, float32: the softmax of all logits, at the chosen ones.
        ids: `[T, top_k]`, int32.
    """
    return moe_routing.route(logits, top_k)


@moe_route.register_fake
def _(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    shape = (logits.shape[0], top_k)
    return logits.new_empty(shape, dtype=torch.float32), logits.new_empty(shape, dtype=torch.int32)


@custom_op(f"{NAMESPACE}::moe_experts", mutates_args=())
def moe_experts(x: Tensor, w1: Tensor, w2: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """Send each token through its experts, and sum what they return.

    Args:
        x: `[T, H]`.
        w1: `[E, 2 I, H]`, gate before up.
        w2: `[E, H, I]`.
        weights: `[T, K]`, how much each expert counts.
        ids: `[T, K]`, which experts.

    Returns:
        `[T, H]`, contiguous.
    """
    return moe.moe(x, w1, w2, weights, ids)


@moe_experts.register_fake
def _(x: Tensor, w1: Tensor, w2: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    del w1, w2, weights, ids
    return x.new_empty(x.shape)


NAMES = (
    *("rope", "rms_norm", "add_rms_norm", "swiglu", "attention_prefill", "attention_decode"),
    *("mla_prefill", "mla_decode", "moe_route", "moe_experts"),
)
"""All operators."""
