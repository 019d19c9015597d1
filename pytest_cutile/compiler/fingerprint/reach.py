"""What a function reaches through names: other functions, classes, and values, as text.

The text is the same in every process and for every place of the files: it holds names, source
(`fingerprint.written`) and values, but no addresses and no hashes.

Names are resolved as cuda-tile does: the closure, then globals, then builtins; of `Config.TILE`,
`config.tile` or `helpers.swizzle` only that attribute counts. What belongs to cuda.tile, torch, numpy or the
standard library is named and not followed; any other library is the kernel's source too. A user's function or
class goes by its name and content, never by its module, so code can move. What a library wrapped around a
user's function (`ct.function`, `functools.cache`) goes by that function.

Not seen are imports within functions, functions that no name leads to (those in a dict are seen, those that a
call returns are not), and the state of a library's object, which goes by its type. A function without source
(`exec`), and lambdas that share a line, go by their bytecode, which depends on Python's version. Values are
those of now, while cuda-tile keeps the ones it saw when it first translated a function.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import functools
import inspect
import os
import sys
from collections.abc import Iterable, Iterator
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
from typing import Any

from pytest_cutile.compiler.fingerprint.written import Chain, read_function

_LIBRARIES = {"cuda", "torch", "numpy"}
_STANDARD_LIBRARY = Path(os.__file__).parent
_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice, type(...), type(NotImplemented))
_RENDERED_BY_STR = {"cuda:DType", "torch:dtype", "decimal:Decimal", "fractions:Fraction"}
_WRAPPED = ("fget", "fset", "fdel", "__func__", "func")
"""Where properties, cached properties, static and class methods keep their functions."""
_MISSING = object()


def describe_kernel(function: FunctionType) -> list[str]:
    """Return lines about a kernel's function and everything it reaches."""
    description = _Description(kernel=function)
    description.refer(function)
    return description.finish()


def describe_value(value: Any) -> str:
    """Return one line about a constant: a number, a string, a dtype, a tuple of such."""
    description = _Description()
    return "; ".join([description.render(value), *description.finish()])


class _Description:
    """Lines of text about functions, classes and values.

    Functions and classes are described once and referred to by number, in the order they are reached: so
    recursion ends, and references need no address.
    """

    def __init__(self, kernel: FunctionType | None = None) -> None:
        self._kernel = kernel
        self._lines: list[str] = []
        self._numbers: dict[int, int] = {}
        self._reached: list[FunctionType | type] = []  # also keeps what `_numbers` has the ids of alive
        self._open: set[int] = set()

    def finish(self) -> list[str]:
        """Return the lines about all that was referred to, and about what that refers to."""
        for number, thing in enumerate(self._reached):  # which grows meanwhile
            if isinstance(thing, type):
                bases = ", ".join(map(self._type_name, thing.__bases__))
                self._lines.append(f"#{number} class {thing.__name__}({bases})")
                parts = _class_parts(thing)
            else:
                written = read_function(thing)
                self._lines.append(f"#{number} {written.text}")
                if thing is not self._kernel:  # whose hints may not be those in `@ct.kernel(...)`
                    self._lines += [f"#{number} decorator {text}" for text in written.decorators]
                parts = _function_parts(thing, written.reads)
            self._lines += [f"#{number} {name} = {self.render(value)}" for name, value in parts]
        return self._lines

    def refer(self, thing: FunctionType | type) -> str:
        """Return the number that stands for a user's function or class."""
        if id(thing) not in self._numbers:
            self._numbers[id(thing)] = len(self._reached)
            self._reached.append(thing)
        return f"#{self._numbers[id(thing)]}"

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
            constructor = _constructor(value) if _is_users(value) else {}
            return f"class {self._type_name(value)}{self.render(constructor) if constructor else ''}"
        if isinstance(value, FunctionType) and _is_users(value):
            return f"function {self.refer(value)}"
        if isinstance(value, MethodType):
            return f"method {self.render(value.__func__)} of {self.render(value.__self__)}"
        if isinstance(value, functools.partial):
            return f"partial{self.render([value.func, value.args, value.keywords])}"
        if functions := _functions_in(value):
            return f"{type(value).__name__}{self.render(functions)}"
        wrapped = None if _is_users(value) else getattr(value, "__wrapped__", None)
        if callable(wrapped):
            return self.render(wrapped)
        return _qualified_name(value) if isinstance(value, FunctionType | BuiltinFunctionType) else None

    def _type_name(self, cls: type) -> str:
        return self.refer(cls) if _is_users(cls) else _qualified_name(cls)

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
            return f"{name}({', '.join(f'{self.render(key)}: {self.render(value[key])}' for key in value)})"
        if isinstance(value, set | frozenset):
            return f"{name}({', '.join(sorted(map(self.render, value)))})"
        if isinstance(value, tuple | list):
            return f"{name}({', '.join(map(self.render, value))})"
        for plain in (int, float, complex, str, bytes):
            if isinstance(value, plain):
                return f"{name}({plain.__repr__(value)})"
        return f"{name}({', '.join(f'{name} = {self.render(item)}' for name, item in _attributes(value))})"


def _function_parts(function: FunctionType, reads: Iterable[Chain]) -> Iterator[tuple[str, Any]]:
    defaults = [*enumerate(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
    for place, default in defaults:
        yield f"default {place}", default
    for name, value in dict(_resolve(function, read) for read in reads).items():
        yield ".".join(name), value


def _constructor(cls: type) -> dict[str, Any]:
    """Return what matters when a class itself is used: defaults of fields, members of an enum."""
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    members = getattr(cls, "__members__", {})
    return {
        **{field.name: (field.default, field.default_factory) for field in fields},
        **{name: member.value for name, member in members.items()},
    }


def _class_parts(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield what instances share: methods and attributes."""
    for name, value in sorted(vars(cls).items()):
        functions = [part for part in _functions_in(value) or [value] if isinstance(part, FunctionType)]
        if any(map(_is_users, functions)):
            # Generated methods (a dataclass's `__init__`) follow from the fields.
            counts = all(read_function(function).has_source for function in functions)
        else:
            counts = name not in _constructor(cls) and not (name.startswith("_") and name.endswith("_"))
        if counts:
            yield name, value


def _functions_in(value: Any) -> list[FunctionType]:
    """Return the functions of a property, a static or class method and the like; none of anything else."""
    if not isinstance(value, property | staticmethod | classmethod | functools.cached_property):
        return []
    functions = [getattr(value, name, None) for name in _WRAPPED]
    return [function for function in functions if isinstance(function, FunctionType)]


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """Return the attributes that an object consists of; none for a library's."""
    if not (_is_users(type(value)) or isinstance(value, SimpleNamespace)):
        return []
    # Whether a cached property was asked for yet says nothing.
    return sorted(
        (name, attribute)
        for name, attribute in _state(value).items()
        if not isinstance(inspect.getattr_static(type(value), name, None), functools.cached_property)
    )


# -- names ------------------------------------------------------------------------------------------


def _resolve(function: FunctionType, name: Chain) -> tuple[Chain, Any]:
    """Return the part of `name` that could be followed from `function`, and what it stands for."""
    value = _lookup(function, name[0])
    for depth, attribute in enumerate(name[1:], start=1):
        followed = _attribute(value, attribute) if _is_users(value) else _MISSING
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
