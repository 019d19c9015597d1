"""Functions as they were written: what is left of the source when nothing is kept that cannot matter.

Nothing is imported or run: a function's definition is found in its file and rendered without comments,
layout, docstrings and annotations, and the names that it takes from outside are listed. The rendering is made
here from the syntax tree, field by field, since `ast.dump` differs between versions of Python.
"""

from __future__ import annotations

import ast
import linecache
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import CodeType, FunctionType

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Chain = tuple[str, ...]
"""A name and the attributes taken of it: `helpers.tiles.swizzle`."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

# Annotations: cuda-tile reads those of a kernel's parameters only, and what they say is in its signature.
# `ctx` follows from the place in the tree; the others are spelling.
_LEFT_OUT = {"annotation", "returns", "type_params", "type_comment", "ctx", "kind", "simple"}


@dataclass(frozen=True, kw_only=True)
class WrittenFunction:
    """One function's source, normalized."""

    text: str
    """Parameters, defaults and body, without decorators; bytecode if no source was found."""
    decorators: tuple[tuple[Chain, str], ...]
    """For each the name that is applied or called (empty if it is none), and the text."""
    reads: tuple[Chain, ...]
    """What is taken from globals, closures and builtins, in the order of the source."""
    has_source: bool
    """False: `text` is bytecode, which every version of Python writes in its own way."""


_read: WeakKeyDictionary[FunctionType, WrittenFunction] = WeakKeyDictionary()


def read_function(function: FunctionType) -> WrittenFunction:
    """Return the source of `function`, as it was when first asked for."""
    written = _read.get(function)
    if written is None:
        definitions = _find(function)
        written = _from_source(definitions) if definitions else _from_bytecode(function.__code__)
        _read[function] = written
    return written


def _from_source(definitions: Sequence[Definition]) -> WrittenFunction:
    reads = _Reads()
    for definition in definitions:
        reads.enter(definition, frozenset())
    decorators = [node for definition in definitions for node in getattr(definition, "decorator_list", ())]
    return WrittenFunction(
        text=" | ".join(_render(definition, without={"decorator_list"}) for definition in definitions),
        decorators=tuple(
            (_chain(node.func if isinstance(node, ast.Call) else node), _render(node)) for node in decorators
        ),
        reads=tuple(reads.names),
        has_source=True,
    )


def _from_bytecode(code: CodeType) -> WrittenFunction:
    codes = list(_nested(code))
    return WrittenFunction(
        text=" ".join(
            f"bytecode {part.co_code.hex()} {part.co_varnames} {part.co_names} "
            f"{[repr(constant) for constant in part.co_consts if isinstance(constant, _STABLE)]}"
            for part in codes
        ),
        decorators=(),
        # Attributes are among these names: at worst a global of that name is read in vain.
        reads=tuple(dict.fromkeys((name,) for part in codes for name in (*part.co_names, *code.co_freevars))),
        has_source=False,
    )


_STABLE = (type(None), bool, int, float, complex, str, bytes)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            yield from _nested(constant)


# -- finding ------------------------------------------------------------------------------------------


def _find(function: FunctionType) -> Sequence[Definition]:
    """Return the definition of `function`; several when lambdas of one line cannot be told apart."""
    code = function.__code__
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, function.__globals__)
    definitions = _definitions("".join(lines)).get((code.co_name, code.co_firstlineno), [])
    # A lambda inside another lies in both: the inner one comes last.
    around = [node for node in definitions if isinstance(node, ast.Lambda) and _holds(node.body, code)]
    return [around[-1]] if around else definitions


@lru_cache(maxsize=64)
def _definitions(text: str) -> dict[tuple[str, int], list[Definition]]:
    """Return the functions defined in a file by name and first line, outer ones first."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the author's literals: the import warned already
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    definitions: dict[tuple[str, int], list[Definition]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda):
            definitions.setdefault(("<lambda>", node.lineno), []).append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # To Python a function begins with its first decorator.
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            definitions.setdefault((node.name, first), []).append(node)
    return definitions


def _holds(body: ast.expr, code: CodeType) -> bool:
    """Return whether all instructions of `code` that have a place come from within `body`."""
    begin, end = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
    places = [place for place in code.co_positions() if None not in place and place[3]]
    return bool(places) and all(
        begin <= (line, column) and (end_line, end_column) <= end
        for line, end_line, column, end_column in places
    )


# -- rendering ----------------------------------------------------------------------------------------


def _render(node: Any, without: Iterable[str] = ()) -> str:
    if isinstance(node, list):
        return f"[{','.join(_render(item) for item in node)}]"
    if isinstance(node, ast.Constant):
        return repr(node.value)
    if isinstance(node, ast.JoinedStr):
        return f"JoinedStr[{','.join(_string_parts(node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = []
    for name, value in ast.iter_fields(node):
        if name in _LEFT_OUT or name in without or value is None or value == []:
            continue
        if name == "body" and isinstance(value, list):
            value = _statements(value)  # noqa: PLW2901  # the same thing without what does nothing
        if name == "target" and isinstance(node, ast.AnnAssign) and node.value is not None:
            name, value = "targets", [value]  # noqa: PLW2901  # as the assignment that it is
        fields.append(f"{name}={_render(value)}")
    assigns = isinstance(node, ast.AnnAssign) and node.value is not None
    return f"{'Assign' if assigns else type(node).__name__}({','.join(fields)})"


def _statements(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return `body` without docstrings and other bare constants."""
    kept = [
        node for node in body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    return kept or [ast.Pass()]


def _string_parts(string: ast.JoinedStr) -> Iterator[str]:
    """Yield an f-string's pieces; how literal text is cut up differs between versions of Python."""
    text = ""
    for part in string.values:
        if isinstance(part, ast.Constant):
            text += str(part.value)
            continue
        if text:
            yield repr(text)
        text = ""
        yield _render(part)
    if text:
        yield repr(text)


# -- names --------------------------------------------------------------------------------------------


class _Reads:
    """Collects names that are bound nowhere within a function, by Python's rules of scope."""

    def __init__(self) -> None:
        self.names: dict[Chain, None] = {}

    def enter(self, function: Definition, outer: frozenset[str]) -> None:
        """Go through the body of `function`, which sees the locals `outer` of those around it."""
        bound, not_local, explicit_globals = _bindings(function)
        inner = (outer | (bound - not_local)) - explicit_globals
        for node in function.body if isinstance(function.body, list) else [function.body]:
            self.visit(node, inner)

    def visit(self, node: ast.AST, bound: frozenset[str]) -> None:
        """Go through any part of the tree at a place where `bound` are locals."""
        if isinstance(node, _FUNCTIONS):
            for part in _parts(node, without={"body"}):
                self.visit(part, bound)
            self.enter(node, bound)
        elif isinstance(node, _COMPREHENSIONS):
            first = node.generators[0]
            self.visit(first.iter, bound)
            inner = bound | _stored(generator.target for generator in node.generators)
            others = [part for part in _parts(node) if part is not first]
            for part in [first.target, *first.ifs, *others]:
                self.visit(part, inner)
        elif chain := _chain(node):
            if chain[0] not in bound:
                self.names[chain] = None
        else:
            for part in _parts(node):
                self.visit(part, bound)


def _parts(node: ast.AST, without: Iterable[str] = ()) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(node):
        if name not in _LEFT_OUT and name not in without:
            yield from (
                part for part in (value if isinstance(value, list) else [value]) if isinstance(part, ast.AST)
            )


def _chain(node: ast.AST) -> Chain:
    """Return the name and attributes that `node` consists of; empty if it is anything else."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    return (node.id, *reversed(attributes)) if isinstance(node, ast.Name) else ()


def _stored(targets: Iterable[ast.AST]) -> set[str]:
    nodes = (node for target in targets for node in ast.walk(target))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _bindings(function: Definition) -> tuple[set[str], set[str], set[str]]:
    """Return the names that `function` binds, those it declares nonlocal, and those it declares global."""
    arguments = function.args
    bound = {arg.arg for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    bound |= {arg.arg for arg in (arguments.vararg, arguments.kwarg) if arg is not None}
    not_local: set[str] = set()
    explicit_globals: set[str] = set()
    pending: list[ast.AST] = [*function.body] if isinstance(function.body, list) else [function.body]
    while pending:
        node = pending.pop()
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
                continue  # what is inside belongs to another scope
            case ast.Lambda():
                continue
            case ast.comprehension():
                pending += [node.iter, *node.ifs]  # its targets are its own, but not what `:=` binds
                continue
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                bound.add(name)
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ):
                bound.add(name)
            case ast.MatchMapping(rest=str(name)):
                bound.add(name)
            case ast.Import() | ast.ImportFrom():
                bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            case ast.Global(names=names):
                explicit_globals |= set(names)
            case ast.Nonlocal(names=names):
                not_local |= set(names)
        pending += ast.iter_child_nodes(node)
    return bound, not_local, explicit_globals
