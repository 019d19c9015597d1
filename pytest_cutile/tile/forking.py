"""Runs a function in a fork of this process: what it leaves behind in memory ends with the fork.

The function needs no pickling, only what it returns or raises. A fork of a process that has used CUDA must
not use CUDA. Libraries that a fork imports are then imported here, too: the next fork finds them loaded.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NoReturn, TypeVar

_T = TypeVar("_T")
STARTING = threading.Lock()
"""Held by a thread that starts a process. A fork in between would keep the pipe open by which `subprocess`
learns that its program runs: the thread would wait for the fork, and the fork perhaps for the thread."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class ForkDied(Exception):  # noqa: N818 - reads as what happened
    """A fork ended before it could say what its function returned or raised."""

    def __init__(self, status: int) -> None:
        """Take the exit code as `os.waitstatus_to_exitcode` returns it: negative for a signal."""
        super().__init__(describe_exit(status))
        self.status = status


def describe_exit(status: int) -> str:
    """Return in words how a process ended: "ended by SIGSEGV (Segmentation fault)"."""
    if status >= 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name if -status in {*signal.Signals} else f"signal {-status}"
    return f"ended by {name} ({signal.strsignal(-status)})"


def can_fork() -> bool:
    return hasattr(os, "fork")


def call_in_fork(function: Callable[[], _T]) -> _T:
    """Return what `function` returns in a fork of this process, or raise what it raises there.

    Where a system has no forks, the function runs here.

    Raises:
        ForkDied: the fork ended without an answer.
    """
    if not can_fork():
        return function()
    reader, writer = os.pipe()
    pid = fork()
    if pid == 0:
        os.close(reader)
        answer_and_exit(function, writer)
    os.close(writer)
    answer: _T = wait_for_answer(pid, reader)
    return answer


def wait_for_answer(pid: int, reader: int) -> Any:
    """Wait for a fork; return or raise what `answer_and_exit` writes to the other end of a pipe.

    Raises:
        ForkDied: the fork ended without an answer.
    """
    try:
        with os.fdopen(reader, "rb") as answers:
            answer = answers.read()
    except BaseException:  # a timeout's signal, Ctrl-C: nobody waits for the answer any more
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    _, status = os.waitpid(pid, 0)
    read = read_answer(answer, os.waitstatus_to_exitcode(status))
    if threading.current_thread() is threading.main_thread():  # the others would wait for each other's locks
        import_libraries(read.imported)
    return read.get()


def fork() -> int:
    """Fork; the new process ends with the thread that forked it, and collects no garbage of before."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # closed, or none of Python's own
            stream.flush()
    parent = os.getpid()
    gc.freeze()  # a collection in the fork would copy every page that it looks at
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads: a fork starts its own
        with STARTING:
            pid = os.fork()
    if pid == 0:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        import resource  # there is none where there is no fork

        # Who waits for a fork that crashes does not wait for its memory to be written to a file.
        _, most = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, most))
        if "torch" in sys.modules:
            # GNU OpenMP waits for ever for threads that the forked process has had.
            sys.modules["torch"].set_num_threads(1)
    else:
        gc.unfreeze()
    return pid


def answer_and_exit(function: Callable[[], object], writer: int) -> NoReturn:
    """Write what `function` returns or raises to a file descriptor, then end this process at once."""
    status = 1
    try:
        data = _outcome(function)
        with os.fdopen(writer, "wb") as answers:
            answers.write(data)
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):
                stream.flush()
        status = 0
    finally:
        os._exit(status)


@dataclass(frozen=True)
class ForkAnswer:
    """What `answer_and_exit` has written."""

    result: Any
    error: BaseException | None
    imported: Sequence[str]
    """Modules that the fork imported, but for those of the project under test."""

    def get(self) -> Any:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result


def read_answer(data: bytes, status: int) -> ForkAnswer:
    """Return what `answer_and_exit` has written.

    Raises:
        ForkDied: it was interrupted; `status` says how.
    """
    if status != 0 or not data:
        raise ForkDied(status)
    return ForkAnswer(*read(data))


def read(data: bytes) -> Any:
    """Return what another process of this run has pickled."""
    return pickle.loads(data)  # noqa: S301 - our own


def _outcome(function: Callable[[], object]) -> bytes:
    """Return the result or the exception of `function`, pickled."""
    from pytest_cutile.tile.compiler.trace.patching import may_be_launch_code

    loaded = set(sys.modules)
    result, raised = None, None
    try:
        result = call_with_large_stack(function)
    except BaseException as error:  # noqa: BLE001 - raised again by whoever asked
        raised = portable(error)
    imported = [name for name in sys.modules if name not in loaded and not may_be_launch_code(name)]
    return pickle.dumps((result, raised, imported))


def portable(error: BaseException) -> BaseException:
    """Return an exception that can be pickled with its traceback, though without local variables.

    What it was raised from goes if that cannot be pickled. An exception that itself cannot becomes a
    RuntimeError with its text.
    """
    from tblib import pickling_support

    text = "".join(traceback.format_exception(error))
    if error.__suppress_context__:
        error.__context__ = None
    pickling_support.install(error)
    if _survives(error):
        return error
    error.__context__ = error.__cause__ = None
    return error if _survives(error) else RuntimeError(f"{type(error).__name__}: {error}\n{text}")


def call_with_large_stack(function: Callable[[], _T]) -> _T:
    """Call `function` with 1 MiB of memory for the frames of what it calls.

    Python maps memory for frames in chunks of 16 KiB, and unmaps a chunk after its last frame. A loop that
    calls across the end of a chunk maps memory with every call: exporting a kernel took twice the time. A
    frame that is too large for such a chunk gets one of up to twice its size.
    """
    return _called(function)  # type: ignore[no-any-return]


def _call(function: Callable[[], _T]) -> _T:
    return function()


_called = FunctionType(_call.__code__.replace(co_stacksize=2**17), globals())


def _survives(error: BaseException) -> bool:
    try:
        return type(read(pickle.dumps(error))) is type(error)
    except Exception:  # noqa: BLE001 - pickling somebody's exception may raise anything
        return False


def import_libraries(names: Iterable[str]) -> None:
    """Import what a fork imported: the next fork finds it loaded."""
    for name in names:
        if name not in sys.modules:
            with suppress(Exception):  # then the next fork imports it, or fails as this one did not
                importlib.import_module(name)
