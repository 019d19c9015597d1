"""Each layer against float64.

`record` keeps what the layers of a model with kernels got and returned, in prefill and in steps of decoding;
`check_layers` runs transformers' own layers in float64 on the same inputs, and compares by the bounds of
`check_kernel`. The first layer that is wrong is where to look.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache

from pytest_cutile.correctness.check import KernelMismatch, check_kernel

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from pytest_cutile import CheckReport

QUIET, LOUD = 2.0**-8, 2.0**8
PREFILL = 0
"""The number of the first step; the others decode one token each."""


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
def record(
    model: PreTrainedModel, layers: Collection[int] | None = None, *, loud_ends: bool = False
) -> Iterator[list[LayerCall]]:
    """Keep what parts of layers get and return, in the order in which they return it.

    Calls with more than one token are prefill, others are steps. Prompts must not be padded.

    Args:
        model: With kernels, or without.
        layers: Numbers of the layers to record; by default all.
        loud_ends: Whether each step finds its cache changed by `make_ends_loud`, which makes logits useless.
    """
    calls: list[LayerCall] = []
    with ExitStack() as stack:
        for index, layer in enumerate(model.model.layers):
            if layers is None or index in layers:
                recorder = _Recorder(
                    prefix=f"model.layers.{index}", layer=layer, calls=calls, loud_ends=loud_ends
                )
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
    layer: Any
    calls: list[LayerCall]
    loud_ends: bool
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

    def on_attention(self, module: Any, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden, cache = kwargs["hidden_states"], kwargs["past_key_values"]
        self.inputs = {"hidden_states": hidden, **_angles(kwargs["position_embeddings"])}
        seen = 0 if cache is None else int(cache.get_seq_length(module.layer_idx))
        if seen:
            stored = cache.layers[module.layer_idx]
            if self.loud_ends:
                make_ends_loud(stored.keys if hasattr(module, "kv_lora_rank") else stored.values, seen)
            keys, values = (tensor[:, :, :seen].clone() for tensor in (stored.keys, stored.values))
            self.inputs |= {"keys": keys, "values": values}

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


def make_ends_loud(values: Tensor, seen: int) -> None:
    """Make values of a cache, `[B, H, places, D]`, such that each end of what is seen counts.

    Of hundreds of tokens with about equal weights, one more or less is lost in rounding. So values but for
    the first and the last are made small, and large where nothing is to be read: a mask that is off by one
    shows however long the cache is.
    """
    values[:, :, 1 : seen - 1] *= QUIET
    values[:, :, seen + 1 :] = LOUD


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
        config = vars(part).get("config")
        if config is not None:
            config._attn_implementation = "eager"  # noqa: SLF001 - as transformers' own modules do
            config._experts_implementation = "eager"  # noqa: SLF001
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
        if keys is not None and values is not None:
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
