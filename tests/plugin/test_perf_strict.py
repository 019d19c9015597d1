"""`--perf-strict`: what says nothing about the speed fails."""

import pytest


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


def test_a_pass_passes(project):
    project.record(40.0)
    project.run("--perf-strict").assert_outcomes(passed=2)


def test_recording_a_first_baseline_is_no_failure(project):
    project.run("--perf-strict", "--update-baselines").assert_outcomes(passed=2)
