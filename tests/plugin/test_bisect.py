"""`pytest-cutile bisect` finds the commit of a history that made a case worse."""

import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import pytest_cutile.commands.bisect
from pytest_cutile.cli import main
from tests.pages import blocks_of, missing_lines
from tests.plugin.forked import run_forked

pytestmark = pytest.mark.slow

SPILLS = (("TILE_M, TILE_N, TILE_K = 64, 64, 32", "TILE_M, TILE_N, TILE_K = 256, 256, 64"),)


def bisect(project, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "pytest_cutile.cli", "bisect", *arguments],
        cwd=project.path,
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def bisect_here(pytester, monkeypatch, capsys):
    """`pytest-cutile bisect` in this process, whose pytest is a fork; returns exit status and output."""

    def run(command, *, cwd, **_):
        *python, module = command[:4]
        assert (python, module) == ([sys.executable, "-P", "-m"], "pytest")
        result = run_forked(pytester, *command[4:], folder=cwd)
        return subprocess.CompletedProcess(command, int(result.ret), result.stdout.str())

    processes = SimpleNamespace(run=run, PIPE=subprocess.PIPE, STDOUT=subprocess.STDOUT)
    monkeypatch.setattr(pytest_cutile.commands.bisect, "subprocess", processes)

    def bisect_here(*arguments):
        capsys.readouterr()
        status = main(["bisect", *arguments])
        return status, capsys.readouterr().out

    return bisect_here


STATIC = ("--gate", "static", "--arch", "sm_90")


def test_the_commit_that_made_compiled_code_worse_is_found(static):
    project, commits = static.project, []
    for number in range(8):
        static.change(
            ('"n256", params={"n": 256}', '"n4096", params={"n": 4096}'), *(SPILLS if number >= 5 else ())
        )
        with static.file.open("a") as file:
            file.write(f"\n# commit {number}\n")
        commits.append(project.commit())
    before = project.git("status", "--porcelain"), project.git("worktree", "list")
    result = bisect(project, "mm[n4096]", "--good", commits[0], *STATIC)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"first bad commit: {commits[5][:7]}" in result.stdout
    (page,) = [block.text for block in blocks_of("docs/how-to/bisect.md") if block.language == "text"]
    names = {"matmul[fp16-4096]": "mm[n4096]", "matmul.py": "mykernels/mm.py", "change 41": "what there is"}
    for old, new in names.items():
        page = page.replace(old, new)
    assert missing_lines(page, result.stdout) == []
    assert "unknown" not in result.stdout  # a revision is its commit
    assert "  pytest " not in result.stdout
    assert (project.git("status", "--porcelain"), project.git("worktree", "list")) == before


def test_a_commit_that_does_not_compile_is_left_out(static):
    project = static.project
    good = project.commit()
    static.change(("acc = ct.mma(a, b, acc)", "acc = ct.mma(a, b)"))
    broken = project.commit()
    static.change(*SPILLS)
    worse = project.commit()
    result = bisect(project, "mm[n256]", "--good", good, *STATIC)
    assert result.returncode == 125, result.stdout + result.stderr
    assert broken[:7] in result.stdout
    assert worse[:7] in result.stdout
    assert good[:7] not in result.stdout


@pytest.mark.parametrize(("us", "status"), [(44.0, 1), (40.0, 0)])
def test_a_step_measures_beside_the_good_commit(paired, bisect_here, us, status):
    paired.commit()
    paired.times(us)
    found, output = bisect_here("scale[n8]", "--good", "HEAD~1", "--step")
    assert found == status, output


def test_a_step_is_good_where_the_code_is_the_good_commits(static, bisect_here):
    static.project.commit()
    with static.file.open("a") as file:
        file.write("# nothing that a kernel sees\n")
    status, output = bisect_here("mm[n256]", "--good", "HEAD", "--arch", "sm_90", "--step")
    assert status == 0, output


def test_a_step_cannot_tell_of_a_case_that_is_not_there_yet(static):
    """Its name is part of another case's, which is left out as unchanged."""
    static.project.commit()
    result = bisect(static.project, "mm[n25]", "--good", "HEAD", "--arch", "sm_90", "--step")
    assert "deselected" in result.stdout
    assert result.returncode == 125, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mm[n256]", "--good", "gone"), "git finds no commit 'gone'"),
        (("mm[n256]", "--good", "HEAD", *STATIC), "the gate static says pass"),
        (
            ("nn[n256]", "--good", "HEAD", *STATIC),
            "the gate static judged no case 'nn[n256]' at HEAD: is that its whole name?",
        ),
        (("mm[n256]", "--good", "HEAD", "--arch", "sm_90"), "the gate speed says pass"),
    ],
)
def test_what_cannot_be_searched_is_said(static, bisect_here, arguments, said):
    static.project.commit()
    status, output = bisect_here(*arguments)
    assert status == 1
    assert said in output


def test_a_good_commit_has_to_be_an_ancestor(static, bisect_here):
    project = static.project
    fork = project.commit()
    with static.file.open("a") as file:
        file.write("# elsewhere\n")
    elsewhere = project.commit()
    project.git("checkout", "-q", fork)
    static.change(*SPILLS)
    project.commit()
    status, output = bisect_here("mm[n256]", "--good", elsewhere, *STATIC)
    assert status == 1
    assert f"try --good {fork[:12]}" in output


def test_a_commit_without_the_projects_folder_is_left_out(static, bisect_here, monkeypatch):
    static.project.commit()
    nowhere = static.project.path / "nowhere"
    monkeypatch.setattr(Path, "cwd", lambda: nowhere)
    assert bisect_here("mm[n256]", "--good", "HEAD", *STATIC, "--step")[0] == 125


def test_a_step_that_fails_by_itself_is_left_out(static, bisect_here, monkeypatch):
    static.project.commit()

    def full(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    status, output = bisect_here("mm[n256]", "--good", "HEAD", *STATIC, "--step")
    assert (status, output) == (125, "pytest-cutile bisect: no space left\n")
