import fcntl
import os
import threading
import time

from pytest_cutile.compiler import Compiler, cutile
from pytest_cutile.compiler.cache import DiskCache
from tests.compiler.test_compiler import add_job

KEY = "ab" * 32


def test_who_waited_finds_what_the_other_made(tmp_path):
    first, second = (DiskCache(tmp_path, suffix=".x") for _ in range(2))
    entries = []

    def wait_and_read():
        with second.making(KEY, wait_s=30):
            entries.append(second.read(KEY))

    with first.making(KEY, wait_s=30):
        waiting = threading.Thread(target=wait_and_read)
        waiting.start()
        time.sleep(0.2)
        first.write(KEY, b"made")
    waiting.join()
    assert entries == [b"made"]


def test_two_compilers_make_a_thing_once(tmp_path, monkeypatch):
    """As two runs, or two workers, do: each has a compiler of its own, and they share the folder."""
    compiled = []
    run = cutile.run_tileiras

    def counted(*args, **options):
        compiled.append(options["arch"])
        time.sleep(0.3)
        return run(*args, **options)

    monkeypatch.setattr(cutile, "run_tileiras", counted)
    job = add_job()
    with (
        Compiler(cache_dir=tmp_path, jobs=1, timeout_s=60) as one,
        Compiler(cache_dir=tmp_path, jobs=1, timeout_s=60) as two,
    ):
        futures = [one.submit(job), two.submit(job)]
        cubins = {future.result().cubin for future in futures}
    assert len(cubins) == 1
    assert compiled == ["sm_90"]


def hold(folder):
    """Lock as a process does that was suspended while it compiled."""
    folder.mkdir(parents=True)
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def test_who_waits_for_a_process_that_hangs_gives_up(tmp_path):
    descriptor = hold(tmp_path / KEY[:2])
    start = time.monotonic()
    with DiskCache(tmp_path, suffix=".x").making(KEY, wait_s=0.2):
        assert 0.2 <= time.monotonic() - start < 10
    os.close(descriptor)


def test_nobody_waits_when_the_run_ends(tmp_path):
    descriptor = hold(tmp_path / KEY[:2])
    cache = DiskCache(tmp_path, suffix=".x")
    threading.Timer(0.2, cache.closing.set).start()
    with cache.making(KEY, wait_s=600):
        pass
    os.close(descriptor)


def test_without_a_folder_nobody_waits():
    cache = DiskCache(None, suffix=".x")
    with cache.making(KEY, wait_s=600):
        cache.write(KEY, b"made")
    assert cache.read(KEY) is None
