"""Today's kernel beside the baseline kernel of the recorded commit, or of `--perf-baseline git:REV`."""

import re
import shutil

import pytest

from tests.plugin.forked import run_forked

SLOW = {
    "burst": {"us": 42.4, "sustained": 50.0},
    "sustained": {"us": 40.0, "sustained": 54.0},
    "both": {"us": 42.4, "sustained": 54.0},
}


def unwrapped(result):
    """Return the output with its wrapped lines joined."""
    return " ".join(result.stdout.str().split())


# -- slower, or not -----------------------------------------------------------------------------------


@pytest.mark.parametrize("regime", SLOW)
def test_a_kernel_slower_in_one_regime_is_a_regression(paired, regime):
    paired.times(SLOW[regime]["us"], sustained=SLOW[regime]["sustained"])
    result = paired.run()
    result.assert_outcomes(passed=1, failed=1)
    change = {"burst": "6.0", "sustained": "8.0", "both": "6.0"}[regime]  # bursts decide
    result.stdout.fnmatch_lines([f"E   scale[[]n8[]] on sm_90 (NVIDIA H200) is {change}% slower than its *"])
    result.stdout.fnmatch_lines(["scale *regression"])


def test_the_message_has_the_evidence_for_both_kernels(paired):
    commit = paired.data["sessions"][paired.records[0]["session"]]["commit"]
    paired.times(42.4, sustained=54.0)
    result = paired.run()
    result.stdout.fnmatch_lines(
        [
            "E   scale[[]n8[]] on sm_90 (NVIDIA H200) is 6.0% slower than its baseline in bursts.",
            "  cause       the code: the baseline kernel, interleaved with it in this run, is faster",
            "  compiler    not compared: it launches no cuTile kernel",
            "* current *baseline kernel *change *95 % interval",
            "*burst: time per launch *42.4 us *40 us *+6.0 % *+5.? % to +6.? %",
            "rate, of the limit *2358 GB/s, 49 % *2500 GB/s, 52 %",
            "*sustained: time per launch *54 us *50 us *+8.0 %",
            "*SM clock *1605 MHz *1755 MHz",
            "*power *699 W *640 W",
            "*measured *in 3 fresh processes, after a first one that is not counted",
            "*burst: processes within 0.0%, placements of the buffers within 0.0%",
            "*sustained: in the first process alone, no evidence",
            "  limit       a slowdown of 1.0%, if noise cannot explain it; one of 2.0% is not to be missed",
            f"*baseline *the kernel of {commit[:12]}, which baselines/sm_90-nvidia-h200.json was recorded *",
            "*pytest 'mykernels/scale.py::speed[[]n8[]]' --arch sm_90 \\",
            "*--update-baselines --reason 'why it is worse'",
        ]
    )


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        ({"us": 40.0, "sustained": 50.0}, "pass"),
        ({"us": 40.2, "sustained": 50.2}, "pass"),
        ({"us": 36.0, "sustained": 45.0}, "improvement"),
        ({"us": 40.0, "sustained": 46.0}, "improvement"),
    ],
)
def test_a_kernel_that_is_not_slower_passes(paired, times, verdict):
    paired.times(times["us"], sustained=times["sustained"])
    result = paired.run("--perf-strict")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines([f"scale *{verdict}"])


def test_a_slow_first_measurement_is_no_evidence(paired):
    paired.times(44.0, 40.1, 40.1)
    result = paired.run("--perf-strict")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["scale *40.1 us *+0.? % *pass"])


@pytest.mark.slow
def test_processes_that_disagree_are_inconclusive_and_say_what_could_have_been_seen(paired):
    paired.times(41.4, *[41.6, 39.6] * 6)
    result = paired.run()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["scale *inconclusive"])
    assert re.search(
        r"inconclusive: scale\[n8\]: 12 fresh processes measured \+\d\.\d %; burst: only a slowdown of "
        r"\d\.\d% could have been seen for certain",
        unwrapped(result),
    )
    paired.run("--perf-strict").assert_outcomes(passed=1, failed=1)


def test_a_kernel_that_is_slow_in_one_launch_of_five_is_slower_by_its_mean(paired):
    paired.times([40.0, 40.0, 40.0, 40.0, 120.0] * 4)
    result = paired.run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*is 40.0% slower than its baseline*"])


@pytest.mark.parametrize("slow", [44.0, 120.0])
def test_a_kernel_that_is_slow_in_the_first_and_every_other_process_never_passes(paired, slow):
    paired.times(*[slow, 40.0] * 8)
    result = paired.run("--perf-strict")
    result.assert_outcomes(passed=1, failed=1)


def test_a_slowdown_under_load_that_nobody_could_see_is_told(project):
    project.commit()
    project.record(40.0, sustained="unknown")
    project.edit("return x * 2", "return 2 * x")
    project.times(40.0, sustained="unknown")
    result = project.run("--perf-strict")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["not measured under sustained load: 1 case: NVML tells nothing of power"])


def test_what_disturbs_both_kernels_alike_does_not_hide_a_slowdown(paired):
    paired.times(63.6, baseline=60.0, problems=["1 other process on the GPU"])
    result = paired.run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*GPU *1 other process on the GPU (disturbed both kernels alike)"])


# -- both slower than recorded -------------------------------------------------------------------------


@pytest.mark.parametrize("us", [44.0, 44.2])
def test_both_kernels_slower_in_a_new_environment_is_a_regression_of_the_environment(paired, us):
    paired.times(us, baseline=44.0, environment={"driver": "590.2", "tileiras": "13.4.92"})
    result = paired.run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E   scale[[]n8[]] on sm_90 (NVIDIA H200) is 10.?% slower than recorded.",
            "  cause       the environment, not the code: its baseline kernel is as slow now",
            "  environment driver: 580.1 -> 590.2",
            "*--update-baselines --reason 'why it is worse'",
        ]
    )


@pytest.mark.slow
def test_both_kernels_slower_in_the_recorded_environment_is_the_gpus_condition(paired):
    paired.times(44.0, baseline=44.0)
    result = paired.run()
    result.assert_outcomes(passed=2)
    assert "inconclusive: scale[n8]: it and its baseline kernel are +10.0 % against" in unwrapped(result)
    strict = paired.run("--perf-strict")
    strict.assert_outcomes(passed=1, failed=1)
    strict.stdout.fnmatch_lines(["*inconclusive (disturbed)*"])


def test_an_environment_that_changed_within_the_margin_passes(paired):
    paired.times(41.6, baseline=41.6, environment={"driver": "590.2", "tileiras": "13.4.92"})
    paired.run("--perf-strict").assert_outcomes(passed=2)


def test_what_the_reference_workload_became_slower_by_is_taken_off(project):
    project.commit()
    project.record(40.0, workload_us=100.0)
    project.commit()
    project.edit("return x * 2", "return x + x")
    project.times(44.0, baseline=44.0, workload_us=110.0)
    project.run("--perf-strict").assert_outcomes(passed=2)


def test_a_slower_environment_is_seen_although_the_code_is_unchanged(project):
    project.commit()
    project.record()
    project.times(44.0, environment={"driver": "590.2", "tileiras": "13.4.92"})
    result = project.run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E   scale[[]n8[]] on sm_90 (NVIDIA H200) is 10.0% slower than recorded.",
            "  cause       the environment, not the code: the code is as recorded",
            "  environment driver: 580.1 -> 590.2",
        ]
    )


# -- no baseline kernel --------------------------------------------------------------------------------


def forget_commit(paired):
    """Let the recorded commit be unknown, and no other one have added the session."""
    paired.edit_baselines(
        lambda data: [
            session.update(commit="1234567890abcdef1234567890abcdef12345678")
            for session in data["sessions"].values()
        ]
    )
    paired.git("checkout", "-q", "--orphan", "other")
    paired.git("rm", "-qf", "--cached", "-r", "baselines")
    (paired.path / ".git" / "info" / "exclude").write_text("baselines\n")
    paired.commit()


def rename_case(paired):
    paired.edit('name="scale"', 'name="other"')
    paired.edit_baselines(
        lambda data: data["entries"].update({"other[n8]": data["entries"].pop("scale[n8]")})
    )


def change_signature(paired):
    paired.edit("def scale(x):", "def scale(x, *, factor=2):")
    paired.edit("return (make_tensor", "return dict(factor=2, x=make_tensor")
    paired.edit('"float32"),)', '"float32"))')
    paired.edit("reference=lambda x: x * 2", "reference=lambda x, factor: x * 2")


def raise_then(project):
    """Record a launcher that has begun to raise since."""
    project.edit("return x * 2", "raise_if_broken(); return x * 2")
    project.edit("def scale(x):", RAISES)
    project.commit()
    project.record()
    project.commit()
    (project.path / "broken").touch()
    project.edit("raise_if_broken(); return x * 2", "return x + x")


RAISES = """
def raise_if_broken():
    import pathlib
    if (pathlib.Path.cwd() / "broken").exists():
        raise ValueError("not with this driver")

def scale(x):"""

IS_BROKEN = """
def is_broken():
    import pathlib
    return (pathlib.Path.cwd() / "broken").exists()

def scale(x):"""

NO_KERNEL = {
    "commit gone": (forget_commit, "git finds no commit '1234567890ab*"),
    "renamed": (rename_case, "*, the commit of the baseline kernel, has no other[[]n8[]]*"),
    "signature": (change_signature, "the launcher of * raised TypeError*"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", NO_KERNEL)
def test_without_a_baseline_kernel_stored_times_decide(paired, what):
    change, why = NO_KERNEL[what]
    change(paired)
    key = "other[[]n8[]]" if what == "renamed" else "scale[[]n8[]]"
    paired.times(40.4)
    paired.run("--perf-strict").assert_outcomes(passed=2)
    paired.times(41.4)
    result = paired.run()
    result.assert_outcomes(passed=2)
    output = pytest.LineMatcher([unwrapped(result)])
    output.fnmatch_lines(
        [f"*inconclusive: {key}: stored times show +3.5 %, and alone they show only *; {why}"]
    )
    paired.run("--perf-strict").stdout.fnmatch_lines(["*inconclusive (unanchored)*"])
    paired.times(42.8)
    result = paired.run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*is 7.0% slower than its baseline*"])
    output = pytest.LineMatcher([unwrapped(result)])
    cause = "the code or this GPU's condition: no baseline kernel was measured with it"
    output.fnmatch_lines([f"*cause {cause} ({why}*baseline stored times of baselines/*(3 runs on 1 GPU)*"])


def test_a_baseline_launcher_that_raises_now_is_named(project):
    raise_then(project)
    project.times(41.4)
    result = project.run()
    result.assert_outcomes(passed=2)
    said = r"inconclusive: scale.*the launcher of .* raised ValueError: not with this driver"
    assert re.search(said, unwrapped(result))


def test_a_baseline_kernel_that_computes_something_else_now_is_no_evidence(project):
    project.edit("def scale(x):", "def scale(x):\n    if is_broken():\n        return x * 0")
    project.edit("def scale(x):", IS_BROKEN)
    project.commit()
    project.record()
    project.commit()
    (project.path / "broken").touch()
    project.edit("    if is_broken():\n        return x * 0\n", "")
    project.times(40.0, baseline=20.0)
    project.run("--perf-strict").assert_outcomes(passed=2)
    project.times(41.4, baseline=42.0)
    result = project.run()
    result.assert_outcomes(passed=2)
    said = unwrapped(result)
    assert "inconclusive: scale[n8]: stored times show +3.5 %" in said
    assert "more than 10 % of the baseline kernel's outputs differ" in said


def test_outside_of_git_stored_times_decide_and_the_message_says_so(project):
    project.record()
    project.times(41.4)
    result = project.run()
    result.assert_outcomes(passed=2)
    assert "it was recorded outside of git, so there is no baseline kernel" in unwrapped(result)
    project.times(42.8)
    project.run().assert_outcomes(passed=1, failed=1)


def test_a_baseline_of_uncommitted_changes_has_no_kernel(project):
    project.commit()
    project.edit("return x * 2", "return 2 * x")
    project.times(40.0)
    result = project.run("--update-baselines")
    assert "warning: recorded from uncommitted changes of" in unwrapped(result)
    project.times(41.4)
    result = project.run()
    result.assert_outcomes(passed=2)
    said = unwrapped(result)
    assert "git finds no commit that added the record: commit the kernel together with the baselines" in said
    assert "git fetch --unshallow" in said


def test_uncommitted_changes_that_are_committed_with_their_baselines_have_one(project):
    project.commit()
    project.edit("return x * 2", "return 2 * x")
    project.run("--update-baselines").assert_outcomes(passed=2)
    added = project.commit()
    project.edit("return 2 * x", "return x + x")
    project.times(42.4)
    result = project.run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([f"*the kernel of {added[:12]}, which *"])


def test_a_commit_that_has_other_code_than_was_recorded_is_no_baseline(project):
    project.commit()
    project.edit("return x * 2", "return 2 * x")
    project.run("--update-baselines").assert_outcomes(passed=2)
    project.edit("return 2 * x", "return x + x")  # between recording and committing
    added = project.commit()
    project.times(41.4)
    result = project.run()
    result.assert_outcomes(passed=2)
    said = unwrapped(result)
    assert "inconclusive: scale[n8]: stored times show +3.5 %" in said
    why = "which added the record to the baselines, is not the one that was recorded: record it again"
    assert f"the code at {added[:12]}, {why}" in said


def test_a_shallow_clone_says_how_to_deepen(paired):
    paired.commit()
    elsewhere = paired.path.parent / f"{paired.path.name}-elsewhere"
    paired.git("clone", "-q", "--depth=1", f"file://{paired.path}", str(elsewhere))
    shutil.rmtree(paired.path / ".git")
    (elsewhere / ".git").rename(paired.path / ".git")
    paired.times(41.4)
    result = paired.run()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["inconclusive: scale[[]n8[]]: stored times show*"])
    assert "git fetch --unshallow" in unwrapped(result)


def test_after_a_squash_merge_the_commit_that_added_the_session_is_the_baseline(paired):
    commit = paired.data["sessions"][paired.records[0]["session"]]["commit"]
    paired.git("stash", "-q")
    paired.git("checkout", "-q", "--orphan", "squashed")
    squashed = paired.commit()
    paired.git("branch", "-qD", "main")
    paired.git("stash", "pop", "-q")
    paired.git("stash", "clear")
    paired.git("reflog", "expire", "--expire=now", "--all")
    paired.git("gc", "-q", "--prune=now")
    paired.times(42.4)
    result = paired.run()
    result.assert_outcomes(passed=1, failed=1)
    assert commit[:12] not in result.stdout.str()
    result.stdout.fnmatch_lines([f"*the kernel of {squashed[:12]}, which *"])


# -- `--perf-baseline git:REV` ---------------------------------------------------------------------------


@pytest.fixture
def repository(project):
    """A project whose kernel has changed since the commit, without baselines."""
    project.commit()
    project.edit("return x * 2", "return x + x")
    return project


def test_a_revision_is_compared_with_and_nothing_is_stored(repository):
    repository.times(42.4)
    result = repository.run("--perf-baseline=git:HEAD")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E   scale[[]n8[]] on sm_90 (NVIDIA H200) is 6.0% slower than HEAD in bursts.",
            "*burst: time per launch *42.4 us *40 us *+6.0 % *",
            "*baseline *the kernel of HEAD, interleaved on the same buffers",
            "Reproduce*:",
            "  pytest 'mykernels/scale.py::speed?n8?' *--perf-baseline=git:HEAD --arch sm_90",
        ]
    )
    assert "--update-baselines" not in result.stdout.str()
    assert not repository.baseline.exists()


@pytest.mark.parametrize(("us", "verdict"), [(40.0, "pass"), (40.3, "pass"), (36.0, "improvement")])
def test_a_kernel_that_is_not_slower_than_the_revision_passes(repository, us, verdict):
    repository.times(us)
    result = repository.run("--perf-baseline=git:HEAD", "--perf-strict")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines([f"scale *{verdict}"])


def test_the_other_revisions_launcher_is_interleaved(project):
    project.edit("return x * 2", "print('HEAD'); return x * 2")
    project.commit()
    project.edit("print('HEAD')", "print('HERE')")
    result = project.run("--perf-baseline=git:HEAD", "-s", "-p", "no:benchmark", gates="cutile_speed")
    text = result.stdout.str()
    assert text.count("HEAD\nHERE\nHEAD\nHERE") + text.count("HERE\nHEAD\nHERE\nHEAD") >= 2


def test_a_kernel_that_the_revision_lacks_has_no_baseline(repository):
    text = (repository.path / "mykernels" / "scale.py").read_text()
    repository.kernel(text.replace('name="scale"', 'name="new"'), name="new")
    result = repository.run("--perf-baseline=git:HEAD")
    result.stdout.fnmatch_lines(["new *no-baseline", "scale *pass", "no-baseline: HEAD has no new[[]n8[]]"])


def test_a_launcher_that_does_not_know_the_case_is_no_baseline(repository):
    change_signature(repository)
    result = repository.run("--perf-baseline=git:HEAD")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["scale *no-baseline", "no-baseline: the launcher of HEAD (*) raised TypeError*"]
    )


def test_the_fixture_perf_finds_the_function_in_the_revision(repository):
    repository.pytester.makepyfile(
        test_mine="""
        import torch
        from mykernels.scale import scale

        def test_function(perf): perf(scale, torch.ones(8), bytes=1e8)
        def test_lambda(perf): perf(lambda: None, bytes=1e8)
        """
    )
    result = repository.run("--perf-baseline=git:HEAD", "test_mine.py", "-p", "no:benchmark", gates="")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*test_function *pass", "*test_lambda *no-baseline"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("git:", "*names no revision*"),
        ("git:nowhere", "*git:nowhere*"),
    ],
)
def test_a_revision_that_is_none_is_a_usage_error(repository, value, message):
    result = repository.run(f"--perf-baseline={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_a_revision_stores_nothing(repository):
    result = repository.run("--perf-baseline=git:HEAD", "--update-baselines")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*leave out --update-baselines*"])


OPERATOR = """
import torch
import pytest_cutile

@torch.library.custom_op("cutile_tests_paired::scale", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x * 2

def scale(x):
    return torch.ops.cutile_tests_paired.scale(x)
"""


def test_an_operator_that_the_baseline_would_register_again_stays_todays(project):
    file = project.path / "mykernels" / "scale.py"
    text = file.read_text().replace("\nimport pytest_cutile\n", OPERATOR, 1)
    file.write_text(text.replace("def scale(x):\n    return x * 2\n", ""))
    project.commit()
    assert run_forked(project.pytester, "-m", "cutile_speed", "--update-baselines").ret == 0
    project.commit()
    project.edit("return x * 2", "return x + x")
    project.times(44.0, baseline=44.0)  # whoever timed one operator twice would see no change
    result = run_forked(project.pytester, "-m", "cutile_speed")
    result.assert_outcomes(failed=1)
    output = pytest.LineMatcher([unwrapped(result)])
    output.fnmatch_lines(["*10.0% slower*registers the operator cutile_tests_paired::scale *"])


def test_a_module_that_cannot_be_asked_for_anything_does_not_matter(paired):
    """As transformers' aliases, which import what they stand for: that may need other packages."""
    paired.conftest(
        """
        import sys
        import types

        def import_target(name):
            raise ModuleNotFoundError("No module named 'torchvision'")

        alias = types.ModuleType("alias")
        alias.__file__ = None
        alias.__getattr__ = import_target
        sys.modules["alias"] = alias
        """
    )
    paired.times(44.0, baseline=40.0)
    result = paired.run()
    result.assert_outcomes(passed=1, failed=1)
    assert "the baseline kernel, interleaved with it in this run, is faster" in unwrapped(result)


def test_what_work_raises_is_a_result_with_a_reason(project):
    project.edit(
        "work=lambda n: pytest_cutile.Work(bytes=1e8)", "work=lambda n: pytest_cutile.Work(bytes=1e8 / 0)"
    )
    result = project.run("--kernel-json=run.json")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["scale *n8 *raised"])
    assert '"raised"' in (project.path / "run.json").read_text()
