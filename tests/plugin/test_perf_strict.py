"""`--perf-strict`: what says nothing about the speed fails."""

import itertools
import re

import pytest

from tests.plugin.conftest import KERNEL


@pytest.mark.parametrize(
    ("record", "times", "args", "verdict"),
    [
        (False, [40.0], (), "no-baseline (no-file)"),
        (True, [41.4], (), "inconclusive (unanchored): *outside of git*"),
        (True, [[40.0] * 11 + [44.0] * 9], (), "inconclusive (unanchored)"),
        (True, [[28.0, 34.0, 40.0, 46.0, 52.0]], (), "inconclusive (noisy): *the samples spread by *"),
        (True, [40.0], ("--perf-baseline", "none"), "no-baseline (baselines-off)"),
    ],
)
def test_undecided_fails(project, record, times, args, verdict):
    if record:
        project.record(40.0)
    project.times(*times)
    project.run(*args).assert_outcomes(passed=2)
    result = project.run("--perf-strict", *args)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([f"*scale[[]n8[]]: {verdict}*--perf-strict*"])


def test_not_measured_fails(project):
    project.record(40.0)
    result = project.run("--arch", "sm_121", "--perf-strict")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*not-measured (other-arch)*NVIDIA H200*--perf-strict*"])


def test_the_command_of_a_strict_failure_repeats_it_and_one_cause_is_told_once(project, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (project.path / "conftest.py").unlink()
    text = project.run("--perf-strict", "-m", "cutile_speed or cutile_static", gates="").stdout.str()
    commands = re.findall(r"^  (pytest .*)", text, re.MULTILINE)
    assert len(commands) == 2
    assert all("--perf-strict" in command and "--correct-on" not in command for command in commands)


def test_a_pass_passes(project):
    project.record(40.0)
    project.run("--perf-strict").assert_outcomes(passed=2)


def test_recording_a_first_baseline_is_no_failure(project):
    project.run("--perf-strict", "--update-baselines").assert_outcomes(passed=2)


SKIPS = ['pytest.skip("tired")', 'pytest.xfail("tired")', 'raise __import__("unittest").SkipTest("tired")']


def skipping(where: str, how: str) -> str:
    code = {
        "launcher": ("return x * 2\n", f"{how}\n"),
        "inputs": ("return (make_tensor", f"{how}\n    return (make_tensor"),
        "reference": ("reference=lambda x: x * 2", "reference=leave"),
        "work": ("work=lambda n: pytest_cutile.Work(bytes=1e8)", "work=leave"),
    }
    replaced = code.get(where, ("reference=", f"{where}=leave, reference="))
    return f"import pytest\n\n\ndef leave(*_, **__):\n    {how}\n" + KERNEL.replace(*replaced, 1)


@pytest.mark.parametrize(
    ("where", "how"),
    [
        *itertools.product(["launcher", "inputs"], SKIPS),
        *itertools.product(["reference", "reduction", "check", "independent", "work"], SKIPS[:1]),
    ],
)
def test_a_skip_in_a_kernels_own_code_has_a_row_and_fails(project, where, how):
    project.kernel(skipping(where, how))
    for gates in ("cutile_correct", "cutile_speed")[where == "work" :]:  # only times need the work
        result = project.run(gates=gates)
        result.assert_outcomes(skipped=1)
        result.stdout.fnmatch_lines(["scale *1 *s", f"*1 {gates[7:]}: *called pytest.*: tired*"])
        result = project.run("--perf-strict", gates=gates)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            ["E   not-measured (skipped): *tired [[]--perf-strict[]]", "scale *not-measured*"]
        )


@pytest.mark.parametrize("gate", ["compile", "static"])
@pytest.mark.parametrize("where", ["launcher", "inputs"])
def test_a_skip_while_it_is_traced(project, gate, where):
    project.kernel(skipping(where, SKIPS[0]))
    result = project.run("--perf-strict", gates=f"cutile_{gate}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E   not-measured (skipped): *tired*", "scale *"])


def test_a_skip_in_a_timer(project):
    project.conftest("FileTimer.time_block = lambda self, launches: __import__('pytest').skip('tired')")
    result = project.run("--perf-strict")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["E   not-measured (skipped): *called pytest.skip: tired*", "scale *"])


def test_a_skip_in_a_fresh_process_is_no_pass(project):
    project.record(40.0)
    project.conftest(
        """
        first = FileTimer.time_block

        def time_block(self, launches):
            if self.blocks:
                __import__("pytest").skip("tired")
            return first(self, launches)

        FileTimer.time_block = time_block
        """
    )
    project.times(44.0)
    result = project.run("--perf-strict")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*tired*"])


@pytest.mark.parametrize("how", ['pytest.fail("tired")', 'raise SystemExit("tired")'])
def test_other_ends_of_a_kernels_own_code_have_a_row(project, how):
    project.kernel(skipping("launcher", how))
    for gates in ("cutile_correct", "cutile_speed"):
        result = project.run(gates=gates)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["scale *raised*"])


def test_a_module_that_skips_itself(project):
    project.kernel('import pytest\npytest.skip("tired", allow_module_level=True)\n' + KERNEL)
    project.run().assert_outcomes(skipped=1)
    result = project.run("--perf-strict")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*scale.py: the module skips itself: tired [[]--perf-strict[]]"])


def test_a_skip_of_the_user_is_a_skip(project):
    (project.path / "test_mine.py").write_text(
        "import pytest\n\ndef test_it(perf):\n    pytest.skip('mine')\n"
    )
    project.run("test_mine.py", "--perf-strict", gates="").assert_outcomes(skipped=1)


def test_a_skip_in_what_a_fixture_launches(project):
    launcher = "import pytest\n\ndef launch():\n    pytest.skip('mine')\n\n"
    test = launcher + "def test_it(perf):\n    perf(launch, bytes=1e8)\n"
    (project.path / "test_mine.py").write_text(test)
    result = project.run("test_mine.py", "--perf-strict", gates="")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E   not-measured (skipped): *mine*", "test_mine *not-measured"])
