"""One run of a reference in float64, with an injector that sees its inputs and operators."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_cutile.correctness.error_model.injection import Injector
from pytest_cutile.correctness.error_model.slices import Slices
from pytest_cutile.tensors.trees import map_leaves


def run_exactly(reference: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what `reference` makes of `args` and `kwargs` upcast to float64."""
    return run_with(reference, args, kwargs, Injector())


def run_with(
    reference: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], injector: Injector
) -> Any:
    preparing = False

    def prepare(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        if tensor.is_complex():
            wide = torch.view_as_real(tensor.to(torch.complex128).resolve_conj())
            return torch.view_as_complex(injector.on_input(wide.clone()).contiguous())
        if not tensor.dtype.is_floating_point:
            return tensor.clone()
        return injector.on_input(tensor.to(torch.float64, copy=True))

    class _Mode(TorchDispatchMode):  # type: ignore[misc, no-untyped-call, unused-ignore]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # torch keeps its compiler out of modes, and to do so imports it: a second and more per process
            return "torch._dynamo" in sys.modules

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            if preparing:
                return func(*args, **(kwargs or {}))
            return injector.call(func, args, _widened(kwargs or {}))

    def prepare_slice(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal preparing
        preparing = True
        try:
            return prepare(tensor)
        finally:
            preparing = False

    def give(value: Any) -> Any:
        if isinstance(value, Slices):
            return value.made_by(prepare_slice)
        return prepare(value) if isinstance(value, torch.Tensor) else value

    given, named = map_leaves(give, tuple(args)), map_leaves(give, dict(kwargs))
    # the composed attention, whose operators the mode sees, rather than one opaque kernel
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), _Mode():  # type: ignore[no-untyped-call]
        return reference(*given, **named)


def _widened(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Widen `x.float()`, which references say to be more precise than 16 bits, to float64."""
    asked: Any = kwargs.get("dtype")
    wide = {torch.float32: torch.float64, torch.complex64: torch.complex128}.get(asked)
    return kwargs if wide is None else {**kwargs, "dtype": wide}
