"""`--update-baselines` and `--reason`."""

import json
import re
import subprocess

import pytest


def entry(project):
    return json.loads(project.baseline.read_text())["entries"]["scale[n8]"]


def unwrapped(result: pytest.RunResult) -> pytest.LineMatcher:
    """Return what was printed, with the lines of notes joined that the terminal's width has broken."""
    return pytest.LineMatcher(result.stdout.str().replace("\n  ", " ").splitlines())


def test_a_new_case_is_recorded_with_its_provenance(project):
    project.record(40.0)
    recorded = entry(project)
    assert recorded["work"] == {"bytes": 1e8, "flops": 0.0}
    assert recorded["environment"] == {"driver": "580.1", "tileiras": "13.4.92"}
    assert recorded["provenance"]["by"].startswith("pytest-cutile ")
    assert [run["median_us"] for run in recorded["runs"]] == pytest.approx([40.0] * 3)
    assert {run["gpu_uuid"] for run in recorded["runs"]} == {"GPU-0"}
    assert len({run["session"] for run in recorded["runs"]}) == 1


def test_the_reference_workload_is_recorded(project):
    project.times(40.0, reference_workload=True, interleaved_us=51.5)
    project.run("--update-baselines").assert_outcomes(passed=2)
    assert entry(project)["reference_workload"] == "a workload"
    assert {run["workload_us"] for run in entry(project)["runs"]} == {51.5}


def test_what_was_recorded_is_printed(project):
    result = project.run("--update-baselines")
    unwrapped(result).fnmatch_lines(["scale[[]n8[]]: 3 runs recorded in baselines/sm_90-nvidia-h200.json"])


def test_unchanged_runs_are_added(project):
    project.record(40.0)
    project.record(40.2)
    project.record(40.1)
    medians = [run["median_us"] for run in entry(project)["runs"]]
    assert medians == pytest.approx([40.0] * 3 + [40.2] * 3 + [40.1] * 3, rel=1e-3)
    assert len({run["session"] for run in entry(project)["runs"]}) == 3


def test_twelve_runs_are_enough(project):
    for _ in range(4):
        project.record(40.0)
    result = project.run("--update-baselines")
    result.assert_outcomes(passed=2)
    unwrapped(result).fnmatch_lines(["scale[[]n8[]]: it has its 12 runs of this GPU*: none added in *"])
    assert len(entry(project)["runs"]) == 12


def test_a_faster_one_replaces(project):
    project.record(40.0)
    project.times(36.0)
    result = project.run("--update-baselines")
    result.assert_outcomes(passed=2)
    unwrapped(result).fnmatch_lines(["scale[[]n8[]]: 40 us -> 36 us (-10.0 %) in baselines/*"])
    assert [run["median_us"] for run in entry(project)["runs"]] == [36.0] * 3


@pytest.fixture
def gpus(project, monkeypatch):
    """A project of a clean commit, and a way to choose the GPU that is measured."""
    conftest = project.path / "conftest.py"
    gpu = 'uuid=__import__("os").environ["GPU"]'
    conftest.write_text(conftest.read_text().replace('uuid="GPU-0"', gpu))
    commit_all(project)

    def choose(uuid):
        monkeypatch.setenv("GPU", uuid)

    choose("GPU-0")
    return choose


SAME = ", faster by their GPU alone: the code is the same"


def test_a_faster_gpu_replaces_no_runs(project, gpus):
    for _ in range(3):
        project.record(50.0)
    gpus("GPU-1")
    project.times(47.0)
    result = project.run("--update-baselines")
    unwrapped(result).fnmatch_lines([f"*: 50 us -> 47 us (-6.0 %): 3 runs of 47 us added, 12 now{SAME} in *"])
    assert [run["median_us"] for run in entry(project)["runs"]] == [50.0] * 9 + [47.0] * 3


def test_a_gpu_sees_how_its_own_runs_change(project, gpus):
    """A GPU is judged by its own runs: the mean of both GPUs would show half of a change."""
    project.record(50.0)
    gpus("GPU-1")
    project.record(48.0)
    project.times(48.4)
    result = project.run("--update-baselines")
    unwrapped(result).fnmatch_lines(["*: 48 us -> 48.2 us (+0.4 %): 3 runs of 48.4 us added, 9 now in *"])
    project.times(50.0)
    result = project.run("--update-baselines")
    unwrapped(result).fnmatch_lines(["*give --reason TEXT to accept 48.2 us -> 50 us (+3.7 %)*"])


def test_each_gpu_has_room_for_its_runs(project, gpus):
    """A GPU is compared only with its own runs, so runs of other GPUs must not keep them out."""
    for _ in range(4):
        project.record(50.0)
    gpus("GPU-1")
    for _ in range(4):
        project.record(50.2)
    assert [run["gpu_uuid"] for run in entry(project)["runs"]] == ["GPU-0"] * 12 + ["GPU-1"] * 12
    before = project.baseline.read_text()
    result = project.run("--update-baselines")
    unwrapped(result).fnmatch_lines(
        ["*: it has its 12 runs of this GPU, and these are no other: none added*"]
    )
    assert project.baseline.read_text() == before


def test_a_gpu_that_is_faster_than_its_own_runs_replaces_these(project, gpus):
    """No other GPU explains the gain. The code is the same: other GPUs would fail without their runs."""
    project.record(50.0)
    gpus("GPU-1")
    project.record(50.0)
    project.times(47.0)
    stored = project.baseline.read_text()
    project.baseline.write_text(stored.replace('"provenance": {', '"provenance": {"drift": "0.00400", '))
    result = project.run("--update-baselines")
    said = "scale[[]n8[]]: 50 us -> 47 us (-6.0 %), the runs of other GPUs stay in *"
    unwrapped(result).fnmatch_lines([said])
    assert entry(project)["provenance"]["drift"] == "0.00400"  # theirs
    assert [run["median_us"] for run in entry(project)["runs"]] == [50.0] * 3 + [47.0] * 3
    project.record(44.0)  # further than GPUs differ: other GPUs' runs are of no use
    assert [run["median_us"] for run in entry(project)["runs"]] == [44.0] * 3


def test_a_faster_commit_replaces_the_runs_of_all_gpus(project, gpus):
    project.record(50.0)
    gpus("GPU-1")
    project.record(50.0)
    commit_all(project)
    project.record(47.0)
    assert [run["median_us"] for run in entry(project)["runs"]] == [47.0] * 3


@pytest.mark.parametrize(("gpu", "us"), [("GPU-0", 47.0), ("GPU-1", 44.0)], ids=["same GPU", "too far"])
def test_what_no_gpu_explains_replaces(project, gpus, gpu, us):
    project.record(50.0)
    gpus(gpu)
    project.record(us)
    assert [run["median_us"] for run in entry(project)["runs"]] == [us] * 3


def test_a_faster_commit_replaces_on_any_gpu(project, gpus):
    project.record(50.0)
    commit_all(project)
    gpus("GPU-1")
    project.record(47.0)
    assert [run["median_us"] for run in entry(project)["runs"]] == [47.0] * 3


def test_a_reason_is_that_of_the_gpu_it_was_given_on(project, gpus):
    """The reason covers no other GPU: a suspect on another GPU is compared with that GPU's runs."""
    project.record(50.0)
    first = entry(project)["provenance"]["commit"]
    commit_all(project)
    gpus("GPU-1")
    project.times(53.0)
    result = project.run("--update-baselines", "--reason", "exact division")
    unwrapped(result).fnmatch_lines(["*: 50 us -> 53 us (+6.0 %), the runs of other GPUs stay in *"])
    accepted_entry = entry(project)
    assert accepted_entry["provenance"]["commit"] == first
    assert "reason" not in accepted_entry["provenance"]
    assert [run["median_us"] for run in accepted_entry["runs"]] == [50.0] * 3 + [53.0] * 3
    accepted = accepted_entry["runs"][-1]
    assert accepted["reason"] == "exact division"
    assert accepted["commit"] not in ("", first)
    project.record(53.1)  # more of what was accepted
    assert [run.get("reason") for run in entry(project)["runs"]] == [None] * 3 + ["exact division"] * 6
    project.run().assert_outcomes(passed=2)
    gpus("GPU-0")
    project.run().assert_outcomes(passed=1, failed=1)
    project.run("--update-baselines", "--reason", "here, too")  # now nobody is left whose commit is the first
    assert entry(project)["provenance"]["commit"] == accepted["commit"]
    assert entry(project)["provenance"]["reason"] == "here, too"
    assert len(entry(project)["runs"]) == 9


@pytest.mark.parametrize("us", [40.0, 44.0], ids=["as fast", "slower"])
def test_runs_of_other_gpus_that_are_of_something_else_are_not_dropped_in_silence(project, gpus, us):
    project.record(40.0)
    gpus("GPU-1")
    project.times(us, environment=NEW)
    result = project.run("--update-baselines", "--reason", "driver 590")
    unwrapped(result).fnmatch_lines(["*; the 3 runs of other GPUs are dropped* in baselines/*"])
    unwrapped(result).fnmatch_lines(["*driver: 580.1 -> 590.2*"])
    assert [run["median_us"] for run in entry(project)["runs"]] == [us] * 3


def test_a_slower_one_needs_a_reason(project):
    project.record(40.0)
    before = project.baseline.read_text()
    project.times(44.0)
    result = project.run("--update-baselines")
    result.assert_outcomes(passed=1, failed=1)
    unwrapped(result).fnmatch_lines(
        ["*not recorded: it is slower; give --reason TEXT to accept 40 us -> 44 us (+10.0 %)*"]
    )
    assert project.baseline.read_text() == before


def test_a_slower_one_with_a_reason_is_recorded_and_keeps_the_reason(project):
    project.record(40.0)
    project.times(44.0)
    result = project.run("--update-baselines", "--reason", "exact division")
    result.assert_outcomes(passed=2)
    unwrapped(result).fnmatch_lines(["scale[[]n8[]]: 40 us -> 44 us (+10.0 %)*"])
    assert entry(project)["provenance"]["reason"] == "exact division"


def test_a_reason_stays_that_of_the_runs_it_was_given_for(project):
    project.record(40.0)
    project.times(44.0)
    project.run("--update-baselines", "--reason", "exact division")
    project.run("--update-baselines", "--reason", "another one")
    assert len(entry(project)["runs"]) == 6
    assert entry(project)["provenance"]["reason"] == "exact division"


def test_a_busy_or_throttled_gpu_records_nothing(project):
    project.times(40.0, problems=["1 other process on the GPU"])
    result = project.run("--update-baselines")
    result.assert_outcomes(passed=1, failed=1)
    unwrapped(result).fnmatch_lines(["*scale[[]n8[]]: not recorded: 1 other process on the GPU*"])
    assert not project.baseline.exists()


NEW = {"driver": "590.2", "tileiras": "13.4.92"}


def test_a_new_environment_starts_the_runs_anew(project):
    project.record(40.0)
    project.times(39.9, environment=NEW)
    result = project.run("--update-baselines")
    unwrapped(result).fnmatch_lines(
        ["*40 us -> 39.9 us (-0.? %), other conditions (driver: 580.1 -> 590.2)*"]
    )
    assert [run["median_us"] for run in entry(project)["runs"]] == [39.9] * 3


def test_a_new_environment_is_no_way_to_get_slower_unasked(project):
    project.record(40.0)
    project.times(41.2, environment=NEW)
    result = project.run("--update-baselines")
    result.assert_outcomes(passed=1, failed=1)
    unwrapped(result).fnmatch_lines(["*not recorded: it is slower*"])
    project.run("--update-baselines", "--reason", "driver 590").assert_outcomes(passed=2)
    assert entry(project)["provenance"]["reason"] == "driver 590"


def test_small_steps_do_not_add_up(project):
    project.record(40.0)
    for step in range(1, 12):
        project.times(40.0 * 1.0045**step)
        project.run("--update-baselines")
    assert max(run["median_us"] for run in entry(project)["runs"]) <= 41.2
    project.times(42.0)
    project.run().assert_outcomes(passed=1, failed=1)


def test_other_work_is_recorded_anew_with_a_reason(project):
    project.record(40.0)
    project.baseline.write_text(project.baseline.read_text().replace("100000000.0", "90000000.0"))
    project.times(80.0)
    result = project.run("--update-baselines")
    unwrapped(result).fnmatch_lines(["*not recorded: the case does other work*give --reason TEXT*"])
    project.run("--update-baselines", "--reason", "larger").assert_outcomes(passed=2)
    assert entry(project)["work"]["bytes"] == 1e8


def test_noise_is_not_recorded(project):
    project.times([20.0, 30.0, 40.0, 50.0, 60.0])
    result = project.run("--update-baselines")
    unwrapped(result).fnmatch_lines(["*not recorded: the samples spread by 25%*"])
    assert not project.baseline.exists()


def test_a_passing_speed_up_replaces_nothing(project):
    project.record(40.0)
    project.times(39.0, 40.0, 40.1)
    project.run("--update-baselines").assert_outcomes(passed=2)
    assert [run["median_us"] for run in entry(project)["runs"]] == [*[40.0] * 3, 39.0, 40.0, 40.1]


def test_a_reason_without_update_is_a_usage_error(project):
    result = project.run("--reason", "x")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--reason*needs --update-baselines*"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--update-baselines", "--reason", " "), "*--reason is empty*"),
        (("--update-baselines", "--perf-baseline", "none"), "*leaves --update-baselines no file*"),
    ],
)
def test_options_that_make_no_sense_together(project, args, message):
    result = project.run(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_another_gpus_file_is_never_written(project):
    project.record(40.0)
    text = project.baseline.read_text().replace("NVIDIA H200", "NVIDIA H100 PCIe")
    project.baseline.write_text(text)
    result = project.run("--update-baselines", "--perf-baseline", str(project.baseline))
    result.assert_outcomes(passed=1, failed=1)
    unwrapped(result).fnmatch_lines(["*not recorded: *was recorded on NVIDIA H100 PCIe*"])
    assert project.baseline.read_text() == text


def git(project, *args):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", *identity, *args], cwd=project.path, check=True, capture_output=True)


def commit_all(project):
    if not (project.path / ".git").exists():
        (project.path / ".gitignore").write_text("times.json\n__pycache__\n.pytest_cache\n")
        git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "what there is", "--allow-empty")


def test_old_and_new_are_printed_where_runs_are_added(project):
    project.record(40.0)
    project.times(40.2)
    result = project.run("--update-baselines")
    unwrapped(result).fnmatch_lines(
        ["scale[[]n8[]]: 40 us -> 40.1 us (+0.2 %): 3 runs of 40.2 us added, 6 now in *"]
    )


def test_slower_runs_of_another_commit_need_a_reason(project):
    """Nobody knows the compiled code of a launcher of plain torch: its commit has to tell."""
    commit_all(project)
    project.record(40.0)
    before = project.baseline.read_text()
    commit = entry(project)["provenance"]["commit"]
    commit_all(project)
    project.times(40.4)
    result = project.run("--update-baselines")
    said = f"*: it is slower, and may be of other code than {commit}; give --reason TEXT to accept *"
    unwrapped(result).fnmatch_lines(["scale *+1.0 % *pass", said])
    assert project.baseline.read_text() == before
    project.run("--update-baselines", "--reason", "exact division")
    assert [run["median_us"] for run in entry(project)["runs"]] == [40.4] * 3
    assert entry(project)["provenance"]["commit"] != commit


def test_runs_of_the_same_commit_are_more_samples(project):
    commit_all(project)
    project.record(40.0)
    project.record(40.4)
    assert len(entry(project)["runs"]) == 6


def test_further_sessions_are_recorded_from_a_clean_commit_too(project):
    project.record(40.0)
    commit_all(project)
    project.record(40.1)
    commit = entry(project)["provenance"]["commit"]
    assert len(commit) == 12
    project.record(40.2)
    assert entry(project)["provenance"]["commit"] == commit
    (project.path / "conftest.py").write_text((project.path / "conftest.py").read_text() + "\n")
    project.record(40.1)
    assert entry(project)["provenance"]["commit"] == commit  # that of the first runs
    result = project.run("--update-baselines")
    assert "warning: recorded" not in result.stdout.str()
    project.baseline.unlink()
    result = project.run("--update-baselines")
    assert entry(project)["provenance"]["commit"] == f"{commit}+"
    unwrapped(result).fnmatch_lines([f"warning: recorded from uncommitted changes of {commit}: *"])
    git(project, "commit", "-qam", "the changes")
    result = project.run("--update-baselines")
    assert not entry(project)["provenance"]["commit"].startswith(commit)
    assert "warning: recorded" not in result.stdout.str()


@pytest.mark.parametrize(("elsewhere", "us"), [(None, 60.0), (43.0, 41.0)])
def test_what_another_run_recorded_meanwhile_is_not_made_worse(project, elsewhere, us):
    """Also where it recorded slower runs of another GPU: this GPU has its own runs."""
    project.record(40.0)
    if elsewhere is not None:
        file = json.loads(project.baseline.read_text())
        runs = file["entries"]["scale[n8]"]["runs"]
        runs += [{**run, "gpu_uuid": "GPU-7", "median_us": elsewhere} for run in runs]
        project.baseline.write_text(json.dumps(file))
    recorded = project.baseline.read_text()
    project.baseline.unlink()
    conftest = project.path / "conftest.py"
    (project.path / "meanwhile.json").write_text(recorded)
    conftest.write_text(
        conftest.read_text()
        + "\ndef pytest_runtest_teardown():\n    file = HERE / 'baselines' / 'sm_90-nvidia-h200.json'\n"
        + "    file.parent.mkdir(exist_ok=True)\n    file.write_text((HERE / 'meanwhile.json').read_text())\n"
    )
    project.times(us)
    result = project.run("--update-baselines")
    said = "*not recorded: it is slower than what another run recorded meanwhile (40 us)*"
    unwrapped(result).fnmatch_lines([said])
    assert project.baseline.read_text() == recorded


def test_small_steps_under_other_conditions_do_not_add_up(project):
    project.record(40.0)
    for step in range(1, 6):
        project.times(40.0 * 1.009**step, environment={"driver": f"580.{step + 1}"})
        project.run("--update-baselines")
    assert max(run["median_us"] for run in entry(project)["runs"]) <= 40.4


@pytest.mark.parametrize(
    ("timer", "what"),
    [
        ("sm_clock_mhz = lambda self: float('nan')", "runs / 0 / clock_mhz: Expected *float* >= 0.0*"),
        ("environment = lambda self: {'driver': 580}", "environment / ...: Expected *str*, got *int**"),
    ],
)
def test_what_could_not_be_read_again_fails_and_is_not_recorded(project, timer, what):
    conftest = project.path / "conftest.py"
    conftest.write_text(f"{conftest.read_text()}\nFileTimer.{timer}\n")
    result = project.run("--update-baselines")
    result.assert_outcomes(passed=1, failed=1)
    unwrapped(result).fnmatch_lines(
        [f"*nothing was written, for the entry of scale[[]n8[]] could not be *: {what}"]
    )
    assert not project.baseline.exists()


def test_the_smallest_steps_under_other_conditions_do_not_add_up(project):
    project.record(40.0)
    for step in range(1, 4):
        project.times(40.0 * 1.0045**step, environment={"driver": f"580.{step + 1}"})
        result = project.run("--update-baselines")
    unwrapped(result).fnmatch_lines(
        ["*not recorded: it is +0.9 % slower under other conditions*, and +0.4 % before*"]
    )
    assert max(run["median_us"] for run in entry(project)["runs"]) <= 40.2
    project.run("--update-baselines", "--reason", "the new driver")
    assert "drift" not in entry(project)["provenance"]  # what was accepted is what further steps start from


def test_steps_that_all_kernels_share_do_not_add_up_either(project):
    """What they share is no session effect once it is recorded."""
    kernel = project.path / "mykernels" / "scale.py"
    cases = '[pytest_cutile.Case(name=f"n{n}", params={"n": n}) for n in range(8, 20)]'
    kernel.write_text(re.sub(r"cases=.*,", f"cases={cases},", kernel.read_text()))
    project.run("--update-baselines", "-m", "cutile_speed")
    for step in range(1, 4):
        project.times(40.0 * 1.009**step, environment={"driver": f"580.{step + 1}"})
        result = project.run("--update-baselines", "-m", "cutile_speed")
    unwrapped(result).fnmatch_lines(["*n8*: not recorded: it is *slower*"])
    assert len(json.loads(project.baseline.read_text())["entries"]) == 12
    assert max(run["median_us"] for run in entry(project)["runs"]) <= 40.2
    project.times(40.1, environment={"driver": "590"})
    project.run("--update-baselines", "-m", "cutile_speed")
    assert entry(project)["provenance"]["drift"] == "0.00250"


def test_nor_do_steps_of_code_that_all_kernels_share(project):
    """A slower helper of all launchers is no session effect either: each commit may be other code."""
    kernel = project.path / "mykernels" / "scale.py"
    cases = '[pytest_cutile.Case(name=f"n{n}", params={"n": n}) for n in range(8, 20)]'
    kernel.write_text(re.sub(r"cases=.*,", f"cases={cases},", kernel.read_text()))
    commit_all(project)
    project.run("--update-baselines", "-m", "cutile_speed")
    (project.path / "helper.py").write_text("")
    commit_all(project)
    project.times(40.0 * 1.009)
    result = project.run("--update-baselines", "-m", "cutile_speed")
    unwrapped(result).fnmatch_lines(["*n8*: not recorded: it is slower, and may be of other code than *"])
    assert len(entry(project)["runs"]) == 3


def test_a_clock_far_below_the_recorded_one_needs_a_reason(project):
    conftest = project.path / "conftest.py"
    text = conftest.read_text()
    conftest.write_text(f"{text}\nFileTimer.sm_clock_mhz = lambda self: 1980.0\n")
    project.record(40.0)
    before = project.baseline.read_text()
    conftest.write_text(f"{text}\nFileTimer.sm_clock_mhz = lambda self: 1200.0\n")
    result = project.run("--update-baselines")
    unwrapped(result).fnmatch_lines(
        ["*not recorded: an SM clock of 1200 MHz, 1980 MHz when its baseline was recorded; give --reason*"]
    )
    assert project.baseline.read_text() == before
    project.run("--update-baselines", "--reason", "as it is cooled now").assert_outcomes(
        passed=2
    )
    assert [run["clock_mhz"] for run in entry(project)["runs"]] == [1200.0] * 3


@pytest.mark.parametrize(
    ("us", "interleaved_us", "recorded"),
    [(36.0, 50.0, True), (42.0, 60.0, False)],
    ids=["faster", "faster than its reference workload alone"],
)
def test_a_faster_one_may_have_a_lower_clock(project, us, interleaved_us, recorded):
    conftest = project.path / "conftest.py"
    text = conftest.read_text()
    conftest.write_text(f"{text}\nFileTimer.sm_clock_mhz = lambda self: 1980.0\n")
    project.times(40.0, reference_workload=True)
    project.run("--update-baselines").assert_outcomes(passed=2)
    document = json.loads(project.baseline.read_text())
    runs = document["entries"]["scale[n8]"]["runs"]
    for run, factor in zip(
        runs, (0.9, 1.0, 1.1), strict=True
    ):  # it is known to follow its reference workload
        run["median_us"], run["workload_us"] = 40.0 * factor, 50.0 * factor
    before = json.dumps(document)
    project.baseline.write_text(before)
    conftest.write_text(f"{text}\nFileTimer.sm_clock_mhz = lambda self: 1200.0\n")
    project.times(us, reference_workload=True, interleaved_us=interleaved_us)
    project.run("--update-baselines")
    assert (project.baseline.read_text() != before) is recorded


@pytest.mark.parametrize("options", [(), ("-n", "2", "-p", "no:benchmark")], ids=["serially", "workers"])
def test_what_cannot_be_seen_is_said_once_and_recorded(project, options):
    conftest = project.path / "conftest.py"
    text = conftest.read_text()
    conftest.write_text(f"{text}\nFileTimer.unseen = lambda self: ['other processes']\n")
    result = project.run("--update-baselines", *options)
    said = [line for line in result.outlines if "not seen: other processes" in line]
    assert len(said) == 1
    assert entry(project)["provenance"]["unseen"] == "other processes"
    conftest.write_text(text)
    result = project.run("--perf-strict")
    assert "not seen" not in result.stdout.str()


@pytest.mark.parametrize("us", [40.0, 36.0], ids=["as fast", "faster"])
def test_runs_without_their_reference_workload_replace_none_that_have_it(project, us):
    project.times(40.0, reference_workload=True)
    for _ in range(2):
        project.run("--update-baselines").assert_outcomes(passed=2)
    before = project.baseline.read_text()
    project.times(us)
    result = project.run("--update-baselines")
    unwrapped(result).fnmatch_lines(
        ["*not recorded: it was measured with no reference workload*a workload*--reason TEXT*"]
    )
    assert project.baseline.read_text() == before
    project.run("--update-baselines", "--reason", "no room for one")
    assert "reference_workload" not in entry(project)
    assert len(entry(project)["runs"]) == 3
