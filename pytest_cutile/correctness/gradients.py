"""Gradients as further outputs: what `grad=True` checks, by the same bounds and guards as any output.

The launcher and its reference are wrapped alike: the wrapper runs forward, and then backward from upstream
gradients, which are further inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_cutile.correctness.error_model.running import ReferenceCall
from pytest_cutile.correctness.errors import KernelMismatch, ReferenceFailed, UncheckableOutput
from pytest_cutile.correctness.guards.launch import GuardedLauncher
from pytest_cutile.correctness.guards.launching import Launching
from pytest_cutile.correctness.signatures import function_name, positional_names
from pytest_cutile.spec import CheckOptions
from pytest_cutile.tensors.trees import Named, map_tensors, named_tensors, tensors_in

_OF = "gradient of "
"""How the names of gradients begin: of outputs those that are given, of arguments those that are returned."""
_OUTPUT = "output"
_DIFFERENTIABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SEED = 0


@dataclass(frozen=True)
class WithGradients:
    """A launcher, or a reference, that also returns gradients of some of its tensors."""

    function: Callable[..., Any]
    names: tuple[str, ...]
    """Names of all tensors among the arguments, in their order."""
    wanted: tuple[str, ...]
    """Those whose gradients are returned."""
    is_reference: bool = False

    def __post_init__(self) -> None:
        # It is called what the function is called, and takes what that takes.
        vars(self).update(__wrapped__=self.function, __qualname__=function_name(self.function))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        upstream = {name: value for name, value in kwargs.items() if name.startswith(_OF)}
        kwargs = {name: value for name, value in kwargs.items() if name not in upstream}
        with _autograd():
            result, made = _forward(self.function, args, kwargs, [name in self.wanted for name in self.names])
            outputs = dict(named_tensors(result, _OUTPUT))
            leaves = dict(zip(self.wanted, made, strict=True))
            gradients = self._gradients(outputs, upstream, leaves)
        given = [*made, *upstream.values()]
        returned = {_OF + name: _apart(gradient, given) for name, gradient in gradients.items()}
        return Named({**{name: output.detach() for name, output in outputs.items()}, **returned})

    def _gradients(
        self,
        outputs: Mapping[str, torch.Tensor],
        upstream: Mapping[str, torch.Tensor],
        leaves: Mapping[str, torch.Tensor],
    ) -> dict[str, torch.Tensor]:
        asked = {name.removeprefix(_OF): gradient for name, gradient in upstream.items()}
        differentiable = {name: outputs[name] for name in asked if name in outputs}
        if (shapes := _shapes(differentiable)) != (expected := _shapes(asked)):
            raise self._failed(f"returns {shapes or 'nothing'}, where the launcher returns {expected}")
        connected = {name: output for name, output in differentiable.items() if output.requires_grad}
        if not connected or not leaves:
            raise self._failed("returns no output that depends on its arguments by autograd")
        try:
            gradients = _backward(
                self.function, connected.values(), leaves.values(), [asked[name] for name in connected]
            )
        except Exception as error:
            if self.is_reference:
                raise self._failed(f"is not differentiable: {type(error).__name__}: {error}") from error
            raise
        by_name = {name: grad for name, grad in zip(leaves, gradients, strict=True) if grad is not None}
        missing = [name for name in leaves if name not in by_name]
        if missing and not (self.is_reference and by_name):
            raise self._failed(f"returns no gradient of {', '.join(missing)}")
        return by_name

    def _failed(self, what: str) -> Exception:
        text = f"{function_name(self.function)} {what}"
        return ReferenceFailed(f"the reference {text}") if self.is_reference else KernelMismatch(text)


def with_backward(launch: Callable[..., Any]) -> Callable[..., Any]:
    """Return a launcher that also runs backward, where what is launched matters and no gradient does."""

    @functools.wraps(launch)
    def launch_both(*args: Any, **kwargs: Any) -> Any:
        with _autograd():
            result, leaves = _forward(launch, args, kwargs, map(_is_real, tensors_in((args, kwargs))))
            if connected := [output for output in tensors_in(result) if output.requires_grad]:
                _backward(launch, connected, leaves, map(torch.ones_like, connected))
        return result

    return launch_both


@contextmanager
def _autograd() -> Iterator[None]:
    # One thread: poisoned allocations, and a pretended GPU, are of the thread that launches.
    with torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
        yield


def _forward(
    function: Callable[..., Any], args: Any, kwargs: Any, wanted: Iterable[bool]
) -> tuple[Any, list[torch.Tensor]]:
    """Return the result of a function, and the leaves that stood for those tensors that are `wanted`."""
    leaves, choices = [], iter(wanted)

    def as_leaf(tensor: torch.Tensor) -> torch.Tensor:
        if not next(choices):
            return tensor
        leaves.append(tensor.detach().requires_grad_())
        return leaves[-1]

    args, kwargs = map_tensors(as_leaf, (args, kwargs))
    return function(*args, **kwargs), leaves


def _backward(
    function: Callable[..., Any],
    outputs: Iterable[torch.Tensor],
    leaves: Iterable[torch.Tensor],
    upstream: Iterable[torch.Tensor],
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of `leaves`; what a backward pass raises says that it was one."""
    try:
        gradients: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
            [*outputs], [*leaves], [*upstream], allow_unused=True
        )
    except Exception as error:
        error.add_note(f"raised by the backward pass of {function_name(function)}")
        raise
    return gradients


def _apart(gradient: torch.Tensor, given: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a gradient in memory of its own: a backward pass may hand on what it was given."""
    storage = gradient.untyped_storage().data_ptr()
    is_given = any(tensor.untyped_storage().data_ptr() == storage for tensor in given)
    return gradient.clone() if is_given else gradient


@dataclass(frozen=True, kw_only=True)
class GradientCheck:
    """The arguments of a check that compares gradients, too."""

    fn: WithGradients
    reference: WithGradients
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: CheckOptions


def with_gradients(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    reference: Callable[..., Any],
    options: CheckOptions,
    launching: Launching,
) -> GradientCheck:
    """Return what to check so that gradients of all that the reference depends on are compared.

    Raises:
        ValueError: options that say nothing about gradients.
        ReferenceFailed: the reference cannot be differentiated.
        UncheckableOutput: the launcher returns nothing that has a gradient.
        Exception: what a first launch of `fn` raises, whose outputs say what upstream gradients look like.
    """
    if unusable := [name for name in ("mutates", "writes", "sliced") if getattr(options, name)]:
        raise ValueError(f"grad=True checks launchers that return their outputs, without {unusable[0]}=...")
    options = replace(options, grad=False, independent=None, sampled=False)
    args, kwargs = map_tensors(torch.Tensor.detach, (tuple(args), dict(kwargs)))
    outputs = GuardedLauncher(fn, args, kwargs, options, launching).launch()
    upstream = {
        _OF + name: _like(output) for name, output in named_tensors(outputs, _OUTPUT) if _is_real(output)
    }
    if not upstream:
        raise UncheckableOutput(f"grad=True: {function_name(fn)} returns nothing that has a gradient")
    positional = dict(zip(positional_names(fn, len(args)), args, strict=True))
    arguments = {**positional, **kwargs}
    named = [pair for name, value in arguments.items() for pair in named_tensors(value, name)]
    names = tuple(name for name, _ in named)
    wanted = tuple(name for name, tensor in named if _is_real(tensor))
    trial = ReferenceCall(
        reference=WithGradients(reference, names, wanted, is_reference=True),
        name=f"the reference {function_name(reference)}, with arguments that require gradients,",
        args=positional,
        kwargs={**kwargs, **upstream},
    )
    known = trial.run()
    wanted = tuple(name for name in wanted if _OF + name in known)
    return GradientCheck(
        fn=WithGradients(fn, names, wanted),
        reference=WithGradients(reference, names, wanted, is_reference=True),
        args=args,
        kwargs={**kwargs, **upstream},
        options=options,
    )


def _shapes(tensors: Mapping[str, torch.Tensor]) -> str:
    return ", ".join(f"{name} {[*tensor.shape]}" for name, tensor in tensors.items())


def _is_real(tensor: torch.Tensor) -> bool:
    return tensor.dtype in _DIFFERENTIABLE


def _like(output: torch.Tensor) -> torch.Tensor:
    """Return an upstream gradient: normal numbers in the output's dtype, the same ones each time."""
    numbers = torch.randn(output.shape, generator=torch.Generator().manual_seed(_SEED), dtype=torch.float32)
    return numbers.to(output.dtype).to(output.device)
