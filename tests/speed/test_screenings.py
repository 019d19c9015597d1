"""What workers tell each other of what they screened, also where one of them cannot."""

import subprocess
import sys
from pathlib import Path

import pytest
from pytest_cutile.speed.screenings import Screenings

from pytest_cutile.speed import screenings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def workers(tmp_path):
    return Screenings(tmp_path, "gw0"), Screenings(tmp_path, "gw1")


def test_each_worker_reads_the_others(workers):
    here, there = workers
    here.publish([{"key": "a"}])
    there.publish([{"key": "b"}])
    assert here.others(pytest.fail) == [{"key": "b"}]
    assert there.others(pytest.fail) == [{"key": "a"}]


def test_one_with_a_full_disk_tells_nothing(tmp_path):
    (tmp_path / "gw0").symlink_to("/dev/full")
    here, there = Screenings(tmp_path, "gw0"), Screenings(tmp_path, "gw1")
    here.publish([{"key": "a"}])
    (tmp_path / "gw0").unlink()  # endless where it is read, as no file of a worker is
    there.publish([{"key": "b"}])
    assert here.others(pytest.fail) == [{"key": "b"}]
    assert there.others(pytest.fail) == []


@pytest.mark.parametrize("written", [b'[{"key": "a"}, {"ke', b"\xff"])
def test_what_cannot_be_read_is_as_good_as_nothing(workers, tmp_path, written):
    here, there = workers
    here.publish([{"key": "a"}])
    there.publish([])
    Path(tmp_path, "gw0").write_bytes(written)
    assert there.others(pytest.fail) == []


FORKS = """
import os
import pathlib
import sys

from pytest_cutile.speed.screenings import Screenings

worker = Screenings(pathlib.Path(sys.argv[1]), "gw0")
if os.fork() == 0:  # lives as long as whoever started this holds the other end of its stdin
    sys.stdin.read()
    os._exit(0)
worker.publish([{"key": "a"}])
print("done", flush=True)
"""


def test_what_a_test_left_running_keeps_nobody_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(screenings, "PATIENCE_S", 0.0)
    command = [sys.executable, "-c", FORKS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        assert Screenings(tmp_path, "gw1").others(pytest.fail) == [{"key": "a"}]


def test_one_that_does_not_end_is_not_waited_for_for_ever(workers, tmp_path, monkeypatch):
    monkeypatch.setattr(screenings, "PATIENCE_S", 0.1)
    here, there = workers
    Screenings(tmp_path, "gw2").publish([{"key": "c"}])
    there.publish([])
    said: list[str] = []
    assert there.others(said.append) == [{"key": "c"}]
    assert said == [
        "session effect: gw1 has waited 0 minutes for the tests of gw0, and judged without its screenings"
    ]
    here.publish([{"key": "a"}])
    assert there.others(pytest.fail) == [{"key": "a"}, {"key": "c"}]
