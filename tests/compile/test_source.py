from __future__ import annotations

import importlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from pytest_cutile.compile import export, record_launches, source_digest
from pytest_cutile.compile.functions import read_function
from pytest_cutile.compile.reach import describe_function
from pytest_cutile.compile.source import source_text
from tests.compile import launchers

ROOT = Path(__file__).resolve().parents[2]
ARCH = "sm_90"

# Kernels must be in real files, and each change is made to a copy of these two.
HELPERS = """\
import cuda.tile as ct

SCALE = 3
UNREAD = 5


def scaled(x):
    return x * SCALE


def twice(x):
    return scaled(x) + scaled(x)


def shifted(x, by=2):
    return x + by


def tile_of(bits, base):
    return base * 16 // bits


@ct.function
def marked(x):
    return x - 1


def unread(x):
    return x
"""
KERNELS = '''\
import enum
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import cuda.tile as ct
import numpy
import torch

from . import helpers
from .helpers import marked, tile_of
from .helpers import twice as doubled


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


class Config:
    TILE = 16
    STAGES = 3

    @staticmethod
    def pad(n):
        return n + 0


@dataclass(frozen=True)
class Tuning:
    tile: int
    unroll: int = 1

    def area(self):
        return self.tile * self.tile


NARROW = ct.float16
FOREIGN = torch.float32
MODE = Mode.FAST
SIZES = (16, 32)
NAMES = frozenset({"alpha", "beta", "gamma", "delta"})
EPSILON = 1e-6
FLAG = True
LABEL = "plain"
TABLE = {"a": 1, "b": 2}
TUNING = Tuning(16)
AREA = Tuning(8)
HALF = Fraction(1, 2)
COUNT = numpy.int32(7)
OPAQUE = object()
TILE_FOR = partial(tile_of, 16)
PICK, DROP = (lambda n: n + 1), (lambda n: n - 1)


def make(power):
    offset = 4

    # Built in a function, and closing over its variables.
    @ct.kernel(occupancy=ct.ByTarget(sm_90=2, sm_100=4, default=1), opt_level=2)
    def closing(x, n: ct.Constant[int]):
        value = helpers.scaled(ct.load(x, (0,), (n,))) + offset
        for _ in ct.static_iter(range(power)):
            value = value * 2
        ct.store(x, (0,), value)

    return closing


@ct.kernel(occupancy=2)
def kernel(x, y, n: ct.Constant[int], factor):
    """Say what it does."""
    tile: int = Config.TILE  # of a class
    a = ct.load(x, (0,), (n,))  # [n]
    b = helpers.shifted(doubled(marked(a)))
    if ct.static_eval(MODE is Mode.FAST and FLAG):
        b = b * ct.static_eval(TILE_FOR(SIZES[0]) + PICK(TUNING.tile) + Config.pad(0))
    b = b + ct.static_eval(len(NAMES) + len(LABEL) + TABLE["a"] + AREA.area() + int(HALF * 2) + int(COUNT))
    b = b + ct.static_eval(OPAQUE is None)
    b = b + tuple(n + 1 for n in ct.static_iter(range(2)))[0]
    b = (b * EPSILON).astype(NARROW).astype(FOREIGN) * factor
    ct.store(y, (0,), (b * tile).astype(y.dtype))


def run(kernel=kernel):
    x = torch.empty((64, 128), dtype=torch.float32, device="cuda")[0]
    ct.launch(torch.cuda.current_stream(), (1,), kernel, (x, x, 64, 1.5))


def run_closing(power=2):
    x = torch.empty(128, dtype=torch.float32, device="cuda")
    ct.launch(torch.cuda.current_stream(), (1,), make(power), (x, 64))
'''
# Of `run` above. Whoever changes it on purpose counts up DIGEST_RULES: then stored digests say nothing.
PINNED = "fbcf8673b43f8003"

_names = (f"source_case_{number}" for number in itertools.count())


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Import the two files, changed, as a package of their own."""
    monkeypatch.syspath_prepend(tmp_path)

    def load(*changes: tuple[str, str], kernels: str = KERNELS, helpers: str = HELPERS) -> ModuleType:
        texts = {"kernels": kernels, "helpers": helpers, "__init__": ""}
        for old, new in changes:
            [place] = [name for name, text in texts.items() if old in text]
            assert texts[place].count(old) == 1, f"{old!r} is in {place} more than once"
            texts[place] = texts[place].replace(old, new)
        folder = tmp_path / next(_names)
        folder.mkdir()
        for name, text in texts.items():
            (folder / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(f"{folder.name}.kernels")

    return load


def digest_of(run: Any, arch: str = ARCH) -> str:
    [launch] = record_launches(run, arch)
    return source_digest(launch, arch)


def text_of(run: Any) -> str:
    [launch] = record_launches(run, ARCH)
    return source_text(launch, ARCH)


def launched(kernel: Any, *args: Any, arch: str = ARCH) -> str:
    """Return the digest of launching `kernel`; callables make tensors."""
    import cuda.tile as ct

    def run() -> None:
        made = tuple(arg() if callable(arg) else arg for arg in args)
        ct.launch(torch.cuda.current_stream(), (1,), kernel, made)

    return digest_of(run, arch)


def test_the_kernels_here_compile(load) -> None:
    module = load()
    for run in (module.run, module.run_closing):
        [launch] = record_launches(run, ARCH)
        assert export(launch, ARCH).bytecode


def test_the_digest_is_short_hex(load) -> None:
    assert re.fullmatch(r"[0-9a-f]{16}", digest_of(load().run))


def test_the_digest_is_the_one_of_every_toolchain_and_python(load) -> None:
    assert digest_of(load().run) == PINNED


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([("# [n]", "# [n] elements")], id="comment"),
        pytest.param([("# of a class", "")], id="no comment"),
        pytest.param([("    a = ct.load(x", "\n\n    a = ct.load(x")], id="blank lines"),
        pytest.param([("(b * EPSILON)", "(  (b)*EPSILON )")], id="spaces and parentheses"),
        pytest.param([("ct.store(y, (0,), (b", "ct.store(\n        y,\n        (0,), (b")], id="line breaks"),
        pytest.param([('TABLE["a"]', "TABLE['a']")], id="quotes"),
        pytest.param([('    """Say what it does."""\n', "")], id="no docstring"),
        pytest.param(
            [("def scaled(x):\n", 'def scaled(x):\n    """Scale."""\n')], id="docstring of a helper"
        ),
        pytest.param([("tile: int = ", "tile = ")], id="no annotation of a local"),
        pytest.param([("kernel(x, y,", "kernel(x: ct.Array, y: ct.Array,")], id="annotations of arrays"),
        pytest.param([("def scaled(x):", "def scaled(x: int) -> int:")], id="annotations of a helper"),
        pytest.param([("import enum", "from __future__ import annotations\nimport enum")], id="future"),
        pytest.param([("n: ct.Constant[int], f", "n: ct.Constant, f")], id="type of a constant"),
        pytest.param([("SCALE = 3\n", ""), ("def unread", "SCALE = 3\n\n\ndef unread")], id="moved constant"),
        pytest.param(
            [
                ("def twice(x):\n    return scaled(x) + scaled(x)\n\n\n", ""),
                ("def unread", "def twice(x):\n    return scaled(x) + scaled(x)\n\n\ndef unread"),
            ],
            id="moved function",
        ),
        pytest.param(
            [
                ("from .helpers import marked, tile_of", "from .helpers import marked"),
                ("NARROW =", "def tile_of(bits, base):\n    return base * 16 // bits\n\n\nNARROW ="),
            ],
            id="helper moved to another file",
        ),
        pytest.param([("UNREAD = 5", "UNREAD = 6")], id="global that is not read"),
        pytest.param(
            [("def unread(x):\n    return x", "def unread(x):\n    return 2 * x")], id="unread helper"
        ),
        pytest.param([("STAGES = 3", "STAGES = 4")], id="attribute that is not read"),
        pytest.param(
            [("unroll: int = 1", "unroll: int = 2"), ("Tuning(8)", "Tuning(8, 1)")], id="unread field"
        ),
        pytest.param([("n - 1)", "n - 2)")], id="the other lambda of a line"),
        pytest.param([("offset = 4", "offset = 5")], id="another kernel of the file"),
        pytest.param(
            [('{"alpha", "beta", "gamma", "delta"}', '{"delta", "gamma", "alpha", "beta"}')], id="set"
        ),
        pytest.param([("OPAQUE = object()", "_ = object()\nOPAQUE = object()")], id="another object"),
        pytest.param([("(1,), kernel, (x", "(7, 3), kernel, (x")], id="grid"),
        pytest.param([("64, 1.5)", "64, 2.5)")], id="value of a scalar"),
        pytest.param([("empty((64, 128)", "empty((64, 256)")], id="size of the same divisibility"),
        pytest.param(
            [("@ct.kernel(occupancy=2)", "@ct.kernel(occupancy=ct.ByTarget(sm_90=2))")], id="by target"
        ),
        pytest.param(
            [("@ct.kernel(occupancy=2)", "@ct.kernel(occupancy=2, opt_level=3)")], id="default hint"
        ),
    ],
)
def test_what_cannot_matter_does_not_change_it(load, changes) -> None:
    assert text_of(load(*changes).run) == text_of(load().run)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([("(b * EPSILON)", "(b + EPSILON)")], id="body"),
        pytest.param([("(b * tile)", "(b * 16)")], id="name for a value"),
        pytest.param([("@ct.kernel(occupancy=2)", "@ct.kernel(occupancy=4)")], id="occupancy"),
        pytest.param([("@ct.kernel(occupancy=2)", "@ct.kernel")], id="no hint"),
        pytest.param([("@ct.kernel(occupancy=2)", "@ct.kernel(occupancy=2, num_ctas=2)")], id="num_ctas"),
        pytest.param(
            [("@ct.kernel(occupancy=2)", "@ct.kernel(occupancy=2, num_worker_warps=8)")], id="warps"
        ),
        pytest.param([("@ct.kernel(occupancy=2)", "@ct.kernel(occupancy=2, opt_level=1)")], id="opt_level"),
        pytest.param(
            [("@ct.kernel(occupancy=2)", "@ct.kernel(occupancy=ct.ByTarget(sm_90=3))")], id="target"
        ),
        pytest.param([("return x * SCALE", "return SCALE * x")], id="helper of a helper"),
        pytest.param([("return scaled(x) + scaled(x)", "return scaled(x) * 2")], id="imported helper"),
        pytest.param([("return x + by", "return by + x")], id="helper through a module"),
        pytest.param([("by=2", "by=3")], id="default of a helper"),
        pytest.param([("return x - 1", "return x - 2")], id="ct.function"),
        pytest.param([("@ct.function", "@ct.function(host=True)")], id="decorator of a helper"),
        pytest.param([("base * 16 // bits", "base * 8 // bits")], id="partial's function"),
        pytest.param([("partial(tile_of, 16)", "partial(tile_of, 8)")], id="partial's argument"),
        pytest.param([("n + 1), (", "n + 2), (")], id="lambda"),
        pytest.param([("return n + 0", "return n + 1")], id="static method"),
        pytest.param([("self.tile * self.tile", "self.tile + self.tile")], id="method"),
        pytest.param([("SCALE = 3", "SCALE = 4")], id="global of a helper"),
        pytest.param([("SCALE = 3", "SCALE = 3.0")], id="type of a global"),
        pytest.param([("TILE = 16", "TILE = 32")], id="class attribute"),
        pytest.param([("TUNING = Tuning(16)", "TUNING = Tuning(32)")], id="dataclass"),
        pytest.param([("AREA = Tuning(8)", "AREA = Tuning(8, 2)")], id="a field that a method may read"),
        pytest.param([("MODE = Mode.FAST", "MODE = Mode.EXACT")], id="enum member"),
        pytest.param([("FAST = 1", "FAST = 3")], id="enum value"),
        pytest.param([("NARROW = ct.float16", "NARROW = ct.bfloat16")], id="dtype"),
        pytest.param([("FOREIGN = torch.float32", "FOREIGN = torch.float64")], id="torch's dtype"),
        pytest.param([("SIZES = (16, 32)", "SIZES = (16, 64)")], id="tuple"),
        pytest.param([('"gamma", "delta"', '"gamma", "epsilon"')], id="set"),
        pytest.param([("EPSILON = 1e-6", "EPSILON = 1e-5")], id="float"),
        pytest.param([("FLAG = True", "FLAG = 1")], id="bool"),
        pytest.param([('LABEL = "plain"', 'LABEL = "fancy"')], id="string"),
        pytest.param([('{"a": 1', '{"a": 3')], id="dict"),
        pytest.param([("Fraction(1, 2)", "Fraction(1, 3)")], id="fraction"),
        pytest.param([("numpy.int32(7)", "numpy.int32(8)")], id="numpy number"),
        pytest.param([("numpy.int32(7)", "numpy.int64(7)")], id="numpy type"),
        pytest.param([("OPAQUE = object()", "OPAQUE = [].append")], id="type of an opaque object"),
        pytest.param(
            [("n: ct.Constant[int], f", "n: ct.Constant[int], other, f"), ("64, 1.5)", "64, 1, 1.5)")],
            id="another parameter",
        ),
        pytest.param([("64, 1.5)", "32, 1.5)")], id="constant argument"),
        pytest.param([("64, 1.5)", "64, 1)")], id="type of a scalar argument"),
        pytest.param(
            [("(64, 128), dtype=torch.float32", "(64, 128), dtype=torch.float16")], id="array's dtype"
        ),
        pytest.param([("(x, x, 64", "(x[1:], x, 64")], id="alignment"),
        pytest.param([("(x, x, 64", "(x[::2], x, 64")], id="stride"),
        pytest.param([("(x, x, 64", "(x[:100], x, 64")], id="divisibility"),
        pytest.param(
            [("kernel(x, y, n", "kernel(x: ct.IndexedWithInt64, y, n")], id="annotation that is cuTile's"
        ),
    ],
)
def test_what_may_matter_changes_it(load, changes) -> None:
    assert digest_of(load(*changes).run) != digest_of(load().run)


@pytest.mark.parametrize(
    "changes",
    [
        [("offset = 4", "offset = 5")],
        [("value * 2", "value * 3")],
        [("SCALE = 3", "SCALE = 4")],
        [
            ("def make(power):", "def make(power, SCALE=1):"),
            ("helpers.scaled(ct", "SCALE * helpers.scaled(ct"),
        ],
    ],
)
def test_a_closure_counts_with_what_it_closes_over(load, changes) -> None:
    changed, base = load(*changes), load()
    assert digest_of(changed.run_closing) != digest_of(base.run_closing)
    assert digest_of(lambda: base.run_closing(3)) != digest_of(lambda: base.run_closing(2))
    assert digest_of(lambda: base.run_closing(2)) == digest_of(lambda: load().run_closing(2))


def test_a_kernel_may_be_indented_in_any_way(load) -> None:
    body = KERNELS[KERNELS.index("@ct.kernel(occupancy=2)") : KERNELS.index("def run(")]
    indented = load((body, "if FLAG:\n" + textwrap.indent(body.replace("# [n]", "# [n]\n#"), "      ")))
    assert digest_of(indented.run) == digest_of(load().run)


# -- hints ------------------------------------------------------------------------------------------


def test_hints_count_as_they_are_resolved_for_the_architecture(load) -> None:
    base = load()
    only_sm_100 = load(("sm_100=4", "sm_100=8"))
    assert digest_of(only_sm_100.run_closing, "sm_90") == digest_of(base.run_closing, "sm_90")
    assert digest_of(only_sm_100.run_closing, "sm_100") != digest_of(base.run_closing, "sm_100")
    only_default = load(("default=1", "default=3"))
    assert digest_of(only_default.run_closing, "sm_90") == digest_of(base.run_closing, "sm_90")
    assert digest_of(only_default.run_closing, "sm_121") != digest_of(base.run_closing, "sm_121")


def test_hints_that_replace_count_and_those_replaced_do_not(load) -> None:
    base, hinted = load(), load(("@ct.kernel(occupancy=2)", "@ct.kernel(occupancy=4, num_ctas=1)"))
    replaced = [module.kernel.replace_hints(occupancy=8, num_ctas=2) for module in (base, hinted)]
    one, other = (digest_of(lambda kernel=kernel: base.run(kernel)) for kernel in replaced)
    assert one == other
    assert one != digest_of(base.run)


# -- names and values -------------------------------------------------------------------------------


def describe(function: Any) -> str:
    return "\n".join(describe_function(function))


def functions_in(load: Any, text: str) -> ModuleType:
    module = load(kernels=textwrap.dedent(text))
    assert isinstance(module, ModuleType)
    return module


def test_two_kernels_of_one_text_differ_by_their_globals(load) -> None:
    assert digest_of(load(("SIZES = (16,", "SIZES = (8,")).run) != digest_of(load().run)


def test_globals_are_read_anew_each_time(load) -> None:
    module = load()
    before = digest_of(module.run)
    module.EPSILON = 0.5
    assert digest_of(module.run) != before
    module.EPSILON = 1e-6
    assert digest_of(module.run) == before


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


def test_lambdas_of_one_line_are_told_apart(load) -> None:
    module = functions_in(
        load, "a, b, c = (lambda x: x), (lambda x: x), (lambda x: -x)\nd = (lambda: lambda: 1 if a else 2)\n"
    )
    assert describe(module.a) == describe(module.b)
    assert describe(module.a) != describe(module.c)
    assert "Lambda" in read_function(module.d).text.removeprefix("Lambda")
    assert "Lambda" not in read_function(module.d()).text.removeprefix("Lambda")


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
    lines = describe_function(module.function)
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
    assert any("17" in line for line in lines if line.startswith("#1 FunctionDef(name='cached'"))
    assert any("19" in line for line in lines if line.startswith("#2 FunctionDef(name='managed'"))


def test_a_file_with_the_name_of_a_standard_module_is_followed(load, tmp_path, monkeypatch) -> None:
    Path(tmp_path, "colorsys.py").write_text("def tint(n):\n    return n + 1\n")
    monkeypatch.setitem(sys.modules, "colorsys", None)
    monkeypatch.delitem(sys.modules, "colorsys")
    module = functions_in(load, "import colorsys\ndef function(n): return colorsys.tint(n)\n")
    assert any(line.startswith("#1 FunctionDef(name='tint'") for line in describe_function(module.function))


def test_objects_are_described_by_their_attributes_and_never_by_their_address(load) -> None:
    text = """
    import threading
    from dataclasses import dataclass
    from functools import cached_property
    from types import SimpleNamespace

    class Plain:
        def __init__(self, n): self.n, self.lock, self.me = n, threading.Lock(), self
        @cached_property
        def late(self): return self.n

    PLAIN = Plain(1)
    SPACE = SimpleNamespace(a=1)
    def whole(): return PLAIN, SPACE, iter(())
    def part(): return PLAIN.n

    @dataclass(slots=True)
    class Slotted:
        read: int
        unread: int

    SLOTTED = Slotted(1, 2)
    def field(): return SLOTTED.read
    """
    module, again = functions_in(load, text), functions_in(load, text)
    changed = functions_in(load, text.replace("Plain(1)", "Plain(2)"))
    assert describe(module.field) == describe(functions_in(load, text.replace("1, 2", "1, 3")).field)
    assert describe(module.field) != describe(functions_in(load, text.replace("1, 2", "2, 2")).field)
    other_method = functions_in(load, text.replace("return self.n", "return 0"))
    assert "0x" not in describe(module.whole)
    assert module.PLAIN.late == 1
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
    assert not read_function(one).has_source
    assert describe(one) == describe(same) != describe(other)
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
    lines = describe_function(module.function)
    assert "#0 never_defined = unresolved" in lines
    assert "#0 later = unresolved" in lines


def test_warnings_of_the_source_stay_out_of_the_users_way(load) -> None:
    with pytest.warns((DeprecationWarning, SyntaxWarning)):
        module = functions_in(load, "def f():\n    return '\\d'\n")
    assert read_function(module.f).has_source


# -- arguments --------------------------------------------------------------------------------------


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> Any:
    return lambda: torch.empty(shape, dtype=dtype, device="cuda")


def test_each_fact_of_an_argument_counts_once() -> None:
    kernel = launchers.copy_kernel
    args = [
        tensor(64),
        tensor(64, dtype=torch.float16),
        tensor(64, 64),
        tensor(65),
        tensor(1),
        lambda: tensor(128)()[::2],
        lambda: tensor(256)()[::4],
        lambda: tensor(64, 66)()[:, :64],
        lambda: tensor(128)()[1:65],
        lambda: tensor(1)().expand(64),
        lambda: (tensor(64)(), tensor(64)()),
        lambda: [tensor(64)()],
        1,
        1.0,
        True,
    ]
    assert len({launched(kernel, arg) for arg in args}) == len(args)


def test_the_stride_of_a_single_element_does_not_count() -> None:
    # Which one a launch sees depends on the version of torch.
    one, other = ((lambda stride=stride: tensor(64)().as_strided((1, 64), (stride, 1))) for stride in (64, 7))
    assert launched(launchers.copy_kernel, one) == launched(launchers.copy_kernel, other)


def test_arguments_that_no_launch_takes_are_refused() -> None:
    with pytest.raises(TypeError, match="copy_kernel"):
        launched(launchers.copy_kernel, "text")


# -- places and processes ---------------------------------------------------------------------------

_PRINT = """
import sys
sys.path.insert(0, sys.argv[1])
from pytest_cutile.compile import record_launches, source_digest
from case import kernels
for run in (kernels.run, kernels.run_closing):
    [launch] = record_launches(run, "sm_90")
    print(source_digest(launch, "sm_90"))
"""


def test_neither_the_process_nor_the_folder_counts(tmp_path) -> None:
    original = tmp_path / "one" / "case"
    original.mkdir(parents=True)
    for name, text in {"kernels": KERNELS, "helpers": HELPERS, "__init__": ""}.items():
        (original / f"{name}.py").write_text(text)
    shutil.copytree(original, tmp_path / "a longer path" / "case")
    printed = []
    for seed, folder in (("1", "one"), ("2", "a longer path")):
        done = subprocess.run(
            [sys.executable, "-c", _PRINT, str(tmp_path / folder)],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.split())
    assert printed[0] == printed[1]
    assert printed[0][0] == PINNED
    assert printed[0][0] != printed[0][1]


def test_objects_that_keep_their_state_in_slots() -> None:
    from pytest_cutile.compile.reach import describe_value

    class Base:
        __slots__ = ("n",)

    class Config(Base):
        __slots__ = ("unset", "width")

        def __init__(self, n: int, width: int) -> None:
            self.n, self.width = n, width

    texts = {describe_value(Config(*values)) for values in ((1, 2), (1, 3), (2, 2))}
    assert len(texts) == 3
    assert describe_value(Config(1, 2)) in texts
