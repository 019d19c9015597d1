"""Is a model with kernels right? Each layer against float64, and the whole against honest implementations.

Layers: `record` keeps what the layers of a model with kernels got and returned, in prefill and in steps of
decoding; `check_layers` runs transformers' own layers in float64 on the same inputs, and compares by the
bounds of `check_kernel`. The first layer that is wrong is where to look.

Whole: logits of 16 bits are off however they are computed. So transformers computes them in several ways that
are all right, and `check_whole` asks whether those of kernels are further from float32's. All get the same
tokens in every step: of its own tokens, a model with random weights would write another text after the first
difference.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache, StaticCache

from pytest_cutile.correctness.check import KernelMismatch, check_kernel

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import Cache, PreTrainedModel

    from pytest_cutile import CheckReport

PREFILL = 0
"""The number of the first step; the others decode one token each."""


# -- a run with given tokens ------------------------------------------------------------------------


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


# -- layers -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LayerCall:
    """What one part of a layer got and returned."""

    name: str
    """Of the module, e.g. "model.layers.0.self_attn"."""
    step: int
    inputs: dict[str, Tensor]
    """Names and values, of the float64 function's arguments."""
    output: Tensor
    reference: Callable[[PreTrainedModel], Callable[..., Tensor]]
    """Makes the float64 function, from a model without kernels."""


@dataclass(frozen=True, kw_only=True)
class LayerCheck:
    """The verdict on one call."""

    name: str
    step: int
    report: CheckReport | None
    problem: str | None
    """What is wrong; None if nothing is."""


@contextmanager
def record(model: PreTrainedModel, layers: Collection[int] | None = None) -> Iterator[list[LayerCall]]:
    """Keep what parts of layers get and return, in the order in which they return it.

    Calls with more than one token are prefill, others are steps. Prompts must not be padded.

    Args:
        model: With kernels, or without.
        layers: Numbers of the layers to record; by default all.
    """
    calls: list[LayerCall] = []
    with ExitStack() as stack:
        for index, layer in enumerate(model.model.layers):
            if layers is None or index in layers:
                recorder = _Recorder(prefix=f"model.layers.{index}", layer=layer, calls=calls)
                stack.callback(recorder.attach())
        yield calls


def check_layers(model: PreTrainedModel, calls: Iterable[LayerCall]) -> Iterator[LayerCheck]:
    """Compare each call with the same part of `model`, which must be without kernels, in float64.

    Intermediate results may be rounded to the model's dtype, as transformers' own code does.
    """
    for call in calls:

        def recorded(output: Tensor = call.output, **_: object) -> Tensor:
            return output.clone()

        report, problem = None, None
        try:
            report = check_kernel(
                recorded,
                reference=call.reference(model),
                mid=call.output.dtype,
                guard=False,
                vary_layout=False,
                **call.inputs,
            )
        except KernelMismatch as mismatch:
            problem = str(mismatch)
        yield LayerCheck(name=call.name, step=call.step, report=report, problem=problem)


def first_wrong(checks: Iterable[LayerCheck]) -> LayerCheck | None:
    """Return the first call that is wrong: what follows got wrong inputs, though it may be right."""
    return next((check for check in checks if check.problem is not None), None)


@dataclass(kw_only=True, eq=False)
class _Recorder:
    """Hooks of one decoder layer."""

    prefix: str
    layer: nn.Module
    calls: list[LayerCall]
    step: int = -1
    residual: Tensor | None = None
    """What the layer got, to be added to what attention returns."""
    attended: Tensor | None = None
    inputs: dict[str, Tensor] = field(default_factory=dict)
    """Of attention."""

    def attach(self) -> Callable[[], None]:
        layer = self.layer
        handles = [
            layer.register_forward_pre_hook(self.on_layer),
            layer.input_layernorm.register_forward_hook(self.on_norm),
            layer.self_attn.register_forward_pre_hook(self.on_attention, with_kwargs=True),
            layer.self_attn.register_forward_hook(self.on_attended, with_kwargs=True),
            layer.mlp.register_forward_hook(self.on_mlp),
        ]

        def detach() -> None:
            for handle in handles:
                handle.remove()

        return detach

    def keep(
        self,
        part: str,
        inputs: dict[str, Tensor],
        output: Tensor,
        reference: Callable[[PreTrainedModel], Callable[..., Tensor]],
    ) -> None:
        self.calls.append(
            LayerCall(
                name=f"{self.prefix}.{part}",
                step=self.step,
                inputs={name: tensor.clone() for name, tensor in inputs.items()},
                output=output.clone(),
                reference=reference,
            )
        )

    def on_layer(self, _module: nn.Module, args: tuple[Any, ...]) -> None:
        self.residual = args[0]
        self.step = PREFILL if args[0].shape[1] > 1 else self.step + 1

    def on_norm(self, _module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        def reference(model: PreTrainedModel) -> Callable[..., Tensor]:
            return in_float64(model.get_submodule(f"{self.prefix}.input_layernorm"))

        self.keep("input_layernorm", {"hidden_states": args[0]}, output, reference)

    def on_attention(self, module: nn.Module, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden, cache = kwargs["hidden_states"], kwargs["past_key_values"]
        self.inputs = {"hidden_states": hidden, **_angles(kwargs["position_embeddings"])}
        # A dynamic cache has no layer before its first token.
        stored = cache.layers[module.layer_idx] if cache and len(cache.layers) > module.layer_idx else None
        seen = 0 if stored is None else int(stored.get_seq_length())
        if seen:
            self.inputs |= {
                "keys": stored.keys[:, :, :seen].clone(),
                "values": stored.values[:, :, :seen].clone(),
            }

    def on_attended(
        self, module: nn.Module, _args: tuple[Any, ...], _kwargs: dict[str, Any], output: tuple[Tensor, Any]
    ) -> None:
        self.attended = output[0]

        def reference(model: PreTrainedModel) -> Callable[..., Tensor]:
            return attention_in_float64(model.get_submodule(f"{self.prefix}.self_attn"))

        del module
        self.keep("self_attn", self.inputs, output[0], reference)

    def on_mlp(self, _module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        def norm(model: PreTrainedModel) -> Callable[..., Tensor]:
            normalise = in_float64(model.get_submodule(f"{self.prefix}.post_attention_layernorm"))
            return lambda residual, attended: normalise(residual + attended)

        def mlp(model: PreTrainedModel) -> Callable[..., Tensor]:
            feed_forward = in_float64(model.get_submodule(f"{self.prefix}.mlp"))

            def reference(hidden_states: Tensor) -> Tensor:
                result: Tensor = feed_forward(hidden_states)
                return result

            return reference

        assert self.residual is not None
        assert self.attended is not None
        inputs = {"residual": self.residual, "attended": self.attended}
        # Before what the mlp makes of it.
        self.keep("post_attention_layernorm", inputs, args[0], norm)
        self.keep("mlp", {"hidden_states": args[0]}, output, mlp)


def _angles(position_embeddings: Any) -> dict[str, Tensor]:
    """Return cosines and sines, which transformers has as complex numbers for DeepSeek-V2."""
    if isinstance(position_embeddings, torch.Tensor):
        return {"cos": position_embeddings.real, "sin": position_embeddings.imag}
    cos, sin = position_embeddings
    return {"cos": cos, "sin": sin}


def in_float64(module: nn.Module) -> nn.Module:
    """Return a float64 copy of a module of transformers, which computes in the plainest way that it has.

    Raises:
        ValueError: A forward function of the module is not transformers' own.
    """
    if any("forward" in vars(part) for part in module.modules()):
        raise ValueError("the model to compare with must be without kernels; restore it")
    copied = copy.deepcopy(module).double()
    for part in copied.modules():
        if "config" in vars(part):
            part.config._attn_implementation = "eager"  # noqa: SLF001 - as transformers' own modules do
            part.config._experts_implementation = "eager"  # noqa: SLF001
    return copied


def attention_in_float64(module: nn.Module) -> Callable[..., Tensor]:
    """Return an attention module as a function of its inputs, the keys and values before them included."""
    attention: Any = in_float64(module)
    is_latent = hasattr(attention, "kv_lora_rank")

    def reference(
        hidden_states: Tensor,
        cos: Tensor,
        sin: Tensor,
        keys: Tensor | None = None,
        values: Tensor | None = None,
    ) -> Tensor:
        cache, seen = None, 0
        if keys is not None:
            cache, seen = DynamicCache(), keys.shape[2]
            cache.update(keys, values, attention.layer_idx)
        query = torch.arange(hidden_states.shape[1], device=cos.device)[:, None]
        key = torch.arange(seen + hidden_states.shape[1], device=cos.device)
        mask = torch.zeros(query.shape[0], key.shape[0], dtype=cos.dtype, device=cos.device)
        mask = mask.masked_fill(key > seen + query, -torch.inf)
        output, _ = attention(
            hidden_states=hidden_states,
            position_embeddings=torch.complex(cos, sin) if is_latent else (cos, sin),
            attention_mask=mask[None, None],
            past_key_values=cache,
        )
        result: Tensor = output
        return result

    return reference


# -- the whole --------------------------------------------------------------------------------------

KL_FACTOR = 2.0
"""By how much the divergence of kernels may exceed the largest among honest implementations.

The Kullback-Leibler divergence grows with the square of differences of logits: the factor lets an error be
1.4 times as large. `tests/models/test_planted.py` shows where planted faults lie: far above.
"""
AGREEMENT_SIGMAS = 4.0
"""By how many standard deviations of its count tokens that differ may exceed what honest ones have."""


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """How far logits are from exact ones of the same tokens."""

    kl: float
    """Mean Kullback-Leibler divergence from the exact distribution of the next token, in nats."""
    worst_kl: float
    agreement: float
    """Share of positions where the most likely token is the same."""
    positions: int


def compare_logits(exact: Tensor, logits: Tensor) -> Divergence:
    """Compare logits `[..., vocabulary]`."""
    log_p, log_q = (torch.log_softmax(x.double(), -1).flatten(0, -2) for x in (exact, logits))
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    same = log_p.argmax(-1) == log_q.argmax(-1)
    return Divergence(
        kl=kl.mean().item(),
        worst_kl=kl.max().item(),
        agreement=same.double().mean().item(),
        positions=len(kl),
    )


@dataclass(frozen=True, kw_only=True)
class WholeCheck:
    """How far kernels and honest implementations are from the model in float32."""

    honest: dict[str, Divergence]
    kernels: Divergence

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, each in a line; empty if nothing is."""
        return tuple(self._find_problems())

    def _find_problems(self) -> Iterator[str]:
        largest = max(divergence.kl for divergence in self.honest.values())
        if not self.kernels.kl <= KL_FACTOR * largest:  # NaN is wrong, too
            yield (
                f"KL divergence from float32 is {self.kernels.kl:.3g}; allowed are {KL_FACTOR * largest:.3g}, "
                f"{KL_FACTOR:g} times the largest of honest implementations"
            )
        positions = self.kernels.positions
        honest = min(divergence.agreement for divergence in self.honest.values())
        spread = (max(honest * (1 - honest), 1 / positions) / positions) ** 0.5
        least = honest - AGREEMENT_SIGMAS * spread
        if not self.kernels.agreement >= least:
            yield (
                f"the most likely token is that of float32 in {self.kernels.agreement:.1%} of {positions} "
                f"positions; allowed are {least:.1%}, honest implementations have {honest:.1%}"
            )


def check_whole(exact: Tensor, honest: dict[str, Tensor], kernels: Tensor) -> WholeCheck:
    """Compare logits of a model with kernels.

    Args:
        exact: What `run_exactly` returns.
        honest: What `run_honestly` returns.
        kernels: What `run_steps` returns of the model with kernels.
    """
    return WholeCheck(
        honest={name: compare_logits(exact, logits) for name, logits in honest.items()},
        kernels=compare_logits(exact, kernels),
    )


def run_exactly(model: PreTrainedModel, tokens: Tensor, prompt: int) -> Tensor:
    """Return what `run_steps` returns, of `model` in float32.

    Args:
        model: Without kernels. Its weights become float32: pass a copy, or use the model no more.
        tokens: `[B, prompt + steps]`.
        prompt: Tokens of the prompt.
    """
    return run_steps(model.float(), tokens, prompt)


def run_honestly(model: PreTrainedModel, tokens: Tensor, prompt: int) -> dict[str, Tensor]:
    """Return what `run_steps` returns, of transformers alone, computed in ways that are all right.

    Args:
        model: Without kernels.
        tokens: `[B, prompt + steps]`.
        prompt: Tokens of the prompt.
    """
    runs = {}
    own = model.config._attn_implementation  # noqa: SLF001 - nothing public reads it
    try:
        for name in ("sdpa", "eager"):
            model.set_attn_implementation(name)
            runs[name] = run_steps(model, tokens, prompt)
        model.set_attn_implementation("sdpa")
        with reordered(model):
            runs["other order of sums"] = run_steps(model, tokens, prompt)
        with torch.no_grad():
            steps = tokens.shape[1] - prompt
            runs["no cache"] = model(tokens, use_cache=False, logits_to_keep=steps + 1).logits.float()
    finally:
        model.set_attn_implementation(own)
    return runs


@contextmanager
def reordered(model: PreTrainedModel, seed: int = 0) -> Iterator[None]:
    """Permute the inner columns of all feed-forward layers: the same model, which adds in another order."""
    permuted = []
    for module in model.modules():
        if all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj")):
            permuted.append((module.gate_proj.weight, module.up_proj.weight, module.down_proj.weight))
        elif hasattr(module, "gate_up_proj") and hasattr(module, "down_proj"):
            gate, up = module.gate_up_proj.chunk(2, 1)
            permuted += [(gate[i], up[i], module.down_proj[i]) for i in range(len(gate))]
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(weights[0].shape[0], generator=generator) for weights in permuted]

    @torch.no_grad()
    def permute(orders: Sequence[Tensor]) -> None:
        for (gate, up, down), order in zip(permuted, orders, strict=True):
            index = order.to(gate.device)
            gate.copy_(gate[index])
            up.copy_(up[index])
            down.copy_(down[:, index])

    permute(orders)
    try:
        yield
    finally:
        permute([order.argsort() for order in orders])
