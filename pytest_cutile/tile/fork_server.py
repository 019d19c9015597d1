"""A process that is put aside early, and whose forks answer requests: each begins as that process was then.

The process that starts the server goes on to use threads, CUDA and whatever its tests leave behind. The
server does nothing but fork, so its forks see none of that, and nothing of each other.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NoReturn

from pytest_cutile.tile.forking import ForkDied, answer_and_exit, fork, import_libraries, read, read_answer

_STATUS = struct.Struct("i")
_LARGEST_MESSAGE = 2**18
"""Bytes: names of modules; Linux sends no longer one over a socket of datagrams."""


class ForkServer:
    """The side that asks. Several threads and forks of this process may ask at the same time."""

    def __init__(self, handler: Callable[[Any], object]) -> None:
        """Start the server: a fork of this process as it is now.

        Args:
            handler: Answers a request, in a fork of the server. Requests and answers have to be picklable.
        """
        self._imported: set[str] = set()
        self._control, served = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._pid = fork()
        if self._pid == 0:
            self._control.close()
            _serve(served, handler)
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
        read = read_answer(answer[: -_STATUS.size], status)
        self._import(read.imported)
        return read.get()

    def _import(self, names: Iterable[str]) -> None:
        """Let the server import what a fork imported, so that no other fork has to."""
        unknown = [name for name in names if name not in self._imported]
        if unknown:
            self._imported.update(unknown)
            with suppress(OSError):  # the server has ended
                self._control.send(pickle.dumps(unknown))

    def close(self) -> None:
        """End the server; forks that still answer end with it."""
        self._control.close()
        if os.getpid() == self._owner:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)


def _serve(control: socket.socket, handler: Callable[[Any], object]) -> NoReturn:
    """Fork for each request, and import what forks have imported, until nobody is left to ask."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asks is interrupted, and ends this process
        ended, wakeup = socket.socketpair()
        for end in (ended, wakeup):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        answering: dict[int, socket.socket] = {}
        parent = os.getppid()
        while os.getppid() == parent:
            readable, _, _ = select.select([control, ended], [], [], 1.0)
            if ended in readable:
                ended.recv(4096)
            _tell_how_forks_ended(answering)
            if control not in readable:
                continue
            message, descriptors, _, _ = socket.recv_fds(control, _LARGEST_MESSAGE, 1)
            if not descriptors:
                import_libraries(read(message))
                continue
            asked = socket.socket(fileno=descriptors[0])
            pid = fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (control, ended, wakeup, *answering.values()):
                    other.close()
                _answer(asked, handler)
            answering[pid] = asked
    finally:
        os._exit(0)


def _tell_how_forks_ended(answering: dict[int, socket.socket]) -> None:
    """Add to the answer of each fork that has ended how it did."""
    while answering:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with answering.pop(pid) as asked, suppress(OSError):  # nobody waits any more
            asked.sendall(_STATUS.pack(os.waitstatus_to_exitcode(status)))


def _answer(asked: socket.socket, handler: Callable[[Any], object]) -> NoReturn:
    """In a fork: read a request and answer it."""
    with asked.makefile("rb") as requests:
        data = requests.read()
    answer_and_exit(lambda: handler(read(data)), asked.detach())
