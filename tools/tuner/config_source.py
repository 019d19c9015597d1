"""Tables of configurations as source: one entry rewritten, and all else left as it is written.

An entry is a path from the name of a table through keys and places in tuples. As far as dicts and tuples are
written out, it is found in the source and replaced there. Where one is not (a name that several architectures
share, `dict.fromkeys`, a comprehension) its value is spelled out for this path alone, and the others keep
what they had: `{**_MEASURED, 2: (...)}`.
"""

from __future__ import annotations

import ast
import io
import json
import math
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import lru_cache
from textwrap import wrap
from typing import Any

LINE = 110


class CannotWrite(Exception):  # noqa: N818 - it says what cannot be done
    """The source of an entry cannot be rewritten; the message says why."""


def config_source(config: Any) -> str:
    """Return a configuration as Python source; fields that have their default are left out."""
    if isinstance(config, tuple):
        return f"({''.join(f'{config_source(part)}, ' for part in config)})"
    if not is_configuration(config):
        return "math.inf" if config == math.inf else repr(config)
    given = [
        f"{field.name}={config_source(getattr(config, field.name))}"
        for field in fields(config)
        if field.default is MISSING or getattr(config, field.name) != field.default
    ]
    return f"{type(config).__name__}({', '.join(given)})"


def entry_lines(key: str, source: str, comment: str) -> list[str]:
    """Return the lines of an entry: what was measured, then the configuration."""
    return _lay_out(f"{key}: ", replace(_parsed(source), noted=True), ",", "    ", comment)


def is_configuration(value: Any) -> bool:
    """Return whether a value is what tables hold at their leaves: a dataclass that is called so."""
    return is_dataclass(value) and type(value).__name__.endswith("Config")


def parts_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the keys and values of a dict, or the places and elements of a tuple; nothing of others."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)


def count_configurations(value: Any) -> int:
    """Return how many configurations are in a table."""
    return 1 if is_configuration(value) else sum(count_configurations(part) for _, part in parts_of(value))


def find_source(text: str, names: Mapping[str, Any], table: str, path: Sequence[Any]) -> tuple[int, str]:
    """Return the line, counted from 1, where an entry is written, and what is there.

    Raises:
        CannotWrite: `table` is no name of this file.
    """
    last = _chain(text, names, table, path)[-1]
    return last.expr.lineno, _node(last.expr, text, {}).flat


def rewrite(
    text: str, names: Mapping[str, Any], table: str, path: Sequence[Any], source: str, comment: str
) -> str:
    """Return a module's text with one entry replaced.

    Args:
        text: the module's.
        names: what its names are bound to.
        table: name of the table: "CONFIGS".
        path: keys and places from the table to the entry: ("sm_90", 1).
        source: the new configuration, as source.
        comment: what was measured, which goes above the entry. What is above it now goes, if it speaks of
            this entry alone.

    Raises:
        CannotWrite: the entry is not to be replaced so; the message says why.
    """
    lines = text.splitlines()
    chain = _chain(text, names, table, path)
    noted = next(
        depth
        for depth in range(len(path) + 1)
        if count_configurations(_follow(names[table], path[:depth])) == 1
    )
    last, depth = chain[-1], len(chain) - 1
    before = _names_before(names, table)
    owner = next((at for at in range(depth, 0, -1) if _own_lines(lines, chain[at])), 0)
    if isinstance(last.expr, ast.Dict) and depth < len(path):
        # All that it has of the key is in what it takes over with `**`: one more item hides that.
        closing = (last.expr.end_lineno or 0) - 1
        if lines[closing].strip()[0] == "}" and lines[closing - 1].strip().endswith(","):
            indent = " " * (len(lines[closing]) - len(lines[closing].lstrip()) + 4)
            value = _spell(_follow(names[table], path[: depth + 1]), path, depth + 1, noted, source, before)
            lines[closing:closing] = _lay_out(
                f"{_show(path[depth], before).flat}: ", value, ",", indent, comment
            )
            return "\n".join(lines) + "\n"
    noted = max(noted, owner)
    value = last.value
    base = _node(last.expr, text, {}) if isinstance(value, Mapping) else None
    new = _spell(value, path, depth, noted, source, before, base=base)
    if isinstance(last.expr, ast.Dict) and depth < len(path) and base is not None:
        new = replace(base, items=(*base.items, new.items[-1]), noted=depth == noted)
    swaps: dict[int, Callable[[Node], Node]] = {id(last.expr): lambda _: new}
    if owner <= noted < depth:
        swaps[id(chain[noted].expr)] = lambda node: replace(node, noted=True)
    item = chain[owner]
    node = _node(item.expr, text, swaps)
    first, end = item.line - 1, item.expr.end_lineno or item.line
    _refuse_comments(lines[first:end], item.expr)
    indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
    suffix = _cut(lines[end - 1], item.expr.end_col_offset)[1]
    if owner and noted == owner:
        alone = lines[end].strip()[:1] in {"#", ")", "}", "]"}
        while alone and lines[first - 1].strip().startswith("#"):
            first -= 1
        comment = comment if alone else f"This one alone: {comment}"
    prefix = item.prefix if owner else _cut(lines[first], item.expr.col_offset)[0]
    lines[first:end] = _lay_out(prefix.lstrip(), node, suffix, indent, comment)
    return "\n".join(lines) + "\n"


# -- where an entry is written ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Item:
    """An expression on the way from a table to an entry."""

    line: int
    """Where it begins, with its key, counted from 1."""
    column: int
    """Likewise, in bytes."""
    prefix: str
    """Its key and a colon; empty in a tuple."""
    expr: ast.expr
    """What is written."""
    value: Any
    """What that is."""


def _chain(text: str, names: Mapping[str, Any], table: str, path: Sequence[Any]) -> list[_Item]:
    """Return the expressions from a table to an entry, or to the last of which the source shows the parts."""
    statement = next(
        (
            statement
            for statement in reversed(ast.parse(text).body)
            if isinstance(statement, ast.Assign | ast.AnnAssign)
            and any(isinstance(target, ast.Name) and target.id == table for target in _targets(statement))
        ),
        None,
    )
    if statement is None or statement.value is None:
        raise CannotWrite(f"{table} is not assigned in this file")
    chain = [
        _Item(
            line=statement.lineno,
            column=statement.col_offset,
            prefix="",
            expr=statement.value,
            value=names[table],
        )
    ]
    for key in path:
        here = chain[-1]
        part = _part(here.expr, key, names)
        if part is None:
            break
        start, expr = part
        chain.append(
            _Item(
                line=start.lineno,
                column=start.col_offset,
                prefix="" if start is expr else f"{_segment(text, start)}: ",
                expr=expr,
                value=here.value[key],
            )
        )
    return chain


def _targets(statement: ast.Assign | ast.AnnAssign) -> Sequence[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


def _part(expr: ast.expr, key: Any, names: Mapping[str, Any]) -> tuple[ast.expr, ast.expr] | None:
    """Return where the part for `key` begins and what it is, if the source shows it."""
    if isinstance(expr, ast.Dict):
        for its_key, value in zip(reversed(expr.keys), reversed(expr.values), strict=True):
            if its_key is None:
                if key in _evaluate(value, names):
                    return None
            elif _evaluate(its_key, names) == key:
                return its_key, value
    elif isinstance(expr, ast.Tuple | ast.List):
        written = expr.elts[: key + 1]
        if len(written) > key and not any(isinstance(entry, ast.Starred) for entry in written):
            return written[key], written[key]
    return None


def _evaluate(expr: ast.expr, names: Mapping[str, Any]) -> Any:
    # It is the project's own source, which has been executed anyway.
    return eval(compile(ast.Expression(expr), "<table>", "eval"), dict(names))  # noqa: S307


def _follow(value: Any, path: Sequence[Any]) -> Any:
    for key in path:
        value = value[key]
    return value


def _cut(line: str, column: int | None) -> tuple[str, str]:
    """Return what is before and what is behind a column, which `ast` counts in bytes."""
    encoded = line.encode()
    return encoded[:column].decode(), encoded[column:].decode()


def _own_lines(lines: Sequence[str], item: _Item) -> bool:
    """Return whether nothing else is in an item's lines."""
    before = _cut(lines[item.line - 1], item.column)[0]
    behind = _cut(lines[(item.expr.end_lineno or item.line) - 1], item.expr.end_col_offset)[1]
    return not before.strip() and behind.strip() == ","


def _refuse_comments(lines: Sequence[str], expr: ast.expr) -> None:
    tokens = tokenize.generate_tokens(io.StringIO("(" + "\n".join(lines) + "\n)").readline)
    try:
        has_comment = any(token.type == tokenize.COMMENT for token in tokens)
    except tokenize.TokenError:
        has_comment = any("#" in line for line in lines)
    if has_comment:
        raise CannotWrite(f"the comments from line {expr.lineno} on would be lost")


# -- source that is laid out ------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """An expression as text: a dict, a tuple or a call by its parts, anything else as it is."""

    open: str
    """What it begins with: "{", "GemmConfig(", or all of it."""
    items: tuple[tuple[str, Node], ...] = ()
    """What is in front of each part, as in "tile_m=", and the part."""
    close: str = ""
    """What it ends with."""
    noted: bool = False
    """Whether the comment goes above it."""

    @property
    def flat(self) -> str:
        """All of it, in one line."""
        inner = ", ".join(prefix + part.flat for prefix, part in self.items)
        return self.open + inner + ("," if self.open == "(" and len(self.items) == 1 else "") + self.close

    @property
    def holds_noted(self) -> bool:
        """Whether the comment goes above a part of it."""
        return any(part.noted or part.holds_noted for _, part in self.items)


@lru_cache(maxsize=2)
def _lines(text: str) -> list[bytes]:
    return text.encode().split(b"\n")


def _segment(text: str, node: ast.expr) -> str:
    """Return the source of a node; `ast.get_source_segment` splits `text` anew for each."""
    assert node.end_lineno is not None
    lines = _lines(text)[node.lineno - 1 : node.end_lineno]
    lines[-1] = lines[-1][: node.end_col_offset]
    lines[0] = lines[0][node.col_offset :]
    return b"\n".join(lines).decode()


def _node(expr: ast.expr, text: str, swaps: Mapping[int, Callable[[Node], Node]]) -> Node:
    """Return an expression of `text` by its parts; `swaps` change those of these ids."""

    def of(part: ast.expr) -> Node:
        return _node(part, text, swaps)

    def source(part: ast.expr) -> str:
        return " ".join(_segment(text, part).split())

    def starred(part: ast.expr) -> tuple[str, Node]:
        return ("*", of(part.value)) if isinstance(part, ast.Starred) else ("", of(part))

    if isinstance(expr, ast.Dict):
        keys = ("**" if key is None else f"{source(key)}: " for key in expr.keys)
        node = Node("{", tuple(zip(keys, map(of, expr.values), strict=True)), "}")
    elif isinstance(expr, ast.Tuple | ast.List):
        brackets = "()" if isinstance(expr, ast.Tuple) else "[]"
        node = Node(brackets[0], tuple(map(starred, expr.elts)), brackets[1])
    elif isinstance(expr, ast.Call):
        named = [(f"{keyword.arg}=" if keyword.arg else "**", of(keyword.value)) for keyword in expr.keywords]
        node = Node(f"{source(expr.func)}(", (*map(starred, expr.args), *named), ")")
    else:
        node = Node(source(expr))
    return swaps[id(expr)](node) if id(expr) in swaps else node


def _parsed(source: str) -> Node:
    return _node(ast.parse(source, mode="eval").body, source, {})


def _names_before(names: Mapping[str, Any], table: str) -> dict[int, str]:
    """Return the first name of each table and configuration that is bound before `table`, by its id."""
    first_names: dict[int, str] = {}
    for name, value in names.items():
        if name == table:
            break
        if count_configurations(value):
            first_names.setdefault(id(value), name)
    return first_names


def _show(value: Any, named: Mapping[int, str]) -> Node:
    """Return source of a value: a name where there is one."""
    if id(value) in named:
        return Node(named[id(value)])
    if isinstance(value, Mapping):
        return Node(
            "{", tuple((f"{_show(key, named).flat}: ", _show(v, named)) for key, v in value.items()), "}"
        )
    if isinstance(value, tuple):
        return Node("(", tuple(("", _show(part, named)) for part in value), ")")
    return _parsed(json.dumps(value) if isinstance(value, str) else config_source(value))


def _spell(
    value: Any,
    path: Sequence[Any],
    depth: int,
    noted: int,
    source: str,
    named: Mapping[int, str],
    *,
    base: Node | None = None,
) -> Node:
    """Return source of the part of a table at `depth` of `path`, with the entry at its end replaced."""
    if depth == len(path):
        return replace(_parsed(source), noted=depth == noted)

    def part(key: Any) -> Node:
        if key == path[depth]:
            return _spell(value[key], path, depth + 1, noted, source, named)
        return _show(value[key], named)

    if isinstance(value, Mapping):
        base = base or (Node(named[id(value)]) if id(value) in named else None)
        keys = value if base is None else [path[depth]]
        items = tuple((f"{_show(key, named).flat}: ", part(key)) for key in keys)
        return Node("{", items if base is None else (("**", base), *items), "}", depth == noted)
    return Node("(", tuple(("", part(place)) for place, _ in parts_of(value)), ")", depth == noted)


def _lay_out(prefix: str, node: Node, suffix: str, indent: str, comment: str) -> list[str]:
    """Return the lines of an expression, the comment above the part that is noted.

    As `ruff format` would: in one line if that is short enough, else each part in lines of its own.
    """
    above = []
    if node.noted:
        width = LINE - len(indent) - 2
        above = [f"{indent}# {line}" for line in wrap(comment, width, break_on_hyphens=False)]
    line = f"{indent}{prefix}{node.flat}{suffix}"
    if not node.items or (len(line) <= LINE and not node.holds_noted):
        return [*above, line]
    lines = [f"{indent}{prefix}{node.open}"]
    for place, (key, part) in enumerate(node.items):
        said = comment if place == len(node.items) - 1 or not part.noted else f"This one alone: {comment}"
        lines += _lay_out(key, part, ",", f"{indent}    ", said)
    return [*above, *lines, f"{indent}{node.close}{suffix}"]
