import os
import subprocess
import threading
import time

import pytest

from pytest_cutile.tile.compiler import process
from pytest_cutile.tile.compiler.process import run_process
from pytest_cutile.tile.forking import fork


def run(script: str, timeout_s: float = 10.0) -> process.FinishedProcess:
    return run_process(["/bin/sh", "-c", script], {**os.environ, "WORD": "x y"}, timeout_s=timeout_s)


def test_status_and_text_of_both_streams() -> None:
    ended = run('echo "$WORD"; echo err >&2; exit 7')
    assert (ended.status, ended.output, ended.was_stopped) == (7, b"x y\nerr\n", False)


def test_the_number_of_the_signal() -> None:
    assert run("kill -ABRT $$").status == -6


def test_more_output_than_a_pipe_holds() -> None:
    assert len(run("head -c 300000 /dev/zero").output) == 300000


def test_a_process_whose_child_lives_on_is_not_waited_for() -> None:
    started = time.monotonic()
    assert run("sleep 5 & exit 3").status == 3
    assert time.monotonic() - started < 4


def test_a_process_is_stopped_when_its_time_is_over() -> None:
    ended = run("echo begun; exec sleep 60", timeout_s=0.2)
    assert ended.was_stopped
    assert ended.output == b"begun\n"


def test_a_program_that_cannot_be_started() -> None:
    with pytest.raises(FileNotFoundError):
        run_process(["/no/such/program"], {}, timeout_s=1)


def test_memory_is_watched_while_it_runs() -> None:
    ended = run("sleep 0.1")
    assert ended.memory.peak is not None
    assert 1 << 16 < ended.memory.peak < 1 << 30
    assert ended.memory.total is not None
    assert ended.memory.least_free is not None
    assert ended.memory.least_free <= ended.memory.total


def test_a_container_has_what_its_group_may_have(monkeypatch, tmp_path) -> None:
    (tmp_path / "max").write_text("1073741824\n")
    (tmp_path / "current").write_text("1073740800\n")
    monkeypatch.setattr(process, "_CGROUPS", ((tmp_path / "max", tmp_path / "current"),))
    memory = run("true").memory
    assert (memory.total, memory.least_free, memory.is_enough) == (1 << 30, 1024, False)


def test_a_group_without_a_limit_and_a_system_without_tables(monkeypatch, tmp_path) -> None:
    (tmp_path / "max").write_text("max\n")
    monkeypatch.setattr(process, "_CGROUPS", ((tmp_path / "max", tmp_path / "none"),))
    monkeypatch.setattr(process, "_PROC", tmp_path / "none")
    memory = run("sleep 0.05").memory
    assert memory == process.ProcessMemory()
    assert not memory.is_enough


def test_no_process_is_forked_while_another_one_is_started(monkeypatch) -> None:
    """It would have the pipe by which Popen learns that its program runs, and Popen would wait for it."""
    events, begun, start = [], threading.Event(), subprocess.Popen

    def start_slowly(*args, **options):
        begun.set()
        time.sleep(0.2)
        events.append("started")
        return start(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", start_slowly)
    thread = threading.Thread(target=lambda: run_process(["true"], {"PATH": "/bin:/usr/bin"}, timeout_s=60))
    thread.start()
    begun.wait(60)
    pid = fork()
    if pid == 0:
        os._exit(0)
    events.append("forked")
    os.waitpid(pid, 0)
    thread.join()
    assert events == ["started", "forked"]
