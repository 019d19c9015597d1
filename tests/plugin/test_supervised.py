"""A test that ends its process is one failed test: the supervisor goes on behind it. There is no GPU here."""

from xml.etree import ElementTree as ET

import pytest

PRETEND_A_DRIVER = """
import pathlib
import pytest_cutile.plugin
pytest_cutile.plugin.NVIDIA_DEVICE = pathlib.Path("/dev/null")
"""
TESTS = """
import os, pathlib, signal, time, pytest

def test_a(): pass
def test_segv(): os.kill(os.getpid(), signal.SIGSEGV)
def test_b(): pass
def test_fails(): print("seen"); assert 0
def test_exit(): os._exit(0)
def test_hang():
    if pathlib.Path("hangs").exists(): time.sleep(100)
def test_c(): pass
def test_last(): os.kill(os.getpid(), signal.SIGKILL)
"""
OUTCOMES = {
    **dict.fromkeys(("a", "b", "hang", "c"), "passed"),
    **dict.fromkeys(("segv", "exit", "last"), "crash"),
    "fails": "failed",
}
OPTIONS = ("-p", "driver", "-p", "no:cacheprovider", "--arch", "sm_121", "--junitxml=j.xml")


@pytest.fixture
def ending(pytester):
    pytester.makepyfile(driver=PRETEND_A_DRIVER, test_ends=TESTS)
    pytester.syspathinsert()
    return pytester


def outcomes(pytester):
    """Return how each test ended, as the JUnit file says."""
    by_name = {}
    for case in ET.parse(pytester.path / "j.xml").getroot().iter("testcase"):
        failure = case.find("failure")
        ended = (
            "passed"
            if failure is None
            else "crash"
            if "its process" in failure.get("message", "")
            else "failed"
        )
        by_name[case.get("name", "").removeprefix("test_")] = ended
    return by_name


def test_all_other_tests_are_run_and_reported_once(ending):
    result = ending.runpytest_subprocess(*OPTIONS)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert outcomes(ending) == OUTCOMES
    result.stdout.fnmatch_lines(["test_ends.py .F.FF..F*", "*SIGSEGV*", "*4 failed, 4 passed*"])
    assert result.stdout.str().count("test session starts") == 1


def test_a_launch_that_does_not_end_is_one_hanging_test(ending):
    (ending.path / "hangs").touch()
    ending.makeini("[pytest]\ncutile_launch_seconds = 0.5\n")
    ending.makepyfile(
        driver=PRETEND_A_DRIVER
        + "from pytest_cutile.pytest_parts import watchdog\nwatchdog._gpu_is_busy = lambda: True\n"
    )
    result = ending.runpytest_subprocess(*OPTIONS)
    result.stdout.fnmatch_lines(["*a launch did not end within 0.5 s*test_ends.py:9 in test_hang*"])
    assert outcomes(ending)["c"] == "passed"


def test_a_run_without_crashes_ends_as_ever(ending):
    ending.makepyfile(test_ends="def test_a(): pass\n")
    assert ending.runpytest_subprocess(*OPTIONS).ret == pytest.ExitCode.OK
    ending.makepyfile(test_ends="import pytest\ndef test_a(): pytest.exit('enough', returncode=7)\n")
    assert ending.runpytest_subprocess(*OPTIONS).ret == 7


@pytest.mark.slow
def test_more_workers_are_replaced_than_by_default(ending):
    ending.makepyfile(
        test_ends="""
        import os, pytest
        @pytest.mark.parametrize("n", range(7))
        def test_exit(n): os._exit(0)
        def test_last(): pass
        """
    )
    ending.runpytest_subprocess(*OPTIONS, "-n1").stdout.fnmatch_lines(["*7 failed, 1 passed*"])
    limited = ending.runpytest_subprocess(*OPTIONS, "-n1", "--max-worker-restart=2")
    limited.stdout.fnmatch_lines(["*maximum crashed workers reached: 2*"])
