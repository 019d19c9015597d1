"""What the fields of a configuration may hold."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import cache
from numbers import Integral
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


def check_fields(config: object, *, powers: Collection[str] = (), limits: Collection[str] = ()) -> None:
    """Check fields of `config`, before a kernel would be compiled with them, or compute something else.

    What a field may hold is what it is declared as: a `bool`; a `float`, finite and not negative; an `int` of
    at least 1, also of NumPy; another configuration, or a tuple of them; or None, if it is declared so. What
    is declared as anything else is not looked at.

    Args:
        config: The configuration.
        powers: Integers that are powers of two, as every side of a tile has to be.
        limits: Integers that are compared with a size and nothing else, and so may be 0.

    Raises:
        TypeError: A field has another type.
        ValueError: A field is out of range.
    """
    owner = type(config).__name__
    for field in fields(config):  # type: ignore[arg-type]  # nothing types a dataclass
        name, value = field.name, getattr(config, field.name)
        declared = field.type.__name__ if isinstance(field.type, type) else str(field.type)
        kind = declared.removesuffix(" | None")
        if value is None and kind != declared:
            continue
        if kind == "bool":
            _check_type(owner, name, value, "a bool", fits=isinstance(value, bool))
        elif kind == "float":
            number = isinstance(value, int | float) and not isinstance(value, bool)
            _check_type(owner, name, value, "a number", fits=number)
            if not 0 <= value < math.inf:
                raise ValueError(f"{owner}: {name} must be finite and not negative, got {value}")
        elif kind == "int":
            integer = isinstance(value, Integral) and not isinstance(value, bool)
            _check_type(owner, name, value, "an integer", fits=integer)
            object.__setattr__(config, name, int(value))  # what the compiler takes, not NumPy's
            if name in powers:
                check_power_of_2(owner, name, value)
            least = 0 if name in limits else 1
            if value < least:
                raise ValueError(f"{owner}: {name} must be at least {least}, got {value}")
            if name.startswith("latency") and value > MAX_LATENCY:
                raise ValueError(f"{owner}: {name} must be at most {MAX_LATENCY}, got {value}")
        elif kind.startswith("tuple[") and kind.endswith("Config, ...]"):
            member = kind.removeprefix("tuple[").removesuffix(", ...]")
            _check_type(owner, name, value, f"a tuple of {member}", fits=isinstance(value, tuple))
            for i, part in enumerate(value):
                _check_type(owner, f"{name}[{i}]", part, f"a {member}", fits=_is_a(part, member))
        elif kind.endswith("Config"):
            _check_type(owner, name, value, f"a {kind}", fits=_is_a(value, kind))


def _is_a(config: object, kind: str) -> bool:
    return kind in (each.__name__ for each in type(config).__mro__)


def _check_type(owner: str, name: str, value: object, what: str, *, fits: bool) -> None:
    if not fits:
        raise TypeError(f"{owner}: {name} must be {what}, got {type(value).__name__}")
