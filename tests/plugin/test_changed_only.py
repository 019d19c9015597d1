"""`--changed-only`: which cases are left out, and what their fingerprint is made of."""

import pytest

pytestmark = pytest.mark.slow


def two_kernels(static) -> None:
    other = static.text.replace('name="mm"', 'name="other"')
    (static.project.path / "mykernels" / "other.py").write_text(other)


def test_changed_only_leaves_out_what_is_unchanged(static):
    two_kernels(static)
    static.record()
    static.change(("acc.astype(C.dtype)", "(acc + 1.0).astype(C.dtype)"))
    result = static.run("--changed-only", "-rA", gates="")
    result.assert_outcomes(passed=1, failed=1, skipped=2)  # it is wrong: its code and speed are not judged
    result.stdout.fnmatch_lines(
        ["cutile: 4 tests left out, of cases that compile to the same in the baselines"]
    )
    assert "other.py" not in result.stdout.str()
    static.change()
    # Nothing to do is a success; nothing selected is not.
    result = static.run("--changed-only", gates="")
    assert result.ret == pytest.ExitCode.OK
    assert static.run("--changed-only", "-k", "nosuch").ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result = static.run("--changed-only", "-n", "1", "-p", "no:benchmark", gates="")
    assert result.ret == pytest.ExitCode.OK


def test_a_change_of_the_launch_alone_is_a_change(static):
    static.record()
    static.change(('params={"n": 256}', 'params={"n": 128}'))
    static.run("--changed-only").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "pair",
    [
        ('n, n), "float16"), make', 'n, 2 * n), "float16")[:, ::2], make'),
        ("TILE_N, TILE_K))", "TILE_N, TILE_K), programmatic_dependent_launch=True)"),
        ("(ct.cdiv(a.shape[0], TILE_M), ct", "(ct.cdiv(a.shape[0], TILE_M) + 1, ct"),
    ],
    ids=["strides", "dependent", "grid"],
)
def test_what_a_launch_is_given_is_part_of_the_fingerprint(static, pair):
    static.record()
    static.change(pair)
    assert "unchanged" not in static.run().stdout.str()


def test_changed_only_runs_what_has_no_baseline_or_does_not_compile(static):
    result = static.run("--changed-only")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("cutile: 0 *")
    static.record()
    static.change(("ct.mma(a, b, acc)", "ct.mma(a, b)"))
    static.run("--changed-only").assert_outcomes(failed=1)


def test_changed_only_needs_baselines(static):
    result = static.run("--changed-only", "--perf-baseline", "none")
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_bad_file_with_xdist_and_changed_only(static):
    static.baseline.parent.mkdir()
    static.baseline.write_text("{")
    result = static.run("-n", "1", "-p", "no:benchmark", "--changed-only")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*sm_90-static.json:1: not valid JSON*"])
