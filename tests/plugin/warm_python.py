"""A `python` for tests that forks a process which has imported torch, instead of importing it in each."""

import atexit
import fcntl
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import traceback
import types
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _pytest.assertion.rewrite import AssertionRewritingHook

CLIENT = """#!{python} -ISu
import os, signal, socket

connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
files = [int(file) for file in os.listdir("/proc/self/fd") if int(file) != connection.fileno()]
files = [file for file in files if os.path.exists(f"/proc/self/fd/{{file}}")]
import sys
socket.send_fds(connection, [repr((sys.argv[1:], os.getcwd(), dict(os.environ), files)).encode()], files)
code = int(connection.recv(16) or b"1")
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""
"""Hands arguments, folder, environment and open files to the server, and ends as the program ends."""

FLAGS = {"-u", "-P"}
"""Flags that change nothing here. With any other, the program is run by the real interpreter."""
HIGH = 500
"""File descriptors from here on are not used by a program."""


def start_server(folder: Path) -> tuple[Path, int]:
    """Start a server in a fork of this process; return the program that asks it, and its process id."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "socket"))
    listener.listen()
    program = folder / "python"
    program.write_text(CLIENT.format(python=sys.executable, address=listener.getsockname()))
    program.chmod(0o755)
    python, sys.executable = sys.executable, str(program)
    try:
        server = fork(lambda: _serve(listener, python))
    finally:
        sys.executable = python
    listener.close()
    return program, server


def fork(run: Callable[[], int]) -> int:
    """Run a function in a forked process, which ends with what it returns; return the process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about threads: none of this process holds a lock now
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = run()
        finally:
            os._exit(code)
    return pid


def _serve(listener: socket.socket, python: str) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        fork(partial(_keep, connection, python))
        connection.close()


def _keep(connection: socket.socket, python: str) -> int:
    """Run one program. Where who asked for it was killed, kill it, and all that it started."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, files, _, _ = socket.recv_fds(connection, 1 << 20, 250)
    pid = fork(lambda: _run(message.decode(), files, python))
    for file in files:
        os.close(file)
    ended = os.pidfd_open(pid)
    waited: list[Any] = [ended, connection]
    ready, _, _ = select.select(waited, [], [])
    if ended not in ready:
        os.killpg(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    connection.sendall(str(code).encode())
    return 0


def _run(message: str, files: list[int], python: str) -> int:
    args, folder, environment, numbers = eval(message)
    os.setsid()
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, HIGH) for file in files]
    os.closerange(3, HIGH)
    for file, number in zip(moved, numbers, strict=True):
        os.dup2(file, number)
    os.closerange(HIGH, HIGH + len(moved))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # TMPDIR may be another
    while args and args[0] in FLAGS:
        args.pop(0)
    if args[0] not in ("-c", "-m"):
        os.execv(python, [python, *args])
    redirect()
    torch.set_num_threads(1)  # other threads are not forked, and OpenMP would wait for them
    warnings.resetwarnings()
    atexit._clear()
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, AssertionRewritingHook)]
    sys.path[:0] = ["", *environment.get("PYTHONPATH", "").split(":")]
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in environment
    code = run_program(args)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def run_program(args: list[str]) -> int:
    """Run what follows `python` on a command line, `-c` or `-m`; return its status."""
    flag, program, *rest = args
    sys.argv = [flag, *rest]
    try:
        if flag == "-c":
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(program, main.__dict__)
        else:
            sys.modules.pop(program, None)
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return int(end.code or 0) & 0xFF
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        return 1
    return 0


def redirect() -> None:
    """Make the standard streams those of the file descriptors 0, 1 and 2."""
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, closefd=False) for number, mode in enumerate("rww")
    )
