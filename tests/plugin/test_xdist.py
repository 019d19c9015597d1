"""Under pytest-xdist results reach the summary, and nothing is timed in parallel on one GPU."""

import pytest

pytest.importorskip("xdist")


def test_results_of_workers_reach_the_summary(project):
    # pytest-benchmark warns that it disables itself under xdist; that warning is its own.
    result = project.run("-n", "2", "-p", "no:benchmark")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["scale *n8 *sm_90 *40 us *no-baseline"])


def test_a_real_gpu_is_not_timed_by_workers(project):
    conftest = project.path / "conftest.py"
    conftest.write_text(
        conftest.read_text().replace('torch_device="cpu"', 'torch_device="cuda"')
        + "\nfrom pytest_cutile.gates.engine import Engine\nEngine._check_torch = lambda self: None\n"
    )
    project.pytester.makepyfile(test_mine="def test_mine(perf): perf(lambda: None, bytes=1e8)\n")
    result = project.run("-n", "2", "-p", "no:benchmark", "-rs", "test_mine.py", gates="")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["test_mine *not-measured", "*not-measured (parallel-run)*pytest -n*"])


def test_a_wrong_architecture_is_one_usage_error(project):
    result = project.run("-n", "2", "--arch", "nowhere")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*'nowhere' names no GPU architecture*"])
