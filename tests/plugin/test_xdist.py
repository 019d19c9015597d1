"""Under pytest-xdist results reach the summary, and a slower kernel fails as it does serially."""

import pytest

pytest.importorskip("xdist")


def test_results_of_workers_reach_the_summary(project):
    # pytest-benchmark warns that it disables itself under xdist; that warning is its own.
    result = project.run("-n", "2", "-p", "no:benchmark")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["scale *n8 *sm_90 *40 us *no-baseline"])


def test_a_slower_kernel_fails_as_it_does_serially(project):
    project.record(40.0)
    project.times(42.4)
    result = project.run("-n", "4", "-p", "no:benchmark")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["scale[[]n8[]] on sm_90 (NVIDIA H200) is 6.0% slower than its baseline."])
    result.stdout.fnmatch_lines(["scale *+6.0 % *regression"])


def test_baselines_are_recorded(project):
    result = project.run("-n", "2", "-p", "no:benchmark", "--update-baselines")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["scale[[]n8[]]: 3 runs recorded in *"])


KILL = """
from pytest_cutile.gates.suite import SpeedSuite

def die(self, measure_again):
    import os
    os._exit(9)

SpeedSuite.settle = die
"""


def test_a_worker_that_dies_while_it_measures_again_is_no_pass(project):
    project.record(40.0)
    before = project.baseline.read_text()
    project.times(42.4)
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text() + KILL)
    for options in ((), ("--update-baselines", "--reason", "why")):
        result = project.pytester.runpytest_subprocess(
            "-m", "cutile_speed", "-n", "2", "-p", "no:benchmark", *options
        )
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines(["*its worker process ended before it could report the test*"])
    assert project.baseline.read_text() == before


def test_a_wrong_architecture_is_one_usage_error(project):
    result = project.run("-n", "2", "--arch", "nowhere")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*'nowhere' names no GPU architecture*"])
