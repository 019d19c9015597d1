import pytest

from pytest_cutile.cli import main


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
