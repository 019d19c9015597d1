"""What a function can reach, as a text: its names and values, and nothing that is not read."""

from __future__ import annotations

import importlib
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_cutile.tile.compiler.reach import describe as describe_values
from pytest_cutile.tile.compiler.reach import describe_kernel


def describe(function: Any) -> str:
    return "\n".join(describe_kernel(function))


def functions_in(load: Any, text: str) -> ModuleType:
    module = load(kernels=textwrap.dedent(text))
    assert isinstance(module, ModuleType)
    return module


def test_recursion_ends(load) -> None:
    text = """
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    def table(n):
        return TABLE[n]

    TABLE = [table]
    TABLE.append(TABLE)
    """
    module, changed = functions_in(load, text), functions_in(load, text.replace("n != 0", "n > 0"))
    assert describe(module.even) != describe(changed.even)
    assert "(itself)" in describe(module.table)


def test_locals_shadow_globals(load) -> None:
    text = """
    name = 1
    other = 2

    def parameter(name): return name
    def assigned():
        name = 3
        return name
    def looped():
        for name in (1, 2):
            pass
        return name
    def comprehended(): return [name for name in (1, 2)]
    def nested(name): return lambda: name
    def walrus(): return (name := 3) + name
    def matched(x):
        match x:
            case [name, *other]: return name, other
    def caught():
        try: pass
        except Exception as name: return name
    def imported():
        import name
        return name
    def inner():
        def name(): return 0
        return name()
    def starred(*name): return name
    def keywords(**name): return name
    def rest(x):
        match x:
            case {"a": 1, **name}: return name
    def within(): return [(name := n) for n in (1, 2)], name
    def in_condition(): return [n for n in (1, 2) if (name := n)], name
    """
    module, changed = functions_in(load, text), functions_in(load, text.replace("name = 1", "name = 7"))
    for function in vars(module).values():
        if callable(function):
            assert describe(function) == describe(getattr(changed, function.__name__)), function


def test_globals_beside_locals_of_that_name_are_read(load) -> None:
    text = """
    name = 1

    def iterated(): return [name for name in name]
    def default(): return lambda name=name: name
    def declared():
        global name
        return name
    def beside(): return (lambda name: name)(name)
    def attribute(x): return x.name + name
    max = name
    def shadowing_a_builtin(): return max
    def default_value(x, name=name): return x
    def keyword_default_value(x, *, name=name): return x
    def past_a_local(name):
        def inner():
            global name
            return name
        return inner
    def make(name):
        def closing():
            nonlocal name
            name = name + 1
            return name
        return closing
    closing = make(name)
    del make
    def in_class():
        class Local:
            name = name
        return Local
    """
    module, changed = functions_in(load, text), functions_in(load, text.replace("name = 1", "name = 7"))
    for function in vars(module).values():
        if callable(function):
            assert describe(function) != describe(getattr(changed, function.__name__)), function


def test_lambdas_go_by_the_lines_that_they_are_in(load) -> None:
    texts = (
        "f = lambda x: x\n",
        "f = lambda x: (x)  # same\n",
        "f = lambda x: -x\n",
        "f = [\n  lambda x: x,\n][0]\n",
    )
    alone, commented, changed, within = (describe(functions_in(load, text).f) for text in texts)
    assert alone == commented == "#0 f = lambda x: x"
    assert changed != alone
    assert within == "#0 (lambda x: x,)"


def test_libraries_are_named_and_not_followed(load) -> None:
    module = functions_in(
        load,
        """
        import math
        import textwrap
        from contextlib import contextmanager
        from functools import cache
        from operator import add
        import torch.nn.functional as F
        import cuda.tile as ct
        from cuda.tile import load, PaddingMode

        @cache
        def cached(n): return n * 17

        @contextmanager
        def managed(): yield 19

        def function(x):
            add(math.ceil(1), len(textwrap.dedent(x)))
            F.relu(load(x, ct.float16, PaddingMode.ZERO))
            return cached(1), managed()
        """,
    )
    lines = describe_kernel(module.function)
    assert {line.partition(" = ")[2] for line in lines if " = " in line} == {
        "operator:add",
        "module math",
        "builtins:len",
        "module textwrap",
        "module torch.nn.functional",
        "cuda:load",
        "module cuda.tile",
        "class cuda:PaddingMode",
        "function #1",
        "function #2",
    }
    assert any("17" in line for line in lines if line.startswith("#1 @cache\ndef cached"))
    assert any("19" in line for line in lines if line.startswith("#2 @contextmanager\ndef managed"))


def test_objects_are_described_by_their_attributes_and_never_by_their_address(load) -> None:
    text = """
    import threading
    from dataclasses import dataclass
    from types import SimpleNamespace

    class Plain:
        def __init__(self, n): self.n, self.lock, self.me = n, threading.Lock(), self
        @property
        def late(self): return self.n

    PLAIN = Plain(1)
    SPACE = SimpleNamespace(a=1)
    def whole(): return PLAIN, SPACE, iter(())
    def part(): return PLAIN.n

    @dataclass
    class Config:
        read: int
        unread: int

    CONFIG = Config(1, 2)
    def field(): return CONFIG.read
    """
    module, again = functions_in(load, text), functions_in(load, text)
    changed = functions_in(load, text.replace("Plain(1)", "Plain(2)"))
    assert describe(module.field) == describe(functions_in(load, text.replace("1, 2", "1, 3")).field)
    assert describe(module.field) != describe(functions_in(load, text.replace("1, 2", "2, 2")).field)
    other_method = functions_in(load, text.replace("return self.n", "return 0"))
    assert "0x" not in describe(module.whole)
    assert describe(module.whole) == describe(again.whole)
    assert describe(module.whole) != describe(changed.whole)
    assert describe(module.part) != describe(changed.part)
    assert describe(module.whole) != describe(other_method.whole)
    assert describe(module.part) == describe(other_method.part)


def test_classes_count_with_what_makes_their_instances(load) -> None:
    text = """
    import enum
    from dataclasses import dataclass, field
    from typing import NamedTuple

    class Base:
        def shared(self): return 1
        @staticmethod
        def static(): return 2
        @property
        def late(self): return 3
        def __new__(cls, *args):
            seen = 5
            return object.__new__(cls)
        LIMIT = 4

    @dataclass(frozen=True)
    class Made(Base):
        a: int = 10
        b: list = field(default_factory=lambda: [20])

    class Level(enum.IntEnum):
        LOW = 30

    class Pair(NamedTuple):
        left: int = 40

    def makes(): return Made(), Level(30), Pair()
    """
    module = functions_in(load, text)
    assert describe(module.makes) == describe(functions_in(load, text).makes)
    assert "bytecode" not in describe(module.makes)  # of generated methods
    for old in (
        "return 1",
        "return 2",
        "return 3",
        "LIMIT = 4",
        "seen = 5",
        "= 10",
        "[20]",
        "LOW = 30",
        "left: int = 40",
    ):
        changed = functions_in(load, text.replace(old, f"{old[:-1]}9" if old[-1] != "]" else "[29]"))
        assert describe(module.makes) != describe(changed.makes), old


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "True"),
        ("1", "1.0"),
        ("0.0", "-0.0"),
        ("math.inf", "math.nan"),
        ("'1'", "b'1'"),
        ("...", "None"),
        ("(1, 2)", "[1, 2]"),
        ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}"),
        ("MappingProxyType({1: 2})", "MappingProxyType({1: 3})"),
        ("range(3)", "range(4)"),
        ("slice(1)", "slice(2)"),
        ("Decimal('1.5')", "Decimal('2.5')"),
        ("Text('a')", "Text('b')"),
        ("Text('a')", "'a'"),
        ("Point(1)", "Point(2)"),
        ("Access.READ", "Access.READ | Access.WRITE"),
        ("SimpleNamespace(a=1)", "SimpleNamespace(a=2)"),
        ("partial(max, key=1)", "partial(max, key=2)"),
        ("partial(max, 1)", "partial(min, 1)"),
        ("numpy.zeros(2, 'int32')", "numpy.zeros(2, 'int64')"),
        ("numpy.zeros(2)", "numpy.ones(2)"),
        ("numpy.dtype('int32')", "numpy.dtype('int64')"),
        ("ct.float16", "torch.float16"),
        ("ct.exp", "ct.exp2"),
        ("ct.PaddingMode.ZERO", "ct.PaddingMode.NAN"),
        ("int", "float"),
        ("math", "numpy"),
    ],
)
def test_values_are_told_apart(load, one, other) -> None:
    text = """
    import enum, math, numpy, torch
    import cuda.tile as ct
    from collections import namedtuple
    from decimal import Decimal
    from functools import partial
    from types import MappingProxyType, SimpleNamespace

    class Text(str): pass
    class Access(enum.Flag): READ, WRITE = 1, 2
    Point = namedtuple("Point", "x")
    VALUE = {}
    def function(): return VALUE
    """
    described = [
        describe(functions_in(load, text.replace("{}", value)).function) for value in (one, other, one)
    ]
    assert described[0] != described[1]
    assert described[0] == described[2]


def test_a_module_that_is_passed_on_goes_by_its_last_name(load) -> None:
    text = "from . import helpers\ndef function(): return helpers\n"
    assert describe(functions_in(load, text).function) == describe(functions_in(load, text).function)


def test_a_class_within_a_function_leaves_the_modules_name_out(load) -> None:
    text = "def function():\n    class Local:\n        def m(self): return super().m()\n    return Local\n"
    assert describe(functions_in(load, text).function) == describe(functions_in(load, text).function)


def test_a_file_that_was_written_anew_is_read_anew(load) -> None:
    module = load(kernels="def function(): return 1\n")
    before = describe(module.function)
    Path(str(module.__file__)).write_text("def function(): return 1234\n")
    importlib.reload(module)
    assert describe(module.function) != before


def test_a_function_without_source_goes_by_its_bytecode() -> None:
    def made(text: str) -> Any:
        names: dict[str, Any] = {"__name__": "users", "FACTOR": 2}
        exec(compile(text, "<made>", "exec"), names)
        return names["f"]

    one, same, other = (
        made("def f(x): return x * FACTOR"),
        made("def f(x):\n return x*FACTOR"),
        made("def f(x): 1"),
    )
    assert describe(one) == describe(same) != describe(other)
    assert describe(one).startswith("#0 bytecode")
    same.__globals__["FACTOR"] = 3
    assert describe(one) != describe(same)


def test_what_cannot_be_resolved_is_said(load) -> None:
    module = functions_in(
        load,
        """
        def make():
            def function(): return never_defined, later
            if False:
                later = 1
            return function
        function = make()
        """,
    )
    lines = describe_kernel(module.function)
    assert "#0 never_defined = unresolved" in lines
    assert "#0 later = unresolved" in lines


def test_warnings_of_the_source_stay_out_of_the_users_way(load) -> None:
    with pytest.warns((DeprecationWarning, SyntaxWarning)):
        module = functions_in(load, "def f():\n    return '\\d'\n")
    assert describe(module.f) == "#0 def f():\n    return '\\\\d'"


def test_objects_that_keep_their_state_in_slots() -> None:
    class Base:
        __slots__ = ("n",)

    class Config(Base):
        __slots__ = ("unset", "width")

        def __init__(self, n: int, width: int) -> None:
            self.n, self.width = n, width

    texts = {tuple(describe_values([Config(*values)])) for values in ((1, 2), (1, 3), (2, 2))}
    assert len(texts) == 3
    assert tuple(describe_values([Config(1, 2)])) in texts


@pytest.mark.parametrize("empty", ["{}", "[]", "dict()", "set()", "collections.defaultdict(list)"])
def test_what_a_run_keeps_in_a_modules_cache_changes_nothing(load, empty) -> None:
    module = functions_in(
        load,
        f"""
        import collections

        CACHE = {empty}
        TABLE = {{1: 16}}

        def choose(n):
            return CACHE, TABLE
        """,
    )
    before = describe(module.choose)
    if isinstance(module.CACHE, dict):
        module.CACHE[1] = 2
    elif isinstance(module.CACHE, set):
        module.CACHE.add(1)
    else:
        module.CACHE.append(1)
    assert describe(module.choose) == before
    module.TABLE[1] = 32
    assert describe(module.choose) != before


@pytest.mark.parametrize("fill", ["TABLE[1] = 2", "for n in range(3): TABLE[n] = n", "TABLE.update({1: 2})"])
def test_what_a_module_fills_itself_is_source(load, fill) -> None:
    text = """
    TABLE = {}
    {}

    def choose(n):
        return TABLE
    """
    module = functions_in(load, text.replace("    {}\n", f"    {fill}\n"))
    before = describe(module.choose)
    module.TABLE[1] = 32
    assert describe(module.choose) != before
