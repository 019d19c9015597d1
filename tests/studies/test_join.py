"""Parts of a study that several GPUs timed become one record."""

import json

import pytest

from studies import __main__ as command
from studies.running.join import join_records
from studies.running.run import run_study
from tests.studies.pretended import PretendedTimer
from tests.studies.test_running import STUDY, TIMES


@pytest.fixture
def parts(tmp_path):
    """Return the folders of two halves of the toy study."""
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder, only in zip(folders, ("fp16-64", "fp16-32"), strict=True):
        run_study(STUDY, PretendedTimer(TIMES), folder, only=only)
    return folders


def change(folder, name, value):
    file = folder / "rows.json"
    record = json.loads(file.read_text())
    record["environment"][name] = value
    file.write_text(json.dumps(record))


def test_rows_of_two_gpus_are_one_record_in_the_order_of_the_study(parts):
    for folder, uuid in zip(parts, ("GPU-1", "GPU-2"), strict=True):
        change(folder, "uuid", uuid)
    record = join_records(parts, STUDY)
    whole = [row.key for row in STUDY.rows(False) if not row.contender.missing]
    assert [row.key for row in record.rows] == whole
    assert len(record.rows) == record.planned
    assert record.environment["uuid"] == "GPU-1, GPU-2"
    assert record.missing == {"absent": "it is not installed"}


def test_a_row_that_no_part_has_keeps_its_error(parts):
    for folder in parts:
        file = folder / "rows.json"
        record = json.loads(file.read_text())
        record["errors"] = dict.fromkeys(("slow[fp16-64]", "slow[fp16-99]"), "it is wrong")
        file.write_text(json.dumps(record))
    assert join_records(parts, STUDY).errors == {"slow[fp16-99]": "it is wrong"}


def test_parts_of_different_compilers_are_not_joined(parts):
    change(parts[1], "tileiras", "14.0")
    with pytest.raises(SystemExit, match=r"other is not comparable with .*one: tileiras 14\.0"):
        join_records(parts, STUDY)


def test_a_row_counts_once(parts):
    with pytest.raises(SystemExit, match=r"slow\[fp16-64\] is in two of the folders"):
        join_records([parts[0], *parts], STUDY)


def test_the_command_writes_record_and_pages(parts, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "load_study", {"toy": STUDY}.__getitem__)
    monkeypatch.setattr(command, "study_names", lambda: ["toy"])
    output = tmp_path / "joined"
    assert command.main(["join", *map(str, parts), "--output", str(output)]) == 0
    assert (output / "toy" / "toy.md").read_text() == "6 rows\n"
    assert "rows.json" in capsys.readouterr().out


def test_a_folder_without_a_record_is_named(tmp_path):
    with pytest.raises(SystemExit, match=r"rows\.json: .*No such file"):
        command.main(["join", str(tmp_path), "--output", str(tmp_path)])


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch):
    def missing(_):
        raise ModuleNotFoundError("No module named 'jinja2'", name="jinja2")

    monkeypatch.setattr(command, "import_module", missing)
    with pytest.raises(SystemExit, match=r"jinja2 is not installed: pip install -e '\.\[all\]'"):
        command.load_study("platforms")
