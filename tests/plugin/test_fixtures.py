"""The public fixtures in test functions that a user writes."""

import pytest

TEST = """
def double(x):
    return x * 2


def test_double(make_tensor, check_kernel, perf):
    x = make_tensor((8,), "float32")
    check_kernel(double, x, reference=lambda x: x * 2)
    measurement = perf(double, x, bytes=1e8)
    print("MEDIAN", measurement.burst_us, measurement.gb_per_s)
"""


def run(project, *args, test=TEST):
    project.pytester.makepyfile(test_mine=test)
    return project.run("test_mine.py", *args, gates="")


def test_they_share_the_session_of_declared_kernels(project):
    result = run(project, "--update-baselines", "-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*MEDIAN 40.0 2500*", "test_mine *test_double *40 us *2500 GB/s *recorded"])
    project.times(43.2)
    result = run(project)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E   test_mine.py::test_double on sm_90 (NVIDIA H200) is 8.0% slower than its baseline *",
            "*measured *in 3 fresh processes, *",
            "*pytest test_mine.py::test_double --arch sm_90 \\",
        ]
    )


def test_a_wrong_result_fails_and_is_not_timed(project):
    result = run(project, test=TEST.replace("return x * 2\n", "return x * 2.1\n", 1))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*double differs from its reference*", "test_mine *wrong result"])
    result.stdout.no_fnmatch_line("*MEDIAN*")
    result.stdout.no_fnmatch_line("*Benchmark fixture was not used*")


def test_several_calls_need_names_and_get_their_own_entries(project):
    twice = TEST + "    perf(double, x, bytes=1e8{name})\n"
    result = run(project, test=twice.format(name=""))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*perf() was called twice in one test under the same name*"])
    run(project, "--update-baselines", test=twice.format(name=", name='again'")).assert_outcomes(passed=1)
    assert '"test_mine.py::test_double#again"' in project.baseline.read_text()


@pytest.mark.parametrize(
    ("work", "said"),
    [
        ("bytes='5'", "bytes must be a finite count, got '5'"),
        ("flops=True", "flops must be a finite count, got True"),
        ("flops=x", "flops must be a finite count, got tensor(*"),
        ("bytes=float('nan')", "bytes must be a finite count, got nan"),
        ("flops=float('inf')", "flops must be a finite count, got inf"),
        ("bytes=-1", "bytes must be a finite count, got -1"),
        ("flops=10**400", "flops must be a finite count, got 1000*"),
        ("flops=1e9, dtype='fp16'", "unknown dtype 'fp16'; known are *"),
    ],
)
def test_work_that_cannot_be_is_one_line(project, work, said):
    result = run(project, "--tb=short", test=TEST.replace("bytes=1e8", work))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"E   perf(): {said}"])
    result.stdout.no_fnmatch_line("*During handling*")
    result.stdout.no_fnmatch_line("*fixtures.py*")


@pytest.mark.parametrize(
    "work", ["bytes=numpy.float64(1e8)", "bytes=100_000_000", "bytes=fractions.Fraction(10**8)"]
)
def test_any_real_number_is_work(project, work):
    text = "import fractions\nimport numpy\n" + TEST.replace("bytes=1e8", work)
    run(project, test=text).assert_outcomes(passed=1)


def test_without_a_gpu_they_say_not_measured(project, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (project.path / "conftest.py").unlink()
    result = run(project, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(
        ["test_mine *1  1 not measured *", "*not-measured (not-launched): no GPU of *"]
    )
    result = run(project, "-rs", "--correct-on=gpu")
    result.stdout.fnmatch_lines(["*not-measured (no-gpu): no GPU: *"])


def test_seeds_follow_the_test_and_the_call(project):
    test = """
    import pytest, torch

    @pytest.mark.parametrize("n", [1, 2])
    def test_seed(make_tensor, n):
        a, b = make_tensor((4,), "float32"), make_tensor((4,), "float32")
        assert not torch.equal(a, b)
        assert torch.equal(make_tensor((4,), "float32", seed=7), make_tensor((4,), "float32", seed=7))
        print("TENSOR", n, a.tolist())
    """
    first = run(project, "-s", test=test)
    first.assert_outcomes(passed=2)
    lines = [line for line in first.stdout.lines if "TENSOR" in line]
    assert lines[0].split("[")[1] != lines[1].split("[")[1]
    again = run(project, "-s", test=test)
    assert [line for line in again.stdout.lines if "TENSOR" in line] == lines


def test_the_timer_hook_decides_on_the_device(project):
    result = run(
        project,
        test="def test_device(make_tensor): assert make_tensor((2,), 'float32').device.type == 'cpu'\n",
    )
    result.assert_outcomes(passed=1)


def test_the_first_timer_wins(project):
    (project.path / "other.py").write_text(
        "import pytest\n@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_cutile_make_timer(config):\n    from conftest import FileTimer\n    t = FileTimer()\n"
        "    import pytest_cutile\n    t.device = pytest_cutile.Device(\n"
        "        arch='sm_121', name='NVIDIA GB10', torch_device='cpu')\n"
        "    return t\n"
    )
    project.times(4000.0)
    project.pytester.syspathinsert()
    result = project.run("-p", "other", "-p", "no:benchmark")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*cuTile kernels for sm_121*", "scale *4 ms *25 GB/s *"])


@pytest.mark.parametrize("fixture", ["arch", "make_tensor", "check_kernel", "perf"])
def test_they_are_documented(project, fixture):
    result = project.run("--fixtures", "-v", gates="")
    result.stdout.fnmatch_lines(
        [f"{fixture} -- *", "    *`*"] if fixture != "arch" else ["arch -- *", "    The arch*"]
    )


def test_the_markers_are_registered(project):
    result = project.run("--markers", gates="")
    result.stdout.fnmatch_lines(["*@pytest.mark.cutile_correct: *", "*@pytest.mark.cutile_speed: *"])


def test_results_reach_junit_files(project):
    project.run("--junitxml=report.xml").assert_outcomes(passed=2)
    text = (project.path / "report.xml").read_text()
    assert text.count('name="cutile.correct.verdict" value="pass"') == 1
    assert text.count('name="cutile.speed.us_per_launch" value="40"') == 1


def test_tests_of_one_name_are_told_apart(project):
    test = """
    class TestA:
        def test_x(self, make_tensor, check_kernel):
            check_kernel(lambda x: x * 2.1, make_tensor((8,), "float32"), reference=lambda x: x * 2)

    class TestB:
        def test_x(self, perf):
            perf(lambda: None, bytes=1e8)
    """
    result = run(project, test=test)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["test_mine *wrong result", "test_mine *no-baseline"])


def test_a_cache_that_cannot_be_written_is_no_error(project):
    project.run("-o", "cache_dir=/proc/nope", "-W", "ignore").assert_outcomes(passed=2)


def test_a_misspelled_option_of_perf_is_refused(project):
    project.pytester.makepyfile(
        test_mine="def test_mine(perf, make_tensor):\n    perf(abs, make_tensor((8,), 'float32'), byte=3)\n"
    )
    result = project.run("test_mine.py", gates="")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E *perf has no option 'byte', nor has the launcher: did you mean 'bytes'[?]"]
    )
    assert "session=" not in result.stdout.str()
