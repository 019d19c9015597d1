"""Tensors inside tuples, lists and dicts: the arguments and results of a launch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pytest_cutile.tile.compiler.trace.launches import pretended_backing
from pytest_cutile.tile.tensors.dtypes import name_of, same_bits


class Named(dict[str, Any]):
    """Results by names of their own: its keys are what messages call them."""


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """Return `value` with `function` applied to every tensor in it; everything else is kept."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, torch.Tensor) else leaf, value)


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Return `value` with `function` applied to everything in tuples, lists and dicts."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_leaves(function, item) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_leaves(function, item) for item in value)
    if isinstance(value, dict):
        mapped = copy.copy(value)  # a defaultdict stays one
        mapped.update((key, map_leaves(function, item)) for key, item in value.items())
        return mapped
    return function(value)


def named_leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield everything in tuples, lists and dicts with where it is: ("output[1]", 3.0)."""
    if isinstance(value, (tuple, list)):
        for position, item in enumerate(value):
            yield from named_leaves(item, f"{name}[{position}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from named_leaves(item, key if isinstance(value, Named) else f"{name}[{key!r}]")
    else:
        yield name, value


def named_tensors(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    return ((place, leaf) for place, leaf in named_leaves(value, name) if isinstance(leaf, torch.Tensor))


def tensors_in(value: Any) -> list[torch.Tensor]:
    return [tensor for _, tensor in named_tensors(value, "")]


def is_on_gpu(tensor: torch.Tensor) -> bool:
    """Say whether a tensor lies in a GPU's memory, which is not so where one is pretended."""
    return pretended_backing() is None and tensor.is_cuda


def have_same_bits(one: Any, other: Any) -> bool:
    left, right = dict(named_tensors(one, "")), dict(named_tensors(other, ""))
    return left.keys() == right.keys() and all(
        (left[name].shape, left[name].dtype) == (right[name].shape, right[name].dtype)
        and same_bits(left[name], right[name])
        for name in left
    )


def describe(value: Any) -> str:
    """Return the structure of a result in one line: "(float16 [4, 8], int32 [4])"."""
    if isinstance(value, torch.Tensor):
        return f"{name_of(value.dtype)} {list(value.shape)}"
    if isinstance(value, (tuple, list)):
        inner = ", ".join(describe(item) for item in value)
        return f"({inner})" if isinstance(value, tuple) else f"[{inner}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {describe(item)}" for key, item in value.items()) + "}"
    return "None" if value is None else type(value).__name__
