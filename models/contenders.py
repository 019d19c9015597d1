"""What is compared: one model run by PyTorch in several ways, by TileGym's kernels, and by ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_cutile.tile.compiler import pretended_backing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Active: TypeAlias = "Callable[[PreTrainedModel], AbstractContextManager[PreTrainedModel]]"
REFERENCE = "sdpa"
"""The contender that the others' logits are compared with."""
OURS = "ours"
_TILEGYM = {
    # TileGym 1.5.1, tilegym.transformers: its function, and the module of transformers that it changes.
    "qwen2": ("apply_tilegym_kernel_to_qwen2", "qwen2.modeling_qwen2", {}),
    "deepseek_v2": ("apply_tilegym_kernel_to_deepseek_v2", "deepseek_v2.modeling_deepseek_v2", {"moe": True}),
    "llama": ("apply_tilegym_kernel_to_llama", "llama.modeling_llama", {}),
}


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One way to run a model."""

    name: str
    title: str
    active: Active
    """Yields the model to run, from PyTorch's own; what was changed for it is undone afterwards."""
    dynamic: bool = False
    """Whether the cache grows with every step, which no CUDA graph can capture."""
    compiled: bool = False
    """Whether `torch.compile` makes the prefill and the decode step."""
    slow_to_start: bool = False
    """Whether --quick leaves it out."""


def contenders() -> list[Contender]:
    return [
        # What NVIDIA's playbook calls naive: transformers without a patch, as its generate() runs a model.
        Contender(name="naive", title="PyTorch, as transformers generates", active=pytorch, dynamic=True),
        Contender(
            name="eager-attention",
            title="PyTorch, eager attention",
            active=partial(pytorch, attention="eager"),
        ),
        Contender(name=REFERENCE, title="PyTorch, SDPA", active=pytorch),
        Contender(
            name="compiled",
            title="torch.compile",
            active=pytorch,
            compiled=True,
            slow_to_start=True,
        ),
        Contender(name="tilegym", title="TileGym", active=TileGym()),
        Contender(name=OURS, title="pytest-cutile's kernels", active=ours),
    ]


@contextmanager
def pytorch(
    model: PreTrainedModel, *, attention: str = "sdpa", experts: str | None = None
) -> Iterator[PreTrainedModel]:
    """Yield a model with transformers' implementations of these names; by default, of its own experts.

    Interpreted, on the CPU, the loop over experts runs: the others count by operations that only GPUs have.
    """
    config: Any = model.config
    if experts is None and pretended_backing() is not None:
        experts = "eager"
    attention_before = config._attn_implementation  # noqa: SLF001 - there are no public names
    experts_before = config._experts_implementation  # noqa: SLF001
    model.set_attn_implementation(attention)
    config._experts_implementation = experts or experts_before  # noqa: SLF001
    try:
        yield model
    finally:
        model.set_attn_implementation(attention_before)
        config._experts_implementation = experts_before  # noqa: SLF001


@contextmanager
def ours(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    from models.replaced import apply

    with apply(model):
        yield model


class TileGym:
    """TileGym's kernels in a model of their own, which shares all weights.

    TileGym replaces classes and functions of transformers for the whole process. They are put back whenever
    the context ends, so that the other contenders stay what they are.
    """

    def __init__(self) -> None:
        self._models: dict[int, PreTrainedModel] = {}

    @contextmanager
    def __call__(self, model: PreTrainedModel) -> Iterator[PreTrainedModel]:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        from tools.suite._peers import kept_launch

        kind = model.config.model_type
        if kind not in _TILEGYM:
            raise LookupError(f"TileGym is used for {', '.join(_TILEGYM)}, not for {kind}")
        function, module_name, options = _TILEGYM[kind]
        module = import_module(f"transformers.models.{module_name}")
        with _kept(module), kept_launch():
            patch = getattr(import_module("tilegym.transformers"), function)
            sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
            try:
                patch(rope=True, rms_norm=True, swiglu=True, attn=True, use_cutile=True, **options)
                if id(model) not in self._models:
                    self._models[id(model)] = sharing_weights(model)
                yield self._models[id(model)]
            finally:
                ALL_ATTENTION_FUNCTIONS["sdpa"] = sdpa


@contextmanager
def _kept(module: Any) -> Iterator[None]:
    """Put names of a module, and the methods of its classes, back."""
    names = dict(vars(module))
    methods = {value: dict(vars(value)) for value in names.values() if isinstance(value, type)}
    try:
        yield
    finally:
        for name, value in names.items():
            setattr(module, name, value)
        for owner, before in methods.items():
            for name in ("forward", "__init__"):
                if name in before and vars(owner)[name] is not before[name]:
                    setattr(owner, name, before[name])


def sharing_weights(model: PreTrainedModel) -> PreTrainedModel:
    """Return a new model of the same configuration whose parameters and buffers are those of `model`.

    Its classes are those that transformers' module has now.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        other = AutoModelForCausalLM.from_config(model.config, attn_implementation="sdpa")
    other.load_state_dict(model.state_dict(), assign=True, strict=False)
    modules = dict(model.named_modules())
    for path, module in other.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                setattr(module, name, getattr(modules[path], name))
    other.tie_weights()
    left = [name for name, tensor in other.named_parameters() if tensor.is_meta]
    if left:
        raise LookupError(f"the other model has parameters that this one lacks: {', '.join(left[:3])}")
    return other.eval()
