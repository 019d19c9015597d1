"""What a generation needs of the GPU's memory, estimated from the model's configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from models.counts import cache_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RESERVE = 0.06
"""Share of the memory that CUDA's context, cuBLAS' workspaces and fragmentation take: an estimate."""


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes of one generation, in three parts."""

    weights: int
    batch: int
    prompt: int
    """Tokens of each prompt."""
    capacity: int
    """Places of the cache for each prompt."""
    cache_per_token: int
    """Keys and values, or latents, of all layers for one token."""
    activations_per_token: int
    """Largest tensors of one layer for one token of the prompt: hidden states, and both halves of the MLP."""
    scores_per_pair: int
    """Attention's scores and probabilities of all heads for one pair of tokens; 0 where they are never
    written."""

    @classmethod
    def of(cls, model: PreTrainedModel, *, batch: int, prompt: int, capacity: int) -> Footprint:
        config: Any = model.config
        size = model.dtype.itemsize
        heads = config.num_attention_heads
        is_written = config._attn_implementation == "eager"  # noqa: SLF001 - there is no public name
        return cls(
            weights=sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()),
            batch=batch,
            prompt=prompt,
            capacity=capacity,
            cache_per_token=cache_bytes(config, size),
            # Residual, normalised, queries, attention's output; gate, up and their product.
            activations_per_token=(4 * config.hidden_size + 3 * config.intermediate_size) * size,
            # Scores, the float32 softmax, and its rounded copy.
            scores_per_pair=heads * (2 * size + 4) if is_written else 0,
        )

    @property
    def cache(self) -> int:
        return self.batch * self.capacity * self.cache_per_token

    @property
    def activations(self) -> int:
        tokens = self.batch * self.prompt
        # The prompt's own keys and values lie beside the cache until they are copied there.
        return tokens * (
            self.activations_per_token + self.cache_per_token + self.prompt * self.scores_per_pair
        )

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.activations

    def largest_batch(self, available: float) -> int:
        """Return the largest batch that fits into so many bytes; 0 if none does."""
        one = replace(self, batch=1)
        return max(0, int((available - self.weights) // (one.total - self.weights)))

    def longest_prompt(self, available: float) -> int:
        """Return the longest prompt that fits with this batch, in powers of two; 0 if none does."""
        length, new = self.prompt, self.capacity - self.prompt
        while length and replace(self, prompt=length, capacity=length + new).total > available:
            length = 1 << (length - 1).bit_length() - 1 if length > 1 else 0
        return length

    def why_not(self, free: int, total: int) -> str:
        """Return what is needed, what there is, and what would fit.

        Args:
            free: Bytes of the GPU that nobody uses now.
            total: Bytes of the GPU.
        """
        usable = total * (1 - RESERVE)
        parts = {
            "weights": self.weights,
            f"cache of {self.batch} x {self.capacity} tokens": self.cache,
            "activations": self.activations,
        }
        needed = ", ".join(f"{name} {_gb(count)}" for name, count in parts.items())
        batch, prompt = self.largest_batch(usable), self.longest_prompt(usable)
        fits = [
            *([f"batch {batch} with prompts of {self.prompt}"] if 0 < batch < self.batch else ()),
            *([f"batch {self.batch} with prompts of {prompt}"] if 0 < prompt < self.prompt else ()),
        ]
        if self.total <= usable:
            advice = f"an empty GPU has room by this estimate: free what else is on it ({_gb(free)} are free)"
        elif fits:
            advice = f"would fit: {', or '.join(fits)}"
        else:
            advice = "nothing of this model fits on this GPU"
        return f"out of memory: about {_gb(self.total)} of {_gb(total)} ({needed}); {advice}"


def _gb(count: float) -> str:
    return f"{count / 1e9:.1f} GB"
