"""Reports of suspects wait for the end of the run; other plugins see what they always see."""

import textwrap

import pytest

from tests.plugin.forked import run_forked


def test_it_is_reported_after_the_others_and_once(project):
    project.record(40.0)
    project.times(43.2)
    project.pytester.makepyfile(test_other="def test_other(): pass\n")
    result = project.run("-v", gates="cutile_speed or not cutile_compile and not cutile_static")
    lines = [line for line in result.stdout.lines if "::" in line and ("PASSED" in line or "FAILED" in line)]
    reported = [line.split()[0] for line in lines if not line.startswith(("FAILED", "PASSED"))]
    assert reported.count("mykernels/scale.py::speed[n8]") == 1
    result.stdout.fnmatch_lines(
        [
            "mykernels/scale.py::speed[[]n8[]] PENDING (to be measured again)*",
            "test_other.py::test_other PASSED *",
            "mykernels/scale.py::speed[[]n8[]] FAILED (43.2 us, 2315 GB/s, 48 %, +8.0 %, regression) *100%*",
            "FAILED mykernels/scale.py::speed[[]n8[]] - scale*",
        ]
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_verdicts_are_said_with_v(project):
    project.edit("cases=[", 'cases=[pytest_cutile.Case(name="n16", params={"n": 16}), ')
    project.run("--update-baselines")
    project.edit("return x * 2", "return x * (2 if x.numel() < 16 else 3)")
    result = project.run("-v")
    result.stdout.fnmatch_lines(
        [
            "*::correct[[]n16[]] FAILED (wrong result) *",
            "*::correct[[]n8[]] PASSED  *",
            "*::speed[[]n8[]] PASSED (40 us, 2500 GB/s, 52 %, +0.0 %, pass)*",
            "FAILED *::correct[[]n16[]] - *",
        ]
    )
    assert not any("PENDING" in line for line in result.outlines)


@pytest.mark.parametrize(
    ("strict", "us", "outcome"),
    [(False, 43.2, "xfailed"), (True, 43.2, "xfailed"), (True, 40.0, "failed")],
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
    project.times(43.2)
    result = project.run("test_mine.py", gates="")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert BROKEN*"])
    result.stdout.fnmatch_lines(["test_mine *regression"])


def test_a_run_that_is_stopped_leaves_suspects_undecided(project):
    project.record(40.0)
    project.times(43.2)
    project.pytester.makepyfile(test_other="def test_other(): assert 0\n")
    gates = "not (cutile_compile or cutile_static)"
    result = project.run("-x", "mykernels", "test_other.py", gates=gates)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["inconclusive: scale[[]n8[]] may be slower; the run ended before fresh processes could tell*"]
    )


def test_an_interrupted_run_does_too(project):
    project.record(40.0)
    project.times(43.2)
    project.pytester.makepyfile(test_other="def test_other(): raise KeyboardInterrupt\n")
    result = run_forked(
        project.pytester, "mykernels", "test_other.py", "-m", "not (cutile_compile or cutile_static)"
    )
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["inconclusive: scale[[]n8[]] may be slower; the run ended *"])


def test_entries_without_a_case_are_reported(project):
    project.record(40.0)
    text = (project.path / "mykernels" / "scale.py").read_text()
    project.kernel(text.replace('"n8"', '"n9"'))
    result = project.run()
    gone = "stale: baselines/sm_90-nvidia-h200.json has scale[[]n8[]]: no such case is left"
    result.stdout.fnmatch_lines([f"{gone}; delete it, or rename it"])
    partly = project.run("mykernels/scale.py::correct[n9]")  # the module has all cases of its kernel
    partly.stdout.fnmatch_lines([f"{gone}; delete it, or rename it"])
    result = project.run("mykernels", gates="cutile_compile")  # as CI does: all modules, if not all gates
    result.stdout.fnmatch_lines(["stale: *scale[[]n8[]]*"])
    project.kernel(text.replace('"scale"', '"other"'), "other")
    project.run("mykernels/other.py", "mykernels/__init__.py").stdout.no_fnmatch_line("stale: *")
    project.run("--ignore=mykernels/scale.py").stdout.no_fnmatch_line("stale: *")
    project.kernel('import pytest\n\npytest.importorskip("nowhere")\n')
    project.run().stdout.no_fnmatch_line("stale: *")


PERFS = """
import pytest

def test_first(perf): perf(lambda: None, bytes=1e8)

class TestMore:
    @pytest.mark.parametrize("n", [1, 2])
    def test_second(self, perf, n): perf(lambda: None, bytes=1e8, name="x")
"""
NO_KERNELS = ("-o", "cutile_kernels=", "-o", "cutile_arch=sm_90", "-p", "no:benchmark", "--perf-strict")


@pytest.mark.parametrize(
    ("change", "arguments", "stale"),
    [
        (None, (), []),
        (("test_first", "test_1st"), (), ["test_a.py::test_first"]),
        (("test_first", "test_1st"), ("test_a.py",), ["test_a.py::test_first"]),
        (("test_first", "test_1st"), ("test_a.py::TestMore",), []),
        (("test_first", "test_1st"), ("test_b.py",), []),
        (("test_first", "test_1st"), ("-k", "second"), ["test_a.py::test_first"]),
        (("test_first", "test_1st"), ("--lf",), []),
        (("test_second", "test_2nd"), (), ["test_a.py::TestMore::test_second[1]#x", "[2]#x"]),
        (("[1, 2]", "[1, 3]"), (), []),  # parameters may depend on anything
        ("gone", (), ["test_a.py::TestMore", "test_a.py::test_first"]),
        ("gone", ("test_b.py::test_last",), ["test_a.py::TestMore", "test_a.py::test_first"]),
    ],
)
def test_entries_without_a_test_are_reported(project, change, arguments, stale):
    """Also where no kernel is declared."""
    file = project.path / "test_a.py"
    file.write_text(PERFS)
    (project.path / "test_b.py").write_text("def test_last(perf): perf(lambda: None, bytes=1e8)\n")
    project.times(40.0)
    project.run(*NO_KERNELS, "--update-baselines", gates="").assert_outcomes(passed=4)
    if change == "gone":
        file.unlink()
    elif change:
        file.write_text(PERFS.replace(*change))
    if "--lf" in arguments:
        project.times(80.0)
        project.run("test_a.py", *NO_KERNELS, gates="")
    lines = project.run(*arguments, *NO_KERNELS, gates="").outlines
    said = [line for line in lines if line.startswith("stale: ")]
    assert len(said) == bool(stale)
    assert all(part in said[0] for part in stale)


@pytest.mark.parametrize(
    "test",
    [
        "def test_mine(request): request.getfixturevalue('perf')(lambda: None, bytes=1e8)",
        """
        @pytest.fixture
        def mine(request): request.getfixturevalue("perf")(lambda: None, bytes=1e8)

        def test_mine(mine): pass
        """,
    ],
    ids=["in the test", "in a fixture"],
)
def test_perf_is_no_fixture_to_get_on_the_way(project, test):
    """Nobody would know in time that the test's reports have to wait."""
    project.pytester.makepyfile(test_mine=f"import pytest\n{textwrap.dedent(test)}")
    result = project.run("test_mine.py", "--update-baselines", gates="")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*name perf among the test's arguments: request.getfixturevalue cannot*"])
    assert not project.baseline.exists()


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
    project.times(43.2)
    project.run("test_mine.py", gates="").assert_outcomes(failed=1)


def test_a_test_that_fails_is_not_recorded(project):
    project.pytester.makepyfile(
        test_mine="def test_mine(perf):\n    assert perf(lambda: None, bytes=1e8).burst_us < 1\n"
    )
    result = project.run("test_mine.py", "--update-baselines", gates="")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*test_mine: not recorded: its test failed"])
    assert not project.baseline.exists()
