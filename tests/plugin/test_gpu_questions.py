"""Modules that ask about the GPU, or use it, while pytest imports them, without one."""

import subprocess
import sys

import pytest

ASKS = """
import pytest
import torch

CAPABILITY = torch.cuda.get_device_capability()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu():
    raise RuntimeError


def test_capability():
    assert CAPABILITY == (9, 0)
"""
KERNEL = """
import pytest_cutile
import torch

COUNT = torch.cuda.get_device_properties("cuda").multi_processor_count
SPEC = pytest_cutile.KernelSpec(
    name="copy",
    launch=lambda x: x.clone(),
    reference=lambda x: x,
    inputs=lambda make_tensor: (make_tensor((COUNT,), "float32"),),
    cases=[pytest_cutile.Case(name="one", speed=False)],
)
"""
USES = """
import torch

TABLE = torch.ones(3, device="cuda")


def test_table():
    pass
"""


@pytest.fixture
def project(pytester):
    pytester.makeini("[pytest]\npythonpath = .\ncutile_arch = sm_90\ncutile_kernels = asks_kernel\n")
    pytester.makepyfile(asks_kernel=KERNEL, test_asks=ASKS, test_uses=USES)
    return pytester


def test_questions_in_modules_have_an_answer(project):
    run = project.runpytest(
        "test_asks.py", "asks_kernel.py", "-m", "not cutile_correct", "--collect-only", "-q"
    )
    run.stdout.fnmatch_lines(["test_asks.py::test_capability", "asks_kernel.py::compile[[]one-sm_90[]]"])
    project.runpytest("test_asks.py").assert_outcomes(passed=1, skipped=1)


def test_a_tensor_in_a_module_is_told_where_to_go(project):
    run = project.runpytest("test_uses.py")
    run.assert_outcomes(errors=1)
    run.stdout.fnmatch_lines(
        [
            "*test_uses.py:3: in <module>*",
            "*The body of a module uses the GPU*",
            "*Move that into the launcher*",
        ]
    )


@pytest.mark.slow
def test_the_module_that_imports_torch_first_is_answered_too(project):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_asks.py"]
    run = subprocess.run(command, cwd=project.path, capture_output=True, text=True, check=False)
    assert "1 passed, 1 skipped" in run.stdout
