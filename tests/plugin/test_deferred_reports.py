"""Reports of suspects wait for the end of the run; other plugins see what they always see."""

import re
import textwrap

import pytest

from pytest_cutile import gates
from pytest_cutile.gates.base import Gate
from pytest_cutile.speed.suite import SpeedSuite
from tests.plugin.test_paired import git


class OtherMeasuringGate(Gate):
    """Measures, and has nothing to do with speed."""

    measures = True

    def run(self, task, test):
        pass


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
        ["inconclusive: scale[[]n8[]] may be slower; the run ended before fresh processes could tell*"]
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


def unwrapped(result):
    """Return the output with its wrapped lines joined."""
    return " ".join(result.stdout.str().split())


def declare_twelve_cases(project):
    """Let the kernel have cases n1 to n12 in place of n8: enough to show a session effect."""
    cases = ", ".join(f'pytest_cutile.Case(name="n{n}", params={{"n": {n}}})' for n in range(1, 13))
    text = (project.path / "mykernels" / "scale.py").read_text()
    project.kernel(text.replace('pytest_cutile.Case(name="n8", params={"n": 8})', cases))


def test_a_slower_suite_is_named(project):
    declare_twelve_cases(project)
    project.times(40.0)
    project.run("--update-baselines", gates="cutile_speed")
    project.times(41.6)
    result = project.run(gates="cutile_speed")
    result.assert_outcomes(failed=12)
    result.stdout.fnmatch_lines(
        ["*suite *the 12 cases limited by GB/s are 4.0% slower in the median: a shared cause"]
    )


def test_a_session_that_is_slow_as_a_whole_is_no_regression(project):
    declare_twelve_cases(project)
    project.times(40.0)
    project.run("--update-baselines", gates="cutile_speed")
    project.times(40.28)
    project.run("--perf-strict", gates="cutile_speed").assert_outcomes(passed=12)


def test_most_cases_getting_faster_on_another_gpu_makes_no_other_slower(project):
    """8 of 12 cases take 6 % less time, the others as long as ever."""
    declare_twelve_cases(project)
    project.times(40.0)
    project.run("--update-baselines", gates="cutile_speed")
    text = project.baseline.read_text()
    project.baseline.write_text(text.replace('"GPU-0"', '"GPU-1"'))
    project.times(*[37.6] * 8, 40.0)
    result = project.run(gates="cutile_speed")
    result.assert_outcomes(passed=12)
    assert (
        "session effect: 12 cases limited by GB/s, compared with other GPUs' runs, are -6.0 % in the median: "
        "most have become faster, which is no session effect; nothing was subtracted"
    ) in unwrapped(result)


OTHER_GPU = """
from pytest_cutile.speed.measure.blocks import measure

if (HERE / "moved").exists():
    FileTimer.device = pytest_cutile.Device(
        arch="sm_90", name="NVIDIA H200", uuid="GPU-1", torch_device="cpu", max_sm_clock_mhz=1980.0
    )


def measure_again(fresh, cases, revision, _first=measure_again):
    engine = session_of(fresh._config)
    with (HERE / "again").open("a") as file:
        file.writelines(f"{each.case.key} {bool(revision)}\\n" for each in cases)
    if not revision:
        return _first(fresh, cases, revision)
    found = {}
    for each in cases:
        case = each.case
        found[case.key] = measure(
            engine.gpu.timer, case.key, case.work, case.call(), baseline=lambda *_: None
        )
    return found


FreshProcess.__call__ = measure_again
"""


@pytest.fixture
def moved(project):
    """Twelve cases that were recorded on one GPU, in four sessions, and run on another GPU."""
    declare_twelve_cases(project)
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text() + OTHER_GPU)
    ignored = ("times.json", "__pycache__", ".pytest_cache", "again", "moved")
    (project.path / ".gitignore").write_text("\n".join(ignored))
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "base")
    project.times(40.0)
    for _ in range(4):
        project.run("--update-baselines", gates="cutile_speed")
    git(project, "commit", "-qm", "a change", "--allow-empty")
    (project.path / "again").unlink()
    (project.path / "moved").touch()
    return project


def test_a_gpu_that_is_slower_as_a_whole_is_recognized_by_two_baseline_kernels(moved):
    moved.times(40.88, interleaved_us=40.88)
    result = moved.run("--perf-strict", gates="cutile_speed")
    result.assert_outcomes(passed=12)
    assert (
        "session effect: 12 cases limited by GB/s, compared with other GPUs' runs, are +2.2 % in the median; "
        "this was subtracted from each of them (scale["
    ) in unwrapped(result)
    assert len({*(moved.path / "again").read_text().splitlines()}) == 2


def test_a_suite_that_is_slower_on_another_gpu_too_is_named(moved):
    moved.times(40.88, interleaved_us=40.0)
    result = moved.run(gates="cutile_speed")
    result.assert_outcomes(failed=12)
    assert "the 12 cases limited by GB/s are 2.2% slower in the median" in unwrapped(result)
    assert "session effect:" not in result.stdout.str()


def test_without_baseline_kernels_a_slower_gpu_is_said_and_no_pass(moved):
    moved.times(40.88)
    text = moved.baseline.read_text()
    moved.baseline.write_text(re.sub('"commit": "[0-9a-f]+"', '"commit": ""', text))
    result = moved.run(gates="cutile_speed")
    result.assert_outcomes(passed=12)
    assert "other cases limited by GB/s, which are +2.2 % in the median: " in unwrapped(result)
    assert re.search(r"session effect: 12 cases .*\(not confirmed by baseline kernels\)", unwrapped(result))
    moved.run("--perf-strict", gates="cutile_speed").assert_outcomes(failed=12)


def test_workers_judge_a_slower_gpu_as_one_process_does(moved):
    pytest.importorskip("xdist")

    def run():
        options = ("-m", "cutile_speed", "-p", "no:benchmark", "--perf-strict", "-n", "2")
        return moved.pytester.runpytest_subprocess(*options)

    moved.times(40.88, interleaved_us=40.0)
    run().assert_outcomes(failed=12)
    (moved.path / "again").unlink()
    text = moved.baseline.read_text()
    moved.baseline.write_text(re.sub('"commit": "[0-9a-f]+"', '"commit": ""', text))
    run().assert_outcomes(failed=12)  # inconclusive, under --perf-strict
    moved.times(40.6, interleaved_us=40.0)
    run().assert_outcomes(passed=12)
    assert not (moved.path / "again").exists()  # all is session effect, as in one process


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
    result = project.run("mykernels", gates="cutile_compile")  # as CI does: all modules, if not all gates
    result.stdout.fnmatch_lines(["stale: *scale[[]n8[]]*"])
    project.kernel(text.replace('"scale"', '"other"'), "other")
    project.run("mykernels/scale.py", "mykernels/__init__.py").stdout.no_fnmatch_line("stale: *")


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


def test_a_baseline_that_was_beaten_for_months_is_reported(project):
    project.record(40.0)
    recorded = project.baseline.read_text()
    at = recorded.partition('"at": "')[2][:10]
    project.baseline.write_text(recorded.replace(at, "2020-01-02"))
    project.times(30.0)
    result = project.run()
    result.stdout.fnmatch_lines(["stale: scale[[]n8[]] has beaten its baseline of 2020-01-02; record it: *"])


PERF_ON_THE_WAY = {
    "in the test": """
        def test_mine(request): request.getfixturevalue("perf")(lambda: None, bytes=1e8)
    """,
    "in a fixture": """
        @pytest.fixture
        def mine(request): request.getfixturevalue("perf")(lambda: None, bytes=1e8)

        def test_mine(mine): pass
    """,
    "in a teardown": """
        @pytest.fixture
        def mine(request):
            perf = request.getfixturevalue("perf")
            yield
            perf(lambda: None, bytes=1e8)

        def test_mine(mine): pass
    """,
    "before it skips": """
        def test_mine(request):
            request.getfixturevalue("perf")(lambda: None, bytes=1e8)
            pytest.skip("the rest")
    """,
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("test", PERF_ON_THE_WAY.values(), ids=PERF_ON_THE_WAY)
def test_a_suspect_that_got_perf_on_the_way_is_held_back_too(project, test, workers):
    options: tuple[str, ...] = ()
    if workers:
        pytest.importorskip("xdist")
        options = ("-n", f"{workers}", "-p", "no:benchmark")
    tests = f"import pytest\n{textwrap.dedent(test)}\ndef test_other(): pass\n"
    project.pytester.makepyfile(test_mine=tests)
    project.run("test_mine.py", "--update-baselines", gates="")
    assert "test_mine.py::test_mine" in project.baseline.read_text()
    project.times(42.4)
    result = project.pytester.runpytest_subprocess("test_mine.py", "--junitxml=x.xml", *options)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    in_teardown = "yield" in test
    result.assert_outcomes(**({"passed": 2, "errors": 1} if in_teardown else {"passed": 1, "failed": 1}))
    result.stdout.fnmatch_lines(["test_mine.py::test_mine on sm_90 (NVIDIA H200*) is 6.0% slower *"])
    result.stdout.fnmatch_lines(["test_mine *+6.0 % *regression"])
    junit = (project.path / "x.xml").read_text()
    assert junit.count("<testcase") == 2
    assert junit.count('value="regression"') == 1


def test_perf_on_the_way_that_is_no_slower_is_in_the_summary(project):
    test = PERF_ON_THE_WAY["in the test"]
    project.pytester.makepyfile(test_mine=f"import pytest\n{textwrap.dedent(test)}")
    result = project.run("test_mine.py", "--update-baselines", gates="")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["test_mine *40 us *no-baseline", "*: 3 runs recorded in *"])
    result = project.run("test_mine.py", gates="")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["test_mine *40 us *pass"])


def test_perf_on_the_way_of_a_test_that_fails_anyway_keeps_its_own_failure(project):
    test = """
        def test_mine(request):
            request.getfixturevalue("perf")(lambda: None, bytes=1e8)
            assert 1 > 2
    """
    project.pytester.makepyfile(test_mine=textwrap.dedent(test))
    result = project.run("test_mine.py", "--update-baselines", "--maxfail=2", gates="")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert 1 > 2*", "*test_mine: not recorded: its test failed"])
    assert "stopping" not in result.stdout.str()
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


def test_another_gate_that_measures_is_no_comparison_of_the_speed_gate(project, monkeypatch):
    suites = []
    build = SpeedSuite.__init__

    def noted(suite, context):
        suites.append(suite)
        build(suite, context)

    energy = gates.Registration("energy", "measures energy", f"{__name__}:{OtherMeasuringGate.__name__}")
    monkeypatch.setattr(SpeedSuite, "__init__", noted)
    for place in ("gates", "plugin"):
        monkeypatch.setattr(f"pytest_cutile.{place}.REGISTRY", (*gates.REGISTRY, energy))
    project.run(gates="cutile_speed or cutile_energy").assert_outcomes(passed=2)
    assert [suite.multiplicity.collected for suite in suites] == [1]
