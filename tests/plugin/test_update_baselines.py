"""`--update-baselines` and `--reason`: records are added, and the anchor moves only with cause."""

import pytest

NEW = {"driver": "590.2", "tileiras": "13.4.92"}


def unwrapped(result: pytest.RunResult) -> pytest.LineMatcher:
    """Return what was printed, with the lines of notes joined that the terminal's width has broken."""
    return pytest.LineMatcher(result.stdout.str().replace("\n  ", " ").splitlines())


def anchor(project):
    """Return the record that later runs are compared with."""
    moved = [record for record in project.records if "moved" in record]
    return moved[-1] if moved else project.records[0]


def moves(project):
    return [record.get("moved", "") for record in project.records]


def session_of(project, record):
    return project.data["sessions"][record["session"]]


# -- the first record ---------------------------------------------------------------------------------


def test_a_new_case_is_recorded_with_its_session(project):
    project.record(40.0, sustained=50.0)
    [record] = project.records
    session = session_of(project, record)
    assert record["work"] == {"bytes": 1e8}
    assert session["environment"] == {"driver": "580.1", "tileiras": "13.4.92"}
    assert session["by"].startswith("pytest-cutile ")
    assert session["gpu_uuid"] == "GPU-0"
    assert session["commit"] == ""
    assert [run["burst_us"] for run in record["runs"]] == pytest.approx([40.0] * 3)
    assert [run["sustained_us"] for run in record["runs"]] == pytest.approx([50.0] * 3)
    assert {(run["sustained_clock_mhz"], run["sustained_watts"]) for run in record["runs"]} == {(1605, 699)}
    assert "moved" not in record


def test_a_renamed_case_needs_a_reason_or_its_old_entry(paired):
    paired.edit('name="n8"', 'name="renamed"')
    paired.times(80.0)
    before = paired.baseline.read_text()
    result = paired.run("--update-baselines")
    result.assert_outcomes(passed=1, failed=1)
    assert paired.baseline.read_text() == before
    said = " ".join(result.stdout.str().split())
    assert "has no entry for scale[renamed], and one for scale[n8], which is gone" in said
    paired.run().stdout.fnmatch_lines(["no-baseline: *if that was renamed, rename its entry*"])
    paired.run("--update-baselines", "--reason", "another case").assert_outcomes(passed=2)
    paired.baseline.write_text(before.replace("scale[n8]", "scale[renamed]"))
    result = paired.run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*is 100.0% slower than its baseline*", "*the kernel of *, which *"])


@pytest.mark.parametrize("paths", [(), ("mykernels/scale.py",), ("mykernels/scale.py::speed[n8]",)])
@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_renamed_kernel_needs_a_reason_whatever_is_collected(project, paths, is_elsewhere):
    project.record()
    text = (project.path / "mykernels" / "scale.py").read_text()
    if is_elsewhere:
        project.kernel(text, "other")
    project.edit('name="scale"', 'name="renamed"')
    result = project.run("--update-baselines", *paths, gates="cutile_speed")
    said = " ".join(result.stdout.str().split())
    assert ("has no entry for renamed[n8], and one for scale[n8], which is gone" in said) != is_elsewhere
    assert ("renamed[n8]" in project.data["entries"]) == is_elsewhere


def test_a_stale_entry_does_not_concern_another_kernel(project):
    project.record()
    project.kernel(
        (project.path / "mykernels" / "scale.py").read_text().replace('"scale"', '"other"'), "other"
    )
    project.edit('name="n8"', 'name="n9"')
    result = project.run("--update-baselines", gates="cutile_speed")
    result.assert_outcomes(passed=1, failed=1)
    assert {*project.data["entries"]} == {"scale[n8]", "other[n8]"}


def test_a_renamed_test_needs_a_reason(project):
    def run(name, *args):
        text = f"def {name}(perf): perf(lambda: None, bytes=1e8)"
        project.pytester.makepyfile(test_mine=text)
        return project.run("test_mine.py", "--update-baselines", *args, gates="")

    run("test_old").assert_outcomes(passed=1)
    run("test_new").assert_outcomes(failed=1)
    run("test_new", "--reason", "another test").assert_outcomes(passed=1)


def test_the_commit_is_recorded(project):
    commit = project.commit()
    project.record()
    assert session_of(project, project.records[0])["commit"] == commit
    project.record()  # the file of baselines is no change
    assert {session["commit"] for session in project.data["sessions"].values()} == {commit}


def test_the_reference_workload_is_recorded(project):
    project.record(workload_us=51.5)
    [record] = project.records
    assert session_of(project, record)["workload"] == "a workload"
    assert {run["workload_us"] for run in record["runs"]} == {51.5}


def test_what_was_recorded_is_printed(project):
    result = project.run("--update-baselines")
    unwrapped(result).fnmatch_lines(
        ["scale[[]n8[]]: 3 runs of 40 us recorded in baselines/sm_90-nvidia-h200.json"]
    )


# -- unchanged, neutral, faster -----------------------------------------------------------------------


@pytest.mark.slow
def test_sessions_of_one_commit_are_added_until_a_gpu_has_twelve_runs(project):
    project.commit()
    for us in (40.0, 40.2, 40.1, 40.0):
        project.record(us)
    runs = [[run["burst_us"] for run in record["runs"]] for record in project.records]
    assert runs == [pytest.approx([us] * 3, rel=1e-3) for us in (40.0, 40.2, 40.1, 40.0)]
    assert moves(project) == [""] * 4
    before = project.baseline.read_text()
    result = project.run("--update-baselines")
    result.assert_outcomes(passed=2)
    assert "recorded in" not in result.stdout.str()
    assert project.baseline.read_text() == before


def test_a_neutral_change_adds_a_record_and_leaves_the_anchor(paired):
    first = paired.records[0]
    commit = paired.commit()
    paired.record(40.1, sustained=50.1)
    assert len(paired.records) == 2
    assert moves(paired) == ["", ""]
    assert anchor(paired) == first
    added = paired.records[1]
    assert session_of(paired, added)["commit"] == commit
    assert set(added["changes"]) == {"burst", "sustained"}
    burst = added["changes"]["burst"]
    assert burst["low"] < burst["value"] < burst["high"]
    assert burst["value"] == pytest.approx(0.0025, abs=1e-4)


@pytest.mark.slow
def test_an_improvement_moves_the_anchor(paired):
    commit = paired.commit()
    paired.times(36.0, sustained=45.0)
    result = paired.run("--update-baselines")
    result.assert_outcomes(passed=2)
    unwrapped(result).fnmatch_lines(
        ["scale[[]n8[]]: 3 runs of 36 us recorded, faster: it is the baseline kernel now in baselines/*"]
    )
    assert moves(paired) == ["", "faster"]
    assert session_of(paired, anchor(paired))["commit"] == commit
    paired.commit()
    paired.edit("return x + x", "return 2 * x")
    paired.times(38.0, baseline=36.0)
    result = paired.run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([f"*the kernel of {commit[:12]}, which *"])


# -- slower -------------------------------------------------------------------------------------------


def test_a_slower_kernel_needs_a_reason(paired):
    before = paired.baseline.read_text()
    paired.commit()
    paired.times(42.4)
    result = paired.run("--update-baselines")
    result.assert_outcomes(passed=1, failed=1)
    unwrapped(result).fnmatch_lines(["*not recorded: it is +6.0 % slower; give --reason TEXT to accept it*"])
    assert paired.baseline.read_text() == before


def test_a_slower_kernel_with_a_reason_is_the_new_anchor(paired):
    commit = paired.commit()
    paired.times(42.4, sustained=50.0)
    result = paired.run("--update-baselines", "--reason", "exact division")
    result.assert_outcomes(passed=2)
    unwrapped(result).fnmatch_lines(["scale[[]n8[]]: 3 runs of 42.4 us recorded, accepted: it is *"])
    assert moves(paired) == ["", "accepted"]
    assert anchor(paired)["reason"] == "exact division"
    assert session_of(paired, anchor(paired))["commit"] == commit
    paired.run("--perf-strict").assert_outcomes(passed=2)


@pytest.mark.slow
def test_the_command_in_the_message_accepts_it(paired):
    paired.times(42.4)
    paired.run().assert_outcomes(passed=1, failed=1)
    paired.commit()
    args = ("mykernels/scale.py::speed[n8]", "--arch", "sm_90", "--update-baselines", "--reason", "why")
    paired.run(*args, gates="").assert_outcomes(passed=1)
    paired.run().assert_outcomes(passed=2)


def test_a_reason_moves_nothing_that_is_not_slower(paired):
    paired.commit()
    paired.record(40.1, args=("--reason", "just in case"))
    assert moves(paired) == ["", ""]
    assert "reason" not in paired.records[1]


@pytest.mark.slow
def test_small_steps_cannot_add_up(paired):
    """Each commit is 0.4 % slower than the one before, and all are paired with the same kernel."""
    for step in range(1, 8):
        paired.edit("return ", f"_ = {step}; return ")
        paired.commit()
        paired.times(40.0 * 1.004**step, sustained=50.0)
        outcomes = paired.run("--update-baselines").parseoutcomes()
        if "failed" in outcomes:
            break
    assert 3 <= step <= 5  # 1.2 % to 2 % in all
    assert moves(paired) == [""] * step  # the anchor's record, and those before this step
    paired.times(40.0 * 1.02, sustained=50.0)
    paired.run().assert_outcomes(passed=1, failed=1)


def test_by_stored_times_small_steps_cannot_add_up_either(project):
    project.record()
    before = project.baseline.read_text()
    for step in range(1, 4):
        project.times(40.0 * 1.0045**step)
        result = project.run("--update-baselines")
        result.assert_outcomes(passed=1, failed=1)
        unwrapped(result).fnmatch_lines(
            ["*not recorded: there is no baseline kernel to compare it with: *outside of git*--reason TEXT*"]
        )
    project.times(36.0)  # on a GPU that is faster, perhaps
    project.run("--update-baselines").assert_outcomes(passed=1, failed=1)
    assert project.baseline.read_text() == before
    project.record(40.4, args=("--reason", "outside of git"))
    assert moves(project) == ["", "accepted"]


# -- the environment ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("is_changed", [True, False], ids=["changed code", "same code"])
def test_a_slower_environment_is_accepted_with_a_reason(project, is_changed):
    project.commit()
    project.record()
    if is_changed:
        project.edit("return x * 2", "return x + x")
        project.commit()
    before = project.baseline.read_text()
    project.times(44.0, baseline=44.0, environment=NEW)
    result = project.run("--update-baselines")
    result.assert_outcomes(passed=1, failed=1)
    unwrapped(result).fnmatch_lines(
        ["*not recorded: it is +10.0 % slower (*driver: 580.1 -> 590.2*--reason*"]
    )
    assert project.baseline.read_text() == before
    result = project.run("--update-baselines", "--reason", "driver 590")
    result.assert_outcomes(passed=2)
    assert anchor(project)["reason"] == "driver 590"
    project.run("--perf-strict").assert_outcomes(passed=2)


@pytest.mark.slow
def test_a_slower_environment_is_told_from_that_of_the_stored_times(project):
    project.commit()
    project.record(40.0)
    project.record(41.6, environment=NEW)
    project.times(42.6, environment={"driver": "600.3", "tileiras": "13.4.92"})
    result = project.run("--update-baselines")
    result.assert_outcomes(passed=1, failed=1)
    unwrapped(result).fnmatch_lines(["*not recorded: it is +6.5 % slower (*driver: 580.1 -> 600.3*"])


def test_another_environment_that_is_as_fast_is_recorded_beside_the_anchor(paired):
    paired.commit()
    paired.record(40.2, baseline=40.2, environment=NEW)
    assert moves(paired) == ["", ""]
    assert [session_of(paired, record)["environment"]["driver"] for record in paired.records] == [
        "580.1",
        "590.2",
    ]


# -- what is not recorded -----------------------------------------------------------------------------


def test_a_busy_or_throttled_gpu_records_nothing(project):
    project.times(40.0, problems=["1 other process on the GPU"])
    result = project.run("--update-baselines")
    result.assert_outcomes(passed=1, failed=1)
    unwrapped(result).fnmatch_lines(["*scale[[]n8[]]: not recorded: 1 other process on the GPU*"])
    assert not project.baseline.exists()


def test_noise_is_not_recorded(project):
    project.times([20.0, 30.0, 40.0, 50.0, 60.0])
    result = project.run("--update-baselines")
    result.assert_outcomes(passed=1, failed=1)
    unwrapped(result).fnmatch_lines(["*not recorded: the samples spread by 50%*"])
    assert not project.baseline.exists()


def test_processes_that_disagree_are_not_recorded(project):
    project.times(40.0, 80.0, 60.0)
    result = project.run("--update-baselines")
    result.assert_outcomes(passed=1, failed=1)
    unwrapped(result).fnmatch_lines(["*not recorded: the times of 3 processes differ by 100%; run it again*"])
    assert not project.baseline.exists()


@pytest.mark.parametrize("args", [(), ("--reason", "why not")])
@pytest.mark.parametrize(
    ("times", "why"),
    [
        (
            {"burst": (44.0,), "baseline": 44.0},
            "*against the stored times, in the recorded environment: the GPU's condition*or other inputs",
        ),
        ({"burst": (41.4, *[41.6, 39.6] * 6)}, "*12 fresh processes measured*"),
    ],
    ids=["disturbed", "noisy"],
)
def test_what_is_undecided_is_not_recorded_with_a_reason_either(paired, args, times, why):
    before = paired.baseline.read_text()
    paired.commit()
    paired.times(*times["burst"], baseline=times.get("baseline", 40.0))
    result = paired.run("--update-baselines", *args)
    result.assert_outcomes(passed=1, failed=1)
    unwrapped(result).fnmatch_lines([f"*scale[[]n8[]]: not recorded: {why}"])
    assert paired.baseline.read_text() == before


def test_other_work_needs_a_reason(paired):
    paired.edit("bytes=1e8", "bytes=2e8")
    paired.commit()
    paired.times(80.0, sustained=100.0)
    result = paired.run("--update-baselines")
    result.assert_outcomes(passed=1, failed=1)
    unwrapped(result).fnmatch_lines(
        ["*not recorded: scale[[]n8[]] does 0 flops, 2e+08 bytes now, 0 flops, 1e+08 *--reason TEXT*"]
    )
    paired.run("--update-baselines", "--reason", "larger").assert_outcomes(passed=2)
    assert anchor(paired)["work"]["bytes"] == 2e8
    assert anchor(paired)["moved"] == "accepted"
    paired.run("--perf-strict").assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("timer", "what"),
    [
        ("sm_clock_mhz = lambda self: float('nan')", "* not JSON compliant*"),
        ("environment = lambda self: {'driver': 580}", "*environment / ...: Expected *str*, got *int**"),
    ],
)
def test_what_could_not_be_read_again_fails_and_is_not_recorded(project, timer, what):
    project.conftest(f"FileTimer.{timer}")
    result = project.run("--update-baselines")
    result.assert_outcomes(passed=1, failed=1)
    unwrapped(result).fnmatch_lines([f"*nothing was written*{what}"])
    assert not project.baseline.exists()


def test_another_gpus_file_is_never_written(project):
    project.record()
    text = project.baseline.read_text().replace("NVIDIA H200", "NVIDIA H100 PCIe")
    project.baseline.write_text(text)
    result = project.run("--update-baselines", "--perf-baseline", str(project.baseline))
    result.assert_outcomes(passed=1, failed=1)
    unwrapped(result).fnmatch_lines(["*not recorded: *was recorded on NVIDIA H100 PCIe*"])
    assert project.baseline.read_text() == text


# -- several GPUs, several recorders ------------------------------------------------------------------


@pytest.fixture
def gpus(project, monkeypatch):
    """A project of a clean commit, and a way to choose the GPU that is measured."""
    conftest = project.path / "conftest.py"
    gpu = 'uuid=__import__("os").environ["GPU"]'
    conftest.write_text(conftest.read_text().replace('uuid="GPU-0"', gpu))
    project.commit()

    def choose(uuid):
        monkeypatch.setenv("GPU", uuid)

    choose("GPU-0")
    return choose


@pytest.mark.slow
def test_each_gpu_has_room_for_its_runs(project, gpus):
    for uuid, us in (("GPU-0", 50.0), ("GPU-1", 50.2)):
        gpus(uuid)
        for _ in range(4):
            project.record(us)
    recorded = [session_of(project, record)["gpu_uuid"] for record in project.records]
    assert recorded == ["GPU-0"] * 4 + ["GPU-1"] * 4
    assert sum(len(record["runs"]) for record in project.records) == 24


@pytest.mark.slow
def test_a_gpu_on_which_the_kernel_is_slower_gets_times_of_its_own_with_a_reason(project, gpus):
    project.record(40.0)
    gpus("GPU-1")
    project.times(44.0)
    result = project.run("--perf-all")
    unwrapped(result).fnmatch_lines(["inconclusive: *or another GPU than those that recorded it"])
    before = project.baseline.read_text()
    result = project.run("--update-baselines")
    result.assert_outcomes(passed=1, failed=1)
    unwrapped(result).fnmatch_lines(["*not recorded: it is +10.0 %*; give --reason TEXT to accept it"])
    assert project.baseline.read_text() == before
    project.run("--update-baselines", "--reason", "another GPU").assert_outcomes(passed=2)
    assert [record.get("reason") for record in project.records] == [None, "another GPU"]
    assert moves(project) == ["", ""]
    project.run("--perf-all", "--perf-strict").assert_outcomes(passed=2)
    project.times(48.0)  # its condition now
    project.run("--perf-all", "--perf-strict").assert_outcomes(passed=1, failed=1)
    project.run("--update-baselines", "--reason", "again").assert_outcomes(passed=1, failed=1)


@pytest.mark.slow
def test_a_slower_gpu_is_no_slower_kernel(project, gpus):
    project.record(40.0)
    project.commit()
    project.edit("return x * 2", "return x + x")
    gpus("GPU-1")
    project.times(41.6, baseline=41.6)
    project.run("--perf-strict").assert_outcomes(passed=2)
    project.times(42.4, baseline=41.6)
    result = project.run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*is 1.9% slower than its baseline*"])


MEANWHILE = """
def pytest_runtest_teardown():
    file = HERE / "baselines" / "sm_90-nvidia-h200.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text((HERE / "meanwhile.json").read_text())
"""


def test_what_another_run_recorded_meanwhile_stays(project):
    project.record(40.0)
    recorded = project.baseline.read_text()
    (project.path / "meanwhile.json").write_text(recorded)
    project.baseline.unlink()
    project.conftest(MEANWHILE)
    project.record(41.0)
    assert [record["runs"][0]["burst_us"] for record in project.records] == pytest.approx([40.0, 41.0])


def test_workers_that_record_at_once_lose_nothing(project):
    pytest.importorskip("xdist")
    cases = ", ".join(f'pytest_cutile.Case(name="n{n}", params={{"n": {n}}})' for n in range(1, 17))
    project.edit('pytest_cutile.Case(name="n8", params={"n": 8})', cases)
    options = ("-n", "3", "-p", "no:benchmark", "--update-baselines")
    result = project.run(*options, gates="cutile_speed")
    result.assert_outcomes(passed=16)
    result.stdout.fnmatch_lines(["scale *n8 *40 us *recorded"])
    result.stdout.fnmatch_lines(["scale[[]n8[]]: 3 runs of 40 us recorded in *"])
    entries = project.data["entries"]
    assert set(entries) == {f"scale[n{n}]" for n in range(1, 17)}
    recorded = {record["session"] for entry in entries.values() for record in entry["records"]}
    assert recorded == set(project.data["sessions"])
    assert {len(record["runs"]) for entry in entries.values() for record in entry["records"]} == {3}


def test_a_dirty_checkout_is_recorded_with_a_warning(project):
    commit = project.commit()
    project.edit("return x * 2", "return x + x")
    result = project.run("--update-baselines")
    result.assert_outcomes(passed=2)
    unwrapped(result).fnmatch_lines([f"warning: recorded from uncommitted changes of {commit[:12]}: *"])
    assert session_of(project, project.records[0])["commit"] == f"{commit}+"


@pytest.mark.parametrize("options", [(), ("-n", "2", "-p", "no:benchmark")], ids=["serially", "workers"])
def test_what_cannot_be_seen_is_said_once_and_recorded(project, options):
    conftest = project.path / "conftest.py"
    text = conftest.read_text()
    project.conftest("FileTimer.unseen = lambda self: ['other processes']")
    result = project.run("--update-baselines", *options)
    said = [line for line in result.outlines if "not seen: other processes" in line]
    assert len(said) == 1
    assert session_of(project, project.records[0])["unseen"] == "other processes"
    conftest.write_text(text)
    result = project.run("--perf-strict")
    assert "not seen" not in result.stdout.str()


def test_a_published_figure_is_replaced_by_the_first_record(project):
    project.record()
    published = {
        "work": {"flops": 0.0, "bytes": 1e8},
        "median_us": 40.0,
        "margin": 0.1,
        "source": "a paper, https://example.org",
    }
    project.edit_baselines(lambda data: data["entries"].update({"scale[n8]": {"published": published}}))
    project.times(46.0)
    result = project.run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*is 15.0% slower than the published figure (margin 10%).", "*baseline *", "*a paper, https://*"]
    )
    project.record(41.0)
    assert len(project.records) == 1


# -- options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--reason", "x"), "*--reason*needs --update-baselines*"),
        (("--update-baselines", "--reason", " "), "*--reason is empty*"),
        (("--update-baselines", "--perf-baseline", "none"), "*leaves --update-baselines no file*"),
    ],
)
def test_options_that_make_no_sense_together(project, args, message):
    result = project.run(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
