"""Greedy generation: prefill, then decode steps that never wait for the GPU.

With a static cache, a step reads its token, its position and the cache's length from the GPU's memory and
leaves the next token there. So it can be captured once into a CUDA graph and replayed for every token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from models.errors import DoesNotFit, NeedsGpu, PromptTooLong
from models.memory import Footprint

if TYPE_CHECKING:
    import torch
    from transformers import DynamicCache, PreTrainedModel, StaticCache

WARM_UPS = 3
"""Steps before a capture: cuTile and cuBLAS compile, tune and allocate in the first ones."""
LARGEST_WITHOUT_GPU = 50_000_000
"""Parameters up to which a model runs on the CPU, its kernels interpreted."""
LONGEST_GRAPH = 8192
"""Tokens of all prompts up to which a graph of the prefill pays: with more, the GPU is busy while the host
launches, and a graph holds on to the memory of all activations."""


@dataclass(frozen=True)
class _Captured:
    """A CUDA graph, and where it leaves its logits."""

    graph: torch.cuda.CUDAGraph
    logits: torch.Tensor

    def replay(self) -> torch.Tensor:
        self.graph.replay()
        return self.logits


class Generation:
    """One batch of prompts, its cache, and the tokens so far.

    Attributes:
        tokens: `[B, new_tokens]` int64, filled from the left as steps run.
        prompt: `[B, P]` int64.
        logits: `[B, vocab]` of the newest token.
        cache: transformers' `StaticCache` of `capacity` places; or the `DynamicCache` of the last prefill.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompt: torch.Tensor,
        *,
        new_tokens: int,
        capacity: int | None = None,
        cache: StaticCache | None = None,
        dynamic: bool = False,
        compiled: bool = False,
    ) -> None:
        """Make an empty cache, or share one.

        Args:
            model: A causal language model, with kernels in place or without.
            prompt: `[B, P]` int64, on the model's device, without padding.
            new_tokens: Tokens to generate for each prompt, at least 1.
            capacity: Places of the cache; by default as many as are needed.
            cache: One that other generations of the same shape use, too, each from its `prefill` on; by
                default a new one.
            dynamic: Whether steps append to a dynamic cache instead, as transformers' own generation does.
            compiled: Whether `torch.compile` makes the prefill and the decode step.

        Raises:
            PromptTooLong: `capacity` is too small.
            NeedsGpu: The model is not tiny and lies on the CPU.
        """
        import torch
        from transformers import StaticCache

        check_device(model)
        batch, length = prompt.shape
        needed = length + new_tokens
        capacity = needed if capacity is None else capacity
        if needed > capacity:
            raise PromptTooLong(
                f"a prompt of {length} tokens and {new_tokens} new ones need {needed} places; the cache has "
                f"{capacity}: give a larger capacity, or fewer tokens"
            )
        if new_tokens < 1:
            raise ValueError(f"new_tokens must be at least 1, got {new_tokens}")
        self.model, self.prompt, self.capacity = model, prompt, capacity
        self.cache: Any = None
        self._dynamic = dynamic
        if not dynamic:
            self.cache = cache or StaticCache(config=model.config, max_cache_len=capacity)
        self.tokens = torch.zeros(batch, new_tokens, dtype=torch.int64, device=prompt.device)
        self.logits: torch.Tensor
        self._forward: Callable[..., Any] = torch.compile(model.forward, dynamic=False) if compiled else model
        """Of both: the shapes of prefill and step are compiled each for itself."""
        self._token = torch.zeros(batch, 1, dtype=torch.int64, device=prompt.device)
        self._place = torch.zeros(1, dtype=torch.int64, device=prompt.device)
        self._prefill_graph: _Captured | None = None
        self._step_graph: _Captured | None = None

    @property
    def new_tokens(self) -> int:
        return self.tokens.shape[1]

    @property
    def is_captured(self) -> bool:
        """Whether there is a CUDA graph of a step."""
        return self._step_graph is not None

    def prefill(self, *, graph: bool = False) -> torch.Tensor:
        """Take the prompts in, from the beginning; return the logits of the first new token, `[B, vocab]`.

        Attention sees keys of the prompt alone, not the empty places of the cache: masks of these keep
        PyTorch from its fastest kernels.

        Args:
            graph: Whether to replay what `capture` has captured; long prompts are launched all the same.

        Raises:
            DoesNotFit: The GPU has not enough memory.
        """
        self.logits = self._run(self._prefill, self._prefill_graph if graph else None)
        return self.logits

    def step(self, *, graph: bool = False) -> None:
        """Generate the next token of each prompt, of which `logits` are left.

        Args:
            graph: Whether to replay what `capture` has captured.

        Raises:
            DoesNotFit: The GPU has not enough memory.
        """
        self.logits = self._run(self._step, self._step_graph if graph else None)

    def capture(self) -> None:
        """Capture a step into a CUDA graph, and the prefill of up to `LONGEST_GRAPH` tokens.

        Call it after `prefill`.

        Raises:
            RuntimeError: One of them reads values back from the GPU, or allocates what a graph cannot.
            DoesNotFit: The GPU has not enough memory.
        """
        if self.prompt.numel() <= LONGEST_GRAPH:
            self._prefill_graph = self._capture(self._prefill)
        self._step_graph = self._capture(self._step)

    def rewind(self) -> None:
        """Go back to the first new token, as after `prefill`; nothing waits for the GPU."""
        length = self.prompt.shape[1]
        if self._dynamic:
            self.cache.crop(length - self.cache.get_seq_length())
        else:
            for layer in self.cache.layers:
                layer.cumulative_length.fill_(length)
        self._place.fill_(1)
        self._token.copy_(self.tokens[:, :1])

    def release(self) -> None:
        """Free a dynamic cache until the next prefill. A static one stays where graphs look for it."""
        if self._dynamic:
            self.cache = None

    @property
    def footprint(self) -> Footprint:
        batch, length = self.prompt.shape
        return Footprint.of(self.model, batch=batch, prompt=length, capacity=self.capacity)

    @contextmanager
    def _within_memory(self) -> Iterator[None]:
        import torch

        try:
            yield
        except torch.OutOfMemoryError as error:
            raise DoesNotFit(self.footprint.why_not(*torch.cuda.mem_get_info())) from error

    def _run(self, run: Callable[[], torch.Tensor], captured: _Captured | None) -> torch.Tensor:
        import torch

        if captured is not None:
            return captured.replay()
        with torch.no_grad(), self._within_memory():
            return run()

    def _capture(self, run: Callable[[], torch.Tensor]) -> _Captured:
        import torch

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with self._within_memory(), torch.cuda.stream(stream), torch.no_grad():
            for _ in range(WARM_UPS):
                run()
                self.rewind()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with self._within_memory(), torch.cuda.graph(graph), torch.no_grad():
            logits = run()
        self.rewind()
        return _Captured(graph, logits)

    def _prefill(self) -> torch.Tensor:
        from transformers import DynamicCache

        filled = DynamicCache(config=self.model.config)
        output = self._forward(
            input_ids=self.prompt, past_key_values=filled, use_cache=True, logits_to_keep=1
        )
        if self._dynamic:
            self.cache = filled
        else:
            copy_cache(filled, self.cache)
        self._place.zero_()
        logits: torch.Tensor = output.logits[:, -1]
        self._append(logits)
        return logits

    def _step(self) -> torch.Tensor:
        output = self._forward(input_ids=self._token, past_key_values=self.cache, use_cache=True)
        logits: torch.Tensor = output.logits[:, -1]
        self._append(logits)
        return logits

    def _append(self, logits: torch.Tensor) -> None:
        self._token.copy_(logits.argmax(-1, keepdim=True))
        self.tokens.index_copy_(1, self._place, self._token)
        self._place.add_(1)


def copy_cache(filled: DynamicCache, cache: StaticCache) -> None:
    """Copy what a dynamic cache holds into the first places of a static one."""
    layer: Any  # their types are those of all kinds of layers
    source: Any
    for layer, source in zip(cache.layers, filled.layers, strict=True):
        if not layer.is_initialized:
            layer.lazy_initialization(source.keys, source.values)
        length = source.keys.shape[-2]
        layer.keys[:, :, :length].copy_(source.keys)
        layer.values[:, :, :length].copy_(source.values)
        layer.cumulative_length.fill_(length)


def generate(generation: Generation, *, graph: bool = False) -> Iterator[int]:
    """Run a generation, and yield the number of tokens that each prompt has got after every step.

    The GPU may be behind: nothing waits for it. Stop by leaving the loop; `generation.tokens` keeps what was
    generated, and `prefill` starts anew.

    Args:
        generation: What to run, from its beginning.
        graph: Whether steps replay a CUDA graph, captured once, and the prefill one that is there already.
    """
    generation.prefill(graph=graph)
    yield 1
    if graph and generation.new_tokens > 1 and not generation.is_captured:
        generation.capture()
    for count in range(2, generation.new_tokens + 1):
        generation.step(graph=graph)
        yield count


def check_device(model: PreTrainedModel) -> None:
    """Raise NeedsGpu if a model lies on the CPU and is too large to be interpreted there."""
    count = sum(parameter.numel() for parameter in model.parameters())
    if model.device.type == "cpu" and count > LARGEST_WITHOUT_GPU:
        raise NeedsGpu(
            f"{type(model).__name__} has {count / 1e9:.1f} billion parameters and lies on the CPU, where "
            f"kernels are interpreted: at most {LARGEST_WITHOUT_GPU / 1e6:.0f} million. Move the model to a "
            "GPU, or take a tiny one, such as tiny-qwen2"
        )
