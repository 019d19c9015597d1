"""What the fields of a configuration may hold."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from kernels._launch import check_power_of_2

if TYPE_CHECKING:
    from collections.abc import Collection

ConfigT = TypeVar("ConfigT")

MAX_LATENCY = 10
"""Of a load, as `cuda.tile.load` takes it."""


def vary(config: ConfigT, **changes: Any) -> ConfigT:
    """Return `config` with these changes: made and checked once, because launchers ask in every call."""
    varied: ConfigT = _vary(config, **changes)
    return varied


@cache
def _vary(config: Any, **changes: Any) -> Any:
    return replace(config, **changes)


def check_fields(
    config: object,
    *,
    powers: Collection[str] = (),
    counts: Collection[str] = (),
    optional: Collection[str] = (),
) -> None:
    """Check fields of `config`, before a kernel would be compiled with them, or compute something else.

    Fields that are declared as `bool` are bools, and those declared as `float` are numbers, not negative.

    Args:
        config: The configuration.
        powers: Fields that are powers of two, as every side of a tile has to be.
        counts: Fields that are at least 1.
        optional: Fields that are at least 1, or None.

    Raises:
        TypeError: A field has another type.
        ValueError: A field is out of range.
    """
    values = vars(config)
    own: Any = type(config)
    for name, kind in _kinds(own).items():
        value = values[name]
        if kind == "bool" and not isinstance(value, bool):
            raise TypeError(f"{type(config).__name__}: {name} must be a bool, got {type(value).__name__}")
        if kind == "float":
            _check_number(config, name, value)
    for name in powers:
        value = values[name]
        if type(value) is not int or value < 1 or value & (value - 1):
            _check_integer(config, name, value)
            check_power_of_2(type(config).__name__, name, value)
    for name in counts:
        value = values[name]
        if type(value) is not int or value < 1:
            _check_count(config, name, value)
    for name in optional:
        value = values[name]
        if value is not None and (type(value) is not int or value < 1):
            _check_count(config, name, value)
        if value is not None and name.startswith("latency") and value > MAX_LATENCY:
            raise ValueError(f"{type(config).__name__}: {name} must be at most {MAX_LATENCY}, got {value}")


@cache
def _kinds(config: type) -> dict[str, Any]:
    """Return the fields of a class of configurations that are bools and floats, by name."""
    return {field.name: field.type for field in fields(config) if field.type in ("bool", "float")}


def _check_number(config: object, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{type(config).__name__}: {name} must be a number, got {type(value).__name__}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{type(config).__name__}: {name} must be finite and not negative, got {value}")


def _check_integer(config: object, name: str, value: object) -> None:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{type(config).__name__}: {name} must be an integer, got {type(value).__name__}")


def _check_count(config: object, name: str, value: int) -> None:
    _check_integer(config, name, value)
    if value < 1:
        raise ValueError(f"{type(config).__name__}: {name} must be at least 1, got {value}")
