"""The status line, on a pseudo-terminal and in a log."""

import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from fcntl import ioctl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cutile.pytest_parts import status as module
from pytest_cutile.pytest_parts.status import QUIET_SECONDS, TICK_SECONDS, StatusLine, TimeLeft

pytestmark = pytest.mark.slow

TESTS = """
from conftest import pass_time

def test_quick():
    pass

def test_slow(request):
    say = request.config.pluginmanager.get_plugin("cutile-status")
    say("confirming softmax[bf16-16384x8192]")
    print("captured")
    pass_time(say, SECONDS)

def test_after():
    pass
"""
CLOCK = """
from types import SimpleNamespace

from pytest_cutile.pytest_parts import status

now = 0.0
status.time = SimpleNamespace(monotonic=lambda: now)
status.StatusLine._start = lambda self: None  # no thread

def pass_time(line, seconds):
    global now
    end = now + seconds
    while now < end:
        now += status.TICK_SECONDS
        line.tick()
"""
"""A conftest.py with a clock of its own, so that no test waits."""
SPLIT = re.compile(r"\x1b7\x1b\[B\r\x1b\[2K(.*?)\x1b8")
"""What was written below the cursor; empty where it was cleared."""


def on_terminal(folder: Path, *args: str, columns: int = 100, seconds: float = 10.0, more: str = "") -> str:
    """Run pytest on a terminal of its own; return all that was written there."""
    (folder / "conftest.py").write_text(CLOCK + more)
    (folder / "test_it.py").write_text(TESTS.replace("SECONDS", f"{seconds}"))
    pid, descriptor = pty.fork()
    if pid == 0:
        os.chdir(folder)
        for name in [name for name in os.environ if name.startswith("PYTEST")]:
            del os.environ[name]
        os.environ["TERM"] = "xterm"
        os.environ.pop("CI", None)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--color=no", *args]
        os.execv(sys.executable, command)
    ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    written = b""
    while True:
        try:
            part = os.read(descriptor, 4096)
        except OSError:
            break
        if not part:
            break
        written += part
    assert os.waitpid(pid, 0)[1] == 0, written.decode()
    return written.decode()


@pytest.mark.parametrize("columns", [60, 100, 200])
@pytest.mark.parametrize("args", [(), ("-v",)])
def test_the_line_appears_below_when_pytest_is_silent_and_goes(tmp_path, columns, args):
    written = on_terminal(tmp_path, *args, columns=columns)
    lines = SPLIT.findall(written)
    shown = [line for line in lines if line]
    assert shown
    assert all(len(line) < columns for line in shown)
    assert shown[0] == "cutile: for 2 s: confirming softmax[bf16-16384x8192]"[: columns - 1]
    assert lines[-1] == ""
    # pytest's own output is what it is without the line.
    own = SPLIT.sub("", written).replace("\x1bD\x1b[A", "")
    assert "cutile: for" not in own
    if args:
        assert len(re.findall(r"test_it\.py::test_slow", own)) == 1
    else:
        assert re.search(r"test_it\.py.{0,30}\.\.\..*100%", own)
    assert "3 passed" in own


def test_no_line_where_pytest_says_little(tmp_path):
    assert SPLIT.findall(on_terminal(tmp_path, "-q", "-q")) == []


def test_no_line_between_what_tests_write(tmp_path):
    written = on_terminal(tmp_path, "-s")
    assert "captured" in written
    assert "cutile:" not in written


def test_no_line_while_the_debugger_has_the_terminal(tmp_path):
    waiting = """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    if item.name == "test_after":
        line = item.config.pluginmanager.get_plugin("cutile-status")
        line("debugging")
        item.config.hook.pytest_enter_pdb(config=item.config, pdb=None)
        pass_time(line, 100.0)
        item.config.hook.pytest_leave_pdb(config=item.config, pdb=None)
        pass_time(line, 3.0)
"""
    lines = [line for line in SPLIT.findall(on_terminal(tmp_path, more=waiting)) if "debugging" in line]
    assert lines
    assert all("for 102 s" in line or "for 103 s" in line for line in lines)  # the debugger had it for 100


def test_a_quick_run_shows_no_line(tmp_path):
    assert SPLIT.findall(on_terminal(tmp_path, seconds=QUIET_SECONDS - TICK_SECONDS)) == []


@pytest.mark.parametrize("capture", ["fd", "sys"])
def test_a_log_gets_lines_while_one_call_lasts(tmp_path, capture):
    (tmp_path / "conftest.py").write_text(CLOCK)
    (tmp_path / "test_it.py").write_text(TESTS.replace("SECONDS", "70.0"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--capture={capture}"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_X")},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    ours = [line for line in lines if line.startswith("cutile: for ")]
    assert len(ours) >= 2
    assert {line.partition(" s: ")[2] for line in ours} == {"confirming softmax[bf16-16384x8192]"}
    assert [line.split()[1:] for line in lines if line.startswith("test_it.py ")] == [["."], [".", "[100%]"]]
    assert "." in lines  # of the long one
    assert "3 passed" in lines[-1]


def test_with_q_the_output_is_pytests_own(tmp_path):
    written = on_terminal(tmp_path, "-q")
    assert SPLIT.findall(written) == []
    assert re.search(r"\.\.\. +\[100%\]", written)


WORKERS = """
import pytest

class Item(pytest.Item):
    def runtest(self):
        pass

class Module(pytest.File):
    def collect(self):
        for name in ("correct[a]", "correct[b]", "correct[slow]"):
            yield Item.from_parent(self, name=name)

def pytest_collect_file(file_path, parent):
    return Module.from_parent(parent, path=file_path) if file_path.name == "kernel.py" else None

class Controller:
    def __init__(self, line):
        self.line = line

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logstart(self, nodeid):
        if nodeid.endswith("[slow]"):
            pass_time(self.line, 5.0)

def pytest_sessionstart(session):
    plugins = session.config.pluginmanager
    if plugins.has_plugin("dsession"):
        plugins.register(Controller(plugins.get_plugin("cutile-status")))
"""


@pytest.mark.parametrize("columns", [60, 100, 200])
def test_the_line_of_workers_goes_too(tmp_path, columns):
    (tmp_path / "kernel.py").touch()
    written = on_terminal(tmp_path, "-n", "2", "kernel.py", "test_it.py", columns=columns, more=WORKERS)
    lines = SPLIT.findall(written)
    assert lines[-1] == ""
    # The other worker may be at another test.
    said = re.compile(r"cutile: (for|2 tests running, the longest for) 2 s: kernel\.py::")
    assert any(map(said.match, lines))
    own = SPLIT.sub("", written).replace("\x1bD\x1b[A", "")
    assert "cutile:" not in own
    assert "6 passed" in own


def test_what_is_left_is_estimated_once_it_can_be():
    left = TimeLeft()
    nodeids = [f"kernels/a.py::correct[{number}]" for number in range(9)]
    left.expect(nodeids)
    for nodeid, seconds in zip(nodeids, (70.0, 20.0, 40.0), strict=False):
        assert str(left) == ""
        left.began(nodeid)
        left.took(nodeid, seconds)
    assert str(left) == ", about 3 min for the other 6 tests"  # the first one waited for all compilations
    left.expect(nodeids, "gw1")
    assert str(left) == ", about 2 min for the other 6 tests"
    for nodeid in nodeids:
        left.began(nodeid)
    assert str(left) == ""


def test_the_controller_of_workers_says_which_test_runs_longest(monkeypatch):
    plugins = SimpleNamespace(has_plugin=lambda name: name == "dsession", get_plugin=lambda _: None)
    config: Any = SimpleNamespace(pluginmanager=plugins, option=SimpleNamespace(capture="fd"))
    status = StatusLine(config)
    for nodeid in (
        "kernels/softmax.py::speed[a]",
        "tests/test_mine.py::test_it",
        "kernels/rope.py::correct[b]",
    ):
        status.pytest_runtest_logstart(nodeid)
    began = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: began + 41)
    assert status._status() == "cutile: 2 tests running, the longest for 41 s: kernels/softmax.py::speed[a]"
    status.pytest_xdist_node_collection_finished(SimpleNamespace(gateway=SimpleNamespace(id="gw0")), [])
    said = "cutile: 1 to be measured again, for 41 s: kernels/rope.py::correct[b]"
    assert status._status() == said  # the only worker has begun another test
    status.pytest_runtest_logfinish("kernels/softmax.py::speed[a]")
    assert status._status() == "cutile: for 41 s: kernels/rope.py::correct[b]"


def test_a_thread_ticks_until_the_session_ends(monkeypatch):
    ticked = threading.Event()
    plugins = SimpleNamespace(has_plugin=lambda _: False, get_plugin=lambda _: None)
    status = StatusLine(SimpleNamespace(pluginmanager=plugins, option=SimpleNamespace(capture="fd")))  # type: ignore[arg-type]
    status._stream = sys.stdout
    monkeypatch.setattr(module, "TICK_SECONDS", 0.0)
    monkeypatch.setattr(status, "tick", ticked.set)
    status("compiling")
    assert ticked.wait(60.0)
    status.pytest_sessionfinish()
    assert status._thread is not None
    assert not status._thread.is_alive()
