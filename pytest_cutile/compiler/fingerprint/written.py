"""A function as its author wrote it: code without what cannot matter, and the names it takes from outside."""

from __future__ import annotations

import ast
import copy
import dis
import linecache
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType
from weakref import WeakKeyDictionary

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Chain = tuple[str, ...]
"""A name and the attributes taken of it: `helpers.tiles.swizzle`."""

_OUTER = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_IMPLICIT = {("LOAD_NAME", "__name__"), *((name, "__class__") for name in _OUTER)}
"""What Python loads by itself: for the body of a class, and in some versions for `super()`."""
_STABLE = (type(None), bool, int, float, complex, str, bytes)


@dataclass(frozen=True, kw_only=True)
class WrittenFunction:
    """One function's source, normalized."""

    text: str
    """The definition without decorators, comments, layout, docstrings and annotations.

    Without a file, and where several lambdas begin in a line: the bytecode of this Python version.
    """
    decorators: tuple[str, ...]
    reads: tuple[Chain, ...]
    """What is taken from closures, globals and builtins, sorted."""
    has_source: bool
    """Whether it was written in a file. What dataclasses generate was not."""


_read: WeakKeyDictionary[FunctionType, WrittenFunction] = WeakKeyDictionary()


def read_function(function: FunctionType) -> WrittenFunction:
    """Return the source of `function`, as it was when first asked for."""
    if function not in _read:
        code = function.__code__
        linecache.checkcache(code.co_filename)
        lines = linecache.getlines(code.co_filename, function.__globals__)
        definitions = _definitions("".join(lines)).get((code.co_name, code.co_firstlineno), [])
        definition = copy.deepcopy(definitions[0]) if len(definitions) == 1 else None
        decorators = getattr(definition, "decorator_list", [])
        _read[function] = WrittenFunction(
            text=_bytecode(code) if definition is None else ast.unparse(_Plain(definition).visit(definition)),
            decorators=tuple(map(ast.unparse, decorators)),
            reads=tuple(sorted(set(_reads(code)))),
            has_source=bool(lines),
        )
    return _read[function]


@lru_cache(maxsize=64)
def _definitions(text: str) -> dict[tuple[str, int], list[Definition]]:
    """Return the functions defined in a file by name and first line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the author's literals: the import warned already
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    definitions: dict[tuple[str, int], list[Definition]] = {}
    for node in ast.walk(tree):
        if isinstance(node, Definition):
            # To Python a function begins with its first decorator.
            first = min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))
            definitions.setdefault((getattr(node, "name", "<lambda>"), first), []).append(node)
    return definitions


class _Plain(ast.NodeTransformer):
    """Removes docstrings, other bare constants, annotations, and the decorators of a definition.

    cuda-tile reads the annotations of a kernel's parameters only, and what they say is in its signature.
    """

    def __init__(self, definition: Definition) -> None:
        self._definition = definition

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return ast.Pass()
        return self.generic_visit(ast.Assign(targets=[node.target], value=node.value, lineno=node.lineno))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        # Versions of Python choose other quotes for an f-string.
        return ast.Call(ast.Name("f"), [self.visit(part) for part in node.values], [])

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        parts = [node.value, *([node.format_spec] if node.format_spec else ())]
        return ast.Call(ast.Name(f"f{node.conversion}"), [self.visit(part) for part in parts], [])

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(arg=node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        if node is self._definition:
            node.decorator_list = []
        return self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]  # noqa: N815


def _bytecode(code: CodeType) -> str:
    return " ".join(
        f"bytecode {part.co_code.hex()} {part.co_varnames} {part.co_names} "
        f"{[repr(constant) for constant in part.co_consts if isinstance(constant, _STABLE)]}"
        for part in _nested(code)
    )


def _reads(code: CodeType) -> Iterator[Chain]:
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
            name = instruction.argval
            # What a function within takes from this one is no free variable of this one.
            outer = instruction.opname in _OUTER and name in code.co_freevars
            explicit = (instruction.opname, name) not in _IMPLICIT
            chain = (name,) if explicit and (outer or instruction.opname in _GLOBAL) else ()


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            yield from _nested(constant)
