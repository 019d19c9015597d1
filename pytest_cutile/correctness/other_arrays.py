"""Launchers that take or return arrays of another library than torch: a check sees them with tensors.

Guards, layouts, reference and comparison work on tensors. The launcher gets back the kind of array that the
author gave, on the memory of those tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_cutile.correctness.signatures import function_name
from pytest_cutile.tile.tensors.other_arrays import (
    ArrayMaker,
    as_array,
    as_tensor,
    is_array,
    maker_of,
    on_memory_of,
)
from pytest_cutile.tile.tensors.trees import map_leaves, tensors_in


@dataclass(frozen=True)
class TakesTensors:
    """A launcher that takes tensors in place of arrays, and returns tensors."""

    function: Callable[..., Any]
    makers: tuple[ArrayMaker | None, ...]
    """For each argument, or each item of tuples, lists and dicts, what makes the author's kind of array of a
    tensor; None: it stays."""

    def __post_init__(self) -> None:
        # It is called what the function is called, and takes what that takes.
        vars(self).update(__wrapped__=self.function, __qualname__=function_name(self.function))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = tensors_in((args, kwargs))
        makers = iter(self.makers)

        def own(value: Any) -> Any:
            make = next(makers, None)
            return value if make is None else as_array(make, value)

        if any(tensor.is_cuda for tensor in given) and torch.cuda.is_available():
            torch.cuda.synchronize()  # the launcher may use another stream than torch, which wrote the inputs
        args, kwargs = map_leaves(own, (args, kwargs))
        return map_leaves(lambda value: _returned(value, given), self.function(*args, **kwargs))


def _returned(value: Any, given: Sequence[torch.Tensor]) -> Any:
    return on_memory_of(given, as_tensor(value)) if is_array(value) else value


def with_tensors(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return a launcher and its arguments with a tensor for each array of another library.

    NumPy's arrays beside tensors stay what they are: data of the host.

    Raises:
        TypeError: an array cannot be seen as a tensor, or made of one.
    """
    arguments = tuple(args), dict(kwargs)
    makers: list[ArrayMaker | None] = []
    has_tensors = bool(tensors_in(arguments))

    def convert(value: Any) -> Any:
        is_other = is_array(value, beside_tensors=has_tensors)
        makers.append(maker_of(value) if is_other else None)
        return as_tensor(value) if is_other else value

    positional, named = map_leaves(convert, arguments)
    return TakesTensors(fn, tuple(makers) if any(makers) else ()), positional, named
