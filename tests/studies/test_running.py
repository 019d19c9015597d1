"""The shared parts of studies: rows are checked, timed and stored one by one; a run can be interrupted."""

import csv
import json
import os
import re
import signal
from dataclasses import replace

import pytest

from pytest_cutile import Case
from pytest_cutile.words.timing import Uncapturable
from studies import __main__ as command
from studies.running import run
from studies.running.files import origin
from studies.running.run import run_study
from studies.running.study import Contender, Row, Study
from tests.studies.pretended import PretendedTimer
from tests.tools import toy_kernel

CASES = [Case(name=f"fp16-{n}", params={"n": n}) for n in (32, 64)]
TIMES = {"slow": 120.0, "fast": 80.0, "wrong": 10.0, "peer": 100.0}


def slow(x):
    return x * 2


def fast(x):
    return x + x


def wrong(x):
    return x * 3


def peer(x):
    return x * 2


SLOW = Contender(name="slow", launch=slow)


def toy_study(*contenders: Contender) -> Study:
    def rows(quick):
        cases = CASES[:1] if quick else CASES
        return [
            Row(case=case, contender=contender, beside=None if contender is SLOW else SLOW)
            for case in cases
            for contender in (SLOW, *contenders)
        ]

    return Study(
        name="toy",
        summary="a toy",
        spec=toy_kernel.SPEC,
        rows=rows,
        pages=lambda record: {"toy.md": f"{len(record.rows)} rows\n"},
    )


STUDY = toy_study(
    Contender(name="fast", launch=fast),
    Contender(name="peer", launch=peer, is_peer=True),
    Contender(name="absent", launch=peer, is_peer=True, missing="it is not installed"),
)


def stored(folder):
    return json.loads((folder / "rows.json").read_text())


def test_every_row_is_stored_with_both_regimes_and_its_speedup(tmp_path):
    said: list[str] = []
    run_study(STUDY, PretendedTimer(TIMES), tmp_path, say=said.append)
    document = stored(tmp_path)
    assert document["environment"]["driver"] == "1.2"
    assert document["missing"] == {"absent": "it is not installed"}
    assert [row["key"] for row in document["rows"]] == [
        f"{name}[fp16-{n}]" for n in (32, 64) for name in ("slow", "fast", "peer")
    ]
    row = document["rows"][1]
    assert (row["burst"]["us"], row["sustained"]["us"]) == (80.0, 100.0)
    assert row["burst"]["speedup"] == pytest.approx(1.5)
    assert row["burst"]["tflops"] == pytest.approx(1e6 * 32 / 80.0 * 1e-6)
    assert row["sustained_clock_mhz"] == 1500.0
    assert document["rows"][0]["burst"]["speedup"] is None
    with (tmp_path / "rows.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 12
    assert [line["regime"] for line in lines[:2]] == ["burst", "sustained"]
    assert (tmp_path / "toy.md").read_text() == "6 rows\n"
    assert re.fullmatch(
        r"  2 of 6  fast\[fp16-32\]: 80 us, 0.4 TFLOPS, 1.500 x slow  \(\d+ s, \d+ s left\)", said[2]
    )


def test_quick_takes_fewer_cases_in_bursts_alone(tmp_path):
    record = run_study(STUDY, PretendedTimer(TIMES), tmp_path, quick=True)
    assert {row.case for row in record.rows} == {"fp16-32"}
    assert all(row.sustained is None and row.burst for row in record.rows)


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    class Interrupted(PretendedTimer):
        def _time(self, launch):
            if launch.launch.func is peer:
                raise KeyboardInterrupt
            return super()._time(launch)

    with pytest.raises(KeyboardInterrupt):
        run_study(STUDY, Interrupted(TIMES), tmp_path)
    assert [row["contender"] for row in stored(tmp_path)["rows"]] == ["slow", "fast"]
    assert (tmp_path / "toy.md").read_text() == "2 rows\n"  # what there is can be read
    said: list[str] = []
    timer = PretendedTimer(TIMES)
    run_study(STUDY, timer, tmp_path, say=said.append)
    assert timer.timed[0] == "peer"
    assert said[0] == f"toy: 4 rows to time, 2 stored in {tmp_path}"
    assert len(stored(tmp_path)["rows"]) == 6


def test_rows_of_another_environment_are_not_continued(tmp_path):
    run_study(STUDY, PretendedTimer(TIMES), tmp_path)

    class Newer(PretendedTimer):
        def environment(self):
            return {"driver": "2.0"}

    with pytest.raises(SystemExit, match=r": driver 1\.2 \(now 2\.0\); choose another --output"):
        run_study(STUDY, Newer(TIMES), tmp_path)
    with pytest.raises(SystemExit, match=r"--quick False \(now True\)"):
        run_study(STUDY, PretendedTimer(TIMES), tmp_path, quick=True)


def test_rows_of_other_sources_are_not_continued(tmp_path, monkeypatch):
    """Also where both are changes of the same commit, and where a file was never committed."""
    (tmp_path / "kernels").mkdir()
    monkeypatch.setattr(run, "ROOT", tmp_path)
    run_study(STUDY, PretendedTimer(TIMES), tmp_path)
    (tmp_path / "kernels" / "new.py").write_text("TILE = 64")
    with pytest.raises(SystemExit, match=r": sources \w{12} \(now \w{12}\); choose another --output"):
        run_study(STUDY, PretendedTimer(TIMES), tmp_path)


def test_rows_that_a_study_does_not_have_are_refused_before_anything_is_timed(tmp_path):
    run_study(STUDY, PretendedTimer(TIMES), tmp_path)
    timer = PretendedTimer(TIMES)
    with pytest.raises(SystemExit, match=r"rows that toy does not have, fast\[fp16-32\] for one"):
        run_study(toy_study(Contender(name="faster", launch=fast)), timer, tmp_path)
    assert not timer.timed


def test_a_page_says_that_it_is_a_part(tmp_path):
    part = run_study(STUDY, PretendedTimer(TIMES), tmp_path, only="[fp16-64]")
    assert origin(part).startswith("**Part of it: 3 of 6 rows.** The others were not timed, by --only, ")
    assert "Part of it" not in origin(run_study(STUDY, PretendedTimer(TIMES), tmp_path))


def test_the_largest_cases_of_our_own_are_compared_coarsely(tmp_path):
    study = replace(toy_study(Contender(name="wrong", launch=wrong)), sampled_flops=0.0)
    record = run_study(study, PretendedTimer(TIMES), tmp_path, quick=True)
    assert "it is wrong: output: " in record.errors["wrong[fp16-32]"]
    assert [row.contender for row in record.rows] == ["slow"]


def test_our_own_large_cases_are_checked_by_the_gates_bounds_in_parts(tmp_path, monkeypatch):
    """A result that is half a percent too large passes the coarse check of peers."""

    def half_a_percent_more(x):
        return x * 2.01

    monkeypatch.setattr(run, "GATE_CHECK_BYTES", 0)
    study = toy_study(Contender(name="own", launch=half_a_percent_more))
    record = run_study(study, PretendedTimer(TIMES), tmp_path, quick=True)
    assert "differs from its reference" in record.errors["own[fp16-32]"]


def test_a_busy_gpu_is_refused(tmp_path):
    timer = PretendedTimer(TIMES)
    timer.state = ["1 other process on the GPU"]
    with pytest.raises(SystemExit, match="not fit to measure on: 1 other process on the GPU"):
        run_study(STUDY, timer, tmp_path)
    assert not timer.timed


def test_a_row_that_was_disturbed_is_not_stored_and_is_timed_again(tmp_path):
    class Disturbed(PretendedTimer):
        def time_block(self, launches):
            self.state = ["throttled"] * (launches[0].launch.func is fast)
            return super().time_block(launches)

    record = run_study(STUDY, Disturbed(TIMES), tmp_path, quick=True)
    assert record.errors == {"fast[fp16-32]": "the GPU was disturbed: throttled"}
    assert [row.contender for row in record.rows] == ["slow", "peer"]
    timer = PretendedTimer(TIMES)
    record = run_study(STUDY, timer, tmp_path, quick=True, only="peer")
    assert [*record.errors] == ["fast[fp16-32]"]  # it was not tried again
    record = run_study(STUDY, timer, tmp_path, quick=True)
    assert [row.contender for row in record.rows] == ["slow", "fast", "peer"]
    assert not record.errors
    assert "peer" not in timer.timed


def test_what_cannot_be_captured_is_timed_on_a_stream_beside_the_same(tmp_path, monkeypatch):
    class Capturing(PretendedTimer):
        def time_block(self, launches):
            if launches[0].launch.func is peer:
                raise Uncapturable(
                    "the launch cannot be captured into a CUDA graph: it has a list\nUse tuples."
                )
            return super().time_block(launches)

    class OnStream(PretendedTimer):
        def __init__(self, timer):
            super().__init__({name: us + 20 for name, us in TIMES.items()})
            assert isinstance(timer, Capturing)

    monkeypatch.setattr("studies.running.run.StreamTimer", OnStream)
    study = replace(STUDY, pages=lambda record: {"toy.md": origin(record)})
    said: list[str] = []
    record = run_study(study, Capturing(TIMES), tmp_path, quick=True, say=said.append)
    assert not record.errors
    assert [bool(row.why_on_stream) for row in record.rows] == [False, False, True]
    assert record.rows[2].headline.us == 120.0
    assert record.rows[2].headline.speedup == pytest.approx(140 / 120)
    assert "peer[fp16-32]: 120 us, 0.2667 TFLOPS, on a stream, 1.167 x slow" in said[3]
    why = "peer (1 case): the launch cannot be captured into a CUDA graph: it has a list"
    assert f"its ratio alone counts: {why}" in (tmp_path / "toy.md").read_text()
    with (tmp_path / "rows.csv").open() as file:
        assert [line["on_stream"] for line in csv.DictReader(file)] == ["False", "False", "True"]


@pytest.mark.parametrize("is_peer", [False, True])
def test_what_is_wrong_is_not_timed(is_peer, tmp_path):
    study = toy_study(Contender(name="wrong", launch=wrong, is_peer=is_peer))
    timer = PretendedTimer(TIMES)
    record = run_study(study, timer, tmp_path, quick=True)
    assert "wrong" not in timer.timed
    assert ("is wrong: output: " if is_peer else "differs from its reference") in record.errors[
        "wrong[fp16-32]"
    ]


def test_a_contender_may_declare_its_own_arithmetic(tmp_path):
    def coarse(x):
        return x * 2.02

    own = replace(toy_kernel.SPEC, check={"rtol": 0.02})
    contenders = [
        Contender(name=name, launch=launch, is_peer=True, spec=spec)
        for name, launch, spec in (("coarse", coarse, None), ("declared", coarse, own), ("wrong", wrong, own))
    ]
    record = run_study(toy_study(*contenders), PretendedTimer(TIMES | {"coarse": 90.0}), tmp_path, quick=True)
    assert [row.contender for row in record.rows] == ["slow", "declared"]
    assert "is wrong: output: " in record.errors["coarse[fp16-32]"]
    assert "differs from its reference" in record.errors["wrong[fp16-32]"]


def test_a_run_takes_some_rows_alone_and_goes_on_with_the_others(tmp_path):
    record = run_study(STUDY, PretendedTimer(TIMES), tmp_path, only="[fp16-64]")
    assert [row.key for row in record.rows] == [f"{name}[fp16-64]" for name in ("slow", "fast", "peer")]
    record = run_study(STUDY, PretendedTimer(TIMES), tmp_path)
    assert [row.case for row in record.rows] == ["fp16-32"] * 3 + ["fp16-64"] * 3


def test_a_run_ends_in_time_and_goes_on_later(tmp_path):
    said: list[str] = []
    record = run_study(STUDY, PretendedTimer(TIMES), tmp_path, budget_s=0.0, say=said.append)
    assert [row.key for row in record.rows] == ["slow[fp16-32]"]
    assert said[2] == "  5 rows left: the same command goes on with them"
    assert (tmp_path / "toy.md").read_text() == "1 rows\n"
    assert len(run_study(STUDY, PretendedTimer(TIMES), tmp_path).rows) == 6


def test_a_text_that_is_in_no_name_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"no row of toy has 'fats' in its name; one is slow\[fp16-32\]"):
        run_study(STUDY, PretendedTimer(TIMES), tmp_path, only="fats")


def test_rows_of_several_kernels_are_prepared_kernel_by_kernel(tmp_path):
    specs = [replace(toy_kernel.SPEC, name=name) for name in ("one", "two")]
    rows = [Row(case=case, contender=SLOW, spec=spec) for spec in specs for case in CASES]
    study = replace(STUDY, spec=None, rows=lambda _: rows)
    prepared: list[list[str]] = []

    def prepare(study, rows, arch, say):
        del study, say
        prepared.append([arch, *(row.key for row in rows)])

    record = run_study(study, PretendedTimer(TIMES), tmp_path, prepare=prepare)
    assert prepared == [
        ["sm_90", f"{name}: slow[fp16-32]", f"{name}: slow[fp16-64]"] for name in ("one", "two")
    ]
    assert record.find("slow", "fp16-64", "two") is record.rows[3]
    assert record.find("slow", "fp16-64") is None
    with pytest.raises(ValueError, match=r"neither the study nor the row slow\[fp16-32\] has a spec"):
        study.spec_of(Row(case=CASES[0], contender=SLOW))


def test_the_command_writes_into_a_folder_of_the_gpu_and_the_day(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("studies.running.run.RESULTS", tmp_path / "results")
    monkeypatch.setattr(command, "study_names", lambda: ["toy"])
    monkeypatch.setattr(command, "load_study", lambda name: STUDY)  # noqa: ARG005
    assert command.main(["list"]) == 0
    assert capsys.readouterr().out == "toy             a toy\n"
    assert command.main(["toy", "--quick"], make_timer=lambda: PretendedTimer(TIMES)) == 0
    (folder,) = (tmp_path / "results").iterdir()
    assert folder.name.startswith("h200-20")
    assert folder.name.endswith("-quick")
    assert (folder / "toy" / "rows.json").exists()
    failing = toy_study(Contender(name="wrong", launch=wrong))
    monkeypatch.setattr(command, "load_study", lambda name: failing)  # noqa: ARG005
    output = tmp_path / "mine"
    assert command.main(["toy", "--output", str(output)], make_timer=lambda: PretendedTimer(TIMES)) == 1
    assert stored(output / "toy")["errors"]


@pytest.fixture
def toy(monkeypatch):
    """Let the only study be the toy."""
    monkeypatch.setattr(command, "study_names", lambda: ["toy"])
    monkeypatch.setattr(command, "load_study", lambda _: STUDY)


@pytest.mark.usefixtures("toy")
def test_what_cannot_be_stored_is_not_timed(tmp_path):
    (tmp_path / "file").touch()
    timer = PretendedTimer(TIMES)
    with pytest.raises(SystemExit, match=r"Not a directory: .*file"):
        command.main(["toy", "--output", str(tmp_path / "file")], make_timer=lambda: timer)
    assert not timer.timed


@pytest.mark.usefixtures("toy")
def test_an_interrupted_command_says_how_to_go_on(tmp_path):
    class Interrupted(PretendedTimer):
        def problems(self):
            raise KeyboardInterrupt

    with pytest.raises(SystemExit, match="interrupted: the same command goes on"):
        command.main(["toy", "--output", str(tmp_path)], make_timer=lambda: Interrupted(TIMES))


@pytest.mark.usefixtures("toy")
def test_a_command_that_is_ended_leaves_its_pages(tmp_path):
    class Ended(PretendedTimer):
        def _time(self, launch):
            os.kill(os.getpid(), signal.SIGTERM)
            return super()._time(launch)

    with pytest.raises(SystemExit, match="interrupted: the same command goes on"):
        command.main(["toy", "--output", str(tmp_path)], make_timer=lambda: Ended(TIMES))
    assert (tmp_path / "toy" / "toy.md").exists()


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("seconds", ["0", "-5", "nan", "long"])
def test_a_budget_is_a_time(seconds, capsys):
    with pytest.raises(SystemExit):
        command.main(["toy", "--budget", seconds])
    assert f"argument --budget: {seconds} is no time" in capsys.readouterr().err


@pytest.mark.parametrize("name", command.study_names())
def test_each_study_explains_itself(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        command.main([name, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"See studies/{name}/README.md." in text
    assert ("FILE" in text) == (name == "platforms")
    assert "--quick" in text


def test_the_studies_are_listed(capsys):
    assert command.main(["list"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    table = (command.FOLDER / "README.md").read_text(encoding="utf-8")
    assert names == re.findall(r"^\| \[(\w+)\]\(\1/README\.md\) \|", table, re.MULTILINE)
    assert "fmha_ladder" in names
