"""Gradients as further outputs: what `grad=True` checks, by the same bounds and guards as any output.

The launcher and its reference are wrapped alike. The wrapper runs forward, and then backward from upstream
gradients, which are further inputs: so they lie between redzones, in other layouts, and may not be changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_cutile.correctness.error_model.running import run_with
from pytest_cutile.correctness.errors import KernelMismatch, ReferenceFailed, UncheckableOutput
from pytest_cutile.correctness.guards.launch import GuardedLauncher, LauncherCall
from pytest_cutile.correctness.signatures import name_of, positional_names
from pytest_cutile.spec import CheckOptions
from pytest_cutile.tensors.trees import Named, map_tensors, named_tensors

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
        vars(self).update(__wrapped__=self.function, __qualname__=name_of(self.function))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        upstream = {name: value for name, value in kwargs.items() if name.startswith(_OF)}
        kwargs = {name: value for name, value in kwargs.items() if name not in upstream}
        leaves: dict[str, torch.Tensor] = {}
        names = iter(self.names)

        def as_leaf(tensor: torch.Tensor) -> torch.Tensor:
            name = next(names)
            if name not in self.wanted:
                return tensor
            leaves[name] = tensor.detach().requires_grad_()
            return leaves[name]

        # One thread: poisoned allocations, and a pretended GPU, are of the thread that launches.
        with torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
            args, kwargs = map_tensors(as_leaf, (args, kwargs))
            outputs = dict(named_tensors(self.function(*args, **kwargs), _OUTPUT))
            gradients = self._gradients(outputs, upstream, leaves)
        given = [*leaves.values(), *upstream.values()]
        returned = {_OF + name: _apart(gradient, given) for name, gradient in gradients.items()}
        return Named({**{name: output.detach() for name, output in outputs.items()}, **returned})

    def _gradients(
        self,
        outputs: Mapping[str, torch.Tensor],
        upstream: Mapping[str, torch.Tensor],
        leaves: Mapping[str, torch.Tensor],
    ) -> dict[str, torch.Tensor]:
        differentiable = {name: outputs[name] for name in outputs if _OF + name in upstream}
        connected = {name: output for name, output in differentiable.items() if output.requires_grad}
        if not connected and leaves:
            raise self._failed("returns no output that depends on its arguments by autograd")
        gradients = torch.autograd.grad(
            [*connected.values()],
            [*leaves.values()],
            [upstream[_OF + name] for name in connected],
            allow_unused=True,
        )
        found = {name: one for name, one in zip(leaves, gradients, strict=True) if one is not None}
        if not self.is_reference and (missing := [name for name in leaves if name not in found]):
            raise self._failed(f"returns no gradient of {', '.join(missing)}")
        return found

    def _failed(self, what: str) -> Exception:
        text = f"{name_of(self.function)} {what}"
        return ReferenceFailed(f"the reference {text}") if self.is_reference else KernelMismatch(text)


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
    run: LauncherCall | None,
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
    outputs = GuardedLauncher(fn, args, kwargs, options, run).launch()
    upstream = {
        _OF + name: _like(output) for name, output in named_tensors(outputs, _OUTPUT) if _is_real(output)
    }
    if not upstream:
        raise UncheckableOutput(f"grad=True: {name_of(fn)} returns nothing that has a gradient")
    arguments = {**dict(zip(positional_names(fn, len(args)), args, strict=True)), **kwargs}
    named = [pair for name, value in arguments.items() for pair in named_tensors(value, name)]
    names = tuple(name for name, _ in named)
    wanted = tuple(name for name, tensor in named if _is_real(tensor))
    trial = WithGradients(reference, names, wanted, is_reference=True)
    known = run_with(trial, args, {**kwargs, **upstream})
    wanted = tuple(name for name in wanted if _OF + name in known)
    if not wanted:
        raise ReferenceFailed(f"the reference {name_of(reference)} has a gradient of none of its arguments")
    return GradientCheck(
        fn=WithGradients(fn, names, wanted),
        reference=WithGradients(reference, names, wanted, is_reference=True),
        args=args,
        kwargs={**kwargs, **upstream},
        options=options,
    )


def _is_real(tensor: torch.Tensor) -> bool:
    return tensor.dtype in _DIFFERENTIABLE


def _like(output: torch.Tensor) -> torch.Tensor:
    """Return an upstream gradient: normal numbers in the output's dtype, the same ones each time."""
    numbers = torch.randn(output.shape, generator=torch.Generator().manual_seed(_SEED), dtype=torch.float32)
    return numbers.to(output.dtype).to(output.device)
