"""Replace operations of one model by kernels, and undo it."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import transformers

from models.errors import Unsupported
from models.masks import IMPLEMENTATION
from models.patch import deepseek_v2, grouped_query
from models.patch.common import Choices, Replacement
from models.weights import refuse_quantised

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from transformers import PreTrainedModel

TESTED_VERSIONS = ("5.17.0",)
"""Of transformers: `apply` follows its modules line by line."""
ARCHITECTURES = {
    "LlamaForCausalLM": grouped_query,
    "Qwen2ForCausalLM": grouped_query,
    "Qwen3ForCausalLM": grouped_query,
    "DeepseekV2ForCausalLM": deepseek_v2,
}
DTYPES = (torch.float16, torch.bfloat16)
_ABSENT = object()


@dataclass(frozen=True, kw_only=True, eq=False)
class Replaced:
    """What `apply` replaced in a model; a context that undoes it at its end."""

    replacements: tuple[Replacement, ...] = field(repr=False)
    _before: list[tuple[Replacement, object]] = field(default_factory=list, repr=False)

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """Names of the replaced modules, and the operators that each of them calls now."""
        return {change.name: change.operators for change in self.replacements if change.operators}

    @property
    def counts(self) -> Counter[str]:
        """How many modules call each operator."""
        return Counter(operator for operators in self.names.values() for operator in operators)

    def replace(self) -> None:
        """Replace everything; `apply` has done it."""
        for change in self.replacements:
            self._before.append((change, vars(change.module).get(change.attribute, _ABSENT)))
            setattr(change.module, change.attribute, change.value)

    def restore(self) -> None:
        """Give the model its own operations back; a second call changes nothing."""
        while self._before:
            change, before = self._before.pop()
            if before is _ABSENT:
                delattr(change.module, change.attribute)
            else:
                setattr(change.module, change.attribute, before)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()


def apply(
    model: PreTrainedModel,
    *,
    rope: bool = True,
    rms_norm: bool = True,
    swiglu: bool = True,
    attention: bool = True,
    moe: bool = True,
    fuse_linear: bool = True,
) -> Replaced:
    """Replace operations of `model` by kernels: of this instance alone, until it is restored.

    The model is called as before. Its caches may be dynamic or static; prompts may be padded on the left.
    Dropout, gradients and other masks are not supported, nor are weights of attention returned.

    Replaced attention and gates multiply projections of the same input at once: these weights are moved, to
    lie one behind another. The parameters stay, as views, and restoring leaves them there: values and memory
    are the same, and CUDA graphs that were captured meanwhile find them. Graphs that were captured before the
    first `apply` do not.

    Args:
        model: A causal language model of transformers: Llama, Qwen2, Qwen3 or DeepSeek-V2.
        rope: Whether to replace the rotary embedding.
        rms_norm: Whether to replace RMS norms, with the sum before them where both are in one layer.
        swiglu: Whether to replace the gate of dense feed-forward layers and of shared experts.
        attention: Whether to replace attention: prefill, and decoding of one token for each sequence.
        moe: Whether to replace routing and experts; a model without experts has none.
        fuse_linear: Whether projections of the same input are one product: queries, keys and values (with
            DeepSeek-V2 queries and latents), and gate and up.

    Returns:
        What was replaced.

    Raises:
        Unsupported: The model, its version, dtypes or sizes are not supported; nothing was replaced.
    """
    _check(model)
    choices = Choices(
        rope=rope, rms_norm=rms_norm, swiglu=swiglu, attention=attention, moe=moe, fuse_linear=fuse_linear
    )
    architecture = ARCHITECTURES[type(model).__name__]
    changes = tuple(architecture.replacements(model, choices))
    replaced = (
        Replaced(replacements=(*changes, *_own_configuration(model)))
        if attention
        else Replaced(replacements=changes)
    )
    replaced.replace()
    return replaced


def _own_configuration(model: PreTrainedModel) -> Iterator[Replacement]:
    """Give all modules a configuration that names our mask; other models may share the one they have."""
    shared = model.config
    config = copy.copy(shared)
    config._attn_implementation = IMPLEMENTATION  # noqa: SLF001 - as transformers' own modules do
    for name, module in model.named_modules():
        if vars(module).get("config") is shared:
            yield Replacement(module=module, name=name, attribute="config", value=config)


def _check(model: PreTrainedModel) -> None:
    """Check what does not depend on the architecture.

    Raises:
        Unsupported: Something is not supported.
    """
    if transformers.__version__ not in TESTED_VERSIONS:
        raise Unsupported(
            f"apply was tested with transformers {', '.join(TESTED_VERSIONS)}, "
            f"and this is {transformers.__version__}; install one that was"
        )
    kind = type(model)
    if kind.__name__ not in ARCHITECTURES or not kind.__module__.startswith("transformers.models."):
        raise Unsupported(
            f"{kind.__module__}.{kind.__name__} is not supported; supported are transformers' own "
            f"{', '.join(ARCHITECTURES)}"
        )
    refuse_quantised(model.config)
    if model.training:
        raise Unsupported("the model is in training mode, and kernels have no gradients; call model.eval()")
    first_name, first = next(iter(model.named_parameters()))
    for name, parameter in model.named_parameters():
        if parameter.dtype not in DTYPES:
            raise Unsupported(f"{name} has dtype {parameter.dtype}; supported are float16 and bfloat16")
        if parameter.dtype != first.dtype or parameter.device != first.device:
            raise Unsupported(
                f"{name} is {parameter.dtype} on {parameter.device}, but {first_name} is {first.dtype} "
                f"on {first.device}: all weights have to be alike"
            )
    if any("forward" in vars(module) for module in model.modules()):
        raise Unsupported(
            "forward functions of the model's modules were replaced before, by apply or by a hook; "
            "restore them first"
        )
