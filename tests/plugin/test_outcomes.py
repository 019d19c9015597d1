"""Reports follow pytest's final outcome of a test: the last try counts, and expected failures do not."""

import itertools
import json
from xml.etree import ElementTree as ET

import pytest

from tests.plugin.conftest import KERNEL

RERUN = """
from _pytest.runner import runtestprotocol


def pytest_report_teststatus(report):
    if report.outcome == "rerun":
        return "rerun", "R", "RERUN"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    '''As pytest-rerunfailures does: the phase that failed is reported as rerun.'''
    for last in (False, True):
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        failed = [report for report in reports if report.failed]
        if failed and not last:
            failed[0].outcome = "rerun"
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if not failed:
            break
    return True
"""
FLAKY = """
import pathlib

def tries():
    file = pathlib.Path("tries")
    file.write_text(file.read_text() + "x" if file.exists() else "x")
    return len(file.read_text())

def scale(x):
    return x * 2 if tries() > 1 else x * 3

def test_flaky(make_tensor, check_kernel):
    check_kernel(scale, make_tensor((8,), "float32"), reference=lambda x: x * 2, vary_layout=False)
"""
FILES = ("--kernel-summary=s.md", "--kernel-json=k.json", "--kernel-html=k.html", "--junitxml=j.xml")


def texts(project):
    return {name: (project.path / name).read_text() for name in ("s.md", "k.html", "k.json", "j.xml")}


def says_wrong(text):
    return "wrong result" in text or "wrong-values" in text or "differs from its reference" in text


def junit_verdicts(project):
    """Return the verdicts of each test case in the JUnit file."""
    cases = ET.parse(project.path / "j.xml").iter("testcase")
    names = ".//property[@name='cutile.correct.verdict']"
    return [[one.get("value") for one in case.iterfind(names)] for case in cases]


@pytest.mark.parametrize("workers", [(), ("-n", "1", "-p", "no:benchmark")])
def test_the_last_try_counts(project, workers):
    project.conftest(RERUN)
    project.pytester.makepyfile(test_mine=FLAKY)
    result = project.run("test_mine.py", *workers, *FILES, gates="")
    assert result.parseoutcomes() == {"passed": 1, "rerun": 1}
    result.stdout.fnmatch_lines(["test_mine *1 *1 *"])
    assert not says_wrong(result.stdout.str())
    written = texts(project)
    assert "none of 1 cases failed" in written["s.md"]
    assert not any(map(says_wrong, written.values()))
    (case,) = json.loads(written["k.json"])["cases"]
    assert [one["verdict"] for one in case["results"]] == ["pass"]
    assert junit_verdicts(project)[-1] == ["pass"]
    assert [*itertools.chain(*junit_verdicts(project))] == ["pass"]


def test_a_rerun_that_fails_again_is_one_failure(project):
    project.conftest(RERUN)
    project.pytester.makepyfile(test_mine=FLAKY.replace("tries() > 1", "False"))
    result = project.run("-v", "test_mine.py", *FILES, gates="")
    assert result.parseoutcomes() == {"failed": 1, "rerun": 1}
    result.stdout.fnmatch_lines(["*RERUN*", "*FAILED (wrong result)*"])
    data = json.loads((project.path / "k.json").read_text())
    assert [len(case["results"]) for case in data["cases"]] == [1]
    assert len(data["failures"]) == 1
    assert [*itertools.chain(*junit_verdicts(project))] == ["fail"]


def test_a_case_is_checked_anew_in_each_try(project):
    project.conftest(RERUN)
    project.kernel(KERNEL.replace("def scale(x):\n    return x * 2\n", FLAKY.partition("def test")[0]))
    result = project.run(*FILES, gates="cutile_correct")
    assert result.parseoutcomes()["passed"] == 1
    assert not says_wrong(result.stdout.str())


@pytest.mark.parametrize("outcome", ["skip", "pass"])
@pytest.mark.parametrize("workers", [(), ("-n", "1", "-p", "no:benchmark")])
def test_a_wrong_result_that_the_test_expected_is_none(project, workers, outcome):
    project.pytester.makepyfile(
        test_mine=f"""
        import pytest

        def test_it(make_tensor, check_kernel):
            x = make_tensor((8,), "float32")
            with pytest.raises(pytest.fail.Exception, match="differs"):
                check_kernel(lambda x: x * 3, x, reference=lambda x: x * 2)
            if {outcome == "skip"}:
                pytest.skip("no more")

        def test_other(make_tensor, check_kernel):
            check_kernel(lambda x: x * 2, make_tensor((8,), "float32"), reference=lambda x: x * 2)
        """
    )
    result = project.run("test_mine.py", *workers, *FILES, gates="")
    result.assert_outcomes(**{"passed": 2} if outcome == "pass" else {"passed": 1, "skipped": 1})
    result.stdout.fnmatch_lines(["test_mine *1 *1 *"])
    assert not says_wrong(result.stdout.str())
    assert not any(map(says_wrong, texts(project).values()))
    assert [*itertools.chain(*junit_verdicts(project))] == ["pass"]


def test_a_failure_after_an_expected_one_keeps_both(project):
    project.pytester.makepyfile(
        test_mine="""
        import pytest

        def test_it(make_tensor, check_kernel):
            x = make_tensor((8,), "float32")
            with pytest.raises(pytest.fail.Exception):
                check_kernel(lambda x: x * 3, x, reference=lambda x: x * 2)
            assert False
        """
    )
    result = project.run("test_mine.py", gates="")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["test_mine *0 of 1 *"])


XFAILED = """
import pytest

@pytest.mark.xfail(strict=True)
def test_it(make_tensor, check_kernel):
    check_kernel(lambda x: x * 3, make_tensor((8,), "float32"), reference=lambda x: x * 2)
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1", "-p", "no:benchmark")])
def test_xfail_is_no_wrong_result(project, workers):
    project.pytester.makepyfile(test_mine=XFAILED)
    result = project.run("test_mine.py", *workers, *FILES, gates="")
    result.assert_outcomes(xfailed=1)
    result.stdout.fnmatch_lines(["not measured: 1 correct: its test is expected to fail (xfail)"])
    assert not says_wrong(result.stdout.str())
    written = texts(project)
    assert "none of 1 cases failed" in written["s.md"]
    assert not any(map(says_wrong, written.values()))
    assert junit_verdicts(project) == [["not-measured"]]


def test_xfail_of_a_declared_case(project):
    project.kernel(KERNEL.replace("return x * 2\n", "return x * 3\n", 1))
    project.conftest(
        """
        def pytest_collection_modifyitems(items):
            for item in items:
                item.add_marker(pytest.mark.xfail)
        """
    )
    result = project.run("--perf-strict", gates="cutile_correct")
    result.assert_outcomes(xfailed=1)
    assert not says_wrong(result.stdout.str())


def test_a_regression_that_is_expected_is_none(project):
    project.record(40.0)
    project.times(48.0)
    project.conftest(
        """
        def pytest_collection_modifyitems(items):
            for item in items:
                if "speed[" in item.name:
                    item.add_marker(pytest.mark.xfail)
        """
    )
    result = project.run(*FILES)
    result.assert_outcomes(passed=1, xfailed=1)
    result.stdout.no_re_match_line(r"scale .*regression|regression: ")
    result.stdout.fnmatch_lines(["not measured: 1 speed: its test is expected to fail (xfail)"])


def test_an_accepted_regression_stays_one(project):
    project.record(40.0)
    project.times(48.0)
    result = project.run("--update-baselines", "--reason", "other work")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["scale *n8 *regression*"])


def test_pytest_rerunfailures_itself(project):
    pytest.importorskip("pytest_rerunfailures")
    project.pytester.makepyfile(test_mine=FLAKY)
    result = project.run("test_mine.py", "--reruns=1", *FILES, gates="")
    assert result.parseoutcomes() == {"passed": 1, "rerun": 1}
    assert not says_wrong(result.stdout.str())
    assert [*itertools.chain(*junit_verdicts(project))] == ["pass"]
