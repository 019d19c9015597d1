"""A folder for a bug report about tileiras: which options crash, and a script that needs nothing else."""

import subprocess
import time
from collections import Counter

import pytest

from pytest_cutile.tile.compiler import CompileJob
from pytest_cutile.tile.compiler.reproduction import TriedKernel, write_reproduction
from pytest_cutile.tile.compiler.trials import NOT_TRIED, try_options
from tests.tile.compiler import fake_tileiras

JOB = CompileJob(
    bytecode=b"TileIR", arch="sm_90", opt_level=3, kernel="add_kernel", symbol="s", file=__file__, line=1
)
ARCHITECTURES = ("sm_80", "sm_90")


def try_with(monkeypatch, folder, script, *, seconds=20.0):
    fake_tileiras.install(monkeypatch, folder, script)
    return try_options(JOB, ARCHITECTURES, seconds=seconds, processes=2)


def test_options_that_crash_are_found_and_the_jobs_own_come_first(monkeypatch, tmp_path) -> None:
    trials = try_with(monkeypatch, tmp_path, fake_tileiras.crashes_at("sm_90", "-O3"))
    assert {(trial.arch, trial.opt_level) for trial in trials} == {
        (arch, level) for arch in ARCHITECTURES for level in range(4)
    }
    assert [(t.arch, t.opt_level) for t in trials if t.outcome == "crashes"] == [("sm_90", 3)]
    assert (trials[0].arch, trials[0].opt_level) == ("sm_90", 3)
    assert Counter(trial.outcome for trial in trials) == {"crashes": 1, "compiles": 7}


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        (fake_tileiras.SILENT, "fails without a reason"),
        (fake_tileiras.REJECTS, "rejects it"),
        ("sleep 9", "too long"),
    ],
)
def test_other_outcomes(monkeypatch, tmp_path, script, outcome) -> None:
    trials = try_with(monkeypatch, tmp_path, script, seconds=0.4)
    assert trials[0].outcome == outcome
    assert {trial.outcome for trial in trials} <= {outcome, NOT_TRIED}


def test_trials_end_when_their_time_is_over(monkeypatch, tmp_path) -> None:
    started = time.monotonic()
    trials = try_with(monkeypatch, tmp_path, "sleep 0.3; exit 5", seconds=0.5)
    assert time.monotonic() - started < 2
    assert NOT_TRIED in {trial.outcome for trial in trials}


def write(monkeypatch, folder, script, *, jobs=(JOB,)):
    trials = try_with(monkeypatch, folder, script)
    kernels = [TriedKernel(job=job, trials=trials) for job in jobs]
    files = write_reproduction(folder / "report", "add[n7]", kernels)
    return {file.name for file in files}, (folder / "report" / "README.md").read_text()


def run_script(folder, **env):
    return subprocess.run(
        ["/bin/sh", "report/reproduce.sh"],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **env},
        check=False,
        capture_output=True,
        text=True,
    )


def test_the_folder_says_what_crashes_and_shows_it(monkeypatch, tmp_path) -> None:
    files, readme = write(monkeypatch, tmp_path, fake_tileiras.crashes_at("sm_90", "-O3"))
    assert files == {"README.md", "reproduce.sh", "add_kernel.tileirbc"}
    assert (tmp_path / "report" / "add_kernel.tileirbc").read_bytes() == b"TileIR"
    assert readme.startswith("# tileiras crashes on add_kernel for sm_90 with -O3\n\n    sh reproduce.sh\n")
    assert "    tileiras add_kernel.tileirbc -o add_kernel.cubin --gpu-name sm_90 -O3 --lineinfo" in readme
    assert "tileiras crashed on add_kernel for sm_90 (-O3): segmentation fault (SIGSEGV)" in readme
    assert "| sm_80 | compiles | compiles | compiles | compiles |" in readme
    assert "| sm_90 | compiles | compiles | compiles | crashes |" in readme
    assert "- cuda-tile 1." in readme
    assert "- tileiras 13." in readme
    done = run_script(tmp_path)
    assert done.returncode == 139
    assert "exit status 139, no cubin" in done.stdout


def test_another_tileiras_can_be_tried(monkeypatch, tmp_path) -> None:
    write(monkeypatch, tmp_path, fake_tileiras.SEGV)
    (tmp_path / "other").mkdir()
    fixed = fake_tileiras.install(monkeypatch, tmp_path / "other", fake_tileiras.crashes_at("no such option"))
    done = run_script(tmp_path, TILEIRAS=str(fixed))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exit status 0, a cubin" in done.stdout


def test_a_script_fails_where_no_cubin_is_written(monkeypatch, tmp_path) -> None:
    write(monkeypatch, tmp_path, fake_tileiras.NO_CUBIN)
    assert run_script(tmp_path).returncode == 1


def test_several_kernels_have_files_of_their_own(monkeypatch, tmp_path) -> None:
    files, readme = write(monkeypatch, tmp_path, fake_tileiras.SEGV, jobs=(JOB, JOB))
    assert {"add_kernel-1.tileirbc", "add_kernel-2.tileirbc"} < files
    assert readme.count("## add_kernel") == 2
    assert run_script(tmp_path).stdout.count("exit status 139") == 2
