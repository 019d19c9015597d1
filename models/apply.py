"""Replace operations of one model by kernels, and undo it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from torch import nn
    from transformers import PreTrainedModel


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Replaced:
    """What `apply` replaced in a model; a context that undoes it at its end."""

    replacements: tuple[Replacement, ...]
    _before: list[tuple[Replacement, dict[str, Any]]] = field(default_factory=list, repr=False)

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """Names of the replaced modules, and the operators that each of them calls now."""
        return {each.name: each.operators for each in self.replacements if each.operators}

    @property
    def counts(self) -> Counter[str]:
        """How many modules call each operator."""
        return Counter(operator for operators in self.names.values() for operator in operators)

    def restore(self) -> None:
        """Give the model its own operations back; a second call changes nothing."""

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
) -> Replaced:
    """Replace operations of `model` by kernels: of this instance alone, until it is restored.

    Args:
        model: A causal language model of transformers: Llama, Qwen2, Qwen3 or DeepSeek-V2.
        rope: Whether to replace the rotary embedding.
        rms_norm: Whether to replace RMS norms, with the addition of the residual before them where there is
            one in the same layer.
        swiglu: Whether to replace the gate of the dense feed-forward layers and of shared experts.
        attention: Whether to replace attention: prefill, and decoding of one token for each sequence.
        moe: Whether to replace routing and experts.

    Raises:
        Unsupported: The model, its version, dtypes or sizes are not supported; nothing was replaced.
    """
    raise NotImplementedError
