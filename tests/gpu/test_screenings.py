"""What workers tell each other of what they screened, also where one of them cannot."""

from pathlib import Path

import pytest

from pytest_cutile.gates.screenings import Screenings


@pytest.fixture
def workers(tmp_path):
    return Screenings(tmp_path, "gw0"), Screenings(tmp_path, "gw1")


def test_each_hears_the_others(workers):
    here, there = workers
    here.publish([{"key": "a"}])
    there.publish([{"key": "b"}])
    assert here.others() == [{"key": "b"}]
    assert there.others() == [{"key": "a"}]


def test_one_with_a_full_disk_tells_nothing(tmp_path):
    (tmp_path / "gw0").symlink_to("/dev/full")
    here, there = Screenings(tmp_path, "gw0"), Screenings(tmp_path, "gw1")
    here.publish([{"key": "a"}])
    (tmp_path / "gw0").unlink()  # endless where it is read, as no file of a worker is
    there.publish([{"key": "b"}])
    assert here.others() == [{"key": "b"}]
    assert there.others() == []


@pytest.mark.parametrize("written", [b'[{"key": "a"}, {"ke', b"\xff"])
def test_what_cannot_be_read_is_as_good_as_nothing(workers, tmp_path, written):
    here, there = workers
    here.publish([{"key": "a"}])
    there.publish([])
    Path(tmp_path, "gw0").write_bytes(written)
    assert there.others() == []
