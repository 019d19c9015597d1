"""Reports of suspects wait for the end of the run; other plugins see what they always see."""

import pytest


def test_it_is_reported_after_the_others_and_once(project):
    project.record(40.0)
    project.times(42.4)
    project.pytester.makepyfile(test_other="def test_other(): pass\n")
    result = project.run("-v", gates="cutile_speed or not cutile_compile and not cutile_static")
    lines = [line for line in result.stdout.lines if "::" in line and ("PASSED" in line or "FAILED" in line)]
    reported = [line.split()[0] for line in lines if not line.startswith(("FAILED", "PASSED"))]
    assert reported.count("mykernels/scale.py::speed[n8]") == 1
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    ("strict", "us", "outcome"),
    [(False, 42.4, "xfailed"), (True, 42.4, "xfailed"), (True, 40.0, "failed")],
)
def test_an_expected_failure_stays_one(project, strict, us, outcome):
    project.pytester.makepyfile(
        test_mine=f"""
        import pytest

        @pytest.mark.xfail(strict={strict})
        def test_mine(perf): perf(lambda: None, bytes=1e8)

        def test_record(perf): perf(lambda: None, bytes=1e8)
        """
    )
    project.times(40.0)
    project.run("test_mine.py", "--update-baselines", gates="")
    project.times(us)
    result = project.run("test_mine.py::test_mine", gates="")
    result.assert_outcomes(**{outcome: 1})


def test_a_test_that_fails_anyway_keeps_its_own_failure(project):
    test = "def test_mine(perf):\n    perf(lambda: None, bytes=1e8)\n    assert BROKEN\n"
    project.pytester.makepyfile(test_mine=f"BROKEN = True\n{test}")
    project.run("test_mine.py", "--update-baselines", gates="").assert_outcomes(passed=1)
    project.pytester.makepyfile(test_mine=f"BROKEN = False\n{test}")
    project.times(42.4)
    result = project.run("test_mine.py", gates="")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert BROKEN*"])
    result.stdout.fnmatch_lines(["test_mine *regression"])


def test_a_run_that_is_stopped_leaves_suspects_undecided(project):
    project.record(40.0)
    project.times(42.4)
    project.pytester.makepyfile(test_other="def test_other(): assert 0\n")
    gates = "not (cutile_compile or cutile_static)"
    result = project.run("-x", "mykernels", "test_other.py", gates=gates)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["inconclusive: scale[[]n8[]] may be slower; the run ended before fresh processes could tell"]
    )


def test_an_interrupted_run_does_too(project):
    project.record(40.0)
    project.times(42.4)
    project.pytester.makepyfile(test_other="def test_other(): raise KeyboardInterrupt\n")
    result = project.pytester.runpytest_subprocess(
        "mykernels", "test_other.py", "-m", "not (cutile_compile or cutile_static)"
    )
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["inconclusive: scale[[]n8[]] may be slower; the run ended *"])


def test_a_slower_suite_is_named(project):
    cases = ", ".join(f'pytest_cutile.Case(name="n{n}", params={{"n": {n}}})' for n in range(1, 13))
    text = (project.path / "mykernels" / "scale.py").read_text()
    project.kernel(text.replace('pytest_cutile.Case(name="n8", params={"n": 8})', cases))
    project.times(40.0)
    project.run("--update-baselines", gates="cutile_speed")
    project.times(41.6)
    result = project.run(gates="cutile_speed")
    result.assert_outcomes(failed=12, deselected=36)
    result.stdout.fnmatch_lines(
        ["*and not it alone: the 12 cases limited by GB/s are 4.0% slower in the median: *share"]
    )


def test_a_session_that_is_slow_as_a_whole_is_no_regression(project):
    cases = ", ".join(f'pytest_cutile.Case(name="n{n}", params={{"n": {n}}})' for n in range(1, 13))
    text = (project.path / "mykernels" / "scale.py").read_text()
    project.kernel(text.replace('pytest_cutile.Case(name="n8", params={"n": 8})', cases))
    project.times(40.0)
    project.run("--update-baselines", gates="cutile_speed")
    project.times(40.28)
    project.run("--perf-strict", gates="cutile_speed").assert_outcomes(passed=12, deselected=36)


def test_entries_without_a_case_are_reported(project):
    project.record(40.0)
    text = (project.path / "mykernels" / "scale.py").read_text()
    project.kernel(text.replace('"n8"', '"n9"'))
    result = project.run()
    result.stdout.fnmatch_lines(
        ["stale: baselines/sm_90-nvidia-h200.json has scale[[]n8[]]: no such case is left; delete it"]
    )
    partly = project.run("mykernels/scale.py::correct[n9]")
    partly.stdout.no_fnmatch_line("stale: *")


def test_a_baseline_that_was_beaten_for_months_is_reported(project):
    project.record(40.0)
    recorded = project.baseline.read_text()
    at = recorded.partition('"at": "')[2][:10]
    project.baseline.write_text(recorded.replace(at, "2020-01-02"))
    project.times(30.0)
    result = project.run()
    result.stdout.fnmatch_lines(["stale: scale[[]n8[]] has beaten its baseline of 2020-01-02; record it: *"])


def test_a_suspect_that_nobody_held_back_fails_the_run(project):
    project.pytester.makepyfile(
        test_mine="""
        def test_mine(request): request.getfixturevalue("perf")(lambda: None, bytes=1e8)
        """
    )
    project.run("test_mine.py", "--update-baselines", gates="").assert_outcomes(passed=1)
    assert "test_mine.py::test_mine" in project.baseline.read_text()
    project.times(42.4)
    result = project.run("test_mine.py", gates="")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["test_mine.py::test_mine on sm_90 (NVIDIA H200) is 6.0% slower *"])


def test_a_test_that_skips_the_rest_of_itself_is_no_pass(project):
    project.pytester.makepyfile(
        test_mine="""
        import pytest

        def test_mine(perf):
            perf(lambda: None, bytes=1e8)
            pytest.skip("the rest")
        """
    )
    project.run("test_mine.py", "--update-baselines", gates="")
    project.times(42.4)
    project.run("test_mine.py", gates="").assert_outcomes(failed=1)


def test_a_test_that_fails_is_not_recorded(project):
    project.pytester.makepyfile(
        test_mine="def test_mine(perf):\n    assert perf(lambda: None, bytes=1e8).median_us < 1\n"
    )
    result = project.run("test_mine.py", "--update-baselines", gates="")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*test_mine: not recorded: its test failed"])
    assert not project.baseline.exists()
