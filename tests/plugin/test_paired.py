"""`--perf-baseline git:REV`: interleaves both revisions, and leaves cases out that are the same in both."""

import subprocess

import pytest

pytestmark = pytest.mark.usefixtures("repository")


def git(project, *args):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", *identity, *args], cwd=project.path, check=True, capture_output=True)


@pytest.fixture
def repository(project):
    (project.path / ".gitignore").write_text("times.json\n__pycache__\n.pytest_cache\n")
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "base")


def edit(project, old, new):
    file = project.path / "mykernels" / "scale.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def test_a_slower_one_fails_and_nothing_is_stored(project):
    edit(project, "return x * 2", "return x + x")
    project.times(42.4, interleaved_us=40.0)
    result = project.run("--perf-baseline=git:HEAD")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "scale[[]n8[]] on sm_90 (NVIDIA H200) is 6.0% slower than HEAD.",
            "*time per launch *42.4 us *40 us *+6.0 %",
            "*baseline *HEAD, interleaved with the working tree on the same buffers",
        ]
    )
    assert not project.baseline.exists()


def test_a_checkout_without_changes_is_not_slower_than_its_own_commit(project):
    git(project, "branch", "same")
    project.times(42.4, interleaved_us=40.0)
    result = project.run("--perf-baseline=git:same")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["inconclusive: scale[[]n8[]]: it and the baseline kernel are of one commit, *"]
    )
    git(project, "commit", "-qm", "another", "--allow-empty")
    project.run("--perf-baseline=git:same").assert_outcomes(passed=1, failed=1)


@pytest.mark.parametrize(("us", "verdict"), [(40.0, "pass"), (40.3, "pass"), (36.0, "improvement")])
def test_one_that_is_not_slower_passes(project, us, verdict):
    project.times(us, interleaved_us=40.0)
    result = project.run("--perf-baseline=git:HEAD", "--perf-strict")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines([f"scale *{verdict}"])


def test_the_other_revisions_launcher_is_what_takes_turns(project):
    edit(project, "return x * 2", "print('HEAD'); return x * 2")
    git(project, "commit", "-qam", "says where it is")
    edit(project, "print('HEAD')", "print('HERE')")
    project.times(40.0, interleaved_us=40.0)
    result = project.run("--perf-baseline=git:HEAD", "-s", "-p", "no:benchmark", gates="cutile_speed")
    text = result.stdout.str()
    assert text.count("HEAD\nHERE\nHEAD\nHERE") + text.count("HERE\nHEAD\nHERE\nHEAD") >= 2


def test_a_kernel_that_the_revision_lacks_has_no_baseline(project):
    text = (project.path / "mykernels" / "scale.py").read_text()
    project.kernel(text.replace('name="scale"', 'name="new"'), name="new")
    project.times(40.0, interleaved_us=40.0)
    result = project.run("--perf-baseline=git:HEAD")
    result.stdout.fnmatch_lines(["new *no-baseline", "scale *pass", "no-baseline: HEAD has no new[[]n8[]]"])


def test_a_launcher_that_does_not_know_the_case_is_no_baseline(project):
    edit(project, "def scale(x):", "def scale(x, *, factor=2):")
    edit(project, "return (make_tensor", "return dict(factor=2, x=make_tensor")
    edit(project, '"float32"),)', '"float32"))')
    edit(project, "reference=lambda x: x * 2", "reference=lambda x, factor: x * 2")
    project.times(40.0, interleaved_us=40.0)
    result = project.run("--perf-baseline=git:HEAD")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["scale *no-baseline", "no-baseline: the launcher of HEAD (*) raised TypeError*"]
    )


def test_the_fixture_perf_finds_the_function_in_the_revision(project):
    project.pytester.makepyfile(
        test_mine="""
        import torch
        from mykernels.scale import scale

        def test_function(perf): perf(scale, torch.ones(8), bytes=1e8)
        def test_lambda(perf): perf(lambda: None, bytes=1e8)
        """
    )
    project.times(40.0, interleaved_us=40.0)
    result = project.run("--perf-baseline=git:HEAD", "test_mine.py", "-p", "no:benchmark", gates="")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*test_function *pass", "*test_lambda *no-baseline"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("git:", "*names no revision*"),
        ("git:nowhere", "*git:nowhere*"),
    ],
)
def test_a_revision_that_is_none_is_a_usage_error(project, value, message):
    result = project.run(f"--perf-baseline={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_it_stores_nothing(project):
    result = project.run("--perf-baseline=git:HEAD", "--update-baselines")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*leave out --update-baselines*"])
