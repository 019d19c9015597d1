"""What a function reaches through names: other functions, classes, and values, as text.

The text is the same in every process, for every place of the files, and for all versions of Python from 3.11
on: it holds names, source (`fingerprint.functions`) and values, but no addresses and no hashes.

Names are resolved as cuda-tile does: the closure, then globals, then builtins; of `Config.TILE`,
`config.tile` or `helpers.swizzle` only that attribute counts. What belongs to cuda.tile, torch, numpy or the
standard library is named and not followed; any other library is the kernel's source too. A user's function or
class goes by its name and content, never by its module, so code can move. What a library wrapped around a
user's function (`ct.function`, `functools.cache`) goes by that function.

Not seen are imports within functions, functions that no name leads to (those in a dict are seen, those that a
call returns are not), and the state of a library's object, which goes by its type. A function without source
(`exec`) goes by its bytecode, which depends on Python's version. Values are those of now, while cuda-tile
keeps the ones it saw when it first translated a function.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import functools
import inspect
import os
import sys
from pathlib import Path
from types import (
    BuiltinFunctionType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import TYPE_CHECKING, Any

from pytest_cutile.compiler.fingerprint.functions import read_function

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_cutile.compiler.fingerprint.functions import Chain

_LIBRARIES = {"cuda", "torch", "numpy"}
_STANDARD_LIBRARY = Path(os.__file__).parent
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
_RENDERED_BY_STR = {"cuda:DType", "torch:dtype", "decimal:Decimal", "fractions:Fraction"}
_MISSING = object()


def describe_function(function: FunctionType) -> list[str]:
    """Return lines about `function` and everything it reaches."""
    description = _Description()
    description.refer(function)
    return description.finish()


def describe_value(value: Any) -> str:
    """Return one line about a constant: a number, a string, a dtype, a tuple of such."""
    description = _Description()
    return "; ".join([description.render(value), *description.finish()])


# -- functions, classes and values --------------------------------------------------------------------


class _Description:
    """Lines of text about functions, classes and values.

    Functions and classes are described once and referred to by number, in the order they are reached: so
    recursion ends, and references need no address.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._numbers: dict[int, int] = {}
        self._reached: list[FunctionType | type] = []  # also keeps what `_numbers` has the ids of alive
        self._open: set[int] = set()

    def finish(self) -> list[str]:
        """Return the lines about all that was referred to, and about what that refers to."""
        described = 0
        while described < len(self._reached):
            thing = self._reached[described]
            if isinstance(thing, type):
                self._describe_class(f"#{described}", thing)
            else:
                self._describe_function(f"#{described}", thing)
            described += 1
        return self._lines

    def refer(self, thing: FunctionType | type) -> str:
        """Return the number that stands for a user's function or class."""
        if id(thing) not in self._numbers:
            self._numbers[id(thing)] = len(self._reached)
            self._reached.append(thing)
        return f"#{self._numbers[id(thing)]}"

    def _describe_function(self, number: str, function: FunctionType) -> None:
        written = read_function(function)
        self._lines.append(f"{number} {written.text}")
        for name, text in written.decorators:
            # The hints in `@ct.kernel(...)` may not be those that are compiled with.
            if _qualified_name(_resolve(function, name, into_libraries=True)[1]) != "cuda:kernel":
                self._lines.append(f"{number} decorator {text}")
        defaults = [*enumerate(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
        for place, default in defaults:
            self._lines.append(f"{number} default {place} = {self.render(default)}")
        resolved = dict(_resolve(function, read) for read in written.reads)
        for used, value in resolved.items():
            self._lines.append(f"{number} {'.'.join(used)} = {self.render(value)}")

    def _describe_class(self, number: str, cls: type) -> None:
        """Describe what instances share: methods and attributes, without fields and members."""
        self._lines.append(f"{number} class {cls.__name__}({', '.join(map(self._type_name, cls.__bases__))})")
        own = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
        own |= set(getattr(cls, "__members__", ()))
        for name, value in sorted(vars(cls).items()):
            methods = [function for function in _functions_in(value) if _is_users(function)]
            if methods:
                # Generated methods (a dataclass's `__init__`) follow from the fields.
                counts = all(read_function(function).has_source for function in methods)
            else:
                counts = name not in own and not (name.startswith("_") and name.endswith("_"))
            if counts:
                self._lines.append(f"{number} {name} = {self.render(value)}")

    def render(self, value: Any) -> str:
        """Return `value` as text; functions and classes in it by number."""
        if id(value) in self._open:
            return "(itself)"
        self._open.add(id(value))
        try:
            return self._render_name(value) or self._render_content(value)
        finally:
            self._open.discard(id(value))

    def _render_name(self, value: Any) -> str | None:  # noqa: PLR0911  # one line for each type
        """Return text for modules, classes and what can be called; None for other values."""
        if isinstance(value, ModuleType):
            # A user's module may move, and is known by what is taken of it.
            return f"module {value.__name__.rpartition('.')[2] if _is_users(value) else value.__name__}"
        if isinstance(value, type):
            return f"class {self._type_name(value)}{self._constructor(value) if _is_users(value) else ''}"
        if isinstance(value, FunctionType) and _is_users(value):
            return f"function {self.refer(value)}"
        if isinstance(value, MethodType):
            return f"method {self.render(value.__func__)} of {self.render(value.__self__)}"
        if isinstance(value, functools.partial):
            parts = (value.func, value.args, value.keywords)
            return f"partial({', '.join(map(self.render, parts))})"
        if functions := _functions_in(value, in_descriptors_only=True):
            return f"{type(value).__name__}({', '.join(map(self.render, functions))})"
        wrapped = None if _is_users(value) else getattr(value, "__wrapped__", None)
        if callable(wrapped):
            return self.render(wrapped)
        return _qualified_name(value) if isinstance(value, FunctionType | BuiltinFunctionType) else None

    def _type_name(self, cls: type) -> str:
        return self.refer(cls) if _is_users(cls) else _qualified_name(cls)

    def _constructor(self, cls: type) -> str:
        """Return what matters when a user's class itself is used, and not for each of its instances."""
        if issubclass(cls, enum.Enum):
            return f"({self._pairs((name, member.value) for name, member in cls.__members__.items())})"
        if not dataclasses.is_dataclass(cls):
            return ""
        defaults = []
        for field in dataclasses.fields(cls):
            made = field.default_factory is not dataclasses.MISSING
            default = field.default_factory if made else field.default
            none = default is dataclasses.MISSING
            defaults.append(f"{field.name}{'' if none else ' made by ' if made else ' = '}")
            defaults[-1] += "" if none else self.render(default)
        return f"({', '.join(defaults)})"

    def _render_content(self, value: Any) -> str:  # noqa: PLR0911  # one line for each type
        name = self._type_name(type(value))
        if value is _MISSING:
            return "unresolved"
        if type(value) in _PLAIN:
            return repr(value)
        if isinstance(value, enum.Enum):
            # What number a library gives to its members is the library's.
            return f"{name}.{value.name}{f'({self.render(value.value)})' if _is_users(type(value)) else ''}"
        if name.startswith("numpy:") and hasattr(value, "tolist"):
            return f"{name}({value.dtype}, {self.render(value.tolist())})"
        if name in _RENDERED_BY_STR or (name.startswith("numpy:") and hasattr(value, "newbyteorder")):
            return f"{name.partition(':')[0]} {value}"
        if isinstance(value, dict | MappingProxyType):
            items = (f"{self.render(key)}: {self.render(item)}" for key, item in value.items())
            return f"{name}({', '.join(items)})"
        if isinstance(value, set | frozenset):
            return f"{name}({', '.join(sorted(map(self.render, value)))})"
        if isinstance(value, tuple | list):
            return f"{name}({', '.join(map(self.render, value))})"
        for plain in (int, float, complex, str, bytes):
            if isinstance(value, plain):
                return f"{name}({plain.__repr__(value)})"
        return f"{name}({self._pairs(_attributes(value))})"

    def _pairs(self, pairs: Iterable[tuple[str, Any]]) -> str:
        return ", ".join(f"{name} = {self.render(value)}" for name, value in pairs)


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """Return the attributes that an object consists of; none for a library's."""
    if isinstance(value, range | slice):
        return [(name, getattr(value, name)) for name in ("start", "stop", "step")]
    if not (_is_users(type(value)) or isinstance(value, SimpleNamespace)):
        return []
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return [(name, getattr(value, name, _MISSING)) for name in names]
    attributes = _state(value).items()
    # Whether a cached property was asked for yet says nothing.
    return sorted(pair for pair in attributes if not _is_cached_property(type(value), pair[0]))


def _is_cached_property(cls: type, name: str) -> bool:
    return isinstance(inspect.getattr_static(cls, name, None), functools.cached_property)


def _functions_in(value: Any, *, in_descriptors_only: bool = False) -> list[FunctionType]:
    """Return the functions that an attribute of a class consists of; none if it is anything else."""
    if isinstance(value, property):
        inner: tuple[Any, ...] = (value.fget, value.fset, value.fdel)
    elif isinstance(value, staticmethod | classmethod):
        inner = (value.__func__,)
    elif isinstance(value, functools.cached_property):
        inner = (value.func,)
    else:
        inner = () if in_descriptors_only else (value,)
    return [function for function in inner if isinstance(function, FunctionType)]


# -- names ------------------------------------------------------------------------------------------


def _resolve(function: FunctionType, name: Chain, *, into_libraries: bool = False) -> tuple[Chain, Any]:
    """Return the part of `name` that could be followed from `function`, and what it stands for."""
    if not name:
        return (), _MISSING
    value = _lookup(function, name[0])
    for depth, attribute in enumerate(name[1:], start=1):
        followed = _attribute(value, attribute) if into_libraries or _is_users(value) else _MISSING
        if followed is _MISSING:
            return name[:depth], value
        value = followed
    return name, value


def _lookup(function: FunctionType, name: str) -> Any:
    free = function.__code__.co_freevars
    if name in free and function.__closure__ is not None:
        try:
            return function.__closure__[free.index(name)].cell_contents
        except ValueError:  # not bound yet
            return _MISSING
    for names in (function.__globals__, vars(builtins)):
        if name in names:
            return names[name]
    return _MISSING


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute where taking it runs no code of the user's."""
    if isinstance(value, ModuleType | type):
        return getattr(value, name, _MISSING)
    if dataclasses.is_dataclass(value) and any(field.name == name for field in dataclasses.fields(value)):
        return getattr(value, name, _MISSING)
    return _state(value).get(name, _MISSING)


def _state(value: Any) -> dict[str, Any]:
    """Return the attributes of an object itself, in `__dict__` or in slots; nothing of the user's runs."""
    slots = [
        name
        for owner in type(value).__mro__
        for name, member in vars(owner).items()
        if isinstance(member, MemberDescriptorType)
    ]
    held = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {**held, **getattr(value, "__dict__", {})}


def _is_users(value: Any) -> bool:
    """Return whether `value` is, or is an instance of, what a kernel's author or a helper library wrote."""
    return not _is_left_alone(_module_name(value).partition(".")[0])


@functools.cache
def _is_left_alone(package: str) -> bool:
    if package in _LIBRARIES:
        return True
    if package not in sys.stdlib_module_names:
        return False
    # A user's `statistics.py` may have the name of a standard module.
    file = getattr(sys.modules.get(package), "__file__", None)
    return file is None or Path(file).is_relative_to(_STANDARD_LIBRARY)


def _module_name(value: Any) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, FunctionType):
        # Not `__module__`, which wrappers take over from what they wrap.
        return str(value.__globals__.get("__name__"))
    if isinstance(value, type | BuiltinFunctionType):
        return str(value.__module__ or "builtins")
    return str(type(value).__module__)


def _qualified_name(value: Any) -> str:
    """Return the name of a library's function or class, without the private module that may hold it."""
    package = _module_name(value).partition(".")[0].lstrip("_")
    return f"{package}:{getattr(value, '__qualname__', type(value).__qualname__)}"
