"""Replacements that several architectures share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeAlias

from transformers.cache_utils import DynamicLayer, StaticLayer

from models import operators
from models.errors import Unsupported
from models.patch.projections import project_together

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import Cache, PreTrainedModel

MAX_NORM = 16384
"""Longest row that `kernels.rms_norm` takes."""
Forward: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What the user of `apply` wants replaced."""

    rope: bool
    rms_norm: bool
    swiglu: bool
    attention: bool
    moe: bool
    fuse_linear: bool


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """An attribute of one module that gets another value."""

    module: nn.Module
    name: str
    """The module's name in the model, e.g. "model.layers.0.mlp"."""
    attribute: str
    value: Any
    operators: tuple[str, ...] = ()
    """Operators of `models.operators` that the new value calls, e.g. "swiglu"."""


def replace_forward(module: nn.Module, name: str, forward: Forward, *called: str) -> Replacement:
    return Replacement(
        module=module, name=name, attribute="forward", value=MethodType(forward, module), operators=called
    )


def replace_projections(module: nn.Module, name: str, layers: Sequence[str], choices: Choices) -> Replacement:
    """Give `module` the function `project` of its input, with the outputs of the layers of these names."""
    project = project_together([getattr(module, layer) for layer in layers], fuse=choices.fuse_linear)
    return Replacement(module=module, name=name, attribute="project", value=project)


def library_function(module: nn.Module, name: str) -> Any:
    """Return a function of the file of transformers that defines `module`."""
    return getattr(sys.modules[type(module).__module__], name)


# -- norms and gates --------------------------------------------------------------------------------


def normalise(self: Any, hidden_states: Tensor) -> Tensor:
    return operators.rms_norm(hidden_states, self.weight, self.variance_epsilon)


def gate_and_multiply(self: Any, x: Tensor) -> Tensor:
    gate, up = self.project(x)
    return self.down_proj(operators.swiglu(gate, up))


def add_and_normalise(self: Any, hidden_states: Tensor, **kwargs: Any) -> Tensor:
    """Run a decoder layer, with the sum behind attention in the norm that follows."""
    normalised = self.input_layernorm(hidden_states)
    attended, _ = self.self_attn(hidden_states=normalised, **kwargs)
    norm = self.post_attention_layernorm
    normalised, residual = operators.add_rms_norm(attended, hidden_states, norm.weight, norm.variance_epsilon)
    return residual + self.mlp(normalised)


def replace_norms(modules: Mapping[str, nn.Module]) -> Iterator[Replacement]:
    """Replace all norms, and the layers that add before one.

    Raises:
        Unsupported: Rows that are too long.
    """
    module: Any
    for name, module in modules.items():
        kind = type(module).__name__
        if kind.endswith("RMSNorm"):
            width = module.weight.shape[0]
            if width > MAX_NORM:
                raise Unsupported(
                    f"rms_norm: {name} normalises rows of {width}; at most {MAX_NORM} are supported"
                )
            yield replace_forward(module, name, normalise, "rms_norm")
        elif kind.endswith("DecoderLayer"):
            yield replace_forward(module, name, add_and_normalise, "add_rms_norm")


def replace_gates(modules: Mapping[str, nn.Module], choices: Choices) -> Iterator[Replacement]:
    for name, module in modules.items():
        if type(module).__name__.endswith("MLP"):
            yield replace_projections(module, name, ("gate_proj", "up_proj"), choices)
            yield replace_forward(module, name, gate_and_multiply, "swiglu")


def replace_norms_and_gates(
    model: PreTrainedModel, modules: Mapping[str, nn.Module], choices: Choices
) -> Iterator[Replacement]:
    """Replace what all families have alike, as far as it is chosen.

    Raises:
        Unsupported: Rows that are too long, or a gate with another activation.
    """
    if choices.rms_norm:
        yield from replace_norms(modules)
    if choices.swiglu:
        check_activation(model, "swiglu")
        yield from replace_gates(modules, choices)


# -- attention --------------------------------------------------------------------------------------


def attend_as_before(
    self: Any, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Attend by the model's own implementation; return `[B, M, H, D]`, and weights if it has them."""
    own = library_function(self, "eager_attention_forward")
    attend = library_function(self, "ALL_ATTENTION_FUNCTIONS").get_interface(
        self.config._attn_implementation,  # noqa: SLF001 - as transformers' own modules do
        own,
    )
    result: tuple[Tensor, Tensor | None] = attend(
        self,
        q,
        k,
        v,
        attention_mask,
        dropout=0.0,
        scaling=self.scaling,
        sliding_window=getattr(self, "sliding_window", None),
        **kwargs,
    )
    return result


def append_to_cache(cache: Cache, keys: Tensor, values: Tensor, index: int) -> tuple[Tensor, Tensor]:
    """Do what `cache.update` does, with fewer kernels: of one token and a static cache with three of five.

    transformers adds up the token's place, which is the cache's length; and it joins the first tokens with an
    empty tensor, by two slow copies.

    Args:
        cache: transformers' cache.
        keys: `[B, H, M, D]`.
        values: `[B, H, M, D_v]`.
        index: Of the layer.
    """
    layer: Any = cache.layers[index] if index < len(cache.layers) else None
    kind: type | None = type(layer)
    if kind is DynamicLayer and not layer.is_initialized:
        layer.lazy_initialization(keys, values)
        # Values are part of a larger tensor, the projections', which would be kept with them.
        layer.keys, layer.values = keys, values.contiguous()
    elif kind is StaticLayer and layer.is_initialized and keys.shape[2] == 1:
        place = layer.cumulative_length.view(1)
        layer.keys.index_copy_(2, place, keys)
        layer.values.index_copy_(2, place, values)
        layer.cumulative_length.add_(1)
    else:
        updated: tuple[Tensor, Tensor] = cache.update(keys, values, index)
        return updated
    return layer.keys, layer.values


def check_activation(model: PreTrainedModel, operation: str) -> None:
    """Check that the model's gate is a SiLU.

    Raises:
        Unsupported: It is another function.
    """
    if model.config.hidden_act != "silu":
        raise Unsupported(
            f"{operation}: the model's activation is {model.config.hidden_act!r}; only silu is supported"
        )
