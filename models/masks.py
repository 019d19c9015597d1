"""Which keys each sequence sees: what attention by kernels takes in place of a mask of all pairs.

A query sees the keys of its sequence up to its own, but for padding. So two numbers a sequence say it all:
the first key that is seen, and the one behind the last. With padding or a cache that is allocated for more
tokens than there are, transformers gets them in place of a mask: int32, `[B, 1, 1, 2]`, because it passes on
masks of four axes as they are. Without either, it gets None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function

from models.errors import PromptTooLong, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

IMPLEMENTATION = "cutile"
"""The name by which transformers knows `find_bounds`: a model's configuration names it."""
LEFT = "padding has to be on the left, with 0 before each sequence's first token and 1 for all that follow"


def find_bounds(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor,
    kv_offset: int,
    mask_function: Callable[..., Any],
    attention_mask: Tensor | None,
    device: torch.device,
    **_: object,
) -> Tensor | None:
    """Return the bounds of the keys that each sequence sees, as transformers' mask interface asks for them.

    They are on the CPU for prefill, which waits for the GPU once. A step of one token waits for nothing: its
    bounds stay on the GPU, and padding on another side than the left is an error that the GPU raises.

    Args:
        batch_size: Sequences.
        q_length: New tokens of each.
        kv_length: Keys that attention will get, unfilled ones of a static cache included.
        q_offset: Tokens before the new ones; on the GPU if the cache is static.
        kv_offset: The number of the first key.
        mask_function: What transformers would make a mask with.
        attention_mask: `[B, tokens]`, bool, false for padding.
        device: The model's.
        **_: What other mask interfaces take.

    Raises:
        Unsupported: Another mask than a causal one, or padding that is not on the left.
        PromptTooLong: A static cache has fewer places than there are tokens.
    """
    if mask_function is not causal_mask_function or kv_offset:
        raise Unsupported("attention by kernels takes causal masks with padding on the left, and no other")
    end = q_offset + q_length
    if attention_mask is None and isinstance(end, int) and end == kv_length:
        return None
    if isinstance(end, int) or q_length > 1:
        end = int(end)
        if end > kv_length:
            raise PromptTooLong(f"{end} tokens need as many places; the cache has {kv_length}")
    if q_length > 1:
        first, device = _first_keys(attention_mask, int(end), batch_size), torch.device("cpu")
    elif attention_mask is None:
        first = torch.zeros(batch_size, dtype=torch.int32, device=device)
    else:
        first = attention_mask.int().argmax(1)
        token = torch.arange(1, attention_mask.shape[1], device=device)
        gaps = attention_mask[:, :-1] & ~attention_mask[:, 1:] & (token < end)
        torch._assert_async(~gaps.any(), LEFT)  # noqa: SLF001 - nothing public checks without waiting
    if first is None and end == kv_length:
        return None
    bounds = torch.empty((batch_size, 1, 1, 2), dtype=torch.int32, device=device)
    bounds[..., 0] = 0 if first is None else first[:, None, None]
    bounds[..., 1] = end
    return bounds


def _first_keys(attention_mask: Tensor | None, end: int, batch_size: int) -> Tensor | None:
    """Return each sequence's first token, `[B]` on the CPU, or None if no token is padding."""
    if attention_mask is None:
        return None
    mask = attention_mask[:, :end].cpu()
    if tuple(mask.shape) != (batch_size, end):
        raise Unsupported(
            f"attention_mask must be [{batch_size}, {end}], all tokens up to the last new one, "
            f"but is {list(attention_mask.shape)}"
        )
    if mask.all():
        return None
    if (mask[:, :-1] & ~mask[:, 1:]).any() or not mask[:, -1].all():
        raise Unsupported(LEFT)
    return mask.int().argmax(1)


def as_bounds(mask: Tensor | None) -> Tensor | None:
    """Return what `find_bounds` made as `[B, 2]`.

    Raises:
        Unsupported: It is a mask that somebody else made.
    """
    if mask is None:
        return None
    if mask.dtype != torch.int32 or tuple(mask.shape[1:]) != (1, 1, 2):
        raise Unsupported(
            f"attention by kernels takes no mask of all pairs, got one of {mask.dtype}, {list(mask.shape)}; "
            "pass attention_mask as [B, tokens], or None"
        )
    return mask[:, 0, 0]


AttentionMaskInterface.register(IMPLEMENTATION, find_bounds)
