"""`--kernel-json`: everything that the reports show of a run, and files that cannot be written."""

import json
import os
from pathlib import Path

import pytest

from pytest_cutile.pytest_parts import report_files
from pytest_cutile.reports.formats import FORMATS
from pytest_cutile.words.locking import replace_file
from tests.plugin.forked import run_forked


def report_after(project, *args: str, ret: int = 0, gates: str = "cutile_correct or cutile_speed"):
    result = project.run("--kernel-json=report.json", *args, gates=gates)
    assert result.ret == ret
    return json.loads((project.path / "report.json").read_text())


@pytest.mark.parametrize("args", [(), ("-n", "1", "-p", "no:benchmark")])
def test_a_regression_has_its_story_samples_and_history(project, args):
    project.record(40.0)
    project.times(44.0)
    report = report_after(project, *args, ret=1)
    assert (report["schema"], report["of"], report["unfinished"]) == (1, "run", False)
    (case,) = report["cases"]
    assert (case["key"], case["arch"], case["gpu"]) == ("scale[n8]", "sm_90", "NVIDIA H200")
    assert (case["verdict"], case["tone"], case["failed"]) == ("regression", "bad", True)
    assert case["figures"]["origin"] == "measured"
    assert case["figures"]["us_per_launch"] == pytest.approx(44.0)
    speed = next(result for result in case["results"] if result["gate"] == "speed")
    blocks = speed["measured"]["blocks"]
    assert {block["regime"] for block in blocks} == {"burst"}
    assert min(blocks[0]["current_us"]) == pytest.approx(44.0 * 0.996)
    (series,) = report["history"]["scale[n8]"]
    assert [point["burst_us"] for point in series["points"]] == [pytest.approx(40.0)]
    assert report["verdicts"]["speed"] == {"sm_90": {"regression": 1}}
    (failure,) = report["failures"]
    assert failure["headline"].startswith("scale[n8] on sm_90 (NVIDIA H200")
    assert "is 10.0% slower than" in failure["headline"]
    assert failure["place"].startswith("mykernels/scale.py:")
    assert failure["command"].startswith("pytest ")
    assert "--update-baselines" not in failure["command"]  # it repeats the test
    assert report["platforms"]["NVIDIA H200"]["memory_bandwidth_gb_s"] == 4800
    assert report["environment"]["command"].startswith("pytest ")


def test_a_wrong_result_has_a_picture_and_a_command(project):
    project.edit("return x * 2", "return x * 3")
    report = report_after(project, ret=1)
    (wrong,) = (one for one in report["cases"][0]["results"] if one["gate"] == "correct")
    assert wrong["errors"]["matrix"] == "output"
    assert {*"".join(wrong["errors"]["rows"])} == {"8"}  # half as much again is far outside of the bound
    (failure,) = report["failures"]
    assert failure["command"].startswith("pytest ")
    assert "::correct[n8]" in failure["command"]


def test_compiled_code_stands_beside_its_baseline(static):
    static.record()
    static.change(("TILE_M, TILE_N, TILE_K = 64, 64, 32", "TILE_M, TILE_N, TILE_K = 32, 64, 32"))
    static.run("--kernel-json=report.json", "-n", "1")
    report = json.loads((static.project.path / "report.json").read_text())
    (case,) = report["cases"]
    (result,) = case["results"]
    assert result["facts"]["launches"][0]["grid"] == [8, 4]
    assert case["baseline"]["facts"]["launches"][0]["grid"] == [4, 4]


def test_it_replaces_and_an_interrupted_run_says_so(project):
    (project.path / "report.json").write_text("of before")
    project.pytester.makepyfile(
        test_mine="""
        def test_first(perf): perf(lambda: None, bytes=1e8)
        def test_second(): raise KeyboardInterrupt
        """
    )
    run_forked(project.pytester, "--kernel-json=report.json", "test_mine.py")
    report = json.loads((project.path / "report.json").read_text())
    assert report["unfinished"]
    assert [case["name"] for case in report["cases"]] == ["test_first"]


def test_baselines_that_cannot_be_read_are_a_remark(project):
    project.record(40.0)
    project.baseline.write_text("{")
    report = report_after(project, gates="cutile_correct")
    assert "history and compiled baselines are left out" in report["remarks"][-1]
    assert report["history"] == {}


def test_no_case(project):
    project.pytester.makepyfile(test_mine="def test_mine(): pass")
    report = report_after(project, "test_mine.py", gates="")
    assert (report["cases"], report["failures"], report["verdicts"]) == ([], [], {})


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nosuch/report.json", "*--kernel-json: nosuch/report.json cannot be written: No such file*"),
        (".", "*--kernel-json: . cannot be written: Is a directory*"),
        ("n" * 300, "*cannot be written: File name too long*"),
    ],
)
def test_a_path_that_cannot_be_written_is_a_usage_error(project, path, message):
    result = project.run(f"--kernel-json={path}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_a_full_target_is_one_clear_message(project):
    result = project.run("--kernel-json=/dev/full")
    assert result.ret == 1  # a job without its report is not green
    lines = [line for line in result.stdout.lines if "--kernel-json" in line]
    reason = "/dev/full is full or cannot be written: No space left on device"
    assert lines == [f"cutile: --kernel-json: nothing was written: {reason}"]


def test_a_disk_that_fills_up_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "report.json"
    file.write_text("of before")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(file, "half")
    assert file.read_text() == "of before"
    assert [*tmp_path.iterdir()] == [file]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to("file")
    replace_file(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert Path(tmp_path / "file").read_text() == "text"


def test_a_missing_package_is_a_usage_error(project, monkeypatch):
    needing = FORMATS[-1]._replace(needs="no_such_package")
    monkeypatch.setattr(report_files, "FORMATS", (needing,))
    result = project.run(f"{needing.option}=report")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*needs the package no_such_package: pip install *report*"])
