"""The interpreter by itself: neither pytest nor the rest of the plugin, and what a run tells."""

import subprocess
import sys

import pytest
import torch

from pytest_cutile.interpreter import KernelFault, Options, interpret
from pytest_cutile.tile.compiler import toolchain
from pytest_cutile.tile.compiler.toolchain import CompilerMissing
from pytest_cutile.words.platforms.architectures import ArchitectureError
from tests.tile.interpreter import faulty_kernels as kernels
from tests.tile.interpreter.test_faults import N, launch, vector

SCRIPT = """
import sys


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"pytest", "_pytest", "pluggy"}:
            raise ModuleNotFoundError(f"{name} is not installed", name=name)


sys.meta_path.insert(0, Refuse())

import cuda.tile as ct
import torch

from pytest_cutile.interpreter import interpret


@ct.kernel
def double_kernel(X, Y, TILE: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(Y, (i,), 2 * ct.load(X, (i,), (TILE,)))


x, y = torch.arange(128.0), torch.empty(128)
with interpret(arch="sm_90") as run:
    ct.launch(torch.cuda.current_stream(), (2,), double_kernel, (x, y, 64))
assert torch.equal(y, 2 * x)
others = ("pytest", "_pytest", "pytest_cutile.gates", "pytest_cutile.correctness")
print(run.launches, run.faults, [name for name in others if name in sys.modules])
"""


@pytest.mark.slow
def test_it_needs_no_pytest(tmp_path):
    script = tmp_path / "script.py"  # cuda-tile reads a kernel's source
    script.write_text(SCRIPT)
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "[InterpretedLaunch(kernel='double_kernel', grid=(2,))] [] []\n"


@pytest.mark.parametrize(
    ("arch", "said"),
    [
        ("sm_99", r"^the installed tileiras cannot compile for sm_99; it has sm_80, .*sm_121"),
        ("hopper", r"^'hopper' names no GPU architecture \(expected .*\); known: sm_80, .*sm_121"),
    ],
)
def test_an_unknown_architecture_is_refused(arch, said):
    with pytest.raises(ArchitectureError, match=said), interpret(arch):
        pass


def test_without_a_compiler_any_architecture_is_taken(monkeypatch):
    def missing():
        raise CompilerMissing("tileiras is not installed")

    monkeypatch.setattr(toolchain, "supported_architectures", missing)
    with interpret("sm99") as run:
        assert run.arch == "sm_99"
    with pytest.raises(ArchitectureError, match=r"^'sm' names no GPU architecture"), interpret("sm"):
        pass


def test_faults_and_options_are_known_without_torch():
    code = "import sys, pytest_cutile.tile.interpreter.faults as faults; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"


def test_a_name_that_is_not_there():
    import pytest_cutile.interpreter as package

    with pytest.raises(AttributeError, match="has no attribute 'interpreting'"):
        _ = package.interpreting


def test_a_run_lists_launches_and_faults_whoever_caught_them():
    with interpret("sm_90") as run:
        launch(4, kernels.copy, vector(), vector(), N)
        with pytest.raises(KernelFault) as caught:
            launch(9, kernels.copy, vector(), vector(), N)
    assert [(began.kernel, began.grid) for began in run.launches] == [("copy", (4,)), ("copy", (9,))]
    assert run.faults == [caught.value]
    assert run.faults[0].kind == "out-of-bounds"


def test_other_options_record_apart():
    x, y = vector(), torch.empty(64)
    with interpret("sm_90", Options(find_nonfinite=True)) as run:
        launch(4, kernels.copy, x / 0, y, N)
        with run.using(Options(find_nonfinite=True, trace_writes=True)):
            assert run.nonfinite.first("Inf") is None
            launch(4, kernels.copy, x, y, N)
            assert run.trace_element(y, (3,)).kernel == "copy"
        assert run.nonfinite.first("Inf") is not None
        run.forget()
        assert run.nonfinite.first("Inf") is None
