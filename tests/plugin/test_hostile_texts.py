"""Texts of others (baselines, drivers, timers, kernels) are shown, and no terminal or log obeys them."""

import pytest

from tests.plugin.conftest import KERNEL

EVIL = r"\x1b[2J\x07\n::set-output name=x::y ##[error]z"
SHOWN = r"\x1b[2J\x07"


def assert_harmless(result: pytest.RunResult) -> None:
    lines = [*result.outlines, *result.errlines]
    for line in lines:
        assert "\x1b" not in line
        assert "\x07" not in line
        assert "##[" not in line
        assert not line.lstrip().startswith("::")
    assert any(SHOWN in line for line in lines)


@pytest.mark.parametrize("args", [("-v",), ("-q", "-rA", "-n", "1")])
def test_what_a_timer_says(project, args):
    project.conftest(
        f"""
        def problems(self):
            return ["{EVIL}"]

        def time_block(self, launches):
            raise pytest_cutile.TimingError("{EVIL}")

        FileTimer.problems, FileTimer.time_block = problems, time_block
        """
    )
    assert_harmless(project.run(*args))


@pytest.mark.parametrize("args", [(), ("--perf-strict",)])
def test_the_name_of_a_gpu(project, args):
    project.conftest(
        f"""
        FileTimer.device = pytest_cutile.Device(
            arch="sm_90", name="{EVIL}", uuid="GPU-0", torch_device="cpu"
        )
        """
    )
    assert_harmless(project.run("--arch", "sm_121", "-rA", *args))


USER_TEST = """
def test_it(perf):
    def launch(): pass
    perf(launch, bytes=1e8{more})
"""


def test_what_a_test_function_of_the_user_is_told(project):
    project.conftest(
        f"""
        def time_block(self, launches):
            raise pytest_cutile.TimingError("{EVIL}")

        FileTimer.time_block = time_block
        """
    )
    (project.path / "test_mine.py").write_text(USER_TEST.format(more=""))
    result = project.run("test_mine.py", gates="")
    result.assert_outcomes(failed=1)
    assert_harmless(result)


def test_a_name_that_becomes_part_of_a_key_has_no_control_characters(project):
    (project.path / "test_mine.py").write_text(USER_TEST.format(more=f', name="{EVIL}"'))
    result = project.run("test_mine.py", gates="")
    result.assert_outcomes(failed=1)
    assert_harmless(result)
    project.kernel(KERNEL.replace('name="scale"', f'name="{EVIL}"'))
    result = project.run("mykernels", "-v")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*control characters cannot be part of a test id: rename it"])
    assert_harmless(result)


def test_a_file_of_baselines_with_control_characters_is_refused(project):
    project.record(40.0)
    text = project.baseline.read_text()
    project.baseline.write_text(text.replace("580.1", r"\u001b[2J\u0007\n::set-output name=x::y"))
    result = project.run("-v")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*environment / driver': it has control characters*"])
    assert "\x1b" not in result.stdout.str()
    assert not any(line.lstrip().startswith("::") for line in result.outlines)


def test_lines_of_a_reason_become_one(project):
    project.record(40.0)
    project.edit("return x * 2\n", "return x + x\n")
    project.times(42.0)
    project.run("--update-baselines", "--reason", "exact\n::set-output").assert_outcomes(passed=2)
    assert project.records[-1]["reason"] == "exact ::set-output"


@pytest.mark.parametrize(
    "file",
    ["a" * 300 + ".py", "/".join(["a" * 200] * 30)],
)
def test_a_key_whose_file_no_system_can_have_is_stale(project, file):
    project.record(40.0)

    def add(data):
        data["entries"][f"{file}::test_it"] = data["entries"]["scale[n8]"]

    project.edit_baselines(add)
    result = project.run()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["stale: *::test_it: no such case is left*"])


def test_a_place_of_baselines_that_no_system_can_have(project):
    result = project.run("--perf-baseline", "a" * 300)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--perf-baseline: aaa*does not exist*"])
