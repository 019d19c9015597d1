"""Locks between real processes, which say when they wait and are in: no test waits for the clock."""

import os
import select
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cutile.timing.gpu.lock import GpuLock

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import contextlib
import os
import pathlib
import sys

from pytest_cutile.timing.gpu.lock import GpuLock


def reply(word):
    print(word, flush=True)


lock = GpuLock(sys.argv[1], folder=pathlib.Path(sys.argv[2]), on_wait=lambda: reply("waiting"))
entered = []
with contextlib.ExitStack() as stack:
    for line in sys.stdin:
        word = line.strip()
        if word == "leave":
            entered.pop().close()
        elif word == "fork":
            end, alive = os.pipe()
            if os.fork() == 0:
                os.close(alive)
                os.read(end, 1)  # lives until this process is killed
                os._exit(0)
        else:
            entered.append(contextlib.ExitStack())
            stack.enter_context(entered[-1])
            entered[-1].enter_context(getattr(lock, word)())
        reply("done")
"""


class Process:
    """Another process of this machine that uses the GPU."""

    def __init__(self, uuid, folder):
        self._replies = ""
        self._process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, uuid, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )

    def ask(self, word):
        """Enter `alone` or `shared`, `leave` what was entered last, or `fork`; do not wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()
        return self

    def reply(self):
        """Return the next word, or nothing if none comes."""
        assert self._process.stdout is not None
        while "\n" not in self._replies:
            more = os.read(self._process.stdout.fileno(), 100) if self._has_replied(within=20.0) else b""
            if not more:
                return ""
            self._replies += more.decode()
        word, _, self._replies = self._replies.partition("\n")
        return word

    def request(self, word):
        """Return the reply after asking for `word`."""
        return self.ask(word).reply()

    def is_in_after_all(self):
        """Return whether it got in, whether or not it had to wait."""
        return self.reply() == "done" or self.reply() == "done"

    def _has_replied(self, within):
        assert self._process.stdout is not None
        return bool(self._replies or select.select([self._process.stdout], [], [], within)[0])

    def is_waiting(self):
        """Return whether the kernel lists it among those that wait for a lock, before it replies."""
        while not self._has_replied(within=0.0):
            locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
            if any("->" in words and str(self._process.pid) in words for words in locks):
                return True
        return False

    def kill(self):
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def start(tmp_path):
    started = []

    def start(uuid="GPU-1"):
        started.append(Process(uuid, tmp_path / "gpus"))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def test_two_who_time_exclude_each_other(start):
    one, two = start(), start()
    assert one.request("alone") == "done"
    assert two.request("alone") == "waiting"
    assert two.is_waiting()
    assert one.request("leave") == "done"
    assert two.reply() == "done"
    assert one.request("alone") == "waiting"


def test_others_share(start):
    one, two = start(), start()
    assert one.request("shared") == "done"
    assert two.request("shared") == "done"


@pytest.mark.parametrize(("first", "second"), [("alone", "shared"), ("shared", "alone")])
def test_nobody_shares_with_who_times(start, first, second):
    one, two = start(), start()
    assert one.request(first) == "done"
    assert two.request(second) == "waiting"
    assert one.request("leave") == "done"
    assert two.reply() == "done"


def test_who_comes_later_does_not_keep_who_wants_to_time_waiting(start):
    reader, writer, late = start(), start(), start()
    assert reader.request("shared") == "done"
    assert writer.request("alone") == "waiting"
    assert late.request("shared") == "waiting"
    assert reader.request("leave") == "done"
    assert writer.reply() == "done"
    assert late.is_waiting()
    assert writer.request("leave") == "done"
    assert late.reply() == "done"


@pytest.mark.parametrize("how", ["alone", "shared"])
def test_a_killed_holder_frees_the_gpu(start, how):
    killed, waiting = start(), start()
    assert killed.request(how) == "done"
    assert waiting.request("alone") == "waiting"
    killed.kill()
    assert waiting.is_in_after_all()


def test_who_was_killed_while_it_waited_keeps_nobody_out(start):
    reader, killed, late = start(), start(), start()
    assert reader.request("shared") == "done"
    assert killed.request("alone") == "waiting"
    killed.kill()
    assert late.request("shared") == "done"


@pytest.mark.parametrize("how", ["alone", "shared"])
def test_what_was_forked_meanwhile_does_not_keep_the_gpu(start, how):
    one, two = start(), start()
    for word in (how, "fork", "leave"):
        assert one.request(word) == "done"
    assert two.request("alone") == "done"


def test_two_who_share_and_want_to_time_do_not_wait_for_each_other_for_ever(start):
    one, two = start(), start()
    assert one.request("shared") == "done"
    assert two.request("shared") == "done"
    assert one.request("alone") == "waiting"
    assert two.request("alone") == "waiting"  # it has given up its share, too
    assert one.reply() == "done"
    assert two.is_waiting()
    one.kill()
    assert two.is_in_after_all()


def test_a_share_that_was_given_up_is_taken_back(start):
    one, two = start(), start()
    for word in ("shared", "alone", "leave"):
        assert one.request(word) == "done"
    assert two.request("alone") == "waiting"
    assert one.request("leave") == "done"
    assert two.reply() == "done"


def test_nested_use_neither_waits_nor_frees_early(start):
    one, two = start(), start()
    for word in ("alone", "alone", "shared", "leave", "leave"):
        assert one.request(word) == "done"
    assert two.request("shared") == "waiting"
    assert one.request("leave") == "done"
    assert two.reply() == "done"
    assert one.request("shared") == "done"
    assert one.request("shared") == "done"
    assert one.request("leave") == "done"
    assert two.request("leave") == "done"
    assert two.request("alone") == "waiting"


def test_another_gpu_is_free(start):
    assert start("GPU-1").request("alone") == "done"
    assert start("GPU-2").request("alone") == "done"


@pytest.mark.parametrize("lock", [GpuLock("GPU-1", enabled=False), GpuLock("")])
def test_without_a_lock_nobody_waits(start, tmp_path, lock):
    assert start().request("alone") == "done"
    before = sorted(tmp_path.rglob("*"))
    with lock.shared(), lock.alone():
        assert sorted(tmp_path.rglob("*")) == before


def test_an_error_while_timing_frees_the_gpu(start, tmp_path):
    lock = GpuLock("GPU-1", folder=tmp_path / "gpus")
    with pytest.raises(ZeroDivisionError), lock.shared(), lock.alone():
        raise ZeroDivisionError
    other = start()
    assert (other.request("alone"), other.request("leave")) == ("done", "done")
    with lock.shared():  # it can be used again
        assert other.request("alone") == "waiting"


def test_other_users_may_lock_too_whatever_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        with GpuLock("GPU-1", folder=tmp_path / "gpus").alone():
            pass
    finally:
        os.umask(before)
    folder = tmp_path / "gpus"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o644}
