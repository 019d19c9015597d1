"""Files of older schemas are rewritten once."""

import pytest

from pytest_cutile.baselines.entries import SpeedBaselines, StaticBaselines
from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.baselines.files import read_speed, read_static, render_speed, render_static
from pytest_cutile.cli import main
from tests.baselines.test_speed import PUBLISHED, entry, run
from tests.baselines.test_static import entry as static_entry

SPEED = SpeedBaselines(
    arch="sm_90",
    gpu="NVIDIA H200",
    entries={
        "k[c]": entry(
            runs=(run(workload_us=50.5), run(41.0)), fingerprint="0123", reference_workload="copy of 96 MiB"
        ),
        "k[published]": entry(runs=(), published=PUBLISHED),
    },
)
STATIC = StaticBaselines(arch="sm_90", entries={"k[c]": static_entry()})


def as_schema_2(text: str) -> str:
    for name, old in (
        ('"schema": 3', '"schema": 2'),
        ("fingerprint", "identity"),
        ("reference_workload", "control"),
        ("workload_us", "control_us"),
    ):
        text = text.replace(name, old)
    return text


def as_schema_1(text: str) -> str:
    return text.replace('"schema": 2', '"schema": 1').replace("fingerprint", "identity")


@pytest.fixture
def old(tmp_path):
    """A folder with files of the schemas before."""
    (tmp_path / "sm_90-nvidia-h200.json").write_text(as_schema_2(render_speed(SPEED)))
    (tmp_path / "sm_90-static.json").write_text(as_schema_1(render_static(STATIC)))
    return tmp_path


def test_a_folder_of_older_files_is_rewritten(old, capsys):
    assert main(["migrate", f"{old}"]) == 0
    assert capsys.readouterr().out.count("rewritten in the current format") == 2
    assert read_speed(old / "sm_90-nvidia-h200.json") == SPEED
    assert read_static(old / "sm_90-static.json", "sm_90") == STATIC
    assert main(["migrate", f"{old}"]) == 0
    assert capsys.readouterr().out.count("is current") == 2


def test_an_older_file_that_is_not_migrated_says_how(old):
    with pytest.raises(BaselineError, match=r"h200.json:2: schema 2, .*: pytest-cutile migrate .*h200.json"):
        read_speed(old / "sm_90-nvidia-h200.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"schema": 2', '"schema": 99'), "schema 99, this release reads 3. Upgrade"),
        (('"schema": 2', '"schema": 1'), "schema 1, this release reads 3"),
        (('"spread"', '"sprd"'), "unknown field `sprd`"),
        (('"entries"', '"cases"'), "it is not of the form of schema 2: KeyError('entries')"),
        (('"control_us"', '"controls_us"'), "unknown field `controls_us`"),
    ],
)
def test_what_cannot_be_migrated_stays_as_it_is(old, capsys, change, message):
    path = old / "sm_90-nvidia-h200.json"
    text = path.read_text().replace(*change)
    path.write_text(text)
    assert main(["migrate", f"{path}"]) == 2
    assert message in capsys.readouterr().err
    assert path.read_text() == text


def test_a_file_that_is_missing_is_named(tmp_path, capsys):
    assert main(["migrate", f"{tmp_path / 'x.json'}"]) == 2
    assert "x.json: there is no such file" in capsys.readouterr().err
