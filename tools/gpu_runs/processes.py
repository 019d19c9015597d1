"""Tasks for processes of which any may die, hang, or lose its GPU, and the others lose nothing."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Self, TypeAlias

Handler: TypeAlias = Callable[[Any], Any]
"""Does one task, in a process of the pool."""
Start: TypeAlias = Callable[[int], Handler]
"""Prepares process number N; picklable, because processes are spawned: CUDA does not survive a fork."""

MOST_STARTS = 2
"""Failed starts in a row after which a place of the pool stays empty."""


class Broken(Exception):  # noqa: N818 - it says what the process is
    """Raised by a handler: the task failed, and the process is of no more use (GPU errors stick to it)."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a task."""

    value: Any = None
    """What the handler returned."""
    error: str | None = None
    """Why there is no value."""


class Pool:
    """Processes that stay from task to task; whatever ends one, another takes its place."""

    def __init__(
        self, count: int, start: Start, *, task_seconds: float = float("inf"), nested: bool = False
    ) -> None:
        """Start `count` processes.

        Args:
            count: how many; each gets its number.
            start: prepares one, and returns what does its tasks.
            task_seconds: after so long in one task a process is killed, and the task has failed.
            nested: whether they have pools of their own. The others end with this process, however it ends.
        """
        self._start = start
        self._task_seconds = task_seconds
        self._places = [_Place(number, start, nested=nested) for number in range(count)]

    def __len__(self) -> int:
        return len(self._places)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, tasks: Sequence[Any], *, at_once: int | None = None, until: float = float("inf")
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield each task's place in `tasks` and its outcome, in the order in which they are done.

        Args:
            tasks: picklable.
            at_once: at most so many at a time, where their memory does not suffice for more.
            until: a time of `time.monotonic` after which no task is begun; those are not yielded.
        """
        waiting = deque(enumerate(tasks))
        while True:
            if time.monotonic() > until:
                waiting.clear()
            usable = [place for place in self._places if place.failed_starts < MOST_STARTS]
            if not usable:
                why = self._places[0].why if self._places else "there is no process to run it"
                yield from ((number, Outcome(error=why)) for number, _ in waiting)
                return
            for place in usable:
                place.ensure()
                running = sum(other.task is not None for other in usable)
                if waiting and place.idle and (at_once is None or running < at_once):
                    place.give(*waiting.popleft(), seconds=self._task_seconds)
            busy = [place for place in usable if place.task is not None]
            if not busy and not waiting:
                return
            deadline = min((place.deadline for place in busy), default=float("inf"))
            limit = max(0.0, min(deadline, until if waiting else deadline) - time.monotonic())
            by_pipe: dict[Any, _Place] = {place.pipe: place for place in usable}
            for pipe in wait([*by_pipe], None if limit == float("inf") else limit + 0.001):
                if (done := by_pipe[pipe].receive()) is not None:
                    yield done
            for place in usable:
                if place.task is not None and time.monotonic() > place.deadline:
                    yield place.give_up(self._task_seconds)

    def close(self) -> None:
        """End the processes."""
        for place in self._places:
            place.end()


class _Place:
    """A place in the pool, and the process that is in it now."""

    def __init__(self, number: int, start: Start, *, nested: bool) -> None:
        self._nested = nested
        self._number = number
        self._start = start
        self._process: Any = None
        self._ready = False
        self.pipe: Connection | None = None
        self.task: int | None = None
        self.deadline = float("inf")
        self.failed_starts = 0
        self.why = ""
        self.ensure()

    @property
    def idle(self) -> bool:
        return self._ready and self.task is None

    def ensure(self) -> None:
        """Start a process if none is there."""
        if self._process is not None:
            return
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, self._start, self._number)
        self._process = context.Process(target=_serve, args=arguments, daemon=not self._nested)
        self._process.start()
        theirs.close()  # so that the end of the process ends the pipe
        self._ready = False

    def give(self, number: int, task: Any, *, seconds: float) -> None:
        """Hand over a task."""
        self.task, self.deadline = number, time.monotonic() + seconds
        with contextlib.suppress(OSError):  # it died just now: `receive` will see so
            self._connection.send(task)

    def receive(self) -> tuple[int, Outcome] | None:
        """Return the outcome that the process sent, or that its end is; None if it only started or ended."""
        try:
            kind, value = self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            kind, value = "broken", f"its process died (exit code {self._process.exitcode})"
        if kind == "ready":
            self._ready, self.failed_starts = True, 0
            return None
        started, task, self.task = self._ready, self.task, None
        if kind == "broken":
            self.end()
            if not started:
                self.failed_starts += 1
                self.why = str(value)
        if task is None:
            return None
        return task, Outcome(value=value) if kind == "done" else Outcome(error=str(value))

    def give_up(self, seconds: float) -> tuple[int, Outcome]:
        """Kill the process; return the outcome of its task."""
        task, self.task = self.task, None
        self.end()
        return task or 0, Outcome(error=f"not done after {seconds:g} s")

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None
            self._ready = False

    @property
    def _connection(self) -> Connection:
        if self.pipe is None:
            raise RuntimeError("no process was started")
        return self.pipe


def _serve(pipe: Connection, start: Start, number: int) -> None:
    """Do tasks until the pipe ends, in a process of its own."""
    try:
        handle = start(number)
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent reports it
        pipe.send(("broken", f"the process did not start: {describe(error)}"))
        return
    message: tuple[str, Any] = ("ready", None)
    while True:
        try:
            pipe.send(message)
            task = pipe.recv()
        except (EOFError, OSError):
            return  # the parent has ended
        try:
            message = ("done", handle(task))
        except Broken as error:
            message = ("broken", str(error))
        except Exception as error:  # noqa: BLE001 - likewise
            message = ("failed", describe(error))
        if message[0] == "broken":
            pipe.send(message)
            return


def describe(error: BaseException) -> str:
    """Return an exception as text: its type and message."""
    return f"{type(error).__name__}: {str(error).strip()}"
