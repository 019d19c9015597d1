"""When a launch counts as unchanged: what its digest is made of, and what leaves it as it is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_cutile.tile.compiler import export, record_launches, source_digest
from pytest_cutile.tile.compiler.source import source_text
from tests.tile.compiler import launchers
from tests.tile.compiler.source_texts import HELPERS, KERNELS

ROOT = Path(__file__).resolve().parents[3]
ARCH = "sm_90"

# Of `run` in KERNELS. Whoever changes it on purpose counts up DIGEST_RULES: then stored digests say nothing.
PINNED = "e6de68ca4b03d431"


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
        pytest.param([("TUNING = Tuning(16)", "TUNING = Tuning(16, 2)")], id="unread field"),
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
        pytest.param([("lambda n: n + 1", "lambda n: n + 2")], id="lambda"),
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


# -- names -----------------------------------------------------------------------------------------


def test_two_kernels_of_one_text_differ_by_their_globals(load) -> None:
    assert digest_of(load(("SIZES = (16,", "SIZES = (8,")).run) != digest_of(load().run)


def test_globals_are_read_anew_each_time(load) -> None:
    module = load()
    before = digest_of(module.run)
    module.EPSILON = 0.5
    assert digest_of(module.run) != before
    module.EPSILON = 1e-6
    assert digest_of(module.run) == before


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
from pytest_cutile.tile.compiler import record_launches, source_digest
from case import kernels
for run in (kernels.run, kernels.run_closing):
    [launch] = record_launches(run, "sm_90")
    print(source_digest(launch, "sm_90"))
"""


@pytest.mark.slow
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
