"""What killed runs left in the folder for temporary files goes; what runs use stays."""

import os
import tempfile
import time
from pathlib import Path

from pytest_cutile.words import temporary

DAY = 24 * 3600


def test_a_temporary_folder_removes_what_killed_runs_left(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    temporary._remove_abandoned.cache_clear()
    ages = {"pytest-cutile-old": 2 * DAY, "pytest-cutile-used": DAY / 2, "another-old": 2 * DAY}
    for name, age in ages.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "file").touch()
        os.utime(folder, (time.time() - age,) * 2)
    with temporary.temporary_folder() as new:
        assert {path.name for path in tmp_path.iterdir()} == {*list(ages)[1:], Path(new).name}
    assert {path.name for path in tmp_path.iterdir()} == {*list(ages)[1:]}
