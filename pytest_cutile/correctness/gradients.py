"""Gradients as further outputs: what `grad=True` checks, by the same bounds and guards as any output.

The launcher and its reference are wrapped alike: the wrapper runs forward, and then backward from upstream
gradients, which are further inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_cutile.correctness.error_model.running import ReferenceCall
from pytest_cutile.correctness.errors import KernelMismatch, ReferenceFailed, UncheckableOutput
from pytest_cutile.correctness.guards.launch import GuardedLauncher, choose
from pytest_cutile.correctness.guards.launching import Launching
from pytest_cutile.correctness.signatures import function_name, positional_names, resolve_arguments
from pytest_cutile.tile.tensors.trees import Named, map_tensors, named_tensors, tensors_in
from pytest_cutile.words.spec import CheckOptions

_OF = "gradient of "
"""How the names of gradients begin: of outputs those that are given, of arguments those that are returned."""
_OUTPUT = "output"
REPEATED = "a second backward pass"
EXPANDED = "an upstream gradient of stride 0"
_DIFFERENTIABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SEED = 0


class NoSecondPass(Exception):  # noqa: N818 - no error: backward may refuse
    """A backward pass ran once, and raised when it was asked again."""


@dataclass(frozen=True)
class WithGradients:
    """A launcher, or a reference, that also returns gradients of some of its tensors."""

    function: Callable[..., Any]
    positional: tuple[str, ...]
    """Names of the positional arguments."""
    names: tuple[str, ...]
    """Names of all tensors among the arguments, in their order."""
    wanted: tuple[str, ...]
    """Those whose gradients are returned."""
    written: tuple[str, ...] = ()
    """The arguments that are its outputs where it returns none."""
    is_reference: bool = False
    is_repeated: bool = False
    """Whether backward runs twice, and the gradients of the second pass are returned."""

    def __post_init__(self) -> None:
        # It is called what the function is called, and takes what that takes.
        vars(self).update(__wrapped__=self.function, __qualname__=function_name(self.function))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        upstream = {name: value for name, value in kwargs.items() if is_upstream(name)}
        kwargs = {name: value for name, value in kwargs.items() if name not in upstream}
        with _autograd():
            forward = _Forward.run(self.function, args, kwargs, [name in self.wanted for name in self.names])
            result = forward.result
            if result is None:
                given = dict(zip(self.positional, forward.args, strict=True)) | forward.kwargs
                result = choose(given, self.written)
            outputs = dict(named_tensors(result, _OUTPUT))
            leaves = dict(zip(self.wanted, forward.leaves, strict=True))
            gradients = self._gradients(outputs, upstream, leaves)
        given_memory = [*forward.leaves, *upstream.values()]
        returned = {_OF + name: _apart(gradient, given_memory) for name, gradient in gradients.items()}
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
            gradients = self._backward(
                [*connected.values()], [*leaves.values()], [asked[name] for name in connected]
            )
        except Exception as error:
            if self.is_reference:
                raise self._failed(f"is not differentiable: {type(error).__name__}: {error}") from error
            raise
        by_name = {name: grad for name, grad in zip(leaves, gradients, strict=True) if grad is not None}
        missing = [name for name in leaves if name not in by_name]
        if missing and not (self.is_reference and by_name):
            raise self._failed(
                f"returns no gradient of {', '.join(missing)}\n"
                f"if there is none by design, as of a table, say so with no_grad={missing!r}"
            )
        return by_name

    def _backward(
        self,
        outputs: Sequence[torch.Tensor],
        leaves: Sequence[torch.Tensor],
        upstream: Sequence[torch.Tensor],
    ) -> Sequence[torch.Tensor | None]:
        if not self.is_repeated:
            return _backward(self.function, outputs, leaves, upstream)
        # The first pass may change its upstream gradients, if that is declared.
        copies = [gradient.clone() for gradient in upstream]
        _backward(self.function, outputs, leaves, copies, keep_graph=True)
        try:
            return _backward(self.function, outputs, leaves, upstream)
        except Exception as error:
            if _is_fault(error):
                raise
            raise NoSecondPass(f"{type(error).__name__}: {error}") from error

    def _failed(self, what: str) -> Exception:
        text = f"{function_name(self.function)} {what}"
        return ReferenceFailed(f"the reference {text}") if self.is_reference else KernelMismatch(text)


def is_upstream(name: str) -> bool:
    """Say whether an argument of a launcher with gradients is an upstream gradient."""
    return name.startswith(_OF)


def _is_fault(error: BaseException) -> bool:
    """Say whether an error is more than a refusal: what the check, the compiler or CUDA raises."""
    package = type(error).__module__.partition(".")[0]
    return package in {"pytest_cutile", "torch", "cuda"} or "CUDA" in str(error)


def with_backward(launch: Callable[..., Any], no_grad: Collection[str | int] = ()) -> Callable[..., Any]:
    """Return a launcher that also runs backward, where what is launched matters and no gradient does."""

    @functools.wraps(launch)
    def launch_both(*args: Any, **kwargs: Any) -> Any:
        named = [*zip(positional_names(launch, len(args)), args, strict=True), *kwargs.items()]
        tensors = _named_in(dict(named))
        left_out = _without_gradient(no_grad, dict(named))
        wanted = [_is_real(tensor) and name not in left_out for name, tensor in tensors.items()]
        with _autograd():
            forward = _Forward.run(launch, args, kwargs, wanted)
            outputs = tensors_in(forward.result) if forward.result is not None else forward.changed
            if connected := [output for output in outputs if output.requires_grad]:
                _backward(launch, connected, forward.leaves, [*map(torch.ones_like, connected)])
        return forward.result

    return launch_both


@contextmanager
def _autograd() -> Iterator[None]:
    # One thread: poisoned allocations, and a pretended GPU, are of the thread that launches.
    with torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
        yield


class _InSameMemory(torch.autograd.Function):
    """Hands on a leaf: the result may be changed in place, as a leaf that requires a gradient may not."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)  # else no gradient would be one of zeros
        return leaf.detach()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor | None) -> torch.Tensor | None:
        return gradient


@dataclass(frozen=True, kw_only=True)
class _Forward:
    """A function that has run on tensors which require gradients."""

    result: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[torch.Tensor]
    """What stands for each tensor of which a gradient is wanted."""
    changed: list[torch.Tensor]
    """The tensors among the arguments that the function has changed in place, as autograd knows."""

    @classmethod
    def run(cls, function: Callable[..., Any], args: Any, kwargs: Any, wanted: Iterable[bool]) -> _Forward:
        leaves: list[torch.Tensor] = []
        given: list[tuple[torch.Tensor, Any]] = []
        choices = iter(wanted)

        def as_wanted(tensor: torch.Tensor) -> torch.Tensor:
            if not next(choices):
                return tensor
            leaves.append(tensor.detach().requires_grad_())
            shared: torch.Tensor = _InSameMemory.apply(leaves[-1])  # type: ignore[no-untyped-call]
            given.append((shared, shared.grad_fn))
            return shared

        args, kwargs = map_tensors(as_wanted, (tuple(args), dict(kwargs)))
        result = function(*args, **kwargs)
        changed = [tensor for tensor, before in given if tensor.grad_fn is not before]
        return cls(result=result, args=args, kwargs=kwargs, leaves=leaves, changed=changed)


def _backward(
    function: Callable[..., Any],
    outputs: Sequence[torch.Tensor],
    leaves: Sequence[torch.Tensor],
    upstream: Sequence[torch.Tensor],
    *,
    keep_graph: bool = False,
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of `leaves`; what a backward pass raises says that it was one."""
    try:
        gradients: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
            outputs, leaves, upstream, retain_graph=keep_graph, allow_unused=True
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

    def expanded(self, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return arguments with the upstream gradients that `.sum().backward()` gives: ones of stride 0.

        Those stay that backward may change: it can change nothing in place that shares its memory. None: no
        other is larger than one element.
        """
        names = [
            name
            for name, value in arguments.items()
            if is_upstream(name) and name not in self.options.mutates and value.numel() > 1
        ]
        if not names:
            return None
        return {**arguments, **{name: _ones_of_stride_0(arguments[name]) for name in names}}


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
        ValueError: options that say nothing about gradients, or name no argument.
        ReferenceFailed: the reference cannot be differentiated.
        UncheckableOutput: the launcher returns nothing that has a gradient.
        Exception: what a first launch of `fn` raises, whose outputs say what upstream gradients look like.
    """
    if options.sliced:
        raise ValueError("grad=True needs a reference that takes whole arguments, without sliced=...")
    options = replace(options, grad=False, independent=None, sampled=False)
    args, kwargs = map_tensors(torch.Tensor.detach, (tuple(args), dict(kwargs)))
    of_inputs = replace(options, mutates=_of_inputs(options.mutates))
    launcher = GuardedLauncher(fn, args, kwargs, of_inputs, launching)
    outputs = launcher.trial()
    upstream = {
        _OF + name: _like(output) for name, output in named_tensors(outputs, _OUTPUT) if _is_real(output)
    }
    if not upstream:
        raise UncheckableOutput(f"grad=True: {function_name(fn)} returns nothing that has a gradient")
    if [*upstream] == [_OF + _OUTPUT]:  # the only output may be called the first one
        alias = {f"{_OF}{_OUTPUT}[0]": _OF + _OUTPUT}
        options = replace(options, mutates=[alias.get(str(name), name) for name in options.mutates])
    arguments, positional = launcher.by_name(args, kwargs), launcher.by_name(args, {})
    named = _named_in(arguments)
    left_out = _without_gradient(options.no_grad, arguments) | _without_gradient(options.writes, arguments)
    wanted = tuple(name for name, tensor in named.items() if _is_real(tensor) and name not in left_out)
    differentiated = functools.partial(
        WithGradients, positional=tuple(positional), names=tuple(named), written=launcher.written
    )
    trial = ReferenceCall(
        reference=differentiated(reference, wanted=wanted, is_reference=True),
        name=f"the reference {function_name(reference)}, with arguments that require gradients,",
        args=positional,
        kwargs={**kwargs, **upstream},
    )
    known = trial.run()
    wanted = tuple(name for name in wanted if _OF + name in known)
    return GradientCheck(
        fn=differentiated(fn, wanted=wanted),
        reference=differentiated(reference, wanted=wanted, is_reference=True),
        args=args,
        kwargs={**kwargs, **upstream},
        options=options,
    )


def _of_inputs(mutates: Collection[str | int]) -> Collection[str | int]:
    """Return which arguments forward may change: upstream gradients are those of backward."""
    if isinstance(mutates, str | int):  # which is refused, in words
        return mutates
    return [argument for argument in mutates if not is_upstream(str(argument))]


def _named_in(arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return all tensors among arguments, by names of their own, in their order."""
    return dict(pair for name, value in arguments.items() for pair in named_tensors(value, name))


def _without_gradient(no_grad: Collection[str | int], arguments: Mapping[str, Any]) -> set[str]:
    """Return the names of the tensors that `no_grad` gives, by argument or by a name of their own."""
    tensors = {name: {*_named_in({name: value})} for name, value in arguments.items()}
    inner = [name for names in tensors.values() for name in sorted(names) if name not in tensors]
    chosen = resolve_arguments("no_grad", no_grad, [*tensors, *inner])
    return chosen.union(*(tensors[name] for name in chosen if name in tensors))


def _shapes(tensors: Mapping[str, torch.Tensor]) -> str:
    return ", ".join(f"{name} {[*tensor.shape]}" for name, tensor in tensors.items())


def _is_real(tensor: torch.Tensor) -> bool:
    return tensor.dtype in _DIFFERENTIABLE


def _like(output: torch.Tensor) -> torch.Tensor:
    """Return an upstream gradient: normal numbers in the output's dtype, the same ones each time."""
    numbers = torch.randn(output.shape, generator=torch.Generator().manual_seed(_SEED), dtype=torch.float32)
    return numbers.to(output.dtype).to(output.device)


def _ones_of_stride_0(gradient: torch.Tensor) -> torch.Tensor:
    return torch.ones((), dtype=gradient.dtype, device=gradient.device).expand(gradient.shape)
