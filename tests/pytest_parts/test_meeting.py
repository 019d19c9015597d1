"""The controller of pytest-xdist measures for its workers."""

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

from pytest_cutile.pytest_parts import fresh_process
from pytest_cutile.pytest_parts.meeting import FOLDER, Meeting, Worker


def test_a_server_that_starts_while_the_run_is_interrupted_is_stopped(pytestconfig, monkeypatch):
    is_starting, may_start = threading.Event(), threading.Event()
    processes = []

    def start(*_, **__):
        is_starting.set()
        may_start.wait(10)
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        processes.append(subprocess.Popen(command, start_new_session=True))
        return processes[0]

    monkeypatch.setattr(fresh_process, "start_pytest", start)
    meeting = Meeting(pytestconfig, lambda _: None)
    node = SimpleNamespace(gateway=SimpleNamespace(id="gw0", spec=SimpleNamespace(env={})), workerinput={})
    meeting.pytest_configure_node(node)
    Worker(Path(node.workerinput[FOLDER]), "gw0", ["test_mine.py::test_mine"])
    assert is_starting.wait(10)
    threading.Timer(0.3, may_start.set).start()
    meeting.pytest_sessionfinish()
    ended = processes[0].poll()
    processes[0].kill()
    assert ended is not None
    assert not Path(node.workerinput[FOLDER]).exists()
