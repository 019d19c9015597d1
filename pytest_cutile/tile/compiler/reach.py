"""What a kernel's function reaches through names: other functions, classes, and values, as text.

The text is the same in every process and for every place of the files: it holds names, source and values, but
no addresses and no hashes. Source goes without comments, layout, docstrings and annotations.

Names are resolved as cuda-tile does: the closure, then globals, then builtins; of `Config.TILE`,
`config.tile` or `helpers.swizzle` only that attribute counts. What belongs to cuda.tile, torch, numpy or the
standard library is named and not followed; any other library is the kernel's source too. A user's function or
class goes by its content, never by its module, so code can move. What a library wrapped around a user's
function (`ct.function`, `functools.cache`) goes by that function.

Not seen are imports within functions, functions that a call returns, the state of a library's object, and
what a module keeps in a container that is empty in its source (a cache). A function without source (`exec`)
goes by its bytecode, which depends on Python's version.
"""

from __future__ import annotations

import ast
import builtins
import dis
import enum
import functools
import inspect
import linecache
import sys
import warnings
from collections import ChainMap
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, TypeAlias

from pytest_cutile.tile.compiler import cutile

Chain: TypeAlias = tuple[str, ...]
"""A name and the attributes taken of it: `helpers.tiles.swizzle`."""

_LIBRARIES = sys.stdlib_module_names | {"cuda", "torch", "numpy"}
_PRINTED = {"cuda", "torch", "numpy", "decimal", "fractions"}
"""Libraries whose objects print as what they are: dtypes, numbers, arrays."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice, type(...), type(NotImplemented))
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")
_IMPLICIT = ("__name__", "__class__")
"""What Python loads by itself for the body of a class."""
_ANNOTATES = ("__annotate__", "__annotate_func__")
"""Functions that Python 3.14 makes for the annotations of a class; they close over all of its namespace."""
_CLOSED_OVER = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_UNRESOLVED = object()


def describe_kernel(function: FunctionType) -> list[str]:
    """Return lines about a kernel's function and everything it reaches."""
    description = _Description(kernel=function)
    description.refer(function)
    return description.finish()


def describe(values: Iterable[Any]) -> list[str]:
    """Return lines about functions, constants and containers of such, and everything they reach."""
    description = _Description()
    return [*map(description.render, values), *description.finish()]


def read_ahead(launchers: Iterable[Any]) -> None:
    """Read the source of launchers and of what they reach: forks of this process then find it read."""
    description = _Description()
    for launcher in launchers:
        with suppress(Exception):  # whoever needs the source says so
            description.render(launcher)
            description.finish()
    for kernel in description.kernels:
        with suppress(Exception):
            describe_kernel(kernel)


class _Description:
    """Lines of text about functions, classes and values.

    Functions and classes are described once and referred to by number, in the order they are reached: so
    recursion ends, and references need no address.
    """

    def __init__(self, kernel: FunctionType | None = None) -> None:
        self._kernel = kernel
        self._reached: list[FunctionType | type] = []
        self._open: set[int] = set()
        self.kernels: set[FunctionType] = set()

    def finish(self) -> list[str]:
        """Return the lines about all that was referred to, and about what that refers to."""
        lines = []
        for number, thing in enumerate(self._reached):  # which grows meanwhile
            # The text of `@ct.kernel(...)` is left out: a launch may have replaced its hints.
            text = read_source(thing, decorators=thing is not self._kernel)
            lines.append(f"#{number} {text}")
            lines += [f"#{number} {name} = {self.render(value)}" for name, value in _values_behind(thing)]
        return lines

    def refer(self, thing: FunctionType | type) -> str:
        """Return the number that stands for a user's function or class."""
        if thing not in self._reached:
            self._reached.append(thing)
        return f"#{self._reached.index(thing)}"

    def render(self, value: Any) -> str:
        """Return `value` as text; functions and classes in it by number."""
        if id(value) in self._open:
            return "(itself)"
        self._open.add(id(value))
        try:
            return self._render(value)
        finally:
            self._open.discard(id(value))

    def _render(self, value: Any) -> str:  # noqa: PLR0911  # one line for each type
        if value is _UNRESOLVED:
            return "unresolved"
        if type(value) in _PLAIN:
            return repr(value)
        if isinstance(value, ModuleType):
            # A user's module may move, and is known by what is taken of it.
            return f"module {value.__name__.rpartition('.')[2] if _is_users(value) else value.__name__}"
        if isinstance(value, type):
            return f"class {self._class_name(value)}"
        if _package(type(value)) == "cuda" and cutile.is_kernel(value):
            function = cutile.kernel_function(value)
            self.kernels.add(function)
            return f"kernel {self.refer(function)}"
        if callable(value) and not _is_users(value) and hasattr(value, "__wrapped__"):
            return self.render(value.__wrapped__)
        if isinstance(value, FunctionType) and _is_users(value):
            return f"function {self.refer(value)}"
        if isinstance(value, FunctionType | BuiltinFunctionType):
            return _qualified_name(value)
        parts = [self.render(part) for part in _parts(value)]
        if isinstance(value, set | frozenset):
            parts.sort()
        return f"{self._class_name(type(value))}({', '.join(parts)})"

    def _class_name(self, cls: type) -> str:
        return self.refer(cls) if _is_users(cls) else _qualified_name(cls)


def _parts(value: Any) -> list[Any]:  # noqa: PLR0911  # one line for each type
    """Return what makes up an object besides its type."""
    if isinstance(value, enum.Enum):
        # What number a library gives to its members is the library's.
        return [value.name, value.value] if _is_users(type(value)) else [value.name]
    if isinstance(value, dict | MappingProxyType):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, tuple | list | set | frozenset):
        return list(value)
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if _package(type(value)) in _PRINTED:
        return [repr(value)]
    contents = [
        plain.__repr__(value) for plain in (int, float, complex, str, bytes) if isinstance(value, plain)
    ]
    if _is_users(type(value)) or isinstance(value, SimpleNamespace):
        return [*contents, object.__getstate__(value)]  # attributes, in `__dict__` or in slots
    return contents


# -- source -----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def read_source(thing: FunctionType | type, *, decorators: bool = True) -> str:
    """Return a definition in Python's normal form, as it was when first asked for.

    What cannot be parsed alone (a lambda within an expression) goes by its lines as they are.
    """
    try:
        text = inspect.getsource(thing.__code__ if isinstance(thing, FunctionType) else thing)
    except (OSError, TypeError):
        return _bytecode(thing.__code__) if isinstance(thing, FunctionType) else f"class {thing.__name__}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the author's literals: the import warned already
            tree: Any = ast.parse(f"if True:\n{text}" if text[0].isspace() else text)
    except SyntaxError:
        return " ".join(text.split())
    definition = tree.body[0].body[0] if text[0].isspace() else tree.body[0]
    if not decorators:
        definition.decorator_list = []
    return ast.unparse(_WithoutAnnotations().visit(definition))


class _WithoutAnnotations(ast.NodeTransformer):
    """Removes annotations, docstrings and other bare constants.

    cuda-tile reads the annotations of a kernel's parameters only, and what they say is in its signature.
    """

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return ast.Expr(node.target)
        return self.generic_visit(ast.Assign(targets=[node.target], value=node.value, lineno=node.lineno))

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(arg=node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)


def _bytecode(code: CodeType) -> str:
    constants = [repr(constant) for constant in code.co_consts if type(constant) in _PLAIN]
    return f"bytecode {code.co_code.hex()} {code.co_varnames} {code.co_names} {constants}"


# -- names ------------------------------------------------------------------------------------------


def _values_behind(thing: FunctionType | type) -> Iterator[tuple[str, Any]]:
    """Yield what a function, or the methods of a class, take from outside: names and values."""
    if isinstance(thing, type):
        yield "bases", thing.__bases__
    for function in [thing] if isinstance(thing, FunctionType) else _methods(thing):
        defaults = [*enumerate(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
        yield from ((f"default {place}", value) for place, value in defaults)
        followed = dict(_follow(function, chain) for chain in sorted({*_reads(function.__code__)}))
        yield from ((".".join(chain), value) for chain, value in followed.items())


def _methods(cls: type) -> list[FunctionType]:
    """Return the methods that were written for a class, and the functions of its properties."""
    members = [
        getattr(value, attribute, value)
        for name, value in vars(cls).items()
        for attribute in ("__func__", "fget")
        if name not in _ANNOTATES
    ]
    return [
        member
        for member in dict.fromkeys(filter(lambda member: isinstance(member, FunctionType), members))
        if _is_users(member) and not member.__code__.co_filename.startswith("<")
    ]


def _reads(code: CodeType) -> Iterator[Chain]:
    """Yield what is taken from closures, globals and builtins."""
    for part in _nested(code):
        chain: Chain = ()
        for instruction in dis.get_instructions(part):
            if instruction.opname == "EXTENDED_ARG":
                continue
            if chain and instruction.opname in _ATTRIBUTE:
                chain += (instruction.argval,)
                continue
            if chain:
                yield chain
            opname, name = instruction.opname, instruction.argval
            # What a function within takes from this one is no free variable of this one.
            outer = opname in _GLOBALS or (opname in _CLOSED_OVER and name in code.co_freevars)
            chain = (name,) if outer and name not in _IMPLICIT else ()


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _follow(function: FunctionType, chain: Chain) -> tuple[Chain, Any]:
    """Return the part of `chain` that can be followed from `function`, and what it stands for."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closure = {name: cell.cell_contents for name, cell in cells if cell != CellType()}
    value = ChainMap(closure, function.__globals__, vars(builtins)).get(chain[0], _UNRESOLVED)
    if chain[0] not in closure and chain[0] in _caches(function.__code__.co_filename):
        return chain[:1], type(value)
    for depth, attribute in enumerate(chain[1:], start=1):
        followed = _attribute(value, attribute) if _is_users(value) else _UNRESOLVED
        if followed is _UNRESOLVED:
            return chain[:depth], value
        value = followed
    return chain, value


@functools.lru_cache(maxsize=256)
def _caches(file: str) -> frozenset[str]:
    """Return the names that a module gives to empty containers, which only functions fill: `_CACHE = {}`."""
    try:
        module = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # not Python, such as a cell of a notebook
        return frozenset()
    empty: set[str] = set()
    filled: set[str] = set()
    for statement in module.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
        if isinstance(statement, ast.Assign | ast.AnnAssign) and _is_empty(statement.value):
            empty.update(name.id for name in names if isinstance(name.ctx, ast.Store))
        else:
            filled.update(name.id for name in names)
    return frozenset(empty - filled)


def _is_empty(value: ast.expr | None) -> bool:
    match value:
        case ast.Dict(keys=[]) | ast.List(elts=[]):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[], keywords=[]):
            return name in {"dict", "list", "set", "WeakKeyDictionary", "WeakValueDictionary"}
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Name()], keywords=[]):
            return name == "defaultdict"
    return False


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute where taking it runs no code of the user's."""
    if isinstance(value, ModuleType | type):
        return getattr(value, name, _UNRESOLVED)
    return getattr(value, "__dict__", {}).get(name, _UNRESOLVED)


def _is_users(value: Any) -> bool:
    """Return whether `value` is, or is an instance of, what a kernel's author or a helper library wrote."""
    return _package(value) not in _LIBRARIES


def _package(value: Any) -> str:
    """Return the outermost package of a module, function or class, or of the class of an object."""
    if isinstance(value, ModuleType):
        name = value.__name__
    elif isinstance(value, FunctionType):
        # Not `__module__`, which wrappers take over from what they wrap.
        name = str(value.__globals__.get("__name__"))
    else:
        name = str((value if isinstance(value, type | BuiltinFunctionType) else type(value)).__module__)
    return name.partition(".")[0]


def _qualified_name(value: Any) -> str:
    """Return the name of a library's function or class, without the private module that may hold it."""
    return f"{_package(value).lstrip('_')}:{value.__qualname__}"
