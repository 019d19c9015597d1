"""`--kernel-summary`: a Markdown summary of the run, however it ends. And what JUnit files hold."""

import xml.etree.ElementTree as ET

import pytest

from pytest_cutile.timing.measure.timed_outputs import NO_OUTPUTS
from tests.plugin.forked import run_forked


@pytest.fixture
def summary(project):
    return project.path / "summary.md"


def text_after(project, summary, *args: str, ret: int, gates: str = "cutile_correct or cutile_speed") -> str:
    result = project.run("--kernel-summary=summary.md", *args, gates=gates)
    assert result.ret == ret
    return str(summary.read_text())


@pytest.mark.parametrize("args", [(), ("-n", "1", "-p", "no:benchmark"), ("-p", "no:terminal")])
def test_a_regression_is_on_top(project, summary, args):
    project.record(40.0)
    project.times(44.0)
    text = text_after(project, summary, *args, ret=pytest.ExitCode.TESTS_FAILED)
    assert text.startswith("## cuTile kernels: 1 of 1 cases failed\n\n### Failed\n\n")
    assert text.count("| `scale` | `n8` | `sm_90` | `NVIDIA H200` | regression | 44 us |") == 1
    assert "| +10.0 % | `it was recorded outside of git, so there is no baseline kernel` |" in text
    assert text.count("##") == 2  # workers wrote nothing


def test_it_appends(project, summary):
    summary.write_text("# written before\n")
    text = text_after(project, summary, ret=pytest.ExitCode.OK)
    assert text.startswith("# written before\n\n## cuTile kernels: none of 1 cases failed, 1 undecided\n")
    assert text_after(project, summary, ret=pytest.ExitCode.OK).count("\n\n## cuTile kernels: ") == 2


def test_an_accepted_regression_is_no_failure(project, summary):
    project.record(40.0)
    project.times(44.0)
    args = ("--update-baselines", "--reason", "why not")
    text = text_after(project, summary, *args, ret=pytest.ExitCode.OK)
    assert "none of 1 cases failed, 1 accepted" in text


def test_what_strict_fails_has_failed(project, summary):
    text = text_after(project, summary, "--perf-strict", ret=pytest.ExitCode.TESTS_FAILED)
    assert "1 of 1 cases failed" in text
    assert "| no-baseline |" in text


def test_an_interrupted_run_says_so(project, summary):
    project.pytester.makepyfile(
        test_mine="""
        def test_first(perf): perf(lambda: None, bytes=1e8)
        def test_second(): raise KeyboardInterrupt
        def test_third(perf): perf(lambda: None, bytes=1e8)
        """
    )
    result = run_forked(project.pytester, "--kernel-summary=summary.md", "test_mine.py")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    text = summary.read_text()
    assert "**The run was stopped before its end.**" in text
    assert "`test_first`" in text
    assert "`test_third`" not in text


def test_failures_of_other_tests_are_counted(project, summary):
    project.pytester.makepyfile(test_mine="import nosuch\n", test_other="def test_other(): assert 0\n")
    args = ("--continue-on-collection-errors", "test_mine.py", "test_other.py")
    text = text_after(project, summary, *args, ret=pytest.ExitCode.TESTS_FAILED, gates="")
    assert text.startswith("## cuTile kernels: no case was run\n")
    assert "**Failures that are no verdict on a kernel: 2.**" in text


def test_nothing_is_written_when_nothing_is_run(project, summary):
    assert not text_after(project, summary, "--collect-only", ret=pytest.ExitCode.OK)


def test_what_changed_only_left_out_is_said(static):
    static.record()
    summary = static.project.path / "summary.md"
    text = text_after(static.project, summary, "--changed-only", gates="", ret=pytest.ExitCode.OK)
    assert "no case was run" in text
    assert "Left out: 4 tests of cases" in text


@pytest.mark.parametrize(
    ("path", "message"),
    [("nosuch/summary.md", "*nosuch/summary.md cannot be written: No such file*"), ("", "*is empty*")],
)
@pytest.mark.parametrize("args", [(), ("-n", "1")])
def test_a_path_that_cannot_be_written_is_a_usage_error(project, path, message, args):
    result = project.run(f"--kernel-summary={path}", *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_a_path_that_vanishes_is_a_warning(project):
    (project.path / "out").mkdir()
    project.pytester.makepyfile(test_mine="import shutil\ndef test_mine(): shutil.rmtree('out')\n")
    result = project.run("--kernel-summary=out/summary.md", "test_mine.py", gates="")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["cutile: --kernel-summary: nothing was written: */out/summary.md * cannot be written: No such file*"]
    )


@pytest.mark.parametrize("args", [(), ("-n", "1", "-p", "no:benchmark")])
def test_junit_files_have_a_property_for_each_figure(project, args):
    project.pytester.makepyfile(
        test_mine="""
        def test_mine(perf, request):
            request.node.user_properties.append(("mine", 1))
            perf(lambda: None, bytes=1e8)
        """
    )
    project.run("--junitxml=junit.xml", *args, "test_mine.py", gates="").assert_outcomes(passed=1)
    [case] = ET.parse(project.path / "junit.xml").iter("testcase")
    found = {each.get("name"): each.get("value") for each in case.iter("property")}
    assert found == {
        "mine": "1",
        "cutile.speed.key": "test_mine.py::test_mine",
        "cutile.speed.kernel": "test_mine",
        "cutile.speed.case": "test_mine",
        "cutile.speed.arch": "sm_90",
        "cutile.speed.gpu": "NVIDIA H200",
        "cutile.speed.gpu_id": found["cutile.speed.gpu_id"],
        "cutile.speed.verdict": "no-baseline",
        "cutile.speed.reason": "no-file",
        "cutile.speed.detail": found["cutile.speed.detail"],
        "cutile.speed.us_per_launch": "40",
        "cutile.speed.rate": "2500",
        "cutile.speed.unit": "GB/s",
        "cutile.speed.share_of_limit": found["cutile.speed.share_of_limit"],
        "cutile.speed.outputs_uncompared": NO_OUTPUTS,
    }
