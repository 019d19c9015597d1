"""What a run says of a wrong kernel: each part once, with a command that repeats exactly this case."""

import base64
import json
import re
import shlex
import xml.etree.ElementTree as ET

import pytest

WRONG = """
import pytest_cutile


def wrong(x):
    y = x * 2
    y[..., 96:] = 0
    return y


def right(x):
    return x * 2


SPEC = pytest_cutile.KernelSpec(
    name="scale",
    launch=wrong,
    reference=right,
    inputs=lambda make_tensor, n: (make_tensor((20, n), "float16"),),
    cases=[pytest_cutile.Case(name="n100", params={"n": 100})],
)
"""

MINE = """
import pytest

from mykernels.scale import right, wrong


@pytest.mark.parametrize("text", ["it's $HOME", 'two "words"'])
def test_mine(text, make_tensor, check_kernel):
    check_kernel(wrong, make_tensor((20, 100), "float16"), reference=right)


def test_for_each(arch, make_tensor, check_kernel):
    check_kernel(wrong, make_tensor((20, 100), "float16"), reference=right)
"""

REPRODUCE = "Reproduce (seed "


def messages(text):
    """Return the message of each failure, by the command that repeats it."""
    found = re.findall(
        rf"(wrong differs from.*?){re.escape(REPRODUCE)}\d+\):\n  pytest (.*?)\n", text, flags=re.DOTALL
    )
    return {command: message for message, command in found}


@pytest.fixture
def wrong(project):
    project.kernel(WRONG)
    project.pytester.makepyfile(test_mine=MINE)
    return project


@pytest.mark.parametrize("processes", [(), ("-n1",)], ids=["one", "xdist"])
@pytest.mark.parametrize("test", ["mykernels", "test_mine.py::test_for_each"])
def test_each_part_is_printed_once(wrong, test, processes, monkeypatch):
    monkeypatch.setenv("CI", "1")  # where pytest's short summary has plain messages whole
    result = wrong.run(test, "-rA", "-vv", *processes, gates="not cutile_compile and not cutile_static")
    text = result.stdout.str()
    for part in (
        "worst element",
        "ulps from",
        "where: dim 1: only the last 4 of 100",
        "failed: interval",
        REPRODUCE,
    ):
        assert text.count(part) == 1, part
    assert text.count("wrong differs from its reference right") == 2  # the second in the short summary


@pytest.mark.parametrize("arguments", [(), ("--arch", "sm_90,sm_121")])
def test_the_commands_repeat_the_failures(wrong, arguments):
    first = messages(
        wrong.run("test_mine.py", "mykernels", "-v", *arguments, gates="not cutile_compile").stdout.str()
    )
    assert len(first) == (6 if arguments else 5) - 1
    # from another folder, as a shell reads it
    for command, message in first.items():
        again = wrong.pytester.runpytest_inprocess(*shlex.split(command))
        assert messages(again.stdout.str()) == {command: message}
    assert len(set(first.values())) == len(first)  # each has its own inputs


def test_the_command_works_in_the_folder_that_the_run_was_started_in(wrong, monkeypatch):
    folder = wrong.path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    result = wrong.pytester.runpytest_inprocess("../test_mine.py", "-k", "words")
    [(command, message)] = messages(result.stdout.str()).items()
    assert command.startswith("'../test_mine.py::")
    again = wrong.pytester.runpytest_inprocess(*shlex.split(command))
    assert messages(again.stdout.str()) == {command: message}


SMALL = WRONG.replace(
    'cases=[pytest_cutile.Case(name="n100", params={"n": 100})]',
    """cases=[
        pytest_cutile.Case(name="n100", params={"n": 100}, speed=False),
        pytest_cutile.Case(name="n104", params={"n": 104}, speed=False),
    ]""",
)
PLUGIN = """
import pytest


@pytest.fixture
def factor():
    return 3
"""
WITH_PLUGIN = """
import pytest


@pytest.mark.slow
def test_mine(factor, make_tensor, check_kernel):
    check_kernel(lambda x: x * factor, make_tensor((20, 100), "float16"), reference=lambda x: x * 2)
"""


@pytest.mark.parametrize(
    ("options", "test", "bug"),
    [
        (["--every-input"], "mykernels/scale.py::correct[n104-nan]", "y[y.isnan()] = 0"),
        (["--check-layouts", "--mutation-test"], "mykernels/scale.py::correct[n100]", "y *= x.stride(-1)"),
        (["--perf-baseline=none"], "mykernels/scale.py::correct[n100]", "y[0] = 0"),
        (["-o", "cutile_kernels=others.scale"], "others/scale.py::correct[n100]", "y[0] = 0"),
        (["-p", "myplugin", "-o", "markers=slow", "-m", "slow"], "test_mine.py::test_mine", "pass"),
    ],
    ids=["every-input", "check-layouts", "perf-baseline", "ini", "plugin"],
)
def test_the_command_has_the_options_that_the_test_depends_on(project, options, test, bug):
    pytester = project.pytester
    pytester.mkpydir("others")
    for folder in ("mykernels", "others"):
        planted = bug if test.startswith(folder) else "pass"
        (pytester.path / folder / "scale.py").write_text(SMALL.replace("y[..., 96:] = 0", planted))
    pytester.makepyfile(myplugin=PLUGIN, test_mine=WITH_PLUGIN)
    pytester.makeini("[pytest]\ncutile_kernels = mykernels\naddopts = -m 'not slow'\n")
    pytester.syspathinsert()

    def commands(*arguments):
        text = pytester.runpytest_inprocess(*arguments).stdout.str()
        return re.findall(rf"{re.escape(REPRODUCE)}\d+\):\n  pytest (.*?)\n", text)

    [command] = commands(test, "-m", "", *options)
    assert {*options} <= {*shlex.split(command)}
    assert commands(*shlex.split(command)) == [command]


@pytest.mark.parametrize("processes", [(), ("-n", "2")])
def test_a_root_cause_is_told_once_and_kept_whole_in_files(project, processes):
    cases = ", ".join(f'pytest_cutile.Case(name="n{n}", params={{"n": {n}}})' for n in range(100, 105))
    project.kernel(WRONG.replace('pytest_cutile.Case(name="n100", params={"n": 100})', cases))
    arguments = ("--junitxml=junit.xml", "--correct-on=interpreter", "--arch", "sm_90", *processes)
    result = project.run(*arguments, gates="cutile_correct")
    result.assert_outcomes(failed=5)
    text = result.stdout.str()
    assert text.count("worst element") == text.count(REPRODUCE) == 1
    assert re.search(r"  the same in n10\d, n10\d, n10\d, n10\d \(-v shows each\)\n", text)
    assert all(f"FAILED mykernels/scale.py::correct[n{n}] - wrong differs" in text for n in range(100, 105))
    assert (project.path / "junit.xml").read_text().count("worst element") == 5
    if not processes:
        again = project.run(*arguments, "-v", gates="cutile_correct")
        assert again.stdout.str().count("worst element") == 5


def test_the_default_inputs_are_shown_before_a_few_errors_of_special_ones(project):
    softmax = """
        import pytest_cutile


        def softmax(x):
            e = (1.01 * (x.float() - x.float().amax(1, keepdim=True))).exp()
            return (e / e.sum(1, keepdim=True)).to(x.dtype)


        SPEC = pytest_cutile.KernelSpec(
            name="softmax",
            launch=softmax,
            reference=lambda x: x.softmax(1),
            inputs=lambda make_tensor, n: (make_tensor((37, n), "float16"),),
            reduction=lambda n: n,
            cases=[pytest_cutile.Case(name="n", params={"n": 1000}, speed=False, named_inputs=["small"])],
        )
        """
    project.kernel(softmax)
    result = project.run(gates="cutile_correct")
    result.assert_outcomes(failed=2)
    result.stdout.re_match_lines(
        [
            r"E   softmax differs from its reference: .* \(9\d\.?\d? %\) are outside the bound",
            r"  in n-small: softmax differs from its reference: few and scattered",
        ]
    )


def test_pytests_own_strictness_is_not_in_the_command(wrong):
    options = ("--strict-markers", "-o", "xfail_strict=true")
    text = wrong.run("mykernels", *options, gates="cutile_correct").stdout.str()
    assert "-o xfail_strict=true" in text
    assert "strict_markers" not in text.partition(REPRODUCE)[2]


def test_a_picture_in_the_page_of_pytest_html(wrong):
    pytest.importorskip("pytest_html")
    wrong.run("--html=page.html", "--self-contained-html", "-n1", gates="cutile_correct")
    page = (wrong.path / "page.html").read_text()
    [image] = set(re.findall(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)", page))
    root = ET.fromstring(base64.b64decode(image))
    assert any((each.text or "").startswith("output, 20 x 100: times the bound") for each in root.iter())


def test_how_strong_the_checks_are(wrong):
    wrong.kernel(WRONG.replace("y[..., 96:] = 0", "pass").replace("x * 2", "x.clamp(min=9) * 2"))
    result = wrong.run("--mutation-test", "--junitxml=junit.xml", gates="cutile_correct")
    result.assert_outcomes(passed=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(
        [
            "*how strong the checks are*",
            "1 of 1 cases are weak: these mutants would have survived",
            "scale: 1 weak case",
            "  two indices exchanged (output, dim 0): all indices hold the same values (n100)",
            "all zero *1",
        ]
    )
    properties = {
        each.attrib["name"]: each.attrib["value"]
        for each in ET.parse(wrong.path / "junit.xml").iter("property")
    }
    mutants = json.loads(properties["cutile.correct.mutation"])["mutants"]
    assert {mutant["outcome"] for mutant in mutants} == {"killed", "equivalent"}


def test_the_fixture_returns_the_mutation_report(wrong):
    wrong.pytester.makepyfile(
        test_mine="""
        def test_strong(make_tensor, check_kernel):
            x = make_tensor((20, 100), "float16")
            report = check_kernel(lambda x: x * 2, x, reference=lambda x: x * 2, mutation_test=True)
            assert not report.mutation.weaknesses
            assert check_kernel(lambda x: x * 2, x, reference=lambda x: x * 2).mutation is None
        """
    )
    wrong.run("test_mine.py", gates="").assert_outcomes(passed=1)
