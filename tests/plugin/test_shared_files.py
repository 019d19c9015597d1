"""Kernels that import files which git ignores, or which a submodule has."""

import textwrap
from pathlib import Path

import pytest

from tests.plugin.conftest import Project

TIMED_BY_BODY = """
import torch


def time_block(self, launches):
    lanes = []
    for launch in launches:
        launch()
        lanes.append(samples(torch._us_of_body))
    return lanes


FileTimer.time_block = time_block
"""
"""Times are what the code that ran says."""
HELPER = """
import torch

def double(x):
    torch._us_of_body = {us}
    return x * 2
"""
IMPORTS = {
    "by the module": ("import pytest_cutile", "import pytest_cutile\nfrom {} import double"),
    "by the launcher": ("def scale(x):", "def scale(x):\n    from {} import double"),
}


def unwrapped(result: pytest.RunResult) -> str:
    return " ".join(result.stdout.str().split())


def use(project: Project, module: str, how: str) -> None:
    """Let the launcher call a function of another module."""
    old, new = IMPORTS[how]
    project.edit(old, new.format(module))
    project.edit("return x * 2", "return double(x)")
    project.conftest(TIMED_BY_BODY)


def write(file: Path, us: float) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(textwrap.dedent(HELPER.format(us=us)))


# -- ignored files ------------------------------------------------------------------------------------


@pytest.fixture(params=IMPORTS)
def ignored(project: Project, request: pytest.FixtureRequest) -> Project:
    """A project whose kernel calls a function of a file that git ignores."""
    use(project, "mykernels.local", request.param)
    write(project.path / "mykernels" / "local.py", 40.0)
    project.commit()
    with (project.path / ".gitignore").open("a") as file:
        file.write("local.py\n")
    project.git("rm", "-q", "--cached", "mykernels/local.py")
    project.commit()
    project.record()
    return project


@pytest.mark.slow
@pytest.mark.parametrize("commits", [0, 1])
def test_an_ignored_file_that_both_kernels_import_leaves_stored_times(ignored, commits):
    for _ in range(commits):
        ignored.edit("SPEC =", "# another commit\nSPEC =")
        ignored.commit()
    write(ignored.path / "mykernels" / "local.py", 41.4)
    result = ignored.run()
    result.assert_outcomes(passed=2)
    said = unwrapped(result)
    assert "inconclusive: scale[n8]: stored times show +3.5 %" in said
    assert "imports mykernels/local.py, which is today's for both kernels" in said
    ignored.run("--perf-strict").assert_outcomes(passed=1, failed=1)


def test_a_generated_version_says_nothing_of_a_kernel(project):
    project.edit("import pytest_cutile", "import pytest_cutile\nfrom mykernels._version import version")
    (project.path / "mykernels" / "_version.py").write_text("version = '1'")
    project.commit()
    project.git("rm", "-q", "--cached", "mykernels/_version.py")
    (project.path / ".gitignore").write_text("times.json\n__pycache__\n_version.py\n")
    project.commit()
    project.record()
    project.commit()
    project.edit("return x * 2", "return x + x")
    project.times(42.0)
    result = project.run()
    result.assert_outcomes(passed=1, failed=1)
    assert "interleaved on the same buffers" in unwrapped(result)


# -- submodules ---------------------------------------------------------------------------------------


@pytest.fixture
def submodule(project: Project) -> Path:
    """A project with a recorded kernel that calls a function of a submodule; its working tree is returned."""
    library = project.path.parent / f"{project.path.name}-library"
    write(library / "__init__.py", 40.0)
    project.git("init", "-q", "-b", "main", str(library))
    project.git("-C", str(library), "add", "-A")
    project.git("-C", str(library), "commit", "-qm", "library")
    use(project, "library", "by the launcher")
    project.commit()
    project.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "library")
    project.commit()
    project.record()
    project.commit()
    return project.path / "library"


@pytest.mark.slow
@pytest.mark.parametrize("committed", [False, True])
def test_a_submodule_is_as_the_baselines_commit_has_it(project, submodule, committed):
    write(submodule / "__init__.py", 42.0)
    if committed:
        project.git("-C", "library", "commit", "-qam", "slower")
        project.commit()
    result = project.run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["E   scale* is 5.0% slower than its baseline*"])
    assert "interleaved on the same buffers" in unwrapped(result)


def test_a_submodule_without_the_commit_leaves_stored_times(project, submodule):
    write(submodule / "__init__.py", 41.4)
    project.git("-C", "library", "checkout", "-q", "--orphan", "other")
    project.git("-C", "library", "commit", "-qam", "other")
    project.commit()
    for remembered in ("heads/main", "remotes/origin/main"):
        project.git("-C", "library", "update-ref", "-d", f"refs/{remembered}")
    project.git("-C", "library", "remote", "remove", "origin")
    project.git("-C", "library", "reflog", "expire", "--expire=now", "--all")
    project.git("-C", "library", "gc", "-q", "--prune=now")
    for tree in project.path.rglob("revisions/*/library"):
        tree.parent.rename(tree.parent.with_name("forgotten"))
    result = project.run()
    result.assert_outcomes(passed=2)
    said = unwrapped(result)
    assert "inconclusive: scale[n8]: stored times show +3.5 %" in said
    assert "of the submodule library is not here" in said
