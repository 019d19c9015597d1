"""Locks of files and folders, also where the platform has none."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pytest_cutile.words.locking import locked, replacing

ROOT = Path(__file__).resolve().parents[2]


def test_a_file_that_is_free_is_locked_without_waiting(tmp_path):
    waited = []
    for _ in range(2):
        with locked(tmp_path, on_wait=lambda: waited.append(True)):
            pass
    with locked(tmp_path, shared=True), locked(tmp_path, shared=True, on_wait=lambda: waited.append(True)):
        pass
    assert waited == []


def test_a_file_that_is_missing_cannot_be_locked(tmp_path):
    with pytest.raises(FileNotFoundError), locked(tmp_path / "x"):
        pass


def test_who_replaces_a_file_leaves_no_lock_file(tmp_path):
    inside = []

    def replace(number):
        with replacing(tmp_path / "x.json"):
            inside.append(number)
            assert inside == [number]
            inside.remove(number)

    threads = [threading.Thread(target=replace, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert inside == []
    assert [*tmp_path.iterdir()] == []


LIKE_WINDOWS = """
import signal, sys
sys.modules["fcntl"] = None
del signal.SIGPIPE, signal.SIGKILL
import pathlib
import pytest_cutile.cli, pytest_cutile.plugin
import pytest_cutile.gates.session, pytest_cutile.gates.revisions.trees
from pytest_cutile.words.locking import locked
try:
    with locked(pathlib.Path("/")):
        pass
except OSError as error:
    print(error.strerror)
"""


def test_on_windows_the_plugin_imports_and_a_lock_says_what_is_missing():
    command = [sys.executable, "-c", LIKE_WINDOWS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "locks of GPUs and folders need flock, which this platform lacks\n"


def test_a_lock_that_nobody_gives_back_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("pytest_cutile.words.locking.LOCK_SECONDS", 0.0)
    path = tmp_path / "x.json"
    with replacing(path), pytest.raises(OSError, match="could not be acquired"), replacing(path):
        pass
