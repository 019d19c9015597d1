import pytest

from pytest_cutile.baselines import files
from pytest_cutile.cli import main
from pytest_cutile.reports.report import from_json
from tests.baselines.examples import baselines, entry, record


@pytest.mark.parametrize("name", ["page.svg", "page.txt", "of.july"])
def test_a_report_is_no_file_of_another_kind(name, tmp_path, capsys):
    (tmp_path / "baselines").mkdir()
    assert main(["report", str(tmp_path / "baselines"), "-o", str(tmp_path / name)]) == 2
    assert "give a file .html or .json, a folder that exists" in capsys.readouterr().err
    assert not (tmp_path / name).exists()


def test_a_folder_may_have_a_dot_if_it_exists(tmp_path):
    (tmp_path / "baselines").mkdir()
    (tmp_path / "of.july").mkdir()
    assert main(["report", str(tmp_path / "baselines"), "-o", str(tmp_path / "of.july")]) == 0
    assert (tmp_path / "of.july" / "index.html").exists()


def test_a_run_and_baselines_are_not_shown_together(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path), "--run", "run.json", "-o", str(tmp_path / "page.html")])
    assert "not allowed with" in capsys.readouterr().err


def test_files_of_one_kind_of_gpu_are_one_history(tmp_path):
    of = [baselines({"k[c]": entry(record(1, 40.0), record(day, 41.0))}) for day in (2, 3)]
    for name, one in zip(("first", "other"), of, strict=True):
        (tmp_path / name).mkdir()
        files.write_speed(files.speed_path(tmp_path / name, "sm_90", "NVIDIA H200"), one)
    paths = [str(tmp_path / name) for name in ("first", "other", "first")]
    assert main(["report", *paths, "-o", str(tmp_path / "report.json")]) == 0
    (series,) = from_json((tmp_path / "report.json").read_bytes()).history["k[c]"]
    assert [point.burst_us for point in series.points] == [40.0, 41.0, 41.0]
