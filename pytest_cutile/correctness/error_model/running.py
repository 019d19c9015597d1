"""Run a reference in float64 on the arguments of a launch; an injector sees inputs and operators."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_cutile.correctness.error_model.injection import Calls, Injector
from pytest_cutile.correctness.error_model.parts import OUTPUT, WHOLE, Part, neighbours
from pytest_cutile.correctness.errors import ReferenceFailed
from pytest_cutile.correctness.run_stopped import carrying_exit
from pytest_cutile.correctness.signatures import parameters_of
from pytest_cutile.tile.tensors.trees import map_leaves, map_tensors, named_tensors
from pytest_cutile.words.spec import Axes

ORIGIN = "origin"
"""Parameter of a reference to which it matters where in the whole a part lies."""
_OFFERED = "of an argument in sliced=... a reference gets len(x), x.shape, x.device, 'for each in x' and x[i]"
ROUNDING = 1e-12
"""Relative difference that float64 sums in another order may have."""


class Slices:
    """A tensor as its slices along the first dimension, each made by `make` when it is asked for."""

    def __init__(
        self, tensor: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor] = lambda part: part
    ) -> None:
        self._tensor = tensor
        self._make = make
        self.shape = tensor.shape
        self.device = tensor.device

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


@dataclass(frozen=True, kw_only=True)
class ReferenceCall:
    """A reference with the arguments of a launch, or with a part of them."""

    reference: Callable[..., Any]
    name: str
    """What messages call it: "the reference softmax of softmax_kernel"."""
    args: Mapping[str, Any]
    """Its positional arguments before upcasting, by the names that the launcher has for them."""
    kwargs: Mapping[str, Any]
    sliced: Collection[str] = ()
    """Names of those of which it takes one slice at a time."""
    part: Part = WHOLE

    @property
    def arguments(self) -> dict[str, Any]:
        return {**self.args, **self.kwargs}

    def of(self, part: Part) -> ReferenceCall:
        return replace(self, part=part)

    def run(self, injector: Injector | None = None) -> Any:
        """Return the reference's result, exact without an injector; raise ReferenceFailed if it raised."""
        args = tuple(self._given(name, value) for name, value in self.args.items())
        kwargs = {name: self._given(name, value) for name, value in self.kwargs.items()}
        if not self.part.is_whole and any(one.name == ORIGIN for one in parameters_of(self.reference)):
            kwargs[ORIGIN] = self.part.origin(self.arguments)
        try:
            return run_with(self.reference, args, kwargs, injector)
        except ReferenceFailed:
            raise
        except Exception as error:
            where = "" if self.part.is_whole else ", for a part of its arguments, as independent=... says,"
            raise ReferenceFailed(f"{self.name}{where} raised {type(error).__name__}: {error}") from error

    def _given(self, name: str, value: Any) -> Any:
        part = self.part.of(name, value)
        return map_tensors(Slices, part) if name in self.sliced else part


def run_with(
    reference: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    injector: Injector | None = None,
) -> Any:
    """Return what `reference` makes of its arguments upcast to float64, as `injector` lets it run."""
    seeing = injector or Injector()
    calls = Calls(seeing)

    def prepare(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        if tensor.is_complex():
            wide = torch.view_as_real(tensor.to(torch.complex128).resolve_conj())
            return torch.view_as_complex(seeing.on_input(wide.clone()).contiguous())
        if not tensor.dtype.is_floating_point:
            return tensor.clone()
        return seeing.on_input(tensor.to(torch.float64, copy=True))

    def prepare_slice(tensor: torch.Tensor) -> torch.Tensor:
        calls.paused = True
        try:
            return prepare(tensor)
        finally:
            calls.paused = False

    def give(value: Any) -> Any:
        if isinstance(value, Slices):
            return value.made_by(prepare_slice)
        return prepare(value) if isinstance(value, torch.Tensor) else value

    given, named = map_leaves(give, tuple(args)), map_leaves(give, dict(kwargs))
    # the composed attention, whose operators the mode sees, rather than one opaque kernel
    with carrying_exit(), torch.no_grad(), sdpa_kernel(SDPBackend.MATH), calls:
        return reference(*given, **named)


def check_independence(call: ReferenceCall, axes: Axes, outputs: Any) -> None:
    """Raise ReferenceFailed if the reference of a few neighbours is not that of their halves."""
    for axis, both, halves in neighbours(axes, call.arguments, outputs):
        together = call.of(both).run()
        first, last, _ = both.ranges[axis]
        for half in halves:
            begin, end, _ = half.ranges[axis]
            inside = Part(axes=axes, ranges={axis: (begin - first, end - first, last - first)})
            expected = dict(named_tensors(inside.of(OUTPUT, together), OUTPUT))
            alone = dict(named_tensors(call.of(half).run(), OUTPUT))
            if alone.keys() != expected.keys() or not all(
                _is_same(alone[name], expected[name]) for name in alone
            ):
                raise ReferenceFailed(
                    f"{call.name} returns something else for a part of its arguments than for that part "
                    f"among others: it is not independent along {axis!r}, as {dict(axes)!r} says"
                )


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.dtype.is_floating_point:
        return torch.equal(one, other)
    largest = one.abs().nan_to_num(posinf=0.0).max().item() if one.numel() else 0.0
    return torch.allclose(one, other, rtol=0.0, atol=ROUNDING * largest, equal_nan=True)
