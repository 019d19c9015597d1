"""`pytest-cutile reproduce`: one case is compiled, and a folder for a bug report is written."""

import shlex
import subprocess

import pytest

from pytest_cutile.cli import main
from tests.plugin.test_compile_gate import ADD
from tests.tile.compiler import fake_tileiras

CRASHES = fake_tileiras.crashes_at("sm_121", "-O3")
TEST = """
from mykernels.add import add

def test_add(make_tensor, check_kernel):
    a, b = (make_tensor((9,), "float16") for _ in range(2))
    check_kernel(add, a, b, reference=lambda a, b: a + b)
"""


@pytest.fixture
def no_gpu(without_gpu, monkeypatch, tmp_path):
    """A project with a real kernel, on which tileiras crashes for sm_121 with -O3."""
    without_gpu.kernel(ADD, name="add")
    (without_gpu.path / "test_fn.py").write_text(TEST)
    fake_tileiras.install(monkeypatch, tmp_path, CRASHES)
    return without_gpu


def reproduce(project, case, *args):
    plugin = ("-p", "pytest_cutile.pytest_parts.reproduced_case", "-p", "no:cacheprovider")
    asked = ("--cutile-reproduce", case, str(project.path / "out"), "20")
    return project.run(*plugin, *asked, "--arch", "sm_121", *args, gates="")


@pytest.mark.parametrize("case", ["add[n1000]", "mykernels/add.py::static[n1000-sm_121]"])
def test_a_declared_case(no_gpu, case):
    result = reproduce(no_gpu, case, *([case] if "::" in case else []))
    result.assert_outcomes(failed=1)
    readme = (no_gpu.path / "out" / "README.md").read_text()
    assert readme.startswith("# tileiras crashes on add_kernel for sm_121 with -O3\n")
    assert f"for the case `{case}`" in readme
    assert "| sm_121 | compiles | compiles | compiles | crashes |" in readme
    assert "| sm_90 | compiles | compiles | compiles | compiles |" in readme


def test_a_test_function(no_gpu):
    case = "test_fn.py::test_add"
    reproduce(no_gpu, case, case, "--correct-on=interpreter").assert_outcomes(failed=1)
    readme = (no_gpu.path / "out" / "README.md").read_text()
    assert readme.startswith("# tileiras crashes on add_kernel for sm_121 with -O3\n")


def test_a_case_that_is_none(no_gpu):
    result = reproduce(no_gpu, "add[n9]")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: no case add[[]n9[]] is declared; there are *add[[]n1000[]]*"])
    assert not (no_gpu.path / "out").exists()


@pytest.mark.parametrize("test", ["mykernels/add.py::compile[n1000-sm_121]", "test_fn.py::test_add"])
def test_the_failure_names_the_command(no_gpu, test):
    result = no_gpu.run(test, "--arch", "sm_121", "-o", "cutile_compile_timeout=9", gates="")
    text = result.stdout.str()
    command = text.partition("Write a folder for a bug report about tileiras:\n")[2].partition("\n")[0]
    case = "add[n1000]" if "compile" in test else test
    assert shlex.split(command) == [
        *("pytest-cutile", "reproduce", case, "--arch", "sm_121", "-o", "compiler-fault"),
        "--pytest=-o cutile_compile_timeout=9",
    ]


def test_a_kernel_that_is_rejected_is_no_report_about_tileiras(no_gpu, tmp_path, monkeypatch):
    fake_tileiras.install(monkeypatch, tmp_path, fake_tileiras.REJECTS)
    result = no_gpu.run("--arch", "sm_121", gates="cutile_compile")
    result.stdout.fnmatch_lines(["*does not compile for sm_121: no such tile*"])
    result.stdout.no_fnmatch_line("*bug report*")


# -- the command --------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Return the commands that were run; the folder is written as a run of pytest does."""
    commands = []

    def run(command, **_):
        commands.append(command)
        at = command.index("--cutile-reproduce")
        case, folder, _ = command[at + 1 : at + 4]
        if case != "none":
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / "README.md").write_text("# tileiras crashes\n\n| arch |\n|---|\ntext\n")
        return subprocess.CompletedProcess(command, 1, stdout="ERROR: no case none\n")

    monkeypatch.setattr("pytest_cutile.commands.reproduce.subprocess.run", run)
    monkeypatch.chdir(tmp_path)
    return commands


def test_the_command_runs_pytest_and_says_what_crashes(asked, capsys):
    assert main(["reproduce", "add[n7]", "--arch", "sm_90", "--pytest=-o 'cutile_kernels=a b'"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines() == [
        *("tileiras crashes", "", "| arch |", "|---|", ""),
        "wrote tileiras-add-n7: run `sh tileiras-add-n7/reproduce.sh`",
    ]
    [command] = asked
    assert command[command.index("--arch") + 1] == "sm_90"
    assert command[-2:] == ["-o", "cutile_kernels=a b"]


def test_a_tests_id_is_what_pytest_runs(asked):
    assert main(["reproduce", "test_a.py::test_b", "-o", "out"]) == 0
    assert asked[0][-1] == "test_a.py::test_b"


@pytest.mark.usefixtures("asked")
def test_where_nothing_is_compiled_the_command_fails_with_what_pytest_said(capsys):
    assert main(["reproduce", "none", "-o", "out"]) == 1
    assert "ERROR: no case none" in capsys.readouterr().out
