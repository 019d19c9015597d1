import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from pytest_cutile.tile.compiler import Compiler, cutile
from pytest_cutile.tile.compiler import cache as cache_module
from pytest_cutile.tile.compiler.cache import DiskCache
from tests.tile.compiler.test_compiler import add_job

KEY = "ab" * 32


class Clock:
    """Time as the cache sees it: it passes while somebody waits for a lock, and only then."""

    def __init__(self):
        self.now = 0.0
        self.somebody_waits = threading.Event()

    def sleep(self, seconds):
        self.now += seconds
        self.somebody_waits.set()
        time.sleep(0)  # lets another thread run


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    module = SimpleNamespace(monotonic=lambda: clock.now, sleep=clock.sleep)
    monkeypatch.setattr(cache_module, "time", module)
    return clock


def test_who_waited_finds_what_the_other_made(tmp_path, clock):
    first, second = (DiskCache(tmp_path, suffix=".x") for _ in range(2))
    entries = []

    def wait_and_read():
        with second.making(KEY, wait_s=float("inf")):
            entries.append(second.read(KEY))

    with first.making(KEY, wait_s=0):
        waiting = threading.Thread(target=wait_and_read)
        waiting.start()
        assert clock.somebody_waits.wait(60)
        first.write(KEY, b"made")
    waiting.join()
    assert entries == [b"made"]


def test_two_compilers_make_a_thing_once(tmp_path, monkeypatch, clock):
    """As two runs, or two workers, do: each has a compiler of its own, and they share the folder."""
    compiled = []
    run = cutile.run_tileiras

    def counted(file, job, **_options):
        compiled.append(job.arch)
        assert clock.somebody_waits.wait(60)
        return run(file, job, timeout_s=600)

    monkeypatch.setattr(cutile, "run_tileiras", counted)
    job = add_job()
    with (
        Compiler(cache_dir=tmp_path, jobs=1, timeout_s=float("inf")) as one,
        Compiler(cache_dir=tmp_path, jobs=1, timeout_s=float("inf")) as two,
    ):
        futures = [one.submit(job), two.submit(job)]
        cubins = {future.result().cubin for future in futures}
    assert len(cubins) == 1
    assert compiled == ["sm_90"]


@pytest.fixture
def lock_is_held(tmp_path):
    """Lock as a process does that was suspended while it compiled."""
    folder = tmp_path / KEY[:2]
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
    os.close(descriptor)


@pytest.mark.usefixtures("lock_is_held")
def test_who_waits_for_a_process_that_hangs_gives_up(tmp_path, clock):
    with DiskCache(tmp_path, suffix=".x").making(KEY, wait_s=20):
        assert 20 <= clock.now < 21


@pytest.mark.usefixtures("lock_is_held")
def test_nobody_waits_when_the_run_ends(tmp_path, clock):
    cache = DiskCache(tmp_path, suffix=".x")
    clock.somebody_waits = cache.closing  # the run ends while it waits
    with cache.making(KEY, wait_s=600):
        assert clock.now < 1


def test_without_a_folder_nobody_waits():
    cache = DiskCache(None, suffix=".x")
    with cache.making(KEY, wait_s=600):
        cache.write(KEY, b"made")
    assert cache.read(KEY) is None


def test_a_writer_that_is_killed_leaves_nothing_beside_the_entries(tmp_path):
    """The limit on a file's size kills it (SIGXFSZ) amid its write."""
    code = f"""
import resource, signal
from pathlib import Path
from pytest_cutile.tile.compiler.cache import DiskCache
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
DiskCache(Path({str(tmp_path)!r}), suffix=".x").write({KEY!r}, bytes(1000))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGXFSZ
    cache = DiskCache(tmp_path, suffix=".x")
    assert cache.read(KEY) is None
    cache.write(KEY, b"made")
    assert cache.read(KEY) == b"made"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [f"{KEY}.x"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_fork_made_meanwhile_keeps_no_lock(tmp_path):
    """A thread of the forked process may be making the entry that the fork needs next."""
    cache = DiskCache(tmp_path, suffix=".x")
    reader, writer = os.pipe()
    with cache.making(KEY, wait_s=0):
        pid = os.fork()
        if pid == 0:
            os.read(reader, 1)
            os._exit(0)
    began = time.monotonic()
    with cache.making(KEY, wait_s=20):
        waited = time.monotonic() - began
    os.write(writer, b"x")
    os.waitpid(pid, 0)
    assert waited < 10
