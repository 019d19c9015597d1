"""`pytest-cutile profile`: with a script in the place of ncu, and a timer in that of a GPU."""

import json
import subprocess
import sys

import pytest

from pytest_cutile.pytest_parts.profiled_launch import CALLS_BEFORE
from tests.timing.profiling.examples import FakeNcu

COUNTING = """
import pathlib


def scale(x):
    with pathlib.Path(__file__).with_name("calls").open("a") as file:
        print(len(x), file=file)
    return x * 2
"""


def launch(project, case):
    """Run the plugin that launches a case; return pytest's result."""
    plugin = ("-p", "pytest_cutile.pytest_parts.profiled_launch")
    return project.run(*plugin, "--cutile-profile", case, str(project.path / "case.json"), gates="")


@pytest.mark.parametrize("case", ["scale[n8]", "mykernels/scale.py::speed[n8]"])
def test_one_case_is_described_and_launched_and_nothing_is_tested(project, case):
    project.edit("def scale(x):\n    return x * 2\n", COUNTING)
    (project.path / "test_other.py").write_text("assert False, 'this is not collected'")
    result = launch(project, case)
    assert result.ret == pytest.ExitCode.OK, result.stdout.str()
    described = json.loads((project.path / "case.json").read_text())
    assert described.pop("facts_missing").startswith("scale[n8]: the launcher launched no cuTile kernel")
    expected = {"key": "scale[n8]", "gpu": "NVIDIA H200", "arch": "sm_90", "facts": None}
    assert described == expected | {"flops": 0.0, "bytes": 1e8, "dtype": ""}
    calls = (project.path / "mykernels" / "calls").read_text().split()
    # Traced once for what it compiles to.
    assert calls == ["8"] * (1 + CALLS_BEFORE + 1)


def test_a_case_that_is_none_is_told_those_that_there_are(project):
    result = launch(project, "scale[n9]")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: no case scale[[]n9[]] is declared; there are scale[[]n8[]]"])


def test_without_a_gpu_nothing_is_launched(project):
    (project.path / "conftest.py").write_text("")
    result = launch(project, "scale[n8]")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: scale[[]n8[]]: no GPU: *"])
    result = launch(project, "nosuch")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: no case nosuch is declared; there are scale[[]n8[]]"])


@pytest.mark.slow
def test_the_command_profiles_a_case_and_sums_up(project, monkeypatch):
    fake = FakeNcu(project.path / "bin")
    monkeypatch.setenv("PATH", f"{fake.folder}", prepend=":")
    fake.counts({"name": "scale_kernel", "us": 40.0, "dram": 91.0, "read": 5e7, "written": 6e7})
    done = subprocess.run(
        [sys.executable, "-m", "pytest_cutile.cli", "profile", "scale[n8]", "-o", "out"],
        cwd=project.path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "scale[n8] on NVIDIA H200 (sm_90)" in done.stdout
    assert "scale_kernel, 40 us (100 % of all): bound by memory. Busy: memory 91 %." in done.stdout
    assert {file.name for file in (project.path / "out").iterdir()} == {
        *("scale-n8.ncu-rep", "scale-n8.csv", "scale-n8.md")
    }
