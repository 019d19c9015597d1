"""How failures are shown: the sentence, the place, few lines, and the command, of whatever kind."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from _pytest._code.code import ReprEntry

from pytest_cutile.pytest_parts.failure import Place, failure_repr, shorten

PLACE = Place("nowhere.py", 3, "in nothing")

LOOP = """
import pytest


def double(x):
    return x * 2 if x.shape[0] != 20 else x * 2.5


def refuse(x):
    raise ValueError("not today")


def check(check_kernel, x):
    check_kernel(double, x, reference=lambda x: x * 2, vary_layout=False)


def test_loop(make_tensor, check_kernel):
    for n in (10, 20, 30):
        x = make_tensor((n,), "float32")
        check(check_kernel, x)  # here


def test_raises(make_tensor, check_kernel):
    check_kernel(refuse, make_tensor((8,), "float32"), reference=lambda x: x)


def test_perf(make_tensor, check_kernel, perf):
    x = make_tensor((8,), "float32")
    check_kernel(double, x, reference=lambda x: x * 2)
    perf(double, x, bytes=1e8, name="first")
    perf(double, x, bytes=1e8, name="second")  # timed
"""


@pytest.fixture
def loop(project):
    project.pytester.makepyfile(test_loop=LOOP)
    return project


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(LOOP.strip().splitlines(), start=1) if text in line)


def failed_report(run: pytest.HookRecorder) -> pytest.TestReport:
    [report] = [report for report in run.getreports("pytest_runtest_logreport") if report.failed]
    return report


@pytest.mark.parametrize("processes", [(), ("-n1",)], ids=["one", "xdist"])
def test_the_first_line_says_what_is_wrong_in_which_call_and_the_next_one_where(loop, processes):
    result = loop.run("test_loop.py::test_loop", *processes, gates="")
    result.stdout.fnmatch_lines(
        [
            "E   call 2: double(x float32 ?20?): double differs from its reference: a constant factor: *",
            "",
            f"test_loop.py:{line_of('# here')}: in test_loop, call 2: double(x float32 ?20?)",
            "    check(check_kernel, x)  # here",
            f"test_loop.py:{line_of('check_kernel(double, x, reference=lambda x: x * 2, vary')}: in check",
            "    check_kernel(double, x, reference=lambda x: x * 2, vary_layout=False)",
            "  output (float32 ?20?): 20 of 20 elements *",
            "Reproduce (seed *):",
            "  pytest test_loop.py::test_loop *",
        ],
        consecutive=False,
    )
    assert "pytest_cutile/" not in result.stdout.str()


def test_what_reads_places_gets_the_users_line(loop):
    """--tb=line, JUnit files, and pytest-github-actions-annotate-failures, which reads the first entry."""
    result = loop.run("test_loop.py::test_loop", "--tb=line", gates="")
    result.stdout.fnmatch_lines([f"*test_loop.py:{line_of('# here')}: call 2: double(x *"])
    report = failed_report(loop.pytester.inline_run("test_loop.py::test_loop"))
    entry = report.longrepr.reprtraceback.reprentries[0]  # type: ignore[union-attr]
    assert isinstance(entry, ReprEntry)
    assert entry.reprfileloc is not None
    assert (entry.reprfileloc.path, entry.reprfileloc.lineno) == ("test_loop.py", line_of("# here"))


def test_what_a_launcher_raises_keeps_its_traceback_and_gets_the_call_and_the_command(loop):
    result = loop.run("test_loop.py::test_raises", gates="")
    result.stdout.fnmatch_lines(
        [
            "E * ValueError: not today",
            "E * in call 1: refuse(x float32 ?8?)",
            "*- Reproduce (seed *) -*",
            "  pytest test_loop.py::test_raises *",
        ]
    )


def test_a_slower_call_is_shown_where_it_was_made(loop):
    loop.times(40.0)
    loop.run("test_loop.py::test_perf", "--update-baselines", gates="").assert_outcomes(passed=1)
    loop.times(40.0, 43.2)
    result = loop.run("test_loop.py::test_perf", gates="")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E   test_loop.py::test_perf#second on sm_90 * slower than its baseline in bursts.",
            f"test_loop.py:{line_of('# timed')}: in test_perf, perf(name='second')",
        ]
    )


STOPS = """
def pytest_exception_interact(call):
    innermost = [entry for entry in call.excinfo.traceback if not entry.ishidden(call.excinfo)][-1]
    print("stops in", innermost.name)
"""


@pytest.mark.parametrize(("test", "frame"), [("test_loop", "check"), ("test_raises", "refuse")])
def test_a_debugger_stops_in_the_users_frame(loop, test, frame):
    """By the frame that --pdb chooses: the innermost one that is not hidden."""
    loop.pytester.makepyfile(stops=STOPS)
    loop.pytester.syspathinsert()
    result = loop.run(f"test_loop.py::{test}", "-p", "stops", "-s", gates="")
    result.stdout.fnmatch_lines([f"*stops in {frame}"])


COARSE = """
import pytest_cutile


def rows(x):
    return x.half().float() * 2 if x.abs().max() < 8 else x * 2.5


SPEC = pytest_cutile.KernelSpec(
    name="rows",
    launch=rows,
    reference=lambda x: x * 2,
    inputs=lambda make_tensor, m, n: (make_tensor((m, n), "float32"),),
    cases=[pytest_cutile.Case(name="a", params={"m": 30, "n": 64}, speed=False)],
)
"""


@pytest.mark.slow
def test_no_hint_that_another_input_of_the_kernel_refutes(project):
    project.kernel(COARSE, name="rows")
    arguments = ("mykernels/rows.py", "--correct-on=interpreter", "--every-input")
    alone = project.run("mykernels/rows.py::correct[a]", *arguments[1:], gates="cutile_correct")
    assert 'would pass with mid="float16"' in alone.stdout.str()
    together = project.run(*arguments, gates="cutile_correct").stdout.str()
    assert "the same in a-" in together
    assert "would pass with" not in together


def test_a_failure_has_thirty_lines_and_all_of_them_when_asked(static):
    static.change(
        ("for k in range(ct.cdiv(A.shape[1], TK)):", "for k in range(ct.cdiv(A.shape[1], TK) - i // 3):")
    )
    shown = {}
    for option in ("-q", "-vv"):
        text = static.run("-k", "normal or n256", option, gates="cutile_correct").stdout.str()
        assert (
            "only in the last 64 of 256 of dim 0: the last 32 of the 256 terms of each sum are missing"
            in text
        )
        shown[option] = re.split(r"\n_+ correct.* _+\n|\n=+ cuTile kernels[^=]*=+\n", text)[1].splitlines()
    assert len(shown["-q"]) <= 30
    assert any(re.search(r"\.\.\. \d+ more lines: -vv", line) for line in shown["-q"])
    assert len(shown["-vv"]) > 30
    assert any("acc = parameter" in line for line in shown["-vv"])


@pytest.mark.parametrize(("lines", "kept"), [(0, 0), (10, 10), (40, 28)])
def test_a_message_is_cut_in_its_facts_and_keeps_what_is_added_and_the_command(lines, kept):
    facts = [f"fact {n}" for n in range(lines)]
    longrepr = failure_repr("\n".join(["what", *facts]), [PLACE], Path(), "Reproduce:\n  pytest")
    report = SimpleNamespace(longrepr=longrepr)
    shorten(report, 35, ["added"])  # type: ignore[arg-type]
    shown = str(longrepr).splitlines()
    assert shown[0] == "E   what"
    assert sum(line.startswith("fact ") for line in shown) == kept
    assert (f"  ... {lines - kept} more lines: -vv" in shown) == (lines > kept)
    assert "added" in shown
    assert shown[-2:] == ["Reproduce:", "  pytest"]


def test_no_half_of_a_paragraph_is_shown():
    facts = ["story", "", *["detail"] * 20]
    longrepr = failure_repr("\n".join(["what", *facts]), [PLACE], Path(), "Reproduce:\n  pytest")
    shorten(SimpleNamespace(longrepr=longrepr), 20)  # type: ignore[arg-type]
    assert "detail" not in str(longrepr)
    assert "story\n  ... 21 more lines: -vv\nReproduce:" in str(longrepr)


def test_a_hint_that_is_refuted_goes():
    longrepr = failure_repr("what\n  would pass with x\nfact", [PLACE], Path(), "Reproduce:\n  pytest")
    shorten(SimpleNamespace(longrepr=longrepr), 20, without={"would pass with x"})  # type: ignore[arg-type]
    assert "would" not in str(longrepr)
    assert "fact" in str(longrepr)


@pytest.mark.parametrize("style", ["long", "short", "line", "no", "native", "value"])
def test_a_traceback_of_pytest_stays_as_it_is(style):
    with pytest.raises(ValueError, match="mine") as excinfo:
        raise ValueError("mine")
    longrepr = excinfo.getrepr(style=style)
    text = str(longrepr)
    shorten(SimpleNamespace(longrepr=longrepr), 0)  # type: ignore[arg-type]
    assert str(longrepr) == text


TWO_BUGS = """
import pytest


def scaled(x):
    return x * 1.5


def shifted(x):
    return x[1:] * 2


def changing(x):
    return x.mul_(2)


@pytest.mark.parametrize("fn", [scaled, shifted, changing])
def test_double(make_tensor, check_kernel, fn):
    check_kernel(fn, make_tensor((8,), "float32"), reference=lambda x: x * 2, vary_layout=False)


def test_right(make_tensor, check_kernel):
    check_kernel(lambda x: x * 2, make_tensor((8,), "float32"), reference=lambda x: x * 2)
"""


def test_other_bugs_of_one_file_are_other_causes(project):
    project.pytester.makepyfile(test_bugs=TWO_BUGS)
    result = project.run("test_bugs.py", gates="")
    result.assert_outcomes(failed=3, passed=1)
    text = result.stdout.str()
    assert "the same in" not in text
    assert "not in" not in text  # another launcher's test says nothing of these
    for told in (
        "scaled differs from its reference",
        "shifted differs from its reference in structure or shape: float32 [7] instead of float64 [8]",
        "changing changed its input x",
    ):
        assert f"E   {told}" in text
    for verdict in ("wrong result", "other-structure", "changed-input"):
        assert re.search(rf"^test_bugs .* {verdict}$", text, re.MULTILINE)


def test_what_the_inputs_raise_is_told_once_for_all_gates(static):
    static.change(("inputs=inputs", "inputs=lambda make_tensor, n: 1 / 0"))
    result = static.run("-m", "cutile_compile or cutile_correct", gates="")
    result.assert_outcomes(failed=2)
    assert len(re.findall(r"^E +ZeroDivisionError", result.stdout.str(), re.MULTILINE)) == 1


def test_an_error_in_a_reference_has_its_line(project):
    project.pytester.makepyfile(
        test_reference="""
def reference(x):
    return x.reshape(7, -1)


def test_it(make_tensor, check_kernel):
    check_kernel(lambda x: x * 2, make_tensor((8,), "float32"), reference=reference)
"""
    )
    text = project.run("test_reference.py", gates="").stdout.str()
    assert "test_reference.py:6: in test_it, call 1:" in text
    assert "test_reference.py:2: in reference\n    return x.reshape(7, -1)" in text


@pytest.mark.parametrize("other", [False, True])
def test_github_shows_failures_at_their_lines(loop, monkeypatch, other):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(loop.path.parent))
    args = []
    if other:
        (loop.path / "pytest_github_actions_annotate_failures.py").write_text("")
        args = ["-p", "pytest_github_actions_annotate_failures"]
    lines = loop.run("test_loop.py", "-k", "not perf", *args, gates="").stdout.lines
    shown = [line for line in lines if line.startswith("::error ")]
    folder = loop.path.name
    expected = f"::error file={folder}/test_loop.py,line={line_of('# here')}::test_loop%0Acall 2: "
    assert [line.startswith(expected) for line in shown] == ([] if other else [True, False])


def test_errors_in_fixtures_are_told_once_too(project):
    project.pytester.makepyfile(
        test_setup="""
import pytest


@pytest.fixture
def checked(make_tensor, check_kernel):
    check_kernel(lambda x: x * 1.01, make_tensor((64, 64), "float32"), reference=lambda x: x)


def test_one(checked): ...


def test_other(checked): ...
"""
    )
    result = project.run("test_setup.py", gates="")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*the same in test_other (-v shows each)"])


def test_github_shows_a_bad_declaration_at_its_line(project, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    project.edit('params={"n": 8}', 'params={"m": 8}')
    said = "::error file=mykernels/scale.py,line=*params (m) do not fit inputs*"
    project.run().stdout.fnmatch_lines([said])


BUGS = """
import torch

import pytest_cutile


def rows(x):
    y = torch.empty_like(x).copy_(x)
    if x.shape[1] == 64:
        y *= 2
    if x.shape[1] == 96:
        y[3] = 0
    if x.shape[1] == 7:
        raise ValueError(f"{x.shape[1]} columns are too few")
    return y


SPEC = pytest_cutile.KernelSpec(
    name="rows",
    launch=rows,
    reference=lambda x: x * 1,
    inputs=lambda make_tensor, m, n: (make_tensor((m, n), "float32"),),
    cases=[
        pytest_cutile.Case(name=f"n{n}", params={"m": 30, "n": n}, speed=False, named_inputs=())
        for n in (40, 64, 96, 64 * 2, 7)
    ],
)
"""


def test_failures_of_one_kernel_that_begin_otherwise_are_not_called_the_same(project):
    project.kernel(BUGS, name="rows")
    result = project.run("mykernels/rows.py", "-k", "n64 or n96", gates="cutile_correct")
    result.assert_outcomes(failed=2)
    text = result.stdout.str()
    assert "the same in" not in text
    shown = re.findall(r"^E   rows differs from its reference(.*)", text, re.MULTILINE)
    named = re.findall(r"^  in n(?:64|96): rows differs from its reference(.*)", text, re.MULTILINE)
    assert len(shown) == len(named) == 1
    assert {" only in index 3 of 30" in each for each in (*shown, *named)} == {True, False}


def test_a_launcher_that_raises_says_in_which_cases(project):
    project.kernel(BUGS.replace("== 64", "== 0").replace("== 96", "== 0"), name="rows")
    result = project.run("mykernels/rows.py", "-m", "cutile_correct or cutile_compile", gates="")
    text = result.stdout.str()
    assert len(re.findall(r"^E +ValueError: 7 columns are too few", text, re.MULTILINE)) == 1
    result.stdout.fnmatch_lines(["  the same in n7 (-v shows each)", "*Reproduce*"])
    result.stdout.fnmatch_lines(["rows *n7 *raised"])


def test_what_is_undecided_explains_no_failure_of_the_users_own(project):
    project.pytester.makepyfile(
        test_own="""
        def one(perf):
            perf(lambda: None, bytes=1e8)

        def test_first(perf):
            one(perf)
            assert not "first"

        def test_second(perf):
            one(perf)
            assert not "second"
        """
    )
    result = project.run("test_own.py", "--kernel-json=run.json", gates="")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["E *first*", "E *second*"])
    failures = json.loads((project.path / "run.json").read_text())["failures"]
    assert [failure["results"] for failure in failures] == [[], []]
