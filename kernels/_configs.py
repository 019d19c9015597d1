"""Checks of the fields of a configuration, and changed copies of one."""

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
    """Return `config` with these changes: cached, because launchers ask in every call."""
    varied: ConfigT = _vary(config, **changes)
    return varied


@cache
def _vary(config: Any, **changes: Any) -> Any:
    return replace(config, **changes)


def check_fields(config: object, *, powers: Collection[str] = (), limits: Collection[str] = ()) -> None:
    """Check that the fields of `config` hold what they are declared as.

    A `float` has to be finite and not negative, an `int` at least 1 (NumPy's integers are fine). Also checked
    are `bool`, other configurations, tuples of them, and None where declared. Fields of other types are not
    checked.

    Args:
        config: The configuration.
        powers: Integers that are powers of two, as every side of a tile has to be.
        limits: Integers that are only compared with a size, and so may be 0.

    Raises:
        TypeError: A field has another type.
        ValueError: A field is out of range.
    """
    owner = type(config).__name__
    for field in fields(config):  # type: ignore[arg-type]  # nothing types a dataclass
        name, value = field.name, getattr(config, field.name)
        declared = field.type.__name__ if isinstance(field.type, type) else str(field.type)
        type_name = declared.removesuffix(" | None")
        if value is None and type_name != declared:
            continue
        if type_name == "bool":
            _check_type(owner, name, value, "a bool", fits=isinstance(value, bool))
        elif type_name == "float":
            number = isinstance(value, int | float) and not isinstance(value, bool)
            _check_type(owner, name, value, "a number", fits=number)
            if not 0 <= value < math.inf:
                raise ValueError(f"{owner}: {name} must be finite and not negative, got {value}")
        elif type_name == "int":
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
        elif type_name.startswith("tuple[") and type_name.endswith("Config, ...]"):
            member = type_name.removeprefix("tuple[").removesuffix(", ...]")
            _check_type(owner, name, value, f"a tuple of {member}", fits=isinstance(value, tuple))
            for i, part in enumerate(value):
                _check_type(owner, f"{name}[{i}]", part, f"a {member}", fits=_is_a(part, member))
        elif type_name.endswith("Config"):
            _check_type(owner, name, value, f"a {type_name}", fits=_is_a(value, type_name))


def _is_a(config: object, name: str) -> bool:
    return name in (base.__name__ for base in type(config).__mro__)


def _check_type(owner: str, name: str, value: object, what: str, *, fits: bool) -> None:
    if not fits:
        raise TypeError(f"{owner}: {name} must be {what}, got {type(value).__name__}")
