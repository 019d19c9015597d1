"""Under pytest-xdist results reach the summary, and a slower kernel fails as it does serially."""

import json
import shutil
import socket

import pytest

from pytest_cutile.pytest_parts.collection import CASES_AHEAD, next_cases
from tests.plugin.conftest import KERNEL
from tests.plugin.forked import run_forked

pytestmark = pytest.mark.slow

pytest.importorskip("xdist")


def test_results_of_workers_reach_the_summary(project):
    project.record(40.0)
    project.times(43.2)
    # pytest-benchmark warns that it disables itself under xdist; that warning is its own.
    result = project.run("-n", "2", "-p", "no:benchmark")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["E   scale[[]n8[]] on sm_90 (NVIDIA H200, * GPU-0) is 8.0% slower than its base*"]
    )
    result.stdout.fnmatch_lines(["scale *+8.0 % *regression"])


def test_workers_ask_for_no_benchmark(project):
    """pytest-benchmark 5.3 warns, where the user has no benchmark either, that they are disabled."""
    pytest.importorskip("pytest_benchmark")
    project.conftest(
        """
        def pytest_collection_finish(session):
            assert not any("benchmark" in item.fixturenames for item in session.items)
        """
    )
    project.run("-n", "1", gates="cutile_speed").assert_outcomes(passed=1)


def test_skipped_benchmarks_are_skipped_in_workers(project):
    pytest.importorskip("pytest_benchmark")
    project.run("-n", "1", "--benchmark-skip").assert_outcomes(passed=1, skipped=1)


def test_a_worker_prepares_the_next_cases_of_its_module(project):
    names = [f"n{n}" for n in range(1, CASES_AHEAD + 10)]
    cases = ", ".join(f'pytest_cutile.Case(name="{name}", params={{"n": 8}})' for name in names)
    project.kernel(KERNEL.partition("cases=")[0] + f"cases=[{cases}])\n")
    project.kernel(KERNEL.replace('name="scale"', 'name="twice"'), "twice")
    items, _ = project.pytester.inline_genitems("mykernels")

    def ahead_of(name: str) -> list[str]:
        first = next(n for n, item in enumerate(items) if item.name == f"correct[{name}]")
        return [*dict.fromkeys(test.task.case.name for test in next_cases(items[first:]))]

    assert ahead_of("n4") == names[3 : 3 + CASES_AHEAD]
    assert ahead_of(names[-2]) == names[-2:]  # not those of the other module


KILL = """
from pytest_cutile.gates.speed.suite import SpeedSuite

def die(*_, **__):
    import os
    os._exit(9)

SpeedSuite.settle = die
"""


def test_a_worker_that_dies_while_it_measures_again_is_no_pass(project):
    project.record(40.0)
    before = project.baseline.read_text()
    project.times(43.2)
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text() + KILL)
    for options in ((), ("--update-baselines", "--reason", "why")):
        result = run_forked(project.pytester, "-m", "cutile_speed", "-n", "1", "-p", "no:benchmark", *options)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines(["*its worker process ended before it could report the test*"])
    assert project.baseline.read_text() == before


RAISE = """
def raises(*_):
    raise MemoryError("no room to fork")

{what} = raises
"""


@pytest.mark.parametrize(
    ("options", "us"), [((), 43.2), ((), 48.0), (("-n", "1", "--perf-strict", "-p", "no:benchmark"), 43.2)]
)
@pytest.mark.parametrize("what", ["measure_here", "FileTimer.environment"])
def test_what_raises_while_a_suspect_is_decided_is_no_pass(project, options, what, us):
    project.record(40.0)
    before = project.baseline.read_text()
    project.times(us)
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text() + RAISE.format(what=what))
    result = run_forked(project.pytester, "-m", "cutile_speed", *options)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*MemoryError: no room to fork*"])
    assert "INTERNALERROR" not in result.stdout.str()
    assert project.baseline.read_text() == before


DIE = """
from pytest_cutile.gates.speed import gate

def die(*_, **__):
    import os
    os._exit(9)

{what} = die
"""


@pytest.mark.parametrize(
    ("dies", "lines", "verdict"),
    [
        (
            "gate.measure_case",
            [
                "mykernels/scale.py::*: its worker process gw? ended while the test ran*",
                "scale *n8 *speed: crash",
            ],
            "fail",
        ),
        (
            "SpeedSuite.settle",
            [
                "scale *n8 *correct, not-measured",
                "not measured: 1 speed: mykernels/scale.py::*: its worker process ended before it could*",
            ],
            "not-measured",
        ),
    ],
    ids=["while it measures", "while it holds reports back"],
)
def test_a_case_whose_worker_died_fails(project, dies, lines, verdict):
    project.record(40.0)
    project.times(43.2)
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text() + KILL.partition("def")[0] + DIE.format(what=dies))
    options = ("-n", "1", "-p", "no:benchmark", "--kernel-summary=summary.md", "--junitxml=junit.xml")
    result = run_forked(project.pytester, "-m", "cutile_correct or cutile_speed", *options)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(lines)
    summary = (project.path / "summary.md").read_text()
    assert "1 of 1 cases failed" in summary
    assert "no verdict on a kernel" not in summary
    junit = (project.path / "junit.xml").read_text()
    assert f'<property name="cutile.speed.verdict" value="{verdict}"' in junit
    assert 'tests="2"' in junit


@pytest.mark.parametrize(
    ("parameters", "case"), [("", "test_mine"), ('@pytest.mark.parametrize("n", [8])', "test_mine[[]8[]]")]
)
def test_a_test_function_whose_worker_died_while_it_was_held_was_not_measured(project, parameters, case):
    argument = ", n" if parameters else ""
    test = f"import pytest\n{parameters}\ndef test_mine(perf{argument}): perf(lambda: None, bytes=1e8)\n"
    project.pytester.makepyfile(test_mine=test)
    project.times(40.0)
    project.run("test_mine.py", "--update-baselines", gates="").assert_outcomes(passed=1)
    project.times(43.2)
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text() + KILL)
    options = ("-n", "1", "-p", "no:benchmark", "--kernel-summary=summary.md")
    result = run_forked(project.pytester, "test_mine.py", *options)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"test_mine  {case} *not-measured"])
    assert "no case was run" not in (project.path / "summary.md").read_text()


def test_a_wrong_architecture_is_one_usage_error(project):
    result = project.run("-n", "2", "--arch", "nowhere")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*'nowhere' names no GPU architecture*"])


def test_a_revision_that_is_none_is_one_usage_error(project):
    project.git("init", "-q")
    result = run_forked(project.pytester, "-n", "2", "--perf-baseline=git:nowhere")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*git:nowhere: git finds no commit 'nowhere'*"])
    assert "INTERNALERROR" not in result.stdout.str()


def test_a_checkout_elsewhere_records_its_clean_commit(project):
    """As on another machine, pytest-xdist copies its pytest into the worker's folder."""
    project.commit()
    elsewhere = project.path.parent / f"{project.path.name}-elsewhere"
    shutil.copytree(project.path, elsewhere)
    options = ("-m", "cutile_speed", "--dist", "each", "-p", "no:benchmark", "--update-baselines")
    tx = ("--tx", f"popen//chdir={elsewhere}")
    result = run_forked(project.pytester, *options, *tx)
    result.assert_outcomes(passed=1)
    assert (elsewhere / "_pytest").exists()
    assert not project.baseline.exists()
    recorded = json.loads((elsewhere / project.baseline.relative_to(project.path)).read_text())
    (session,) = recorded["sessions"].values()
    assert session["commit"] == project.git("rev-parse", "HEAD")


FLEET = """
import os

SPARK = pytest_cutile.Device(arch="sm_121", name="NVIDIA Something", uuid="GPU-1", torch_device="cpu")
H100 = pytest_cutile.Device(arch="sm_90", name="NVIDIA H100 80GB HBM3", uuid="GPU-2", torch_device="cpu")
if os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
    FileTimer.device = {second}
"""


@pytest.mark.parametrize(
    ("second", "rows"),
    [
        ("SPARK", ["scale *2500 GB/s *sm_121 *no-baseline", "scale *2500 GB/s *sm_90 *pass"]),
        ("H100", ["scale *sm_90 NVIDIA H100* *no-baseline", "scale *+0.0 %  sm_90 NVIDIA H200 *pass"]),
    ],
)
def test_each_machine_of_a_fleet_is_held_against_its_own_baselines(project, second, rows):
    project.record(40.0)
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text() + FLEET.format(second=second))
    options = ("--dist", "each", "--tx", "2*popen", "-p", "no:benchmark", "--arch", "native")
    result = run_forked(project.pytester, "-m", "cutile_speed", *options, "mykernels")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(rows)


SLOW_GPU = """
import os

if os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
    FileTimer.device = pytest_cutile.Device(
        arch="sm_90", name="NVIDIA H200", uuid="GPU-d91fcf89-1234", torch_device="cpu"
    )
    plain = FileTimer.time_block
    FileTimer.time_block = lambda self, launches: [[2 * us for us in lane] for lane in plain(self, launches)]
"""


def test_a_fleet_says_which_of_its_gpus_is_slower(project):
    project.record(40.0)
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text() + SLOW_GPU)
    options = (
        "--dist",
        "each",
        "--tx",
        "2*popen",
        "-p",
        "no:benchmark",
        "--arch",
        "native",
        "--junitxml=j.xml",
    )
    summary = ("--kernel-summary", "summary.md")
    result = run_forked(project.pytester, "-m", "cutile_speed", *options, *summary, "mykernels")
    result.assert_outcomes(passed=1, failed=1)
    gpu = f"{socket.gethostname()} GPU-d91fcf89"
    result.stdout.fnmatch_lines(
        [f"E   scale[[]n8[]] on sm_90 (NVIDIA H200, {gpu}) is *", f"scale *regression on {gpu}"]
    )
    assert f"regression on {gpu} |" in (project.path / "summary.md").read_text()
    assert f'name="cutile.speed.gpu_id" value="{gpu}"' in (project.path / "j.xml").read_text()


@pytest.mark.parametrize(
    ("test", "options", "chosen"),
    [
        ("def test_mine(): pass", (), False),  # a project that only has the plugin installed
        ("def test_mine(perf): pass", (), True),
        ("def test_mine(): pass", ("-o", "cutile_kernels=mykernels"), True),
    ],
)
def test_workers_choose_a_gpu_only_where_kernels_are_gated(project, test, options, chosen):
    conftest = project.path / "conftest.py"
    note = "lambda number, _: (HERE / 'chosen').write_text(str(number))"
    conftest.write_text(
        f"{conftest.read_text()}\nfrom pytest_cutile.timing.gpu import nvml\nnvml.choose_gpu = {note}\n"
    )
    project.pytester.makeini("[pytest]\nfilterwarnings = error\n")
    project.pytester.makepyfile(test_mine=test)
    run_forked(project.pytester, "-n", "1", "-p", "no:benchmark", "test_mine.py", *options)
    assert (project.path / "chosen").exists() is chosen


def test_a_revision_that_another_checkout_lacks_fails_its_tests(project):
    project.commit()
    elsewhere = project.path.parent / f"{project.path.name}-elsewhere"
    shutil.copytree(project.path, elsewhere)
    project.git("branch", "newer")
    options = ("-m", "cutile_speed", "-p", "no:benchmark", "--perf-baseline=git:newer", "--dist", "each")
    result = run_forked(project.pytester, *options, "--tx", f"popen//chdir={elsewhere}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*git finds no commit 'newer' in *-elsewhere*"])
