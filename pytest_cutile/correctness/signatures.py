"""What functions are called and what they take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function, without what it is nested in; of another callable that of its class."""
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return name.rpartition("<locals>.")[2]


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return what a function takes; nothing where that is not known, as of some builtins."""
    try:
        return [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return []


def parameter_names(function: Callable[..., Any]) -> list[str]:
    """Return the names of all that a function takes; none where there may be others, or that is not known."""
    parameters = parameters_of(function)
    more = any(
        parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in parameters
    )
    return [] if more else [parameter.name for parameter in parameters]


def positional_names(function: Callable[..., Any], count: int) -> list[str]:
    """Return the names of the first `count` positional arguments, by position where they have none."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters_of(function) if parameter.kind in kinds]
    return [*names[:count], *(f"argument {position}" for position in range(len(names), count))]


def resolve_arguments(option: str, wanted: Collection[str | int], names: Sequence[str]) -> set[str]:
    """Return which of `names` an option gives by name or position; raise where it names no argument."""
    if isinstance(wanted, str | int):
        raise TypeError(f"{option} is a list of arguments, by name or position; write [{wanted!r}]")
    chosen = {
        names[argument] if isinstance(argument, int) and argument < len(names) else argument
        for argument in wanted
    }
    if unknown := chosen - set(names):
        raise ValueError(f"{option} names {sorted(map(str, unknown))}, but the arguments are {[*names]}")
    return {str(name) for name in chosen}
