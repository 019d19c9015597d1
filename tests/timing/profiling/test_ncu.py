"""Nsight Compute is run on a command: with a script in its place."""

import json
import sys

import pytest

from pytest_cutile.timing.profiling import ncu
from pytest_cutile.timing.profiling.ncu import ProfilingError, collect
from tests.timing.profiling.examples import FakeNcu
from tools import profile_kernels

COMMAND = [sys.executable, "-c", "print('launched')"]


@pytest.fixture
def fake(tmp_path, monkeypatch):
    made = FakeNcu(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{made.folder}", prepend=":")
    return made


def test_a_command_is_profiled_and_its_counters_are_read(fake, tmp_path):
    fake.counts({"name": "one", "us": 5.0}, {"name": "two", "us": 6.0})
    report = tmp_path / "made" / "one.ncu-rep"
    kernels = collect(COMMAND, sections=["Occupancy", "LaunchStats"], metrics=["a", "b"], report=report)
    assert [(kernel.kernel, kernel.us) for kernel in kernels] == [("one", 5.0), ("two", 6.0)]
    assert report.exists()
    assert '"one"' in report.with_suffix(".csv").read_text()
    profiled, imported = fake.calls
    assert "--section Occupancy --section LaunchStats --metrics a,b" in profiled
    assert "--profile-from-start off" in profiled
    assert f"--import {report} --csv --page raw --print-units base" in imported


def test_without_a_report_nothing_is_kept(fake, tmp_path):
    fake.counts({"us": 5.0})
    assert len(collect(COMMAND)) == 1
    assert [*tmp_path.iterdir()] == [fake.folder]


def test_without_permission_it_says_how_to_get_it(fake):
    fake.says("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission")
    with pytest.raises(ProfilingError, match=r"NVreg_RestrictProfilingToAdminUsers=0"):
        collect(COMMAND)


def test_without_ncu_it_says_where_to_get_it(monkeypatch):
    monkeypatch.setattr(ncu, "find_program", lambda *_: None)
    with pytest.raises(ProfilingError, match=r"not installed.*developer\.nvidia\.com/nsight-compute"):
        collect(COMMAND)


def test_errors_of_the_command_are_shown_and_else_its_last_lines(fake):
    fake.counts({"us": 5.0})
    failing = [sys.executable, "-c", "print('much'); print('ERROR: no case x'); raise SystemExit(3)"]
    with pytest.raises(ProfilingError, match=r"^Nsight Compute saw no launch:\n  ERROR: no case x$"):
        collect(failing)
    with pytest.raises(ProfilingError, match=r"saw no launch:\n  last words$"):
        collect([sys.executable, "-c", "print('last words'); raise SystemExit(3)"])


def test_a_report_without_launches_is_an_error(fake):
    fake.counts()
    with pytest.raises(ProfilingError, match="holds no launch"):
        collect(COMMAND)


def test_what_hangs_is_stopped(fake):
    fake.counts({"us": 5.0})
    with pytest.raises(ProfilingError, match=r"not profiled after 0 s: .*ncu was stopped"):
        collect([sys.executable, "-c", "import time; time.sleep(100)"], timeout_s=0.0)


def test_the_tool_profiles_ways_to_compute_a_case(fake, capsys, tmp_path):
    fake.says("ERROR: no GPU here")
    file = tmp_path / "counters.json"
    case = "tests.tools.toy_suite[fp16-64"
    assert profile_kernels.main([case, "--ways", "ours,torch", "--json", str(file)]) == 0
    text = capsys.readouterr().out
    assert "toy_suite[fp16-64] torch: Nsight Compute saw no launch:\n  ERROR: no GPU here" in text
    profiles = json.loads(file.read_text())
    assert [(each["way"], each["kernels"]) for each in profiles] == [("ours", []), ("torch", [])]


def test_the_tool_says_what_bounds_the_largest_kernel(fake):
    fake.counts({"name": "fill", "us": 2.0}, {"name": "double", "us": 20.0, "dram": 85.0})
    assert profile_kernels.text_of(collect(COMMAND)).splitlines()[-1].startswith("double: bound by memory.")
