"""`--perf-baseline`, and the comparison with what is recorded."""

import os

import pytest

from pytest_cutile.words.settings import RUN_VARIABLE


def test_no_baseline_is_said_and_is_no_failure(project):
    result = project.run()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["scale *n8 *40 us *2500 GB/s *52 % *no-baseline"])


def test_a_kernel_that_is_as_fast_as_recorded_passes(project):
    project.record(40.0)
    project.times(40.4)
    result = project.run()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["scale *40.4 us *2475 GB/s *52 % *+1.0 % *pass"])


def test_a_slower_kernel_fails_with_everything_that_is_needed(project):
    """Outside of git: stored times alone."""
    project.record(40.0)
    project.times(43.2, environment={"driver": "590.2", "tileiras": "13.4.92"})
    result = project.run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E   scale[[]n8[]] on sm_90 (NVIDIA H200) is 8.0% slower than its baseline in bursts.",
            "  cause       the code or the environment: no baseline kernel was measured with *",
            "  environment driver: 580.1 -> 590.2",
            "* current *baseline *change",
            "*burst: time per launch *43.2 us *40 us *+8.0 %",
            "rate, of the limit *2315 GB/s, 48 % *2500 GB/s, 52 %",
            "*measured *in 3 fresh processes, after a first one that is not counted",
            "*burst: processes within 0.0%, placements of the buffers within 0.0%",
            "*sustained: skipped, not limited by power",
            "  limit       5.5%, since other sessions have measured the stored times",
            "*baseline *stored times of baselines/sm_90-nvidia-h200.json (3 runs on 1 GPU)",
            "*pytest 'mykernels/scale.py::speed[[]n8[]]' --arch sm_90 \\",
            "*--update-baselines --reason 'why it is worse'",
        ]
    )
    result.stdout.fnmatch_lines(["scale *+8.0 % *regression"])


def test_a_passing_disturbance_fails_nothing(project):
    project.record(40.0)
    project.times(44.0, 40.1, 40.2)
    project.run().assert_outcomes(passed=2)


def test_a_faster_kernel_is_an_improvement(project):
    project.record(40.0)
    project.times(36.0)
    result = project.run()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["scale *-10.0 % *improvement"])


@pytest.mark.parametrize(
    "samples", [[20.0, 30.0, 40.0, 50.0, 60.0], [40.0] * 11 + [120.0] * 9, [28.0] * 8 + [84.0] * 2]
)
def test_samples_that_spread_never_pass(project, samples):
    project.record(40.0)
    project.times(samples)
    result = project.run("--perf-strict")
    result.assert_outcomes(passed=1, failed=1)


def test_the_margin_is_an_ini_option(paired):
    paired.times(42.4)
    paired.run("-o", "cutile_perf_margin=0.15", "--perf-strict").assert_outcomes(passed=2)


@pytest.mark.skipif(pytest.version_tuple < (9, 0), reason="pytest 9 reads the types of TOML")
@pytest.mark.parametrize("margin", ["0.15", "0"])
def test_keys_may_have_the_types_of_toml(paired, margin):
    (paired.path / "tox.ini").unlink()
    (paired.path / "pyproject.toml").write_text(
        "[tool.pytest]\ncutile_kernels = ['mykernels']\ncutile_compile_timeout = 60\n"
        f"cutile_perf_margin = {margin}\n"
    )
    paired.times(42.4)
    result = paired.run("--perf-strict")
    if margin == "0":
        result.stderr.fnmatch_lines(["*cutile_perf_margin = 0*: expected a positive number"])
    else:
        result.assert_outcomes(passed=2)


@pytest.mark.parametrize("value", ["0", "-1", "3", "much", ""])
def test_a_margin_that_is_no_fraction_is_a_usage_error(project, value):
    result = project.run("-o", f"cutile_perf_margin={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*cutile_perf_margin*expected*"])


def test_a_usage_error_leaves_no_trace_in_the_environment(project, monkeypatch):
    monkeypatch.delenv(RUN_VARIABLE, raising=False)
    project.run("-o", "cutile_perf_margin=much")
    assert RUN_VARIABLE not in os.environ


@pytest.mark.parametrize("key", ["cutile_perf_margn", "cutile-perf-margin"])
@pytest.mark.parametrize("where", ["option", "file"])
def test_an_ini_key_that_was_mistyped_is_a_usage_error(project, where, key):
    if where == "file":
        ini = project.path / "tox.ini"
        ini.write_text(ini.read_text() + f"\n{key} = 0.05\n")
    result = project.run(*(("-o", f"{key}=0.05") if where == "option" else ()))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = f"*the ini key '{key}' is unknown: did you mean 'cutile_perf_margin'?*"
    result.stderr.fnmatch_lines([said])


def test_none_compares_with_nothing(project):
    project.record(40.0)
    project.times(80.0)
    result = project.run("--perf-baseline", "none")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["scale *80 us*no-baseline"])


def test_another_directory_or_file_can_be_given(project):
    project.record(40.0)
    (project.path / "baselines").rename(project.path / "elsewhere")
    project.times(43.2)
    project.run("--perf-baseline", "elsewhere").assert_outcomes(passed=1, failed=1)
    file = "elsewhere/sm_90-nvidia-h200.json"
    project.run("--perf-baseline", file).assert_outcomes(passed=1, failed=1)


def test_a_path_that_does_not_exist_is_a_usage_error(project):
    result = project.run("--perf-baseline", "elsewhere")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--perf-baseline: elsewhere does not exist*; a revision of git is *=git:elsewhere"]
    )


def test_another_gpus_file_is_not_comparable(project):
    project.record(40.0)
    project.edit_baselines(lambda data: data.update(gpu="NVIDIA H100 80GB HBM3"))
    result = project.run("--perf-baseline", str(project.baseline))
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["scale *not-comparable"])


def test_other_work_is_not_comparable(project):
    project.record(40.0)
    text = project.baseline.read_text()
    project.baseline.write_text(text.replace('"bytes": 100000000.0', '"bytes": 90000000.0'))
    result = project.run()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["scale *not-comparable"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "*sm_90-nvidia-h200.json:1: not valid JSON*"),
        ("{\n<<<<<<< HEAD\n", "*sm_90-nvidia-h200.json:2: merge conflict*"),
        ('{"schema": 99}', "*sm_90-nvidia-h200.json:1: schema 99, this release reads 1. Use*"),
    ],
)
@pytest.mark.parametrize("update", [(), ("--update-baselines",)])
def test_a_file_that_cannot_be_used_fails_the_speed_tests_alone_and_stays(project, text, message, update):
    project.record(40.0)
    project.baseline.write_text(text)
    result = project.run(*update)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([message])
    assert project.baseline.read_text() == text


@pytest.mark.parametrize(
    ("times", "message", "reason"),
    [
        ([[]], "*the timer returned nothing as times*", "bad-samples"),
        ([["nan", 40.0]], "*the timer returned nan*not between*", "bad-samples"),
        ([[0.0]], "*the timer returned 0.0*", "bad-samples"),
        (["error"], "*the launch cannot be captured*", "not-timed"),
        ([2.0], "*5e+04 GB/s of at most 4800 GB/s is above what NVIDIA H200 can do*", "above-limit"),
    ],
)
def test_a_measurement_that_cannot_be_is_an_error_and_never_recorded(project, times, message, reason):
    project.times(*times)
    result = project.run("--update-baselines")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([message])
    result.stdout.fnmatch_lines([f"scale *speed: {reason}"])
    assert not project.baseline.exists()


def test_a_case_that_the_file_does_not_know_has_no_baseline(project):
    project.record(40.0)
    text = project.baseline.read_text()
    project.baseline.write_text(text.replace('"scale[n8]"', '"test_it.py::test_other"'))
    result = project.run("--perf-strict")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*no-baseline (no-entry): *has no entry for scale[[]n8[]]; record it: pytest *"]
    )
    project.baseline.write_text(text.replace('"scale[n8]"', '"other[n8]"'))
    result = project.run("--perf-strict")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*no-baseline (maybe-renamed): *, and one for other[[]n8[]], which is gone*"]
    )
    project.run("--update-baselines").stdout.fnmatch_lines(["*give --reason*"])


def test_the_summary_says_why_there_is_nothing_to_compare_with(project):
    result = project.run()
    result.stdout.fnmatch_lines(
        ["no-baseline: baselines/sm_90-nvidia-h200.json does not exist; record it: *"]
    )


def test_the_command_keeps_the_baselines_that_were_given(project):
    project.record(40.0)
    (project.path / "baselines").rename(project.path / "elsewhere")
    project.times(43.2)
    result = project.run("--perf-baseline", "elsewhere")
    result.stdout.fnmatch_lines(["*speed[[]n8[]]' --perf-baseline=elsewhere --arch sm_90 \\"])


def test_what_is_seen_on_the_gpu_makes_a_slower_case_doubtful(project):
    project.record(40.0)
    project.times(60.0, problems=["1 other process on the GPU"])
    result = project.run()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["inconclusive: scale[[]n8[]] looks slower, but the GPU was disturbed: 1 other process on the GPU; *"]
    )
    project.run("--perf-strict").assert_outcomes(passed=1, failed=1)


def test_a_timer_that_crashes_is_no_pass(project):
    project.times("crash")
    result = project.run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["scale *raised"])


def test_the_summary_shows_the_measurement_that_the_verdict_is_about(project):
    project.record(40.0)
    project.times(48.0, 40.1, 40.1)
    project.run().stdout.fnmatch_lines(["scale *40.1 us *+0.? % *pass"])


def test_what_is_seen_at_one_place_counts(project):
    project.record(40.0)
    project.conftest(
        """
        def problems(self):
            return ["1 other process on the GPU"] if self.blocks % PLACEMENTS == 3 else []

        FileTimer.problems = problems
        """
    )
    project.times(60.0)
    result = project.run()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["inconclusive: scale[[]n8[]] looks slower, but the GPU was disturbed: 1 other *"]
    )


KEPT = """
KEPT = {}


def scale(x):
    key = str(x.tolist())
    KEPT.setdefault(key, [0, None])
    KEPT[key][0] += 1
    if KEPT[key][0] < 3:
        KEPT[key][1] = x * 2
    return KEPT[key][1]
"""
"""Computes a few times for each input, and returns what it has kept from then on."""


def test_timed_launches_that_compute_nothing_fail(project):
    project.record(40.0)
    project.edit("\ndef scale(x):\n    return x * 2\n", KEPT)
    result = project.run("--perf-all", gates="cutile_speed")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*scale[[]n8[]]: the timed launches wrote none of 8 elements of output, *",
            "*What was timed is not the work that was checked: *",
            "scale *other-result*",
        ]
    )
