"""--sanitize: with a script in the place of compute-sanitizer, and for the rest with no process at all."""

import sys

import pytest

from pytest_cutile.pytest_parts.sanitizer import Sanitizing
from pytest_cutile.pytest_parts.sanitizer_log import read_log
from pytest_cutile.tile.compiler import toolchain
from tests.plugin.conftest import KERNEL
from tests.pytest_parts.test_sanitizer_log import BROKEN, CLEAN, INITCHECK, MEMCHECK

pytestmark = pytest.mark.slow

SCRIPT = """\
#!{python}
import os, pathlib, subprocess, sys

here = pathlib.Path(__file__).parent
words = sys.argv[1:]
tool, log = (words[words.index(name) + 1] for name in ("--tool", "--log-file"))
with (here / "runs").open("a") as file:
    print(tool, os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"], file=file)
if (here / "starts").exists():
    subprocess.run(words[words.index({python!r}):], check=False)
pathlib.Path(log).write_text((here / "says").read_text())
"""
CASE = 'pytest_cutile.Case(name="n8", params={"n": 8})'
FOUR = ", ".join(CASE.replace("8", f"{n}") for n in (4, 8, 16, 32))


SCALE = """
import torch


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x * 2

    @staticmethod
    def backward(_, dy):
        with open(__file__ + ".backward", "a") as file:
            file.write("x")
        return dy * 2


"""


class Sanitizer:
    """What takes the place of compute-sanitizer."""

    def __init__(self, project, monkeypatch) -> None:
        self.folder = project.path / "bin"
        self._monkeypatch = monkeypatch
        self.folder.mkdir()
        script = self.folder / "compute-sanitizer"
        script.write_text(SCRIPT.format(python=sys.executable))
        script.chmod(0o755)
        self.runs: list[str] = []

    def logs(self, text, *, starts=True) -> None:
        """Let the script write this log, and run the program or not."""
        (self.folder / "says").write_text(text)
        if starts:
            (self.folder / "starts").touch()

    def finds(self, found) -> None:
        """Find this, by tool and by test, without any process."""

        def run(_, tool, nodeids, folder):
            del folder
            tests = [nodeid.rpartition("::")[2] for nodeid in nodeids]
            self.runs.append(f"{tool} {' '.join(tests)}")
            texts = [text for name, text in found.get(tool, {}).items() if name in tests]
            return read_log(texts[0] if texts else CLEAN), "", set()

        self._monkeypatch.setattr(Sanitizing, "_run", run)


@pytest.fixture
def sanitizer(project, monkeypatch):
    made = Sanitizer(project, monkeypatch)
    monkeypatch.setenv("PATH", f"{made.folder}", prepend=":")
    monkeypatch.setattr(toolchain, "_wheel_folders", list)
    toolchain.find_tool.cache_clear()
    project.kernel(KERNEL.replace(CASE, FOUR))
    yield made
    toolchain.find_tool.cache_clear()


def run(project, *args, gates="cutile_correct"):
    return project.run("-p", "no:xdist", *args, gates=gates)


def test_clean_tests_pass_and_each_tool_takes_one_process(project, sanitizer):
    sanitizer.finds({})
    run(project, "--sanitize").assert_outcomes(passed=4)
    tests = "correct[n4] correct[n8] correct[n16] correct[n32]"
    assert sanitizer.runs == [f"{tool} {tests}" for tool in ("memcheck", "racecheck", "initcheck")]


def test_a_finding_fails_the_test_that_caused_it(project, sanitizer):
    sanitizer.finds({"memcheck": {"correct[n16]": MEMCHECK}})
    result = run(project, "--sanitize=memcheck", "-rf")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E   compute-sanitizer (memcheck) found 2 errors:",
            "*Invalid __global__ write of size 4 bytes",
            "*at unaligned_kernel()+0x160 in memcheck_demo.cu:6",
            "scale * n16 *sanitizer",
            "FAILED *correct[[]n16[]] - compute-sanitizer (memcheck) found*",
        ]
    )
    assert len(sanitizer.runs) == 5  # all, halves, and the halves of one


def test_a_finding_is_shown_beside_a_wrong_result(project, sanitizer):
    sanitizer.finds({"memcheck": {"correct[n8]": MEMCHECK}})
    project.kernel(KERNEL.replace("return x * 2\n", "return x * 3\n", 1))
    result = run(project, "--sanitize=memcheck")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E   scale differs from*", "*Invalid __global__ write of size 4 bytes"])


@pytest.mark.usefixtures("sanitizer")
def test_what_is_found_in_no_test_alone_is_not_lost(project, monkeypatch):
    def find(*args):
        return read_log(MEMCHECK if len(args[2]) == 4 else CLEAN), "", set()

    monkeypatch.setattr(Sanitizing, "_run", find)
    result = run(project, "--sanitize=memcheck")
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(["E   in 4 tests together, in none alone: compute-sanitizer*found 2 errors:"])


def test_two_tools_find_something_in_one_test(project, sanitizer):
    sanitizer.finds({"memcheck": {"correct[n4]": MEMCHECK}, "initcheck": {"correct[n4]": INITCHECK}})
    result = run(project, "--sanitize", "-k", "n4 or n8")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*(memcheck) found 2 errors*", "*(initcheck) found 96 errors*"])


def test_what_it_finds_leaves_no_speed_verdict(project, sanitizer):
    sanitizer.finds({"memcheck": {"correct[n16]": MEMCHECK}})
    result = run(project, "--sanitize=memcheck", gates="cutile_correct or cutile_speed")
    result.assert_outcomes(passed=6, failed=1, skipped=1)


def test_test_functions_are_run_under_it_too(project, sanitizer):
    project.pytester.makepyfile(
        test_mine="""
        def test_mine(check_kernel, make_tensor):
            check_kernel(lambda x: x * 2, make_tensor(8, "float32"), reference=lambda x: x * 2)

        def test_other():
            pass
        """
    )
    sanitizer.finds({"memcheck": {"test_mine": MEMCHECK}})
    run(project, "test_mine.py", "--sanitize=memcheck", gates="").assert_outcomes(passed=1, failed=1)
    assert sanitizer.runs == ["memcheck test_mine"]


def test_in_a_real_process_kernels_are_launched_and_nothing_is_compared(project, sanitizer):
    """A wrong result is the usual run's business: in there, references would be watched as well."""
    counted = (
        "def count(what, x):\n"
        "    with open(__file__ + what, 'a') as file:\n"
        "        file.write('x')\n"
        "    return x * 2\n\n\n"
    )
    text = KERNEL.replace("reference=lambda x: x * 2", "reference=lambda x: count('.references', x)")
    text = text.replace("    return x * 2\n", "    return count('.launches', x)\n", 1)
    project.kernel(text.replace("SPEC =", f"{counted}SPEC ="))
    sanitizer.logs(CLEAN)

    def calls(what):
        return len((project.path / "mykernels" / f"scale.py.{what}").read_text())

    run(project).assert_outcomes(passed=1)
    references, launches = calls("references"), calls("launches")
    run(project, "--sanitize=memcheck").assert_outcomes(passed=1)
    assert calls("references") == 2 * references
    assert calls("launches") == 2 * launches + 1
    assert (sanitizer.folder / "runs").read_text() == "memcheck 1\n"


def test_backward_passes_run_under_it_too(project, sanitizer):
    """Kernels of a backward pass are only launched there."""
    project.kernel(
        KERNEL.replace("    return x * 2\n", "    return Scale.apply(x)\n", 1)
        .replace('name="scale",', 'name="scale",\n    grad=True,')
        .replace("SPEC =", f"{SCALE}SPEC =")
    )
    project.pytester.makepyfile(
        test_mine="""
        from mykernels.scale import scale

        def test_mine(check_kernel, make_tensor):
            check_kernel(scale, make_tensor(8, "float32"), reference=lambda x: x * 2, grad=True)
        """
    )
    project.pytester.syspathinsert()
    sanitizer.logs(CLEAN)
    passes = project.path / "mykernels" / "scale.py.backward"
    for test, gates in (("mykernels", "cutile_correct"), ("test_mine.py", "")):
        run(project, test, gates=gates).assert_outcomes(passed=1)
        usual = len(passes.read_text())
        passes.unlink()
        run(project, test, "--sanitize=memcheck", gates=gates).assert_outcomes(passed=1)
        assert len(passes.read_text()) == usual + 1
        passes.unlink()


@pytest.mark.parametrize(("text", "starts"), [(BROKEN, True), (CLEAN, False), ("", False)])
def test_a_tool_that_does_not_work_is_no_pass(project, sanitizer, text, starts):
    sanitizer.logs(text, starts=starts)
    result = run(project, "--sanitize=memcheck")
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(["E   compute-sanitizer did not work (memcheck)*"])
    assert len((sanitizer.folder / "runs").read_text().splitlines()) == 2  # all; and is it so with one?


def test_without_a_gpu_it_says_so(project, sanitizer, monkeypatch):
    sanitizer.finds({})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (project.path / "conftest.py").unlink()
    result = run(project, "--sanitize", "--arch", "sm_90")
    result.stdout.fnmatch_lines(["--sanitize: not measured: no GPU of sm_90"])
    assert sanitizer.runs == []
    result = run(project, "--sanitize", "--arch", "sm_90", "--perf-strict")
    result.assert_outcomes(failed=4)


@pytest.mark.usefixtures("sanitizer")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sanitize", "mykernels"], "*'mykernels' is none of memcheck, racecheck, initcheck, synccheck*"),
        (["--sanitize=memcheck", "--correct-on=interpreter"], "*leave out --correct-on=interpreter*"),
    ],
)
def test_options_that_make_no_sense(project, options, message):
    result = run(project, *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


@pytest.mark.usefixtures("sanitizer")
def test_with_workers_it_is_refused(project):
    pytest.importorskip("xdist")
    result = project.run("-n", "2", "--sanitize")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*leave out pytest-xdist's -n*"])


def test_not_installed_is_an_error_that_says_how_to_get_it(project, sanitizer, monkeypatch):
    (sanitizer.folder / "compute-sanitizer").unlink()
    monkeypatch.setattr(toolchain, "toolkit_folders", lambda: ["empty"])
    result = run(project, "--sanitize")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--sanitize: compute-sanitizer is not installed: pip install*sanitizer*"])
