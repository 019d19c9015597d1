"""A suspect is measured again in fresh processes, and only what they show counts."""

import pytest

from tests.plugin.forked import run_forked

pytestmark = pytest.mark.slow

SLOW_ELSEWHERE = """
import os
START = "PYTEST_CUTILE_RUN" not in os.environ  # not configured yet: set only by a process before this one

def time_block(self, launches, _first=FileTimer.time_block):
    state = json.loads((HERE / "times.json").read_text())
    own, again = state["burst"]
    with (HERE / "processes").open("a") as file:
        file.write(f"{os.getpid()}\\n")
    if again == "die" and not START:
        os._exit(3)
    if again == "error" and not START:
        raise pytest_cutile.TimingError("it broke")
    if again == "nan" and not START:
        return [[float("nan")] * 5]
    return [[own if START else again] * 5 for _ in launches]

FileTimer.time_block = time_block
"""


@pytest.fixture
def fresh(project, monkeypatch):
    """A project whose suspects are measured in real processes: one time here, another one there."""
    # A test function that needs no torch: each process imports it in seconds.
    project.pytester.makepyfile(test_mine="def test_mine(perf): perf(lambda: None, bytes=1e8)\n")
    gates = "not (cutile_correct or cutile_compile or cutile_static)"
    project.run("test_mine.py", "mykernels", "--update-baselines", gates=gates)
    monkeypatch.delenv("PYTEST_CUTILE_RUN")  # of the run that these tests are in
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text().partition("def measure_here")[0] + SLOW_ELSEWHERE)
    return project


def run(project, *args, tests="test_mine.py"):
    return run_forked(project.pytester, tests, "-p", "no:benchmark", *args)


def processes(project):
    return len(set((project.path / "processes").read_text().split()))


def test_a_slowdown_that_fresh_processes_show_fails(fresh):
    fresh.times(43.2, 43.6)
    result = run(fresh, "-v", "--junitxml=junit.xml")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*burst: time per launch *43.6 us *40 us *+9.0 %", "*in 3 fresh processes, *"]
    )
    assert processes(fresh) == 4
    assert "slower than its baseline" in (fresh.path / "junit.xml").read_text()


def test_cases_of_declared_kernels_are_repeated(fresh):
    fresh.times(43.2, 43.6)
    result = run(fresh, "-m", "cutile_speed", tests="mykernels")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E   scale[[]n8[]] on sm_90*slower*"])


def test_a_slowdown_that_they_do_not_show_passes(fresh):
    fresh.times(43.2, 40.0)
    run(fresh, "--perf-strict").assert_outcomes(passed=1)
    assert processes(fresh) == 4


def test_nothing_suspect_needs_no_process(fresh):
    fresh.times(40.0, 80.0)
    run(fresh).assert_outcomes(passed=1)
    assert processes(fresh) == 1


@pytest.mark.parametrize(
    ("again", "message", "reason"),
    [
        (
            "die",
            "*the fresh process that measured it ended: it ended with status 3*",
            "crash",
        ),
        ("error", "*it broke*", "not-timed"),
        ("nan", "*the timer returned nan*", "bad-samples"),
    ],
)
def test_one_that_breaks_is_no_pass(fresh, again, message, reason):
    fresh.times(43.2, again)
    result = run(fresh)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([message])
    result.stdout.fnmatch_lines([f"test_mine *speed: {reason}"])


def test_recording_takes_three_processes(fresh):
    fresh.baseline.unlink()
    fresh.times(40.0, 40.2)
    run(fresh, "--update-baselines").assert_outcomes(passed=1)
    (entry,) = fresh.data["entries"].values()
    (record,) = entry["records"]
    assert [run["burst_us"] for run in record["runs"]] == [40.0, 40.2, 40.2]
    assert processes(fresh) == 3


def test_test_functions_with_their_fixtures_and_parameters_are_repeated(fresh):
    fresh.pytester.makepyfile(
        test_two="""
        import pytest

        @pytest.fixture
        def launch(): return lambda: None

        @pytest.mark.parametrize("n", [1, 2])
        def test_two(perf, launch, n):
            perf(launch, bytes=n * 5e7, name="first")
            perf(launch, bytes=n * 5e7, name="second")
        """
    )
    fresh.times(40.0, 40.0)
    run(fresh, "--update-baselines", tests="test_two.py").assert_outcomes(passed=2)
    fresh.times(43.2, 42.4)
    result = run(fresh, "-k", "two and 2", "-x", tests="test_two.py")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*#first on sm_90*slower*", "*#second on sm_90*slower*"])


def test_options_of_the_projects_own_conftest_reach_it(fresh):
    conftest = fresh.path / "conftest.py"
    conftest.write_text(
        conftest.read_text()
        + "\ndef pytest_addoption(parser): parser.addoption('--size', type=int, default=0)\n"
        + "def pytest_configure(config):\n    if config.getoption('--size') != 7: os._exit(5)\n"
    )
    fresh.times(43.2, 43.6)
    run(fresh, "--size=7").assert_outcomes(failed=1)
    assert processes(fresh) == 4


FULL = """
import errno, pathlib, tempfile

def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
"""


@pytest.mark.parametrize("place", ["tempfile.TemporaryDirectory", "pathlib.Path.write_bytes"])
@pytest.mark.parametrize("args", [(), ("--update-baselines",)])
def test_a_full_disk_confirms_nothing_and_is_no_pass(fresh, place, args):
    before = fresh.baseline.read_text()
    conftest = fresh.path / "conftest.py"
    conftest.write_text(f"{conftest.read_text()}\n{FULL}\n{place} = full\n")
    fresh.times(43.2, 43.6)
    result = run(fresh, *args)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*did not: it could not be run: *No space left on device*"])
    assert fresh.baseline.read_text() == before


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["serially", "workers"])
def test_a_fresh_process_shares_the_gpu_with_those_that_wait_for_it(fresh, workers, monkeypatch):
    """Beside the run's processes there may be three fresh ones."""
    monkeypatch.delenv("PYTEST_CUTILE_SHARERS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    conftest = fresh.path / "conftest.py"
    note = "(HERE / f'sharers-{os.getpid()}').write_text(os.environ.get('PYTEST_CUTILE_SHARERS', '1'))"
    conftest.write_text(f"{conftest.read_text()}\ndef pytest_collection_modifyitems(): {note}\n")
    fresh.times(43.2, 42.4)
    run(fresh, *workers).assert_outcomes(failed=1)
    found = {file.read_text() for file in fresh.path.glob("sharers-*")}
    assert found == ({"2", "5"} if workers else {"1", "4"})


def test_fresh_processes_measure_beside_the_baseline_kernel(paired, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("PYTEST_CUTILE_RUN", raising=False)
    conftest = paired.path / "conftest.py"
    conftest.write_text(conftest.read_text().partition("def measure_here")[0])
    paired.times(40.0, sustained=54.0)
    result = run(paired, "-m", "cutile_speed", "-p", "no:cacheprovider", tests="mykernels")
    result.assert_outcomes(failed=1)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("pytest-cutile-")] == []
    result.stdout.fnmatch_lines(
        [
            "E   scale[[]n8[]] on sm_90 (NVIDIA H200) is 8.0% slower than its baseline under sustained load.",
            "*sustained: time per launch *54 us *50 us *+8.0 % *",
            "*measured *in 3 fresh processes, *",
            "*baseline *the kernel of *",
        ]
    )


def test_a_later_suspect_of_a_test_is_measured_although_the_first_call_is_none(fresh):
    calls = ("perf(lambda: None, bytes=1e8)", "perf(lambda: None, bytes=1e8, name='b')")
    fresh.pytester.makepyfile(test_mine=f"def test_mine(perf):\n    {'; '.join(calls)}\n")
    fresh.times(40.0, 40.0)
    run(fresh, "--update-baselines", "--reason", "b is new")
    fresh.edit_baselines(
        lambda data: data["entries"]["test_mine.py::test_mine#b"]["records"][0]["runs"].__setitem__(
            slice(None), [{"burst_us": 30.0}]
        )
    )
    result = run(fresh)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*test_mine#b on sm_90*is 33.3% slower than its baseline in bursts."])


def test_what_a_test_fails_with_there_is_said(fresh):
    fixture = """
import pytest

from tests.plugin.forked import run_forked

@pytest.fixture
def licence():
    import json, os, pathlib
    started = pathlib.Path("started")
    if started.exists() and started.read_text() != str(os.getppid()):
        raise RuntimeError("no licence server")
    started.write_text(str(os.getppid()))

def test_mine(licence, perf):
    perf(lambda: None, bytes=1e8)
"""
    fresh.pytester.makepyfile(test_mine=fixture)
    fresh.times(43.2, 43.2)
    result = run(fresh)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no licence server*"])


def test_where_cuda_was_used_before_each_process_is_a_server_of_its_own(fresh):
    conftest = fresh.path / "conftest.py"
    server = "pytest_cutile.pytest_parts.measuring_server"
    conftest.write_text(
        conftest.read_text() + f"\nimport {server} as server\nserver._can_fork = lambda: False\n"
    )
    fresh.times(43.2, 43.6)
    result = run(fresh)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*slower than its baseline*", "*in 3 fresh processes, *"])
    assert processes(fresh) == 4


# -- workers of pytest-xdist measure together ---------------------------------------------------------

COUNTED = """
import pytest_cutile.gates.speed.suite as suite
from pytest_cutile.pytest_parts import fresh_process

def decide(estimates, rule, *, n_comparisons, decide=suite.decide):
    with (HERE / "comparisons").open("a") as file:
        file.write(f"{n_comparisons}\\n")
    return decide(estimates, rule, n_comparisons=n_comparisons)

def start(*args, start=fresh_process.start_pytest, **kwargs):
    with (HERE / "servers").open("a") as file:
        file.write("one\\n")
    return start(*args, **kwargs)

suite.decide, fresh_process.start_pytest = decide, start
"""


@pytest.fixture
def several(fresh):
    """A project with four test functions whose calls are suspects, and one that measures nothing."""
    tests = "".join(f"def test_{name}(perf): perf(lambda: None, bytes=1e8)\n" for name in "abcd")
    fresh.pytester.makepyfile(test_mine=f"{tests}\ndef test_other(): pass\n")
    fresh.times(40.0, 40.0)
    run(fresh, "--update-baselines", "--reason", "new").assert_outcomes(passed=5)
    (fresh.path / "processes").unlink()
    conftest = fresh.path / "conftest.py"
    text = conftest.read_text()
    assert SLOW_ELSEWHERE in text
    # A worker is no fresh process: what its server sets tells them apart.
    text = text.replace('"PYTEST_CUTILE_RUN" not in', '"PYTORCH_NVML_BASED_CUDA_CHECK" not in')
    conftest.write_text(f"{text}\n{COUNTED}")
    return fresh


def test_one_server_measures_for_all_workers(several):
    several.times(43.2, 43.6)
    result = run(several, "-n", "3")
    result.assert_outcomes(passed=1, failed=4)
    for name in "abcd":
        result.stdout.fnmatch_lines([f"*test_{name} on sm_90* is 9.0% slower than its baseline in bursts."])
    assert (several.path / "servers").read_text().split() == ["one"]
    fresh_ones = 3
    assert processes(several) <= fresh_ones + 3  # and the workers that had a test
    times = (several.path / "processes").read_text().split()
    assert sum(times.count(pid) >= 4 for pid in {*times}) >= fresh_ones  # each measured all four cases
    assert {*(several.path / "comparisons").read_text().split()} == {"4"}  # of the run


def test_a_worker_that_dies_while_it_waits_holds_up_nobody(several):
    conftest = several.path / "conftest.py"
    die = """
import os
from pytest_cutile.pytest_parts.meeting import Worker

def ask(self, asked, processes, ask=Worker.ask):
    return os._exit(9) if self._name == "gw0" else ask(self, asked, processes)

Worker.ask = ask
"""
    conftest.write_text(f"{conftest.read_text()}\n{die}")
    several.times(43.2, 43.6)
    result = run(several, "-n", "2")
    result.assert_outcomes(passed=1, failed=4)
    lost, slower = "its worker process ended before it could report", "is 9.0% slower than its baseline"
    text = result.stdout.str()
    assert text.count("E   test_mine.py::test_") == text.count(slower) > 0
    assert lost in text


def test_fresh_processes_that_die_under_all_workers_confirm_nothing(several):
    several.times(43.2, "die")
    result = run(several, "-n", "2")
    result.assert_outcomes(passed=1, failed=4)
    result.stdout.fnmatch_lines(["*the fresh process that measured it ended: *status 3*"])


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("_measure", "MemoryError: no room"),
        ("_replies", "pytest-xdist's controller cannot measure for its workers any more"),
    ],
)
def test_what_fails_in_the_controller_is_no_pass(several, what, said):
    conftest = several.path / "conftest.py"
    fail = """
from pytest_cutile.pytest_parts.meeting import Meeting

def fails(*_):
    raise MemoryError("no room")

Meeting.{what} = fails
"""
    conftest.write_text(f"{conftest.read_text()}\n{fail.format(what=what)}")
    several.times(43.2, 43.6)
    result = run(several, "-n", "2", "-W", "ignore::pytest.PytestUnhandledThreadExceptionWarning")
    result.assert_outcomes(passed=1, failed=4)
    result.stdout.fnmatch_lines([f"*{said}*"])
