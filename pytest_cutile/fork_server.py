"""A process that is put aside early, and whose forks answer requests: each begins as that process was then.

The process that starts the server goes on to use threads, CUDA and whatever its tests leave behind. The
server does nothing but fork, so its forks see none of that, and nothing of each other.
"""

from __future__ import annotations

import importlib
import os
import pickle
import select
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from pytest_cutile.forking import ForkDied, answer_and_exit, fork, read, read_answer

_STATUS = struct.Struct("i")


class ForkServer:
    """The side that asks. Several threads and forks of this process may ask at the same time."""

    def __init__(self, handler: Callable[[Any], object], *, preload: Sequence[str] = ()) -> None:
        """Start the server: a fork of this process as it is now.

        Args:
            handler: Answers a request, in a fork of the server. Requests and answers have to be picklable.
            preload: Modules that the server imports, so that no fork has to.
        """
        self._control, served = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._pid = fork()
        if self._pid == 0:
            self._control.close()
            _serve(served, handler, preload)
        served.close()
        self._owner = os.getpid()

    def call(self, request: object) -> Any:
        """Return or raise what the handler returns or raises for `request`.

        Raises:
            ForkDied: the fork that answered ended first.
        """
        own, passed = socket.socketpair()
        with own:
            with passed:
                socket.send_fds(self._control, [b"\0"], [passed.fileno()])
            with suppress(BrokenPipeError):  # then the answer is empty
                own.sendall(pickle.dumps(request))
                own.shutdown(socket.SHUT_WR)
            with own.makefile("rb") as answers:
                answer = answers.read()
        if len(answer) < _STATUS.size:
            raise ForkDied(-signal.SIGKILL)
        (status,) = _STATUS.unpack(answer[-_STATUS.size :])
        return read_answer(answer[: -_STATUS.size], status)

    def close(self) -> None:
        """End the server; forks that still answer end with it."""
        self._control.close()
        if os.getpid() == self._owner:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)


def _serve(control: socket.socket, handler: Callable[[Any], object], preload: Sequence[str]) -> NoReturn:
    """Fork for each request until nobody is left to ask."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asks is interrupted, and ends this process
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for what was forked here
        for name in preload:
            with suppress(Exception):  # the request that needs it says so
                importlib.import_module(name)
        parent = os.getppid()
        while os.getppid() == parent:
            readable, _, _ = select.select([control], [], [], 1.0)
            if not readable:
                continue
            _, (descriptor,), _, _ = socket.recv_fds(control, 1, 1)
            if fork() == 0:
                control.close()
                _answer(descriptor, handler)
            os.close(descriptor)
    finally:
        os._exit(0)


def _answer(descriptor: int, handler: Callable[[Any], object]) -> NoReturn:
    """Let a fork answer a request, and add how it ended."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with socket.socket(fileno=descriptor) as asked:
            with asked.makefile("rb") as requests:
                data = requests.read()
            pid = fork()
            if pid == 0:
                answer_and_exit(lambda: handler(read(data)), os.dup(asked.fileno()))
            _, status = os.waitpid(pid, 0)
            asked.sendall(_STATUS.pack(os.waitstatus_to_exitcode(status)))
    finally:
        os._exit(0)
