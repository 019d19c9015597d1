"""Run a reference in float64, with an injector that sees its inputs and operators."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_cutile.correctness.error_model.injection import Injector
from pytest_cutile.tensors.trees import map_leaves

_OFFERED = "of an argument in sliced=... a reference gets len(x), x.shape, x.device, 'for each in x' and x[i]"


class Slices:
    """A tensor as its slices along the first dimension, each made by `make` when it is asked for."""

    def __init__(
        self, tensor: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor] = lambda each: each
    ) -> None:
        self._tensor = tensor
        self._make = make

    @property
    def shape(self) -> torch.Size:
        return self._tensor.shape

    @property
    def device(self) -> torch.device:
        return self._tensor.device

    def made_by(self, make: Callable[[torch.Tensor], torch.Tensor]) -> Slices:
        return Slices(self._tensor, make)

    def __len__(self) -> int:
        return len(self._tensor)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int | torch.Tensor) -> torch.Tensor:
        try:
            index = operator.index(number)
        except TypeError:
            raise TypeError(f"{_OFFERED}, where i is one number; got {number!r}") from None
        return self._make(self._tensor[index])

    def __getattr__(self, name: str) -> object:
        raise AttributeError(f"{_OFFERED}; there is no x.{name}")


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
